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
    draws = Resamples.of(ids, n_resamples=n_resamples, seed=seed)
    mean, means, n = draws.means(values, ~np.isnan(values))
    low, high = interval(means, n > 1, level=level)
    return Band(mean=mean, low=low, high=high, n=n)


@dataclass(frozen=True)
class Resamples:
    """How often each question is drawn in each bootstrap resample; one draw serves every statistic of a curve.

    Attributes:
        cluster: Index of each row's question, [row].
        weights: Times that a question is drawn, [resample question].
    """

    cluster: npt.NDArray[np.intp]
    weights: Array

    @classmethod
    def of(cls, question_ids: npt.ArrayLike, *, n_resamples: int = 1000, seed: int = 0) -> "Resamples":
        """Draw questions with replacement; the same ids and seed give the same draw."""
        unique, cluster = np.unique(np.asarray(question_ids), return_inverse=True)
        rng = np.random.default_rng([seed, *b"bootstrap"])
        weights = rng.multinomial(len(unique), np.full(len(unique), 1 / len(unique)), size=n_resamples)
        return cls(cluster, weights.astype(np.float64))

    def means(self, values: Array, there: npt.NDArray[np.bool_]) -> tuple[Array, Array, npt.NDArray[np.int64]]:
        """Mean over the rows of a group at every point.

        Args:
            values: [row point]
            there: True where a row belongs to the group, [row point].

        Returns:
            The mean [point], the means of the resamples [resample point], and the number of questions [point].
        """
        sums = np.zeros((self.weights.shape[1], values.shape[1]))
        counts = np.zeros_like(sums)
        np.add.at(sums, self.cluster, np.where(there, values, 0.0))
        np.add.at(counts, self.cluster, there.astype(np.float64))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = sums.sum(0) / counts.sum(0)
            means = (self.weights @ sums) / (self.weights @ counts)
        return mean, means, (counts > 0).sum(0).astype(np.int64)

    def aucs(self, scores: Array, labels: Array) -> tuple[float, Array]:
        """Area under the ROC curve, ties counted half, and that of every resample.

        Args:
            scores: Higher for label 1, [row].
            labels: 0 or 1, [row].

        Returns:
            AUC of all rows and of each resample, [resample]; NaN where one label is absent.
        """
        _, place = np.unique(scores, return_inverse=True)
        order = np.argsort(place, kind="stable")
        starts = np.flatnonzero(np.diff(place[order], prepend=-1))
        weights = np.concatenate([np.ones((1, self.weights.shape[1])), self.weights])[:, self.cluster[order]]
        positive = np.add.reduceat(weights * labels[order], starts, axis=1)
        negative = np.add.reduceat(weights * (1 - labels[order]), starts, axis=1)
        below = np.cumsum(negative, axis=1) - negative / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            auc = (positive * below).sum(1) / (positive.sum(1) * negative.sum(1))
        return float(auc[0]), auc[1:]


def interval(draws: Array, enough: npt.NDArray[np.bool_], *, level: float = 0.95) -> tuple[Array, Array]:
    """Percentile interval of bootstrap draws [resample point]; NaN at the points that are not ``enough``."""
    tail = 100 * (1 - level) / 2
    low, high = np.full(draws.shape[1], np.nan), np.full(draws.shape[1], np.nan)
    usable = enough & ~np.isnan(draws).all(0)
    if usable.any():
        low[usable], high[usable] = np.nanpercentile(draws[:, usable], [tail, 100 - tail], axis=0)
    return low, high
