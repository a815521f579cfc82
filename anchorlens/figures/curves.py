"""Plot curves: one panel per model, one ΔP curve per anchor or pathway and data set.

A missing value is a gap. Lines bridge layers that were not measured, and the measured layers are
marked. Nothing is computed here: layers are marked as claims where the results' findings claim an
effect.
"""

from collections.abc import Iterable, Sequence
from html import escape

import pandas as pd
import plotly.graph_objects as go

from anchorlens.constants import FLIP, LOGIT_DIFF, SETTINGS, P
from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures import traces as lines
from anchorlens.figures.caption import caption, headline, main_facts
from anchorlens.figures.contrast_panels import Contrasts
from anchorlens.figures.contrast_table import ContrastTables, gather_contrasts
from anchorlens.figures.labels import (
    CURVE,
    PATHWAYS,
    Entries,
    Key,
    Titles,
    control_labels,
    legend_entries,
    legend_places,
    panel_titles,
)
from anchorlens.figures.layout import (
    Sheet,
    arrange,
    check_width,
    fit_layout,
    page_plan,
    page_style,
    panel_layout,
    plan_sheet,
)
from anchorlens.figures.notebook_figure import NotebookFigure
from anchorlens.figures.palette import dataset_styles, in_theme
from anchorlens.figures.table import (
    CURVE_KEYS,
    Results,
    by_dataset,
    by_label,
    flatten,
    gather,
    label_directions,
    without_unsplit,
)
from anchorlens.figures.traces import Points, Trace, point_head, point_texts
from anchorlens.loading.load_run import results_of
from anchorlens.results.findings import Finding, Findings
from anchorlens.results.sweep import SweepResult
from anchorlens.results.vocabulary import metric_labels

STYLES = ("plain", "paper")
# Columns that identify a run among the curves of a figure.
_RUN = ["part", "model", "dataset", "protocol", *SETTINGS]
# Metric -> contrast shown first.
_FIRST = {FLIP: "flip_rate"}
# Dashes of the first, second and all further controls.
_DOTS = ("dot", "2px,6px", "1px,9px")
# Drawing order, so that no band or control covers a curve.
_BAND, _CONTROL, _LINE, _MARKS = range(4)


def plot_curves(
    results: Results,
    *,
    metric: str | None = None,
    anchors: Sequence[str] | None = None,
    title: str | None = None,
    style: str = "plain",
    controls: bool | Sequence[str] = False,
    bands: bool | str = True,
    contrasts: bool | str | None = None,
    contrast_tables: ContrastTables | None = None,
    colour: str = "curve",
    facet: str | None = None,
    theme: str = "light",
    width: int | None = None,
) -> go.Figure:
    """Plot ΔP (percentage points) or another metric against the layer, one panel per model and
    protocol.

    Each curve has one band. A filled mark is a layer at which the findings claim an effect beyond
    every control; frames have no findings, so nothing is marked. Controls, and the panels of
    differences from the control (METHOD 5), are drawn on request.

    Args:
        results: Sweep, comparison, curves frame (one row per point), path of a run directory, or a
            sequence of these. The legend names settings that differ between runs. Each value of a
            mapping ``{"qa": a, "fewshot": b}`` has its own panels, titled with the label. Noising
            and denoising sweeps of one label have their own panels too.
        metric: ``p`` for ΔP, or another metric of the results, such as ``flip``. If None, ``p`` if
            available, else the first. ``logit_diff`` of a swap has no contrasts, which are
            differences of ΔP.
        anchors: Anchors to draw. If None, all.
        title: Title. If None, metric and protocol; "" omits it.
        style: ``plain``: a title, and a line with questions, P before and what P is. ``paper``:
            panels and legend only, on white.
        controls: If True, draw the leading control of each curve (null or placebo) and the
            strongest null as dotted lines, and mark layers without signal of the probe. Or the
            names of controls.
        bands: 95 % band: ``pointwise`` (for a layer chosen beforehand), ``simultaneous`` (over all
            layers, as the claims), or False. If True, pointwise for curves and simultaneous for
            contrasts and comparisons. There is no band where fewer than ten questions were
            measured.
        contrasts: If True, draw below each panel the differences from the control, with a switch if
            there are several, and shade the layers at which all contrasts stand. Or the name of the
            contrast or null shown first, such as ``flip_rate`` or ``norm_matched``. If True, the
            strongest null is shown first. If None, only if ``contrast_tables`` are given.
        contrast_tables: Contrasts for ``results`` given as frames: a frame from ``contrasts()``, a
            list of these, or a mapping with the labels of ``results``.
        colour: ``curve``: published colours, one per curve. ``dataset``: one hue per data set,
            question solid and answer dashed.
        facet: ``dataset`` gives each data set its own panel. If None, all data sets of a model
            share one.
        theme: ``light`` or ``dark``.
        width: Width in pixels. If None, fill the page or notebook cell. Below 900 pixels the panels
            stand below each other.

    Returns:
        A Plotly figure. A click on a legend entry hides the curve in all panels, two clicks isolate
        it. ``figure.layout.meta["anchorlens"]["caption"]`` has the caption: settings, bands,
        controls and marks.

    Raises:
        InputError: If there is no point, an argument has an unknown value, a column or value is
            missing, or curves would overlap (two readouts, sites, windows or runs of one curve, or
            two directions in frames).

    Examples:
        >>> import anchorlens as al
        >>> runs = {"one donor": "runs/a", "four donors": "runs/b"}
        >>> figure = al.plot_curves(runs, controls=True)  # doctest: +SKIP
        >>> al.save_figure(figure, "figure.pdf")  # doctest: +SKIP
    """
    if style not in STYLES:
        raise InputError(
            f"style={style!r}: unknown value. {did_you_mean(str(style), STYLES)}", argument="style"
        )
    if style == "paper" and theme == "dark":
        raise InputError(
            "style='paper' has a white background. Use theme='light'.", argument="theme"
        )
    if facet not in (None, "dataset"):
        raise InputError(
            f"facet={facet!r}: unknown value. Use None, or 'dataset' for a panel per data set.",
            argument="facet",
        )
    check_width(width)
    given = label_directions(results_of(results))
    table = mark_claims(without_unsplit(gather(given, controls, metric, anchors)), given)
    if contrasts is None:
        contrasts = contrast_tables is not None
    if metric == LOGIT_DIFF and contrasts is True:  # the contrasts are of ΔP
        contrasts = False
    claims = gather_contrasts(given, contrast_tables, table, contrasts, controls)
    band, lower_band = lines.select_bands(bands, table, claims)
    if facet:
        table = by_dataset(table)
        claims = by_dataset(claims)
    panels = panel_titles(table)
    entries = legend_entries(table, hue=colour)
    sheet = plan_sheet(list(panels), contrasts=len(claims) > 0)
    first = (
        contrasts if isinstance(contrasts, str) else _FIRST.get(str(table["metric"].iloc[0]), "")
    )
    below = Contrasts(claims, sheet, panels, entries, band=lower_band, first=first)
    has_controls = controls is not False
    traces = _traces(table, sheet, panels, entries, band=band, has_controls=has_controls)
    traces += [*_control_keys(table), *below.keys()]
    layout = panel_layout(sheet, table, panels, band=band)
    below.add_to(layout, start=len(traces), switch=style != "paper")
    traces += below.traces()
    labels = metric_labels(table)
    y_title = labels.name if style == "paper" and labels.name == "ΔP" else labels.axis
    y_titles = escape(y_title, quote=False), "difference"
    wide = arrange(sheet, y_titles, below.panels, below.switch, narrow=False)
    narrow = arrange(sheet, y_titles, below.panels, below.switch, narrow=True)
    head = "" if style == "paper" else headline(table) if title is None else title
    facts: list[str] = []
    if style != "paper":
        facts = [escape(fact, quote=False) for fact in main_facts(table)]
    plan = page_plan(head, facts, wide, narrow) | {
        "caption": caption(table, claims, (band, lower_band), has_controls=has_controls)
    }
    with_entry = [trace for trace in traces if trace.get("showlegend")]
    legends = dict.fromkeys(trace.get("legend", "legend") for trace in with_entry)
    layout |= page_style(legends) | {"meta": {"anchorlens": plan}}
    return in_theme(
        NotebookFigure({"data": traces, "layout": fit_layout(layout, traces, plan, width)}), theme
    )


def _control_keys(table: pd.DataFrame) -> list[Trace]:
    """Return the entries of the second legend for the dotted lines."""
    found: list[Trace] = []
    for name, dash in _dots(table).items():
        look = {"color": lines.GREY, "dash": dash, "width": 1.5}
        found.append(lines.legend_key(control_labels(name).name, name, mode="lines", line=look))
    return found


def _dots(table: pd.DataFrame) -> dict[str, str]:
    """Return the dash of each control, by its rank among those of its protocol."""
    controls = table[table["control"] != "none"].groupby("protocol", sort=False)["control"].unique()
    dots: dict[str, str] = {}
    for names in controls:
        for rank, name in enumerate(names):
            dots[name] = _DOTS[min(rank, len(_DOTS) - 1)]
    return dots


def _traces(
    table: pd.DataFrame,
    sheet: Sheet,
    panels: Titles,
    entries: Entries,
    *,
    band: str,
    has_controls: bool,
) -> list[Trace]:
    """Return the traces of the upper panels in drawing order."""
    styles = dataset_styles(table["dataset"].unique().tolist())
    dots = _dots(table)
    places = legend_places(entries)
    numbers = {key: number for number, key in enumerate(panels)}
    table = table.assign(hover=point_texts(table))
    crowded = lines.find_crowded_panels(table.loc[table["control"] == "none", CURVE])
    listed: set[str] = set()
    found: list[tuple[int, int, Trace]] = []
    keys = table[CURVE_KEYS].drop_duplicates().itertuples(index=False, name=None)
    by_curve = table.assign(curve=table.groupby(CURVE_KEYS, sort=False).ngroup()).sort_values(
        ["curve", "layer"]
    )
    for key, (_, rows) in zip(keys, by_curve.groupby("curve"), strict=True):
        model, part, dataset, protocol, anchor, pathway, *settings, control = key
        panel: Key = (model, part, protocol)
        entry = entries[(dataset, protocol, anchor, pathway, *settings)]
        axis = sheet.axis(numbers[panel])
        head = point_head(
            entry.label, panels[panel], styles[dataset].display, anchor=anchor, control=control
        )
        points = Points.of(rows, "effect", band, head)
        own: list[tuple[int, Trace]] = []
        if control != "none":
            own.append((_CONTROL, lines.control_line(points, entry, control, dots[control])))
        else:
            own.append(
                (_LINE, lines.line_of(points, entry) | {"showlegend": entry.group not in listed})
            )
            listed.add(entry.group)
            marks = lines.marks_of(points, rows, entry, has_controls=has_controls)
            marks += lines.claim_mark(points, rows, entry)
            own += [(_MARKS, mark) for mark in marks]
            if band and (outline := points.outline())["x"]:
                own.append((_BAND, lines.band_of(entry, crowded=panel in crowded) | outline))
        fixed = {"type": "scatter", "xaxis": f"x{axis}", "yaxis": f"y{axis}"}
        for depth, trace in own:
            found.append((depth, places[entry.group], trace | fixed))
    return [trace for *_, trace in sorted(found, key=lambda item: item[:2])]


def mark_claims(table: pd.DataFrame, results: object) -> pd.DataFrame:
    """Return a table of curves with the columns ``claimed``, ``has_findings`` and ``is_quick``.

    A layer is claimed where the findings claim an effect beyond every control of the anchor. Claims
    over all rows of a protocol with pathways are those of its Q-Anchored curve. Data frames have no
    findings, and findings are about ΔP only.

    Args:
        table: Table from :func:`~anchorlens.figures.table.gather`.
        results: Results from which it was gathered.
    """
    table = table.assign(claimed=False, has_findings=False, is_quick=False)
    is_curve = (table["control"] == "none") & (table["metric"] == P)
    for label, own in by_label(results).items():
        for result in flatten(own):
            if not isinstance(result, SweepResult):
                continue
            inside = _keys(table).isin(_keys(result.curves(all_columns=True).assign(part=label)))
            table.loc[inside, "has_findings"] = True
            table.loc[inside, "is_quick"] = result.is_quick
            for (anchor, pathway), rows in table[inside & is_curve].groupby(["anchor", "pathway"]):
                if pathway in ("", PATHWAYS[0], "All"):
                    layers = find_claimed_layers(result.findings, str(anchor))
                    table.loc[rows.index, "claimed"] = rows["layer"].isin(layers)
    return table


def _keys(curves: pd.DataFrame) -> pd.MultiIndex:
    """Return the run of each row of a table of curves."""
    columns = curves.reindex(columns=_RUN).astype(object)
    return pd.MultiIndex.from_frame(columns.where(columns.notna(), "").map(str))


def find_claimed_layers(findings: Findings, anchor: str) -> set[int]:
    """Return the layers at which an effect of an anchor is claimed beyond every control that the
    findings name.
    """
    statements = _of_anchor(findings.statements, anchor)
    claims = _of_anchor(findings.claims, anchor)
    found: set[int] | None = None
    for control in {one.control for one in statements} - {"none"}:
        layers: set[int] = set()
        for one in claims:
            if one.control == control:
                layers.update(one.layers)
        found = layers if found is None else found & layers
    return found or set()


def _of_anchor(statements: Iterable[Finding], anchor: str) -> list[Finding]:
    """Return the statements about an anchor; those without an anchor are about the only one."""
    return [one for one in statements if one.anchor in ("", anchor)]
