"""The knockout sweep: what comes out, what it refuses, and planted mistakes that are caught by
name.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import anchorlens as al
from anchorlens.engine.cone import ConeEngine
from anchorlens.errors import CheckError, EmptySweepError, LeakError, SpanError
from anchorlens.questions.example import Span
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer
from tests.protocols.sweeps import OPTIONS, assert_close, measured, own, questions, swept

PLACEBOS = {"random_tokens", "random_before", "random_after"}
READINGS = ({"window": 1, "layers": (0, 2)}, {"readout": "p_true", "layers": (0, 2)})


@pytest.fixture(scope="module")
def splits(tiny_model):
    """The same, with its rows split five times."""
    return swept(tiny_model("llama"), "knockout", n_splits=5)


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return swept(tiny_model("llama"), "knockout")


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("options", READINGS)
def test_the_reference_engine_gives_the_same_of_every_reading(tiny_model, options):
    cone, oracle = (
        swept(tiny_model("llama"), "knockout", engine=engine, **options)
        for engine in ("cone", "reference")
    )
    assert_close(cone, oracle)
    assert (oracle.samples()["value_after"] - oracle.samples()["value_before"]).abs().max() > 1e-4


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(one, marks=pytest.mark.slow) for one in READINGS)]
)
def test_a_spot_check_finds_an_engine_that_is_wrong(tiny_model, monkeypatch, options):
    name = "knockout_states" if options else "knockout_states_all_layers"
    right = getattr(ConeEngine, name)

    def falsified(self, batch, **how):
        states = right(self, batch, **how)
        wrong = states if options else states[1:]  # the first of these runs is the clean one
        wrong += 50.0 * torch.randn(wrong.shape, generator=torch.Generator().manual_seed(1))
        return states

    monkeypatch.setattr(ConeEngine, name, falsified)
    with pytest.raises(CheckError, match=r"by .* points \(allowed: .*\) at example .*, layer \d"):
        measured(tiny_model("llama"), "knockout", n_spot_checks=40, **options)


@pytest.mark.slow
def test_placebos_effects_and_their_arithmetic(sweep):
    assert set(sweep.samples()["control"]) == {
        "none",
        "size_matched",
        "shuffled_labels",
        "cross_fold",
        *PLACEBOS,
    }
    by = sweep.contrasts().set_index(["quantity", "control", "layer"])["value"]
    curves = sweep.curves(controls=True).set_index(["control", "pathway", "layer"])["effect"]
    for layer in sweep.layers:
        own_gap, matched, placebo = (
            curves[control, "Q-Anchored", layer] - curves[control, "A-Anchored", layer]
            for control in ("none", "size_matched", "random_tokens")
        )
        assert by["gap", "none", layer] == pytest.approx(own_gap, nan_ok=True)
        assert by["placebo_gap", "random_tokens", layer] == pytest.approx(placebo, nan_ok=True)
        assert by["gap_difference", "random_tokens", layer] == pytest.approx(
            matched - placebo, nan_ok=True
        )


@pytest.mark.slow
def test_the_record_says_how_steady_k_star_is_and_what_text_alone_tells(splits):
    sweep = splits
    probe = sweep.record["probe"]
    assert (
        len(probe["probe_layers"]) == len(sweep.probes.splits) == sweep.record["config"]["n_splits"]
    )
    assert (
        probe["probe_layer"] == sorted(probe["probe_layers"])[(len(probe["probe_layers"]) - 1) // 2]
    )
    base = sweep.examples().query("role == 'base'")
    assert base["qa_text_score"].between(0, 1).all()
    assert roc_auc_score(base["label"], base["qa_text_score"]) == pytest.approx(
        probe["qa_text_auc"]["auc"]
    )
    for name in ("answer_text_auc", "qa_text_auc"):
        assert probe[name]["ci_low"] <= probe[name]["auc"] <= probe[name]["ci_high"]


@pytest.mark.slow
def test_planted_overlap_of_question_and_answer_is_the_first_thing_that_is_said(tiny_model):
    """The answer begins like a word of its question, and no string is more often true than false:
    the pair alone tells.
    """
    heads, tails = (
        ("Bar", "Cor", "Dun", "Fel", "Gor", "Hal", "Kin", "Lor"),
        (
            "nes",
            "vick",
            "dmar",
            "phil",
            "ston",
        ),
    )
    towns = [a + b for a in heads for b in tails]
    rows = [
        {
            "question": f"Which river runs through {town}?",
            "answers": [f"{town}ach"],
            "subject": town,
            "property": "river",
        }
        for town in towns
    ]
    told = al.knockout_sweep(
        tiny_model("llama"),
        al.load_qa(rows, dataset_name="rivers"),
        layers=(0, 2),
        n_splits=1,
        **OPTIONS,
    )
    assert told.qa_text_auc["ci_low"] > 0.5
    assert told.answer_text_auc["ci_low"] <= 0.5 <= told.answer_text_auc["ci_high"]
    assert told.verdict.startswith("Beware: a classifier of question and answer text reaches AUC ")
    assert "; the probe's AUC " in told.verdict
    assert told.facts(told.probe_layer)["auc_beyond_text", "none"].value < 0
    assert told.protocol.table([told])[1]["text AUC"].tolist() == [f"{told.qa_text_auc['auc']:.2f}"]


@pytest.mark.slow
def test_a_split_per_layer_and_no_placebo_on_either_side_share_the_samples(tiny_model, sweep):
    other = measured(
        tiny_model("llama"), "knockout", split_placebo_by_side=False, split="per_layer"
    )
    sides = {"random_before", "random_after"}
    assert set(sweep.samples()["control"]) == set(other.samples()["control"]) | sides
    same = sweep.samples()[~sweep.samples()["control"].isin(sides)]
    np.testing.assert_allclose(same["value_after"], other.samples()["value_after"], atol=1e-5)
    theirs = own(other)
    flips = (theirs["value_before"] >= 0.5) != (theirs["value_after"] >= 0.5)
    assert ((theirs["pathway"] == "Q-Anchored") == flips).all()


@pytest.mark.slow
def test_probes_and_those_of_placebos_are_stored(splits, tmp_path):
    sweep = splits
    (loaded,) = al.load_run(sweep.save(tmp_path / "a"))
    assert loaded.probes.probe_layer == sweep.probe_layer
    assert set(loaded.placebo_probes) == {"shuffled_labels_1", "fold_a", "fold_b"}
    for name, probes in loaded.placebo_probes.items():
        assert probes.fingerprint == sweep.placebo_probes[name].fingerprint
    for split, one in enumerate(sweep.probes.splits):
        for layer, probe in one.probes.items():
            again = loaded.probes.splits[split].probes[layer]
            for name in ("coef_", "intercept_", "mean_", "scale_"):
                np.testing.assert_array_equal(getattr(again, name), getattr(probe, name))
            assert again.train_questions_ == probe.train_questions_


@pytest.mark.slow
def test_probes_of_a_sweep_refuse_the_questions_they_saw(tiny_model, splits):
    """Planted: a probe that saw test questions."""
    sweep = splits
    with pytest.raises(LeakError):
        measured(
            tiny_model("llama"),
            "knockout",
            n_splits=5,
            probes=al.CrossFittedProbes(sweep.probes.splits[:2]),
        )
    bare = measured(
        tiny_model("llama"), "knockout", n_splits=5, probes=sweep.probes, placebos=False
    )
    np.testing.assert_allclose(bare.samples()["value_after"], own(sweep)["value_after"], atol=1e-6)
    assert "Nothing is claimed" in bare.verdict


@pytest.mark.slow
def test_planted_shuffled_labels_give_no_signal(tiny_model):
    """Whoever labels at random reads: no signal, and no claim."""
    data, rng = questions(), np.random.default_rng(3)
    # Every question gets another question's answers: gold and false answers are equally wrong for
    # it.
    order = rng.permutation(len(data.examples))
    mixed = [
        replace(e, answers=data.examples[j].answers, relation=None)
        for e, j in zip(data.examples, order, strict=True)
    ]
    shuffled = replace(data, examples=tuple(mixed), pool=tuple(mixed))
    result = al.knockout_sweep(tiny_model("llama"), shuffled, n_splits=1, **OPTIONS)
    curves = result.curves()
    assert (~curves["probe_above_chance"]).sum() > 0.8 * len(curves)
    assert "Nothing is claimed: " in result.verdict
    assert "no signal of the probe was detected" in result.verdict


def test_planted_span_off_by_one_names_other_tokens_or_is_refused(tiny_model):
    example, tokenizer = (
        questions().examples[0],
        RowTokenizer(tiny_model("llama").tokenizer, QAPrompt()),
    )
    moved = replace(example, subject=Span(example.subject.start + 1, example.subject.end + 1))
    assert tokenizer.row(example).positions["subject"] != tokenizer.row(moved).positions["subject"]
    beyond = Span(len(example.question) - 2, len(example.question) + 1)
    with pytest.raises(SpanError, match="lies outside the question"):
        tokenizer.row(replace(example, property=beyond))


@pytest.mark.slow
def test_windows_are_read_at_k_star_and_miss_what_cannot_reach_it(tiny_model, sweep):
    window, everything = (
        measured(tiny_model("llama"), "knockout", window=n, placebos=False) for n in (1, 99)
    )
    assert window.shown_layer <= window.probe_layer
    assert set(own(window)["layer"]) == {
        layer for layer in window.layers if layer <= window.probe_layer
    }
    # The same split: rows that flip under the whole cut.
    ours, theirs = (
        own(s).query("layer == 0").set_index("example_id")["pathway"] for s in (sweep, window)
    )
    assert (ours == theirs).all()
    whole = everything.samples().query("layer == 0").set_index("example_id")["value_after"]
    k = own(sweep).query(f"layer == {sweep.probe_layer}").set_index("example_id")["value_after"]
    np.testing.assert_allclose(whole.sort_index(), k.sort_index(), atol=1e-6)


@pytest.mark.slow
def test_p_true_is_read_after_the_question_whether_it_is_right(tiny_model):
    model = tiny_model("llama")
    result = al.knockout_sweep(
        model, al.load_qa("popqa-sample", limit=40), readout="p_true", layers=[0], **OPTIONS
    )
    assert result.probe_layer is None
    assert set(result.samples()["control"]) == {"none", "size_matched", *PLACEBOS}
    base = result.examples().query("role == 'base'")
    assert base["text"].str.endswith("\nIs this answer correct? Answer yes or no.\nA:").all()
    row = base.iloc[0]
    # P(yes) against no, by hand, from the stored input.
    with torch.no_grad():
        logits = model(torch.tensor([list(row["token_ids"])]), prepend_bos=False)[0, -1]
    yes, no = (
        {
            model.tokenizer(space + form, add_special_tokens=False)["input_ids"][0]
            for space in ("", " ")
            for form in forms
        }
        for forms in (("yes", "Yes", "YES"), ("no", "No", "NO"))
    )
    gap = logits[sorted(yes - no)].logsumexp(0) - logits[sorted(no - yes)].logsumexp(0)
    sample = own(result).set_index("example_id")
    assert sample.loc[row["example_id"], "value_before"] == pytest.approx(
        float(gap.sigmoid()), abs=1e-5
    )


@pytest.mark.parametrize(
    ("change", "mode"),
    [
        ({"knockout_mode": "zero"}, "zero"),
        ({"heads": (0,)}, "mask, heads 0"),
        ({"cut_layers": (1, 2)}, "mask"),
    ],
)
def test_modes_heads_and_cut_layers_are_named_and_differ(tiny_model, sweep, change, mode):
    other = measured(tiny_model("llama"), "knockout", placebos=False, **change).samples()
    assert set(other["knockout_mode"]) == {mode}
    cut = {1, 2} if "cut_layers" in change else {0, 1, 2}
    assert set(other["layer"]) == cut  # below, nothing is cut: missing, not zero
    whole = own(sweep).query(f"layer in {sorted(cut)}")
    np.testing.assert_allclose(other["value_before"], whole["value_before"], atol=1e-6)
    assert np.abs(other["value_after"].to_numpy() - whole["value_after"].to_numpy()).max() > 1e-4
    assert other.query("layer == 2")["effect"].abs().max() > 0


def test_few_rows_are_said(tiny_model):
    small = al.load_qa("triviaqa-sample", limit=40)
    with pytest.warns(
        UserWarning, match=r"Few rows \(.*validation \d+\): k\*, AUC and groups are noisy"
    ):
        al.knockout_sweep(
            tiny_model("llama"), small, layers=[0], n_splits=1, placebos=False, **OPTIONS
        )


def test_generated_answers_of_a_model_that_knows_nothing_stop_with_counts(tiny_model):
    with pytest.raises(EmptySweepError, match="train: 0 true"):
        measured(tiny_model("llama"), "knockout", answers="generated", max_new_tokens=4)
