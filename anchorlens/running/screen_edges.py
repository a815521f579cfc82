"""Screen edges by attribution, measure the best exactly, and audit the rest."""

import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anchorlens.errors import InputError
from anchorlens.measure.budget import SweepPlan
from anchorlens.models.adapter import LensModel
from anchorlens.models.load import adapt, as_lens_model
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.pairs import PairData
from anchorlens.protocols.edges.edge_anchors import split_anchor
from anchorlens.protocols.edges.edge_inputs import choose_edges
from anchorlens.protocols.edges.edge_result import EdgeResult
from anchorlens.protocols.edges.spec import Edges
from anchorlens.protocols.registry import measurement_of
from anchorlens.results.vocabulary import unit_words
from anchorlens.running.runner import LocalRunner
from anchorlens.running.sweeps import edge_sweep
from anchorlens.statistics.audits import Audit, audit_screen, most_with_property

# What a statement adds where an edge has several places.
_AT = {"all": "", "segment": " at some segment", "position": " at some position"}


@dataclass(frozen=True, kw_only=True)
class ScreenPlan:
    """Predicted cost of a screen.

    Attributes:
        n_edges: Number of edges that are scored.
        n_exact: Number of edges that are measured exactly.
        scores: Cost of the scores.
        exact: Cost of the exact effects, from as many random edges: the candidates are not known
            before the scores.
    """

    n_edges: int
    n_exact: int
    scores: SweepPlan
    exact: SweepPlan

    @property
    def flops(self) -> float:
        """Predicted multiplications and additions."""
        return self.scores.flops + self.exact.flops

    @property
    def seconds(self) -> float:
        """Predicted time."""
        return self.scores.seconds + self.exact.seconds

    def __str__(self) -> str:
        return (
            f"{self.n_exact:,} of {self.n_edges:,} edges are measured exactly; about"
            f" {self.flops / 1e9:,.0f} GFLOP, {self.seconds:,.{0 if self.seconds > 10 else 1}f} s."
            f"\nScores of all edges: {self.scores}\nExact effects: {self.exact}"
        )


@dataclass(frozen=True, kw_only=True)
class EdgeScreen:
    """Candidates of a screen with their exact effects, and what the screen missed at most.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> pairs = al.load_pairs("ioi-pairs", limit=10)
        >>> found = al.screen_edges(model, pairs, receivers="logits")  # doctest: +SKIP
        >>> found.missed_at_most  # doctest: +SKIP
        >>> found.table().query("is_candidate")  # doctest: +SKIP

    Attributes:
        exact: Exact effects of the candidates and of the audited edges.
        scores: Scores of all edges.
        candidates: Edges with the largest scores, of several places the largest.
        audits: Audits of the edges next to the candidates, and of all others.
        cut: Size of the mean effect, in the unit of the metric.
        confidence: Confidence of :attr:`missed_at_most`.
    """

    exact: EdgeResult
    scores: EdgeResult
    candidates: tuple[str, ...]
    audits: tuple[Audit, ...]
    cut: float
    confidence: float

    @property
    def found(self) -> int:
        """Number of candidates whose mean effect is at least :attr:`cut`, at some place if the
        positions are exchanged separately.
        """
        effects = largest_effects(self.exact)
        return sum(abs(effects[edge]) >= self.cut for edge in self.candidates)

    @property
    def missed_at_most(self) -> int:
        """Upper limit of the number of other edges whose mean effect over these pairs is at least
        :attr:`cut`.
        """
        return most_with_property(self.audits, self.confidence)

    def table(self) -> pd.DataFrame:
        """Return the exact effects with the scores: the columns of :meth:`EdgeResult.table`,
        ``score`` and ``is_candidate``.
        """
        scores = self.scores.table().set_index(["edge", "place"])["effect"].rename("score")
        table = self.exact.table().join(scores, on=["edge", "place"])
        return table.assign(is_candidate=table["edge"].isin(self.candidates))

    def __str__(self) -> str:
        audited = sum(audit.drawn for audit in self.audits)
        others = sum(audit.size for audit in self.audits)
        hits = sum(audit.found for audit in self.audits)
        return (
            f"{self.found} of {len(self.candidates)} candidates have a mean effect of"
            f" {self.cut:.3g} {unit_words(self.exact.unit)} or more"
            f"{_AT[self.exact.record['config']['by']]}. Of the {others:,} other edges"
            f" at most {self.missed_at_most:,} have one ({self.confidence:.0%} confidence;"
            f" {audited} were drawn and measured exactly, {hits} have one). This is about these"
            " pairs, not about others."
        )


def screen_edges(
    model: Any,
    pairs: "PairData | Any",
    *,
    top: int = 100,
    audit: int = 100,
    cut: float | None = None,
    confidence: float = 0.95,
    screen: str = "attribution",
    by: str = "all",
    senders: Any = "all",
    receivers: Any = "all",
    layers: Any = None,
    metric: Any = "auto",
    direction: str = "denoising",
    controls: Any = "auto",
    n_spot_checks: int | None = None,
    max_memory: Any = None,
    seed: int = 0,
    on_plan: Callable[[ScreenPlan], object] | None = None,
    progress: bool = True,
) -> EdgeScreen:
    """Score all edges, measure the best and a random sample of the others exactly, and state how
    many the screen missed at most.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> pairs = al.load_pairs("ioi-pairs", limit=10)
        >>> found = al.screen_edges(model, pairs, receivers="logits")  # doctest: +SKIP
        >>> print(found)  # doctest: +SKIP

    Args:
        model: Model, or an argument of :func:`anchorlens.load_model`.
        pairs: Pairs, or the first argument of :func:`anchorlens.load_pairs`.
        top: Number of candidates: the edges with the largest mean scores.
        audit: Number of other edges that are drawn: half of them from the edges with the next
            scores, four times as many as candidates, half from all others.
        cut: Size of a mean effect that must not be missed, in the unit of the metric. If None, the
            median size of the candidates' exact effects.
        confidence: Confidence of the statement.
        screen: Method of the scores: ``attribution``, ``attribution_ig`` or
            ``attribution_ig_activations``.
        by: Positions that are exchanged together, as in :func:`anchorlens.edge_sweep`. Of an edge
            at several segments or positions, the one with the largest mean effect counts.
        senders: Senders, as in :func:`anchorlens.edge_sweep`.
        receivers: Receivers.
        layers: Layers of the receivers. If None, all.
        metric: Metric: a name, whose gradient is known.
        direction: ``denoising`` or ``noising``.
        controls: Controls of the exact effects.
        n_spot_checks: Number of exact effects that are measured again by hooks. If None, as many as
            take 5 % of the work.
        max_memory: Memory limit beside the model.
        seed: Random seed of the audit and of the sweeps.
        on_plan: Function called with the :class:`ScreenPlan` before anything is measured; an
            exception stops the screen.
        progress: Whether to show progress bars.

    Raises:
        InputError: If a number is out of its range, or another argument is invalid.
    """
    for name, value in (("top", top), ("audit", audit)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name}={value!r}: must be a whole number >= 1.", argument=name)
    if cut is not None and not (isinstance(cut, (int, float)) and 0 <= cut < math.inf):
        raise InputError(
            f"cut={cut!r}: must be a finite size >= 0 in the unit of the metric, or None.",
            argument="cut",
        )
    if not (isinstance(confidence, (int, float)) and 0.5 <= confidence < 1):
        raise InputError(
            f"confidence={confidence!r}: must be from 0.5 to below 1.", argument="confidence"
        )
    data = pairs if isinstance(pairs, PairData) else load_pairs(pairs)
    lens_model = as_lens_model(model, progress=progress)
    shared: dict[str, Any] = {
        "by": by,
        "metric": metric,
        "direction": direction,
        "layers": layers,
        "max_memory": max_memory,
        "seed": seed,
        "progress": progress,
    }
    scored: dict[str, Any] = {
        "method": screen,
        "senders": senders,
        "receivers": receivers,
        "controls": "none",
        "n_spot_checks": 0,
    }
    if on_plan is not None:
        exact = Edges(controls=controls, n_spot_checks=n_spot_checks, **shared)
        plan = _plan_screen(lens_model, data, Edges(**scored, **shared), exact, n=top + audit)
        on_plan(plan)
    scores = edge_sweep(lens_model, data, **scored, **shared)
    measured: list[EdgeResult] = []

    def measure(edges: Sequence[str]) -> dict[str, float]:
        found = edge_sweep(
            lens_model,
            data,
            edges=tuple(edges),
            controls=controls,
            n_spot_checks=n_spot_checks,
            **shared,
        )
        measured.append(found)
        return largest_effects(found)

    screened = audit_screen(
        largest_effects(scores),
        measure,
        top=top,
        audit=audit,
        cut=None if cut is None else float(cut),
        confidence=confidence,
        seed=seed,
    )
    return EdgeScreen(
        exact=measured[0],
        scores=scores,
        candidates=screened.candidates,
        audits=screened.audits,
        cut=screened.cut,
        confidence=confidence,
    )


def largest_effects(result: EdgeResult) -> dict[str, float]:
    """Return the mean effect of each edge, without the bands of a table: of several places, that of
    the largest size.
    """
    samples = result.samples(all_columns=True)
    own = samples[samples["control"] == "none"]
    found: dict[str, float] = {}
    for anchor, mean in own.groupby("anchor", sort=False)["effect"].mean().items():
        edge, _ = split_anchor(str(anchor))
        found[edge] = max(found.get(edge, 0.0), float(mean), key=abs)
    return found


def _plan_screen(
    model: LensModel, data: PairData, scores: Edges, exact: Edges, *, n: int
) -> ScreenPlan:
    """Predict the cost of scores of all edges, and of the exact effects of ``n`` random edges."""
    adapter = adapt(model)
    names = [edge.name for edge in choose_edges(adapter, scores)]
    drawn = random.Random(f"{exact.seed}:plan").sample(names, min(n, len(names)))
    costs: list[SweepPlan] = []
    with warnings.catch_warnings():
        # The sweeps themselves warn of the same.
        warnings.simplefilter("ignore")
        for spec in (scores, exact.replace(edges=tuple(drawn))):
            runner = LocalRunner(measurement_of(Edges.NAME), model, data, spec)
            costs.append(runner.plan(runner.free).cost)
    return ScreenPlan(n_edges=len(names), n_exact=len(drawn), scores=costs[0], exact=costs[1])
