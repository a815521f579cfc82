"""Screen edges by attribution, measure the best exactly, and audit the rest."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anchorlens.errors import InputError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.pairs import PairData
from anchorlens.protocols.edges.edge_result import EdgeResult
from anchorlens.results.vocabulary import unit_words
from anchorlens.running.sweeps import edge_sweep
from anchorlens.statistics.audits import Audit, most_with_property

# Edges next to the candidates, as a multiple of their number: half of the audit is drawn from them.
_NEAR = 4


@dataclass(frozen=True, kw_only=True)
class EdgeScreen:
    """Candidates of a screen with their exact effects, and what the screen missed at most.

    Attributes:
        exact: Exact effects of the candidates and of the audited edges.
        scores: Scores of all edges.
        candidates: Edges with the largest scores.
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
        """Number of candidates whose mean effect is at least :attr:`cut`."""
        table = self.table()
        return int((table["is_candidate"] & (table["effect"].abs() >= self.cut)).sum())

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
            f" {self.cut:.3g} {unit_words(self.exact.unit)} or more. Of the {others:,} other edges"
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
    senders: Any = "all",
    receivers: Any = "all",
    layers: Any = None,
    metric: Any = "auto",
    direction: str = "denoising",
    controls: Any = "auto",
    n_spot_checks: int | None = None,
    max_memory: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> EdgeScreen:
    """Score all edges, measure the best and a random sample of the others exactly, and state how
    many the screen missed at most.

    Examples:
        >>> found = al.screen_edges(model, pairs, top=50, audit=200)  # doctest: +SKIP
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
        screen: Method of the scores: ``attribution`` or ``attribution_ig``.
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
        progress: Whether to show progress bars.

    Raises:
        InputError: If a number is too small, or another argument is invalid.
    """
    for name, value in (("top", top), ("audit", audit)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name}={value!r}: must be a whole number >= 1.", argument=name)
    if not 0.5 <= confidence < 1:
        raise InputError(
            f"confidence={confidence!r}: must be from 0.5 to below 1.", argument="confidence"
        )
    data = pairs if isinstance(pairs, PairData) else load_pairs(pairs)
    shared: dict[str, Any] = {
        "metric": metric,
        "direction": direction,
        "layers": layers,
        "max_memory": max_memory,
        "seed": seed,
        "progress": progress,
    }
    scores = edge_sweep(
        model,
        data,
        method=screen,
        senders=senders,
        receivers=receivers,
        controls="none",
        n_spot_checks=0,
        **shared,
    )
    ranked = list(scores.table(control=False)["edge"])
    candidates, near, far = (
        ranked[:top],
        ranked[top : (1 + _NEAR) * top],
        ranked[(1 + _NEAR) * top :],
    )
    strata = [stratum for stratum in (near, far) if stratum]
    drawn = _draw(strata, audit, seed)
    measured = [*candidates, *(edge for own in drawn for edge in own)]
    exact = edge_sweep(
        model,
        data,
        edges=tuple(measured),
        controls=controls,
        n_spot_checks=n_spot_checks,
        **shared,
    )
    sizes = exact.table(control=False).set_index("edge")["effect"].abs()
    limit = float(sizes[candidates].median()) if cut is None else float(cut)
    audits: list[Audit] = []
    for stratum, own in zip(strata, drawn, strict=True):
        audits.append(Audit(len(stratum), len(own), int((sizes[own] >= limit).sum())))
    return EdgeScreen(
        exact=exact,
        scores=scores,
        candidates=tuple(candidates),
        audits=tuple(audits),
        cut=limit,
        confidence=confidence,
    )


def _draw(strata: Sequence[Sequence[str]], n: int, seed: int) -> list[list[str]]:
    """Draw edges of each stratum, as many of each where they have enough."""
    rng = random.Random(f"{seed}:audit")
    counts = [0] * len(strata)
    left = n
    for number in sorted(range(len(strata)), key=lambda i: len(strata[i])):
        share = left // (len(strata) - sum(count > 0 for count in counts))
        counts[number] = min(len(strata[number]), max(1, share))
        left -= counts[number]
    return [rng.sample(list(own), count) for own, count in zip(strata, counts, strict=True)]
