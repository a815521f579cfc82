"""Resamples of questions: values and standard errors of every resample against loops and
scikit-learn.
"""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from anchorlens.statistics.resamples import Resamples

IDS = np.array([0, 0, 1, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8])


def error_of_mean(values, ids):
    """Standard error of a mean over rows, one question at a time."""
    mean, questions = values.mean(), list(dict.fromkeys(ids))
    squares = sum(((values[ids == q] - mean).sum()) ** 2 for q in questions)
    return np.sqrt(squares * len(questions) / (len(questions) - 1)) / len(values)


def drawn(draws, i):
    """Rows of a resample and a fresh id for each drawn question."""
    rows = [
        np.flatnonzero(draws.cluster == q)
        for q, times in enumerate(draws.weights[i])
        for _ in range(int(times))
    ]
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), list(map(len, rows)))


def test_means_and_errors_of_every_resample_equal_a_loop_over_its_rows():
    rng = np.random.default_rng(0)
    values, members = rng.normal(5, 3, (15, 2)), np.ones((15, 2), dtype=bool)
    members[:, 1] = rng.random(15) < 0.7
    draws = Resamples.of(IDS, n_resamples=50, seed=1)
    found = draws.means(values, members)
    for point in range(2):
        rows = members[:, point]
        assert found.value[point] == pytest.approx(values[rows, point].mean())
        assert found.error[point] == pytest.approx(error_of_mean(values[rows, point], IDS[rows]))
        assert found.n[point] == len(set(IDS[rows]))
        for i in range(50):
            rows, ids = drawn(draws, i)
            kept = members[rows, point]
            assert found.draws[i, point] == pytest.approx(values[rows[kept], point].mean())
            assert found.errors[i, point] == pytest.approx(
                error_of_mean(values[rows[kept], point], ids[kept])
            )


def test_a_group_of_one_question_has_no_standard_error():
    one = np.arange(15)[:, None] < 2
    found = Resamples.of(IDS, n_resamples=30).means(np.ones((15, 1)), one)
    assert np.isnan(found.error[0])
    many = Resamples.of(IDS, n_resamples=30).means(np.ones((15, 1)), np.arange(15)[:, None] < 5)
    assert np.isnan(many.draws).any()
    assert (np.isnan(many.errors) >= np.isnan(many.draws)).all()


def influence_of_auc(scores, labels, ids):
    """Influence of each question on an AUC: pairs of rows are compared one by one."""
    auc, influence = roc_auc_score(labels, scores), dict.fromkeys(ids, 0.0)
    for score, label, question in zip(scores, labels, ids, strict=True):
        others = scores[labels != label]
        wins = ((score > others) if label else (score < others)) + 0.5 * (score == others)
        influence[question] += (wins.mean() - auc) / (labels == label).sum()
    return np.array(list(influence.values()))


def test_aucs_and_errors_of_every_resample_equal_scikit_learns_and_a_loop_with_ties():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 7, (2, 60)).astype(float), rng.integers(0, 2, 60).astype(float)
    ids = np.repeat(np.arange(30), 2)
    draws = Resamples.of(ids, n_resamples=20, seed=3)
    found, difference = draws.aucs(scores, labels), draws.aucs(scores[:1], labels, minus=scores[1:])
    assert found.value == pytest.approx([roc_auc_score(labels, one) for one in scores])
    influences = [30 * influence_of_auc(one, labels, ids) for one in scores]
    np.testing.assert_allclose(
        found.far, [[one.min() for one in influences], [one.max() for one in influences]], rtol=1e-5
    )
    assert difference.far[1, 0] == pytest.approx((influences[0] - influences[1]).max(), rel=1e-5)
    for i in range(20):
        rows, again = drawn(draws, i)
        influences = [influence_of_auc(one[rows], labels[rows], again) for one in scores]
        factor = np.sqrt(30 / 29)
        for point, influence in enumerate(influences):
            assert found.draws[i, point] == pytest.approx(
                roc_auc_score(labels[rows], scores[point, rows])
            )
            assert found.errors[i, point] == pytest.approx(factor * np.sqrt((influence**2).sum()))
        assert difference.draws[i, 0] == pytest.approx(found.draws[i, 0] - found.draws[i, 1])
        assert difference.errors[i, 0] == pytest.approx(
            factor * np.sqrt(((influences[0] - influences[1]) ** 2).sum())
        )


def test_the_standard_error_of_an_auc_is_that_of_new_samples():
    """Two rows a question with a common part: the mean standard error is the standard deviation
    over 400 samples.
    """
    rng, found = np.random.default_rng(1), []
    for _ in range(400):
        label = np.tile([0.0, 1.0], 60)
        scores = label + np.repeat(rng.normal(size=60), 2) + rng.normal(size=120)
        one = Resamples.of(np.repeat(np.arange(60), 2), n_resamples=1).aucs(scores[None], label)
        found.append((one.value[0], one.error[0]))
    values, errors = np.array(found).T
    assert errors.mean() == pytest.approx(values.std(), rel=0.12)


def test_auc_of_one_label_is_missing():
    found = Resamples.of(["a", "b", "c"]).aucs(np.arange(3.0)[None], np.ones(3))
    assert np.isnan([found.value[0], *found.draws[:, 0], found.error[0]]).all()
