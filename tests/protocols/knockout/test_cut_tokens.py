"""Whose attention is cut: the source's tokens, and as many others for the placebo."""

from dataclasses import replace

import pytest

import anchorlens as al
from anchorlens.errors import CheckError
from anchorlens.protocols.knockout.cut_tokens import RowCuts, named_positions, row_cuts
from anchorlens.questions.prompts import FewShotPrompt, QAPrompt
from anchorlens.questions.tokenised import make_rows
from anchorlens.questions.tokens import RowTokenizer
from tests.questions.make import example

QUESTION = 'Who founded the Bank of England in 1694, before "the old lady" was named by William Pitt?'


def texts(tokenizer, row, positions):
    """The words that tokens are of: their characters, without space."""
    offsets = tokenizer.encode(row.text)[1]
    return "".join(row.text[slice(*offsets[p])] for p in sorted(positions)).replace(" ", "")


def test_placebo_positions_are_other_question_tokens_and_matched_in_number(tiny_model):
    data = al.load_qa("popqa-sample", limit=90)
    rows = make_rows(data.examples, RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())).rows
    fewer = 0
    for row in rows:
        cuts = row_cuts(row, "question -> later", 0, placebos=True).sources
        own, other, matched = set(cuts["none"]), set(cuts["random_tokens"]), set(cuts["matched"])
        assert own == set(row.positions["question"])
        assert not other & own
        assert other <= set(row.positions["question_rest"])
        assert 0 not in other
        assert len(other) == len(matched) == min(len(own), len(row.positions["question_rest"]))
        assert matched <= own
        fewer += len(matched) < len(own)
    assert fewer
    only = row_cuts(rows[0], "question -> later", 0, placebos=False).sources
    assert set(only) == {"none"}


def test_the_placebo_on_either_side_of_the_source(tiny_model):
    opening = example("Metz is a part of what", "Metz", "is")
    examples = [*al.load_qa("popqa-sample", limit=30).examples, opening]
    rows = make_rows(examples, RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())).rows
    seen = set()
    for row in rows:
        cuts = row_cuts(row, "question -> later", 0, placebos=True, sides=True)
        whole = row_cuts(row, "question -> later", 0, placebos=True).sources
        assert whole == {name: where for name, where in cuts.sources.items() if name not in ("random_before", "random_after")}
        drawn = set(cuts.sources["random_tokens"])
        before, after = (set(cuts.sources.get(name, ())) for name in ("random_before", "random_after"))
        assert before == {p for p in drawn if p < min(row.positions["question"])}
        assert after == drawn - before
        # What is cut already needs no pass of its own.
        assert [cuts.own_pass(name) for name in ("random_before", "random_after")] == [0 < len(before) < len(drawn)] * 2
        assert ("random_before" in cuts.sources, "random_after" in cuts.sources) == (bool(before), bool(after))
        seen.add((bool(before), bool(after)))
    assert seen == {(True, True), (False, True)}


@pytest.mark.parametrize(
    "prompt", [QAPrompt(), FewShotPrompt("shots", (("Who founded the Bank of England?", "He"),), frozenset())]
)
def test_names_numbers_and_quotations_are_no_placebo(tiny_model, prompt):
    """Planted: the rules took "old lady" for the subject, and missed the bank."""
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, prompt)
    row = tokenizer.row(example(QUESTION, "old lady", "founded"))
    named = named_positions(row, tokenizer)
    assert texts(tokenizer, row, named) == "BankofEngland1694theoldladyWilliamPitt"
    free = set(row.positions["question_rest"]) - set(named)
    drawn = set()
    for seed in range(60):
        cuts = row_cuts(row, "question -> later", seed, placebos=True, named=named).sources
        assert set(cuts["random_tokens"]) <= free
        drawn |= set(cuts["random_tokens"])
        assert len(cuts["matched"]) == len(cuts["random_tokens"]) == min(len(cuts["none"]), len(free))
    assert drawn == free
    unprotected = {
        p for seed in range(60) for p in row_cuts(row, "question -> later", seed, placebos=True).sources["random_tokens"]
    }
    assert unprotected & set(named)


def test_a_question_without_another_token_has_no_placebo(tiny_model):
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())
    row = tokenizer.row(example("What is Paris or Rome", "Paris", "is"))
    rest = set(row.positions["question_rest"])
    assert 0 < len(rest & set(named_positions(row, tokenizer))) < len(rest)
    assert set(row_cuts(row, "question -> later", 0, placebos=True, named=rest).sources) == {"none"}


def test_unequal_numbers_of_cut_tokens_are_caught_by_name():
    sources = {"none": (3, 4), "random_tokens": (5,), "matched": (3, 4)}
    with pytest.raises(CheckError, match="The placebo cuts 1 tokens and the source's other side 2"):
        RowCuts(sources, None)
    with pytest.raises(CheckError, match="cuts 1 tokens .* other side 0"):
        RowCuts({"none": (3,), "random_tokens": (5,)}, None)
    assert not replace(RowCuts({}, None), targets=(1,)).sources
