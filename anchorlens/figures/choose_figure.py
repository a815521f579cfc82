"""Choose the figure of results: grids for patch sweeps, a matrix for edges, curves or a heatmap of
roles for others.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import plotly.graph_objects as go

from anchorlens.constants import ALL_PLACES
from anchorlens.errors import InputError
from anchorlens.figures.circuit_graph import MOST_EDGES, plot_circuit
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.diagnostics import plot_role_heatmap
from anchorlens.figures.edge_heatmap import plot_edges
from anchorlens.figures.grid_heatmap import plot_grids
from anchorlens.figures.table import Results
from anchorlens.loading.load_run import results_of
from anchorlens.protocols.edges.edge_result import EdgeResult
from anchorlens.protocols.patch.patch_result import PatchResult
from anchorlens.results.sweep import SweepResult

# Width of a circuit in a report: whole in a window of 700 pixels.
_CIRCUIT_WIDTH = 660


def main_figure(results: Sequence[SweepResult], *, with_controls: bool = False) -> go.Figure:
    """Plot several results: the figure of a run directory, and with controls and differences from
    them that of a report.

    Raises:
        InputError: If they cannot share a figure.
    """
    if are_grids(results):
        return plot_grids(results)
    if len(results) == 1 and isinstance(results[0], EdgeResult):
        return plot_edges(results[0])
    if any(isinstance(one, PatchResult) for one in results):
        raise InputError(
            "results: curves, heatmaps of patch sweeps and those of edges cannot share a figure."
            " Draw each edge sweep alone, and patch sweeps with plot_heatmap.",
            argument="results",
        )
    return plot_curves(results, controls=with_controls, contrasts=with_controls)


class ReportFigure(NamedTuple):
    """Figure of a report, and the results that it shows."""

    figure: go.Figure
    results: list[SweepResult]
    kind: str = "effect"
    text: str = ""
    """Sentence above the figure; empty if the section's own is enough."""


def report_figures(results: Sequence[SweepResult]) -> list[ReportFigure]:
    """Return the figures of a report with the results that each shows; every result is in one.

    Curves share a figure where they can, and so do the heatmaps of patch sweeps; else each result
    has its own. Behind the heatmap of an edge sweep over all positions is its circuit.
    """
    curves: list[SweepResult] = []
    grids: list[SweepResult] = []
    edges: list[SweepResult] = []
    for one in results:
        if isinstance(one, EdgeResult):
            edges.append(one)
        else:
            (grids if isinstance(one, PatchResult) else curves).append(one)
    found: list[ReportFigure] = []
    for group in filter(None, (curves, grids, *([one] for one in edges))):
        try:
            found.append(ReportFigure(main_figure(group, with_controls=True), group))
        except InputError:
            alone = (ReportFigure(main_figure([one], with_controls=True), [one]) for one in group)
            found.extend(alone)
        if isinstance(group[0], EdgeResult) and group[0].places == (ALL_PLACES,):
            found.append(_circuit_figure(group[0]))
    return found


def _circuit_figure(result: EdgeResult) -> ReportFigure:
    """Return the drawing of the edges with the largest effects, with their bands."""
    table = result.table(control=False)
    circuit = result.circuit(min(MOST_EDGES, len(table)))
    n = len(circuit.edges)
    plural = "s" * (n > 1)
    text = (
        f"The {n} measured edge{plural} with the largest mean effect{plural}, lower layers at the"
        " bottom: an arrow is what one part adds to the residual stream and another part reads,"
        " and its opacity is the share of resamples that select it."
    )
    figure = plot_circuit(circuit, bands=table, width=_CIRCUIT_WIDTH)
    return ReportFigure(figure, [result], "circuit", text)


def are_grids(results: Sequence[Any]) -> TypeGuard[Sequence[PatchResult]]:
    """Return whether there are results and all are patch sweeps, whose figure is a heatmap."""
    if not results:
        return False
    for one in results:
        is_grid = isinstance(one, PatchResult) and not isinstance(one, EdgeResult)
        if not is_grid:
            return False
    return True


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
    """Plot a heatmap: of patch sweeps the grid of layer by position, segment or head; of an edge
    sweep senders by receivers; of others layer by role.

    Examples:
        >>> import anchorlens as al
        >>> figure = al.plot_heatmap("runs/patch", quantity="recovered_share")  # doctest: +SKIP
        >>> figure.show()  # doctest: +SKIP

    Args:
        results: Result, path of a run directory, or several of these. Patch sweeps stand side by
            side, for example of three sites.
        metric: Of other sweeps: metric to draw; see
            :func:`~anchorlens.figures.diagnostics.plot_role_heatmap`.
        pair: Of patch sweeps: id, index or words of a pair, or ``mean``. If None, the mean, with a
            slider over the pairs.
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
    loaded = results_of(results)
    listed = loaded if isinstance(loaded, Sequence) else [loaded]
    if are_grids(listed):
        return plot_grids(
            listed,
            pair=pair,
            quantity=quantity,
            control=control,
            title=title,
            theme=theme,
            width=width,
        )
    if len(listed) == 1 and isinstance(listed[0], EdgeResult):
        return plot_edges(
            listed[0],
            pair="mean" if pair is None else pair,
            quantity=quantity,
            control=control,
            title=title,
            theme=theme,
            width=width,
        )
    if any(isinstance(one, PatchResult) for one in listed):
        raise InputError(
            "results: patch sweeps and other sweeps have different heatmaps. Draw each kind alone.",
            argument="results",
        )
    return plot_role_heatmap(loaded, metric=metric, title=title, theme=theme, width=width)
