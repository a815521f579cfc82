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

from anchorlens.figures.labels import Entry, display_models, hover_texts, legend_entries
from anchorlens.figures.layout import empty_panels, plan_sheet, style_axes, style_page
from anchorlens.figures.page import save_html
from anchorlens.figures.palette import dataset_styles, translucent
from anchorlens.figures.table import CURVE_KEYS, CurveResult, gather

__all__ = ["plot_curves", "save_html"]

_BAND_OPACITY = 0.15
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
        title: First line of the title; None names the protocol, "" leaves it out. The line below it always
            says protocol, readout, anchors, the settings that are not the default, and what bands and dots mean.
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
    table = gather(results, controls)
    models = display_models(table["model"].unique().tolist())
    entries = legend_entries(table)
    sheet = plan_sheet(table, entries.values(), title=title, bands=bands, height=height, width=width)
    figure = empty_panels(sheet, list(models.values()))
    traces, panels = zip(*_traces(table, models, entries, bands), strict=True)
    rows, columns = zip(*map(sheet.cell, panels), strict=True)
    figure.add_traces(list(traces), rows=list(rows), cols=list(columns))
    style_axes(figure, sheet, table, bands=bands)
    style_page(figure, sheet, entries.values())
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
    lone = any(len(part) == 1 for part in _runs(rows, ["delta_p"]))
    return go.Scatter(
        x=rows["layer"].tolist(),
        y=_values(rows["delta_p"]),
        name=f"{entry.label}, {control}",
        mode="lines+markers" if lone else "lines",
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
        if len(points):
            marks.append(_mark(points, entry, {"symbol": "circle", "size": 6, "color": entry.colour}, whisker))
    hollow = rows[rows["trivial"] & rows["delta_p"].notna()]
    style = {"symbol": "circle", "size": 9, "color": "white", "line": {"color": entry.colour, "width": 2}}
    if len(hollow):
        marks.append(_mark(hollow, entry, style, None))
    return marks


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
