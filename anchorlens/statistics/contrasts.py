"""Contrasts without selection: the cut of E_Q against its placebo, paired by row (METHOD 5, "What is claimed").

No group is chosen by the outcome, so these are unbiased, and they see what a gap between pathways cannot: how *many* rows flip.

- ``delta_p_vs_placebo``: mean ΔP under the cut less that under the placebo.
- ``flip_rate``: share of rows whose prediction flips, likewise, in points.
- ``auc_drop``: the probe's AUC under the cut less that under the placebo.
- ``row_specific_effect``: ΔP of a row under its own change of state, less ΔP of the same clean state under the changes of other questions.
  Noise that knows nothing of the row gives 0, whatever its size; what erases the row's own signal lies below 0.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anchorlens.statistics.delta import delta_p, is_flipped
from anchorlens.statistics.resamples import Resamples

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
PERMUTATIONS = 20
FIFTHS = 5


@dataclass(frozen=True)
class Estimate:
    """A quantity [layer], its draws [resample layer] and the number of questions n [layer]."""

    value: Array
    draws: Array
    n: Counts


@dataclass(frozen=True)
class Arm:
    """P before and after one cut, [layer row]; NaN after it where a row was not measured."""

    before: Array
    after: Array


def delta_p_vs_placebo(own: Arm, other: Arm, event: Array, kind: str, draws: Resamples) -> Estimate:
    """Return the mean ΔP less that of the placebo, over rows that have both; ``event``: 1 where P's event is the case, [row]."""
    return mean_of(delta_p(own.before, own.after, event, kind) - delta_p(other.before, other.after, event, kind), draws)


def flip_rate(own: Arm, other: Arm, draws: Resamples) -> Estimate:
    """Share of rows that flip less that under the placebo, in points, over the rows that have both."""
    return mean_of(flips(own) - flips(other), draws)


def flips(arm: Arm) -> Array:
    """100 where the prediction flips, else 0; NaN where a row was not measured, [layer row]."""
    return np.where(np.isnan(arm.after), np.nan, 100.0 * is_flipped(arm.before, arm.after))


def mean_of(values: Array, draws: Resamples) -> Estimate:
    """Mean over rows at each layer; NaN is no row."""
    return Estimate(*draws.means(values.T, ~np.isnan(values).T))


def auc_of(p: Array, event: Array, draws: Resamples) -> Estimate:
    """AUC at each layer over the rows that have a P there."""
    found: list[tuple[float, Array]] = []
    nothing = np.full(len(draws.weights), np.nan)
    for scores in p:
        there = ~np.isnan(scores)
        some = Resamples(draws.cluster[there], draws.weights)
        found.append(some.aucs(scores[there], event[there]) if there.any() else (np.nan, nothing))
    n = np.array([len(np.unique(draws.cluster[~np.isnan(scores)])) for scores in p], dtype=np.int64)
    return Estimate(np.array([auc for auc, _ in found]), np.stack([many for _, many in found], axis=1), n)


def auc_difference(p: Array, other: Array, event: Array, draws: Resamples) -> Estimate:
    """AUC of one P less that of another over the same rows, paired by question; ``auc_drop`` where both are P after a cut."""
    both = ~np.isnan(p) & ~np.isnan(other)
    a, b = (auc_of(np.where(both, one, np.nan), event, draws) for one in (p, other))
    return Estimate(a.value - b.value, a.draws - b.draws, a.n)


def row_specific_effect(arm: Arm, event: Array, kind: str, draws: Resamples, seed: int) -> Estimate:
    """Return ΔP of a row's own change less that of changes of other questions with similar clean confidence.

    The probe is linear: the log-odds of the state h_i + Δh_j are those of h_i plus the change of row j. So no pass is needed. Rows
    are put in fifths of clean confidence; inside each, changes are permuted 20 times, and one of the same question does not count.
    """
    before, after = _log_odds(arm.before), _log_odds(arm.after)
    own = delta_p(arm.before, arm.after, event, kind)
    specific = np.full(own.shape, np.nan)
    for layer in range(len(own)):
        there = np.flatnonzero(~np.isnan(arm.after[layer]))
        rng = np.random.default_rng([seed, layer, *b"own change"])
        clean, change = before[layer, there], (after - before)[layer, there]
        total, count = np.zeros(len(there)), np.zeros(len(there))
        base, donors = _within_fifths(np.abs(clean), rng)
        other = draws.cluster[there][base] != draws.cluster[there][donors]
        p, label = _p(clean), event[there]
        moved = delta_p(p[base], _p(clean[base] + change[donors]), label[base], kind)
        np.add.at(total, base[other], moved[other])
        np.add.at(count, base[other], 1)
        paired = count > 0
        specific[layer, there[paired]] = own[layer, there[paired]] - total[paired] / count[paired]
    return mean_of(specific, draws)


def _within_fifths(size: Array, rng: np.random.Generator) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows and, for each, a row of the same fifth of ``size``, for every permutation one after the other."""
    fifth = np.empty(len(size), dtype=np.intp)
    for name, members in enumerate(np.array_split(np.argsort(size, kind="stable"), FIFTHS)):
        fifth[members] = name
    base = np.argsort(fifth, kind="stable")
    shuffled = [np.lexsort((rng.random(len(size)), fifth)) for _ in range(PERMUTATIONS)]
    return np.tile(base, PERMUTATIONS), np.concatenate(shuffled) if len(size) else base


def _log_odds(p: Array) -> Array:
    inside = np.clip(p, 1e-9, 1 - 1e-9)
    return np.log(inside / (1 - inside))


def _p(log_odds: Array) -> Array:
    return 1 / (1 + np.exp(-log_odds))
