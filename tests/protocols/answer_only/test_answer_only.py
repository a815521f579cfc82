"""The answer after an empty question: what comes out is recomputed from the files, and what must
hold by algebra holds.
"""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import anchorlens as al
from anchorlens.engine.choose_engine import choose_engine
from anchorlens.errors import InputError
from anchorlens.models.load import adapt
from anchorlens.prompts.dataset import RowDropped
from anchorlens.protocols.answer_only.analysis import ANALYSIS
from anchorlens.protocols.answer_only.measurement import MEASUREMENT
from anchorlens.protocols.answer_only.question_removal import (
    after_other_question,
    build_changed_row,
    without_question,
)
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult
from anchorlens.questions.example import normalise
from anchorlens.questions.prompts import ChatPrompt, PromptText, QAPrompt, TemplatePrompt
from anchorlens.questions.tokens import RowTokenizer, set_up_questions
from anchorlens.results.findings import DESCRIPTION, NOT_DETECTED, STANDS, TOO_FEW
from anchorlens.running.sweeps import answer_only_sweep
from tests.protocols.sweeps import OPTIONS, check_statements, inputs, own, questions, spec_of, swept
from tests.raised import raises
from tests.recompute import ProbeRecompute
from tests.tokenizers_small import small_tokenizer

OTHER = "other_question"


@pytest.fixture(scope="module")
def data():
    return questions()


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return swept(tiny_model("llama"), "answer_only")


@pytest.mark.slow
def test_delta_p_is_recomputed_from_the_files_alone(tiny_model, sweep, tmp_path):
    again = ProbeRecompute(sweep.save(tmp_path / "run"), tiny_model("llama"))
    p = again.samples[again.samples["metric"] == "p"]
    cells = p.groupby(["control", "layer"]).sample(n=4, random_state=3)
    assert len(cells) == 2 * 3 * 4
    assert cells["effect"].abs().max() > 0.05  # a probe of random weights is held back strongly
    again.check(cells, 1e-5)


@pytest.mark.parametrize("cause", ["shares an answer", "too long"])
def test_a_row_without_another_question_names_every_cause(data, cause):
    tokenizer = RowTokenizer(small_tokenizer("byte", bos=True), QAPrompt())
    row = tokenizer.row(data.examples[0])
    pool = data.examples[:1] if cause == "shares an answer" else data.examples
    tokenizer.max_length = 1
    with pytest.raises(
        RowDropped, match=rf"{min(len(pool), 64)} questions tried.*{cause}"
    ) as caught:
        after_other_question(row, tokenizer, pool, 0)
    assert caught.value.reason == "no_other_question"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_on_real_weights(smollm2, tmp_path):
    result = answer_only_sweep(
        smollm2, al.load_qa("triviaqa-sample", limit=40), layers=(4, 15, 29), **OPTIONS
    )
    again = ProbeRecompute(result.save(tmp_path / "run"), smollm2)
    p = again.samples[again.samples["metric"] == "p"]
    again.check(p.groupby("control").sample(n=5, random_state=0), 1e-4)
    auc = result.contrasts().query("quantity == 'auc_after' and control == 'none'")
    assert auc["value"].to_numpy() == pytest.approx(0.5)


def test_the_input_is_the_template_with_an_empty_question(sweep, data):
    base, corrupt = inputs(sweep, "base"), inputs(sweep, "corrupt")
    questions = {e.example_id: e.question for e in data.examples}
    for example_id, row in base.iterrows():
        empty = corrupt.loc[f"{example_id}~"]
        assert empty["text"] == f"Q:\nA: {row['answer']}"
        assert empty["question"] == ""
        (donor,) = row["donor_ids"]
        other = corrupt.loc[f"{example_id}~{donor}"]
        assert other["text"] == f"Q: {questions[donor]}\nA: {row['answer']}"
        for changed in (empty, other):
            there, here = (
                [r["token_ids"][p] for p in json.loads(r["positions"])["answer"]]
                for r in (changed, row)
            )
            assert there == here  # the exact answer is made of the same tokens
    assert len(corrupt) == 2 * len(base)


def test_the_other_question_has_nothing_to_do_with_the_answer(sweep, data):
    by_id = {e.example_id: e for e in data.examples}
    base = inputs(sweep, "base")
    tested = {e.removesuffix("|true").removesuffix("|false") for e in base.index}
    donors = set()
    for example_id, row in base.iterrows():
        donor, mine = by_id[row["donor_ids"][0]], by_id[example_id.split("|")[0]]
        donors.add(donor.example_id)
        assert donor.example_id in tested  # of the same split: the probes have not seen it
        assert donor.question_id != mine.question_id
        theirs = {normalise(a) for a in donor.answers}
        assert not theirs & {normalise(a) for a in (*mine.answers, row["answer"])}
        assert f" {normalise(row['answer'])} " not in f" {normalise(donor.question)} "
    assert len(donors) > len(tested) / 4


def test_rows_of_one_answer_have_one_p_and_so_balanced_answers_an_auc_of_one_half(sweep):
    answers = inputs(sweep, "base")["answer"]
    samples = own(sweep).assign(answer=lambda f: f["example_id"].map(answers))
    groups = samples.groupby(["answer", "layer"])["value_after"]
    assert (groups.nunique() == 1).all()
    assert groups.size().min() >= 2
    assert sweep.record["counts"]["distinct_answers"] == answers.nunique() < len(answers)
    auc = sweep.contrasts().query("quantity == 'auc_after' and control == 'none'")
    np.testing.assert_allclose(auc["value"], 0.5, atol=1e-12)
    assert ((auc["ci_low"] <= 0.5) & (auc["ci_high"] >= 0.5)).all()
    # The clean AUC stands there once: both measurements share the clean input.
    assert list(sweep.contrasts().query("quantity == 'auc'")["control"].unique()) == ["none"]


def test_the_summary_is_that_of_the_contrasts_at_k_star(sweep):
    at = (
        sweep.contrasts()
        .query(f"layer == {sweep.probe_layer} and control == {OTHER!r}")
        .set_index("quantity")["value"]
    )
    (here,) = sweep.summary().to_dict("records")
    assert here["delta_p_vs_placebo"] == at["delta_p_vs_placebo"]
    assert here["all"] - here["all_other_question"] == pytest.approx(at["delta_p_vs_placebo"])
    assert (
        100 * (here["p_after"] - here["p_after_other_question"])
        == pytest.approx(at["p_after"])
        == here["p_difference"]
    )


def test_balanced_answers_fix_the_mean_of_delta_p(sweep):
    """A string that is once true and once false, both predicted right: what P becomes leaves their
    sum, and one of them flips.
    """
    base = inputs(sweep, "base")
    samples = own(sweep).join(base[["answer", "label"]], on="example_id")
    right = (samples["value_before"] >= 0.5) == (samples["label"] == 1)
    seen = 0
    for (_, _), rows in samples[right].groupby(["answer", "layer"]):
        true, false = (rows[rows["label"] == label].iloc[:1] for label in (0, 1))
        if len(true) and len(false):
            seen += 1
            true, false = true.iloc[0], false.iloc[0]
            wanted = 100 * (true["value_before"] - false["value_before"])
            assert true["effect"] + false["effect"] == pytest.approx(wanted)
            assert (
                sum(
                    (row["value_before"] >= 0.5) != (row["value_after"] >= 0.5)
                    for row in (true, false)
                )
                == 1
            )
    assert seen


def test_rows_of_one_input_are_in_one_unit(tiny_model):
    spec, adapter = spec_of("answer_only", batch_size=16), adapt(tiny_model("llama"))
    ready = MEASUREMENT.prepare(set_up_questions(adapter, questions(), spec), spec)
    engine = choose_engine(adapter, spec.engine, ready.trial, ready.sites)
    homes: dict[tuple[int, ...], set[int]] = {}
    for i, unit in enumerate(MEASUREMENT.plan(engine, ready, spec).units):
        for j in unit.tests:
            homes.setdefault(ready.variants[j][0].row.ids, set()).add(i)
    assert len(set.union(*homes.values())) > 1
    assert {len(units) for units in homes.values()} == {1}


@pytest.mark.slow
def test_shots_stay_and_bos_stands_once(tiny_model, data):
    few = answer_only_sweep(
        tiny_model("llama", True),
        data,
        prompt="fewshot(2)",
        layers=[1],
        n_spot_checks=0,
        n_splits=1,
        **OPTIONS,
    )
    base, corrupt = inputs(few, "base"), inputs(few, "corrupt")
    first = base["text"].iloc[0]
    head = first[: first.rindex("Q: ")]
    assert head.count("Q: ") == head.count("\nA: ") == 2
    assert base["text"].str.startswith(head).all()
    for example_id, row in base.iterrows():
        assert corrupt.loc[f"{example_id}~", "text"] == f"{head}Q:\nA: {row['answer']}"
    assert not base["question"].map(lambda q: q in head).any()
    ids = corrupt["token_ids"].map(list)
    assert ids.map(lambda tokens: tokens[0] == 0 and tokens.count(0) == 1).all()


@pytest.mark.slow
def test_answers_of_other_tokens_are_dropped_and_counted(tiny_model, data, sweep, monkeypatch):
    answers = inputs(sweep, "base")["answer"]
    chosen = answers.value_counts().index[0]
    right = RowTokenizer.encode

    def encode(self, text):
        ids, offsets = right(self, text)
        return (
            ([*ids[:-1], 7, 7], [*offsets[:-1], offsets[-1], offsets[-1]])
            if text == f"Q:\nA: {chosen}"
            else (ids, offsets)
        )

    monkeypatch.setattr(RowTokenizer, "encode", encode)
    result = answer_only_sweep(tiny_model("llama"), data, n_splits=1, **OPTIONS)
    gone = result.examples().query("drop_reason == 'answer_retokenised'")
    assert set(gone["example_id"]) == set(answers.index[answers == chosen])
    assert set(gone["answer"]) == {chosen}
    assert (
        result.dropped_counts["answer_retokenised"]
        == len(gone)
        == result.record["counts"]["dropped"]["answer_retokenised"]
    )
    assert set(result.example_ids) == set(sweep.example_ids) - set(gone["example_id"])
    auc = result.contrasts().query("quantity == 'auc_after' and control == 'none'")
    np.testing.assert_allclose(auc["value"], 0.5, atol=1e-12)  # both labels of the string left


@pytest.mark.slow
def test_kinds_of_delta_and_of_the_split(tiny_model, data, sweep):
    signed = answer_only_sweep(
        tiny_model("llama"), data, delta_kind="signed", knockout_mode="zero", n_splits=1, **OPTIONS
    )
    ours, theirs = own(sweep), own(signed)
    np.testing.assert_array_equal(ours["value_after"], theirs["value_after"])
    np.testing.assert_allclose(
        theirs["effect"], 100 * (theirs["value_after"] - theirs["value_before"])
    )
    assert (ours["pathway"].to_numpy() != theirs["pathway"].to_numpy()).any()
    assert set(theirs["knockout_mode"]) == {"zero"}
    assert set(theirs["anchor"]) == {"whole_question"}


# -- the empty question
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        (QAPrompt(), "Q:\nA:"),
        (TemplatePrompt.of("Question: {question} Answer:"), "Question: Answer:"),
        (TemplatePrompt.of("{question} Answer:"), "Answer:"),
        (TemplatePrompt.of("Say ({question})\\n"), "Say ()\n"),
        (TemplatePrompt.of("A: {question}"), "A:"),
    ],
)
def test_the_space_that_an_empty_question_leaves_is_gone(prompt, text):
    made = without_question(RowTokenizer(small_tokenizer("byte", bos=False), prompt))
    assert made.text == text


def test_a_prompt_that_takes_no_empty_question_is_refused():
    with raises(InputError, "prompt"):
        without_question(RowTokenizer(small_tokenizer("byte", bos=False, chat=True), ChatPrompt()))


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (
            PromptText("Q: " + 60 * "why " + "\nA:\n", 3, ""),
            "too_long: .* tokens, but the model takes 99",
        ),
        (PromptText("", 0, ""), "anchor_at_position_0: the answer includes the first token"),
        (
            PromptText("Q:\nA:", 2, " "),
            r"answer_retokenised: the answer has other tokens after 'Q:\\nA:'",
        ),
    ],
)
def test_inputs_that_cannot_be_measured(data, prompt, said):
    tokenizer = RowTokenizer(
        small_tokenizer("byte", bos=False),
        TemplatePrompt.of("Q: {question}\\nA:\\n"),
        max_length=99,
    )
    row = tokenizer.row(replace(data.examples[0], answers=("Rome",)))
    with pytest.raises(RowDropped, match=said):
        build_changed_row(row, tokenizer, prompt, "", "x")


# -- findings
# -----------------------------------------------------------------------------------------------------------------


def made(result, change):
    """The result with other samples; ``change`` gets P before and after by control and label."""
    samples = result.samples(all_columns=True)
    labels = samples["example_id"].map(inputs(result, "base")["label"]).astype(float)
    samples = change(samples, labels)
    p = samples["metric"] == "p"
    before, after = samples["value_before"].astype(float), samples["value_after"].astype(float)
    sign = np.where(before >= 0.5, 1.0, -1.0)
    samples.loc[p, "effect"] = (100 * sign * (after - before))[p]
    return PathwayResult.make(
        ANALYSIS, samples, result.examples(all_columns=True), result.record, result.run_id
    )


def constant(value, other=None, leak=0.0):
    """A probe that is right and sure; both inputs leave it at a value, whatever the label but for
    the leak.
    """

    def change(samples, labels):
        p, control = samples["metric"] == "p", samples["control"] == OTHER
        samples.loc[p, "value_before"] = (0.1 + 0.8 * labels)[p]
        samples.loc[p, "value_after"] = (value + leak * labels)[p]
        samples.loc[p & control, "value_after"] = value if other is None else other
        return samples

    return change


@pytest.mark.parametrize(
    ("other", "status", "value"), [(None, NOT_DETECTED, 0), (0.85, STANDS, -40)]
)
def test_the_finding_is_the_difference_of_p_with_its_interval(sweep, other, status, value):
    result = made(sweep, constant(0.45, other))
    findings = check_statements(result)
    by = {one.quantity: one for one in findings.statements}
    assert list(by) == ["p_after", "delta_p_vs_placebo", "flip_rate"]
    assert {(one.layers, one.control) for one in by.values()} == {((sweep.probe_layer,), OTHER)}
    assert by["p_after"].status == status
    assert (by["p_after"].value, by["p_after"].low, by["p_after"].high) == pytest.approx(
        (value,) * 3, abs=1e-9
    )
    # With balanced answers what P becomes leaves the mean of delta_p: that is description.
    assert by["delta_p_vs_placebo"].status == by["flip_rate"].status == DESCRIPTION
    assert by["delta_p_vs_placebo"].value == pytest.approx(0, abs=1e-9)
    after = 0.45 if other is None else other
    levels = f"0.45 without a question, {after:.2f} after another row's, 0.50 clean."
    assert f"Mean P(hallucination): {levels}" in findings.notes
    shown = "0.0 [0.0, 0.0]" if other is None else "-40.0 [-40.0, -40.0]"
    assert f"{shown} points." in findings.headline
    assert ("no difference of P(hallucination)" in findings.headline) == (status == NOT_DETECTED)
    assert [(row[0], *row[-2:]) for row in findings.rows] == [
        ("p_after", status, f"{100 * (other or 0.45):.1f}")
    ]
    assert any(note.startswith("AUC 1.00, answer only 0.50 [") for note in findings.notes)


def test_the_auc_of_the_clean_probe_is_drawn_without_donors(sweep):
    """Otherwise few donors of many questions make the AUC too uncertain for any claim."""

    def two_by_two(samples, labels):
        pair = pd.factorize(samples["question_id"])[0] // 2
        other = samples["control"] == OTHER
        samples["donor_id"] = np.where(other, np.char.add("donor ", pair.astype(str)), None)
        return samples

    def alone(samples, labels):
        return samples.assign(donor_id=None)

    by_donor, by_question = made(sweep, two_by_two), made(sweep, alone)
    assert by_donor.clusters.is_by_donor
    assert not by_question.clusters.is_by_donor
    ends = ["layer", "quantity", "control", "value", "ci_low", "ci_high", "n_clusters"]
    tables = [one.contrasts(all_columns=True)[ends] for one in (by_donor, by_question)]
    is_auc = [
        one["quantity"].isin(["auc", "auc_after"]) & (one["control"] == "none") for one in tables
    ]
    aucs = [one[own] for one, own in zip(tables, is_auc, strict=True)]
    pd.testing.assert_frame_equal(*(one.reset_index(drop=True) for one in aucs))
    n_drawn = [one.query("quantity == 'p_after'")["n_clusters"].max() for one in tables]
    assert n_drawn[0] < n_drawn[1]


def test_an_answer_that_tells_without_its_question_is_warned_of(sweep):
    assert (
        "which excludes 0.5 although answers are balanced"
        in made(sweep, constant(0.4, leak=0.1)).verdict
    )


@pytest.mark.slow
def test_findings_need_a_signal_and_ten_questions(sweep):
    def blind(samples, labels):
        samples.loc[samples["metric"] == "p", "value_before"] = 0.6
        return samples

    text = made(sweep, blind).verdict
    assert text.startswith("Nothing is claimed: at k* = ")
    assert "no signal of the probe was detected, AUC 0.50" in text
    few = list(dict.fromkeys(own(sweep)["question_id"]))[:9]
    samples = made(sweep, constant(0.45)).samples(all_columns=True)
    examples = sweep.examples(all_columns=True)
    examples = examples[(examples["role"] != "base") | examples["question_id"].isin(few)]
    small = PathwayResult.make(
        ANALYSIS, samples[samples["question_id"].isin(few)], examples, sweep.record, sweep.run_id
    )
    assert [(one.quantity, one.status, one.n) for one in small.findings.statements] == [
        ("p_after", TOO_FEW, 9)
    ]
    assert "compared in 9 questions, but 10 are needed" in small.verdict
