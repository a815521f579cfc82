"""What a swap claims: less its nulls, anchors against each other, and words.

Simulated sweeps, no model.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from anchorlens.display import three_digits
from anchorlens.protocols.swap.findings import note_on_p_values
from anchorlens.results.both_directions import necessity_sentence
from anchorlens.results.estimates import name_layers
from anchorlens.results.findings import BEYOND_POSITIONS, NOT_DETECTED, Finding
from anchorlens.statistics.bands import bootstrap_mean
from tests.protocols.swap.simulated import (
    NULLS,
    SIMULATION,
    changed,
    donor_values,
    false_rates,
    power,
    shifted,
    simulated,
    statements,
)
from tests.running.small_sweeps import sweep
from tests.tiers import choose_cases


@pytest.mark.parametrize(
    "world", choose_cases((), ("normal", "shared level", "curve sparse"), slow=("curve sparse",))
)
def test_few_sweeps_without_an_effect_claim_a_layer(world):
    """Pointwise intervals would name one in most; the band over all anchors and layers in about one
    of twenty.
    """
    assert max(false_rates(world, 40, 60, n_resamples=300)) <= 0.15
    runs = [
        simulated(world, 40, seed, n_resamples=300).contrasts().query("control == 'same_role'")
        for seed in range(15)
    ]
    pointwise = [((run["ci_low"] > 0) | (run["ci_high"] < 0)).any() for run in runs]
    assert np.mean(pointwise) > 0.4


def test_an_effect_is_found_where_it_is():
    positions, change, wrong = power(60, 12, effect=-12, n_resamples=200)
    assert min(positions, change) >= 0.9
    assert wrong <= 0.2


def test_delta_p_minus_null_is_paired_by_question_and_shares_one_band_over_anchors_layers_and_nulls(
    effect,
):
    contrasts = effect.contrasts().query("quantity == 'delta_p_minus_null'")
    table = (
        effect.samples(all_columns=True)
        .set_index(["anchor", "question_id", "layer", "control"])["effect"]
        .unstack("control")
    )
    places = pd.MultiIndex.from_product([effect.anchors, effect.layers])
    gaps = [
        (table["none"] - table[null]).unstack(["anchor", "layer"]).reindex(columns=places)
        for null in NULLS
    ]
    values = np.concatenate([gap.to_numpy() for gap in gaps], axis=1)
    wanted = bootstrap_mean(values, gaps[0].index, n_resamples=1000, seed=0)
    same = {
        "value": wanted.value,
        "ci_low": wanted.low,
        "sim_low": wanted.sim_low,
        "sim_high": wanted.sim_high,
    }
    for column, value in same.items():
        np.testing.assert_allclose(contrasts[column], value)
    # A band of its own for each null would be narrower: it holds for fewer points.
    alone = bootstrap_mean(gaps[0].to_numpy(), gaps[0].index, n_resamples=1000, seed=0)
    own = contrasts.query("control == 'same_role'")["sim_low"].to_numpy()
    assert (own <= alone.sim_low).all()
    assert (own < alone.sim_low).any()


def test_anchors_are_compared_paired_by_question(effect):
    contrasts = effect.contrasts().query("quantity == 'anchor_difference'")
    assert contrasts["anchor"].unique().tolist() == ["exact_question - pre_answer"]
    assert set(contrasts["control"]) == {"none"}
    own = effect.samples(all_columns=True).query("control == 'none'")
    own = own.set_index(["question_id", "layer", "anchor"])["effect"].unstack("anchor")
    gap = (own["exact_question"] - own["pre_answer"]).unstack("layer")
    wanted = bootstrap_mean(gap.to_numpy(), gap.index, n_resamples=1000, seed=0)
    for column, value in (
        ("value", wanted.value),
        ("ci_high", wanted.high),
        ("sim_low", wanted.sim_low),
    ):
        np.testing.assert_allclose(contrasts[column], value)
    assert contrasts["n"].tolist() == [60] * 30


@pytest.mark.slow
def test_every_two_anchors_are_compared_and_all_donors_take_part(tiny_model):
    made = sweep(tiny_model("llama"), anchors=("subject", "property", "pre_answer"), layers=(1, 2))
    found = made.contrasts().query("quantity == 'anchor_difference'")
    assert found["anchor"].unique().tolist() == [
        "subject - property",
        "subject - pre_answer",
        "property - pre_answer",
    ]
    mean = made.samples().query("control == 'none'").groupby(["anchor", "layer"])["effect"].mean()
    for row in found.itertuples():
        one, other = row.anchor.split(" - ")
        assert row.value == pytest.approx(mean[one, row.layer] - mean[other, row.layer])


def test_findings_are_the_layers_whose_band_excludes_0_and_the_words_follow(effect):
    facts = effect.contrasts().query("quantity == 'delta_p_minus_null'")
    below = {
        null: set(own[(own["anchor"] == "exact_question") & (own["sim_high"] < 0)]["layer"])
        for null, own in facts.groupby("control")
    }
    positions, change = below["same_role"], below["same_role"] & below["norm_matched"]
    assert change and change <= set(range(10, 20))
    largest = {
        null: own.loc[own["value"].abs().idxmax(), "layer"]
        for null, own in facts.query("anchor == 'pre_answer'").groupby("control")
    }
    assert statements(effect) == {
        ("exact_question", "same_role", "beyond other positions"): positions,
        ("exact_question", "norm_matched", "beyond a matched change"): change,
        ("pre_answer", "same_role", "not detected"): {largest["same_role"]},
        ("pre_answer", "norm_matched", "not detected"): {largest["norm_matched"]},
    }
    lines = effect.verdict.splitlines()
    assert lines[0] == effect.findings.headline
    assert lines[0].startswith("Beyond other positions at exact_question (")
    assert (
        ": P of the answer falls more than after a swap of other positions. Beyond a matched change"
        " at exact_question (" in lines[0]
    )
    assert lines[1].split() == [
        "anchor",
        "null",
        "curve",
        "minus",
        "null",
        "[joint",
        "95",
        "%]",
        "layer",
        "p",
        "status",
        "layers",
    ]
    assert [line.split()[0] for line in lines[2:6]] == [
        "exact_question",
        "exact_question",
        "pre_answer",
        "pre_answer",
    ]
    quiet = facts.query("anchor == 'pre_answer' and control == 'same_role'")
    assert (
        f"between {three_digits(quiet['sim_low'].min())} and"
        f" {three_digits(quiet['sim_high'].max())} at pre_answer remain compatible."
        in effect.verdict
    )


@pytest.mark.slow
def test_without_an_effect_nothing_is_claimed_and_compatible_effects_are_given():
    nothing = simulated("normal", 60, seed=1)
    assert {status for _, _, status in statements(nothing)} == {"not detected"}
    assert (
        nothing.findings.headline
        == "No effect of the swap on P of the answer beyond same_role was detected at any anchor"
        " and layer."
    )
    assert "Effects between -" in nothing.verdict


@pytest.mark.slow
def test_what_the_swap_raises_is_said(effect):
    other = changed(
        effect, effect.samples(all_columns=True).assign(effect=lambda frame: -frame["effect"])
    )
    assert (
        ": P of the answer rises more than after a swap of other positions."
        in other.findings.headline
    )
    both = changed(effect, shifted(effect, ([25], ["none"], 25)))
    assert statements(both)["pre_answer", "same_role", "beyond other positions"] == {25}
    assert (
        "falls more than after a swap of other positions; at pre_answer (layer 25) it rises."
        " Beyond a matched change at" in both.findings.headline
    )


@pytest.mark.slow
def test_falls_and_rises_of_one_anchor_are_findings_of_their_own(effect):
    """Layers at which P rises are not necessary, and those at which it falls not sufficient."""
    moved = changed(effect, shifted(effect, ([25], ["none"], 25), anchor="exact_question"))
    fall, rise = (
        one
        for one in moved.findings.claims
        if one.anchor == "exact_question" and one.status == "beyond other positions"
    )
    assert fall.value < 0 < rise.value
    assert set(fall.layers) <= set(range(10, 20))
    assert rise.layers == (25,)
    layers = name_layers(fall.layers)
    said = necessity_sentence("exact_question", moved.findings, moved.findings)
    assert said == f"exact_question: necessary ({layers}) and sufficient (layer 25)."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("swap", "null", "verb"), [(-1, 15, "raises"), (-2, -25, "lowers"), (1, -15, "lowers")]
)
def test_a_null_that_moves_more_than_the_swap_is_no_effect_of_the_swap(effect, swap, null, verb):
    moved = effect.samples(all_columns=True)
    here = moved.eval("anchor == 'pre_answer' and layer == 25")
    points = moved.loc[here, "control"].map({"none": swap, "same_role": null, "norm_matched": null})
    moved.loc[here, "effect"] = moved.loc[here, "effect"] / 10 + points
    alone = changed(effect, moved[moved["anchor"] == "pre_answer"], anchors=("pre_answer",))
    assert statements(alone) == {("pre_answer", name, "null moves"): {25} for name in NULLS}
    assert alone.findings.headline.startswith("No effect of the swap on P of the answer")
    assert (
        alone.findings.notes[0]
        == f"The null same_role itself {verb} P of the answer at pre_answer (layer 25) and accounts"
        " for most of its difference from the swap: nothing is claimed there."
    )
    assert "pre_answer" not in changed(effect, moved).findings.headline


@pytest.mark.slow
def test_a_layer_is_claimed_if_the_curve_is_at_least_half_of_the_difference(effect):
    """At layers 25 and 26 the difference is about -25; the curve falls by 15 and the null rises by
    10, or the other way round.
    """
    moved = effect.samples(all_columns=True)
    moved.loc[moved.eval("anchor == 'pre_answer' and layer in [25, 26]"), "effect"] /= 100
    shifts = ([25], ["none"], -15), ([25], NULLS, 10), ([26], ["none"], -10), ([26], NULLS, 15)
    found = statements(changed(effect, shifted(changed(effect, moved), *shifts)))
    for null, status in (
        ("same_role", "beyond other positions"),
        ("norm_matched", "beyond a matched change"),
    ):
        assert found["pre_answer", null, status] == {25}
        assert found["pre_answer", null, "null moves"] == {26}


@pytest.mark.slow
def test_a_disturbance_is_beyond_other_positions_but_not_beyond_a_matched_change(effect):
    """Curve and norm_matched fall alike at layers 3-5, but not same_role; at layer 8 same_role
    falls, but not norm_matched.
    """
    shifts = (range(3, 6), ["none", "norm_matched"], -60), ([8], ["none", "same_role"], -60)
    found = changed(effect, shifted(effect, *shifts))
    told = statements(found)
    assert told["pre_answer", "same_role", "beyond other positions"] == {3, 4, 5}
    # Beyond a turned stream, but a swap of other positions has the same effect.
    assert told["pre_answer", "norm_matched", "description"] == {8}
    takes = [note for note in found.findings.notes if " itself takes " in note]
    assert [note.split(" itself")[0] for note in takes] == [
        "The null same_role",
        "The null norm_matched",
    ]
    assert " % of P of the answer at pre_answer (layers 3-5) (means)" in takes[1]
    shares = [int(word) for word in takes[1].split(" % ")[0].split() if word.isdecimal()]
    assert 75 <= min(shares) <= max(shares) <= 95
    assert any(
        note.startswith("At other layers beyond other positions, nothing beyond a matched change")
        for note in found.findings.notes
    )
    assert "itself takes" not in effect.verdict


@pytest.mark.slow
def test_other_nulls_have_their_own_words(effect):
    """With norm_matched alone (donors that are no rows) the claim needs no same_role; displaced
    alone has the status stands.
    """
    samples = effect.samples(all_columns=True)
    one = changed(effect, samples[samples["control"] != "same_role"])
    assert one.findings.headline.startswith("Beyond a matched change at exact_question (")
    assert {status for _, _, status in statements(one)} == {
        "beyond a matched change",
        "not detected",
    }
    displaced = samples[samples["control"] != "norm_matched"].replace(
        {"control": {"same_role": "null"}}
    )
    two = changed(effect, displaced)
    assert two.findings.headline.startswith("Beyond displaced at exact_question (")
    assert {(null, status) for _, null, status in statements(two)} == {
        ("null", "stands"),
        ("null", "not detected"),
    }
    assert [row[1] for row in two.findings.rows] == ["displaced", "displaced"]


@pytest.mark.slow
def test_layers_in_many_pieces_and_many_anchors_are_counted(effect):
    pieces = [2, 4, 9, 20, 22, 26]
    found = changed(effect, shifted(effect, (pieces, ["none"], -25)))
    assert statements(found)["pre_answer", "same_role", "beyond other positions"] == set(pieces)
    assert "pre_answer (6 layers of 2-26)" in found.findings.headline
    names = (
        "exact_question",
        "subject",
        "property",
        "subject_last",
        "question_rest",
        "prompt_last",
        "pre_answer",
    )
    one = found.samples(all_columns=True).query("anchor == 'pre_answer'")
    many = changed(
        found,
        pd.concat([one.assign(anchor=name) for name in names]),
        anchors=names,
        n_resamples=200,
    ).findings
    assert many.headline.startswith(
        "Beyond other positions at 7 of 7 anchors: P of the answer falls"
    )
    assert many.rows[-1][0] == "and 6 more: contrasts()"
    assert {row[-1] for row in many.rows[:-1]} == {"6 of 2-26"}
    assert (
        max(len(str(findings).split()) for findings in (many, found.findings, effect.findings))
        <= 200
    )


@pytest.mark.slow
def test_the_donors_answer_is_claimed_if_it_becomes_more_likely_than_after_a_matched_change(effect):
    found = donor_values(effect, swap=0.3, null=0.0)
    told = statements(found)
    assert told["exact_question", "norm_matched", "donor's answer"] == set(range(10, 20))
    assert "Donor's answer at exact_question (layers 10-19): it becomes more likely" in (
        found.findings.headline
    )
    assert "interchange accuracy 100 [" in found.findings.headline
    moved = donor_values(effect, swap=0.3, null=0.3)
    assert ("exact_question", "norm_matched", "donor's answer") not in statements(moved)
    falls = donor_values(effect, swap=-0.01, null=-0.3, base=0.4)
    assert ("exact_question", "norm_matched", "donor's answer") not in statements(falls)


@pytest.mark.slow
def test_the_verdict_says_where_the_other_metric_differs(effect):
    """The logit difference changes with P here; at layers 10 to 14 it is held still."""
    found = donor_values(effect, swap=0.0, null=0.0)
    frame = found.samples(all_columns=True)
    frame.loc[frame.eval("10 <= layer < 15"), "logit_diff_after"] = 3.0
    still = changed(found, frame)
    notes = [note for note in still.findings.notes if note.startswith("By the logit difference")]
    assert "beyond other positions is not shown at exact_question" in " ".join(notes)
    by_logits = changed(found, frame, metric="logit_diff")
    claimed = set(by_logits.findings.claims[0].layers)
    assert claimed and claimed <= set(range(15, 20))
    assert by_logits.findings.claims[0].quantity == "delta_logit_diff_minus_null"
    assert "the logit difference falls more than" in by_logits.findings.headline


def test_what_holds_by_the_other_metric_alone_does_not_also_hold(effect):
    found = donor_values(effect, swap=0.0, null=0.0)
    frame = found.samples(all_columns=True)
    frame["value_after"] = frame["value_before"]
    frame["effect"] = 0.0
    notes = " ".join(changed(found, frame).findings.notes)
    assert "By the logit difference, beyond other positions holds at exact_question" in notes


@pytest.mark.parametrize(
    ("status", "p", "is_told"),
    [
        (NOT_DETECTED, 0.003, True),
        (NOT_DETECTED, 0.2, False),
        (NOT_DETECTED, None, False),
        (BEYOND_POSITIONS, 0.003, False),
    ],
)
def test_a_small_p_of_what_is_not_detected_is_explained(status, p, is_told):
    notes = note_on_p_values([Finding("delta_p_minus_null", status, p=p)])
    assert bool(notes) == is_told


def test_an_effect_has_a_small_p_and_noise_has_none(effect):
    less = effect.contrasts().query("quantity == 'delta_p_minus_null' and control == 'same_role'")
    own = less.set_index(["anchor", "layer"])["p"]
    assert own.loc["exact_question", 10:19].max() <= 0.05
    assert own.loc["pre_answer"].min() > 0.05
    # Two nulls are tested.
    assert effect.findings.claims[0].p == 2 * own.loc["exact_question"].min()


def test_simulated_noise_has_the_correlation_it_says():
    table = SIMULATION["noise"](np.random.default_rng(0), 4000, 30)
    assert table.std() == pytest.approx(1, abs=0.02)
    near = [np.corrcoef(a, b)[0, 1] for a, b in pairwise(table.T)]
    assert np.mean(near) == pytest.approx(0.8, abs=0.02)
