"""Search of the penalty, and convergence of the chosen fit."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from anchorlens.probing.regularization import GRID, PENALTIES, TOLERANCE, ValidationRows, choose_fit


def made(n, seed, d=30):
    rng = np.random.default_rng(seed)
    y = np.tile([0.0, 1.0], n)
    x = rng.normal(size=(2 * n, d))
    x[:, 0] += 0.9 * y
    return x, y


def fitted(scale, penalties=None, max_iter=300):
    (x, y), (held_x, held_y) = made(60, 0), made(40, 1)
    held = ValidationRows(scale * held_x, held_y, [str(i // 2) for i in range(80)])
    return choose_fit(scale * x, y, held, penalties, max_iter), held


def test_the_grid_is_extended_in_both_directions_while_the_loss_decreases():
    """Features times 10 and a penalty times 100 are the same problem: four steps of the grid."""
    plain, _ = fitted(1)
    place = GRID.index(plain.penalty)
    assert PENALTIES[0] < plain.penalty < PENALTIES[-1]
    for scale, steps in ((0.1, 4), (100, -8)):
        other, held = fitted(scale)
        assert not PENALTIES[0] <= other.penalty <= PENALTIES[-1]
        assert abs(GRID.index(other.penalty) - (place + steps)) <= 1
        np.testing.assert_allclose(other.weights * scale, plain.weights, atol=0.1)
        further = np.sign(steps)
        beyond, _ = fitted(scale, (GRID[GRID.index(other.penalty) + further],))
        assert held.loss(beyond) > held.loss(other) - TOLERANCE


def test_only_passed_penalties_are_tried():
    assert fitted(0.1, (1e-3, 1e-1))[0].penalty == 1e-1
    assert fitted(100, (1e-3, 1e-1))[0].penalty == 1e-3


def test_the_chosen_fit_is_continued_until_convergence():
    x, y = made(60, 0)
    plain = LogisticRegression(C=10.0, max_iter=5000, tol=1e-10).fit(x, y)
    with pytest.warns(ConvergenceWarning):
        hasty = LogisticRegression(C=10.0, max_iter=3).fit(x, y)
    assert np.abs(hasty.coef_ - plain.coef_).max() > 0.05
    found, _ = fitted(1, (10.0,), max_iter=3)
    assert found.converged
    np.testing.assert_allclose(found.weights, plain.coef_[0], atol=5e-3)
    assert found.intercept == pytest.approx(plain.intercept_[0], abs=5e-3)


def test_the_middle_penalty_is_used_without_validation_rows():
    x, y = made(60, 0)
    assert choose_fit(x, y, None, None, 300).penalty == PENALTIES[3]
