"""How strongly a truth probe is held back: the penalty with the lowest log loss on validation questions (METHOD 3)."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from anchorlens.statistics.resamples import Resamples

Array = npt.NDArray[np.float64]
GRID = tuple(float(f"{digit}e{power}") for power in range(-8, 4) for digit in (1, 3))
"""Every ``C`` that may be tried, strongest first."""
PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Those that are tried always."""
TOLERANCE = 1e-3
"""A penalty is better than another where it lowers the validation log loss by more than this, in nats."""
PATIENCE = 20
"""The chosen fit may take so many times the iterations of the others."""
N_RESAMPLES = 1000


@dataclass(frozen=True)
class Fit:
    """Logistic regression under one penalty."""

    penalty: float
    weights: Array
    intercept: float
    converged: bool


@dataclass(frozen=True)
class ValidationRows:
    """Validation rows with both labels."""

    x: Array
    y: Array
    question_ids: Sequence[str]

    def _log_odds(self, fit: Fit) -> Array:
        return self.x @ fit.weights + fit.intercept

    def loss(self, fit: Fit) -> float:
        """Log loss, not AUC: ΔP is read in points of probability, so the probability has to be calibrated."""
        odds = self._log_odds(fit)
        return float(np.logaddexp(0, np.where(self.y == 1, -odds, odds)).mean())

    def better(self, best: Fit, other: Fit) -> Fit:
        """``other`` where it is clearly better."""
        return other if self.loss(other) < self.loss(best) - TOLERANCE else best

    def auc(self, fit: Fit) -> tuple[float, float]:
        """Compute the AUC and its standard error over questions, at least half the binomial one (near 1 resamples hardly differ)."""
        auc, many = _draws(tuple(self.question_ids)).aucs(self._log_odds(fit), self.y)
        n = len(set(self.question_ids))
        inside = (auc * n + 0.5) / (n + 1)
        return auc, max(float(np.nanstd(many)), 0.5 * float(np.sqrt(inside * (1 - inside) / n)))


@lru_cache(maxsize=2)
def _draws(question_ids: tuple[str, ...]) -> Resamples:
    return Resamples.of(np.array(question_ids), n_resamples=N_RESAMPLES, seed=0)


class _Fits:
    """Fits of one layer under several penalties, each started from the one before."""

    def __init__(self, x: Array, y: Array, max_iter: int) -> None:
        # With fewer rows than features the solution lies in the rows' span, and the penalty does not change under rotation: the
        # same optimum is found in as many coordinates as there are rows.
        self.basis = np.linalg.qr(x.T)[0] if x.shape[0] < x.shape[1] else None
        self.x, self.y, self.max_iter = x if self.basis is None else x @ self.basis, y, max_iter
        self.model = LogisticRegression(warm_start=True)

    def at(self, penalty: float, *, patience: int = 1) -> Fit:
        limit = self.max_iter * patience
        with warnings.catch_warnings():
            # A weak penalty on separable rows takes long; only the fit that is chosen has to come to its end.
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.set_params(C=penalty, max_iter=limit).fit(self.x, self.y)
        coef = np.array(self.model.coef_, dtype=np.float64)[0]
        weights = coef if self.basis is None else self.basis @ coef
        converged = int(np.max(self.model.n_iter_)) < limit
        return Fit(float(penalty), weights, float(np.asarray(self.model.intercept_)[0]), converged)

    def finished(self, fit: Fit) -> Fit:
        """The same fit, continued where its iterations did not suffice."""
        if fit.converged:
            return fit
        start = fit.weights if self.basis is None else fit.weights @ self.basis
        self.model.coef_, self.model.intercept_ = start[None], np.array([fit.intercept])
        return self.at(fit.penalty, patience=PATIENCE)


def choose_fit(x: Array, y: Array, held: ValidationRows | None, penalties: Sequence[float] | None, max_iter: int) -> Fit:
    """The fit under the best penalty."""
    fits = _Fits(x, y, max_iter)
    start = sorted(PENALTIES if penalties is None else penalties)
    if held is None:
        return fits.finished(fits.at(start[len(start) // 2]))
    best = fits.at(start[0])
    for penalty in start[1:]:  # from strong to weak
        best = held.better(best, fits.at(penalty))
    if penalties is None:
        weaker, stronger = [c for c in GRID if c > start[-1]], [c for c in GRID[::-1] if c < start[0]]
        for penalty in {start[-1]: weaker, start[0]: stronger}.get(best.penalty, []):
            before, best = best, held.better(best, fits.at(penalty))
            if best is before:
                break
    return fits.finished(best)
