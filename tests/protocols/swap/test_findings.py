"""What a swap claims: less its nulls, anchors against each other, and words.

Simulated sweeps, no model.
"""

import runpy
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import anchorlens as al
from anchorlens.protocols.swap.analysis import ANALYSIS
from anchorlens.results.both_directions import necessity_sentence
from anchorlens.results.estimates import name_layers
from anchorlens.statistics.bands import bootstrap_mean
from tests.protocols.sweeps import check_statements, questions, swept
from tests.questions.make import capitals
from tests.running.small_sweeps import sweep

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))  # the script imports its worlds
SIMULATION = runpy.run_path(str(ROOT / "benchmarks" / "null_rates_swap.py"))
simulated, false_rates, power = (SIMULATION[name] for name in ("simulated", "false_rates", "power"))
NULLS = ("same_role", "norm_matched")


def changed(result, samples=None, anchors=None, noise=None, examples=None, **config):
    """The same sweep with other samples or settings."""
    record = {**result.record, "config": {**result.record["config"], **config}}
    record["config"]["anchors"] = anchors or record["config"]["anchors"]
    record["noise"] = {"floor": result.noise_floor if noise is None else noise}
    frame = result.samples(all_columns=True) if samples is None else samples
    inputs = result.examples(all_columns=True) if examples is None else examples
    return ANALYSIS.result.make(ANALYSIS, frame, inputs, record, result.run_id)


@pytest.fixture(scope="module")
def effect():
    """The first anchor falls by 8 points at layers 10-19, its nulls do not."""
    return simulated("effect", 60, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["normal", "shared level", "curve sparse"])
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


def statements(result):
    """Anchor, null and status -> layers of the statements, as they agree with the contrasts."""
    return {
        (one.anchor, one.control, one.status): set(one.layers)
        for one in check_statements(result).statements
    }


def shifted(result, *shifts, anchor="pre_answer"):
    """Samples of an anchor whose delta_p is moved: (layers, controls, points)."""
    moved = result.samples(all_columns=True)
    for layers, controls, points in shifts:
        here = (
            (moved["anchor"] == anchor)
            & moved["layer"].isin(layers)
            & moved["control"].isin(controls)
        )
        moved.loc[here, "effect"] += points
    return moved


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
        f"between {quiet['sim_low'].min():+.3g} and {quiet['sim_high'].max():+.3g} at pre_answer"
        " remain compatible." in effect.verdict
    )


def test_without_an_effect_nothing_is_claimed_and_compatible_effects_are_given():
    nothing = simulated("normal", 60, seed=1)
    assert {status for _, _, status in statements(nothing)} == {"not detected"}
    assert (
        nothing.findings.headline
        == "No effect of the swap on P of the answer beyond same_role was detected at any anchor"
        " and layer."
    )
    assert "Effects between -" in nothing.verdict


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


def test_few_questions_that_carry_a_claim_are_noted_and_none_without_a_claim():
    """The effective number of questions is that of the joint family of both nulls."""
    result = simulated("effect in 15 %", 60, seed=3, n_resamples=100)
    found = result.contrasts(all_columns=True).query("quantity == 'delta_p_minus_null'")
    samples = result.samples(all_columns=True).pivot_table(
        index="question_id", columns=["anchor", "layer", "control"], values="effect"
    )
    swap = samples.xs("none", axis=1, level="control")
    m = pd.concat(
        [(swap - samples.xs(null, axis=1, level="control")).abs() for null in NULLS], axis=1
    ).max(axis=1)
    assert found["n_effective"].to_numpy() == pytest.approx(m.sum() ** 2 / (m**2).sum())
    assert result.findings.claims
    start = "Few questions carry curve minus same_role (effective number"
    (note,) = (note for note in result.findings.notes if note.startswith(start))
    assert f"{found['n_effective'].iloc[0]:.1f} of 60) and curve minus norm_matched" in note
    samples = result.samples(all_columns=True)
    cells = ["anchor", "layer", "example_id", "donor_id"]
    own = samples.query("control == 'none'").set_index(cells)["effect"]
    is_matched = samples["control"] == "norm_matched"
    at = pd.MultiIndex.from_frame(samples.loc[is_matched, cells])
    samples.loc[is_matched, "effect"] = own.loc[at].to_numpy()
    one_null = changed(result, samples)
    assert {one.control for one in one_null.findings.claims} == {"same_role"}
    (note,) = (note for note in one_null.findings.notes if note.startswith(start))
    assert "norm_matched" not in note
    silent = simulated("effect in 5 %", 60, seed=3, n_resamples=100)
    assert not silent.findings.claims
    assert not any(note.startswith(start) for note in silent.findings.notes)


def test_layers_within_the_noise_floor_are_not_claimed(effect):
    value = (
        effect.contrasts()
        .query("control == 'same_role' and anchor == 'exact_question'")
        .set_index("layer")["value"]
        .abs()
    )
    first, second = sorted(value[list(range(10, 20))])[-2:]
    loud = changed(effect, noise=(first + second) / 2)
    assert statements(loud)["exact_question", "same_role", "beyond other positions"] == {
        int(value.idxmax())
    }


def test_layers_fixed_by_construction_or_without_an_acting_null_are_not_claimed_and_take_no_part_in_the_band(
    effect,
):
    marked = effect.samples(all_columns=True)
    curve = marked.eval("layer in [10, 11] and control == 'none' and anchor == 'exact_question'")
    marked["by_construction"] = curve | marked.eval(
        "layer in [12, 13] and control == 'same_role' and anchor == 'exact_question'"
    )
    result = changed(effect, marked)
    told = statements(result)
    for (_, null, status), layers in told.items():
        assert not layers & {10, 11, 12, 13} or status == "not detected", null
    assert told["exact_question", "same_role", "beyond other positions"]
    found = result.contrasts().query(
        "quantity == 'delta_p_minus_null' and anchor == 'exact_question'"
    )
    for null, fixed in (("same_role", slice(10, 13)), ("norm_matched", slice(10, 11))):
        own = found[found["control"] == null].set_index("layer")
        assert own.loc[fixed, ["sim_low", "sim_high"]].isna().all(axis=None)
        assert own.loc[fixed, ["value", "ci_low", "ci_high"]].notna().all(axis=None)
        assert own.drop(index=range(fixed.start, fixed.stop + 1))["sim_low"].notna().all()
    assert (
        "Not tested: exact_question (layers 10-11): fixed by construction; exact_question (layers"
        " 12-13): same_role cannot act." in (result.findings.notes)
    )
    differences = result.contrasts().query("quantity == 'anchor_difference'").set_index("layer")
    assert differences.loc[10:11, "sim_low"].isna().all()
    assert differences.loc[12:, "sim_low"].notna().all()


def test_below_twenty_questions_nothing_is_claimed(effect):
    few = effect.samples(all_columns=True)
    few = few[few["question_id"].isin(sorted(few["question_id"].unique())[:19])]
    few.loc[(few["control"] == "none") & (few["anchor"] == "exact_question"), "effect"] -= 90
    result = changed(effect, few)
    assert statements(result) == {
        (anchor, null, "too few questions"): set() for anchor in effect.anchors for null in NULLS
    }
    assert (
        result.verdict
        == "Nothing is claimed: swap and null can be compared in 19 questions, but 20 are needed."
    )


def in_relations(result, sizes):
    """The same sweep with relations of these sizes."""
    questions = sorted(result.samples(all_columns=True)["question_id"].unique())
    names = [f"r{i}" for i, size in enumerate(sizes) for _ in range(size)]
    of = dict(zip(questions, names, strict=True))
    frame = result.samples(all_columns=True)
    return changed(result, frame.assign(cluster=frame["question_id"].map(of)))


@pytest.mark.parametrize(
    ("sizes", "said", "names_layers"),
    [
        ([2] * 30, "60 questions of 30 relations: whole relations are drawn", True),
        ([5] * 12, "60 questions of 12 relations: whole relations are drawn", False),
        ([20] * 3, "Nothing is said beyond these relations", True),
    ],
)
def test_the_verdict_names_what_is_drawn(effect, sizes, said, names_layers):
    """Ten to nineteen relations name no layer; with fewer, questions are drawn."""
    found = in_relations(effect, sizes)
    assert said in found.verdict
    assert "Intraclass correlation of curve minus null at most" in found.verdict
    claim = found.findings.claims[0]
    assert claim.status == "beyond other positions"
    assert claim.n == 60
    assert claim.n_clusters == (60 if len(sizes) < 10 else len(sizes))
    assert bool(claim.layers) == names_layers
    few = f"No layers are named: 20 independent clusters are needed, {len(sizes)} are there."
    assert (few in found.findings.notes) == (not names_layers)


def test_relations_with_levels_of_their_own_are_claimed_if_questions_are_drawn_and_not_else():
    options = ("relation curves", 100, 25, 200)
    by_question, _ = false_rates(*options, by_question=True)
    by_relation, _ = false_rates(*options)
    assert by_relation <= 0.12
    assert by_question >= 0.3


def test_a_difference_below_the_smallest_claimable_size_is_no_claim(effect):
    """P before is 0.7: a change of 1.4 points is the smallest that is claimed."""
    frame = effect.samples(all_columns=True)
    small = changed(effect, frame.assign(effect=frame["effect"] / 10))
    assert not small.findings.claims
    tiny = changed(
        effect, frame.assign(effect=frame["effect"] / 10, value_before=frame["value_before"] / 100)
    )
    assert tiny.findings.claims
    assert "ΔP cannot fall below -0.7 points" in tiny.verdict


def test_numbers_are_printed_with_significant_digits(effect):
    frame = effect.samples(all_columns=True)
    tiny = changed(effect, frame.assign(effect=frame["effect"] / 1e6, value_before=1e-5))
    cells = [row[2] for row in tiny.findings.rows]
    assert cells
    assert all(any(digit in "123456789" for digit in cell.split()[0]) for cell in cells)


def donor_values(result, swap, null, base=0.01):
    """The same sweep with P of the donor's answer after the swap and after norm_matched, at layers
    10 to 19 of the first anchor.
    """
    frame = result.samples(all_columns=True)
    rng = np.random.default_rng(0)
    noise = rng.uniform(-0.01, 0.01, len(frame))
    after = np.full(len(frame), base) + noise
    here = frame.eval("anchor == 'exact_question' and 10 <= layer < 20").to_numpy()
    after[here & (frame["control"] == "none").to_numpy()] += swap
    after[here & (frame["control"] == "norm_matched").to_numpy()] += null
    columns = {
        "donor_p_before": base,
        "donor_p_after": after.clip(0, 1),
        "donor_logit_before": 0.0,
        "donor_logit_after": 0.0,
        "donor_is_top_before": 0.0,
        "donor_is_top_after": (after > 0.2).astype(float),
        "logit_diff_before": 3.0,
        "logit_diff_after": 3.0 + frame["effect"] / 10,
    }
    return changed(result, frame.assign(**columns))


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


def test_an_effect_has_a_small_p_and_noise_has_none(effect):
    less = effect.contrasts().query("quantity == 'delta_p_minus_null' and control == 'same_role'")
    own = less.set_index(["anchor", "layer"])["p"]
    assert own.loc["exact_question", 10:19].max() <= 0.05
    assert own.loc["pre_answer"].min() > 0.05
    # Two nulls are tested.
    assert effect.findings.claims[0].p == 2 * own.loc["exact_question"].min()


def test_without_a_null_nothing_is_claimed(effect):
    result = changed(
        effect, effect.samples(all_columns=True).query("control == 'none'"), n_null_donors=0
    )
    assert result.findings.statements == ()
    assert result.verdict.startswith("Nothing is claimed: no null was measured")


def test_of_a_truth_readout_without_signal_nothing_is_claimed(effect):
    """P(hallucination) is the same for true and false answers; with signal the same sweep
    speaks.
    """
    labels = {name: i % 2 for i, name in enumerate(effect.example_ids)}
    examples = pd.DataFrame(
        {"role": "base", "example_id": list(labels), "label": list(labels.values())}
    )
    rng = np.random.default_rng(0)
    noise = dict(zip(labels, rng.random(len(labels)), strict=True))

    def read(signal):
        p = {name: signal * label + (1 - signal) * noise[name] for name, label in labels.items()}
        frame = effect.samples(all_columns=True).assign(readout="probe", delta_kind="confidence")
        frame["value_before"] = frame["example_id"].map(p)
        result = changed(
            effect,
            frame,
            examples=examples,
            readout="probe",
            delta_kind="confidence",
            n_resamples=300,
        )
        result.record["probe"] = {
            "probe_layer": 20,
            "answer_text_auc": {"auc": 0.5, "ci_low": 0.45, "ci_high": 0.55},
        }
        return result

    silent, heard = read(0.0), read(0.6)
    assert silent.findings.statements == ()
    assert "no signal of the probe was detected, AUC 0." in silent.verdict
    assert (
        ": confidence in the clean prediction falls more than after a swap of other positions."
        in heard.findings.headline
    )
    assert heard.findings.warnings == ()
    leaking = changed(heard, examples=examples)
    leaking.record["probe"]["answer_text_auc"] = {"auc": 0.7, "ci_low": 0.6, "ci_high": 0.8}
    assert leaking.findings.warnings == (
        "Beware: a classifier of the answer's text reaches AUC 0.70 [0.60, 0.80].",
    )
    assert leaking.verdict.startswith("Beware: ")
    assert leaking.findings.statements == heard.findings.statements


def test_a_null_with_fewer_slots_is_named_weaker(effect):
    rest = (
        effect.samples(all_columns=True)
        .eval("anchor == 'exact_question' and control != 'norm_matched'")
        .astype(int)
    )
    weak = changed(
        effect, effect.samples(all_columns=True).assign(n_null_patched=(3 - rest).astype("Int64"))
    )
    title, table = ANALYSIS.table([weak])
    assert title == "Largest |ΔP| of each curve (percentage points)"
    assert "95 % band over all layers" in table.columns
    assert not {"null", "displaced"} & set(table.columns)
    cells = {
        (anchor, null): table.set_index("anchor").loc[anchor, null]
        for anchor in effect.anchors
        for null in NULLS
    }
    assert cells["exact_question", "same_role"].endswith(" (weaker)")
    assert sum("weaker" in cell for cell in cells.values()) == 1


def test_simulated_noise_has_the_correlation_it_says():
    table = SIMULATION["noise"](np.random.default_rng(0), 4000, 30)
    assert table.std() == pytest.approx(1, abs=0.02)
    near = [np.corrcoef(a, b)[0, 1] for a, b in pairwise(table.T)]
    assert np.mean(near) == pytest.approx(0.8, abs=0.02)


def test_an_anchor_without_a_reached_cell_does_not_break_the_contrasts(tiny_model):
    """At k* itself a swap at the question's tokens behind the block cannot reach the probe."""
    probes = swept(tiny_model("llama"), "knockout").probes
    result = al.swap_sweep(
        tiny_model("llama"),
        questions(),
        readout="probe",
        anchors=("exact_question", "answer"),
        site="resid_post",
        n_donors=1,
        layers=[probes.probe_layer],
        probes=probes,
        n_splits=1,
        progress=False,
        n_resamples=20,
        n_spot_checks=0,
    )
    assert "question - answer" not in set(result.contrasts()["anchor"])
    assert result.verdict


def test_where_every_layer_holds_by_construction_words_and_table_say_so(tiny_model):
    options = {"layers": [0], "anchors": ("pre_answer",), "progress": False, "align": "last"}
    result = al.swap_sweep(tiny_model("llama"), capitals(12), **options)
    assert result.verdict.startswith(
        "Nothing is claimed: at every measured layer the swap is fixed by construction"
    )
    assert result.protocol.table([result])[1].empty
    assert repr(result)
