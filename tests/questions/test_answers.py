"""Types of answers, and docstring examples."""

import doctest

import pytest

from anchorlens.questions import (
    answer_options,
    answer_text,
    answers,
    columns,
    datasets,
    edges,
    example,
    prompts,
    schemas,
)
from anchorlens.questions.answers import ANSWER_TYPES, answer_type
from anchorlens.questions.spans import entities, lexicon, parse, rules, templates


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("Are both of them poets?", "yes", "yes/no"),
        ("Who said so?", "No", "yes/no"),
        ("Who wrote Emma?", "Jane Austen", "person"),
        ("who's the prime minister of peru", "Ana Diaz", "person"),
        ("In 1960, who banged his shoe?", "Nikita Khrushchev", "person"),
        ("Which British composer wrote The Planets?", "Gustav Holst", "person"),
        ("Where is the Trevi Fountain?", "Rome", "place"),
        ("The games will be held where?", "Paris", "place"),
        ("In which Italian city is the Trevi Fountain?", "Rome", "place"),
        ("What is the capital of Peru?", "Lima", "place"),
        ("In what country is Norfolk?", "England", "place"),
        ("when did the titanic sink", "April 1912", "year"),
        ("In which year did Picasso die?", "1973", "year"),
        ("when do the leaves fall", "in the autumn", "other"),
        ("How many strings has a violin?", "four", "number"),
        ("How tall is the tower?", "300 m", "number"),
        ("How many came?", "nobody knows", "other"),
        ("The ghetto held how many people?", "29,000", "number"),
        ("What is the cube root of 27?", "3", "number"),
        ("Name the date of the film.", "1984", "year"),
        ("What is an ammeter used for?", "measuring current", "other"),
        ("", "", "other"),
    ],
)
def test_types_follow_the_question_then_the_answer(question, answer, expected):
    assert answer_type(answer, question) == expected
    assert expected in ANSWER_TYPES


MODULES = (
    answer_options,
    answer_text,
    answers,
    columns,
    datasets,
    edges,
    entities,
    example,
    lexicon,
    parse,
    prompts,
    rules,
    schemas,
    templates,
)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0
