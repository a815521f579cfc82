"""The bootstrap: against a plain loop, and what it must do with repeated questions and missing values."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from anchorlens.errors import ShapeError
from anchorlens.statistics.resamples import Resamples, bootstrap_mean


def test_equals_a_plain_loop_over_questions():
    rng = np.random.default_rng(1)
    values, ids = rng.normal(size=(12, 3)), np.array(list("aabccddefghi"))
    band = bootstrap_mean(values, ids, n_resamples=4000, seed=5)
    names = sorted(set(ids))
    means = []
    for _ in range(4000):
        rows = np.concatenate([np.flatnonzero(ids == q) for q in rng.choice(names, len(names))])
        means.append(values[rows].mean(0))
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    np.testing.assert_allclose(band.mean, values.mean(0))
    np.testing.assert_allclose(band.low, low, atol=0.05)
    np.testing.assert_allclose(band.high, high, atol=0.05)
    assert band.n.tolist() == [9, 9, 9]


def test_repeating_every_row_narrows_nothing():
    """Ten copies of each question are no new evidence."""
    values = np.random.default_rng(2).normal(size=(30, 1))
    ids = np.arange(30)
    once = bootstrap_mean(values, ids, seed=3)
    ten = bootstrap_mean(np.repeat(values, 10, 0), np.repeat(ids, 10), seed=3)
    np.testing.assert_allclose(ten.low, once.low)
    np.testing.assert_allclose(ten.high, once.high)


def test_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(4)
    hits = 0
    for trial in range(300):
        band = bootstrap_mean(rng.normal(size=(60, 1)), np.arange(60), n_resamples=300, seed=trial)
        hits += bool(band.low[0] <= 0 <= band.high[0])
    assert 0.89 < hits / 300 < 0.99


def test_missing_values_are_left_out_not_zero():
    values = np.array([[1.0, np.nan], [3.0, 5.0], [np.nan, np.nan]])
    band = bootstrap_mean(values, np.arange(3))
    assert band.mean.tolist() == [2.0, 5.0]
    assert band.n.tolist() == [2, 1]
    assert np.isnan(band.low[1])
    assert not np.isnan(band.low[0])


def test_same_seed_same_band_other_seed_another():
    values = np.random.default_rng(0).normal(size=(20, 2))
    bands = [bootstrap_mean(values, np.arange(20), seed=s).low.tolist() for s in (1, 1, 2)]
    assert bands[0] == bands[1] != bands[2]


def test_shape_error_names_both():
    with pytest.raises(ShapeError, match=r"got \(3, 2\) and 2 ids"):
        bootstrap_mean(np.zeros((3, 2)), ["a", "b"])


def test_auc_and_its_resamples_equal_scikit_learns_with_ties():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 7, 60).astype(float), rng.integers(0, 2, 60).astype(float)
    draws = Resamples.of(np.repeat(np.arange(30), 2), n_resamples=20, seed=3)
    auc, many = draws.aucs(scores, labels)
    assert auc == pytest.approx(roc_auc_score(labels, scores))
    for i in range(20):
        weight = draws.weights[i][draws.cluster]
        assert many[i] == pytest.approx(roc_auc_score(labels, scores, sample_weight=weight))


def test_auc_of_one_label_is_missing():
    auc, many = Resamples.of(["a", "b", "c"]).aucs(np.arange(3.0), np.ones(3))
    assert np.isnan(auc)
    assert np.isnan(many).all()
