"""Exchange of a cut and its placebo: effects of the cut alone, and sign flips of whole clusters."""

import numpy as np
import pytest

from anchorlens.statistics.contrasts import Arm, delta_p_vs_placebo, flip_rate
from anchorlens.statistics.exchanged_arms import arm_differences, auc_differences, effects_of_cut
from anchorlens.statistics.resamples import Resamples
from anchorlens.statistics.sign_flips import sign_flip_p


def plain_auc(scores, labels):
    """The area by its definition: pairs in order, ties half."""
    pairs = [np.sign(a - b) for a in scores[labels == 1] for b in scores[labels == 0]]
    return 0.5 + np.mean(pairs) / 2


def arms(layers=3, questions=12, seed=0, ties=True):
    rng = np.random.default_rng(seed)
    p = rng.random((3, layers, 2 * questions))
    p = np.round(p, 1) if ties else p
    labels = np.tile([0.0, 1.0], questions)
    return Arm(p[0], p[1]), Arm(p[0], p[2]), labels, np.repeat(np.arange(questions) // 3, 2)


def test_flipping_the_signs_of_clusters_is_exchanging_their_arms():
    """The area is computed again from exchanged scores, with ties and a row without a placebo."""
    cut, placebo, labels, clusters = arms()
    placebo.after[1, 5] = np.nan
    parts = auc_differences(cut.after, placebo.after, labels)
    rng = np.random.default_rng(1)
    for _ in range(20):
        sign = rng.choice([-1.0, 1.0], clusters.max() + 1)[clusters]
        for layer in range(3):
            rows = ~np.isnan(placebo.after[layer])
            first = np.where(sign > 0, cut.after[layer], placebo.after[layer])[rows]
            second = np.where(sign > 0, placebo.after[layer], cut.after[layer])[rows]
            expected = plain_auc(first, labels[rows]) - plain_auc(second, labels[rows])
            flipped = np.nanmean(sign[rows] * parts[rows, layer])
            assert flipped == pytest.approx(expected, abs=1e-12)


def test_the_means_of_the_differences_are_the_contrasts():
    cut, placebo, labels, clusters = arms()
    draws = Resamples.of(clusters, n_resamples=10)
    found = arm_differences(cut, placebo, labels, "confidence", 5.0)
    expected = {
        "delta_p_vs_placebo": delta_p_vs_placebo(cut, placebo, labels, "confidence", draws),
        "flip_rate": flip_rate(cut, placebo, draws, 5.0),
        "auc_drop": draws.aucs(cut.after, labels, minus=placebo.after),
    }
    for name, one in expected.items():
        np.testing.assert_allclose(found[name].mean(0), one.value, atol=1e-9)


def test_the_effect_of_the_cut_alone_is_over_the_rows_of_both_arms():
    cut, placebo, labels, _ = arms()
    placebo.after[:, :4] = np.nan
    found = effects_of_cut(cut, placebo, labels, "confidence")
    before, after = cut.before[:, 4:], cut.after[:, 4:]
    for layer in range(3):
        expected = plain_auc(after[layer], labels[4:]) - plain_auc(before[layer], labels[4:])
        assert found["auc_drop"][layer] == pytest.approx(expected)
    sure = np.where(before >= 0.5, before, 1 - before)
    still = np.where(before >= 0.5, after, 1 - after)
    np.testing.assert_allclose(found["delta_p_vs_placebo"], 100 * (still - sure).mean(1))
    changed = (before >= 0.5) != (after >= 0.5)
    np.testing.assert_allclose(found["flip_rate"], 100 * changed.mean(1))


def test_arms_of_one_distribution_are_rejected_in_five_percent_and_an_erased_signal_always():
    rejected = 0
    for seed in range(60):
        cut, placebo, labels, _ = arms(layers=2, questions=30, seed=seed, ties=False)
        values = auc_differences(cut.after, placebo.after, labels)
        p = sign_flip_p(values, np.repeat(np.arange(30), 2), n_flips=199)
        rejected += bool(p.min() <= 0.05)
    assert rejected <= 8  # 5 % of 60: at most 8 with probability 0.99
    rng = np.random.default_rng(0)
    labels = np.tile([0.0, 1.0], 30)
    scores = (labels + 0.3 * rng.normal(size=60))[None]
    values = auc_differences(rng.random((1, 60)), scores, labels)
    assert sign_flip_p(values, np.repeat(np.arange(30), 2))[0] == pytest.approx(0.001)
