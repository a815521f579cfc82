"""Bootstrap resamples of clusters, shared by all means, AUCs and differences of a run
(METHOD 6).

A cluster is a relation or template, or a question where the data name none (see
:mod:`~anchorlens.statistics.clusters`).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimate at several points (layers) with its resamples.

    Attributes:
        value: Value in the sample, [point].
        error: Standard error over clusters, [point]; NaN for fewer than two clusters.
        draws: Value in each resample, [resample point]; all points of a resample share one draw of
            clusters.
        errors: Standard error computed within each resample, [resample point].
        n: Number of clusters, [point].
        n_questions: Number of questions, [point].
        far: Smallest and largest influence of a cluster in the sample, [2 point]. Of a mean: its
            distance from the mean.
        effects: Mean of each cluster in the sample, [cluster point]; NaN where it has none. No
            clusters if it is not a mean.
    """

    value: Array
    error: Array
    draws: Array
    errors: Array
    n: Counts
    n_questions: Counts
    far: Array
    effects: Array

    def at(self, points: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> "Estimate":
        """Return the estimate at some of the points."""
        return Estimate(
            value=self.value[points],
            error=self.error[points],
            draws=self.draws[:, points],
            errors=self.errors[:, points],
            n=self.n[points],
            n_questions=self.n_questions[points],
            far=self.far[:, points],
            effects=self.effects[:, points],
        )

    def over(self, other: "Estimate") -> "Estimate":
        """Return the ratio to another estimate with the same resamples.

        It lacks standard errors: its band is pointwise only.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            value = self.value / other.value
            draws = self.draws / other.draws
        unknown = np.full_like(draws, np.nan)
        return Estimate(
            value=value,
            error=unknown[0],
            draws=draws,
            errors=unknown,
            n=self.n,
            n_questions=self.n_questions,
            far=unknown[:2],
            effects=unknown[:0],
        )


@dataclass(frozen=True)
class Resamples:
    """Bootstrap resamples of clusters; all statistics of a curve use the same draw.

    Attributes:
        cluster: Index of each row's cluster, [row].
        question: Index of each row's question, [row].
        weights: Number of times that a cluster is drawn, [resample cluster].
    """

    cluster: npt.NDArray[np.intp]
    question: npt.NDArray[np.intp]
    weights: Array

    @classmethod
    def of(
        cls,
        question_ids: npt.ArrayLike,
        *,
        clusters: npt.ArrayLike | None = None,
        n_resamples: int = 1000,
        seed: int = 0,
    ) -> "Resamples":
        """Draw clusters with replacement; the same clusters and seed give the same draw.

        Args:
            question_ids: Question id of each row, [row].
            clusters: Cluster of each row, [row]. If None, questions are drawn.
            n_resamples: Number of resamples.
            seed: Random seed.
        """
        _, question = np.unique(np.asarray(question_ids), return_inverse=True)
        drawn = question_ids if clusters is None else clusters
        unique, cluster = np.unique(np.asarray(drawn), return_inverse=True)
        rng = np.random.default_rng([seed, *b"bootstrap"])
        weights = rng.multinomial(
            len(unique), np.full(len(unique), 1 / len(unique)), size=n_resamples
        )
        return cls(cluster, question, weights.astype(np.float64))

    @cached_property
    def _all_weights(self) -> Array:
        """Weights of the sample itself, then those of the resamples, [1 + resample cluster]."""
        return np.concatenate([np.ones((1, self.weights.shape[1])), self.weights])

    def means(self, values: Array, members: npt.NDArray[np.bool_]) -> Estimate:
        """Compute the mean over the rows of a group at every point, with cluster-robust standard
        errors.

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
            residuals = sums - value * counts
            rows = weights @ counts
            shift = (weights @ residuals) / rows
            # Sum over drawn clusters of (sum of values - mean of the resample * rows)^2.
            squares = (
                weights @ residuals**2
                - 2 * shift * (weights @ (residuals * counts))
                + shift**2 * (weights @ counts**2)
            )
            errors = _correct(np.sqrt(np.fmax(squares, 0)) / rows, weights @ (counts > 0))
            n = (counts > 0).sum(0).astype(np.int64)
            n_questions = self._count_questions(members)
            far = n / counts.sum(0) * np.stack([residuals.min(0), residuals.max(0)])
            effects = sums / np.where(counts > 0, counts, np.nan)
        return Estimate(
            value=value,
            error=errors[0],
            draws=value + shift[1:],
            errors=errors[1:],
            n=n,
            n_questions=n_questions,
            far=far,
            effects=effects,
        )

    def _count_questions(self, members: npt.NDArray[np.bool_]) -> Counts:
        """Return the number of questions with a row in the group at every point, [point]."""
        present = np.zeros((self.question.max(initial=-1) + 1, members.shape[1]), dtype=bool)
        np.logical_or.at(present, self.question, members)
        return present.sum(0).astype(np.int64)

    def aucs(self, scores: Array, labels: Array, minus: Array | None = None) -> Estimate:
        """Compute the area under the ROC curve at every point: the share of pairs of rows with
        labels 1 and 0 that are in order.

        Ties count half. Standard errors are those of the clusters' influence (DeLong et al. 1988;
        clustered: Obuchowski 1997).

        Args:
            scores: Scores, higher for label 1, [point row]; rows with NaN are left out.
            labels: Labels, 0 or 1, [row].
            minus: Scores whose AUC is subtracted, over the rows that have both, [point row].

        Returns:
            AUC, or difference of two AUCs; NaN where one label is absent.
        """
        auc, errors = (np.full((len(self._all_weights), len(scores)), np.nan) for _ in range(2))
        n = np.zeros(len(scores), dtype=np.int64)
        n_questions = np.zeros(len(scores), dtype=np.int64)
        far = np.full((2, len(scores)), np.nan)
        for point in range(len(scores)):
            arms = scores[point, None] if minus is None else np.stack([scores[point], minus[point]])
            rows = np.flatnonzero(~np.isnan(arms).any(0))
            drawn, cluster = np.unique(self.cluster[rows], return_inverse=True)
            n[point] = len(drawn)
            n_questions[point] = len(np.unique(self.question[rows]))
            if len(set(labels[rows])) < 2:
                continue
            in_order, pairs = _pairs(arms[:, rows], labels[rows], cluster)
            weights = np.ascontiguousarray(self._all_weights[:, drawn].T, dtype=np.float32)
            # Exact: sums of integers and halves.
            won = in_order @ weights
            paired = pairs @ weights
            with np.errstate(invalid="ignore", divide="ignore"):
                # Every pair counts twice, from either question.
                total = np.einsum("qb,qb->b", weights, paired, dtype=np.float64)
                auc[:, point] = np.einsum("qb,qb->b", weights, won, dtype=np.float64) / total
                influence = won - auc[:, point].astype(np.float32) * paired
                squares = np.einsum("qb,qb,qb->b", weights, influence, influence, dtype=np.float64)
                errors[:, point] = _correct(
                    2 * np.sqrt(squares) / total, weights.sum(0, dtype=np.float64)
                )
            far[:, point] = (
                2 * n[point] / total[0] * np.array([influence[:, 0].min(), influence[:, 0].max()])
            )
        return Estimate(
            value=auc[0],
            error=errors[0],
            draws=auc[1:],
            errors=errors[1:],
            n=n,
            n_questions=n_questions,
            far=far,
            effects=auc[:0],
        )


def _pairs(
    arms: Array, labels: Array, cluster: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the pairs in order (of two arms: the difference) and all pairs of any two clusters,
    symmetric [cluster cluster].
    """
    one = np.flatnonzero(labels == 1)
    zero = np.flatnonzero(labels == 0)
    n = cluster.max() + 1
    cells = (n * cluster[one, None] + cluster[zero]).ravel()

    def by_cluster(pairs: Array) -> npt.NDArray[np.float32]:
        sums = np.bincount(cells, pairs.ravel(), n * n).reshape(n, n)
        return (sums + sums.T).astype(np.float32)

    first, *second = (np.heaviside(arm[one, None] - arm[zero], 0.5) for arm in arms)
    return by_cluster(first - second[0] if second else first), by_cluster(np.ones_like(first))


def _correct(errors: Array, n: Array) -> Array:
    """Return standard errors with the factor sqrt(n / (n - 1)) of n drawn clusters; NaN for fewer
    than two.
    """
    return errors * np.sqrt(np.where(n > 1, n / np.fmax(n - 1, 1), np.nan))
