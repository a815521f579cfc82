"""Pathways: the selection effect of a probe at chance, and gaps, which describe it."""

import numpy as np
import pytest

from anchorlens.statistics.delta import delta_p, is_flipped
from anchorlens.statistics.pathways import ALL, A, Q, gaps, group_curves, quantity_frame
from anchorlens.statistics.resamples import Resamples


def curves_of(before, after, ids, q=None):
    q = is_flipped(before, after) if q is None else q
    delta = delta_p(before, after, np.ones(before.shape[-1]), "confidence")
    return group_curves(delta, np.maximum(before, 1 - before), q, Resamples.of(ids, seed=0))


def named(curves):
    """Gaps by name and control."""
    return {(name, control): estimate for name, control, estimate in gaps(curves)}


def chance(seed, n=400, layers=3):
    """A probe that reads nothing but noise, before and after."""
    rng = np.random.default_rng(seed)
    clean = rng.normal(size=(layers, n))
    noisy = 0.7 * clean + rng.normal(size=(layers, n)) * 0.7
    return 1 / (1 + np.exp(-clean)), 1 / (1 + np.exp(-noisy))


def test_a_probe_at_chance_draws_q_far_below_a_and_the_placebo_takes_it_away():
    ids = [f"q{i // 2}" for i in range(400)]
    real, placebo = curves_of(*chance(1), ids), curves_of(*chance(2), ids)
    assert (real[Q].value < -20).all()
    assert (abs(real[A].value) < 10).all()
    found = named({"none": real, "size_matched": real, "random_tokens": placebo})
    gap = quantity_frame([0, 1, 2], "gap", "none", found["gap", "none"])
    assert (gap["ci_high"] < -15).all()
    difference = quantity_frame(
        [0, 1, 2], "gap_difference", "random_tokens", found["gap_difference", "random_tokens"]
    )
    assert ((difference["ci_low"] < 0) & (difference["ci_high"] > 0)).all()
    assert (difference["sim_low"] <= difference["ci_low"]).all()


def test_a_gap_difference_is_deaf_to_how_many_flip():
    """The cut flips half of the rows, the placebo a few: the gaps are alike, and that is why no
    claim rests on them.
    """
    ids = [f"q{i}" for i in range(400)]
    before = np.full((1, 400), 0.8)
    cut, placebo = before.copy(), before.copy()
    cut[:, :200], placebo[:, :10] = 0.3, 0.3
    arms = {"none": cut, "size_matched": cut, "random_tokens": placebo}
    found = named({name: curves_of(before, after, ids) for name, after in arms.items()})
    (difference,) = [estimate for (name, _), estimate in found.items() if name == "gap_difference"]
    assert difference.value[0] == pytest.approx(0)


def test_the_cross_fold_gap_and_what_selection_made_of_the_gap_have_names_of_their_own():
    ids = [f"q{i}" for i in range(400)]
    before, after = chance(1)
    other = is_flipped(*chance(3))
    arms = {
        "none": (before, after, ids),
        "cross_fold": (before, after, ids, other),
        "shuffled_labels": (*chance(5), ids),
    }
    names = named({name: curves_of(*arm) for name, arm in arms.items()})
    assert set(names) == {
        ("gap", "none"),
        ("cross_fold_gap", "cross_fold"),
        ("placebo_gap", "shuffled_labels"),
        ("gap_difference", "shuffled_labels"),
        ("selection", "cross_fold"),
    }
    np.testing.assert_allclose(
        names["selection", "cross_fold"].value,
        names["gap", "none"].value - names["cross_fold_gap", "cross_fold"].value,
    )


def test_groups_against_plain_means_with_missing_rows_and_an_empty_group():
    before, after = np.array([[0.9, 0.8, 0.7, 0.6]]), np.array([[0.2, 0.9, 0.6, np.nan]])
    groups = curves_of(before, after, ["a", "a", "b", "c"])
    assert groups[Q].value[0] == pytest.approx(-70)
    assert groups[A].value[0] == pytest.approx((10 - 10) / 2)
    assert groups[ALL].value[0] == pytest.approx(-70 / 3)
    assert (groups[Q].n[0], groups[A].n[0], groups[ALL].n[0]) == (1, 2, 2)
    assert groups[ALL].before[0] == pytest.approx(0.8)
    none = curves_of(before, np.array([[0.9, 0.8, 0.7, np.nan]]), ["a", "a", "b", "c"])
    assert np.isnan(none[Q].value[0])
    assert none[Q].n[0] == 0
