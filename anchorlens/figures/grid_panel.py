"""One panel of a heatmap of activation patches: its cells, ticks, hover texts and outlines.

Panels of one kind share their rows, so that a row is the same layer in all of them; cells that a
sweep did not measure stay empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from typing import Any

import numpy as np
import plotly.graph_objects as go

from anchorlens.display import minus
from anchorlens.figures.layout import FRAME, INK
from anchorlens.protocols.patch.patch_result import MEAN, PatchGrid, PatchResult
from anchorlens.results.vocabulary import unit_words

Row = tuple[int, ...]  # (layer,), or (layer, head)
AXIS_TITLES = {
    "position": "Position",
    "segment": "Segment",
    "layer": "Positions",
    "head": "Head",
    "head_position": "Position",
}
_TOKENS = "Token of the patched prompt (of the source where it differs)"
DIFFERENT = "*"
"""Token of a column whose tokens differ between the pairs of a mean."""
_OUTLINE = {"color": INK, "width": 1.6}
_WIDEST_LABEL = 14
_MOST_ROW_LABELS = 40


@dataclass(frozen=True)
class Panel:
    """Heatmap of one sweep.

    Attributes:
        result: Patch sweep.
        grid: Values of the mean or of a pair.
        rows: Rows from top to bottom, those of all panels of its kind.
    """

    result: PatchResult
    grid: PatchGrid
    rows: tuple[Row, ...]

    @property
    def by(self) -> str:
        """Kind of the places."""
        return str(self.result.record["config"]["by"])

    @property
    def row_title(self) -> str:
        """Title of the y axis."""
        return "Layer.head" if self.by == "head_position" else "Layer"

    def columns(self) -> list[tuple[str, str, str]]:
        """Return (place, patched token, source token) of each column."""
        both = self.grid.clean_tokens, self.grid.corrupted_tokens
        if self.result.record["config"]["direction"] == "denoising":
            both = both[::-1]
        found: dict[str, tuple[str, str, str]] = {}
        for place, own, other in zip(self.grid.places, *both, strict=True):
            column = place.split(" ")[0] if self.by == "head_position" else place
            found[column] = (column, own, other)
        return list(found.values())

    def has_differing_tokens(self) -> bool:
        """Return whether a column of a mean stands for different tokens."""
        if self.grid.pair != MEAN or self.by == "segment":
            return False
        return any(DIFFERENT in tokens for _, *tokens in self.columns())

    def table(self, cells: Any) -> Any:
        """Return cells [layer place] as [row column] of the panel; NaN where nothing was
        measured.
        """
        at = {row: number for number, row in enumerate(self.rows)}
        names = [name for name, *_ in self.columns()]
        out = np.full((len(self.rows), len(names)), np.nan)
        for i, layer in enumerate(self.grid.layers):
            for j, place in enumerate(self.grid.places):
                column, row = place, (layer,)
                if self.by == "head_position":
                    column, head = place.split(" ")
                    row = (layer, _number_of(head))
                out[at[row], names.index(column)] = cells[i, j]
        return out

    def x_axis(self, *, is_alone: bool) -> dict[str, Any]:
        """Return ticks and title of the x axis; beside other panels the title is short."""
        columns = self.columns()
        labels = [self._label(place, own, other) for place, own, other in columns]
        has_tokens = self.by in ("position", "head_position")
        title = _TOKENS if is_alone and has_tokens else AXIS_TITLES.get(self.by, self.by)
        return {
            "tickvals": list(range(len(columns))),
            "ticktext": labels,
            "tickangle": -60 if has_tokens and any(len(own) > 2 for _, own, _ in columns) else 0,
            "automargin": True,
            "zeroline": False,
            "title": {"text": title, "standoff": 8},
            **FRAME,
            "showgrid": False,
        }

    def y_axis(self) -> dict[str, Any]:
        """Return ticks and title of the y axis."""
        labels = self._row_labels()
        step = max(1, -(-len(labels) // _MOST_ROW_LABELS))
        return {
            "tickvals": list(range(0, len(labels), step)),
            "ticktext": labels[::step],
            "range": [len(labels) - 0.5, -0.5],
            "automargin": True,
            "zeroline": False,
            "title": {"text": self.row_title, "standoff": 6},
            **FRAME,
            "showgrid": False,
        }

    def traces(self, colour_axis: str = "coloraxis") -> tuple[go.Heatmap, go.Scatter]:
        """Return the cells, and the outline of those that stand."""
        cells = go.Heatmap(
            z=self.table(self.grid.values),
            y=list(range(len(self.rows))),
            x=list(range(len(self.columns()))),
            coloraxis=colour_axis,
            text=self._hover(),
            hovertemplate="%{text}<extra></extra>",
            hoverongaps=False,
        )
        x, y = _outline(np.nan_to_num(self.table(self.grid.stands.astype(float))) > 0)
        line = go.Scatter(
            x=x, y=y, mode="lines", line=_OUTLINE, hoverinfo="skip", connectgaps=False
        )
        return cells, line

    def _label(self, place: str, own: str, other: str) -> str:
        """Return the label of a column: its tokens; with the place if they do not identify it."""
        name = escape(place.removeprefix("head:").removeprefix("pos:"), quote=False)
        if not own and not other:
            return name
        is_segment = self.by == "segment"
        if DIFFERENT in (own, other):
            return name if is_segment else f"{DIFFERENT} ({name})"
        token = _visible(own)
        label = token if own == other else f"<b>{token}</b> ({_visible(other)})"
        return f"{name}: {label}" if is_segment else label

    def _row_labels(self) -> list[str]:
        return [".".join(map(str, row)) for row in self.rows]

    def _hover(self) -> list[list[str]]:
        stands = np.nan_to_num(self.table(self.grid.stands.astype(float)))
        values = self.table(self.grid.values)
        unit = escape(unit_words(self.grid.unit), quote=False)
        columns = self.columns()
        texts: list[list[str]] = []
        for i, row in enumerate(self._row_labels()):
            line: list[str] = []
            for j, (place, own, other) in enumerate(columns):
                tokens = ""
                if own or other:
                    tokens = f"<br>patched {_visible(own)}, source {_visible(other)}"
                value = "not measured"
                if not np.isnan(values[i, j]):
                    value = minus(f"{values[i, j]:+.4g} {unit}")
                stand = "<br>stands" if stands[i, j] else ""
                where = f"{self.row_title} {row}, {escape(place, quote=False)}"
                line.append(f"{where}{tokens}<br>{value}{stand}")
            texts.append(line)
        return texts


def make_panels(results: Sequence[PatchResult], grids: Sequence[PatchGrid]) -> list[Panel]:
    """Return the panels of several sweeps; those of one kind have the rows of all of them."""
    rows_of_kind: dict[str, set[Row]] = {}
    for result, grid in zip(results, grids, strict=True):
        panel = Panel(result, grid, ())
        rows_of_kind.setdefault(panel.row_title, set()).update(_own_rows(panel))
    panels: list[Panel] = []
    for result, grid in zip(results, grids, strict=True):
        kind = Panel(result, grid, ()).row_title
        panels.append(Panel(result, grid, tuple(sorted(rows_of_kind[kind]))))
    return panels


def _own_rows(panel: Panel) -> list[Row]:
    """Return the rows that the sweep of a panel measured."""
    layers = panel.grid.layers
    if panel.by != "head_position":
        return [(layer,) for layer in layers]
    heads = dict.fromkeys(_number_of(place.split(" ")[1]) for place in panel.grid.places)
    return list(product(layers, heads))


def _number_of(head: str) -> int:
    return int(head.removeprefix("head:"))


def _visible(token: str) -> str:
    """Return a token with visible spaces and line breaks, shortened and safe in plotly's text
    markup.
    """
    text = token.replace("\n", "\u21b5").replace(" ", "\u00b7")
    text = text if len(text) <= _WIDEST_LABEL else f"{text[: _WIDEST_LABEL - 1]}\u2026"
    return escape(text, quote=False)


def _outline(mask: Any) -> tuple[list[float | None], list[float | None]]:
    """Return the borders of the marked cells as line segments with gaps; rows and columns are
    counted from 0.
    """
    x: list[float | None] = []
    y: list[float | None] = []
    padded = np.pad(mask, 1)
    for i, j in np.argwhere(mask):
        for di, dj in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            if not padded[i + 1 + di, j + 1 + dj]:
                ends = (
                    ((i + di / 2, j - 0.5), (i + di / 2, j + 0.5))
                    if di
                    else ((i - 0.5, j + dj / 2), (i + 0.5, j + dj / 2))
                )
                x += [float(ends[0][1]), float(ends[1][1]), None]
                y += [float(ends[0][0]), float(ends[1][0]), None]
    return x, y
