"""Contrasts without selection: a knockout of E_Q against its placebo, paired by row (METHOD 5,
"What is claimed").

No rows are selected by the outcome, so contrasts are unbiased. Unlike a gap between pathways they
measure how *many* rows flip.

- ``delta_p_vs_placebo``: mean ΔP of the knockout minus that of the placebo, in percentage points.
- ``flip_rate``: share of rows whose prediction flips, minus that of the placebo, in percentage
  points.
- ``auc_drop``: the probe's AUC after the knockout minus that after the placebo.
- ``row_specific_effect``: ΔP of a row's own change of state, minus ΔP of its clean state under the
  changes of other questions. 0 for changes that do not depend on the row; a change that removes the
  row's own signal gives a negative value. A description: any cut that attenuates what the probe
  reads has a negative value, the placebo too.
- ``row_specific_vs_placebo``: ``row_specific_effect`` of the knockout minus that of the placebo,
  paired by row.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anchorlens.statistics.delta import delta_p, is_flipped
from anchorlens.statistics.resamples import Estimate, Resamples

Array = npt.NDArray[np.float64]
PERMUTATIONS = 20
FIFTHS = 5


@dataclass(frozen=True)
class Arm:
    """P before and after one knockout, [layer row]; ``after`` is NaN where a row was not
    measured.
    """

    before: Array
    after: Array


def delta_p_vs_placebo(
    knockout: Arm, placebo: Arm, event: Array, kind: str, draws: Resamples
) -> Estimate:
    """Compute the mean ΔP minus that of the placebo, over rows that have both.

    ``event`` is 1 where the event of P occurs, [row].
    """
    values, control = (delta_p(arm.before, arm.after, event, kind) for arm in (knockout, placebo))
    return mean_of(values - control, draws)


def flip_rate(knockout: Arm, placebo: Arm, draws: Resamples, floor: float = 0.0) -> Estimate:
    """Compute the flip rate minus that of the placebo over rows that have both, in percentage
    points.
    """
    return mean_of(flips(knockout, floor) - flips(placebo, floor), draws)


def flips(arm: Arm, floor: float = 0.0) -> Array:
    """Return 100 where the prediction flips by more than ``floor`` points, else 0, [layer row]; NaN
    where a row was not measured.
    """
    flipped = is_flipped(arm.before, arm.after) & (100 * np.abs(arm.after - arm.before) > floor)
    return np.where(np.isnan(arm.after), np.nan, 100.0 * flipped)


def mean_of(values: Array, draws: Resamples) -> Estimate:
    """Compute the mean of values [layer row] over the rows at each layer; NaN rows are left out."""
    return draws.means(values.T, ~np.isnan(values).T)


def row_specific_changes(
    arm: Arm, event: Array, kind: str, cluster: npt.NDArray[np.intp], seed: int
) -> Array:
    """Compute ΔP of each row's own change minus ΔP of the changes of other questions with similar
    clean confidence.

    The probe is linear, so the log-odds of state h_i + Δh_j are those of h_i plus the change of row
    j, without another forward pass. Changes are permuted 20 times within fifths of clean
    confidence; pairs of rows of one question are left out.

    Args:
        arm: P before and after a knockout.
        event: 1 where the event of P occurs, [row].
        kind: Kind of ΔP.
        cluster: Index of each row's question, [row].
        seed: Random seed of the permutations; arms with the same rows get the same permutations.

    Returns:
        Row-specific ΔP, [layer row]; NaN where a row was not measured or has no partner.
    """
    before = _log_odds(arm.before)
    after = _log_odds(arm.after)
    own = delta_p(arm.before, arm.after, event, kind)
    specific = np.full(own.shape, np.nan)
    for layer in range(len(own)):
        present = np.flatnonzero(~np.isnan(arm.after[layer]))
        rng = np.random.default_rng([seed, layer, *b"own change"])
        clean = before[layer, present]
        change = (after - before)[layer, present]
        total = np.zeros(len(present))
        count = np.zeros(len(present))
        base, donors = _within_fifths(np.abs(clean), rng)
        other = cluster[present][base] != cluster[present][donors]
        p = _p(clean)
        label = event[present]
        moved = delta_p(p[base], _p(clean[base] + change[donors]), label[base], kind)
        np.add.at(total, base[other], moved[other])
        np.add.at(count, base[other], 1)
        paired = count > 0
        specific[layer, present[paired]] = (
            own[layer, present[paired]] - total[paired] / count[paired]
        )
    return specific


def _within_fifths(
    size: Array, rng: np.random.Generator
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return (rows, partners): permute rows ``PERMUTATIONS`` times within fifths of ``size``, and
    concatenate the permutations.
    """
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
