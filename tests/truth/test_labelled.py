"""Rows with true and false answers: a leak of the label into the answer's text is caught by name."""

import pytest

import anchorlens as al
from anchorlens.errors import LeakError
from anchorlens.questions.example import Span
from anchorlens.questions.given import given_answers, split_questions
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import Answer, RowTokenizer
from anchorlens.truth.labelled import TruthRows
from anchorlens.truth.text_baseline import text_only
from tests.truth.rows import rows_of


@pytest.fixture(scope="module")
def data():
    return al.load_qa("popqa-sample", limit=90)


def test_planted_distractors_across_splits_are_caught_by_name(tiny_model, data):
    model = tiny_model("llama")
    split = split_questions(data.examples)
    # The mistake: the permutation is drawn over all questions, and the split comes afterwards.
    given = given_answers(data.examples, dict.fromkeys(split, "train"), seed=0)
    tokenizer = RowTokenizer(model.tokenizer, QAPrompt())
    rows = []
    for e in data.examples:
        if e.example_id in given.false:
            false = given.false[e.example_id]
            rows += [
                tokenizer.row(e),
                tokenizer.row(e, Answer(false, Span(0, len(false)), "given", 1), f"{e.example_id}|false"),
            ]
    planted = TruthRows(tuple(rows), tuple(split[r.example.question_id] for r in rows), ())
    with pytest.raises(LeakError, match="stand more often on one side .* Draw false answers inside each split"):
        planted.check_balance()
    clean = rows_of(model, data)
    clean.check_balance()
    # Balanced strings teach the text-only classifier nothing; drawn across splits they do (inverted: below 0.5).
    assert text_only(clean, n_resamples=100, seed=0)["auc"] == pytest.approx(0.5, abs=0.02)
    assert text_only(planted, n_resamples=100, seed=0)["ci_high"] < 0.5
