"""Contrasts without selection: a knockout of E_Q against its placebo, paired by row (METHOD 5, "What is claimed").

No rows are selected by the outcome, so contrasts are unbiased. Unlike a gap between pathways they measure how *many* rows flip.

- ``delta_p_vs_placebo``: mean ΔP of the knockout minus that of the placebo, in percentage points.
- ``flip_rate``: share of rows whose prediction flips, minus that of the placebo, in percentage points.
- ``auc_drop``: the probe's AUC after the knockout minus that after the placebo.
- ``row_specific_effect``: ΔP of a row under its own change of log-odds, minus its mean ΔP under the changes of rows of other
  questions. 0 if changes do not depend on the row; negative if the knockout removes the row's own signal.
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
    """Estimate [layer] with its bootstrap draws [resample layer] and number of questions n [layer]."""

    value: Array
    draws: Array
    n: Counts


@dataclass(frozen=True)
class Arm:
    """P before and after one knockout, [layer row]; ``after`` is NaN where a row was not measured."""

    before: Array
    after: Array


def delta_p_vs_placebo(knockout: Arm, placebo: Arm, event: Array, kind: str, draws: Resamples) -> Estimate:
    """Compute the mean ΔP minus that of the placebo over rows that have both; ``event``: 1 where the event of P occurs, [row]."""
    values, control = (delta_p(arm.before, arm.after, event, kind) for arm in (knockout, placebo))
    return mean_of(values - control, draws)


def flip_rate(knockout: Arm, placebo: Arm, draws: Resamples) -> Estimate:
    """Compute the flip rate minus that of the placebo over rows that have both, in percentage points."""
    return mean_of(flips(knockout) - flips(placebo), draws)


def flips(arm: Arm) -> Array:
    """Return 100 where the prediction flips, else 0, [layer row]; NaN where a row was not measured."""
    return np.where(np.isnan(arm.after), np.nan, 100.0 * is_flipped(arm.before, arm.after))


def mean_of(values: Array, draws: Resamples) -> Estimate:
    """Compute the mean of values [layer row] over the rows at each layer; NaN rows are left out."""
    return Estimate(*draws.means(values.T, ~np.isnan(values).T))


def auc_of(p: Array, event: Array, draws: Resamples) -> Estimate:
    """Compute the AUC of P [layer row] for ``event`` [row] at each layer; NaN rows are left out."""
    aucs: list[tuple[float, Array]] = []
    no_draws = np.full(len(draws.weights), np.nan)
    for scores in p:
        present = ~np.isnan(scores)
        resamples = Resamples(draws.cluster[present], draws.weights)
        aucs.append(resamples.aucs(scores[present], event[present]) if present.any() else (np.nan, no_draws))
    n = np.array([len(np.unique(draws.cluster[~np.isnan(scores)])) for scores in p], dtype=np.int64)
    return Estimate(np.array([auc for auc, _ in aucs]), np.stack([resampled for _, resampled in aucs], axis=1), n)


def auc_difference(p: Array, other: Array, event: Array, draws: Resamples) -> Estimate:
    """Compute the AUC of one P minus that of another over rows that have both, paired by question."""
    both = ~np.isnan(p) & ~np.isnan(other)
    a, b = (auc_of(np.where(both, scores, np.nan), event, draws) for scores in (p, other))
    return Estimate(a.value - b.value, a.draws - b.draws, a.n)


def row_specific_effect(arm: Arm, event: Array, kind: str, draws: Resamples, seed: int) -> Estimate:
    """Compute ΔP of each row under its own change of log-odds, minus its mean ΔP under the changes of other rows.

    The probe is linear, so the change of row j is added to the clean log-odds of row i without another forward pass. Row j is drawn
    20 times from the rows with similar clean confidence (the same fifth). Pairs of rows of one question are left out.
    """
    before, after = _log_odds(arm.before), _log_odds(arm.after)
    own = delta_p(arm.before, arm.after, event, kind)
    specific = np.full(own.shape, np.nan)
    for layer in range(len(own)):
        present = np.flatnonzero(~np.isnan(arm.after[layer]))
        rng = np.random.default_rng([seed, layer, *b"own change"])
        clean, change = before[layer, present], (after - before)[layer, present]
        total, count = np.zeros(len(present)), np.zeros(len(present))
        base, donors = _within_fifths(np.abs(clean), rng)
        other = draws.cluster[present][base] != draws.cluster[present][donors]
        p, label = _p(clean), event[present]
        moved = delta_p(p[base], _p(clean[base] + change[donors]), label[base], kind)
        np.add.at(total, base[other], moved[other])
        np.add.at(count, base[other], 1)
        paired = count > 0
        specific[layer, present[paired]] = own[layer, present[paired]] - total[paired] / count[paired]
    return mean_of(specific, draws)


def _within_fifths(size: Array, rng: np.random.Generator) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return (rows, partners): permute rows ``PERMUTATIONS`` times within fifths of ``size``, and concatenate the permutations."""
    fifth = np.empty(len(size), dtype=np.intp)
    for number, members in enumerate(np.array_split(np.argsort(size, kind="stable"), FIFTHS)):
        fifth[members] = number
    base = np.argsort(fifth, kind="stable")
    shuffled = [np.lexsort((rng.random(len(size)), fifth)) for _ in range(PERMUTATIONS)]
    return np.tile(base, PERMUTATIONS), np.concatenate(shuffled) if len(size) else base


def _log_odds(p: Array) -> Array:
    inside = np.clip(p, 1e-9, 1 - 1e-9)
    return np.log(inside / (1 - inside))


def _p(log_odds: Array) -> Array:
    return 1 / (1 + np.exp(-log_odds))
