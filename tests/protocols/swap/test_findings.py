"""What a swap claims: less its null, anchors against each other, and words. Simulated sweeps, no model."""

import runpy
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import anchorlens as al
from anchorlens.protocols.swap.analysis import ANALYSIS
from anchorlens.protocols.swap.findings import layers_off_null
from anchorlens.statistics.bands import bootstrap_mean
from tests.protocols.sweeps import check_statements, questions, swept
from tests.questions.make import capitals
from tests.running.small_sweeps import sweep

ROOT = Path(__file__).resolve().parents[3]
SIMULATION = runpy.run_path(str(ROOT / "benchmarks" / "null_rates_swap.py"))
simulated, rates = SIMULATION["simulated"], SIMULATION["rates"]


def named(result):
    return {anchor: set(layers) for anchor, layers in layers_off_null(result).items()}


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
    return simulated("effect", 60, seed=3)


@pytest.mark.slow
def test_of_null_sweeps_few_name_a_layer():
    """Pointwise intervals would name one in most; the band over all anchors and layers in about one of twenty."""
    found = rates("normal", 40, 60, n_resamples=300)
    assert found["swap"] + found["null"] <= 0.15
    runs = [simulated("normal", 40, seed, 300).contrasts().query("quantity == 'delta_p_minus_null'") for seed in range(15)]
    pointwise = [((run["ci_low"] > 0) | (run["ci_high"] < 0)).any() for run in runs]
    assert np.mean(pointwise) > 0.4


def test_an_effect_is_found_where_it_is():
    found = rates("effect", 60, 12, n_resamples=200)
    assert found["right"] >= 0.9
    assert found["wrong"] <= 0.2


def test_delta_p_minus_null_is_paired_by_question_and_shares_one_band_over_anchors_and_layers(effect):
    contrasts = effect.contrasts().query("quantity == 'delta_p_minus_null'")
    assert set(contrasts["control"]) == {"null"}
    assert contrasts["anchor"].unique().tolist() == list(effect.anchors)
    table = effect.samples(all_columns=True).set_index(["anchor", "question_id", "layer", "control"])["effect"].unstack("control")
    gaps = (table["none"] - table["null"]).unstack(["anchor", "layer"])
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
    """Anchor and status -> layers of the statements, as they agree with the contrasts."""
    return {(one.anchor, one.status): set(one.layers) for one in check_statements(result).statements}


def shifted(result, *shifts, anchor="pre_answer"):
    """Samples of an anchor whose delta_p is moved: (layer, control, points)."""
    moved = result.samples(all_columns=True)
    for layer, control, points in shifts:
        moved.loc[moved.eval(f"anchor == '{anchor}' and layer == {layer} and control == '{control}'"), "effect"] += points
    return moved


def test_findings_lead_with_the_headline_then_a_table_then_what_is_open(effect):
    """What is not shown is open, and not called nothing."""
    layers = named(effect)["exact_question"]
    assert layers == set(range(min(layers), max(layers) + 1))
    facts = effect.contrasts().query("quantity == 'delta_p_minus_null'")
    assert layers == set(facts[(facts["anchor"] == "exact_question") & (facts["sim_high"] < 0)]["layer"])
    best = {anchor: own.loc[own["value"].abs().idxmax()] for anchor, own in facts.groupby("anchor")}
    assert statements(effect) == {
        ("exact_question", "stands"): layers,
        ("pre_answer", "not detected"): {best["pre_answer"]["layer"]},
    }
    for one in effect.findings.statements:
        assert (one.quantity, one.control, one.value, one.n) == ("delta_p_minus_null", "null", best[one.anchor]["value"], 60)
    lines = effect.verdict.splitlines()
    assert lines[0] == effect.findings.headline
    assert f"lowers P of the answer at exact_question (layers {min(layers)}-{max(layers)})." in lines[0]
    assert [line.split()[0] for line in lines[1:4]] == ["anchor", *effect.anchors]
    quiet = facts[facts["anchor"] == "pre_answer"]
    assert f"pre_answer [{quiet['sim_low'].min():+.1f}, {quiet['sim_high'].max():+.1f}]" in lines[4]
    nothing = simulated("normal", 60, seed=1)
    assert {status for _, status in statements(nothing)} == {"not detected"}
    assert "beyond its null was detected at any anchor and layer" in nothing.verdict
    assert "Effects in exact_question [-" in nothing.verdict


def test_what_the_swap_raises_is_said(effect):
    other = changed(effect, effect.samples(all_columns=True).assign(effect=lambda frame: -frame["effect"]))
    assert "the swap raises P of the answer at exact_question (layers " in other.findings.headline
    both = changed(effect, shifted(effect, (25, "none", 25)))
    assert statements(both)["pre_answer", "stands"] == {25}
    assert "lowers P of the answer at exact_question" in both.findings.headline
    assert both.findings.headline.endswith(") and raises it at pre_answer (layer 25).")


def test_a_null_that_costs_more_than_the_swap_is_no_rise(effect):
    """At layer 25 the null of pre_answer takes 25 points and the swap 2: less null is positive, and P has not risen."""
    moved = effect.samples(all_columns=True)
    here = moved.eval("anchor == 'pre_answer' and layer == 25")
    moved.loc[here, "effect"] = moved.loc[here, "effect"] / 10 - np.where(moved.loc[here, "control"] == "null", 25.0, 2.0)
    result = changed(effect, moved)
    assert statements(result)["pre_answer", "null_moves"] == {25}
    assert "pre_answer" not in result.findings.headline
    alone = changed(effect, moved[moved["anchor"] == "pre_answer"], anchors=("pre_answer",))
    assert statements(alone) == {("pre_answer", "null_moves"): {25}}
    assert "No effect of the swap" in alone.findings.headline
    assert result.findings.notes[0] == alone.findings.notes[0]
    assert "(the null) lower it more at pre_answer (layer 25)" in alone.findings.notes[0]


def test_a_layer_is_named_for_the_swap_if_the_curve_is_at_least_half_of_the_difference(effect):
    """At layers 25 and 26 the difference is about -25; the curve falls by 15 and the null rises by 10, or the other way round."""
    shifts = (25, "none", -15), (25, "null", 10), (26, "none", -10), (26, "null", 15)
    moved = effect.samples(all_columns=True)
    quiet = moved.eval("anchor == 'pre_answer' and layer in [25, 26]")
    moved.loc[quiet, "effect"] /= 100
    found = statements(changed(effect, shifted(changed(effect, moved), *shifts)))
    assert found["pre_answer", "stands"] == {25}
    assert found["pre_answer", "null_moves"] == {26}


def test_a_null_that_takes_most_of_p_is_said(effect):
    """P before is 0.70, and the null takes 56 to 60 points of it at two layers."""
    moved = shifted(effect, (25, "null", -56), (25, "none", -60), (26, "null", -60), (26, "none", -60))
    result = changed(effect, moved)
    text = next(note for note in result.findings.notes if note.startswith("The null itself takes up to "))
    assert text.endswith(" % of P of the answer at pre_answer (layers 25-26).")
    assert 75 <= int(text.split("up to ")[1].split(" ")[0]) <= 95
    assert "null itself" not in effect.verdict


def test_an_anchor_has_layers_of_both_kinds_and_each_is_named_once(effect):
    """Layers at which the swap does more, and others at which its null does, up and down."""
    shifts = (3, "none", -25), (4, "none", -25), (9, "null", -25), (20, "null", 25)
    result = changed(effect, shifted(effect, *shifts))
    own = [(one.status, one.layers) for one in check_statements(result).statements if one.anchor == "pre_answer"]
    assert own == [("stands", (3, 4)), ("null_moves", (9,)), ("null_moves", (20,))]
    assert "lower it more at pre_answer (layer 9) and raise it more at pre_answer (layer 20)" in result.findings.notes[0]
    assert len(result.verdict.split()) <= 90
    # Layers in many pieces are counted.
    pieces = changed(effect, shifted(effect, *((layer, "none", -25) for layer in (2, 4, 9, 20, 22, 26))))
    assert statements(pieces)["pre_answer", "stands"] == {2, 4, 9, 20, 22, 26}
    assert "pre_answer (6 layers of 2-26)." in pieces.verdict


def test_the_text_has_at_most_90_words(effect):
    """With two anchors, and with seven of which each is off 0 in three separate runs of layers."""
    assert len(effect.verdict.split()) <= 90
    names = ("exact_question", "subject", "property", "subject_last", "question_rest", "prompt_last", "pre_answer")
    one = effect.samples(all_columns=True).query("anchor == 'pre_answer'")
    shift = one["layer"].isin([2, 3, 9, 10, 20]) & (one["control"] == "none")
    frames = [one.assign(anchor=name, effect=one["effect"] - 25 * shift) for name in names]
    many = changed(effect, pd.concat(frames, ignore_index=True), anchors=names, n_resamples=200)
    assert {frozenset(layers) for layers in named(many).values()} == {frozenset({2, 3, 9, 10, 20})}
    assert "at 7 of 7 anchors" in many.findings.headline
    assert many.findings.columns[-2:] == ("beyond null", "null larger")
    assert {row[-2] for row in many.findings.rows[:3]} == {"2-3, 9-10, 20"}
    assert len(many.verdict.split()) <= 90
    frames = [one.assign(effect=one["effect"] - 25 * ((one["layer"] == 25) & (one["control"] == "null"))) for one in frames]
    both = changed(effect, pd.concat(frames, ignore_index=True), anchors=names, n_resamples=200).findings
    assert "lower it more at 7 of 7 anchors" in both.notes[0]
    assert both.columns[-2:] == ("beyond null", "null larger")
    assert both.rows[0][-2:] == ("2-3, 9-10, 20", "25")
    assert both.rows[-1][0] == "and 4 more: contrasts()"
    assert len(str(both).split()) <= 90


def test_layers_within_the_noise_floor_are_not_named(effect):
    value = (
        effect.contrasts().query("quantity == 'delta_p_minus_null' and anchor == 'exact_question'").set_index("layer")["value"].abs()
    )
    first, second = sorted(value[list(range(10, 20))])[-2:]
    loud = changed(effect, noise=(first + second) / 2)
    assert named(loud)["exact_question"] == {int(value.idxmax())}


def test_layers_by_construction_are_not_named_and_take_no_part_in_the_band(effect):
    marked = effect.samples(all_columns=True)
    marked["by_construction"] = marked.eval("layer in [10, 11, 12, 13] and control == 'none' and anchor == 'exact_question'")
    result = changed(effect, marked)
    assert not named(result)["exact_question"] & {10, 11, 12, 13}
    found = result.contrasts().query("quantity == 'delta_p_minus_null' and anchor == 'exact_question'").set_index("layer")
    assert found.loc[10:13, ["sim_low", "sim_high"]].isna().all(axis=None)
    assert found.loc[10:13, ["value", "ci_low", "ci_high"]].notna().all(axis=None)
    differences = result.contrasts().query("quantity == 'anchor_difference'").set_index("layer")
    assert differences.loc[10:13, "sim_low"].isna().all()
    assert differences.loc[14:, "sim_low"].notna().all()


def test_below_ten_questions_or_without_a_null_nothing_is_claimed(effect):
    few = effect.samples(all_columns=True)
    few = few[few["question_id"].isin(sorted(few["question_id"].unique())[:9])]
    few.loc[(few["control"] == "none") & (few["anchor"] == "exact_question"), "effect"] -= 90
    for result, phrase in (
        (changed(effect, few), "in 9 questions, but 10 are needed"),
        (changed(effect, n_null_donors=0), "no null was measured"),
    ):
        assert result.findings.statements == ()
        assert result.verdict.startswith("Nothing is claimed")
        assert phrase in result.verdict


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
    assert "lowers confidence in the clean prediction at exact_question (layers " in heard.findings.headline
    assert heard.findings.warnings == ()
    leaking = changed(heard, examples=examples)
    leaking.record["probe"]["answer_text_auc"] = {"auc": 0.7, "ci_low": 0.6, "ci_high": 0.8}
    assert leaking.findings.warnings == ("Beware: the answer's text alone reaches AUC 0.70 [0.60, 0.80].",)
    assert leaking.verdict.startswith("Beware: ")
    assert leaking.findings.statements == heard.findings.statements


def test_a_null_with_fewer_slots_is_named_weaker(effect):
    rest = (effect.samples(all_columns=True)["anchor"] == "exact_question").astype(int)
    weak = changed(effect, effect.samples(all_columns=True).assign(n_null_patched=(3 - rest).astype("Int64")))
    title, table = ANALYSIS.table([weak])
    assert title == "Largest |ΔP| of each curve (percentage points)"
    assert "95 % band over all layers" in table.columns
    null = dict(zip(table["anchor"], table["null"], strict=True))
    assert null["exact_question"].endswith(" (weaker: 100 % of rows have fewer slots)")
    assert "weaker" not in null["pre_answer"]


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
    assert "every measured layer holds by construction" in result.verdict
    assert result.protocol.table([result])[1].empty
    assert repr(result)
