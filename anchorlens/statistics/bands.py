"""Intervals of a curve: pointwise, and for all its layers at once (METHOD 6).

A pointwise 95 % interval speaks of a layer that was named beforehand. Whoever looks at thirty of them and picks one needs the
simultaneous band: of pure noise it holds the truth at *every* layer in 95 % of the cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from anchorlens.errors import ShapeError
from anchorlens.statistics.resamples import Resamples

Array = npt.NDArray[np.float64]
_FARTHEST = 37.0
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Band:
    """A curve with both bands.

    Attributes:
        value: [point]
        low: Lower end of the pointwise interval, [point]; NaN where there are fewer than two questions.
        high: Upper end, [point].
        sim_low: Lower end of the band that holds for all points at once, [point]; never above ``low``.
        sim_high: Upper end, [point]; never below ``high``.
        n: Questions behind each point, [point].
    """

    value: Array
    low: Array
    high: Array
    sim_low: Array
    sim_high: Array
    n: Counts

    def parts(self, sizes: Sequence[int]) -> "list[Band]":
        """Curves that were given one band together, each on its own; ``sizes``: points of each."""
        ends = np.cumsum(sizes)[:-1]
        columns = (self.value, self.low, self.high, self.sim_low, self.sim_high, self.n)
        return [Band(*parts) for parts in zip(*(np.split(column, ends) for column in columns), strict=True)]


def band(value: Array, draws: Array, n: Counts, *, level: float = 0.95, rate: bool = False) -> Band:
    """Both bands of a mean, a rate or a difference, from one set of resamples.

    Pointwise: the percentile interval, its distance from the value widened by t/z * sqrt(n / (n - 1)), which makes up for the
    bootstrap's too small spread. Simultaneous: value plus or minus c standard errors, where c is the quantile of the largest
    standardised deviation over all points, read on the t distribution of n - 1 degrees instead of the normal one (sup-t).

    Args:
        value: [point]
        draws: The same in every resample, [resample point]; all points of one resample come from the same draw of questions.
        n: Questions behind each point, [point].
        level: Coverage.
        rate: A share in points, or a difference of two. Where it is the same in every resample (no row flips), that is not
            certainty: the interval is then what so many questions without an event allow (the exact binomial bound).

    Returns:
        Both bands; NaN where a point has fewer than two questions.

    Source:
        Efron & Tibshirani 1993 (percentile interval); Montiel Olea & Plagborg-Møller 2019 (sup-t bands).
    """
    value, usable = np.asarray(value, dtype=np.float64), _usable(value, draws, n)
    low, high, sim_low, sim_high = (np.full(len(value), np.nan) for _ in range(4))
    if usable.any():
        own, many, size = value[usable], draws[:, usable], n[usable]
        tail = 50 * (1 - level)
        ends = np.nanpercentile(many, [tail, 100 - tail], axis=0)
        wider = stats.t.ppf(0.5 + level / 2, size - 1) / stats.norm.ppf(0.5 + level / 2) * np.sqrt(size / (size - 1))
        low[usable], high[usable] = own + wider * (ends - own)
        half = _critical(own, many, size, level) * np.nanstd(many, axis=0)
        sim_low[usable], sim_high[usable] = own - half, own + half
        # A skewed point's interval may reach further on one side.
        sim_low, sim_high = np.fmin(sim_low, low), np.fmax(sim_high, high)
        if rate:
            still = np.flatnonzero(usable)[np.nanstd(many, axis=0) == 0]
            tail = (1 - level) / 2
            for chance, (bottom, top) in ((tail, (low, high)), (tail / len(own), (sim_low, sim_high))):
                limit = 100 * (1 - chance ** (1 / n[still]))
                bottom[still], top[still] = value[still] - limit, value[still] + limit
    return Band(value, low, high, sim_low, sim_high, n)


def bootstrap_mean(
    values: Array, question_ids: npt.ArrayLike, *, n_resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Band:
    """Mean over rows at every point with both bands; whole questions are drawn again.

    Args:
        values: [row point]; NaN where a row has no value at a point.
        question_ids: Question of each row, [row].
        n_resamples: Number of resamples.
        level: Coverage.
        seed: Of the resamples.

    Raises:
        ShapeError: The two disagree on the number of rows, or there is no row.
    """
    ids = np.asarray(question_ids)
    if values.ndim != 2 or len(ids) != values.shape[0] or not len(ids):
        raise ShapeError(
            f"values must be [row point] with one question id for each row; got {values.shape} and {len(ids)} ids."
        )
    draws = Resamples.of(ids, n_resamples=n_resamples, seed=seed)
    return band(*draws.means(values, ~np.isnan(values)), level=level)


def auc_band(value: Array, draws: Array, n: Counts, *, level: float = 0.95) -> Band:
    """Both bands of an area under the ROC curve, made on the logit scale: near 1 a percentile interval is far too short.

    AUC and draws are first drawn a little to the middle (half a question on either side), so that 1 has a logit. Where all resamples
    are alike (a probe that makes no mistake), the standard error of half the questions' independent comparisons takes their place.

    Args:
        value: [point]
        draws: [resample point]
        n: Questions behind each point, [point].
        level: Coverage.
    """
    value, usable = np.asarray(value, dtype=np.float64), _usable(value, draws, n)
    low, high, sim_low, sim_high = (np.full(len(value), np.nan) for _ in range(4))
    if usable.any():
        own, many, size = value[usable], draws[:, usable], n[usable]
        centre, around = _logit_inside(own, size), _logit_inside(many, size)
        inside = (own * size + 0.5) / (size + 1)
        spread = np.fmax(np.nanstd(around, axis=0), 0.5 / np.sqrt(size * inside * (1 - inside)))
        point = stats.t.ppf(0.5 + level / 2, size - 1) * np.sqrt(size / (size - 1))
        tail = 50 * (1 - level)
        ends = np.nanpercentile(many, [tail, 100 - tail], axis=0)
        for c, (bottom, top) in ((point, (low, high)), (_critical(centre, around, size, level), (sim_low, sim_high))):
            c = np.fmax(c, point)
            # The end away from 0.5 is not held back by the pull to the middle.
            down, up = _expit(centre - c * spread), _expit(centre + c * spread)
            bottom[usable] = np.where(own < 0.5, np.fmin(down, ends[0]), down)
            top[usable] = np.where(own > 0.5, np.fmax(up, ends[1]), up)
    return Band(value, low, high, sim_low, sim_high, n)


def _usable(value: Array, draws: Array, n: Counts) -> npt.NDArray[np.bool_]:
    return (n > 1) & ~np.isnan(value) & ~np.isnan(draws).all(0)


def _critical(value: Array, draws: Array, n: Counts, level: float) -> Array:
    """Return the half-width of the simultaneous band in standard errors, [point]."""
    error = np.nanstd(draws, axis=0)
    moving = error > 0  # a point that is the same in every resample cannot deviate
    if not moving.any():
        return np.zeros(len(value))
    # A group that is empty in a resample has no deviation there.
    deviation = np.abs(draws[:, moving] - value[moving]) / error[moving]
    largest = np.fmax.reduce(deviation, axis=1)
    # Two or three resamples may lie so far out that the normal tail is 0 in floating point.
    c = min(float(np.nanquantile(largest, level)), _FARTHEST)
    return stats.t.isf(stats.norm.sf(c), n - 1) * np.sqrt(n / (n - 1))


def _logit_inside(auc: Array, n: Counts) -> Array:
    inside = (auc * n + 0.5) / (n + 1)
    return np.log(inside / (1 - inside))


def _expit(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
