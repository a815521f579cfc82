"""The figure: one panel per model, one ΔP curve per anchor or pathway and data set.

x is the layer (each panel has its own range), y is ΔP in percentage points (one range for all panels), one legend stands
below all panels. Every curve has a translucent 95 % band; its controls are thin dotted lines in its colour. A missing value is
a gap, never a line across it; layers that were not measured are bridged, and then the measured ones are marked. A point whose
value holds by construction is hollow. Not done here: statistics. What is drawn is what the frame says.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anchorlens.errors import InputError
from anchorlens.figures.labels import Entry, display_models, headline, hover_texts, legend_entries, title_parts, wrapped
from anchorlens.figures.page import save_html
from anchorlens.figures.palette import dataset_styles, translucent
from anchorlens.figures.table import CURVE_KEYS, CurveResult, gather

__all__ = ["plot_curves", "save_html"]

_INK = "#222222"
_GRID = "#e6e6e6"
_FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
_BAND_OPACITY = 0.15
# Pixels: the title line's height, what stands between two rows of panels, and the usual height of a figure.
_LINE, _ROW_GAP, _HEIGHT, _ROW_HEIGHT = 17, 84, 600, 320
_ASSUMED_WIDTH = 1000
# Dots of a first, second, ... control; all further ones look like the last.
_DOTS = ("dot", "2px,6px", "1px,9px")
# From back to front, so that no band or control covers a curve.
_BAND, _CONTROL, _QUIET, _LINE_TRACE, _MARKS = range(5)


def plot_curves(
    results: CurveResult | Sequence[CurveResult],
    *,
    title: str | None = None,
    controls: bool | Sequence[str] = True,
    bands: bool = True,
    height: int | None = None,
    width: int | None = None,
) -> go.Figure:
    """Draw ΔP against the layer, one panel per model.

    Args:
        results: A curves frame (one row per point), anything with a method ``curves(controls=...)`` that gives one, such as a
            sweep, or a sequence of these. Panels stand in order of appearance, at most four in a row.
        title: First line of the title; None names the protocol. The line below it always says protocol, readout, anchors, the
            settings that are not the default, and what bands and dots mean.
        controls: Whether controls are drawn (thin dotted lines), or the names of those to draw.
        bands: Whether the 95 % intervals are drawn.
        height: Pixels; None takes 600 for one row of panels and more for more.
        width: Pixels; None fills the page or notebook cell.

    Returns:
        A plotly figure. Nothing is shown or written: call its ``show()``, or :func:`save_html`. A click on a legend entry
        hides line, band and controls of that curve in all panels.

    Raises:
        InputError: no point, a missing column or value, or points that would be drawn over each other (two readouts, sites,
            directions, windows or runs of one curve); the message names the column and the filter.
    """
    for name, pixels, least in (("height", height, 240), ("width", width, 320)):
        if pixels is not None and pixels < least:
            raise InputError(f"{name}={pixels} pixels is too small for a figure. Give at least {least}, or None.")
    table = gather(results, controls)
    models = display_models(table["model"].unique().tolist())
    rows, columns = _grid(len(models))
    entries = legend_entries(table)
    heading = _heading(table, title, bands, width or _ASSUMED_WIDTH)
    top = 52 + _LINE * heading.count("<br>") + (20 if columns else 0)
    height = height or _default_height(rows, entries, top)
    figure = _panels(list(models.values()), rows, columns, height - top - 130, (width or _ASSUMED_WIDTH) / columns)
    for trace, panel in _traces(table, models, entries, bands):
        figure.add_trace(trace, row=panel // columns + 1, col=panel % columns + 1)
    _style_axes(figure, table, list(models), rows, columns, bands)
    _style_page(figure, heading, top, height, width)
    return figure


def _grid(panels: int) -> tuple[int, int]:
    """Rows and columns: up to four side by side, and rows as equal as can be."""
    rows = math.ceil(panels / 4)
    return rows, math.ceil(panels / rows)


def _default_height(rows: int, entries: dict[tuple[str, str, str, str], Entry], top: int) -> int:
    listed = sum(entry.listed for entry in entries.values())
    legend = max(0, math.ceil(listed / 4) - 2) * 20
    return (_HEIGHT if rows == 1 else top + 130 + rows * _ROW_HEIGHT) + legend


def _heading(table: pd.DataFrame, title: str | None, bands: bool, width: int) -> str:
    lines = wrapped(title_parts(table, bands=bands), max(40, int(width / 6.6)))
    small = "<br>".join(f'<span style="font-size:12px;color:#555555">{line}</span>' for line in lines)
    return f"<b>{title if title is not None else headline(table)}</b><br>{small}"


def _panels(names: list[str], rows: int, columns: int, inner: float, panel_width: float) -> go.Figure:
    letters = max(8, int((panel_width - 30) / 8))
    short = [name if len(name) <= letters else f"{name[: letters - 9]}…{name[-8:]}" for name in names]
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=short,
        horizontal_spacing=0.035 if columns > 1 else 0.0,
        vertical_spacing=min(0.9 / (rows - 1), _ROW_GAP / max(inner, 1)) if rows > 1 else 0.0,
    )
    for shown, name in zip(short, names, strict=True):
        figure.update_annotations({"font": {"size": 15, "color": _INK}, "hovertext": name, "yshift": 2}, {"text": shown})
    return figure


def _traces(
    table: pd.DataFrame, models: dict[str, str], entries: dict[tuple[str, str, str, str], Entry], bands: bool
) -> list[tuple[go.Scatter, int]]:
    """All traces with the number of their panel, back to front."""
    styles = dataset_styles(table["dataset"].unique().tolist())
    places = {entry: rank for rank, entry in enumerate(sorted(entries.values(), key=lambda entry: entry.order))}
    dots = {name: _DOTS[min(k, len(_DOTS) - 1)] for k, name in enumerate(_controls_in(table))}
    listed: set[Entry] = set()
    found: list[tuple[int, int, go.Scatter, int]] = []
    for key, rows in table.groupby(CURVE_KEYS, sort=False):
        model, dataset, protocol, anchor, pathway, control = map(str, key)
        entry = entries[dataset, protocol, anchor, pathway]
        rows = rows.sort_values("layer")
        texts = hover_texts(rows, entry.label, models[model], styles[dataset].display)
        panel, place = list(models).index(model), places[entry]
        if control != "none":
            found.append((_CONTROL, place, _control(rows, entry, control, dots[control], texts), panel))
            continue
        line = _line(rows, entry, texts, place, showlegend=entry.listed and entry not in listed)
        listed.add(entry)
        found.append((_QUIET if entry.quiet else _LINE_TRACE, place, line, panel))
        found += [(_MARKS, place, marks, panel) for marks in _marks(rows, entry, bands)]
        if bands and not entry.quiet and (band := _band(rows, entry)) is not None:
            found.append((_BAND, place, band, panel))
    return [(trace, panel) for *_, trace, panel in sorted(found, key=lambda item: item[:2])]


def _controls_in(table: pd.DataFrame) -> list[str]:
    names = [name for name in table["control"].unique() if name != "none"]
    return sorted(names, key=lambda name: name != "null")


def _line(rows: pd.DataFrame, entry: Entry, texts: list[str], place: int, *, showlegend: bool) -> go.Scatter:
    layers = rows["layer"].to_numpy()
    # Between layers that were not measured the line is only a guide, so the measured ones are marked.
    sparse = bool((np.diff(layers) > 1).any())
    return go.Scatter(
        x=layers.tolist(),
        y=_values(rows["delta_p"]),
        name=entry.label,
        mode="lines+markers" if sparse else "lines",
        line={"color": entry.colour, "dash": entry.dash, "width": 1.2 if entry.quiet else 2.2},
        marker={"size": 5, "color": entry.colour},
        legendgroup=entry.group,
        legendrank=place + 1,
        showlegend=showlegend,
        connectgaps=False,
        text=texts,
        hoverinfo="text",
    )


def _control(rows: pd.DataFrame, entry: Entry, control: str, dash: str, texts: list[str]) -> go.Scatter:
    return go.Scatter(
        x=rows["layer"].tolist(),
        y=_values(rows["delta_p"]),
        name=f"{entry.label}, {control}",
        mode="lines" if len(rows) > 1 else "markers",
        line={"color": entry.colour, "dash": dash, "width": 1},
        marker={"size": 3, "color": entry.colour},
        legendgroup=entry.group,
        showlegend=False,
        connectgaps=False,
        text=texts,
        hoverinfo="text",
    )


def _band(rows: pd.DataFrame, entry: Entry) -> go.Scatter | None:
    """One closed shape per run of neighbouring points that have an interval."""
    x: list[int | None] = []
    y: list[float | None] = []
    for part in _runs(rows, ["delta_p", "ci_low", "ci_high"]):
        layers, low, high = part["layer"].tolist(), part["ci_low"].tolist(), part["ci_high"].tolist()
        if len(layers) > 1:
            x += [*layers, *reversed(layers), layers[0], None]
            y += [*high, *reversed(low), high[0], None]
    if not x:
        return None
    return go.Scatter(
        x=x[:-1],
        y=y[:-1],
        name=f"{entry.label}, 95 % band",
        mode="lines",
        fill="toself",
        fillcolor=translucent(entry.colour, _BAND_OPACITY),
        line={"width": 0, "color": entry.colour},
        legendgroup=entry.group,
        showlegend=False,
        hoverinfo="skip",
    )


def _runs(rows: pd.DataFrame, columns: list[str]) -> list[pd.DataFrame]:
    """``rows`` cut at every row that lacks a value."""
    whole = rows[columns].notna().all(axis=1).to_numpy()
    cuts = np.cumsum(~whole)
    return [rows[whole & (cuts == cut)] for cut in np.unique(cuts[whole])]


def _marks(rows: pd.DataFrame, entry: Entry, bands: bool) -> list[go.Scatter]:
    """Hollow marks on trivial points; full ones, with their interval, on points that no line reaches."""
    lone = [part for part in _runs(rows, ["delta_p"]) if len(part) == 1]
    marks: list[go.Scatter] = []
    if lone:
        points = pd.concat(lone)
        points = points[~points["trivial"]]
        whisker = None if not bands or entry.quiet else _whisker(points, entry.colour)
        marks.append(_mark(points, entry, {"symbol": "circle", "size": 6, "color": entry.colour}, whisker))
    hollow = rows[rows["trivial"] & rows["delta_p"].notna()]
    style = {"symbol": "circle", "size": 9, "color": "white", "line": {"color": entry.colour, "width": 2}}
    marks.append(_mark(hollow, entry, style, None))
    return [mark for mark in marks if len(mark.x)]


def _whisker(points: pd.DataFrame, colour: str) -> dict[str, object]:
    up, down = points["ci_high"] - points["delta_p"], points["delta_p"] - points["ci_low"]
    return {
        "type": "data",
        "symmetric": False,
        "array": up.clip(lower=0).fillna(0).tolist(),
        "arrayminus": down.clip(lower=0).fillna(0).tolist(),
        "color": translucent(colour, 0.5),
        "thickness": 2,
        "width": 0,
    }


def _mark(points: pd.DataFrame, entry: Entry, marker: dict[str, object], whisker: dict[str, object] | None) -> go.Scatter:
    return go.Scatter(
        x=points["layer"].tolist(),
        y=points["delta_p"].tolist(),
        error_y=whisker,
        name=entry.label,
        mode="markers",
        marker=marker,
        legendgroup=entry.group,
        showlegend=False,
        hoverinfo="skip",
    )


def _values(column: pd.Series) -> list[float | None]:
    return [None if math.isnan(value) else value for value in column.tolist()]


def _style_axes(figure: go.Figure, table: pd.DataFrame, models: list[str], rows: int, columns: int, bands: bool) -> None:
    line = {"showline": True, "linecolor": "#444444", "linewidth": 1, "ticks": "outside", "ticklen": 4, "tickcolor": "#444444"}
    grid = {"showgrid": True, "gridcolor": _GRID, "gridwidth": 1}
    figure.update_yaxes(range=_range(table, bands), zeroline=True, zerolinecolor="#888888", zerolinewidth=1.5, **line, **grid)
    for panel, model in enumerate(models):
        where = {"row": panel // columns + 1, "col": panel % columns + 1}
        layers = table.loc[table["model"] == model, "layer"]
        first, last = int(layers.min()), int(layers.max())
        figure.update_xaxes(
            title={"text": "Layer", "standoff": 6},
            range=[first - 0.5, last + 0.5],
            tick0=0,
            dtick=_step(last - first, 9 if columns < 3 else 6),
            tickformat="d",
            zeroline=False,
            **line,
            **grid,
            **where,
        )
        if panel % columns == 0:
            figure.update_yaxes(title={"text": "ΔP", "standoff": 4}, **where)
    for spare in range(len(models), rows * columns):
        where = {"row": spare // columns + 1, "col": spare % columns + 1}
        figure.update_xaxes(visible=False, **where)
        figure.update_yaxes(visible=False, **where)


def _range(table: pd.DataFrame, bands: bool) -> list[float]:
    """One y range for all panels: everything that is drawn, and zero."""
    drawn = ["delta_p", "ci_low", "ci_high"] if bands else ["delta_p"]
    # The interval of a control is not drawn.
    values = table.where(table["control"] == "none")[drawn].to_numpy(dtype=float).ravel()
    values = np.concatenate([values, table["delta_p"].to_numpy(dtype=float)])
    values = values[~np.isnan(values)]
    low, high = float(min(0.0, *values, 0.0)), float(max(0.0, *values, 0.0))
    room = max(0.05 * (high - low), 0.5)
    return [low - room, high + room]


def _step(span: int, most: int) -> int:
    """Whole layers between two ticks, at most ``most`` steps over ``span`` layers."""
    return next(step for step in (1, 2, 4, 5, 8, 10, 20, 25, 50, 100, 200, 500, 1000, span + 1) if span / step <= most)


def _style_page(figure: go.Figure, heading: str, top: int, height: int, width: int | None) -> None:
    figure.update_layout(
        template="plotly_white",
        font={"family": _FONT, "size": 13, "color": _INK},
        title={
            "text": heading,
            "font": {"size": 17},
            "x": 0.5,
            "xanchor": "center",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 14},
        },
        margin={"l": 64, "r": 24, "t": top, "b": 56},
        height=height,
        width=width,
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
            "font": {"size": 12},
        },
        hovermode="closest",
        hoverlabel={"align": "left", "namelength": -1},
        paper_bgcolor="white",
        plot_bgcolor="white",
    )
