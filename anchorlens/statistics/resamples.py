"""Bootstrap resamples of questions, shared by all means, AUCs and differences of a run (METHOD 6)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """Estimate at several points (layers) with its resamples.

    Attributes:
        value: Value in the sample, [point].
        error: Standard error over questions, [point]; NaN for fewer than two questions.
        draws: Value in each resample, [resample point]; all points of a resample share one draw of questions.
        errors: Standard error computed within each resample, [resample point].
        n: Number of questions, [point].
    """

    value: Array
    error: Array
    draws: Array
    errors: Array
    n: Counts

    def at(self, points: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> "Estimate":
        """Return the estimate at some of the points."""
        return Estimate(self.value[points], self.error[points], self.draws[:, points], self.errors[:, points], self.n[points])

    def over(self, other: "Estimate") -> "Estimate":
        """Return the ratio to another estimate with the same resamples. It lacks standard errors: its band is pointwise only."""
        with np.errstate(invalid="ignore", divide="ignore"):
            value, draws = self.value / other.value, self.draws / other.draws
        return Estimate(value, np.full_like(value, np.nan), draws, np.full_like(draws, np.nan), self.n)


@dataclass(frozen=True)
class Resamples:
    """Bootstrap resamples of questions; all statistics of a curve use the same draw.

    Attributes:
        cluster: Index of each row's question, [row].
        weights: Number of times that a question is drawn, [resample question].
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

    @cached_property
    def _all_weights(self) -> Array:
        """Weights of the sample itself, then those of the resamples, [1 + resample question]."""
        return np.concatenate([np.ones((1, self.weights.shape[1])), self.weights])

    def means(self, values: Array, members: npt.NDArray[np.bool_]) -> Estimate:
        """Compute the mean over the rows of a group at every point, with cluster-robust standard errors.

        Args:
            values: Values of the rows, [row point].
            members: True where a row belongs to the group, [row point].
        """
        weights = self._all_weights
        sums = np.zeros((weights.shape[1], values.shape[1]))
        counts = np.zeros_like(sums)
        np.add.at(sums, self.cluster, np.where(members, values, 0.0))
        np.add.at(counts, self.cluster, members.astype(np.float64))
        with np.errstate(invalid="ignore", divide="ignore"):
            value = sums.sum(0) / counts.sum(0)
            residuals, rows = sums - value * counts, weights @ counts
            shift = (weights @ residuals) / rows
            # Sum over drawn questions of (sum of values - mean of the resample * rows)^2.
            squares = weights @ residuals**2 - 2 * shift * (weights @ (residuals * counts)) + shift**2 * (weights @ counts**2)
            errors = _correct(np.sqrt(np.fmax(squares, 0)) / rows, weights @ (counts > 0))
        return Estimate(value, errors[0], value + shift[1:], errors[1:], (counts > 0).sum(0).astype(np.int64))

    def aucs(self, scores: Array, labels: Array, minus: Array | None = None) -> Estimate:
        """Compute the area under the ROC curve at every point, with ties counted half.

        Standard errors are those of placement values summed within questions (DeLong et al. 1988; clustered: Obuchowski 1997).

        Args:
            scores: Scores, higher for label 1, [point row]; rows with NaN are left out.
            labels: Labels, 0 or 1, [row].
            minus: Scores whose AUC is subtracted, over the rows that have both, [point row].

        Returns:
            AUC, or difference of two AUCs; NaN where one label is absent.
        """
        auc, errors = (np.full((len(self._all_weights), len(scores)), np.nan) for _ in range(2))
        n = np.zeros(len(scores), dtype=np.int64)
        for point, score in enumerate(scores):
            arms = [score] if minus is None else [score, minus[point]]
            present = np.asarray(~np.isnan(arms).any(0))
            clusters = np.unique(self.cluster[present])
            n[point] = len(clusters)
            if not present.any():
                continue
            (auc[:, point], influence), *others = (self._auc(one[present], labels[present], present) for one in arms)
            for other, its_influence in others:
                auc[:, point] -= other
                influence -= its_influence
            weights = self._all_weights[:, clusters]
            squares = (weights * influence[:, clusters] ** 2).sum(1)
            errors[:, point] = _correct(np.sqrt(squares), weights.sum(1))
        return Estimate(auc[0], errors[0], auc[1:], errors[1:], n)

    def _auc(self, scores: Array, labels: Array, present: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return the AUC of the sample and each resample, and the influence of each question on it, [1 + resample question]."""
        _, rank = np.unique(scores, return_inverse=True)
        order = np.argsort(rank, kind="stable")
        starts = np.flatnonzero(np.diff(rank[order], prepend=-1))
        cluster = self.cluster[present]
        weights = self._all_weights[:, cluster[order]]
        positive = np.add.reduceat(weights * labels[order], starts, axis=1)
        negative = np.add.reduceat(weights * (1 - labels[order]), starts, axis=1)
        n_positive, n_negative = (count.sum(1, keepdims=True) for count in (positive, negative))
        with np.errstate(invalid="ignore", divide="ignore"):
            below = (np.cumsum(negative, axis=1) - negative / 2) / n_negative
            above = 1 - (np.cumsum(positive, axis=1) - positive / 2) / n_positive
            auc = (positive * below).sum(1, keepdims=True) / n_positive
            placed = np.where(labels == 1, ((below - auc) / n_positive)[:, rank], ((above - auc) / n_negative)[:, rank])
        influence = np.zeros((self._all_weights.shape[1], len(placed)))
        np.add.at(influence, cluster, placed.T)
        return auc[:, 0], influence.T


def _correct(errors: Array, n: Array) -> Array:
    """Return standard errors with the factor sqrt(n / (n - 1)) of n drawn questions; NaN for fewer than two."""
    return errors * np.sqrt(np.where(n > 1, n / np.fmax(n - 1, 1), np.nan))
