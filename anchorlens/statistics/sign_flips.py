"""Sign-flip tests: whether a curve and its control can be exchanged (METHOD 6).

If the two arms have the same distribution, the sign of each cluster's difference is arbitrary. The
test flips the signs of whole clusters and compares the largest moderated mean over all cells with
that of the flips. It is exact for arms of one shape. Arms with equal means and unequal shapes are
rejected too often, so a p-value alone claims nothing: the band of
:mod:`~anchorlens.statistics.bands` claims.
"""

import numpy as np
import numpy.typing as npt

from anchorlens.statistics.resamples import Array

N_FLIPS = 999
"""Number of random flips; the smallest p-value is 1 / (N_FLIPS + 1)."""
# Values whose root mean square is smaller are zero.
_ZERO = 1e-9
# Rearrangements of the step-down maximum that are sorted at a time.
_BLOCK = 100


def sign_flip_p(
    values: Array, clusters: npt.ArrayLike, *, n_flips: int = N_FLIPS, seed: int = 0
) -> Array:
    """Compute the p-value of each cell, adjusted over all cells by the step-down maximum.

    The statistic is |mean| / sqrt(rms^2 + s0^2), where s0 is the median root mean square of the
    cells: a flip does not change it, and a cell of small values is not the largest by chance.

    Args:
        values: Differences of the two arms, [row cell]; NaN where a row has none.
        clusters: Cluster of each row, [row]; the rows of a cluster are flipped together.
        n_flips: Number of random flips.
        seed: Random seed of the flips.

    Returns:
        Adjusted p-values, [cell]; 1 where all values are 0, NaN without a value.

    Source:
        Westfall & Young 1993 (step-down maximum); Tusher et al. 2001 (moderated statistic).
    """
    values = np.asarray(values, dtype=np.float64)
    p = np.full(values.shape[1], np.nan)
    known = ~np.isnan(values)
    usable = known.any(axis=0)
    if not usable.any():
        return p
    filled = np.where(known, values, 0.0)[:, usable]
    n = known.sum(axis=0)[usable]
    size = np.sqrt((filled**2).sum(axis=0) / n)
    moves = size > _ZERO
    adjusted = np.ones(len(size))
    if moves.any():
        least = np.median(size[moves])
        _, code = np.unique(np.asarray(clusters), return_inverse=True)
        sums = np.zeros((code.max() + 1, int(moves.sum())))
        np.add.at(sums, code, filled[:, moves])
        rng = np.random.default_rng([seed, *b"sign flips"])
        signs = rng.choice([-1.0, 1.0], size=(n_flips, len(sums)))
        signs = np.concatenate([np.ones((1, len(sums))), signs])
        means = np.abs(signs @ sums) / n[moves]
        statistic = means / np.sqrt(size[moves] ** 2 + least**2)
        adjusted[moves] = step_down(statistic)
    p[usable] = adjusted
    return p


def step_down(statistic: Array) -> Array:
    """Compute step-down p-values of the largest statistic over cells.

    Args:
        statistic: Statistic of the sample, then of each rearrangement, [1 + rearrangement cell].

    Returns:
        Adjusted p-values, [cell].
    """
    order = np.argsort(-statistic[0], kind="stable")
    reversed_order = order[::-1]
    own = statistic[0, order] * (1 - 1e-9)
    counts = np.zeros(len(order), dtype=np.int64)
    # A grid of heads and positions has ten thousand cells: few copies of it at a time.
    for start in range(1, len(statistic), _BLOCK):
        some = statistic[start : start + _BLOCK, reversed_order]
        # Largest statistic over a cell and all cells with smaller statistics in the sample.
        largest = np.maximum.accumulate(some, axis=1)[:, ::-1]
        counts += (largest >= own).sum(axis=0)
    stepped = np.maximum.accumulate((counts + 1) / len(statistic))
    p = np.empty_like(stepped)
    p[order] = stepped
    return p
