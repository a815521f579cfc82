"""The figure: one panel per model, one ΔP curve per anchor or pathway and data set.

x is the layer (each panel has its own range), y is ΔP in percentage points (one range for all panels), and the legend stands below
all panels (``legend``). Every curve has two translucent 95 % bands (of each layer by itself, and a paler one of all layers at once)
and a tick at the right edge, as far as it can fall. One grey area a panel holds the controls; each of them, and what stands beside
the pathways of a knockout (unsplit curve, placebo splits, their gap), is drawn after a click in the second legend. Below a panel
stands what can be claimed (``contrasts``). A missing value is a gap, never a line across it; layers that were not measured are
bridged, and then the measured ones are marked. A point whose value holds by construction is hollow; one whose probe has no signal
is crossed. A line of grey at zero is the noise floor, and a grey ring marks a point within it. Not done here: statistics. What is
drawn is what the frame says; only the gap of the placebo is a difference of two of its values.
"""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from anchorlens.errors import InputError
from anchorlens.figures.contrasts import add_contrasts
from anchorlens.figures.effects import Effects, gather_effects
from anchorlens.figures.extras import GAP, RANGE, Beside, beside_curves, with_extras
from anchorlens.figures.hover import hover_texts
from anchorlens.figures.labels import ENTRY_KEYS, Entry, Key, in_panel, legend_entries, legend_places, panel_titles
from anchorlens.figures.layout import empty_panels, plan_sheet, style_axes, style_page
from anchorlens.figures.legend import Legend, page_plan, place_entries, plan_legends
from anchorlens.figures.page import save_html
from anchorlens.figures.palette import dataset_styles
from anchorlens.figures.shapes import CROWD, SIMULTANEOUS, chosen_bands
from anchorlens.figures.table import CURVE_KEYS, CurveResults, by_dataset, gather
from anchorlens.figures.theme import in_theme
from anchorlens.figures.ticks import with_ticks
from anchorlens.figures.traces import band_of, beside_entry, beside_line, line_of, marks_of, range_of, tick_of
from anchorlens.vocabulary import FLIP, P

__all__ = ["plot_curves", "save_html"]

# The contrast to show first below a figure of this quantity.
_FIRST = {FLIP: "flip_rate"}
# From back to front, so that no band or control covers a curve.
_RANGE, _OUTER, _BAND, _CONTROL, _LINE, _MARKS = range(6)


def plot_curves(
    results: CurveResults,
    *,
    quantity: str = P,
    title: str | None = None,
    controls: bool | Sequence[str] = True,
    bands: bool | str = True,
    contrasts: bool | str = True,
    effects: Effects | None = None,
    colour: str = "curve",
    facet: str | None = None,
    theme: str = "light",
    height: int | None = None,
    width: int | None = None,
) -> go.Figure:
    """Draw ΔP or another quantity against the layer, one panel per model, or per model and protocol where there are several.

    Below each panel stands what can be claimed (METHOD 5): the contrasts of the results' ``effects()``, one curve per data set,
    with a switch where there are several. A filled point is a layer at which the interval for all layers at once excludes 0.

    Args:
        results: A curves frame (one row per point), anything with a method ``curves(controls=...)`` that gives one, such as a
            sweep, or a sequence of these. Panels stand in order of appearance, at most four in a row. Runs that differ in prompt,
            answers, distractor, split or known_only may be drawn together: the legend names what differs. A mapping
            ``{"qa": a, "fewshot": b}`` gives each of its values panels of its own, with the label as title, whatever differs.
        quantity: ``p`` for ΔP, or another quantity of the results, such as ``flip`` (the share of predictions that changed).
        title: First line of the title; None names the protocol, "" leaves it out. The line below it always
            says protocol, readout, anchors, the settings that are not the default, and what bands and dots mean.
        controls: Whether controls are drawn: one grey area a panel holds them, and a click on an entry of the second legend draws
            each as a thin line. Or the names of those to draw as lines at once. ``matched``, ``random_before`` and
            ``random_after`` are drawn only if named.
        bands: Which 95 % intervals are drawn: True or ``both``, ``pointwise`` (each layer by itself), ``simultaneous`` (all
            layers at once: the band for statements about *which* layers), or False. Of both, the simultaneous band is the paler,
            outer one; it is so pale that eight curves in a panel stay readable. Results of older versions have pointwise bands
            alone.
        contrasts: Whether the panels of contrasts are drawn, where the results have any; or the name of the one to show first,
            such as ``flip_rate``: the one that a static picture shows. True shows ``delta_all``, of a swap ``less_null``.
        effects: Contrasts of curves that were given as frames: the frame that ``effects()`` gives, or ``effects.parquet`` of a
            run, a list of these, or a mapping with the labels of ``results``. Results that have a method ``effects()`` bring
            their own.
        colour: ``curve``: the published colours, one for each curve. ``dataset``: one hue for each data set, its question's curve
            solid and its answer's dashed.
        facet: ``dataset`` gives each data set a panel of its own; None puts all data sets of a model into one.
        theme: ``light`` or ``dark``.
        height: Pixels; None takes what panels of the usual height, the heading and the legend need.
        width: Pixels; None fills the page or notebook cell.

    Returns:
        A plotly figure. Nothing is shown or written: call its ``show()``, or :func:`~anchorlens.figures.files.write_figure`. A click
        on a legend entry hides line, bands, tick and contrasts of that curve in all panels, two clicks isolate it; single
        controls, unsplit curves and the placebo splits of a knockout are hidden until their entry is clicked. Curves of fewer
        than 20 questions are thin. A null most of whose rows have fewer slots than the anchor carries small triangles.

    Raises:
        InputError: no point, no such quantity, contrast, colour, facet or theme, a missing column or value, or points drawn over
            each other (two readouts, sites, directions, windows or runs of one curve); the message names the column and the filter.
    """
    points = gather(results, controls, quantity)
    claims = gather_effects(results, effects, points, contrasts, controls)
    drawn = chosen_bands(bands, points, claims)
    if facet not in (None, "dataset"):
        raise InputError(f"facet={facet!r} is neither None nor 'dataset', which gives each data set a panel.")
    if facet is not None:
        points, claims = by_dataset(points), by_dataset(claims)
    table = with_ticks(with_extras(points))
    panels, entries, beside = panel_titles(table), legend_entries(table, hue=colour), beside_curves(table, controls)
    legends = _legends(table, entries, beside, width)
    sheet = plan_sheet(table, claims, legends, beside, title=title, bands=drawn, height=height, width=width)
    figure = empty_panels(sheet, list(panels.values()))
    traces, places = zip(*_traces(table, panels, entries, beside, drawn), strict=True)
    rows, columns = zip(*map(sheet.cell, places), strict=True)
    figure.add_traces(list(traces), rows=list(rows), cols=list(columns))
    figure.add_traces([beside_entry(one) for one in beside.values()])
    style_axes(figure, sheet, table, bands=drawn)
    style_page(figure, sheet)
    if len(claims):
        first = contrasts if isinstance(contrasts, str) else _FIRST.get(quantity, "")
        add_contrasts(figure, sheet, claims, panels, entries, bands=drawn, first=first)
    place_entries(figure, legends, sheet.height)
    figure.update_layout(
        meta={"anchorlens": {"legends": page_plan(figure, legends), **sheet.page_plan(fixed=height is not None)}}
    )
    return in_theme(figure, theme)


def _legends(table: pd.DataFrame, entries: dict[Key, Entry], beside: dict[str, Beside], width: int | None) -> list[Legend]:
    """Both legends, from the foot of the page upwards."""
    listed = {entries[key] for key in table.loc[table["extra"] == "", ENTRY_KEYS].itertuples(index=False, name=None)}
    own = {entry.group: entry for entry in sorted(listed, key=lambda entry: entry.order)}
    sets = [entry.order[:2] for entry in own.values()]
    return plan_legends({group: entry.label for group, entry in own.items()}, sets, list(beside), width)


def _traces(
    table: pd.DataFrame, panels: dict[Key, str], entries: dict[Key, Entry], beside: dict[str, Beside], bands: Sequence[str]
) -> list[tuple[go.Scatter, int]]:
    """All traces with the number of their panel, back to front."""
    styles = dataset_styles(table["dataset"].unique().tolist())
    places = legend_places(entries)
    listed: set[str] = set()
    found: list[tuple[int, int, go.Scatter, int]] = []
    for panel, key in enumerate(panels):
        rows = in_panel(table, key)
        if RANGE.label in beside and (area := range_of(rows)) is not None:
            found.append((_RANGE, 0, area, panel))
    for key, rows in table.groupby(CURVE_KEYS, sort=False):
        model, part, dataset, protocol, anchor, pathway, *settings, control = map(str, key)
        entry, style = entries[(dataset, protocol, anchor, pathway, *settings)], styles[dataset]
        rows = rows.sort_values("layer")
        extra = rows["extra"].iloc[0]
        name = f"{GAP.label} ({entry.of})" if extra == GAP.label else entry.label
        texts = hover_texts(rows, name, panels[model, part, protocol], style.display)
        panel, place = list(panels).index((model, part, protocol)), places[entry.group]
        if extra or control != "none":
            found.append((_CONTROL, place, beside_line(rows, name, entry, beside[extra or control], texts), panel))
            continue
        own = in_panel(table, (model, part, protocol))
        crowded = len(own[(own["control"] == "none") & (own["extra"] == "")].groupby(ENTRY_KEYS)) > CROWD
        found.append((_LINE, place, line_of(rows, entry, texts, showlegend=entry.group not in listed), panel))
        listed.add(entry.group)
        found += [(_MARKS, place, marks, panel) for marks in marks_of(rows, entry, bands)]
        if (tick := tick_of(rows, entry, int(own["layer"].max()) + 0.5)) is not None:
            found.append((_MARKS, place, tick, panel))
        for kind in bands:
            if (band := band_of(rows, entry, kind, crowded=crowded)) is not None:
                found.append((_OUTER if kind == SIMULTANEOUS else _BAND, place, band, panel))
    return [(trace, panel) for *_, trace, panel in sorted(found, key=lambda item: item[:2])]
