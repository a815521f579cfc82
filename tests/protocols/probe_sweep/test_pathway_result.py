"""Samples of rows that fall into pathways, with the flips beside ΔP; and what is made of them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from anchorlens.figures.curves import plot_curves
from anchorlens.protocols.knockout.analysis import ANALYSIS
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult
from anchorlens.protocols.probe_sweep.samples import pathway_samples
from anchorlens.questions.example import Span
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import Answer, RowTokenizer
from anchorlens.results.findings import SPECIFIC, STANDS
from anchorlens.runs.schema import CONTRAST_COLUMNS, SAMPLE_COLUMNS
from anchorlens.statistics.contrasts import Arm, delta_p_vs_placebo, row_specific_changes
from anchorlens.statistics.delta import delta_p, is_flipped
from anchorlens.statistics.pathways import ProbeChange, quantity_frame
from tests.protocols.sweeps import check_statements
from tests.questions.make import capital
from tests.tokenizers_small import small_tokenizer


@pytest.fixture(scope="module")
def rows():
    """A true and a false answer."""
    tokenizer = RowTokenizer(small_tokenizer("byte", bos=False), QAPrompt())
    true = tokenizer.row(capital("France", "Paris"))
    false = tokenizer.row(
        capital("Italy", "Rome"), Answer("Oslo", Span(0, 4), "gold", 1), "Italy|false"
    )
    return [true, false]


BEFORE = np.array([[0.2, 0.9], [0.4, 0.6]])
AFTER = np.array([[0.7, 0.8], [np.nan, 0.1]])
Q = np.array([[True, False], [True, False]])


def made(rows, *, kind="confidence", donors=(), flips=False, event_is_true=False):
    one = ProbeChange(control="none", before=BEFORE, after=AFTER, q=Q, donors=donors)
    return pathway_samples(
        "exact_question", kind, (3, 7), rows, one, event_is_true=event_is_true, flips=flips
    )


def test_one_row_for_each_value_that_is_there(rows):
    frame = made(rows)
    assert frame[["example_id", "layer", "pathway"]].values.tolist() == [
        ["France", 3, "Q-Anchored"],
        ["Italy|false", 3, "A-Anchored"],
        ["Italy|false", 7, "A-Anchored"],
    ]
    assert set(frame["metric"]) == {"p"}
    np.testing.assert_allclose(frame["value_before"], [0.2, 0.9, 0.6])
    np.testing.assert_allclose(frame["value_after"], [0.7, 0.8, 0.1])
    np.testing.assert_allclose(frame["effect"], [-50, -10, -50])
    np.testing.assert_allclose(frame["logp_after"], np.log([0.7, 0.8, 0.1]))
    np.testing.assert_allclose(
        frame["logit_diff_before"], [np.log(p / (1 - p)) for p in (0.2, 0.9, 0.6)]
    )


def test_the_event_is_a_false_answer_for_a_probe_and_a_true_one_for_the_models_word(rows):
    np.testing.assert_allclose(made(rows, kind="true_label")["effect"], [-50, -10, -50])
    np.testing.assert_allclose(
        made(rows, kind="true_label", event_is_true=True)["effect"], [50, 10, 50]
    )


def test_flips_are_a_quantity_of_their_own(rows):
    frame = made(rows, flips=True, donors=("d1", "d2"))
    assert frame["metric"].tolist() == ["p"] * 3 + ["flip"] * 3
    flips = frame[frame["metric"] == "flip"]
    assert flips["value_before"].tolist() == [0.0, 0.0, 0.0]
    assert flips["value_after"].tolist() == [1.0, 0.0, 1.0]
    assert flips["effect"].tolist() == [100.0, 0.0, 100.0]
    assert flips["donor_id"].tolist() == ["d1", "d2", "d2"]
    assert (
        flips[["logp_before", "logp_after", "logit_diff_before", "logit_diff_after"]]
        .isna()
        .all(axis=None)
    )
    assert frame.dtypes["logp_before"] == np.float64


N_QUESTIONS, LAYERS = 30, (3, 7, 9)
DELTA = ("delta_p_vs_placebo", "random_tokens")


def result_of(own, other, *, pair=None, shuffled=(), readout="probe", relations=0):
    """A knockout of made log-odds [layer row]: clean, cut and placebo; ``shuffled``: what each draw
    of a placebo probe reads; ``relations``: number of relations that the data name.
    """
    label = np.tile([0, 1], N_QUESTIONS)
    names = [f"r{i:02d}" for i in range(2 * N_QUESTIONS)]
    questions = np.repeat([f"q{i:02d}" for i in range(N_QUESTIONS)], 2)
    relation = ""
    if relations:
        relation = [f"relation {i // 2 % relations:02d}" for i in range(2 * N_QUESTIONS)]
    p = [1 / (1 + np.exp(-x)) for x in (own[0], own[1], other)]
    arms = [
        ("none", "", p[0], p[1]),
        ("size_matched", "", p[0], p[1]),
        ("random_tokens", "", p[0], p[2]),
    ]
    for i, pairs in enumerate(shuffled, start=1):
        arms.append(("shuffled_labels", f"draw {i}", *(1 / (1 + np.exp(-x)) for x in pairs)))
    frames = []
    for control, donor, before, after in arms:
        flips, delta = (
            is_flipped(before, after),
            delta_p(before, after, label.astype(float), "confidence"),
        )
        for at, layer in enumerate(LAYERS):
            columns = {
                "example_id": names,
                "question_id": questions,
                "cluster": relation,
                "anchor": "exact_question",
                "layer": layer,
                "donor_id": donor,
                "control": control,
                "metric": "p",
                "value_before": before[at],
                "value_after": after[at],
                "effect": delta[at],
                "by_construction": False,
                "pathway": np.where(flips[at], "Q-Anchored", "A-Anchored"),
            }
            frames.append(pd.DataFrame(columns))
    samples = pd.concat(frames).reindex(columns=list(SAMPLE_COLUMNS))
    samples = samples.assign(run_id="r", model="m", dataset="d", protocol="knockout")
    examples = pd.DataFrame(
        {
            "example_id": names,
            "question_id": questions,
            "role": "base",
            "label": label,
            "drop_reason": "",
        }
    )
    examples["qa_text_score"] = np.nan if pair is None else pair
    text = {"auc": 0.5, "ci_low": 0.4, "ci_high": 0.6}
    told = None if pair is None else {"auc": 0.8, "ci_low": 0.7, "ci_high": 0.9}
    record = {
        "config": {
            "anchors": ["exact_question"],
            "layers": list(LAYERS),
            "n_resamples": 300,
            "seed": 0,
            "delta_kind": "confidence",
            "readout": readout,
            "placebos": True,
        },
        "probe": {"probe_layer": 7, "answer_text_auc": text, "qa_text_auc": told},
        "model": {"name": "m"},
        "data": {"name": "d"},
    }
    return PathwayResult.make(ANALYSIS, samples, examples, record, "r"), label


def erased(seed=0):
    """Log-odds of which the truth's part is cut, and the placebo's, which only disturb."""
    rng = np.random.default_rng(seed)
    truth = 1.5 * (2 * np.tile([0, 1], N_QUESTIONS) - 1)
    clean = truth + rng.normal(size=(3, 60))
    return (clean, clean - truth + 0.3 * rng.normal(size=(3, 60))), clean + 0.3 * rng.normal(
        size=(3, 60)
    )


def test_effects_are_the_contrasts_of_the_samples_with_both_bands():
    own, other = erased()
    result, label = result_of(own, other)
    contrasts = result.contrasts(all_columns=True)
    assert sorted(contrasts.columns) == sorted(CONTRAST_COLUMNS)
    assert set(contrasts["anchor"]) == {"exact_question"}
    p = [1 / (1 + np.exp(-x)) for x in (own[0], own[1], other)]
    wanted = delta_p_vs_placebo(
        Arm(p[0], p[1]), Arm(p[0], p[2]), label.astype(float), "confidence", result.draws
    )
    shown = contrasts[
        (contrasts["quantity"] == "delta_p_vs_placebo") & (contrasts["control"] == "random_tokens")
    ]
    np.testing.assert_allclose(shown["value"], wanted.value)
    assert (shown["sim_low"] <= shown["ci_low"]).all()
    assert set(contrasts["quantity"]) == {
        "delta_p_vs_placebo",
        "flip_rate",
        "auc_drop",
        "row_specific_effect",
        "row_specific_vs_placebo",
        "gap",
        "placebo_gap",
        "gap_difference",
        "auc",
        "auc_after",
    }
    findings = check_statements(result)
    assert {one.quantity: one.status for one in findings.statements} == dict.fromkeys(
        ("delta_p_vs_placebo", "flip_rate", "auc_drop", "all_contrasts"), STANDS
    ) | {"row_specific_vs_placebo": SPECIFIC}
    assert "specific to the row" in findings.headline
    (summary,) = result.summary().to_dict("records")
    assert summary["delta_p_vs_placebo"] == pytest.approx(wanted.value[1])
    assert summary["layer"] == 7
    assert "effect" not in summary


def test_the_row_specific_effect_is_compared_with_that_of_the_placebo_by_row():
    result, _ = result_of(*erased())
    tables, config = result.tables(), result.record["config"]
    changes = [
        row_specific_changes(
            Arm(tables[name].before, tables[name].after),
            result.labels,
            "confidence",
            result.draws.cluster,
            config["seed"],
        )
        for name in ("size_matched", "random_tokens")
    ]
    fact = result.facts(7)["row_specific_vs_placebo", "random_tokens"]
    assert fact.value == pytest.approx(np.mean((changes[0] - changes[1])[1]))
    own, placebo = (
        result.facts(7)["row_specific_effect", name].value
        for name in ("size_matched", "random_tokens")
    )
    assert fact.value == pytest.approx(own - placebo)
    (row,) = (row for row in result.findings.rows if row[0] == "row_specific_vs_placebo")
    assert row[3:] == (SPECIFIC, f"{placebo:.1f}")


def test_p_values_of_the_claims_agree_with_their_intervals():
    own, other = erased()
    found = {
        one.quantity: one.p
        for one in result_of(own, other)[0].findings.statements
        if one.p is not None
    }
    assert list(found) == ["delta_p_vs_placebo", "flip_rate", "auc_drop", "row_specific_vs_placebo"]
    assert found["row_specific_vs_placebo"] == max(found.values()) < 0.05
    same = [
        one.p
        for one in result_of((own[0], other), other)[0].findings.statements
        if one.p is not None
    ]
    assert same == pytest.approx([1] * 4)


def test_what_the_probe_tells_beyond_the_text_is_paired_by_question():
    own, other = erased()
    label = np.tile([0.0, 1.0], N_QUESTIONS)
    result, _ = result_of(own, other, pair=np.where(np.arange(60) % 5 == 0, 0.5, label))
    fact = result.facts(7)["auc_beyond_text", "none"]
    text = roc_auc_score(label, np.where(np.arange(60) % 5 == 0, 0.5, label))
    assert fact.value == pytest.approx(result.facts(7)["auc", "none"].value - text)
    assert result.verdict.startswith(
        "Beware: a classifier of question and answer text reaches AUC 0.80"
    )
    asked, _ = result_of(own, other, pair=label, readout="p_true")
    assert asked.facts(7)["auc_beyond_text", "none"].value == pytest.approx(
        asked.facts(7)["auc", "none"].value - 1
    )


def test_draws_of_a_placebo_probe_are_averaged_and_widen_the_interval():
    rng = np.random.default_rng(2)
    own, other = erased()
    draws = [(rng.normal(size=(3, 60)), 0.5 * rng.normal(size=(3, 60))) for _ in range(5)]
    each = [
        result_of(own, other, shuffled=[one])[0].groups()["shuffled_labels"]["All"] for one in draws
    ]
    together = result_of(own, other, shuffled=draws)[0].groups()["shuffled_labels"]["All"]
    np.testing.assert_allclose(together.value, np.mean([one.value for one in each], axis=0))
    assert (together.draws.std(0) > np.mean([one.draws.std(0) for one in each], axis=0)).all()


def test_the_band_of_a_flip_rate_holds_possible_rates_only():
    """One flip in 60 rows had an interval from -0.1 to 5.2 %, and a band from -5.3 to 8.4 %."""
    clean = 3 * (2.0 * np.tile([0, 1], N_QUESTIONS) - 1) * np.ones((3, 1))
    cut = clean.copy()
    cut[:, 3] *= -1
    cut[1, 8] *= -1
    plain, _ = result_of((clean, cut), clean)
    samples = plain.samples(all_columns=True)
    flipped = (samples["pathway"] == "Q-Anchored").astype(float)
    flips = samples.assign(
        metric="flip", value_before=0.0, value_after=flipped, effect=100 * flipped
    )
    both = pd.concat([samples, flips])
    result = PathwayResult.make(ANALYSIS, both, plain.examples(all_columns=True), plain.record, "r")
    curves = result.curves(all_columns=True)
    rates = curves[(curves["metric"] == "flip") & (curves["pathway"] == "All")]
    assert (rates["effect"] > 0).all()
    assert (rates[["ci_low", "sim_low"]] == 0).all(axis=None)
    assert (rates["sim_high"] >= rates["ci_high"]).all()
    own = result.groups("flip")["none"]["All"]
    table = quantity_frame(LAYERS, "flip_rate_patched", "none", own)
    np.testing.assert_array_equal(table["sim_low"], rates["sim_low"])
    assert (quantity_frame(LAYERS, "flip_rate", "none", own)["sim_low"] < 0).all()


def test_no_flip_at_all_leaves_the_exact_binomial_bound():
    """No flip in 60 questions had the interval [0, 0]."""
    clean = 3 * (2.0 * np.tile([0, 1], N_QUESTIONS) - 1) * np.ones((3, 1))
    plain, _ = result_of((clean, clean), clean)
    samples = plain.samples(all_columns=True)
    flips = samples.assign(metric="flip", value_before=0.0, value_after=0.0, effect=0.0)
    both = pd.concat([samples, flips])
    result = PathwayResult.make(ANALYSIS, both, plain.examples(all_columns=True), plain.record, "r")
    curves = result.curves(all_columns=True)
    rates = curves[(curves["metric"] == "flip") & (curves["pathway"] == "All")]
    bound = 100 * (1 - 0.025 ** (1 / rates["n_clusters"]))
    np.testing.assert_allclose(rates["ci_high"], bound)
    assert (rates["ci_low"] == 0).all()
    assert (rates["sim_high"] > rates["ci_high"]).all()
    own = result.groups("flip")["none"]["All"]
    table = quantity_frame(LAYERS, "flip_rate_patched", "none", own)
    np.testing.assert_array_equal(table["sim_high"], rates["sim_high"])


@pytest.mark.slow
def test_what_text_tells_stands_beside_every_point_and_in_the_figure():
    own, other = erased()
    result, _ = result_of(own, other, pair=np.tile([0.0, 1.0], N_QUESTIONS))
    assert set(result.curves()["qa_text_auc"]) == {0.8}
    assert set(result.curves()["qa_text_auc_low"]) == {0.7}
    same = {
        "site": "",
        "probe_site": "resid_post",
        "window": 0,
        "direction": "noising",
        "donor_rule": "",
        "knockout_mode": "mask",
        "readout": "probe",
    }
    frame = result.curves().assign(**same, delta_kind="confidence", seed=0)
    caption = plot_curves(frame).layout.meta["anchorlens"]["caption"]
    assert "AUC of a classifier of the text alone: d 0.80 (above 0.5)." in caption
    plain, _ = result_of(own, other)
    assert plain.curves(all_columns=True)["qa_text_auc"].isna().all()


@pytest.mark.slow
def test_whole_relations_are_drawn_and_the_verdict_names_them():
    """From twenty relations on layers are named; below ten nothing is said beyond them."""
    by_number = {n: result_of(*erased(), relations=n)[0] for n in (0, 5, 11, 20)}
    drawn = {n: set(one.contrasts()["n_clusters"]) for n, one in by_number.items()}
    of_rows = {n: by_number[n].facts(7)[DELTA].n_clusters for n in by_number}
    assert of_rows == {0: 30, 5: 30, 11: 11, 20: 20}
    assert all(of_rows[n] in drawn[n] for n in drawn)
    notes = {n: " ".join(one.findings.notes) for n, one in by_number.items()}
    assert "relation" not in notes[0]
    assert "30 questions of 5 relations: questions are drawn" in notes[5]
    assert "Nothing is said beyond these relations" in notes[5]
    assert "30 questions of 11 relations: whole relations are drawn" in notes[11]
    assert "Intraclass correlation of delta_p_vs_placebo" in notes[11]
    assert "No layers are named: 20 relations are needed." in notes[11]
    assert "All three contrasts stand at layers" in notes[20]
    assert by_number[11].findings.statements[-1].layers == ()
    assert by_number[20].findings.statements[-1].layers == LAYERS


def test_relations_that_differ_widen_the_interval():
    """Attenuation by relation alone: intervals of questions are too short."""
    rng = np.random.default_rng(4)
    clean = 1.5 * (2 * np.tile([0, 1], N_QUESTIONS) - 1) + rng.normal(size=(3, 60))
    kept = rng.uniform(0, 2, 11)[np.arange(60) // 2 % 11]
    arms = (clean, kept * clean), clean
    widths = {}
    for n in (0, 11):
        fact = result_of(*arms, relations=n)[0].facts(7)[DELTA]
        widths[n] = fact.high - fact.low
    assert widths[11] > 1.2 * widths[0]


def test_contrasts_have_p_values_adjusted_over_layers():
    own, other = erased()
    result, _ = result_of(own, other)
    contrasts = result.contrasts(all_columns=True)
    has_p = contrasts.groupby("quantity")["p"].apply(lambda p: p.notna().all())
    assert set(has_p[has_p].index) == {
        "delta_p_vs_placebo",
        "flip_rate",
        "auc_drop",
        "row_specific_vs_placebo",
    }
    assert contrasts.loc[~contrasts["quantity"].isin(has_p[has_p].index), "p"].isna().all()
    same, _ = result_of((own[0], other), other)
    p = same.contrasts(all_columns=True).set_index("quantity")["p"].dropna()
    assert (p == 1).all()
    # The smallest p-value of 999 flips, at one layer and over all of them.
    delta = contrasts[contrasts["quantity"] == "delta_p_vs_placebo"]
    assert delta["p"].to_numpy() == pytest.approx([0.001] * 3)
    assert ANALYSIS.p_values(result)["auc_drop"] == pytest.approx(0.001)
