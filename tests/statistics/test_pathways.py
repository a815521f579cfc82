"""Pathways: the selection effect of a probe at chance, and effects that placebos take away or leave."""

import numpy as np
import pytest

from anchorlens.statistics.delta import delta_p, flipped
from anchorlens.statistics.pathways import ALL, A, Q, effects_frame, group_curves
from anchorlens.statistics.resamples import Resamples


def curves_of(before, after, ids, q=None):
    q = flipped(before, after) if q is None else q
    delta = delta_p(before, after, np.ones(before.shape[-1]), "confidence")
    return group_curves(delta, np.maximum(before, 1 - before), q, Resamples.of(ids, seed=0))


def chance(seed, n=400, layers=3):
    """A probe that reads nothing but noise, before and after."""
    rng = np.random.default_rng(seed)
    clean = rng.normal(size=(layers, n))
    noisy = 0.7 * clean + rng.normal(size=(layers, n)) * 0.7
    return 1 / (1 + np.exp(-clean)), 1 / (1 + np.exp(-noisy))


def test_a_probe_at_chance_draws_q_far_below_a_and_the_placebo_takes_it_away():
    ids = [f"q{i // 2}" for i in range(400)]
    real, placebo = curves_of(*chance(1), ids), curves_of(*chance(2), ids)
    assert (real[Q].mean < -20).all()
    assert (abs(real[A].mean) < 10).all()
    frame = effects_frame({"none": real, "matched": real, "random_tokens": placebo}, [0, 1, 2])
    gap = frame[(frame["quantity"] == "gap") & (frame["control"] == "none")]
    effect = frame[frame["quantity"] == "effect"]
    assert (gap["ci_high"] < -15).all()
    assert ((effect["ci_low"] < 0) & (effect["ci_high"] > 0)).all()


def test_a_real_effect_is_left():
    """The true knockout sends half of the rows to the other side for good; the placebo is noise."""
    ids = [f"q{i}" for i in range(400)]
    before, after = chance(1)
    strong = after.copy()
    strong[:, :200] = 1 - before[:, :200]
    frame = effects_frame(
        {
            "none": curves_of(before, strong, ids),
            "matched": curves_of(before, strong, ids),
            "random_tokens": curves_of(*chance(2), ids),
        },
        [0, 1, 2],
    )
    effect = frame[frame["quantity"] == "effect"]
    assert (effect["ci_high"] < -2).all()
    real = frame[(frame["quantity"] == "gap") & (frame["control"] == "matched")]["value"].to_numpy()
    other = frame[frame["quantity"] == "placebo_gap"]["value"].to_numpy()
    np.testing.assert_allclose(effect["value"], real - other)


def test_groups_against_plain_means_with_missing_rows_and_an_empty_group():
    before, after = np.array([[0.9, 0.8, 0.7, 0.6]]), np.array([[0.2, 0.9, 0.6, np.nan]])
    groups = curves_of(before, after, ["a", "a", "b", "c"])
    assert groups[Q].mean[0] == pytest.approx(-70)
    assert groups[A].mean[0] == pytest.approx((10 - 10) / 2)
    assert groups[ALL].mean[0] == pytest.approx(-70 / 3)
    assert (groups[Q].n[0], groups[A].n[0], groups[ALL].n[0]) == (1, 2, 2)
    assert groups[ALL].before[0] == pytest.approx(0.8)
    none = curves_of(before, np.array([[0.9, 0.8, 0.7, np.nan]]), ["a", "a", "b", "c"])
    assert np.isnan(none[Q].mean[0])
    assert none[Q].n[0] == 0
