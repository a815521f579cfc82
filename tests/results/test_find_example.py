"""An example is found by its id, its number or words of its question, and by nothing that means
two.
"""

import numpy as np
import pytest

from anchorlens.errors import InputError
from anchorlens.prompts.dataset import Dropped
from anchorlens.results.find_example import find_example

ROWS = {
    "7": ("What is the capital of France?", "Paris"),
    "a1": ("What is the capital of Mali?", "Bamako"),
    "a2": ("What is the capital of Somalia?", "Mogadishu"),
    "3": ("Who wrote The Trial?", "Kafka"),
    "b1": ("In what year did World War II end?", "1945"),
}


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("7", "7"),
        ("3", "3"),
        (0, "7"),
        (3, "3"),
        (-1, "b1"),
        (np.int64(1), "a1"),
        ("france", "7"),
        ("FRANCE capital", "7"),
        ("mali", "a1"),
        ("somal", "a2"),
        ("trial, wrote", "3"),
        ("world war", "b1"),
    ],
)
def test_one_is_meant(wanted, name):
    assert find_example(wanted, ROWS) == name


def test_words_of_several_questions_list_them():
    with pytest.raises(InputError) as told:
        find_example("capital", ROWS)
    assert (
        str(told.value)
        == "example='capital' matches 3 measured questions. Give one of these ids, or more words:\n"
        "  '7': What is the capital of France? (Paris)\n  'a1': What is the capital of Mali? "
        "(Bamako)\n  'a2': What is the capital of Somalia? (Mogadishu)"
    )
    many = {f"q{i}": (f"Where is town {i}?", "here") for i in range(40)}
    with pytest.raises(InputError) as told:
        find_example("town", many)
    assert len(str(told.value).splitlines()) == 1 + 5 + 1
    assert str(told.value).endswith("\n  and 35 more")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("frnace", "example='frnace' matches no id and no question. Did you mean 'france'?"),
        ("capital of Frence", r"Did you mean 'france'\?"),
        (
            "zzzz",
            (
                r"no question. All ids and questions: samples_with_inputs\(\)\[\['example_id',"
                r" 'question'\]\].drop_duplicates\(\).$"
            ),
        ),
        ("Poland", "All ids and questions: samples_with_inputs"),
        ("?", "example='.' matches no id"),
        ("", "example='' matches no id"),
        (5, "example=5: 5 examples were measured, numbered from 0 to 4."),
        (-6, "example=-6: 5 examples"),
        (2.0, "example=2.0: give an id, a whole number or words of the question."),
        (True, "example=True"),
        (None, "example=None"),
    ],
)
def test_none_is_meant(wanted, said):
    with pytest.raises(InputError, match=said):
        find_example(wanted, ROWS)


def test_a_dropped_question_is_named_with_its_reason():
    gone = (
        Dropped(
            example_id="d",
            dataset="made",
            question="What is the capital of Peru?",
            answer="Lima",
            reason="no_donor",
        ),
    )
    for wanted in ("peru", "d"):
        with pytest.raises(InputError, match="no_donor"):
            find_example(wanted, ROWS, gone)
    assert (
        find_example(
            "mali",
            ROWS,
            (
                Dropped(
                    example_id="e",
                    dataset="made",
                    question="Is Mali large?",
                    answer="yes",
                    reason="no_donor",
                ),
            ),
        )
        == "a1"
    )
