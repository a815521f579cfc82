"""The figures of :mod:`anchorlens.figures`, which also draw run directories that are given by path."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeAlias

import plotly.graph_objects as go

from anchorlens.figures import curves, diagnostics
from anchorlens.figures.grid_heatmap import GridResult, plot_grids
from anchorlens.figures.table import CurveResult, CurveResults
from anchorlens.running.loading import results_of

Options = ParamSpec("Options")
_Result: TypeAlias = CurveResult | str | os.PathLike[str]
Results: TypeAlias = _Result | Sequence[_Result] | Mapping[str, _Result | Sequence[_Result]]
"""Results, or paths of run directories in their place."""


def _of_runs(draw: Callable[Concatenate[CurveResults, Options], go.Figure]) -> Callable[Concatenate[Results, Options], go.Figure]:
    @wraps(draw)
    def drawn(results: Results, *args: Options.args, **kwargs: Options.kwargs) -> go.Figure:
        return draw(results_of(results), *args, **kwargs)

    return drawn


plot_curves = _of_runs(curves.plot_curves)


def is_grid(results: object) -> bool:
    """Return whether results, or all of several, are patch sweeps, whose figure is a heatmap."""
    listed = list(results) if isinstance(results, Sequence) else [results]
    return bool(listed) and all(isinstance(one, GridResult) for one in listed)


def plot_heatmap(
    results: Results,
    *,
    metric: str | None = None,
    pair: str | int | None = None,
    quantity: str = "effect",
    control: str = "none",
    title: str | None = None,
    theme: str = "light",
    width: int | None = None,
) -> go.Figure:
    """Plot a heatmap: of patch sweeps the grid of layer by position, segment or head; of others layer by role.

    Args:
        results: Result, path of a run directory, or several of these. Patch sweeps stand side by side, for example of three sites.
        metric: Of other sweeps: metric to draw; see :func:`~anchorlens.figures.diagnostics.plot_heatmap`.
        pair: Of patch sweeps: id, index or words of a pair, or ``mean``. If None, the mean, with a slider over the pairs.
        quantity: Of patch sweeps: ``effect``, ``value_after`` or ``recovered_share``.
        control: Of patch sweeps: ``none``, ``other_pair`` or ``norm_matched``.
        title: Title of the figure. If None, made from the results.
        theme: ``light`` or ``dark``.
        width: Width in pixels. If None, that of the page.

    Returns:
        Figure. Cells whose mean effect stands by the findings are outlined.

    Raises:
        InputError: If there is nothing to draw, or an argument is unknown.
    """
    own = results_of(results)
    if is_grid(own):
        listed = list(own) if isinstance(own, Sequence) else [own]
        return plot_grids(listed, pair=pair, quantity=quantity, control=control, title=title, theme=theme, width=width)
    return diagnostics.plot_heatmap(own, metric=metric, title=title, theme=theme, width=width)


plot_pathway_sizes = _of_runs(diagnostics.plot_pathway_sizes)
plot_probe_auc = _of_runs(diagnostics.plot_probe_auc)
