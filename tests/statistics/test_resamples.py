"""Resamples of questions: AUCs of every resample against scikit-learn's."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from anchorlens.statistics.resamples import Resamples


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
