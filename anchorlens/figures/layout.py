"""Everything of the figure that is not a curve: its grid of panels, heading, axes, legend and size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anchorlens.errors import InputError
from anchorlens.figures.extras import Beside
from anchorlens.figures.heading import headline, title_parts, wrapped
from anchorlens.figures.labels import in_panel, panel_titles
from anchorlens.figures.legend import BESIDE, LETTER, LINE, PAD, SIZES, Legend
from anchorlens.figures.words import words_of

INK = "#222222"
_GRID = "#e6e6e6"
FRAME: dict[str, Any] = {"showline": True, "linecolor": "#444444", "ticks": "outside", "ticklen": 4, "gridcolor": _GRID}
ZERO: dict[str, Any] = {"zeroline": True, "zerolinecolor": "#888888", "zerolinewidth": 1.5}
_NOISE = "rgba(110, 110, 110, 0.28)"
_FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
# Pixels. A line of the heading; what stands above its second line and below its last, the panels' titles among that.
_LINE, _TOP = 17, 52
# Panels of one row; of each of several; of a row of contrasts, whose heading and switch stand in the gap above it.
_HEIGHT, _ROW_HEIGHT, _LOWER_HEIGHT, _ROW_GAP, _LOWER_GAP = 380, 320, 210, 84, 92
# Below the panels: the x axes' ticks and titles; then the legends.
_BELOW = 58
MARGINS = (58, 20)
"""Pixels to the left and right of the panels."""
# Where the width is the page's: as narrow as a notebook cell may be. A saved page breaks the heading's lines where it ends.
_ASSUMED_WIDTH = 700
_FIRST_LINE = '<span style="font-size:17px"><b>{}</b></span>'
_NEXT_LINE = '<span style="font-size:12px;color:#555555">{}</span>'
# Buttons that mean nothing for these curves, and the one of newer plotly versions that uploads a figure.
_UNUSED_BUTTONS = ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "sendChartToCloud"]


@dataclass(frozen=True)
class Sheet:
    """Where the panels stand: ``rows`` x ``columns``, each row with one of contrasts below it or not, and the sizes in pixels."""

    panels: int
    rows: int
    columns: int
    contrasts: bool
    mixed: bool
    first: str
    parts: list[list[str]]
    inner: int
    legend_height: int
    height: int
    width: int | None

    @property
    def heading(self) -> list[str]:
        """The lines of the heading, as plotly takes them."""
        letters = max(40, int(((self.width or _ASSUMED_WIDTH) - sum(MARGINS)) / LETTER))
        lines = [line for parts in self.parts for line in wrapped(parts, letters)]
        return [*([_FIRST_LINE.format(self.first)] if self.first else []), *map(_NEXT_LINE.format, lines)]

    @property
    def top(self) -> int:
        """Pixels above the panels."""
        return _TOP + _LINE * len(self.heading)

    @property
    def bottom(self) -> int:
        """Pixels below them."""
        return _BELOW + self.legend_height

    def page_plan(self, *, fixed: bool) -> dict[str, Any]:
        """What a page needs to arrange the figure again for its width and its font.

        Args:
            fixed: Whether the user gave a height, which then stays.
        """
        return {
            "first": _FIRST_LINE.format(self.first) if self.first else "",
            "next": _NEXT_LINE.split("{}"),
            "parts": self.parts,
            "inner": None if fixed else self.inner,
            "top": _TOP,
            "line": _LINE,
            "below": _BELOW,
            "row": LINE,
            "pad": PAD,
            "beside": BESIDE,
            "sizes": list(SIZES),
        }

    def cell(self, panel: int) -> tuple[int, int]:
        """Row and column, from 1, of the ``panel``-th panel."""
        return panel // self.columns * (2 if self.contrasts else 1) + 1, panel % self.columns + 1

    def below(self, panel: int) -> tuple[int, int]:
        """The same of the contrasts below it."""
        row, column = self.cell(panel)
        return row + 1, column

    @property
    def panel_width(self) -> float:
        """About how many pixels one panel is wide."""
        return (self.width or _ASSUMED_WIDTH) / self.columns


def plan_sheet(
    table: pd.DataFrame,
    effects: pd.DataFrame,
    legends: Sequence[Legend],
    beside: Mapping[str, Beside],
    *,
    title: str | None,
    bands: Sequence[str],
    height: int | None,
    width: int | None,
) -> Sheet:
    """Sizes of the figure of ``table``.

    Args:
        table: Points as ``with_ticks`` gives them.
        effects: Contrasts to be drawn below; they may be none.
        legends: Both legends.
        beside: What the second one lists.
        title: First line of the heading; None names the protocol, ``""`` leaves it out.
        bands: The intervals that are drawn.
        height: Pixels, or None for panels of the usual height.
        width: Pixels, or None for as wide as the page.

    Raises:
        InputError: a size too small to hold a figure.
    """
    panels, protocols = len(panel_titles(table)), table["protocol"].nunique()
    # Up to four models side by side, beyond that rows as equal as can be; or a row per model and a column per protocol.
    rows = math.ceil(panels / (4 if protocols == 1 else protocols))
    first = headline(table) if title is None else title
    inner, least = _HEIGHT if rows == 1 else rows * _ROW_HEIGHT + (rows - 1) * _ROW_GAP, 100 * rows
    if len(effects):
        gaps = (2 * rows - 1) * _LOWER_GAP
        inner, least = rows * (_ROW_HEIGHT + _LOWER_HEIGHT) + gaps, 200 * rows + gaps
    sheet = Sheet(
        panels, rows, math.ceil(panels / rows), len(effects) > 0, protocols > 1, first,
        title_parts(table, effects, bands, beside), inner, sum(legend.height for legend in legends), 0, width,
    )  # fmt: skip
    around = sheet.top + sheet.bottom
    for name, pixels, smallest in (("height", height, around + least), ("width", width, 320)):
        if pixels is not None and pixels < smallest:
            raise InputError(f"{name}={pixels} pixels is too small for this figure. Give at least {smallest}, or None.")
    return replace(sheet, height=height or around + inner)


def empty_panels(sheet: Sheet, names: Sequence[str]) -> go.Figure:
    """A figure with a titled panel per name and no curve."""
    size, pixels = (15, 8) if 8 * max(map(len, names)) <= sheet.panel_width - 30 else (12, 6.6)
    letters = max(8, int((sheet.panel_width - 12) / pixels))
    short = [name if len(name) <= letters else f"{name[: letters - 9]}…{name[-8:]}" for name in names]
    inner = sheet.height - sheet.top - sheet.bottom
    rows = sheet.rows * (2 if sheet.contrasts else 1)
    gap = _LOWER_GAP if sheet.contrasts else _ROW_GAP
    titles: list[str] = []
    for row in range(sheet.rows):
        own = short[row * sheet.columns : (row + 1) * sheet.columns]
        titles += own + [""] * (sheet.columns - len(own)) + [""] * (sheet.columns if sheet.contrasts else 0)
    # Below the panels of two protocols stand two scales, each with its own ticks and title.
    between = 0.035 if not (sheet.contrasts and sheet.mixed) else 0.09
    figure = make_subplots(
        rows=rows,
        cols=sheet.columns,
        subplot_titles=titles,
        row_heights=[_ROW_HEIGHT, _LOWER_HEIGHT] * sheet.rows if sheet.contrasts else None,
        horizontal_spacing=between if sheet.columns > 1 else 0.0,
        vertical_spacing=min(0.6 / (rows - 1), gap / inner) if rows > 1 else 0.0,
    )
    for shown, name in zip(short, names, strict=True):
        figure.update_annotations({"font": {"size": size, "color": INK}, "hovertext": name, "yshift": 2}, {"text": shown})
    return figure


def style_axes(figure: go.Figure, sheet: Sheet, table: pd.DataFrame, *, bands: Sequence[str]) -> None:
    """Layers on every x axis, each with its panel's own range; one scale for the y axes of all curves."""
    # Equal ranges at first, and with `matches` zooming one panel zooms all; an axis that matches itself is warned of.
    figure.update_yaxes(matches="y", range=_delta_range(table, bands), showticklabels=False, **ZERO, **FRAME)
    figure.update_layout(yaxis_matches=None)
    for panel, key in enumerate(panel_titles(table)):
        row, column = sheet.cell(panel)
        own = in_panel(table, key)
        first, last = int(own["layer"].min()), int(own["layer"].max())
        figure.update_xaxes(
            title={"text": "Layer", "standoff": 6},
            range=[first - 0.5, last + 0.5],
            tick0=0,
            dtick=_step(last - first, 9 if sheet.columns < 3 else 6),
            tickformat="d",
            zeroline=False,
            row=row,
            col=column,
            **FRAME,
        )
        floor = float(own["noise_floor"].max())
        if floor > 0:
            place: dict[str, Any] = {"row": row, "col": column}
            figure.add_hrect(-floor, floor, fillcolor=_NOISE, line_width=0, layer="below", **place)
        if column == 1:
            figure.update_yaxes(
                title={"text": escape(words_of(table).axis, quote=False), "standoff": 4},
                showticklabels=True,
                row=row,
                col=column,
            )
    for panel in range(sheet.panels, sheet.rows * sheet.columns):
        hide_panel(figure, sheet.cell(panel))


def hide_panel(figure: go.Figure, cell: tuple[int, int]) -> None:
    """Leave a cell of the grid blank."""
    figure.update_xaxes(visible=False, row=cell[0], col=cell[1])
    figure.update_yaxes(visible=False, row=cell[0], col=cell[1])


def _delta_range(table: pd.DataFrame, bands: Sequence[str]) -> list[float]:
    """One y range for all panels: everything that is drawn, and zero."""
    curves, floor = table[table["control"] == "none"], table["noise_floor"]
    ends = [curves[f"{kind}_{end}"] for kind in bands for end in ("low", "high")]
    return y_range([table["delta_p"], table["tick"], floor, -floor], ends, words_of(table).bound)


def y_range(values: Sequence[pd.Series], ends: Sequence[pd.Series], bound: float) -> list[float]:
    """A y range that holds values, zero and the ends of intervals, these no further than any value can lie.

    The intervals of two or three questions go far beyond, and would press the curves flat.
    """
    drawn = np.concatenate(
        [*(v.to_numpy(dtype=float) for v in values), *(e.clip(-bound, bound).to_numpy(float) for e in ends)]
    )
    drawn = np.append(drawn[~np.isnan(drawn)], 0.0)
    low, high = float(drawn.min()), float(drawn.max())
    room = max(0.05 * (high - low), 0.005 * min(bound, 100))
    return [low - room, high + room]


def _step(span: int, most: int) -> int:
    """Whole layers between two ticks: at most ``most`` steps over ``span`` layers."""
    return next(step for step in (1, 2, 4, 5, 8, 10, 20, 25, 50, 100, 200, 500, 1000, span + 1) if span / step <= most)


def style_page(figure: go.Figure, sheet: Sheet) -> None:
    """Heading, sizes and fonts; set on the figure alone, whatever the session's default template is."""
    left, right = MARGINS
    figure.update_layout(
        template="plotly_white",
        font={"family": _FONT, "size": 13, "color": INK},
        # The size given here sets the distance of the lines; the first line's own size stands in its text.
        title={
            "text": "<br>".join(sheet.heading),
            "font": {"size": 13},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 22},
        },
        margin={"l": left, "r": right, "t": sheet.top, "b": sheet.bottom},
        height=sheet.height,
        width=sheet.width,
        showlegend=True,
        modebar={"remove": _UNUSED_BUTTONS},
        hovermode="closest",
        hoverlabel={"align": "left", "namelength": -1},
        paper_bgcolor="white",
        plot_bgcolor="white",
    )
