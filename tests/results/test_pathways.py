"""Samples of rows that fall into pathways, with the flips beside ΔP."""

import numpy as np
import pytest

from anchorlens.questions.example import Span
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import Answer, RowTokenizer
from anchorlens.results.pathways import pathway_samples
from anchorlens.statistics.pathways import Measured
from tests.questions.make import capital
from tests.tokenizers_small import small_tokenizer


@pytest.fixture(scope="module")
def rows():
    """A true and a false answer."""
    tokenizer = RowTokenizer(small_tokenizer("byte", bos=False), QAPrompt())
    true = tokenizer.row(capital("France", "Paris"))
    false = tokenizer.row(capital("Italy", "Rome"), Answer("Oslo", Span(0, 4), "given", 1), "Italy|false")
    return [true, false]


BEFORE = np.array([[0.2, 0.9], [0.4, 0.6]])
AFTER = np.array([[0.7, 0.8], [np.nan, 0.1]])
Q = np.array([[True, False], [True, False]])


def made(rows, *, kind="confidence", donors=(), flips=False, event_is_true=False):
    one = Measured("none", BEFORE, AFTER, Q, donors)
    return pathway_samples("question", kind, (3, 7), rows, [one], event_is_true=event_is_true, flips=flips)


def test_one_row_for_each_value_that_is_there(rows):
    frame = made(rows)
    assert frame[["example_id", "layer", "pathway"]].values.tolist() == [
        ["France", 3, "Q-Anchored"], ["Italy|false", 3, "A-Anchored"], ["Italy|false", 7, "A-Anchored"],
    ]  # fmt: skip
    assert set(frame["quantity"]) == {"p"}
    np.testing.assert_allclose(frame["value_before"], [0.2, 0.9, 0.6])
    np.testing.assert_allclose(frame["value_after"], [0.7, 0.8, 0.1])
    np.testing.assert_allclose(frame["delta_p"], [-50, -10, -50])
    np.testing.assert_allclose(frame["logp_after"], np.log([0.7, 0.8, 0.1]))
    np.testing.assert_allclose(frame["logit_diff_before"], [np.log(p / (1 - p)) for p in (0.2, 0.9, 0.6)])


def test_the_event_is_a_false_answer_for_a_probe_and_a_true_one_for_the_models_word(rows):
    np.testing.assert_allclose(made(rows, kind="true_label")["delta_p"], [-50, -10, -50])
    np.testing.assert_allclose(made(rows, kind="true_label", event_is_true=True)["delta_p"], [50, 10, 50])


def test_flips_are_a_quantity_of_their_own(rows):
    frame = made(rows, flips=True, donors=("d1", "d2"))
    assert frame["quantity"].tolist() == ["p"] * 3 + ["flip"] * 3
    flips = frame[frame["quantity"] == "flip"]
    assert flips["value_before"].tolist() == [0.0, 0.0, 0.0]
    assert flips["value_after"].tolist() == [1.0, 0.0, 1.0]
    assert flips["delta_p"].tolist() == [100.0, 0.0, 100.0]
    assert flips["donor_id"].tolist() == ["d1", "d2", "d2"]
    assert flips[["logp_before", "logp_after", "logit_diff_before", "logit_diff_after"]].isna().all(axis=None)
    assert frame.dtypes["logp_before"] == np.float64
