"""Confidence intervals of a curve: pointwise, and simultaneous over all layers (METHOD 6).

A pointwise 95 % interval is valid for one layer chosen in advance. The simultaneous band covers the true curve at *every* layer in
95 % of the cases, so it allows a selection among layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri, stdtrit

from anchorlens.errors import ShapeError
from anchorlens.statistics.resamples import Resamples

Array = npt.NDArray[np.float64]
_MAX_CRITICAL = 37.0
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Band:
    """Curve with pointwise and simultaneous bands.

    Attributes:
        value: Value of the curve, [point].
        low: Lower end of the pointwise interval, [point]; NaN for fewer than two questions.
        high: Upper end of the pointwise interval, [point].
        sim_low: Lower end of the simultaneous band, [point]; never above ``low``.
        sim_high: Upper end of the simultaneous band, [point]; never below ``high``.
        n: Number of questions at each point, [point].
    """

    value: Array
    low: Array
    high: Array
    sim_low: Array
    sim_high: Array
    n: Counts

    def parts(self, sizes: Sequence[int]) -> "list[Band]":
        """Split a band of several curves into one per curve; ``sizes``: points of each curve."""
        ends = np.cumsum(sizes)[:-1]
        columns = (self.value, self.low, self.high, self.sim_low, self.sim_high, self.n)
        return [Band(*parts) for parts in zip(*(np.split(column, ends) for column in columns), strict=True)]


def band(value: Array, draws: Array, n: Counts, *, level: float = 0.95, rate: bool = False) -> Band:
    """Compute the pointwise and the simultaneous band of a mean, a rate or a difference from one set of resamples.

    Pointwise: percentile interval of the bootstrap. The distance of each end from the value is multiplied by t/z * sqrt(n / (n - 1))
    to correct the small-sample bias. Simultaneous (sup-t): value ± c standard errors. c is the ``level`` quantile of the largest
    standardised deviation over all points; it is mapped to the t distribution with n - 1 degrees of freedom.

    Args:
        value: Value of the curve, [point].
        draws: Value in each resample, [resample point]; all points of a resample share one draw of questions.
        n: Number of questions at each point, [point].
        level: Coverage, in (0, 1).
        rate: Whether values are rates in percentage points, or differences of two. If no row flips, all resamples of a point are
            equal; the band is then value ± the exact binomial bound for 0 events in n questions.

    Returns:
        Both bands; NaN at points with fewer than two questions.

    Source:
        Efron & Tibshirani 1993 (percentile interval); Montiel Olea & Plagborg-Møller 2019 (sup-t bands).
    """
    value, usable = np.asarray(value, dtype=np.float64), _usable(value, draws, n)
    low, high, sim_low, sim_high = (np.full(len(value), np.nan) for _ in range(4))
    if usable.any():
        center, resampled, size = value[usable], draws[:, usable], n[usable]
        tail = 50 * (1 - level)
        ends = np.nanpercentile(resampled, [tail, 100 - tail], axis=0)
        wider = stdtrit(size - 1, 0.5 + level / 2) / ndtri(0.5 + level / 2) * np.sqrt(size / (size - 1))
        low[usable], high[usable] = center + wider * (ends - center)
        half = _critical(center, resampled, size, level) * np.nanstd(resampled, axis=0)
        sim_low[usable], sim_high[usable] = center - half, center + half
        # The pointwise interval of a skewed point may be wider on one side.
        sim_low, sim_high = np.fmin(sim_low, low), np.fmax(sim_high, high)
        if rate:
            constant = np.flatnonzero(usable)[np.nanstd(resampled, axis=0) == 0]
            tail = (1 - level) / 2
            for chance, (bottom, top) in ((tail, (low, high)), (tail / len(center), (sim_low, sim_high))):
                limit = 100 * (1 - chance ** (1 / n[constant]))
                bottom[constant], top[constant] = value[constant] - limit, value[constant] + limit
    return Band(value, low, high, sim_low, sim_high, n)


def bootstrap_mean(
    values: Array, question_ids: npt.ArrayLike, *, n_resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Band:
    """Compute the mean over rows at every point with both bands; whole questions are resampled.

    Args:
        values: Values of the rows, [row point]; NaN where a row has no value.
        question_ids: Question id of each row, [row].
        n_resamples: Number of bootstrap resamples.
        level: Coverage, in (0, 1).
        seed: Random seed of the resamples.

    Raises:
        ShapeError: If the numbers of rows differ, or there are no rows.
    """
    ids = np.asarray(question_ids)
    if values.ndim != 2 or len(ids) != values.shape[0] or not len(ids):
        raise ShapeError(f"values: shape {values.shape} with {len(ids)} question ids. Give [row point] and one question id per row.")
    draws = Resamples.of(ids, n_resamples=n_resamples, seed=seed)
    return band(*draws.means(values, ~np.isnan(values)), level=level)


def auc_band(value: Array, draws: Array, n: Counts, *, level: float = 0.95) -> Band:
    """Compute both bands of an area under the ROC curve (AUC) on the logit scale; percentile intervals near 1 are too short.

    The AUC is first shrunk to (n * AUC + 0.5) / (n + 1), so that AUC = 1 has a finite logit. The standard error of the logit is at
    least half the binomial one, 0.5 / sqrt(n * AUC * (1 - AUC)), because resamples of a probe without errors are all equal.

    Args:
        value: AUC, [point].
        draws: AUC in each resample, [resample point].
        n: Number of questions at each point, [point].
        level: Coverage, in (0, 1).
    """
    value, usable = np.asarray(value, dtype=np.float64), _usable(value, draws, n)
    low, high, sim_low, sim_high = (np.full(len(value), np.nan) for _ in range(4))
    if usable.any():
        auc, resampled, size = value[usable], draws[:, usable], n[usable]
        center, logits = _logit_inside(auc, size), _logit_inside(resampled, size)
        inside = (auc * size + 0.5) / (size + 1)
        spread = np.fmax(np.nanstd(logits, axis=0), 0.5 / np.sqrt(size * inside * (1 - inside)))
        point = stdtrit(size - 1, 0.5 + level / 2) * np.sqrt(size / (size - 1))
        tail = 50 * (1 - level)
        ends = np.nanpercentile(resampled, [tail, 100 - tail], axis=0)
        for c, (bottom, top) in ((point, (low, high)), (_critical(center, logits, size, level), (sim_low, sim_high))):
            c = np.fmax(c, point)
            # Shrinkage does not shorten the end away from 0.5.
            down, up = _expit(center - c * spread), _expit(center + c * spread)
            bottom[usable] = np.where(auc < 0.5, np.fmin(down, ends[0]), down)
            top[usable] = np.where(auc > 0.5, np.fmax(up, ends[1]), up)
    return Band(value, low, high, sim_low, sim_high, n)


def _usable(value: Array, draws: Array, n: Counts) -> npt.NDArray[np.bool_]:
    return (n > 1) & ~np.isnan(value) & ~np.isnan(draws).all(0)


def _critical(value: Array, draws: Array, n: Counts, level: float) -> Array:
    """Return the half-width of the simultaneous band in standard errors, [point]."""
    error = np.nanstd(draws, axis=0)
    moving = error > 0  # points that are equal in all resamples have no deviation
    if not moving.any():
        return np.zeros(len(value))
    # A group that is empty in a resample has no deviation there.
    deviation = np.abs(draws[:, moving] - value[moving]) / error[moving]
    largest = np.fmax.reduce(deviation, axis=1)
    # The normal tail of extreme resamples would be 0 in floating point.
    c = min(float(np.nanquantile(largest, level)), _MAX_CRITICAL)
    return -stdtrit(n - 1, ndtr(-c)) * np.sqrt(n / (n - 1))


def _logit_inside(auc: Array, n: Counts) -> Array:
    inside = (auc * n + 0.5) / (n + 1)
    return np.log(inside / (1 - inside))


def _expit(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
