"""What a swap claims: less its nulls, anchors against each other, and words. Simulated sweeps, no model."""

import runpy
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import anchorlens as al
from anchorlens.protocols.swap.analysis import ANALYSIS
from anchorlens.statistics.bands import bootstrap_mean
from tests.protocols.sweeps import check_statements, questions, swept
from tests.questions.make import capitals
from tests.running.small_sweeps import sweep

ROOT = Path(__file__).resolve().parents[3]
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
    """Pointwise intervals would name one in most; the band over all anchors and layers in about one of twenty."""
    assert max(false_rates(world, 40, 60, n_resamples=300)) <= 0.15
    runs = [simulated(world, 40, seed, n_resamples=300).contrasts().query("control == 'same_role'") for seed in range(15)]
    pointwise = [((run["ci_low"] > 0) | (run["ci_high"] < 0)).any() for run in runs]
    assert np.mean(pointwise) > 0.4


def test_an_effect_is_found_where_it_is():
    localised, content, wrong = power(60, 12, effect=-12, n_resamples=200)
    assert min(localised, content) >= 0.9
    assert wrong <= 0.2


@pytest.mark.parametrize("null", NULLS)
def test_delta_p_minus_null_is_paired_by_question_and_shares_one_band_over_anchors_and_layers(effect, null):
    contrasts = effect.contrasts().query("quantity == 'delta_p_minus_null' and control == @null")
    assert contrasts["anchor"].unique().tolist() == list(effect.anchors)
    table = effect.samples(all_columns=True).set_index(["anchor", "question_id", "layer", "control"])["effect"].unstack("control")
    gaps = (table["none"] - table[null]).unstack(["anchor", "layer"])
    ordered = gaps.reindex(columns=pd.MultiIndex.from_product([effect.anchors, effect.layers]))
    wanted = bootstrap_mean(ordered.to_numpy(), ordered.index, n_resamples=1000, seed=0)
    same = {"value": wanted.value, "ci_low": wanted.low, "sim_low": wanted.sim_low, "sim_high": wanted.sim_high}
    for column, value in same.items():
        np.testing.assert_allclose(contrasts[column], value)
    # A band of its own for each anchor would be narrower: it holds for fewer points.
    alone = bootstrap_mean(ordered["exact_question"].to_numpy(), ordered.index, n_resamples=1000, seed=0)
    assert (contrasts.query("anchor == 'exact_question'")["sim_low"].to_numpy() < alone.sim_low).all()


def test_anchors_are_compared_paired_by_question(effect):
    contrasts = effect.contrasts().query("quantity == 'anchor_difference'")
    assert contrasts["anchor"].unique().tolist() == ["exact_question - pre_answer"]
    assert set(contrasts["control"]) == {"none"}
    own = effect.samples(all_columns=True).query("control == 'none'")
    own = own.set_index(["question_id", "layer", "anchor"])["effect"].unstack("anchor")
    gap = (own["exact_question"] - own["pre_answer"]).unstack("layer")
    wanted = bootstrap_mean(gap.to_numpy(), gap.index, n_resamples=1000, seed=0)
    for column, value in (("value", wanted.value), ("ci_high", wanted.high), ("sim_low", wanted.sim_low)):
        np.testing.assert_allclose(contrasts[column], value)
    assert contrasts["n"].tolist() == [60] * 30


def test_every_two_anchors_are_compared_and_all_donors_take_part(tiny_model):
    made = sweep(tiny_model("llama"), anchors=("subject", "property", "pre_answer"), layers=(1, 2))
    found = made.contrasts().query("quantity == 'anchor_difference'")
    assert found["anchor"].unique().tolist() == ["subject - property", "subject - pre_answer", "property - pre_answer"]
    mean = made.samples().query("control == 'none'").groupby(["anchor", "layer"])["effect"].mean()
    for row in found.itertuples():
        one, other = row.anchor.split(" - ")
        assert row.value == pytest.approx(mean[one, row.layer] - mean[other, row.layer])


def statements(result):
    """Anchor, null and status -> layers of the statements, as they agree with the contrasts."""
    return {(one.anchor, one.control, one.status): set(one.layers) for one in check_statements(result).statements}


def shifted(result, *shifts, anchor="pre_answer"):
    """Samples of an anchor whose delta_p is moved: (layers, controls, points)."""
    moved = result.samples(all_columns=True)
    for layers, controls, points in shifts:
        here = (moved["anchor"] == anchor) & moved["layer"].isin(layers) & moved["control"].isin(controls)
        moved.loc[here, "effect"] += points
    return moved


def test_findings_are_the_layers_whose_band_excludes_0_and_the_words_follow(effect):
    facts = effect.contrasts().query("quantity == 'delta_p_minus_null'")
    below = {
        null: set(own[(own["anchor"] == "exact_question") & (own["sim_high"] < 0)]["layer"])
        for null, own in facts.groupby("control")
    }
    localised, content = below["same_role"], below["same_role"] & below["norm_matched"]
    assert content and content <= set(range(10, 20))
    largest = {
        null: own.loc[own["value"].abs().idxmax(), "layer"] for null, own in facts.query("anchor == 'pre_answer'").groupby("control")
    }
    assert statements(effect) == {
        ("exact_question", "same_role", "localised"): localised,
        ("exact_question", "norm_matched", "content"): content,
        ("pre_answer", "same_role", "not detected"): {largest["same_role"]},
        ("pre_answer", "norm_matched", "not detected"): {largest["norm_matched"]},
    }
    lines = effect.verdict.splitlines()
    assert lines[0] == effect.findings.headline
    assert lines[0].startswith("Localised at exact_question (")
    assert ": P of the answer falls more than after a swap of other positions. Content at exact_question (" in lines[0]
    assert lines[1].split() == ["anchor", "null", "curve", "minus", "null", "[joint", "95", "%]", "layer", "status", "layers"]
    assert [line.split()[0] for line in lines[2:6]] == ["exact_question", "exact_question", "pre_answer", "pre_answer"]
    quiet = facts.query("anchor == 'pre_answer' and control == 'same_role'")
    assert f"between {quiet['sim_low'].min():+.1f} and {quiet['sim_high'].max():+.1f} at pre_answer remain compatible." in lines[6]


def test_without_an_effect_nothing_is_claimed_and_compatible_effects_are_given():
    nothing = simulated("normal", 60, seed=1)
    assert {status for _, _, status in statements(nothing)} == {"not detected"}
    assert (
        nothing.findings.headline
        == "No effect of the swap on P of the answer beyond same_role was detected at any anchor and layer."
    )
    assert "Effects between -" in nothing.verdict


def test_what_the_swap_raises_is_said(effect):
    other = changed(effect, effect.samples(all_columns=True).assign(effect=lambda frame: -frame["effect"]))
    assert ": P of the answer rises more than after a swap of other positions." in other.findings.headline
    both = changed(effect, shifted(effect, ([25], ["none"], 25)))
    assert statements(both)["pre_answer", "same_role", "localised"] == {25}
    assert "falls more than after a swap of other positions; at pre_answer (layer 25) it rises. Content at" in both.findings.headline


@pytest.mark.parametrize(("swap", "null", "verb"), [(-1, 15, "raises"), (-2, -25, "lowers"), (1, -15, "lowers")])
def test_a_null_that_moves_more_than_the_swap_is_no_effect_of_the_swap(effect, swap, null, verb):
    moved = effect.samples(all_columns=True)
    here = moved.eval("anchor == 'pre_answer' and layer == 25")
    points = moved.loc[here, "control"].map({"none": swap, "same_role": null, "norm_matched": null})
    moved.loc[here, "effect"] = moved.loc[here, "effect"] / 10 + points
    alone = changed(effect, moved[moved["anchor"] == "pre_answer"], anchors=("pre_answer",))
    assert statements(alone) == {("pre_answer", name, "null moves"): {25} for name in NULLS}
    assert alone.findings.headline.startswith("No effect of the swap on P of the answer")
    assert alone.findings.notes[0] == (
        f"The null same_role itself {verb} P of the answer at pre_answer (layer 25) and accounts for most of its difference from "
        "the swap: nothing is claimed there."
    )
    assert "pre_answer" not in changed(effect, moved).findings.headline


def test_a_layer_is_claimed_if_the_curve_is_at_least_half_of_the_difference(effect):
    """At layers 25 and 26 the difference is about -25; the curve falls by 15 and the null rises by 10, or the other way round."""
    moved = effect.samples(all_columns=True)
    moved.loc[moved.eval("anchor == 'pre_answer' and layer in [25, 26]"), "effect"] /= 100
    shifts = ([25], ["none"], -15), ([25], NULLS, 10), ([26], ["none"], -10), ([26], NULLS, 15)
    found = statements(changed(effect, shifted(changed(effect, moved), *shifts)))
    for null, status in (("same_role", "localised"), ("norm_matched", "content")):
        assert found["pre_answer", null, status] == {25}
        assert found["pre_answer", null, "null moves"] == {26}


def test_a_disturbance_is_localised_but_no_content(effect):
    """Curve and norm_matched fall alike at layers 3-5, but not same_role; at layer 8 same_role falls, but not norm_matched."""
    shifts = (range(3, 6), ["none", "norm_matched"], -60), ([8], ["none", "same_role"], -60)
    found = changed(effect, shifted(effect, *shifts))
    told = statements(found)
    assert told["pre_answer", "same_role", "localised"] == {3, 4, 5}
    # Beyond a random change, but a swap of other positions has the same effect: not the content of this anchor.
    assert told["pre_answer", "norm_matched", "description"] == {8}
    takes = [note for note in found.findings.notes if " itself takes " in note]
    assert [note.split(" itself")[0] for note in takes] == ["The null same_role", "The null norm_matched"]
    assert takes[1].endswith(" % of P of the answer at pre_answer (layers 3-5).")
    shares = [int(word) for word in takes[1].split(" % ")[0].split() if word.isdecimal()]
    assert 75 <= min(shares) <= max(shares) <= 95
    assert any(
        note.startswith("At other localised layers no content was detected; effects between -") for note in found.findings.notes
    )
    assert "itself takes" not in effect.verdict


def test_other_nulls_have_their_own_words(effect):
    """With norm_matched alone (donors that are no rows) content needs no same_role; displaced alone has the status stands."""
    samples = effect.samples(all_columns=True)
    one = changed(effect, samples[samples["control"] != "same_role"])
    assert one.findings.headline.startswith("Content at exact_question (")
    assert {status for _, _, status in statements(one)} == {"content", "not detected"}
    displaced = samples[samples["control"] != "norm_matched"].replace({"control": {"same_role": "null"}})
    two = changed(effect, displaced)
    assert two.findings.headline.startswith("Beyond displaced at exact_question (")
    assert {(null, status) for _, null, status in statements(two)} == {("null", "stands"), ("null", "not detected")}
    assert [row[1] for row in two.findings.rows] == ["displaced", "displaced"]


def test_layers_in_many_pieces_and_many_anchors_are_counted(effect):
    pieces = [2, 4, 9, 20, 22, 26]
    found = changed(effect, shifted(effect, (pieces, ["none"], -25)))
    assert statements(found)["pre_answer", "same_role", "localised"] == set(pieces)
    assert "pre_answer (6 layers of 2-26)" in found.findings.headline
    names = ("exact_question", "subject", "property", "subject_last", "question_rest", "prompt_last", "pre_answer")
    one = found.samples(all_columns=True).query("anchor == 'pre_answer'")
    many = changed(found, pd.concat([one.assign(anchor=name) for name in names]), anchors=names, n_resamples=200).findings
    assert many.headline.startswith("Localised at 7 of 7 anchors: P of the answer falls")
    assert many.rows[-1][0] == "and 6 more: contrasts()"
    assert {row[-1] for row in many.rows[:-1]} == {"6 of 2-26"}
    assert max(len(str(findings).split()) for findings in (many, found.findings, effect.findings)) <= 150


@pytest.mark.parametrize(("kind", "questions", "said"), [("effect in 5 %", 60, True), ("effect", 60, False), ("normal", 20, False)])
def test_a_difference_that_few_questions_carry_is_noted(kind, questions, said):
    result = simulated(kind, questions, seed=3, n_resamples=100)
    found = result.contrasts(all_columns=True).query("quantity == 'delta_p_minus_null' and control == 'same_role'")
    samples = result.samples(all_columns=True).pivot_table(
        index="question_id", columns=["anchor", "layer", "control"], values="effect"
    )
    m = (samples.xs("none", axis=1, level="control") - samples.xs("same_role", axis=1, level="control")).abs().max(axis=1)
    assert found["n_effective"].to_numpy() == pytest.approx(m.sum() ** 2 / (m**2).sum())
    few = [note for note in result.findings.notes if note.startswith("Few questions carry curve minus same_role (effective number")]
    assert len(few) == said
    if said:
        assert f"{found['n_effective'].iloc[0]:.1f} of {questions}) and curve minus norm_matched" in few[0]
        assert {one.status for one in result.findings.statements} == {"not detected"}


def test_layers_within_the_noise_floor_are_not_claimed(effect):
    value = effect.contrasts().query("control == 'same_role' and anchor == 'exact_question'").set_index("layer")["value"].abs()
    first, second = sorted(value[list(range(10, 20))])[-2:]
    loud = changed(effect, noise=(first + second) / 2)
    assert statements(loud)["exact_question", "same_role", "localised"] == {int(value.idxmax())}


def test_layers_fixed_by_construction_or_without_an_acting_null_are_not_claimed_and_take_no_part_in_the_band(effect):
    marked = effect.samples(all_columns=True)
    curve = marked.eval("layer in [10, 11] and control == 'none' and anchor == 'exact_question'")
    marked["by_construction"] = curve | marked.eval("layer in [12, 13] and control == 'same_role' and anchor == 'exact_question'")
    result = changed(effect, marked)
    told = statements(result)
    for (_, null, status), layers in told.items():
        assert not layers & {10, 11, 12, 13} or status == "not detected", null
    assert told["exact_question", "same_role", "localised"]
    found = result.contrasts().query("quantity == 'delta_p_minus_null' and anchor == 'exact_question'")
    for null, fixed in (("same_role", slice(10, 13)), ("norm_matched", slice(10, 11))):
        own = found[found["control"] == null].set_index("layer")
        assert own.loc[fixed, ["sim_low", "sim_high"]].isna().all(axis=None)
        assert own.loc[fixed, ["value", "ci_low", "ci_high"]].notna().all(axis=None)
        assert own.drop(index=range(fixed.start, fixed.stop + 1))["sim_low"].notna().all()
    assert (
        "Not tested: exact_question (layers 10-11): fixed by construction; exact_question (layers 12-13): same_role cannot act."
        in (result.findings.notes)
    )
    differences = result.contrasts().query("quantity == 'anchor_difference'").set_index("layer")
    assert differences.loc[10:11, "sim_low"].isna().all()
    assert differences.loc[12:, "sim_low"].notna().all()


@pytest.mark.parametrize("n", [9, 14])
def test_with_few_questions_no_layers_are_named(effect, n):
    """Below 20 a claim names the anchor only; below 10 nothing is claimed."""
    few = effect.samples(all_columns=True)
    few = few[few["question_id"].isin(sorted(few["question_id"].unique())[:n])]
    few.loc[(few["control"] == "none") & (few["anchor"] == "exact_question"), "effect"] -= 90
    result = changed(effect, few)
    told = statements(result)
    if n == 9:
        assert told == {(anchor, null, "too few questions"): set() for anchor in effect.anchors for null in NULLS}
        assert result.verdict == "Nothing is claimed: swap and null can be compared in 9 questions, but 10 are needed."
        return
    assert told["exact_question", "same_role", "localised"] == told["exact_question", "norm_matched", "content"] == set()
    assert result.findings.headline.startswith("Localised at exact_question: P of the answer falls")
    assert result.findings.notes[0] == "With 14 questions no layers are named; 20 are needed."
    assert "layers" not in result.findings.columns
    assert all(map(any, zip(*result.findings.rows, strict=True))), "a column is empty"


def test_without_a_null_nothing_is_claimed(effect):
    result = changed(effect, effect.samples(all_columns=True).query("control == 'none'"), n_null_donors=0)
    assert result.findings.statements == ()
    assert result.verdict.startswith("Nothing is claimed: no null was measured")


def test_of_a_truth_readout_without_signal_nothing_is_claimed(effect):
    """P(hallucination) is the same for true and false answers; with signal the same sweep speaks."""
    labels = {name: i % 2 for i, name in enumerate(effect.example_ids)}
    examples = pd.DataFrame({"role": "base", "example_id": list(labels), "label": list(labels.values())})
    rng = np.random.default_rng(0)
    noise = dict(zip(labels, rng.random(len(labels)), strict=True))

    def read(signal):
        p = {name: signal * label + (1 - signal) * noise[name] for name, label in labels.items()}
        frame = effect.samples(all_columns=True).assign(readout="probe", delta_kind="confidence")
        frame["value_before"] = frame["example_id"].map(p)
        result = changed(effect, frame, examples=examples, readout="probe", delta_kind="confidence", n_resamples=300)
        result.record["probe"] = {"probe_layer": 20, "answer_text_auc": {"auc": 0.5, "ci_low": 0.45, "ci_high": 0.55}}
        return result

    silent, heard = read(0.0), read(0.6)
    assert silent.findings.statements == ()
    assert "no signal of the probe was detected, AUC 0." in silent.verdict
    assert ": confidence in the clean prediction falls more than after a swap of other positions." in heard.findings.headline
    assert heard.findings.warnings == ()
    leaking = changed(heard, examples=examples)
    leaking.record["probe"]["answer_text_auc"] = {"auc": 0.7, "ci_low": 0.6, "ci_high": 0.8}
    assert leaking.findings.warnings == ("Beware: a classifier of the answer's text reaches AUC 0.70 [0.60, 0.80].",)
    assert leaking.verdict.startswith("Beware: ")
    assert leaking.findings.statements == heard.findings.statements


def test_a_null_with_fewer_slots_is_named_weaker(effect):
    rest = effect.samples(all_columns=True).eval("anchor == 'exact_question' and control != 'norm_matched'").astype(int)
    weak = changed(effect, effect.samples(all_columns=True).assign(n_null_patched=(3 - rest).astype("Int64")))
    title, table = ANALYSIS.table([weak])
    assert title == "Largest |ΔP| of each curve (percentage points)"
    assert "95 % band over all layers" in table.columns
    assert not {"null", "displaced"} & set(table.columns)
    cells = {(anchor, null): table.set_index("anchor").loc[anchor, null] for anchor in effect.anchors for null in NULLS}
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
        tiny_model("llama"), questions(), readout="probe", anchors=("exact_question", "answer"), site="resid_post", n_donors=1,
        layers=[probes.probe_layer], probes=probes, progress=False, n_resamples=20, n_spot_checks=0,
    )  # fmt: skip
    assert "question - answer" not in set(result.contrasts()["anchor"])
    assert result.verdict


def test_where_every_layer_holds_by_construction_words_and_table_say_so(tiny_model):
    options = {"layers": [0], "anchors": ("pre_answer",), "progress": False, "align": "last"}
    result = al.swap_sweep(tiny_model("llama"), capitals(12), **options)
    assert result.verdict.startswith("Nothing is claimed: at every measured layer the swap is fixed by construction")
    assert result.protocol.table([result])[1].empty
    assert repr(result)
