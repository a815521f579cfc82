"""Layout of the figure: panels beside or below each other, heading, axes, legends and sizes."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from anchorlens.errors import InputError
from anchorlens.figures.labels import PANEL, Key, Titles
from anchorlens.results.vocabulary import metric_labels

INK = "#222222"
NOT_MEASURED = "#c9cdd1"  # apart from the white of a cell without an effect
"""Colour behind cells of a heatmap that were not measured; a value of 0 is nearly white."""
FRAME: dict[str, Any] = {
    "showline": True,
    "linecolor": "#444444",
    "ticks": "outside",
    "ticklen": 4,
    "gridcolor": "#e6e6e6",
}
ZERO: dict[str, Any] = {"zeroline": True, "zerolinecolor": "#888888", "zerolinewidth": 1.5}
_TITLE: dict[str, Any] = {"standoff": 4, "font": {"size": 14}}
_NOISE = "rgba(110, 110, 110, 0.28)"
_FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
# Heights in pixels: a panel alone, one of several, one of contrasts; gaps below panels without and
# with contrasts.
_HEIGHT = 380
_ROW_HEIGHT = 320
_LOWER_HEIGHT = 210
_ROW_GAP = 84
_LOWER_GAP = 112
_MARGINS = 58, 20  # left and right
_LEAST_WIDTH = 320
# Panels of a figure narrower than ``stack`` pixels stand below each other; a figure without a width
# is arranged for ``stack``. Pixels of ``fit_width`` and page.js: top margin, heading line, axes
# below the panels, legend row, legend margin, symbol and letters of a legend entry.
_PIXELS = {
    "stack": 900,
    "top": 40,
    "line": 19,
    "below": 58,
    "row": 19,
    "pad": 6,
    "beside": 40,
    "size": 12,
}
SLIDER = 54  # height of a slider in pixels
# Heights of a heatmap in pixels: of a row of cells, and the least and most of all rows.
_CELL_HEIGHT = 14
_LEAST_CELLS = 260
_MOST_CELLS = 900
_COLUMNS = (4, 2, 1)  # of the legend; even, so that question and answer stand side by side
# Width in pixels of a letter of the heading and of the legend, in DejaVu Sans, the widest fallback
# font.
_LETTER = 6.4
_LEGEND_LETTER = 6.84
_TITLE_LETTER = 0.68  # width of a bold letter, as a share of its size
_FIRST_LINE = '<span style="font-size:17px"><b>{}</b></span>'
_TITLE_SIZES = (17, 11)
_NEXT_LINE = '<span style="font-size:12px;color:#555555">{}</span>'
# The last one uploads the figure.
UNUSED_BUTTONS = [
    "select2d",
    "lasso2d",
    "zoomIn2d",
    "zoomOut2d",
    "autoScale2d",
    "sendChartToCloud",
]


@dataclass(frozen=True)
class Sheet:
    """Panels of curves in reading order, each optionally with a panel of contrasts below it."""

    panels: int
    columns: int  # of a wide figure; a narrow one has a single column
    contrasts: bool
    mixed: bool  # several protocols

    def axis(self, panel: int, *, lower: bool = False) -> str:
        """Return the number of a panel's axes as plotly writes it; ``lower`` for those of the
        contrasts below it.
        """
        number = panel + 1 + self.panels * lower
        return str(number) if number > 1 else ""

    def begins_row(self, panel: int, *, narrow: bool) -> bool:
        """Return whether a panel is the first one of its row."""
        return narrow or panel % self.columns == 0

    def domains(self, *, narrow: bool) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return the height of all panels in pixels, and the place of every axis."""
        columns = 1 if narrow else self.columns
        rows = math.ceil(self.panels / columns)
        heights = (
            (_ROW_HEIGHT, _LOWER_HEIGHT)
            if self.contrasts
            else (_HEIGHT if rows == 1 else _ROW_HEIGHT,)
        )
        gap = _LOWER_GAP if self.contrasts else _ROW_GAP
        each = sum(heights) + gap * len(heights)
        inner = rows * each - gap
        # Contrasts of two protocols have two scales with separate ticks and titles.
        between = 0 if columns == 1 else 0.09 if self.contrasts and self.mixed else 0.035
        wide = (1 - between * (columns - 1)) / columns
        places: dict[str, dict[str, Any]] = {}
        for panel in range(self.panels):
            row, column = divmod(panel, columns)
            left, top = column * (wide + between), row * each
            for lower, height in enumerate(heights):
                axis = self.axis(panel, lower=bool(lower))
                places[f"xaxis{axis}"] = {
                    "domain": [left, min(1.0, left + wide)],
                    "anchor": f"y{axis}",
                }
                places[f"yaxis{axis}"] = {
                    "domain": [max(0.0, 1 - (top + height) / inner), 1 - top / inner],
                    "anchor": f"x{axis}",
                }
                top += height + gap
        return inner, places


def plan_sheet(panels: Sequence[Key], *, contrasts: bool) -> Sheet:
    """Return the grid: up to four panels side by side; with several protocols, a row per model and
    a column per protocol.
    """
    protocols = len({protocol for *_, protocol in panels})
    rows = math.ceil(len(panels) / (4 if protocols == 1 else protocols))
    return Sheet(len(panels), math.ceil(len(panels) / rows), contrasts, protocols > 1)


def arrange(
    sheet: Sheet,
    y_titles: tuple[str, str],
    lower: Sequence[int],
    switch: int | None,
    *,
    narrow: bool,
) -> dict[str, Any]:
    """Return the wide or narrow arrangement: height, axes, visible headings and place of the switch
    of contrasts.

    Args:
        sheet: Arrangement of the panels.
        y_titles: Titles of the y axes of curves and of contrasts. Axes of one scale have ticks and
            title in the first panel of a row only.
        lower: Panels that have contrasts.
        switch: Panel whose contrasts have the switch.
        narrow: Whether all panels stand below each other.
    """
    inner, axes = sheet.domains(narrow=narrow)
    for panel in range(sheet.panels):
        for below in (False, True):
            if (axis := axes.get(f"yaxis{sheet.axis(panel, lower=below)}")) is not None:
                titled = sheet.begins_row(panel, narrow=narrow) or (below and sheet.mixed)
                axis |= {
                    "showticklabels": titled,
                    "title": {"text": y_titles[below] if titled else "", **_TITLE},
                }
    shown = [True] * sheet.panels
    shown += [sheet.mixed or sheet.begins_row(panel, narrow=narrow) for panel in lower]
    place: dict[str, float] = {}
    if switch is not None:
        row_end = (
            switch
            if narrow or sheet.mixed
            else min(sheet.panels, (switch // sheet.columns + 1) * sheet.columns) - 1
        )
        number = sheet.axis(row_end, lower=True)
        place = {"x": axes[f"xaxis{number}"]["domain"][1], "y": axes[f"yaxis{number}"]["domain"][1]}
    return {"inner": inner, "axes": axes, "shown": shown, "switch": place}


def page_plan(
    head: str, parts: Sequence[str], wide: Mapping[str, Any], narrow: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the data with which :func:`fit_width` and page.js fit the figure to a width; stored in
    ``layout.meta``.
    """
    first = _FIRST_LINE.format(head) if head else ""
    return {
        "first": first,
        "next": _NEXT_LINE.split("{}"),
        "parts": [escape(part, quote=False) for part in parts],
        "wide": wide,
        "narrow": narrow,
        "columns": _COLUMNS,
        **_PIXELS,
    }


def fit_width(
    traces: Iterable[Mapping[str, Any]], plan: Mapping[str, Any], width: int | None
) -> dict[str, Any]:
    """Return title, margins, height, legends and axes for a width in pixels, as page.js does in a
    browser.
    """
    grid = _grid(plan, width)
    room = (width or plan["stack"]) - sum(_MARGINS)
    names: dict[str, list[str]] = {"legend2": [], "legend": []}
    for trace in traces:
        if trace.get("showlegend"):
            names[trace.get("legend") or "legend"].append(unescape(trace["name"]))
    letters = max(map(len, [*names["legend2"], *names["legend"]]))
    widest = plan["beside"] + _LEGEND_LETTER * letters
    columns = next((number for number in plan["columns"] if widest <= room / number), 1)
    heights: dict[str, Any] = {}
    for key, own in names.items():
        if own:
            heights[key] = plan["row"] * math.ceil(len(own) / columns) + plan["pad"]
    parts = list(plan["parts"])
    while len(parts) > 1 and _LETTER * len(unescape(" · ".join(parts))) > room:
        parts.pop()
    largest, smallest = _TITLE_SIZES
    size = min(
        largest,
        max(
            smallest, int(room / _TITLE_LETTER / max(1, len(re.sub("<[^>]*>", "", plan["first"]))))
        ),
    )
    first = plan["first"].replace(f"font-size:{largest}px", f"font-size:{size}px")
    second = " · ".join(parts).join(plan["next"]) if parts else ""
    heading = list(filter(None, (first, second)))
    top = plan["top"] + plan["line"] * len(heading)
    bottom = plan["below"] + sum(heights.values())
    height = top + grid["inner"] + bottom
    legends: dict[str, Any] = {}
    for key in heights:
        below = heights.get("legend2", 0) if key == "legend" else 0
        legends[key] = {"y": below / height, "entrywidth": 1 / columns}
    return {
        "title": {"text": "<br>".join(heading)},
        "margin": {"l": _MARGINS[0], "r": _MARGINS[1], "t": top, "b": bottom},
        "height": height,
        "width": width,
        **legends,
        **grid["axes"],
    }


def fit_layout(
    layout: Mapping[str, Any],
    traces: Iterable[Mapping[str, Any]],
    plan: Mapping[str, Any],
    width: int | None,
) -> dict[str, Any]:
    """Return a layout fitted to a width in pixels (None: that of the page)."""
    made = dict(layout)
    for name, part in fit_width(traces, plan, width).items():
        if name not in layout and "axis" in name:
            continue
        made[name] = {**layout.get(name, {}), **part} if isinstance(part, dict) else part
    grid = _grid(plan, width)
    notes = layout["annotations"]  # those of a user come after ours
    annotations: list[Any] = []
    for note, is_shown in zip(notes, grid["shown"], strict=False):
        fitted = {**note, "visible": is_shown}
        annotations.append(fitted)
    annotations += notes[len(grid["shown"]) :]
    made["annotations"] = annotations
    if layout.get("updatemenus"):
        made["updatemenus"] = [{**menu, **grid["switch"]} for menu in layout["updatemenus"]]
    return made


def _grid(plan: Mapping[str, Any], width: int | None) -> Any:
    return plan["narrow" if (width or plan["stack"]) < plan["stack"] else "wide"]


def check_width(width: int | None) -> None:
    """Raise if a figure is too narrow for its panels."""
    if width is not None and width < _LEAST_WIDTH:
        why = (
            f"width={width}: too small for this figure. Give at least {_LEAST_WIDTH} pixels, or"
            " None."
        )
        raise InputError(why, argument="width")


def fit_figure(figure: go.Figure, width: int) -> go.Figure:
    """Return a copy of a figure for a picture of a width in pixels, arranged if ``plot_curves``
    made it.

    It has no buttons and sliders.
    """
    content = figure.to_plotly_json()
    layout = {**content["layout"], "updatemenus": [], "sliders": []}
    if content["layout"].get("sliders"):  # which are below the axes
        layout |= {
            "height": layout["height"] - SLIDER,
            "margin": {**layout["margin"], "b": layout["margin"]["b"] - SLIDER},
        }
    plan = layout.get("meta", {}).get("anchorlens")
    if plan is not None:
        layout = fit_layout(layout, content["data"], plan, width)
    return go.Figure({"data": content["data"], "layout": layout})


def page_style(names: Iterable[str]) -> dict[str, Any]:
    """Return fonts, colours and legends, independent of the default template."""
    legend = {
        "orientation": "h",
        "traceorder": "normal",
        "groupclick": "togglegroup",
        "x": 0,
        "xanchor": "left",
        "bgcolor": "rgba(0,0,0,0)",
        "yref": "container",
        "yanchor": "bottom",
        "itemwidth": 30,
        "entrywidthmode": "fraction",
        "font": {"size": _PIXELS["size"]},
    }
    legends: dict[str, Any] = {}
    for name in names:
        # Two clicks isolate a curve; the second legend does not change.
        on_two_clicks = "toggleothers" if name == "legend" else False
        legends[name] = legend | {"itemdoubleclick": on_two_clicks}
    return {
        "template": "plotly_white",
        "font": {"family": _FONT, "size": 13, "color": INK},
        "showlegend": True,
        "hovermode": "closest",
        # This size sets the line spacing; the first line has its size in its text.
        "title": {
            "font": {"size": 13},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 22},
        },
        "modebar": {"remove": UNUSED_BUTTONS},
        "hoverlabel": {"align": "left", "namelength": -1},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        **legends,
    }


def panel_layout(sheet: Sheet, table: pd.DataFrame, panels: Titles, *, band: str) -> dict[str, Any]:
    """Return axes, titles and noise floors of the panels of curves: one y range, and an x range for
    each panel.
    """
    letters = max(8, int(_PIXELS["stack"] / sheet.columns / 8))
    by_panel: dict[Any, pd.DataFrame] = dict(iter(table.groupby(PANEL)))
    curves = table[table["control"] == "none"]
    ends = [curves[f"{band}_{end}"] for end in ("low", "high")] if band else []
    y_range = fit_range(curves["effect"], ends, metric_labels(table).bound)
    layout: dict[str, Any] = {"annotations": [], "shapes": []}
    for panel, (key, name) in enumerate(panels.items()):
        axis = sheet.axis(panel)
        rows = by_panel[key]
        first = int(rows["layer"].min())
        last = int(rows["layer"].max())
        floor = float(rows["noise_floor"].max())
        layout[f"xaxis{axis}"] = {
            "title": {"text": "Layer", **_TITLE},
            "range": [first - 0.5, last + 0.5],
            "tick0": 0,
            "dtick": _step(last - first, 9 if sheet.columns < 3 else 6),
            "tickformat": "d",
            "zeroline": False,
            **FRAME,
        }
        # All panels share the zoom; the first cannot match itself.
        layout[f"yaxis{axis}"] = {
            "range": y_range,
            **({"matches": "y"} if panel else {}),
            **ZERO,
            **FRAME,
        }
        short = name if len(name) <= letters else f"{name[: letters - 9]}…{name[-8:]}"
        layout["annotations"].append(heading(axis, short, 0.5, "center") | {"hovertext": name})
        if floor > 0:
            band_at_0 = {
                "type": "rect",
                "x0": 0,
                "x1": 1,
                "xref": f"x{axis} domain",
                "y0": -floor,
                "y1": floor,
                "yref": f"y{axis}",
            }
            layout["shapes"].append(
                band_at_0 | {"fillcolor": _NOISE, "line": {"width": 0}, "layer": "below"}
            )
    return layout


def heading(axis: str, text: str, x: float, anchor: str, size: int = 14) -> dict[str, Any]:
    """Return the heading of a panel at a fraction of its width."""
    return {
        "text": text,
        "x": x,
        "xref": f"x{axis} domain",
        "xanchor": anchor,
        "y": 1,
        "yref": f"y{axis} domain",
        "yanchor": "bottom",
        "yshift": 2,
        "font": {"size": size, "color": INK},
        "showarrow": False,
    }


def fit_range(values: pd.Series, ends: Sequence[pd.Series], bound: float) -> list[float]:
    """Return a y range that includes the values, zero, and the ends of intervals up to
    ``bound``.
    """
    drawn = pd.concat(
        [values, *(end.clip(-bound, bound) for end in ends), pd.Series([0.0])]
    ).astype(float)
    low, high = float(drawn.min()), float(drawn.max())
    room = max(0.05 * (high - low), 0.005 * min(bound, 100))
    return [low - room, high + room]


def _step(span: int, most: int) -> int:
    """Return the whole number of layers between two ticks, for at most ``most`` steps over ``span``
    layers.
    """
    steps = (1, 2, 4, 5, 8, 10, 20, 25, 50, 100, 200, 500, 1000, span + 1)
    return next(step for step in steps if span / step <= most)


def heatmap_title(title: str, lines: Iterable[str]) -> str:
    """Return the title of a heatmap with lines of smaller text below it; empty ones are left
    out.
    """
    parts = [f'<span style="font-size:16px"><b>{escape(title, quote=False)}</b></span>']
    parts += [_NEXT_LINE.format(escape(line, quote=False)) for line in lines if line]
    return "<br>".join(parts)


def heatmap_layout(
    *,
    title: str,
    caption: str,
    n_rows: int,
    top: int,
    bottom: int,
    left: int,
    width: int | None,
) -> dict[str, Any]:
    """Return the layout of a heatmap.

    Args:
        title: Title of :func:`heatmap_title`.
        caption: Caption of the figure.
        n_rows: Number of rows of cells.
        top: Margin above the cells in pixels.
        bottom: Margin below the cells in pixels.
        left: Margin beside the cells in pixels.
        width: Width in pixels. If None, that of the page.
    """
    inner = min(_MOST_CELLS, max(_LEAST_CELLS, _CELL_HEIGHT * n_rows))
    return {
        "template": "plotly_white",
        "font": {"size": 12, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": NOT_MEASURED,
        "showlegend": False,
        "modebar": {"remove": UNUSED_BUTTONS},
        "title": {
            "text": title,
            # This size sets the line spacing; each line has its size in its text.
            "font": {"size": 13},
            "x": 0.02,
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 24},
        },
        "height": inner + top + bottom,
        "width": width,
        "margin": {"t": top, "b": bottom, "l": left, "r": 20},
        "meta": {"caption": caption},
    }
