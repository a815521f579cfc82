"""Where a swap claims nothing or less, and what its verdict then says."""

import numpy as np
import pandas as pd
import pytest

import anchorlens as al
from anchorlens.protocols.swap.analysis import ANALYSIS
from tests.protocols.swap.simulated import (
    NULLS,
    changed,
    false_rates,
    in_relations,
    simulated,
    statements,
)
from tests.protocols.sweeps import questions, swept
from tests.questions.make import capitals


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_below_twenty_questions_nothing_is_claimed(effect):
    few = effect.samples(all_columns=True)
    few = few[few["question_id"].isin(sorted(few["question_id"].unique())[:19])]
    few.loc[(few["control"] == "none") & (few["anchor"] == "exact_question"), "effect"] -= 90
    result = changed(effect, few)
    assert statements(result) == {
        (anchor, null, "too few questions"): set() for anchor in effect.anchors for null in NULLS
    }
    few_are_told = (
        "Nothing is claimed: swap and null can be compared in 19 questions, but 20 are needed. Use"
        " more questions (a larger limit= or another set)."
    )
    assert result.verdict == few_are_told
    gone = {
        "drop_reason": "no_donor",
        "drop_detail": "",
        "dataset": "",
        "question": "",
        "answer": "",
    }
    inputs = pd.concat(
        [
            result.examples(all_columns=True),
            pd.DataFrame([{"role": "dropped", "example_id": f"x{i}", **gone} for i in range(3)]),
        ]
    )
    cure = " 3 rows have no donor; donors='random' or align='last' finds some."
    assert changed(effect, few, examples=inputs).verdict == few_are_told + cure
    assert "align" not in changed(effect, few, examples=inputs, align="last").verdict


def test_a_readout_function_that_no_swap_moves_has_no_band_without_width(effect):
    """It may be a step: P of another question may flip. Named readouts have no steps."""
    still = effect.samples(all_columns=True).assign(effect=0.0)
    still["by_construction"] = still["layer"] == 3
    for readout, is_step in (("is_likely", True), ("first_token", False)):
        result = changed(effect, still, readout=readout)
        contrasts = result.contrasts()
        contrasts = contrasts[contrasts["quantity"] != "interchange_accuracy"]
        for table in (contrasts, result.curves(controls=True)):
            fixed = table["layer"] == 3
            assert (table.loc[fixed, ["ci_low", "ci_high"]] == 0).all(axis=None)
            free = table[~fixed]
            assert ((free["sim_low"] < -5) & (free["sim_high"] > 5)).all() == is_step
            assert (free[["sim_low", "sim_high"]] == 0).all(axis=None) == (not is_step)
        assert ("between +0.00 and +0.00" in result.verdict) == (not is_step)


def test_of_one_question_the_verdict_gives_its_number(effect):
    samples = effect.samples(all_columns=True)
    result = changed(effect, samples[samples["question_id"] == samples["question_id"].iloc[0]])
    assert result.verdict.startswith(
        "Nothing is claimed: swap and null can be compared in 1 question, but 20 are needed. Use"
    )


@pytest.mark.slow
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


@pytest.mark.slow
def test_relations_with_levels_of_their_own_are_claimed_if_questions_are_drawn_and_not_else():
    options = ("relation curves", 100, 25, 200)
    by_question, _ = false_rates(*options, by_question=True)
    by_relation, _ = false_rates(*options)
    assert by_relation <= 0.12
    assert by_question >= 0.3


@pytest.mark.slow
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


@pytest.mark.slow
def test_numbers_are_printed_with_significant_digits(effect):
    frame = effect.samples(all_columns=True)
    tiny = changed(effect, frame.assign(effect=frame["effect"] / 1e6, value_before=1e-5))
    cells = [row[2] for row in tiny.findings.rows]
    assert cells
    assert all(any(digit in "123456789" for digit in cell.split()[0]) for cell in cells)


def test_without_a_null_nothing_is_claimed(effect):
    result = changed(
        effect, effect.samples(all_columns=True).query("control == 'none'"), n_null_donors=0
    )
    assert result.findings.statements == ()
    assert result.verdict.startswith("Nothing is claimed: no null was measured")


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_where_every_layer_holds_by_construction_words_and_table_say_so(tiny_model):
    options = {"layers": [0], "anchors": ("pre_answer",), "progress": False, "align": "last"}
    result = al.swap_sweep(tiny_model("llama"), capitals(12), **options)
    assert result.verdict.startswith(
        "Nothing is claimed: at every measured layer the swap is fixed by construction"
    )
    assert result.protocol.table([result])[1].empty
    assert repr(result)
