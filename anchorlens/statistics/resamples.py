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
        far: Smallest and largest influence of a question in the sample, [2 point]. Of a mean: its distance from the mean.
        effects: Mean of each question in the sample, [question point]; NaN where it has none. No questions if it is not a mean.
    """

    value: Array
    error: Array
    draws: Array
    errors: Array
    n: Counts
    far: Array
    effects: Array

    def at(self, points: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> "Estimate":
        """Return the estimate at some of the points."""
        draws, errors, far, effects = (field[:, points] for field in (self.draws, self.errors, self.far, self.effects))
        return Estimate(self.value[points], self.error[points], draws, errors, self.n[points], far, effects)

    def over(self, other: "Estimate") -> "Estimate":
        """Return the ratio to another estimate with the same resamples. It lacks standard errors: its band is pointwise only."""
        with np.errstate(invalid="ignore", divide="ignore"):
            value, draws = self.value / other.value, self.draws / other.draws
        unknown = np.full_like(draws, np.nan)
        return Estimate(value, unknown[0], draws, unknown, self.n, unknown[:2], unknown[:0])


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
            n = (counts > 0).sum(0).astype(np.int64)
            far = n / counts.sum(0) * np.stack([residuals.min(0), residuals.max(0)])
            effects = sums / np.where(counts > 0, counts, np.nan)
        return Estimate(value, errors[0], value + shift[1:], errors[1:], n, far, effects)

    def aucs(self, scores: Array, labels: Array, minus: Array | None = None) -> Estimate:
        """Compute the area under the ROC curve at every point: the share of pairs of rows with labels 1 and 0 that are in order.

        Ties count half. Standard errors are those of the questions' influence (DeLong et al. 1988; clustered: Obuchowski 1997).

        Args:
            scores: Scores, higher for label 1, [point row]; rows with NaN are left out.
            labels: Labels, 0 or 1, [row].
            minus: Scores whose AUC is subtracted, over the rows that have both, [point row].

        Returns:
            AUC, or difference of two AUCs; NaN where one label is absent.
        """
        auc, errors = (np.full((len(self._all_weights), len(scores)), np.nan) for _ in range(2))
        n, far = np.zeros(len(scores), dtype=np.int64), np.full((2, len(scores)), np.nan)
        for point in range(len(scores)):
            arms = scores[point, None] if minus is None else np.stack([scores[point], minus[point]])
            rows = np.flatnonzero(~np.isnan(arms).any(0))
            questions, cluster = np.unique(self.cluster[rows], return_inverse=True)
            n[point] = len(questions)
            if len(set(labels[rows])) < 2:
                continue
            in_order, pairs = _pairs(arms[:, rows], labels[rows], cluster)
            weights = np.ascontiguousarray(self._all_weights[:, questions].T, dtype=np.float32)
            won, paired = in_order @ weights, pairs @ weights  # exact: sums of integers and halves
            with np.errstate(invalid="ignore", divide="ignore"):
                total = np.einsum("qb,qb->b", weights, paired, dtype=np.float64)  # every pair twice, from either question
                auc[:, point] = np.einsum("qb,qb->b", weights, won, dtype=np.float64) / total
                influence = won - auc[:, point].astype(np.float32) * paired
                squares = np.einsum("qb,qb,qb->b", weights, influence, influence, dtype=np.float64)
                errors[:, point] = _correct(2 * np.sqrt(squares) / total, weights.sum(0, dtype=np.float64))
            far[:, point] = 2 * n[point] / total[0] * np.array([influence[:, 0].min(), influence[:, 0].max()])
        return Estimate(auc[0], errors[0], auc[1:], errors[1:], n, far, auc[:0])


def _pairs(arms: Array, labels: Array, cluster: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the pairs in order (of two arms: the difference) and all pairs of any two questions, symmetric [question question]."""
    one, zero, n = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0), cluster.max() + 1
    cells = (n * cluster[one, None] + cluster[zero]).ravel()

    def by_question(pairs: Array) -> npt.NDArray[np.float32]:
        sums = np.bincount(cells, pairs.ravel(), n * n).reshape(n, n)
        return (sums + sums.T).astype(np.float32)

    first, *second = (np.heaviside(arm[one, None] - arm[zero], 0.5) for arm in arms)
    return by_question(first - second[0] if second else first), by_question(np.ones_like(first))


def _correct(errors: Array, n: Array) -> Array:
    """Return standard errors with the factor sqrt(n / (n - 1)) of n drawn questions; NaN for fewer than two."""
    return errors * np.sqrt(np.where(n > 1, n / np.fmax(n - 1, 1), np.nan))
