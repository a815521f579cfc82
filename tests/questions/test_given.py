"""Splits and given answers: questions stay together, strings are balanced, and a draw across splits is caught by name."""

from collections import Counter

import pytest

from anchorlens.errors import InputError
from anchorlens.questions.datasets import load_qa
from anchorlens.questions.example import normalise
from anchorlens.questions.given import given_answers, split_questions
from tests.questions.make import capital


@pytest.fixture(scope="module")
def trivia():
    return load_qa("triviaqa-sample").examples


def test_questions_that_share_an_alias_stay_together_through_others():
    rows = [capital("A-land", "Paris"), capital("B-land", "Rome"), capital("C-land", "Oslo")]
    linked = [*rows, *(capital(f"{name}-isle", "Paris") for name in "DEFGH")]
    # One row that carries two aliases ties the rows of both together.
    from dataclasses import replace

    bridge = replace(capital("Bridge", "Paris"), answers=("Paris", "Rome"))
    for seed in range(5):
        split = split_questions([*linked, bridge], seed=seed)
        assert len({split[e.question_id] for e in [linked[0], linked[1], bridge, *linked[3:]]}) == 1


def test_split_depends_on_the_question_alone_and_has_the_wanted_shares(trivia):
    split = split_questions(trivia)
    reverse = split_questions(trivia[::-1])
    assert split == reverse
    shares = Counter(split.values())
    assert shares["test"] / len(split) == pytest.approx(0.4, abs=0.1)
    assert shares["train"] / len(split) == pytest.approx(0.45, abs=0.1)
    assert split_questions(trivia, seed=1) != split


@pytest.mark.parametrize("fractions", [(0.5, 0.5, 0.0), (0.5, 0.2, 0.2)])
def test_bad_fractions(trivia, fractions):
    with pytest.raises(InputError, match="three positive numbers that sum to 1"):
        split_questions(trivia, fractions=fractions)


@pytest.mark.parametrize("distractor", ["matched", "random"])
def test_inside_every_split_true_and_false_strings_are_the_same_multiset(trivia, distractor):
    split = split_questions(trivia)
    given = given_answers(trivia, split, distractor=distractor)
    assert len(given.false) + len(given.dropped) == len(trivia)
    for name in ("train", "validation", "test"):
        rows = [e for e in trivia if split[e.question_id] == name and e.example_id in given.false]
        assert rows
        assert Counter(e.answers[0] for e in rows) == Counter(given.false[e.example_id] for e in rows)


def test_matched_false_answers_are_of_the_same_kind_and_never_right(trivia):
    split = split_questions(trivia)
    given = given_answers(trivia, split)
    by_id = {e.example_id: e for e in trivia}
    for row, other in given.source.items():
        base, source = by_id[row], by_id[other]
        assert source.answer_type == base.answer_type
        assert len(normalise(source.answers[0]).split()) == len(normalise(base.answers[0]).split())
        assert split[source.question_id] == split[base.question_id]
        assert normalise(given.false[row]) not in {normalise(a) for a in base.answers}


def test_a_relation_is_kept_and_one_answer_for_most_of_a_group_drops_the_surplus():
    rows = [capital(f"L{i}", "Paris") for i in range(4)] + [capital("Italy", "Rome")]
    split = dict.fromkeys([e.question_id for e in rows], "train")
    given = given_answers(rows, split)
    # Rome can be false for one Paris and Paris for Rome; the other three have nothing left.
    assert len(given.false) == 2
    assert {d.reason for d in given.dropped} == {"no_distractor"}
    assert sorted(given.false.values()) == ["Paris", "Rome"]


def test_unknown_rule(trivia):
    with pytest.raises(InputError, match="Did you mean 'random'"):
        given_answers(trivia, split_questions(trivia), distractor="randon")
