"""Contrasts without selection: against plain loops, and how often they are found where nothing or
something is there.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from anchorlens.statistics import contrasts as module
from anchorlens.statistics.contrasts import (
    Arm,
    delta_p_vs_placebo,
    flip_rate,
    flips,
    row_specific_changes,
)
from anchorlens.statistics.resamples import Resamples

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "null_rates.py"
IDS = np.repeat(np.arange(30), 2)
LABEL = np.tile([0.0, 1.0], 30)


@pytest.fixture(scope="module")
def rates():
    """The script that prints the tables of docs/statistics.md."""
    spec = importlib.util.spec_from_file_location("null_rates", SCRIPT)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def arms(seed=0, layers=2):
    rng = np.random.default_rng(seed)
    before, own, other = rng.random((3, layers, 60))
    own[0, 3] = np.nan
    other[0, 8] = np.nan
    return Arm(before, own), Arm(before, other)


def delta(before, after):
    return 100 * (after - before if before >= 0.5 else before - after)


def test_delta_p_vs_placebo_and_flip_rate_against_a_loop_over_rows_that_have_both():
    own, other = arms()
    draws = Resamples.of(IDS, n_resamples=50)
    found, flipped = (
        delta_p_vs_placebo(own, other, LABEL, "confidence", draws),
        flip_rate(own, other, draws),
    )
    for layer in range(2):
        rows = [r for r in range(60) if layer or r not in (3, 8)]
        moved, turned = [], []
        for before, cut, placebo in zip(
            own.before[layer, rows], own.after[layer, rows], other.after[layer, rows], strict=True
        ):
            moved.append(delta(before, cut) - delta(before, placebo))
            turned.append(
                100.0
                * (int((before >= 0.5) != (cut >= 0.5)) - int((before >= 0.5) != (placebo >= 0.5)))
            )
        assert found.value[layer] == pytest.approx(np.mean(moved))
        assert flipped.value[layer] == pytest.approx(np.mean(turned))
    assert found.n.tolist() == [30, 30]
    assert np.isnan(flips(own)[0, 3])


def test_the_difference_of_aucs_is_paired_and_leaves_out_rows_that_one_side_lacks():
    own, other = arms()
    found = Resamples.of(IDS, n_resamples=50).aucs(own.after, LABEL, minus=other.after)
    rows = [r for r in range(60) if r not in (3, 8)]
    wanted = [roc_auc_score(LABEL[rows], arm.after[0, rows]) for arm in (own, other)]
    assert found.value[0] == pytest.approx(wanted[0] - wanted[1])
    same = Resamples.of(IDS, n_resamples=50).aucs(own.after, LABEL, minus=own.after)
    assert (same.draws == 0).all()
    lone = Resamples.of(IDS, n_resamples=50).aucs(np.full((1, 60), np.nan), LABEL)
    assert np.isnan(lone.value[0])
    assert lone.n[0] == 0


def test_row_specific_effect_against_all_pairs_of_a_fifth(monkeypatch):
    """With many permutations it is the mean over all rows of the fifth that have another
    question.
    """
    monkeypatch.setattr(module, "PERMUTATIONS", 3000)
    rng = np.random.default_rng(5)
    clean, change = rng.normal(size=60), rng.normal(size=60) * 2
    p = [1 / (1 + np.exp(-x)) for x in (clean, clean + change)]
    found = row_specific_changes(Arm(p[0][None], p[1][None]), LABEL, "confidence", IDS, 0)
    wanted = []
    for fifth in np.array_split(np.argsort(np.abs(clean)), 5):
        for i in fifth:
            others = [
                delta(p[0][i], 1 / (1 + np.exp(-(clean[i] + change[j]))))
                for j in fifth
                if IDS[i] != IDS[j]
            ]
            wanted.append(delta(p[0][i], p[1][i]) - np.mean(others))
    assert found.mean() == pytest.approx(np.mean(wanted), abs=0.3)
    assert abs(np.mean(wanted)) > 0.5


def test_a_change_that_is_the_same_for_all_is_not_the_rows_own():
    clean = np.random.default_rng(1).normal(size=(1, 60))
    p = [1 / (1 + np.exp(-x)) for x in (clean, clean + 1.5)]
    found = row_specific_changes(Arm(*p), LABEL, "confidence", IDS, 0)
    np.testing.assert_allclose(found, 0, atol=1e-6)


def test_a_saturated_probability_stays_a_number():
    arm = Arm(np.array([[1.0, 0.0] * 30]), np.array([[0.0, 1.0] * 30]))
    assert np.isfinite(row_specific_changes(arm, LABEL, "confidence", IDS, 0)).all()


def run_rates(rates, world, runs):
    return rates.sweep_rates(40, rates.WORLDS[world], runs=runs, seed=1, resamples=200)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("world", ["noise", "size with confidence", "skewed"])
def test_without_an_effect_each_tail_is_small(rates, world):
    """Measured with 1,000 runs: 1 to 5 % (docs/statistics.md).

    A gap between pathways lies off 0 in nearly all.
    """
    found = run_rates(rates, world, 50)
    assert max(found[f"{name} {side}"] for name in rates.CLAIMS for side in "<>") <= 10
    assert max(found["stands"], found["one or two"], found["reversed"]) <= 8


@pytest.mark.slow
def test_effects_are_found_and_disturbance_is_not_called_specific(rates):
    erased = run_rates(rates, "cut erases the truth part", 25)
    assert (
        min(erased["stands"], erased["specific"], erased["auc_drop <"], erased["flip_rate >"]) > 90
    )
    halved = run_rates(rates, "cut halves the logit", 25)
    assert min(halved["delta_p_vs_placebo <"], halved["row_specific_vs_placebo <"]) > 90
    noisier = run_rates(rates, "cut only noisier than placebo", 25)
    assert noisier["flip_rate >"] > 50
    assert noisier["row_specific_vs_placebo <"] <= 10


@pytest.mark.slow
def test_where_both_cuts_attenuate_the_effect_is_not_called_specific(rates):
    """The row-specific effect of the cut alone lies below 0 in many of these sweeps."""
    found = run_rates(rates, "both attenuate, cut noisier", 40)
    assert found["specific"] <= 5 < found[f"{rates.OWN} <"]
    assert found["stands"] > 15


def test_flips_within_the_noise_floor_do_not_count():
    arm = Arm(np.array([[0.50001, 0.6, 0.4, 0.7]]), np.array([[0.49999, 0.4, np.nan, 0.8]]))
    assert flips(arm).tolist()[0][:2] == [100, 100]
    assert flips(arm, 0.01).tolist()[0][:2] == [0, 100]
    draws = Resamples.of(np.arange(4), n_resamples=5)
    still = Arm(arm.before, arm.before)
    assert flip_rate(arm, still, draws, 0.01).value[0] == pytest.approx(100 / 3)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_sweeps_of_noise_name_no_layer_and_an_effect_is_named(rates):
    noise, erased = (
        rates.layer_rates(40, rates.CUTS[world], runs=runs, seed=2, resamples=300)
        for world, runs in (("noise", 60), ("cut erases the truth part", 10))
    )
    assert noise["names a layer"] <= 6
    assert min(noise[name] for name in rates.CLAIMS) >= 85
    assert noise["pointwise delta_p_vs_placebo"] < 60
    assert erased["names a layer"] == 100
