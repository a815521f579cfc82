"""Heatmap of a grid of activation patches: layer by position, segment or head, one panel per sweep,
with a slider over the pairs.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anchorlens.display import minus
from anchorlens.errors import InputError
from anchorlens.figures.grid_panel import DIFFERENT, Panel, make_panels
from anchorlens.figures.labels import control_labels
from anchorlens.figures.layout import INK, SLIDER, heatmap_layout, heatmap_title
from anchorlens.figures.notebook_figure import NotebookFigure
from anchorlens.figures.palette import in_theme
from anchorlens.protocols.patch.patch_result import ESTIMATE, MEAN, PatchGrid, PatchResult
from anchorlens.results.quick_look import QUICK_NOTE
from anchorlens.results.vocabulary import metric_name, row_words, unit_words

# Pairs of the slider besides the mean; a page of more would be slow.
_MOST_PAIRS = 100
_TOP = 92
_PANEL_TITLE = 22
_BOTTOM = 140
# Between panels, as a share of the width: room for the labels of the y axis, of layers, and of
# layers and heads.
_GAP = 0.09
_WIDE_GAP = 0.13
# More room for the colour bar of each panel.
_BAR_GAP = 0.07
# A panel whose largest value is below this share of another's would be almost white on one scale.
_LEAST_OF_SCALE = 0.25
_DIRECTIONS = {"denoising": ("clean", "corrupted"), "noising": ("corrupted", "clean")}
_QUANTITIES = {
    "effect": "Change of {}",
    "value_after": "{}",
    "recovered_share": "Recovered share of {}",
}


def plot_grids(
    results: Sequence[PatchResult],
    *,
    pair: "str | int | None" = None,
    quantity: str = "effect",
    control: str = "none",
    title: str | None = None,
    theme: str = "light",
    width: int | None = None,
) -> go.Figure:
    """Plot grids of activation patches as heatmaps side by side, with a diverging colour scale
    centred at 0.

    Panels share the scale, unless one would be almost white on it, such as single heads beside a
    residual stream; then each panel has its own. A row is the same layer in all panels; cells
    that a sweep did not measure are grey. Cells whose mean effect stands are outlined. A slider
    shows the mean over pairs and each pair.

    Args:
        results: Patch sweeps of the same pairs and metric, for example of three sites.
        pair: Id, index or words of a pair, or ``mean``: draws this grid without a slider. If None,
            the mean and a slider over the pairs; the first pair where there is no mean.
        quantity: ``effect``, ``value_after`` or ``recovered_share``.
        control: ``none``, ``other_pair`` or ``norm_matched``.
        title: Title; metric and site if None.
        theme: ``light`` or ``dark``.
        width: Width in pixels; that of the page if None.

    Raises:
        InputError: If there is no result, no such pair, quantity or control, or the sweeps have
            different pairs or metrics.
    """
    _check(results)
    names = _names_of_slider(results, pair)
    by_name: dict[str | int, list[Panel]] = {}
    for name in names:
        grids = [one.grid(name, quantity, control) for one in results]
        by_name[name] = make_panels(results, grids)
    shown = by_name[names[0]]
    is_alone = len(shown) == 1
    has_own_scales = _need_own_scales(shown)
    figure = make_subplots(
        figure=NotebookFigure(),
        cols=len(shown),
        subplot_titles=None if is_alone else _panel_titles(results),
        horizontal_spacing=_gap(shown, has_own_scales=has_own_scales),
    )
    for column, panel in enumerate(shown, start=1):
        for trace in panel.traces(_colour_axis(column if has_own_scales else 1)):
            figure.add_trace(trace, row=1, col=column)
        figure.update_xaxes(panel.x_axis(is_alone=is_alone), row=1, col=column)
        figure.update_yaxes(panel.y_axis(), row=1, col=column)
    heading = title or _heading(results, shown[0].grid, control)
    has_slider = len(names) > 1
    top = _TOP + (0 if is_alone else _PANEL_TITLE)
    bottom = _BOTTOM + SLIDER * has_slider
    figure.update_layout(
        heatmap_layout(
            title=_title(heading, shown, has_own_scales=has_own_scales),
            caption=_caption(shown, quantity, control, has_own_scales=has_own_scales),
            n_rows=max(len(panel.rows) for panel in shown),
            top=top,
            bottom=bottom,
            left=60,
            width=width,
        )
    )
    figure.update_layout(_colour_axes(shown, quantity, has_own_scales=has_own_scales))
    if has_own_scales:
        for column in range(1, len(shown) + 1):
            end = next(figure.select_xaxes(row=1, col=column)).domain[1]
            bar = {"x": end, "xanchor": "left", "xpad": 4}
            figure.update_layout({_colour_axis(column): {"colorbar": bar}})
    if has_slider:
        steps: list[dict[str, Any]] = []
        for name, panels in by_name.items():
            scales = _colour_axes(panels, quantity, has_own_scales=has_own_scales)
            above = _title(heading, panels, has_own_scales=has_own_scales)
            steps.append(_step(str(name), panels, scales, above))
        figure.update_layout(sliders=[_slider(steps, bottom)])
    return in_theme(figure, theme)


def _gap(panels: Sequence[Panel], *, has_own_scales: bool) -> float:
    """Return the space between panels, as a share of the width."""
    if len(panels) == 1:
        return 0.0
    has_heads = any(panel.by == "head_position" for panel in panels[1:])
    gap = (_WIDE_GAP if has_heads else _GAP) + _BAR_GAP * has_own_scales
    return min(gap, 0.5 / (len(panels) - 1))


def _check(results: Sequence[PatchResult]) -> None:
    """Raise if the sweeps cannot share a colour scale and a slider."""
    if not results:
        raise InputError("results: empty. Give a patch sweep, or several.", argument="results")
    if len({one.example_ids for one in results}) > 1:
        raise InputError(
            "results: the sweeps have different pairs. Draw each alone.", argument="results"
        )
    metrics = list(dict.fromkeys(str(one.record["config"]["metric"]) for one in results))
    if len(metrics) > 1:
        raise InputError(
            f"results: the sweeps have different metrics ({', '.join(metrics)}), which cannot share"
            " a colour scale. Draw each alone.",
            argument="results",
        )


def _names_of_slider(results: Sequence[PatchResult], pair: "str | int | None") -> "list[str | int]":
    """Return the pairs to draw, ``mean`` first."""
    if pair is not None:
        return [pair]
    ids = results[0].example_ids
    has_mean = not any(one.no_mean for one in results)
    if has_mean and len(ids) > 1:
        return [MEAN, *ids[:_MOST_PAIRS]]
    return list(ids[:_MOST_PAIRS])


def _slider(steps: Sequence[dict[str, Any]], bottom: int) -> dict[str, Any]:
    """Return the slider below the tick labels, with the name of the selected pair above it."""
    return {
        "steps": steps,
        "active": 0,
        "pad": {"t": bottom - SLIDER - 18},
        "currentvalue": {"prefix": "Pair: ", "font": {"size": 12, "color": INK}},
        "ticklen": 2,
        "font": {"size": 10, "color": INK},
    }


def _largest(panels: Sequence[Panel]) -> float:
    """Return the largest absolute value of some panels; 0 without a value."""
    largest = 0.0
    for panel in panels:
        values = np.abs(panel.grid.values)
        if np.isfinite(values).any():
            largest = max(largest, float(np.nanmax(values)))
    return largest


def _need_own_scales(panels: Sequence[Panel]) -> bool:
    """Return whether a panel would be almost white on the scale of another."""
    sizes = [_largest([panel]) for panel in panels]
    return 0 < min(sizes) < _LEAST_OF_SCALE * max(sizes)


def _colour_axis(number: int) -> str:
    return f"coloraxis{number if number > 1 else ''}"


def _colour_axes(
    panels: Sequence[Panel], quantity: str, *, has_own_scales: bool
) -> dict[str, dict[str, Any]]:
    """Return the colour axes: one for all panels, or one for each."""
    unit = unit_words(panels[0].grid.unit) or ("share" if quantity == "recovered_share" else "")
    axes: dict[str, dict[str, Any]] = {}
    groups = [[panel] for panel in panels] if has_own_scales else [list(panels)]
    for number, group in enumerate(groups, start=1):
        largest = _largest(group) or 1.0
        axes[_colour_axis(number)] = {
            "colorscale": "RdBu",
            "cmin": -largest,
            "cmax": largest,
            "cmid": 0,
            "colorbar": {"title": {"text": escape(unit, quote=False)}, "thickness": 14},
        }
    return axes


def _panel_titles(results: Sequence[PatchResult]) -> list[str]:
    """Return the site of each sweep, and the settings that differ between the sweeps."""
    settings: list[tuple[str, ...]] = []
    for one in results:
        arrow = " into ".join(_DIRECTIONS[str(one.record["config"]["direction"])])
        settings.append((one.model, one.dataset, arrow))
    differs = [len(set(values)) > 1 for values in zip(*settings, strict=True)]
    titles: list[str] = []
    for one, values in zip(results, settings, strict=True):
        parts = [str(one.record["config"]["site"])]
        if one.is_estimate:
            parts.append(ESTIMATE)
        parts += [value for value, is_named in zip(values, differs, strict=True) if is_named]
        titles.append(escape(", ".join(parts), quote=False))
    return titles


def _heading(results: Sequence[PatchResult], grid: PatchGrid, control: str) -> str:
    """Return quantity and unit, and direction and site if there is one."""
    config = results[0].record["config"]
    what = _QUANTITIES[grid.quantity].format(metric_name(str(config["metric"])))
    unit = unit_words(grid.unit)
    parts = [f"{what} ({unit})" if unit else what]
    if control != "none":
        parts.append(f"control {control}")
    if len({str(one.record["config"]["direction"]) for one in results}) == 1:
        parts.append(" into ".join(_DIRECTIONS[str(config["direction"])]))
    if len(results) == 1:
        parts.append(str(config["site"]))
    if all(one.is_estimate for one in results):
        parts.append(ESTIMATE)
    return ", ".join(parts)


def _groups(grid: PatchGrid) -> str:
    return row_words("patch").count(grid.n)


def _title(heading: str, panels: Sequence[Panel], *, has_own_scales: bool) -> str:
    """Return the heading, a line that names model, data set and pairs, and a line on marks."""
    grid = panels[0].grid
    models = dict.fromkeys(panel.result.model for panel in panels)
    sets = dict.fromkeys(panel.result.dataset for panel in panels)
    about = f"{' and '.join(models)} on {' and '.join(sets)}"
    about += f"; mean over {_groups(grid)}" if grid.pair == MEAN else f"; pair {grid.pair}"
    if any(panel.result.is_quick for panel in panels):
        about += f"; {QUICK_NOTE}"
    marks: list[str] = []
    if any(panel.grid.stands.any() for panel in panels):
        marks.append("outlined: cells that stand")
    if any(panel.has_differing_tokens() for panel in panels):
        marks.append(f"{DIFFERENT} (k): position k, whose token differs between pairs")
    if any(_has_gaps(panel) for panel in panels):
        marks.append("grey: not measured")
    if has_own_scales:
        marks.append("colour scales differ")
    lines = [about, "; ".join(marks), *dict.fromkeys(panel.grid.note for panel in panels)]
    return heatmap_title(heading, lines)


def _has_gaps(panel: Panel) -> bool:
    return bool(np.isnan(panel.table(panel.grid.values)).any())


def _caption(panels: Sequence[Panel], quantity: str, control: str, *, has_own_scales: bool) -> str:
    """Return what was patched and measured, and the meaning of colours and outlines."""
    grid = panels[0].grid
    unit = unit_words(grid.unit)
    metric = metric_name(panels[0].result.metric)
    what = {
        "effect": f"{metric} after the patch minus before",
        "value_after": f"{metric} after the patch",
        "recovered_share": (
            f"share of the difference of {metric} between corrupted (0) and clean (1) run"
        ),
    }[quantity]
    shown = f"Mean over {_groups(grid)}" if grid.pair == MEAN else f"Pair {grid.pair}"
    parts = list(dict.fromkeys(_describe_patch(panel) for panel in panels))
    if control != "none":
        parts.append(f"Control {control}: {control_labels(control).explanation}.")
    whose = "Each panel has its own colour scale," if has_own_scales else "The colour scale is"
    parts.append(f"{shown}: {what}{f' ({unit})' if unit else ''}. {whose} centred at 0.")
    if any(panel.grid.stands.any() for panel in panels):
        parts.append(
            "Outlined cells stand: their simultaneous band over the grid excludes 0, also less each"
            " control."
        )
    if any(panel.has_differing_tokens() for panel in panels):
        parts.append(
            f"{DIFFERENT} (k): position k, whose token differs between the pairs of the mean."
        )
    if any(_has_gaps(panel) for panel in panels):
        parts.append("Grey: not measured.")
    notes = dict.fromkeys(panel.grid.note for panel in panels if panel.grid.note)
    return minus(" ".join([*parts, *notes]))


def _describe_patch(panel: Panel) -> str:
    result = panel.result
    config = result.record["config"]
    source, target = _DIRECTIONS[str(config["direction"])]
    places = panel.by.replace("head_position", "head and position")
    if result.is_estimate:
        return (
            f"{result.model} on {result.dataset}: {ESTIMATE} of patching activations of"
            f" {config['site']} of the {source} prompt into the {target} prompt, at one layer and"
            f" {places} at a time: change times gradient, no patch was run."
        )
    return (
        f"{result.model} on {result.dataset}: activations of {config['site']} of the {source}"
        f" prompt are patched into the {target} prompt, at one layer and {places} at a time."
    )


def _step(
    name: str, panels: Sequence[Panel], scales: Mapping[str, Mapping[str, Any]], title: str
) -> dict[str, Any]:
    """Return the step of the slider that shows a pair: values, hover texts, outlines, ticks, title
    and colour scales.
    """
    data: dict[str, list[Any]] = {"z": [], "text": [], "x": [], "y": []}
    for panel in panels:
        cells, outline = panel.traces()
        data["z"] += [_plain(cells.z), None]
        data["text"] += [cells.text, None]
        data["x"] += [list(cells.x or ()), list(outline.x or ())]
        data["y"] += [list(cells.y or ()), list(outline.y or ())]
    layout: dict[str, Any] = {"title.text": title}
    for axis, scale in scales.items():
        for end in ("cmin", "cmax"):
            layout[f"{axis}.{end}"] = scale[end]
    for number, panel in enumerate(panels, start=1):
        ticks = panel.x_axis(is_alone=len(panels) == 1)
        axis = f"xaxis{number if number > 1 else ''}"
        for key in ("tickvals", "ticktext", "tickangle"):
            layout[f"{axis}.{key}"] = ticks[key]
    return {"label": name, "method": "update", "args": [data, layout]}


def _plain(values: Any) -> list[list[float | None]]:
    found = np.asarray(values, dtype=float)
    plain = found.astype(object)
    plain[np.isnan(found)] = None
    return plain.tolist()
