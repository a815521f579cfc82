"""The figures of :mod:`anchorlens.figures`, which also draw run directories that are given by path."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeAlias

import plotly.graph_objects as go

from anchorlens.figures import curves, diagnostics
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
plot_heatmap = _of_runs(diagnostics.plot_heatmap)
plot_pathway_sizes = _of_runs(diagnostics.plot_pathway_sizes)
plot_probe_auc = _of_runs(diagnostics.plot_probe_auc)
