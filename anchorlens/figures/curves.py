"""The figure: one panel per model, one ΔP curve per anchor or pathway and data set.

x is the layer (each panel has its own range), y is ΔP in percentage points (one range for all panels), one legend stands
below all panels. Every curve has two translucent 95 % bands (of each layer by itself, and a paler one of all layers at once); its
controls are thin dotted lines in its colour. Below a panel stands what can be claimed (``contrasts``). What stands beside
the pathways of a knockout (unsplit curve, placebo splits, their gap) has legend entries of its own. A missing value is
a gap, never a line across it; layers that were not measured are bridged, and then the measured ones are marked. A point whose
value holds by construction is hollow; one whose probe has no signal is crossed. A grey band around zero is the noise floor, and a
grey ring marks a point within it. Not done here: statistics. What is drawn is
what the frame says; only the gap of the placebo is a difference of two of its values.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from anchorlens.figures.contrasts import add_contrasts
from anchorlens.figures.effects import Effects, gather_effects
from anchorlens.figures.extras import EXTRAS, GAP, PLACEBOS, Extra, with_extras
from anchorlens.figures.hover import WEAK, hover_texts
from anchorlens.figures.labels import ENTRY_KEYS, Entry, Key, legend_entries, legend_places, panel_titles
from anchorlens.figures.layout import empty_panels, plan_sheet, style_axes, style_page
from anchorlens.figures.page import save_html
from anchorlens.figures.palette import dataset_styles, shaded, translucent
from anchorlens.figures.shapes import (
    SIMULTANEOUS,
    THIN_WIDTH,
    WIDTH,
    chosen_bands,
    fill_of,
    has_band,
    outline,
    rests_on_few,
    runs_of,
    values_of,
)
from anchorlens.figures.table import CURVE_KEYS, CurveResult, gather
from anchorlens.vocabulary import FLIP, P

__all__ = ["plot_curves", "save_html"]

_GREY = "#666666"
_TRIANGLE = 6
# The contrast to show first below a figure of this quantity.
_FIRST = {FLIP: "flip_rate"}
# Dots of a first, second, ... control; all further ones look like the last.
_DOTS = ("dot", "2px,6px", "1px,9px")
# From back to front, so that no band or control covers a curve.
_OUTER, _BAND, _CONTROL, _LINE_TRACE, _MARKS = range(5)


def plot_curves(
    results: CurveResult | Sequence[CurveResult],
    *,
    quantity: str = P,
    title: str | None = None,
    controls: bool | Sequence[str] = True,
    bands: bool | str = True,
    contrasts: bool | str = True,
    effects: Effects | None = None,
    height: int | None = None,
    width: int | None = None,
) -> go.Figure:
    """Draw ΔP or another quantity against the layer, one panel per model, or per model and protocol where there are several.

    Below each panel stands what can be claimed (METHOD 5): the contrasts of the results' ``effects()``, one curve per data set,
    with a switch where there are several. A filled point is a layer at which the interval for all layers at once excludes 0.

    Args:
        results: A curves frame (one row per point), anything with a method ``curves(controls=...)`` that gives one, such as a
            sweep, or a sequence of these. Panels stand in order of appearance, at most four in a row. Runs that differ in prompt,
            answers, distractor, split or known_only may be drawn together: the legend names what differs.
        quantity: ``p`` for ΔP, or another quantity of the results, such as ``flip`` (the share of predictions that changed).
        title: First line of the title; None names the protocol, "" leaves it out. The line below it always
            says protocol, readout, anchors, the settings that are not the default, and what bands and dots mean.
        controls: Whether controls are drawn (thin dotted lines; some only after a click on their legend entry), or the names
            of those to draw. ``matched``, ``random_before`` and ``random_after`` are drawn only if named.
        bands: Which 95 % intervals are drawn: True or ``both``, ``pointwise`` (each layer by itself), ``simultaneous`` (all
            layers at once: the band for statements about *which* layers), or False. Of both, the simultaneous band is the paler,
            outer one; it is so pale that eight curves in a panel stay readable. Results of older versions have pointwise bands
            alone.
        contrasts: Whether the panels of contrasts are drawn, where the results have any; or the name of the one to show first,
            such as ``flip_rate``: the one that a static picture shows. True shows ``delta_all``, of a swap ``less_null``.
        effects: Contrasts of curves that were given as frames: the frame that ``effects()`` gives, or ``effects.parquet`` of a
            run, or a list of these. Results that have a method ``effects()`` bring their own.
        height: Pixels; None takes 600 for one row of panels and more for more, and for contrasts.
        width: Pixels; None fills the page or notebook cell.

    Returns:
        A plotly figure. Nothing is shown or written: call its ``show()``, or :func:`save_html`. A click on a legend entry
        hides line, bands, controls and contrasts of that curve in all panels; the unsplit curves and the placebo splits of a
        knockout are hidden until their entry is clicked. Curves of fewer than 20 questions are thin, and the legend says so. A null
        most of whose rows have fewer slots than the anchor carries small triangles.

    Raises:
        InputError: no point, no such quantity or contrast, a missing column or value, or points that would be drawn over each other
            (two readouts, sites, directions, windows or runs of one curve); the message names the column and the filter.
    """
    points = gather(results, controls, quantity)
    claims = gather_effects(results, effects, points, contrasts, controls)
    drawn = chosen_bands(bands, points, claims)
    table = with_extras(points)
    panels = panel_titles(table)
    entries = legend_entries(table)
    extras = [extra for label, extra in EXTRAS.items() if bool((table["extra"] == label).any())]
    curves = table.loc[table["extra"] == "", ENTRY_KEYS].itertuples(index=False, name=None)
    listed = {entries[key].label for key in curves} | {extra.label for extra in extras}
    sheet = plan_sheet(table, claims, listed, title=title, bands=drawn, height=height, width=width)
    figure = empty_panels(sheet, list(panels.values()))
    traces, places = zip(*_traces(table, panels, entries, drawn), strict=True)
    rows, columns = zip(*map(sheet.cell, places), strict=True)
    figure.add_traces(list(traces), rows=list(rows), cols=list(columns))
    figure.add_traces([_legend_line(extra, len(entries) + rank + 1) for rank, extra in enumerate(extras)])
    style_axes(figure, sheet, table, bands=drawn)
    style_page(figure, sheet, listed)
    if len(claims):
        first = contrasts if isinstance(contrasts, str) else _FIRST.get(quantity, "")
        add_contrasts(figure, sheet, claims, panels, entries, bands=drawn, first=first)
    return figure


def _traces(
    table: pd.DataFrame, panels: dict[tuple[str, str], str], entries: dict[Key, Entry], bands: Sequence[str]
) -> list[tuple[go.Scatter, int]]:
    """All traces with the number of their panel, back to front."""
    styles = dataset_styles(table["dataset"].unique().tolist())
    places = legend_places(entries)
    dots = {name: _DOTS[min(k, len(_DOTS) - 1)] for k, name in enumerate(_controls_in(table))}
    listed: set[str] = set()
    found: list[tuple[int, int, go.Scatter, int]] = []
    for key, rows in table.groupby(CURVE_KEYS, sort=False):
        model, dataset, protocol, anchor, pathway, *settings, control = map(str, key)
        entry, style = entries[(dataset, protocol, anchor, pathway, *settings)], styles[dataset]
        rows = rows.sort_values("layer")
        extra = EXTRAS.get(rows["extra"].iloc[0])
        name = f"{GAP.label} ({entry.of})" if extra is GAP else entry.label
        texts = hover_texts(rows, name, panels[model, protocol], style.display)
        panel, place = list(panels).index((model, protocol)), places[entry.group]
        if extra is not None:
            found.append((_CONTROL, place, _extra(rows, name, entry, extra, texts), panel))
            continue
        if control != "none":
            found.append((_CONTROL, place, _control(rows, entry, control, dots[control], texts), panel))
            continue
        line = _line(rows, entry, texts, place, showlegend=entry.group not in listed)
        listed.add(entry.group)
        found.append((_LINE_TRACE, place, line, panel))
        found += [(_MARKS, place, marks, panel) for marks in _marks(rows, entry, bands)]
        for kind in bands:
            if (band := _band(rows, entry, kind)) is not None:
                found.append((_OUTER if kind == SIMULTANEOUS else _BAND, place, band, panel))
    return [(trace, panel) for *_, trace, panel in sorted(found, key=lambda item: item[:2])]


def _controls_in(table: pd.DataFrame) -> list[str]:
    names = [name for name in table.loc[table["extra"] == "", "control"].unique() if name != "none"]
    return sorted(names, key=lambda name: name != "null")


def _line(rows: pd.DataFrame, entry: Entry, texts: list[str], place: int, *, showlegend: bool) -> go.Scatter:
    layers = rows["layer"].to_numpy()
    # Between layers that were not measured the line is only a guide, so the measured ones are marked.
    sparse = bool((np.diff(layers) > 1).any())
    return go.Scatter(
        x=layers.tolist(),
        y=values_of(rows["delta_p"]),
        name=entry.label,
        mode="lines+markers" if sparse else "lines",
        line={"color": entry.colour, "dash": entry.dash, "width": THIN_WIDTH if rests_on_few(rows, "delta_p") else WIDTH},
        marker={"size": 5, "color": entry.colour},
        legendgroup=entry.group,
        legendrank=place + 1,
        showlegend=showlegend,
        connectgaps=False,
        text=texts,
        hoverinfo="text",
    )


def _control(rows: pd.DataFrame, entry: Entry, control: str, dash: str, texts: list[str]) -> go.Scatter:
    look = {"color": entry.colour, "dash": dash, "width": 1}
    thin = _thin(rows, f"{entry.label}, {control}", look, entry.group, texts, shown=True)
    weak = (rows["null_short"] > WEAK).tolist()
    if any(weak):
        marker = {"symbol": "triangle-down-open", "size": [_TRIANGLE if one else 0 for one in weak], "opacity": 1}
        thin.update(mode="lines+markers", marker=marker)
    return thin


def _extra(rows: pd.DataFrame, name: str, entry: Entry, extra: Extra, texts: list[str]) -> go.Scatter:
    colour = shaded(entry.colour, -0.3) if extra.dark else entry.colour
    look = {"color": colour, "dash": extra.dash, "width": extra.width}
    control = rows["control"].iloc[0]
    return _thin(rows, f"{name}, {control}" if control in PLACEBOS else name, look, extra.label, texts, shown=extra.shown)


def _thin(rows: pd.DataFrame, name: str, look: dict[str, object], group: str, texts: list[str], *, shown: bool) -> go.Scatter:
    """A curve without a band that no legend entry of its own names."""
    lone = any(len(part) == 1 for part in runs_of(rows, ["delta_p"]))
    return go.Scatter(
        x=rows["layer"].tolist(),
        y=values_of(rows["delta_p"]),
        name=name,
        mode="lines+markers" if lone else "lines",
        line=look,
        marker={"size": 3, "color": look["color"]},
        legendgroup=group,
        showlegend=False,
        visible=None if shown else "legendonly",
        connectgaps=False,
        text=texts,
        hoverinfo="text",
    )


def _legend_line(extra: Extra, rank: int) -> go.Scatter:
    """The legend entry of all curves of one kind: grey, as it stands for every colour, and without a point."""
    return go.Scatter(
        x=[None],
        y=[None],
        name=extra.label,
        mode="lines",
        line={"color": _GREY, "dash": extra.dash, "width": extra.width},
        legendgroup=extra.label,
        legendrank=rank,
        showlegend=True,
        visible=None if extra.shown else "legendonly",
        hoverinfo="skip",
    )


def _band(rows: pd.DataFrame, entry: Entry, kind: str) -> go.Scatter | None:
    x, y = outline(rows, "delta_p", kind)
    if not x:
        return None
    return go.Scatter(
        x=x,
        y=y,
        name=f"{entry.label}, 95 % band{' of all layers at once' if kind == SIMULTANEOUS else ''}",
        mode="lines",
        fill="toself",
        fillcolor=fill_of(entry.colour, kind),
        line={"width": 0, "color": entry.colour},
        legendgroup=entry.group,
        showlegend=False,
        hoverinfo="skip",
    )


def _marks(rows: pd.DataFrame, entry: Entry, bands: Sequence[str]) -> list[go.Scatter]:
    """Hollow marks on trivial points, crosses where there is no signal; full ones, with their intervals, where no line is."""
    lone = [part for part in runs_of(rows, ["delta_p"]) if len(part) == 1]
    marks: list[go.Scatter] = []
    if lone:
        points = pd.concat(lone)
        points = points[~points["trivial"]]
        full: dict[str, object] = {"symbol": "circle", "size": 6, "color": entry.colour}
        whiskers = [_whisker(points, entry.colour, kind) for kind in bands if has_band(points, kind)]
        if len(points):
            marks += [_mark(points, entry, full, whisker) for whisker in whiskers or [None]]
    hollow = rows[rows["trivial"] & rows["delta_p"].notna()]
    style = {"symbol": "circle", "size": 9, "color": "white", "line": {"color": entry.colour, "width": 2}}
    if len(hollow):
        marks.append(_mark(hollow, entry, style, None))
    unsure = rows[rows["no_signal"] & rows["delta_p"].notna()]
    cross = {"symbol": "x-thin-open", "size": 6, "color": entry.colour, "line": {"width": 1.5}}
    if len(unsure):
        marks.append(_mark(unsure, entry, cross, None))
    noise = rows[rows["is_noise"] & ~rows["trivial"]]
    ring = {"symbol": "circle-open", "size": 6, "color": _GREY, "line": {"width": 1.2}}
    if len(noise):
        marks.append(_mark(noise, entry, ring, None))
    return marks


def _whisker(points: pd.DataFrame, colour: str, kind: str) -> dict[str, object]:
    up, down = points[f"{kind}_high"] - points["delta_p"], points["delta_p"] - points[f"{kind}_low"]
    return {
        "type": "data",
        "symmetric": False,
        "array": up.clip(lower=0).fillna(0).tolist(),
        "arrayminus": down.clip(lower=0).fillna(0).tolist(),
        "color": translucent(colour, 0.25 if kind == SIMULTANEOUS else 0.5),
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
