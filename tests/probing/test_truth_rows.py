"""Rows with true and false answers: a leak of the label into the answer's text is an error."""

import pytest

import anchorlens as al
from anchorlens.constants import SPLITS
from anchorlens.errors import EmptySweepError, LeakError
from anchorlens.probing.text_baseline import text_baselines
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.prompts.dataset import RowDropped
from anchorlens.questions.example import Span, normalise
from anchorlens.questions.false_answers import assign_false_answers, split_questions
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import Answer, RowTokenizer
from tests.probing.rows import rows_of
from tests.questions.make import capital, data_of


@pytest.fixture(scope="module")
def data():
    return al.load_qa("popqa-sample", limit=90)


def test_planted_distractors_across_splits_are_caught_by_name(tiny_model, data):
    model = tiny_model("llama")
    split = split_questions(data.examples)
    # The mistake: the permutation is drawn over all questions, and the split comes afterwards.
    assigned = assign_false_answers(data.examples, dict.fromkeys(split, "train"), seed=0)
    tokenizer = RowTokenizer(model.tokenizer, QAPrompt())
    rows = []
    for e in data.examples:
        if e.example_id in assigned.false:
            false = Answer(
                assigned.false[e.example_id], Span(0, len(assigned.false[e.example_id])), "gold", 1
            )
            rows += [tokenizer.row(e), tokenizer.row(e, false, f"{e.example_id}|false")]
    planted = TruthRows(tuple(rows), (tuple(split[r.example.question_id] for r in rows),), ())
    with pytest.raises(LeakError, match="equally often"):
        planted.check_balance()
    clean = rows_of(model, data)
    clean.check_balance()
    # Balanced strings teach the text-only classifier nothing; drawn across splits they do
    # (inverted: below 0.5).
    assert text_baselines(clean, n_resamples=100, seed=0)["answer_text_auc"].auc == pytest.approx(
        0.5, abs=0.02
    )
    assert text_baselines(planted, n_resamples=100, seed=0)["answer_text_auc"].ci_high < 0.5


def test_every_input_is_tokenised_once_however_often_the_answers_are_permuted(
    tiny_model, data, monkeypatch
):
    """Invalid rows are dropped in rounds; rows of earlier rounds are reused."""
    made: list[tuple[str, str]] = []
    row = RowTokenizer.row

    def counted(self, example, answer=None, row_id=None):
        made.append((str(row_id), answer.text))
        if answer.label and len(answer.text) > 12:
            raise RowDropped("too_long", "for this test")
        return row(self, example, answer, row_id)

    monkeypatch.setattr(RowTokenizer, "row", counted)
    rows = rows_of(tiny_model("llama"), data)
    assert {gone.reason for gone in rows.dropped} >= {"too_long"}
    assert len(set(made)) == len(made)
    rows.check_balance()
    # A failed row leaves with its true answer, so that strings stay balanced.
    labels = {}
    for row in rows.rows:
        labels.setdefault(row.example.example_id, []).append(row.answer.label)
    assert all(both == [0, 1] for both in labels.values())


@pytest.mark.parametrize("distractor", ["matched", "random"])
def test_true_and_false_answers_occur_equally_often_in_their_questions(tiny_model, distractor):
    rows = rows_of(tiny_model("llama"), al.load_qa("hotpotqa-sample"), distractor=distractor)
    told = {(split, label): 0 for split in SPLITS for label in (0, 1)}
    for row, split in zip(rows.rows, rows.split, strict=True):
        told[split, row.answer.label] += (
            f" {normalise(row.answer.text)} " in f" {normalise(row.question)} "
        )
    assert all(told[split, 0] == told[split, 1] for split in SPLITS)
    assert sum(told.values()) == 2 * 90


def test_questions_with_only_yes_and_no_cannot_be_split(tiny_model):
    countries = ("France", "Japan", "Italy", "Spain", "Peru", "Cuba")
    for answers, cause in (
        (("yes", "No"), "so the questions cannot be split"),
        (("Paris", "Paris"), "Use more questions"),  # too few of others
    ):
        asked = data_of([capital(name, answers[i % 2]) for i, name in enumerate(countries)])
        with pytest.raises(EmptySweepError, match=cause) as caught:
            rows_of(tiny_model("llama"), asked).check()
        assert ("limit=" in str(caught.value)) == (cause == "Use more questions")
