"""Everything of the figure that is not a curve: its grid of panels, heading, axes, legend and size."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anchorlens.errors import InputError
from anchorlens.figures.labels import headline, panel_titles, title_parts, words_of, wrapped

_INK = "#222222"
_GRID = "#e6e6e6"
_NOISE = "rgba(110, 110, 110, 0.28)"
_FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
# Pixels. The legend and the x axes' titles stand below the panels; a row's titles and ticks stand between two rows.
_LINE, _BELOW, _ROW_GAP, _HEIGHT, _ROW_HEIGHT, _LEGEND_LINE = 17, 110, 84, 600, 320, 20
# Where the width is left to the page: narrow enough for a notebook cell.
_ASSUMED_WIDTH = 1000
# Buttons that mean nothing for these curves, and the one of newer plotly versions that uploads a figure.
_UNUSED_BUTTONS = ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "sendChartToCloud"]


@dataclass(frozen=True)
class Sheet:
    """Where the panels stand: ``rows`` x ``columns``, and the sizes in pixels that follow from it."""

    panels: int
    rows: int
    columns: int
    heading: str
    top: int
    height: int
    width: int | None

    def cell(self, panel: int) -> tuple[int, int]:
        """Row and column, from 1, of the ``panel``-th panel."""
        return panel // self.columns + 1, panel % self.columns + 1

    @property
    def panel_width(self) -> float:
        """About how many pixels one panel is wide."""
        return (self.width or _ASSUMED_WIDTH) / self.columns


def plan_sheet(
    table: pd.DataFrame,
    listed: Collection[str],
    *,
    title: str | None,
    bands: bool,
    height: int | None,
    width: int | None,
) -> Sheet:
    """Sizes of the figure of ``table``.

    Args:
        table: Points as ``with_extras`` gives them.
        listed: The legend's texts.
        title: First line of the heading; None names the protocol, ``""`` leaves it out.
        bands: Whether intervals are drawn.
        height: Pixels, or None for 600 with one row of panels and more with more rows or a long legend.
        width: Pixels, or None for as wide as the page.

    Raises:
        InputError: a size too small to hold a figure.
    """
    panels, protocols = len(panel_titles(table)), table["protocol"].nunique()
    # Up to four models side by side, beyond that rows as equal as can be; or a row per model and a column per protocol.
    rows = math.ceil(panels / (4 if protocols == 1 else protocols))
    lines = wrapped(title_parts(table, bands=bands), max(40, int((width or _ASSUMED_WIDTH) / 6.8)))
    first = headline(table) if title is None else title
    heading = f'<span style="font-size:17px"><b>{first}</b></span><br>' if first else ""
    heading += "<br>".join(f'<span style="font-size:12px;color:#555555">{line}</span>' for line in lines)
    top = 52 + _LINE * (1 + heading.count("<br>"))
    legend = max(0, math.ceil(len(listed) / 4) - 3) * _LEGEND_LINE
    usual = (_HEIGHT if rows == 1 else top + _BELOW + rows * _ROW_HEIGHT) + legend
    for name, pixels, least in (("height", height, top + _BELOW + 100 * rows), ("width", width, 320)):
        if pixels is not None and pixels < least:
            raise InputError(f"{name}={pixels} pixels is too small for this figure. Give at least {least}, or None.")
    return Sheet(panels, rows, math.ceil(panels / rows), heading, top, height or usual, width)


def empty_panels(sheet: Sheet, names: Sequence[str]) -> go.Figure:
    """A figure with a titled panel per name and no curve."""
    letters = max(8, int((sheet.panel_width - 30) / 8))
    short = [name if len(name) <= letters else f"{name[: letters - 9]}…{name[-8:]}" for name in names]
    inner = sheet.height - sheet.top - _BELOW
    figure = make_subplots(
        rows=sheet.rows,
        cols=sheet.columns,
        subplot_titles=short,
        horizontal_spacing=0.035 if sheet.columns > 1 else 0.0,
        vertical_spacing=min(0.6 / (sheet.rows - 1), _ROW_GAP / inner) if sheet.rows > 1 else 0.0,
    )
    for shown, name in zip(short, names, strict=True):
        figure.update_annotations({"font": {"size": 15, "color": _INK}, "hovertext": name, "yshift": 2}, {"text": shown})
    return figure


def style_axes(figure: go.Figure, sheet: Sheet, table: pd.DataFrame, *, bands: bool) -> None:
    """Layers on every x axis, each with its panel's own range; one scale for all y axes."""
    frame: dict[str, Any] = {"showline": True, "linecolor": "#444444", "ticks": "outside", "ticklen": 4, "gridcolor": _GRID}
    zero: dict[str, Any] = {"zeroline": True, "zerolinecolor": "#888888", "zerolinewidth": 1.5}
    # Equal ranges at first, and with `matches` zooming one panel zooms all.
    figure.update_yaxes(matches="y", range=_delta_range(table, bands), showticklabels=False, **zero, **frame)
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
            **frame,
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
        row, column = sheet.cell(panel)
        figure.update_xaxes(visible=False, row=row, col=column)
        figure.update_yaxes(visible=False, row=row, col=column)


def _delta_range(table: pd.DataFrame, bands: bool) -> list[float]:
    """One y range for all panels: everything that is drawn, and zero."""
    curves = table[table["control"] == "none"]
    floor = table["noise_floor"]
    drawn = [table["delta_p"], floor, -floor, *([curves["ci_low"], curves["ci_high"]] if bands else [])]
    values = np.concatenate([column.to_numpy(dtype=float) for column in drawn])
    values = np.append(values[~np.isnan(values)], 0.0)
    low, high = float(values.min()), float(values.max())
    room = max(0.05 * (high - low), 0.5)
    return [low - room, high + room]


def _step(span: int, most: int) -> int:
    """Whole layers between two ticks: at most ``most`` steps over ``span`` layers."""
    return next(step for step in (1, 2, 4, 5, 8, 10, 20, 25, 50, 100, 200, 500, 1000, span + 1) if span / step <= most)


def style_page(figure: go.Figure, sheet: Sheet, listed: Collection[str]) -> None:
    """Heading above, legend below, sizes and fonts; set on the figure alone, whatever the session's default template is."""
    # Room for the longest name; four entries (two data sets) in a row of a figure 1,200 wide, in smaller letters if need be.
    longest = max(map(len, listed))
    letters = 12 if longest <= 33 else 11
    entry_width = max(178, round(0.51 * letters * longest))
    figure.update_layout(
        template="plotly_white",
        font={"family": _FONT, "size": 13, "color": _INK},
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
        margin={"l": 64, "r": 24, "t": sheet.top, "b": 56},
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
