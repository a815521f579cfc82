"""Means with confidence bands. The resampling unit is the question (METHOD 6)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anchorlens.errors import ShapeError

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """A mean with its percentile interval, at every point of a curve.

    Attributes:
        mean: Mean over rows, [point].
        low: Lower end of the interval, [point]; NaN where there are fewer than two questions.
        high: Upper end, [point].
        n: Number of questions behind each point, [point].
    """

    mean: Array
    low: Array
    high: Array
    n: npt.NDArray[np.int64]


def bootstrap_mean(
    values: Array, question_ids: npt.ArrayLike, *, n_resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Band:
    """Percentile bootstrap of a mean over rows, with whole questions drawn again.

    Rows with the same ``question_id`` go together. The same resamples serve all points, so that differences between points of one
    curve can be read.

    Args:
        values: [row point]; NaN where a row has no value at a point.
        question_ids: Question of each row, [row].
        n_resamples: Number of resamples.
        level: Coverage of the interval.
        seed: Seed of the resamples.

    Returns:
        Mean, interval and number of questions at each point.

    Raises:
        ShapeError: The two disagree on the number of rows, or there is no row.

    Source:
        Efron & Tibshirani 1993, percentile interval; cluster bootstrap over questions.
    """
    ids = np.asarray(question_ids)
    if values.ndim != 2 or len(ids) != values.shape[0] or not len(ids):
        raise ShapeError(
            f"values must be [row point] with one question id for each row; got {values.shape} and {len(ids)} ids."
        )
    unique, cluster = np.unique(ids, return_inverse=True)
    there = ~np.isnan(values)
    sums = np.zeros((len(unique), values.shape[1]))
    counts = np.zeros_like(sums)
    np.add.at(sums, cluster, np.where(there, values, 0.0))
    np.add.at(counts, cluster, there.astype(np.float64))
    rng = np.random.default_rng([seed, *b"bootstrap"])
    weights = rng.multinomial(len(unique), np.full(len(unique), 1 / len(unique)), size=n_resamples).astype(np.float64)
    n = (counts > 0).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums.sum(0) / counts.sum(0)
        means = (weights @ sums) / (weights @ counts)
    tail = 100 * (1 - level) / 2
    low, high = np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    enough = n > 1
    if enough.any():
        low[enough], high[enough] = np.nanpercentile(means[:, enough], [tail, 100 - tail], axis=0)
    return Band(mean=mean, low=low, high=high, n=n.astype(np.int64))
