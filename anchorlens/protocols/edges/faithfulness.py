"""Score circuits: how much of the metric they keep, with intervals over clusters of pairs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.display import warn
from anchorlens.engine.edges.graph import Edge
from anchorlens.statistics.bands import Band, band
from anchorlens.statistics.resamples import Estimate

if TYPE_CHECKING:
    from anchorlens.protocols.edges.circuit_pairs import CircuitPairs

Array = npt.NDArray[np.float64]

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the edges at which circuits are scored, as in the MIB benchmark."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A number with its 95 % interval over clusters of pairs."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """Shares of the metric that circuits of several sizes keep.

    Attributes:
        frame: One row per size; see :meth:`table`.
        cpr: Area under the faithfulness over shares of edges; None if not every share from 0.1 to
            100 % was scored. The whole model has 1; above 1 a circuit overshoots.
        cmd: Area under its distance from 1; the whole model has 0. None as for ``cpr``.
        model: Name of the model.
        dataset: Name of the pairs.
        metric: Name of the metric.
        ablation: ``patching`` or ``mean``.
        n: Number of pairs.
        n_clusters: Number of clusters that were drawn.

    Examples:
        >>> import anchorlens as al
        >>> pairs = al.load_pairs("ioi-pairs", limit=10)
        >>> circuit = al.load_circuit("circuit.json")  # doctest: +SKIP
        >>> scores = circuit.faithfulness("smollm2-135m-instruct", pairs)  # doctest: +SKIP
        >>> print(scores)  # doctest: +SKIP
    """

    frame: pd.DataFrame
    cpr: Score | None
    cmd: Score | None
    model: str
    dataset: str
    metric: str
    ablation: str
    n: int
    n_clusters: int

    def table(self) -> pd.DataFrame:
        """Return one row per size.

        Returns:
            ``n_edges share faithfulness low high rest rest_low rest_high``. Faithfulness is
            (circuit - corrupted) / (clean - corrupted), of means over pairs; ``rest`` is that of
            all other edges without the circuit (completeness: near 0 if the circuit has everything
            that matters). Intervals are pointwise 95 % over clusters.
        """
        return self.frame.copy()

    def __str__(self) -> str:
        lines = [
            f"Faithfulness of {self.model} on {self.dataset}, metric {self.metric}, {self.ablation}"
            f" ablation: {self.n} pairs, {self.n_clusters} clusters drawn"
        ]
        if self.cpr is not None and self.cmd is not None:
            lines.append(f"CPR {self.cpr} (whole model 1), CMD {self.cmd} (whole model 0)")
        shown = self.frame.copy()
        shown["share"] = [f"{100 * share:.3g} %" for share in shown["share"]]
        lines.append(shown.to_string(index=False, float_format=lambda x: f"{x:.2f}"))
        return "\n".join(lines)


def score_circuits(
    pairs: "CircuitPairs",
    circuits: Sequence[Collection[Edge]],
    *,
    ablation: str,
    n_edges: int,
    with_rest: bool = True,
    n_resamples: int = 1000,
    seed: int = 0,
    show: bool = False,
) -> Faithfulness:
    """Score circuits of several sizes.

    Args:
        pairs: Opened pairs that the circuits run on.
        circuits: Edges of each circuit, in ascending order of sizes.
        ablation: Ablation of the pairs, for the text.
        n_edges: Number of edges of the graph.
        with_rest: Whether the edges outside each circuit are run too.
        n_resamples: Number of bootstrap resamples.
        seed: Random seed of the resamples.
        show: Whether to show a progress bar.
    """
    import torch

    masks = pairs.masks(circuits)
    everything = pairs.masks([pairs.every_edge])
    n = len(masks)
    if with_rest:
        masks = torch.cat([masks, everything & ~masks])
    values = pairs.values(masks, label="circuits: faithfulness", show=show)
    draws = pairs.resamples(n_resamples, seed)
    total = pairs.means(np.repeat((pairs.clean - pairs.ablated)[:, None], len(masks), 1), draws)
    _warn_of_small_difference(total, pairs)
    kept = pairs.means(values - pairs.ablated[:, None], draws).over(total)
    found = band(kept)
    sizes = np.array([len(set(edges)) for edges in circuits])
    frame = pd.DataFrame({"n_edges": sizes, "share": sizes / n_edges})
    frame[["faithfulness", "low", "high"]] = np.stack([found.value, found.low, found.high], 1)[:n]
    if with_rest:
        rest = np.stack([found.value, found.low, found.high], 1)[n:]
        frame[["rest", "rest_low", "rest_high"]] = rest
    own = kept.at(np.arange(n))
    areas = (None, None)
    if _has_all_shares(sizes / n_edges, n_edges):
        areas = _areas(own, sizes / n_edges)
    return Faithfulness(
        frame=frame,
        cpr=areas[0],
        cmd=areas[1],
        model=pairs.model,
        dataset=pairs.dataset,
        metric=pairs.metric,
        ablation=ablation,
        n=len(pairs.runs),
        n_clusters=len(np.unique(draws.cluster)),
    )


def _has_all_shares(shares: Array, n_edges: int) -> bool:
    """Return whether sizes go from the smallest share of the benchmark to the whole graph."""
    return bool(shares.min() * n_edges <= max(1, round(SHARES[0] * n_edges)) and shares.max() == 1)


def _areas(estimate: Estimate, shares: Array) -> tuple[Score, Score]:
    """Return the areas under the faithfulness and under its distance from 1."""
    steps = np.diff(shares)
    weights = np.zeros(len(shares))
    weights[:-1] += steps / 2
    weights[1:] += steps / 2
    both: list[Score] = []
    for change in (lambda f: f, lambda f: np.abs(1 - f)):
        area = replace(
            estimate,
            value=np.array([change(estimate.value) @ weights]),
            error=estimate.error[:1],
            draws=(change(estimate.draws) @ weights)[:, None],
            errors=estimate.errors[:, :1],
            n=estimate.n[:1],
            n_questions=estimate.n_questions[:1],
            far=estimate.far[:, :1],
            effects=estimate.effects[:, :1],
        )
        both.append(score_of(band(area)))
    return both[0], both[1]


def score_of(found: Band, at: int = 0) -> Score:
    """Return one point of a band."""
    return Score(value=float(found.value[at]), low=float(found.low[at]), high=float(found.high[at]))


def _warn_of_small_difference(total: Estimate, pairs: "CircuitPairs") -> None:
    """Warn if faithfulness divides by a difference that may be 0."""
    found = band(total.at(np.arange(1)))
    if np.isnan(found.low[0]):  # one pair alone has no band
        return
    if not (found.low[0] > 0 or found.high[0] < 0):
        warn(
            f"The metric {pairs.metric} of clean and corrupted prompts differs by"
            f" {found.value[0]:.3g} [{found.low[0]:.3g}, {found.high[0]:.3g}] on average:"
            " faithfulness, which divides by it, is not defined well. Use pairs that the model"
            " answers, or another metric."
        )
