"""Whose attention is cut: the source's tokens, and as many others for the placebo."""

import json

import pytest

import anchorlens as al
from anchorlens.protocols.probe_sweep.placebo_tokens import (
    CONTROLS,
    cut_positions,
    cut_targets,
    cut_variants,
    entity_positions,
)
from anchorlens.questions.prompts import FewShotPrompt, QAPrompt
from anchorlens.questions.tokens import RowTokenizer, make_rows
from tests.protocols.sweeps import inputs, own, swept
from tests.questions.make import example

QUESTION = (
    'Who founded the Bank of England in 1694, before "the old lady" was named by William Pitt?'
)


def texts(tokenizer, row, positions):
    """The words that tokens are of: their characters, without space."""
    offsets = tokenizer.encode(row.text)[1]
    return "".join(row.text[slice(*offsets[p])] for p in sorted(positions)).replace(" ", "")


def test_placebo_positions_are_other_question_tokens_and_matched_in_number(tiny_model):
    data = al.load_qa("popqa-sample", limit=90)
    rows = make_rows(data.examples, RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())).rows
    fewer = 0
    for row in rows:
        cuts = cut_positions(row, "exact_question -> later", 0, placebos=True)
        own, other, matched = (
            set(cuts["none"]),
            set(cuts["random_tokens"]),
            set(cuts["size_matched"]),
        )
        assert own == set(row.positions["exact_question"])
        assert not other & own
        assert other <= set(row.positions["question_rest"])
        assert 0 not in other
        assert len(other) == len(matched) == min(len(own), len(row.positions["question_rest"]))
        assert matched <= own
        fewer += len(matched) < len(own)
    assert fewer
    only = cut_positions(rows[0], "exact_question -> later", 0, placebos=False)
    assert set(only) == {"none"}


def test_the_placebo_on_either_side_of_the_source(tiny_model):
    opening = example("Metz is a part of what", "Metz", "is")
    examples = [*al.load_qa("popqa-sample", limit=30).examples, opening]
    rows = make_rows(examples, RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())).rows
    seen = set()
    for row in rows:
        cuts = cut_positions(row, "exact_question -> later", 0, placebos=True, sides=True)
        whole = cut_positions(row, "exact_question -> later", 0, placebos=True)
        assert whole == {
            name: where
            for name, where in cuts.items()
            if name not in ("random_before", "random_after")
        }
        drawn = set(cuts["random_tokens"])
        before, after = (set(cuts.get(name, ())) for name in ("random_before", "random_after"))
        assert before == {p for p in drawn if p < min(row.positions["exact_question"])}
        assert after == drawn - before
        assert ("random_before" in cuts, "random_after" in cuts) == (bool(before), bool(after))
        # Every control has one variant, and what is cut already needs none of its own.
        variants = cut_variants(cuts)
        assert {name: one.positions for one in variants for name in one.controls} == cuts
        assert len(variants) == len({*cuts.values()})
        seen.add((bool(before), bool(after)))
    assert seen == {(True, True), (False, True)}


@pytest.mark.parametrize(
    ("cuts", "wanted"),
    [
        ({}, []),
        ({"none": (3, 4)}, [("none",)]),
        (
            {"none": (3, 4), "random_tokens": (5, 6), "size_matched": (3, 4)},
            [("none", "size_matched"), ("random_tokens",)],
        ),
        (
            {"none": (3, 4), "random_tokens": (5,), "size_matched": (4,)},
            [("none",), ("random_tokens",), ("size_matched",)],
        ),
        (
            {"none": (3,), "random_tokens": (2,), "size_matched": (3,), "random_before": (2,)},
            [("none", "size_matched"), ("random_tokens", "random_before")],
        ),
        (
            {
                "none": (3, 4),
                "random_tokens": (2, 5),
                "size_matched": (3, 4),
                "random_before": (2,),
                "random_after": (5,),
            },
            [("none", "size_matched"), ("random_tokens",), ("random_before",), ("random_after",)],
        ),
    ],
)
def test_controls_that_cut_the_same_share_a_variant(cuts, wanted):
    variants = cut_variants(cuts)
    assert [one.controls for one in variants] == wanted
    assert {name: one.positions for one in variants for name in one.controls} == cuts
    assert all(one.row is None and one.donor_id == "" for one in variants)


def test_shared_variants_are_measured_once_and_have_the_samples_of_both_controls(tiny_model):
    sweep = swept(tiny_model("llama"), "knockout")
    by = {
        name: own(sweep, name).set_index(["example_id", "layer"])["value_after"]
        for name in CONTROLS
    }
    where = {name: json.loads(text) for name, text in inputs(sweep, "base")["positions"].items()}
    for control, same_as in (
        ("size_matched", "none"),
        ("random_before", "random_tokens"),
        ("random_after", "random_tokens"),
    ):
        shared = [
            name
            for name, cut in where.items()
            if cut.get(f"cut:{control}") == cut[f"cut:{same_as}"]
        ]
        apart = [
            name for name, cut in where.items() if f"cut:{control}" in cut and name not in shared
        ]
        assert apart or shared
        for names, equal in ((shared, True), (apart, False)):
            for name in names:
                assert by[control].loc[name].equals(by[same_as].loc[name]) == equal


def test_later_positions_are_the_targets_unless_they_are_named(tiny_model):
    row = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt()).row(
        example(QUESTION, "old lady", "founded")
    )
    assert cut_targets(row, "exact_question -> later") is None
    assert cut_targets(row, "exact_question -> answer") == row.positions["answer"]
    cuts = cut_positions(row, "exact_question -> answer", 0, placebos=True)
    assert max(cuts["random_tokens"]) < max(row.positions["answer"])
    assert cut_positions(row, "answer -> exact_question", 0, placebos=True) == {}


@pytest.mark.parametrize(
    "prompt",
    [
        QAPrompt(),
        FewShotPrompt("shots", (("Who founded the Bank of England?", "He"),), frozenset()),
    ],
)
def test_names_numbers_and_quotations_are_no_placebo(tiny_model, prompt):
    """Planted: the rules took "old lady" for the subject, and missed the bank."""
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, prompt)
    row = tokenizer.row(example(QUESTION, "old lady", "founded"))
    named = entity_positions(row, tokenizer)
    assert texts(tokenizer, row, named) == "BankofEngland1694theoldladyWilliamPitt"
    free = set(row.positions["question_rest"]) - set(named)
    drawn = set()
    for seed in range(60):
        cuts = cut_positions(row, "exact_question -> later", seed, placebos=True, named=named)
        assert set(cuts["random_tokens"]) <= free
        drawn |= set(cuts["random_tokens"])
        assert (
            len(cuts["size_matched"])
            == len(cuts["random_tokens"])
            == min(len(cuts["none"]), len(free))
        )
    assert drawn == free
    unprotected = [
        cut_positions(row, "exact_question -> later", seed, placebos=True)["random_tokens"]
        for seed in range(60)
    ]
    assert set().union(*unprotected) & set(named)


def test_a_question_without_another_token_has_no_placebo(tiny_model):
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())
    row = tokenizer.row(example("What is Paris or Rome", "Paris", "is"))
    rest = set(row.positions["question_rest"])
    assert 0 < len(rest & set(entity_positions(row, tokenizer))) < len(rest)
    assert set(cut_positions(row, "exact_question -> later", 0, placebos=True, named=rest)) == {
        "none"
    }
