"""Plot curves: one panel per model, one ΔP curve per anchor or pathway and data set.

A missing value is a gap. Lines bridge layers that were not measured, and the measured layers are marked. The only statistic
computed here is the placebo gap, a difference of two values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anchorlens.constants import FLIP, LOGIT_DIFF
from anchorlens.errors import InputError
from anchorlens.figures import traces as lines
from anchorlens.figures.contrast_panels import Contrasts
from anchorlens.figures.controls import GAP, RANGE, Beside, beside_curves, in_range, with_extras
from anchorlens.figures.hover import point_head, point_texts
from anchorlens.figures.labels import CURVE, PANEL, Entries, Key, Titles, legend_entries, legend_places, panel_titles
from anchorlens.figures.layout import Sheet, check_size, fit_width, page_plan, page_style, panel_layout, plan_sheet
from anchorlens.figures.palette import dataset_styles, in_theme
from anchorlens.figures.table import CURVE_KEYS, ContrastTables, CurveResults, by_dataset, gather, gather_contrasts, with_ticks
from anchorlens.figures.title import headline, title_parts
from anchorlens.figures.traces import SIMULTANEOUS, Points, Trace

# Metric -> contrast shown first.
_FIRST = {FLIP: "flip_rate"}
# Drawing order, so that no band or control covers a curve.
_RANGE, _OUTER, _BAND, _CONTROL, _LINE, _MARKS = range(6)


def plot_curves(
    results: CurveResults,
    *,
    metric: str | None = None,
    title: str | None = None,
    controls: bool | Sequence[str] = True,
    bands: bool | str = True,
    contrasts: bool | str = True,
    contrast_tables: ContrastTables | None = None,
    colour: str = "curve",
    facet: str | None = None,
    theme: str = "light",
    height: int | None = None,
    width: int | None = None,
) -> go.Figure:
    """Plot ΔP (percentage points) or another metric against the layer, one panel per model and protocol.

    Below each panel are the protocol's contrasts (METHOD 5), with a switch if there are several. A filled point is a layer whose
    simultaneous interval excludes 0.

    Args:
        results: Curves frame (one row per point), object with a method ``curves(controls=...)`` such as a sweep, path of a run
            directory, or a sequence of these. The legend names settings that differ between runs. Each value of a mapping
            ``{"qa": a, "fewshot": b}`` has its own panels, titled with the label.
        metric: ``p`` for ΔP, or another metric of the results, such as ``flip``. If None, ``p`` if available, else the first.
            ``logit_diff`` of a swap is drawn without contrasts, which are differences of ΔP.
        title: First line of the title. If None, metric and protocol; "" omits it.
        controls: If True, draw the range of controls as a grey area, and each as a thin line after a click in the second legend.
            Or names of the controls to draw as lines; those that cut as many tokens, and ``random_before`` and ``random_after``,
            are drawn only if named.
        bands: 95 % intervals: True or ``both``, ``pointwise`` (for one layer), ``simultaneous`` (over all layers, for statements
            about *which* layers; paler), or False.
        contrasts: Whether to draw the panels of contrasts, or the name of the contrast shown first, such as ``flip_rate``.
        contrast_tables: Contrasts for ``results`` given as frames: a frame from ``contrasts()``, a list of these, or a mapping with
            the labels of ``results``.
        colour: ``curve``: published colours, one per curve. ``dataset``: one hue per data set, question solid and answer dashed.
        facet: ``dataset`` gives each data set its own panel. If None, all data sets of a model share one.
        theme: ``light`` or ``dark``.
        height: Height in pixels. If None, as panels, heading and legend need.
        width: Width in pixels. If None, fill the page or notebook cell.

    Returns:
        A Plotly figure. A click on a legend entry hides the curve in all panels, two clicks isolate it. Curves of fewer than 20
        questions are thin. Triangles mark a null that has fewer slots than the anchor in most rows.

    Raises:
        InputError: If there is no point, a metric, contrast, colour, facet or theme is unknown, a column or value is missing, or
            curves would overlap (two readouts, sites, directions, windows or runs of one curve).

    Example:
        >>> figure = plot_curves([sweep, other], bands="simultaneous")  # doctest: +SKIP
        >>> save_figure(figure, "figure.pdf")  # doctest: +SKIP
    """
    points = gather(results, controls, metric)
    if metric == LOGIT_DIFF and contrasts is True:  # the contrasts are of ΔP
        contrasts = False
    claims = gather_contrasts(results, contrast_tables, points, contrasts, controls)
    drawn = lines.select_bands(bands, points, claims)
    if facet not in (None, "dataset"):
        raise InputError(f"facet={facet!r}: unknown value. Use None, or 'dataset' for a panel per data set.", argument="facet")
    if facet:
        points, claims = by_dataset(points), by_dataset(claims)
    table = with_ticks(with_extras(points))
    panels, entries, beside = panel_titles(table), legend_entries(table, hue=colour), beside_curves(table, controls)
    sheet = plan_sheet(list(panels), contrasts=len(claims) > 0, width=width)
    traces = [*_traces(table, sheet, panels, entries, beside, drawn), *map(lines.beside_entry, beside.values())]
    parts = title_parts(table, claims, drawn, beside)
    plan = page_plan(headline(table) if title is None else title, parts, None if height else sheet.inner)
    fitted = fit_width(traces, plan, width, height or 0)
    check_size(fitted, sheet, width, height)
    style = page_style(("legend", "legend2") if beside else ("legend",))
    layout = panel_layout(sheet, table, panels, bands=drawn)
    below, start = None, len(traces)
    if len(claims):
        first = contrasts if isinstance(contrasts, str) else _FIRST.get(str(points["metric"].iloc[0]), "")
        below = Contrasts(claims, sheet, panels, entries, bands=drawn, first=first)
        traces += below.traces()
        lower = below.axes(layout)
        layout |= lower | {"annotations": layout["annotations"] + lower["annotations"]}
    layout |= style | {name: style.get(name, {}) | part if isinstance(part, dict) else part for name, part in fitted.items()}
    figure = go.Figure({"data": traces, "layout": layout | {"meta": {"anchorlens": plan}}})
    margin = fitted["margin"]
    make_subplots(**sheet.grid(fitted["height"] - margin["t"] - margin["b"]), figure=figure)
    if below is not None:
        below.add_menu(figure, start)
    return in_theme(figure, theme)


def _traces(
    table: pd.DataFrame, sheet: Sheet, panels: Titles, entries: Entries, beside: Mapping[str, Beside], bands: Sequence[str]
) -> list[Trace]:
    """Return the traces of the upper panels in drawing order."""
    styles = dataset_styles(table["dataset"].unique().tolist())
    places, numbers = legend_places(entries), {key: number for number, key in enumerate(panels)}
    table = table.assign(hover=point_texts(table))
    curves = table.loc[(table["control"] == "none") & (table["extra"] == ""), CURVE]
    crowded = lines.find_crowded_panels(curves)
    edges = table.groupby(PANEL)["layer"].max() + 0.5
    listed: set[str] = set()
    found: list[tuple[int, int, Trace]] = []

    def add(depth: int, place: int, panel: Key, trace: Trace) -> None:
        axis = sheet.axis(numbers[panel])
        found.append((depth, place, trace | {"type": "scatter", "xaxis": f"x{axis}", "yaxis": f"y{axis}"}))

    if RANGE.label in beside:
        areas: dict[Any, pd.DataFrame] = dict(iter(in_range(table).groupby(PANEL, sort=False)))
        for panel in [panel for panel in panels if panel in areas]:
            add(_RANGE, 0, panel, lines.range_of(areas[panel]))
    keys = table[CURVE_KEYS].drop_duplicates().itertuples(index=False, name=None)
    by_curve = table.assign(curve=table.groupby(CURVE_KEYS, sort=False).ngroup()).sort_values(["curve", "layer"])
    for key, (_, rows) in zip(keys, by_curve.groupby("curve"), strict=True):
        model, part, dataset, protocol, anchor, pathway, *settings, control = key
        panel, entry = (model, part, protocol), entries[(dataset, protocol, anchor, pathway, *settings)]
        extra, place = rows["extra"].iloc[0], places[entry.group]
        name = f"{GAP.label} ({entry.of})" if extra == GAP.label else entry.label
        shown = styles[dataset].display
        head = point_head(name, panels[panel], shown, protocol=protocol, anchor=anchor, control=control)
        points = Points.of(rows, "effect", head)
        if extra or control != "none":
            add(_CONTROL, place, panel, lines.beside_line(points, rows, name, entry, beside[extra or control]))
            continue
        add(_LINE, place, panel, lines.line_of(points, entry) | {"showlegend": entry.group not in listed})
        listed.add(entry.group)
        marks = [*lines.marks_of(points, rows, entry, bands), lines.tick_of(rows, entry, float(edges[panel]))]
        for mark in filter(None, marks):
            add(_MARKS, place, panel, mark)
        for kind in bands:
            if (outline := points.outline(kind))["x"]:
                look = lines.band_look(entry, kind, crowded=panel in crowded)
                add(_OUTER if kind == SIMULTANEOUS else _BAND, place, panel, outline | look)
    return [trace for *_, trace in sorted(found, key=lambda item: item[:2])]
