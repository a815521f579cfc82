"""Choose the L2 penalty of a truth probe by log loss on validation questions (METHOD 3)."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from anchorlens.statistics.bands import shrink_auc
from anchorlens.statistics.resamples import Resamples

Array = npt.NDArray[np.float64]
GRID = tuple(float(f"{digit}e{power}") for power, digit in product(range(-8, 4), (1, 3)))
"""Candidate values of ``C``, strongest penalty first."""
PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Values of ``C`` that are always tried."""
TOLERANCE = 1e-3
"""Smallest decrease of the validation log loss, in nats, that makes a penalty better."""
PATIENCE = 20
"""Factor by which ``max_iter`` is multiplied for the chosen fit."""
N_RESAMPLES = 1000


@dataclass(frozen=True)
class Fit:
    """Logistic regression with one penalty."""

    penalty: float
    weights: Array
    intercept: float
    converged: bool


@dataclass(frozen=True)
class ValidationRows:
    """Validation rows with both labels: features, labels and the question of each row."""

    x: Array
    y: Array
    question_ids: Sequence[str]

    def _log_odds(self, fit: Fit) -> Array:
        return self.x @ fit.weights + fit.intercept

    def loss(self, fit: Fit) -> float:
        """Compute the log loss in nats; unlike AUC it rewards calibrated probabilities, which ΔP is
        read from.
        """
        odds = self._log_odds(fit)
        return float(np.logaddexp(0, np.where(self.y == 1, -odds, odds)).mean())

    def select(self, best: Fit, other: Fit) -> Fit:
        """Return ``other`` if its loss is lower by more than ``TOLERANCE``, else ``best``."""
        return other if self.loss(other) < self.loss(best) - TOLERANCE else best

    def auc(self, fit: Fit) -> tuple[float, float]:
        """Compute the AUC and its standard error over questions, at least half the binomial one
        (resamples hardly vary near 1).
        """
        read = _draws(tuple(self.question_ids)).aucs(self._log_odds(fit)[None], self.y)
        auc = float(read.value[0])
        n = len(set(self.question_ids))
        inside = float(shrink_auc(read.value[:1], n)[0])  # at 0 and 1 the error would be 0
        binomial = float(np.sqrt(inside * (1 - inside) / n))
        return auc, max(float(np.nanstd(read.draws)), 0.5 * binomial)


@lru_cache(maxsize=2)
def _draws(question_ids: tuple[str, ...]) -> Resamples:
    return Resamples.of(np.array(question_ids), n_resamples=N_RESAMPLES, seed=0)


class _Fits:
    """Fits of one layer with several penalties, each started from the previous one."""

    def __init__(self, x: Array, y: Array, max_iter: int) -> None:
        # With fewer rows than features the optimum lies in the span of the rows, so the fit uses a
        # basis of the span.
        self.basis = np.linalg.qr(x.T)[0] if x.shape[0] < x.shape[1] else None
        self.x = x if self.basis is None else x @ self.basis
        self.y = y
        self.max_iter = max_iter
        self.model = LogisticRegression(warm_start=True)

    def at(self, penalty: float, *, patience: int = 1) -> Fit:
        limit = self.max_iter * patience
        with warnings.catch_warnings():
            # Weak penalties on separable rows converge slowly; only the chosen fit has to converge.
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.set_params(C=penalty, max_iter=limit).fit(self.x, self.y)
        coef = np.array(self.model.coef_, dtype=np.float64)[0]
        weights = coef if self.basis is None else self.basis @ coef
        converged = int(np.max(self.model.n_iter_)) < limit
        intercept = float(np.asarray(self.model.intercept_)[0])
        return Fit(float(penalty), weights, intercept, converged)

    def converge(self, fit: Fit) -> Fit:
        """Continue a fit that has not converged."""
        if fit.converged:
            return fit
        start = fit.weights if self.basis is None else fit.weights @ self.basis
        self.model.coef_ = start[None]
        self.model.intercept_ = np.array([fit.intercept])
        return self.at(fit.penalty, patience=PATIENCE)


def choose_fit(
    x: Array,
    y: Array,
    held: ValidationRows | None,
    penalties: Sequence[float] | None,
    max_iter: int,
) -> Fit:
    """Return the fit with the best penalty on the validation rows, or the middle penalty without
    validation rows.
    """
    fits = _Fits(x, y, max_iter)
    start = sorted(PENALTIES if penalties is None else penalties)
    if held is None:
        return fits.converge(fits.at(start[len(start) // 2]))
    best = fits.at(start[0])
    for penalty in start[1:]:  # from strong to weak
        best = held.select(best, fits.at(penalty))
    if penalties is None:
        # Beyond an end of the usual penalties only while the loss decreases.
        further: list[float] = []
        if best.penalty == start[-1]:
            further = [penalty for penalty in GRID if penalty > start[-1]]
        elif best.penalty == start[0]:
            further = [penalty for penalty in reversed(GRID) if penalty < start[0]]
        for penalty in further:
            better = held.select(best, fits.at(penalty))
            if better is best:
                break
            best = better
    return fits.converge(best)
