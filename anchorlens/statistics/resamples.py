"""Bootstrap resamples of questions, shared by all means, AUCs and differences of a run (METHOD 6)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


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

    def means(self, values: Array, members: npt.NDArray[np.bool_]) -> tuple[Array, Array, npt.NDArray[np.int64]]:
        """Compute the mean over the rows of a group at every point.

        Args:
            values: Values of the rows, [row point].
            members: True where a row belongs to the group, [row point].

        Returns:
            Mean [point], mean of each resample [resample point], and number of questions [point].
        """
        sums = np.zeros((self.weights.shape[1], values.shape[1]))
        counts = np.zeros_like(sums)
        np.add.at(sums, self.cluster, np.where(members, values, 0.0))
        np.add.at(counts, self.cluster, members.astype(np.float64))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = sums.sum(0) / counts.sum(0)
            means = (self.weights @ sums) / (self.weights @ counts)
        return mean, means, (counts > 0).sum(0).astype(np.int64)

    def aucs(self, scores: Array, labels: Array) -> tuple[float, Array]:
        """Compute the area under the ROC curve, with ties counted half.

        Args:
            scores: Scores, higher for label 1, [row].
            labels: Labels, 0 or 1, [row].

        Returns:
            AUC of all rows, and of each resample, [resample]; NaN where one label is absent.
        """
        _, rank = np.unique(scores, return_inverse=True)
        order = np.argsort(rank, kind="stable")
        starts = np.flatnonzero(np.diff(rank[order], prepend=-1))
        weights = np.concatenate([np.ones((1, self.weights.shape[1])), self.weights])[:, self.cluster[order]]
        positive = np.add.reduceat(weights * labels[order], starts, axis=1)
        negative = np.add.reduceat(weights * (1 - labels[order]), starts, axis=1)
        below = np.cumsum(negative, axis=1) - negative / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            auc = (positive * below).sum(1) / (positive.sum(1) * negative.sum(1))
        return float(auc[0]), auc[1:]
