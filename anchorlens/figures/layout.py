"""Everything of the figure that is not a curve: its grid of panels, heading, axes, legend and size."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anchorlens.errors import InputError
from anchorlens.figures.labels import headline, panel_titles, title_parts, wrapped
from anchorlens.figures.words import words_of

INK = "#222222"
_GRID = "#e6e6e6"
FRAME: dict[str, Any] = {"showline": True, "linecolor": "#444444", "ticks": "outside", "ticklen": 4, "gridcolor": _GRID}
ZERO: dict[str, Any] = {"zeroline": True, "zerolinecolor": "#888888", "zerolinewidth": 1.5}
_NOISE = "rgba(110, 110, 110, 0.28)"
_FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
# Pixels. The legend and the x axes' titles stand below the panels; a row's titles and ticks stand between two rows.
_LINE, _BELOW, _ROW_GAP, _HEIGHT, _ROW_HEIGHT, _LEGEND_LINE = 17, 110, 84, 600, 320, 20
# Of a row of contrasts; its heading and switch stand in the gap above it.
_LOWER_HEIGHT, _LOWER_GAP = 210, 92
# Below the panels of a figure with contrasts: the x axes' titles, then the legend's lines. Beside an entry's text stands its line.
_LOWER_BELOW, _ENTRY_LINE = 60, 59
_LEFT, _RIGHT = 64, 24
# Where the width is left to the page: narrow enough for a notebook cell.
_ASSUMED_WIDTH = 1000
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
    heading: str
    top: int
    bottom: int
    height: int
    width: int | None

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
    listed: Collection[str],
    *,
    title: str | None,
    bands: Sequence[str],
    height: int | None,
    width: int | None,
) -> Sheet:
    """Sizes of the figure of ``table``.

    Args:
        table: Points as ``with_extras`` gives them.
        effects: Contrasts to be drawn below; they may be none.
        listed: The legend's texts.
        title: First line of the heading; None names the protocol, ``""`` leaves it out.
        bands: The intervals that are drawn.
        height: Pixels, or None for 600 with one row of panels and more with more rows, contrasts or a long legend.
        width: Pixels, or None for as wide as the page.

    Raises:
        InputError: a size too small to hold a figure.
    """
    panels, protocols = len(panel_titles(table)), table["protocol"].nunique()
    # Up to four models side by side, beyond that rows as equal as can be; or a row per model and a column per protocol.
    rows = math.ceil(panels / (4 if protocols == 1 else protocols))
    lines = wrapped(title_parts(table, effects, bands), max(40, int((width or _ASSUMED_WIDTH) / 6.8)))
    first = headline(table) if title is None else title
    heading = f'<span style="font-size:17px"><b>{first}</b></span><br>' if first else ""
    heading += "<br>".join(f'<span style="font-size:12px;color:#555555">{line}</span>' for line in lines)
    top = 52 + _LINE * (1 + heading.count("<br>"))
    legend = max(0, math.ceil(len(listed) / 4) - 3) * _LEGEND_LINE
    usual = (_HEIGHT if rows == 1 else top + _BELOW + rows * _ROW_HEIGHT) + legend
    least_height = top + _BELOW + 100 * rows
    bottom = _BELOW
    if len(effects):
        in_a_line = max(1, ((width or _ASSUMED_WIDTH) - _LEFT - _RIGHT) // (_entries(listed)[0] + _ENTRY_LINE))
        bottom = _LOWER_BELOW + _LEGEND_LINE * math.ceil(len(listed) / in_a_line)
        gaps = (2 * rows - 1) * _LOWER_GAP
        usual = top + bottom + rows * (_ROW_HEIGHT + _LOWER_HEIGHT) + gaps
        least_height = top + bottom + 200 * rows + gaps
    for name, pixels, least in (("height", height, least_height), ("width", width, 320)):
        if pixels is not None and pixels < least:
            raise InputError(f"{name}={pixels} pixels is too small for this figure. Give at least {least}, or None.")
    columns = math.ceil(panels / rows)
    return Sheet(panels, rows, columns, len(effects) > 0, protocols > 1, heading, top, bottom, height or usual, width)


def empty_panels(sheet: Sheet, names: Sequence[str]) -> go.Figure:
    """A figure with a titled panel per name and no curve."""
    letters = max(8, int((sheet.panel_width - 30) / 8))
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
        figure.update_annotations({"font": {"size": 15, "color": INK}, "hovertext": name, "yshift": 2}, {"text": shown})
    return figure


def style_axes(figure: go.Figure, sheet: Sheet, table: pd.DataFrame, *, bands: Sequence[str]) -> None:
    """Layers on every x axis, each with its panel's own range; one scale for the y axes of all curves."""
    # Equal ranges at first, and with `matches` zooming one panel zooms all.
    figure.update_yaxes(matches="y", range=_delta_range(table, bands), showticklabels=False, **ZERO, **FRAME)
    for panel, (model, protocol) in enumerate(panel_titles(table)):
        row, column = sheet.cell(panel)
        layers = table.loc[(table["model"] == model) & (table["protocol"] == protocol), "layer"]
        first, last = int(layers.min()), int(layers.max())
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
        own = table[(table["model"] == model) & (table["protocol"] == protocol)]
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
    return y_range([table["delta_p"], floor, -floor], ends, words_of(table).bound)


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


def _entries(listed: Collection[str]) -> tuple[int, int]:
    """Width of a legend entry's text and size of its letters.

    Room for the longest name; four entries (two data sets) in a row of a figure 1,200 wide, in smaller letters if need be.
    """
    longest = max(len(unescape(name)) for name in listed)
    letters = 12 if longest <= 33 else 11
    return max(178, round(0.51 * letters * longest)), letters


def style_page(figure: go.Figure, sheet: Sheet, listed: Collection[str]) -> None:
    """Heading above, legend below, sizes and fonts; set on the figure alone, whatever the session's default template is."""
    entry_width, letters = _entries(listed)
    figure.update_layout(
        template="plotly_white",
        font={"family": _FONT, "size": 13, "color": INK},
        # The size given here sets the distance of the lines; the first line's own size stands in its text.
        title={
            "text": sheet.heading,
            "font": {"size": 13},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1 - 22 / sheet.height,
            "yanchor": "top",
        },
        margin={"l": _LEFT, "r": _RIGHT, "t": sheet.top, "b": 56},
        height=sheet.height,
        width=sheet.width,
        showlegend=True,
        legend={
            "orientation": "h",
            "traceorder": "normal",
            "groupclick": "togglegroup",
            "x": 0.5,
            "xanchor": "center",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "itemwidth": 44,
            "entrywidth": entry_width,
            "entrywidthmode": "pixels",
            "font": {"size": letters},
        },
        modebar={"remove": _UNUSED_BUTTONS},
        hovermode="closest",
        hoverlabel={"align": "left", "namelength": -1},
        paper_bgcolor="white",
        plot_bgcolor="white",
    )
