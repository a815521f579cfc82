"""False answers share as many words with their question as the true ones."""

from collections import Counter
from dataclasses import replace

import pytest

from anchorlens.questions.answer_options import find_options
from anchorlens.questions.example import Example, normalise, question_id
from anchorlens.questions.false_answers import assign_false_answers
from tests.questions.make import example, sample, shared
from tests.questions.test_false_answers import in_one_split


def ask(question: str, answer: str) -> Example:
    words = question.split()
    return example(question, words[-1], words[0], answer, example_id=answer)


FORD, BELL = ask("Which Ford met a Bell?", "Ann Ford"), ask("Which Bell met a Ford?", "Bo Bell")
WON, LOST = ask("Who won twice?", "Dan Kent"), ask("Who lost twice?", "Eli West")


@pytest.mark.parametrize("distractor", ["matched", "random"])
def test_a_false_answer_shares_as_many_words_with_its_question_as_the_true_one(distractor):
    hill, rows = ask("Which Hill fell?", "Cy Hill"), [FORD, BELL, WON, LOST]
    for seed in range(10):
        assigned = in_one_split([*rows, hill], distractor=distractor, seed=seed)
        assert [assigned.false.get(row.example_id) for row in rows] == [
            "Bo Bell",
            "Ann Ford",
            "Eli West",
            "Dan Kent",
        ]
        (gone,) = assigned.dropped
        assert (gone.example_id, gone.reason) == ("Cy Hill", "answer_word_in_question")
        assert gone.detail.startswith(
            "the question has 50% of the words of the true answer, and of too few others in: train"
        )


def test_one_shared_word_of_three_is_another_share_than_one_of_two():
    bell = ask("Which Bell met a Ford?", "Bo von Bell")
    rows = [replace(row, relation="person") for row in (FORD, bell, WON, LOST)]
    # "von" is a word of the answer, so its share is a third.
    assert set(in_one_split(rows).false) == {"Dan Kent", "Eli West"}


@pytest.mark.parametrize("word", ["The", "of"])
def test_stop_words_are_no_shared_words(word):
    rows = [ask(f"Who sang {word} Wall?", f"{word} Doors"), ask("Who sang Hey?", f"{word} Byrds")]
    assert len(in_one_split(rows).false) == 2


def test_an_answer_of_stop_words_that_stands_in_its_question_is_dropped():
    rows = [
        ask("Who wrote It?", "It"),
        ask("Which novel is long?", "Emma"),
        ask("Which novel is short?", "Utopia"),
    ]
    assert [(gone.example_id, gone.reason) for gone in in_one_split(rows).dropped] == [
        ("It", "answer_in_question")
    ]


@pytest.mark.parametrize("name", ["popqa", "triviaqa", "hotpotqa", "nq"])
@pytest.mark.parametrize("n_blocks", [3, 5])
def test_every_question_of_a_sample_shares_as_many_words_with_both_answers(name, n_blocks):
    """Blocks of any label, the smallest of 20 % of 60 questions."""
    rows = sample(name).examples
    for part in (rows[:60], rows):
        options = {
            row.question_id: sorted(find_options(row.question) or [row.question]) for row in part
        }
        block = {
            question: f"block {int(question_id(' or '.join(both)), 16) % n_blocks}"
            for question, both in options.items()
        }
        assigned = assign_false_answers(part, block, seed=1)
        kept = [row for row in part if row.example_id in assigned.false]
        assert len(kept) + len(assigned.dropped) == len(part) and kept
        for label in set(block.values()):
            here = [row for row in kept if block[row.question_id] == label]
            assert Counter(row.answers[0] for row in here) == Counter(
                assigned.false[row.example_id] for row in here
            )
        for row in kept:
            false = assigned.false[row.example_id]
            assert normalise(false) in {"yes", "no"} or shared(false, row.question) == shared(
                row.answers[0], row.question
            )
