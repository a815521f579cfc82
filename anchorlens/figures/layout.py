"""Layout of the figure: grid of panels, heading, axes, legends and sizes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from anchorlens.errors import InputError
from anchorlens.figures.hover import metric_labels
from anchorlens.figures.labels import PANEL, Key, Titles
from anchorlens.figures.title import wrap_parts

INK = "#222222"
FRAME: dict[str, Any] = {"showline": True, "linecolor": "#444444", "ticks": "outside", "ticklen": 4, "gridcolor": "#e6e6e6"}
ZERO: dict[str, Any] = {"zeroline": True, "zerolinecolor": "#888888", "zerolinewidth": 1.5}
_NOISE = "rgba(110, 110, 110, 0.28)"
_FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
# Heights in pixels: panels of a single row, of several rows, of contrasts; gaps below panels without and with contrasts.
_HEIGHT, _ROW_HEIGHT, _LOWER_HEIGHT, _ROW_GAP, _LOWER_GAP = 380, 320, 210, 84, 92
_MARGINS = 58, 20  # left and right
# Assumed width in pixels of a figure that fills its page: the narrowest page.
_ASSUMED_WIDTH = 700
# Pixels in ``fit_width`` and page.js: top margin, heading line, axes below the panels, legend row, legend margin, symbol of a legend
# entry.
_PIXELS = {"top": 52, "line": 17, "below": 58, "row": 19, "pad": 6, "beside": 40, "size": 12}
_COLUMNS = (4, 2, 1)  # even, so that question and answer stand side by side
# Width in pixels of a letter of the heading and of the legend, in DejaVu Sans, the widest fallback font.
_LETTER, _LEGEND_LETTER = 6.4, 6.84
_FIRST_LINE = '<span style="font-size:17px"><b>{}</b></span>'
_NEXT_LINE = '<span style="font-size:12px;color:#555555">{}</span>'
# The last one uploads the figure.
_UNUSED_BUTTONS = ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "sendChartToCloud"]


@dataclass(frozen=True)
class Sheet:
    """Grid of panels: ``rows`` x ``columns``, optionally with a row of contrasts below each row."""

    panels: int
    rows: int  # without rows of contrasts
    columns: int
    contrasts: bool
    mixed: bool  # several protocols
    width: int | None  # pixels, or None for the width of the page

    @property
    def inner(self) -> int:
        """Usual height of all panels in pixels."""
        if self.contrasts:
            return self.rows * (_ROW_HEIGHT + _LOWER_HEIGHT) + (2 * self.rows - 1) * _LOWER_GAP
        return _HEIGHT if self.rows == 1 else self.rows * _ROW_HEIGHT + (self.rows - 1) * _ROW_GAP

    @property
    def least(self) -> int:
        """Smallest height of all panels in pixels."""
        return 200 * self.rows + (2 * self.rows - 1) * _LOWER_GAP if self.contrasts else 100 * self.rows

    @property
    def panel_width(self) -> float:
        """Approximate width of a panel in pixels."""
        return (self.width or _ASSUMED_WIDTH) / self.columns

    def axis(self, panel: int, *, lower: bool = False) -> str:
        """Return the number of a panel's axes as plotly writes it; ``lower`` for those of the contrasts below it."""
        row, column = divmod(panel, self.columns)
        number = (row * (2 if self.contrasts else 1) + lower) * self.columns + column + 1
        return str(number) if number > 1 else ""

    def grid(self, height: float) -> dict[str, Any]:
        """Return the arguments of ``make_subplots`` for panels of a total height in pixels."""
        rows = self.rows * (2 if self.contrasts else 1)
        # Contrasts of two protocols have two scales with separate ticks and titles.
        between = 0.09 if self.contrasts and self.mixed else 0.035
        gap = _LOWER_GAP if self.contrasts else _ROW_GAP
        return {
            "rows": rows, "cols": self.columns, "row_heights": [_ROW_HEIGHT, _LOWER_HEIGHT] * self.rows if self.contrasts else None,
            "horizontal_spacing": between if self.columns > 1 else 0.0,
            "vertical_spacing": min(0.6 / (rows - 1), gap / height) if rows > 1 else 0.0,
        }  # fmt: skip


def plan_sheet(panels: Sequence[Key], *, contrasts: bool, width: int | None) -> Sheet:
    """Return the grid: up to four panels side by side; with several protocols, a row per model and a column per protocol."""
    protocols = len({protocol for *_, protocol in panels})
    rows = math.ceil(len(panels) / (4 if protocols == 1 else protocols))
    return Sheet(len(panels), rows, math.ceil(len(panels) / rows), contrasts, protocols > 1, width)


def page_plan(first: str, parts: list[list[str]], inner: int | None) -> dict[str, Any]:
    """Return the data with which :func:`fit_width` and page.js fit the figure to a width; stored in ``layout.meta``.

    ``inner`` is the height of all panels in pixels. If None, the height of the figure is kept.
    """
    head = _FIRST_LINE.format(first) if first else ""
    return {"first": head, "next": _NEXT_LINE.split("{}"), "parts": parts, "inner": inner, "columns": _COLUMNS, **_PIXELS}


def fit_width(traces: Iterable[Mapping[str, Any]], plan: Mapping[str, Any], width: int | None, height: int = 0) -> dict[str, Any]:
    """Return title, margins, height and legends for a width in pixels, as page.js does in a browser.

    If ``width`` is None, 700 pixels are assumed; ``height`` is used if the plan has none.
    """
    room = (width or _ASSUMED_WIDTH) - sum(_MARGINS)
    names: dict[str, list[str]] = {"legend2": [], "legend": []}
    for trace in traces:
        if trace.get("showlegend"):
            names[trace.get("legend") or "legend"].append(unescape(trace["name"]))
    widest = plan["beside"] + _LEGEND_LETTER * max(len(name) for own in names.values() for name in own)
    columns = next((number for number in plan["columns"] if widest <= room / number), 1)
    heights = {key: plan["row"] * math.ceil(len(own) / columns) + plan["pad"] for key, own in names.items() if own}
    small = [line.join(plan["next"]) for parts in plan["parts"] for line in wrap_parts(parts, max(40, int(room / _LETTER)))]
    heading = [*([plan["first"]] if plan["first"] else []), *small]
    top, bottom = plan["top"] + plan["line"] * len(heading), plan["below"] + sum(heights.values())
    height = top + plan["inner"] + bottom if plan["inner"] else height
    feet = {key: (heights.get("legend2", 0) if key == "legend" else 0) / max(height, 1) for key in heights}
    return {
        "title": {"text": "<br>".join(heading)}, "margin": {"l": _MARGINS[0], "r": _MARGINS[1], "t": top, "b": bottom},
        "height": height, "width": width, **{key: {"y": foot, "entrywidth": 1 / columns} for key, foot in feet.items()},
    }  # fmt: skip


def check_size(fitted: Mapping[str, Any], sheet: Sheet, width: int | None, height: int | None) -> None:
    """Raise if a figure is too small for its panels."""
    least = fitted["margin"]["t"] + fitted["margin"]["b"] + sheet.least
    for name, pixels, smallest in (("height", height, least), ("width", width, 320)):
        if pixels is not None and pixels < smallest:
            raise InputError(f"{name}={pixels}: too small for this figure. Give at least {smallest} pixels, or None.", argument=name)


def fit_figure(figure: go.Figure, width: int) -> go.Figure:
    """Return a copy of a figure of ``plot_curves`` for a width in pixels; other figures are returned unchanged."""
    content = figure.to_plotly_json()
    layout = content["layout"]
    plan = layout.get("meta", {}).get("anchorlens")
    if plan is None:
        return figure
    return go.Figure(figure).update_layout(fit_width(content["data"], plan, width, layout["height"]))


def page_style(names: Iterable[str]) -> dict[str, Any]:
    """Return fonts, colours and legends, independent of the default template."""
    legend = {
        "orientation": "h", "traceorder": "normal", "groupclick": "togglegroup", "x": 0, "xanchor": "left",
        "bgcolor": "rgba(0,0,0,0)", "yref": "container", "yanchor": "bottom", "itemwidth": 30, "entrywidthmode": "fraction",
        "font": {"size": _PIXELS["size"]},
    }  # fmt: skip
    return {
        "template": "plotly_white", "font": {"family": _FONT, "size": 13, "color": INK}, "showlegend": True, "hovermode": "closest",
        # This size sets the line spacing; the first line has its size in its text.
        "title": {
            "font": {"size": 13}, "x": 0, "xref": "paper", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top",
            "pad": {"t": 22},
        },
        "modebar": {"remove": _UNUSED_BUTTONS}, "hoverlabel": {"align": "left", "namelength": -1}, "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        # Two clicks isolate a curve; the second legend does not change.
        **{name: legend | {"itemdoubleclick": "toggleothers" if name == "legend" else False} for name in names},
    }  # fmt: skip


def panel_layout(sheet: Sheet, table: pd.DataFrame, panels: Titles, *, bands: Sequence[str]) -> dict[str, Any]:
    """Return axes, titles and noise floors of the panels of curves: one y range, and an x range for each panel."""
    size, pixels = (15, 8) if 8 * max(map(len, panels.values())) <= sheet.panel_width - 30 else (12, 6.6)
    letters = max(8, int((sheet.panel_width - 12) / pixels))
    by_panel: dict[Any, pd.DataFrame] = dict(iter(table.groupby(PANEL)))
    curves, floors = table[table["control"] == "none"], table["noise_floor"]
    ends = [curves[f"{kind}_{end}"] for kind in bands for end in ("low", "high")]
    y_range = fit_range([table["effect"], table["tick"], floors, -floors], ends, metric_labels(table).bound)
    y_axis, title = ({"range": y_range, **ZERO, **FRAME}, {"text": escape(metric_labels(table).axis, quote=False), "standoff": 4})
    layout: dict[str, Any] = {"annotations": [], "shapes": []}
    for panel, (key, name) in enumerate(panels.items()):
        axis, rows = sheet.axis(panel), by_panel[key]
        first, last, floor = int(rows["layer"].min()), int(rows["layer"].max()), float(rows["noise_floor"].max())
        layout[f"xaxis{axis}"] = {
            "title": {"text": "Layer", "standoff": 6}, "range": [first - 0.5, last + 0.5], "tick0": 0,
            "dtick": _step(last - first, 9 if sheet.columns < 3 else 6), "tickformat": "d", "zeroline": False, **FRAME,
        }  # fmt: skip
        # All panels share the zoom; the first cannot match itself.
        own_axis = ({"matches": "y"} if panel else {}) | ({"title": title} if panel % sheet.columns == 0 else {})
        layout[f"yaxis{axis}"] = y_axis | own_axis | {"showticklabels": panel % sheet.columns == 0}
        short = name if len(name) <= letters else f"{name[: letters - 9]}…{name[-8:]}"
        layout["annotations"].append({
            "x": 0.5, "xref": f"x{axis} domain", "y": 1, "yref": f"y{axis} domain", "xanchor": "center", "yanchor": "bottom",
            "text": short, "hovertext": name, "font": {"size": size, "color": INK}, "yshift": 2, "showarrow": False,
        })  # fmt: skip
        if floor > 0:
            band = {"type": "rect", "x0": 0, "x1": 1, "xref": f"x{axis} domain", "y0": -floor, "y1": floor, "yref": f"y{axis}"}
            layout["shapes"].append(band | {"fillcolor": _NOISE, "line": {"width": 0}, "layer": "below"})
    for panel in range(sheet.panels, sheet.rows * sheet.columns):
        layout |= hidden_axes(sheet.axis(panel))
    return layout


def hidden_axes(axis: str) -> dict[str, Any]:
    """Return the layout of an empty cell of the grid."""
    return {f"xaxis{axis}": {"visible": False}, f"yaxis{axis}": {"visible": False}}


def fit_range(values: Sequence[pd.Series], ends: Sequence[pd.Series], bound: float) -> list[float]:
    """Return a y range that includes the values, zero, and the ends of intervals up to ``bound``.

    Intervals of two or three questions exceed the possible values and would flatten the curves.
    """
    drawn = pd.concat([*values, *(end.clip(-bound, bound) for end in ends), pd.Series([0.0])]).astype(float)
    low, high = float(drawn.min()), float(drawn.max())
    room = max(0.05 * (high - low), 0.005 * min(bound, 100))
    return [low - room, high + room]


def _step(span: int, most: int) -> int:
    """Return the whole number of layers between two ticks, for at most ``most`` steps over ``span`` layers."""
    return next(step for step in (1, 2, 4, 5, 8, 10, 20, 25, 50, 100, 200, 500, 1000, span + 1) if span / step <= most)
