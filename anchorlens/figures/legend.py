"""Where the entries of the legend stand: in fixed columns, a data set's entries below one another, at every width, in every font.

Plotly fills a legend row by row and breaks where the page ends, which tears the curves of a data set apart. Here each entry is a
fixed share of the width instead, and the entries are ranked so that filling row by row puts a data set's curves below one another.
A saved page measures its letters and chooses again (``page.js``, from what :func:`page_plan` says); anything else has the
arrangement that was chosen here, by the widest common font.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

import plotly.graph_objects as go

LINE, PAD = 19, 6
"""Pixels from one row of entries to the next, and beyond those of a whole legend."""
SIZES = (12, 11, 10)
"""Letters, by preference; fewer columns come after smaller letters."""
BESIDE = 40
"""Pixels of an entry beside its text: the line of 30, and a gap on either side of it."""

LETTER = 6.4
"""Pixels of one of the heading's small letters, in the widest common font."""

# Width of a letter as a share of its size, in DejaVu Sans, the widest that a browser falls back to.
_WIDEST = 0.57
_MARGINS = 80  # pixels to the left and right of the legend
# A page whose width is not known, such as a notebook cell, counts as this wide, and its letters as no larger than that.
_UNKNOWN_WIDTH, _UNKNOWN_SIZES = 720, (11, 10)


@dataclass(frozen=True)
class Arrangement:
    """One way to place the entries.

    Attributes:
        columns: Entries in a row.
        ranks: Of each entry in the legend's order, its place when rows are filled from the left.
    """

    columns: int
    ranks: tuple[int, ...]


def arrangements(sets: Sequence[object]) -> list[Arrangement]:
    """The ways to place entries, from the widest to a single column.

    Args:
        sets: Of each entry, in the legend's order, what it belongs to: entries of one data set stand together.

    >>> arrangements(["a", "a", "b", "b", "c", "c", "d", "d"])[0]
    Arrangement(columns=4, ranks=(0, 4, 1, 5, 2, 6, 3, 7))
    """
    groups = list(dict.fromkeys(sets))
    sizes = {sets.count(group) for group in groups}
    found: list[Arrangement] = []
    if len(sizes) == 1 and len(sets) > 4:
        (rows,) = sizes
        places = [(groups.index(group), list(sets[:k]).count(group)) for k, group in enumerate(sets)]
        for columns in (4, 3, 2):
            if len(groups) % columns == 0:
                ranks = [(at // columns * rows + row) * columns + at % columns for at, row in places]
                found.append(Arrangement(columns, tuple(ranks)))
    # Row by row; an even number of columns keeps pairs together.
    plain = tuple(range(len(sets)))
    return found + [Arrangement(columns, plain) for columns in ((1,) if found else (4, 2, 1))]


def chosen(ways: Sequence[Arrangement], letters: int, room: float, sizes: Sequence[int] = SIZES) -> tuple[Arrangement, int]:
    """The first arrangement, and the largest letters in it, at which an entry of so many letters fits into its share of the room."""
    for way in ways:
        for size in sizes:
            if BESIDE + _WIDEST * size * letters <= room / way.columns:
                return way, size
    return ways[-1], sizes[-1]


@dataclass(frozen=True)
class Legend:
    """One of a figure's two legends: that of the curves, or below it that of what stands beside them.

    Attributes:
        name: ``legend`` or ``legend2``.
        groups: Legend groups of its entries, in their order.
        ways: Every way to place them.
        way: The one that was chosen.
        size: Of its letters.
    """

    name: str
    groups: tuple[str, ...]
    ways: tuple[Arrangement, ...]
    way: Arrangement
    size: int

    @property
    def rows(self) -> int:
        """Lines of entries."""
        return -(-len(self.groups) // self.way.columns)

    @property
    def height(self) -> int:
        """Pixels."""
        return LINE * self.rows + PAD


def plan_legends(curves: Mapping[str, str], sets: Sequence[object], beside: Sequence[str], width: int | None) -> list[Legend]:
    """Choose where the entries of both legends stand.

    Args:
        curves: Legend group -> text, in their order.
        sets: What each of them belongs to, see :func:`arrangements`.
        beside: Entries of the second legend, which has the columns of the first.
        width: Of the figure, in pixels; None where it is the page's.

    Returns:
        From the foot of the page upwards.
    """
    room, sizes = (width, SIZES) if width else (_UNKNOWN_WIDTH, _UNKNOWN_SIZES)
    ways = arrangements(list(sets))
    letters = max(len(unescape(text)) for text in (*curves.values(), *beside))
    way, size = chosen(ways, letters, room - _MARGINS, sizes)
    first = Legend("legend", tuple(curves), tuple(ways), way, size)
    rows = [Arrangement(way.columns, tuple(range(len(beside)))) for way in ways]
    second = Legend("legend2", tuple(beside), tuple(rows), rows[ways.index(way)], size)
    return [second, first] if beside else [first]


def place_entries(figure: go.Figure, legends: Sequence[Legend], height: int) -> None:
    """Give every entry its place.

    Args:
        figure: With all of its curves.
        legends: From the foot of the page upwards.
        height: Of the figure, in pixels.
    """
    below = 0
    for legend in legends:
        ranks = dict(zip(legend.groups, legend.way.ranks, strict=True))
        for trace in traces_of(figure):
            if trace.showlegend and (trace.legend or "legend") == legend.name:
                trace.legendrank = ranks[trace.legendgroup] + 1
        figure.update_layout({legend.name: _look(legend, below / height)})
        below += legend.height


def page_plan(figure: go.Figure, legends: Sequence[Legend]) -> list[dict[str, Any]]:
    """What a page needs to place the entries again: each legend's traces in their order, and every way to place them."""
    return [
        {
            "name": legend.name,
            "traces": [
                next(k for k, t in enumerate(traces_of(figure)) if t.showlegend and t.legendgroup == group)
                for group in legend.groups
            ],
            "ways": [{"columns": way.columns, "ranks": list(way.ranks)} for way in legend.ways],
        }
        for legend in legends
    ]


def traces_of(figure: go.Figure) -> list[Any]:
    """The traces; plotly's own types allow for much else."""
    return list(figure.select_traces())


def _look(legend: Legend, y: float) -> dict[str, Any]:
    return {
        "orientation": "h",
        "traceorder": "normal",
        "groupclick": "togglegroup",
        # Two clicks on a curve isolate it; what stands beside the curves stays as it is, as each legend minds its own.
        "itemdoubleclick": "toggleothers" if legend.name == "legend" else False,
        "x": 0,
        "xanchor": "left",
        "bgcolor": "rgba(0,0,0,0)",
        "y": y,
        "yref": "container",
        "yanchor": "bottom",
        "itemwidth": 30,
        "entrywidth": 1 / legend.way.columns,
        "entrywidthmode": "fraction",
        "font": {"size": legend.size},
    }
