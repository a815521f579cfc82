"""Rules for generated texts: exact answer, its line, thinking, and grading."""

import pytest

from anchorlens.questions.answer_text import answer_line, exact_answer, has_open_thinking, is_right


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (" Paris", "Paris"),
        (" Paris.\nQ: What", "Paris"),
        ("The capital of France is Paris. It is big.", "Paris"),
        (' The answer is: "War and Peace".', "War and Peace"),
        ("A: 1912", "1912"),
        (" **Mars**", "Mars"),
        (" St. Louis, Missouri", "St. Louis, Missouri"),
        (" J. K. Rowling!", "J. K. Rowling"),
        (" The Beatles", "The Beatles"),
        (" the U.S.", "the U.S"),
        (" It is in Rome", "in Rome"),
        (" Leo Tolstoy - the writer", "Leo Tolstoy"),
        ("Sure, the sport is called football (soccer).", "football"),
        ("  \n Mars", "Mars"),
        (" Paris, the capital of France", "Paris"),
        (" Pluto, which was a planet", "Pluto"),
        (" Neil Armstrong, an American astronaut.", "Neil Armstrong"),
        (" The Good, the Bad and the Ugly", "The Good, the Bad and the Ugly"),
        (" The Lion, the Witch and the Wardrobe", "The Lion, the Witch and the Wardrobe"),
        (" Athos, Porthos and Aramis", "Athos, Porthos and Aramis"),
        ("<think>\nRome? No.\n</think>\n\nThe answer is Paris.\nMore", "Paris"),
        ("Rome? No.\n</think>\n\nParis", "Paris"),
        ("<think>a</think>b<think>c</think> Oslo", "Oslo"),
        ("[THINK]hm[/THINK] Lima", "Lima"),
    ],
)
def test_exact_answer(text, wanted):
    span = exact_answer(text)
    assert span is not None
    assert span.of(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "  ", "\n", " ...", '""', "<think>", "<think>\nOkay, the user", "<think>x</think>\n"],
)
def test_no_answer_is_none(text):
    assert exact_answer(text) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (" This is Spinal Tap", "This is Spinal Tap"),
        (" They Were Expendable\nQ:", "They Were Expendable"),
        (
            "<think>\nIs it Rome?\n</think>\n\n The Lion King is a movie \n",
            "The Lion King is a movie",
        ),
        ("\n\n Paris, the capital of France.", "Paris, the capital of France."),
    ],
)
def test_answer_line_is_the_whole_line(text, wanted):
    line = answer_line(text)
    assert line is not None
    assert line.of(text) == wanted


def test_unfinished_thinking_has_no_answer():
    assert answer_line("<think>\nThe capital is Paris") is None
    assert has_open_thinking("<think>\nThe capital is Paris")
    assert has_open_thinking("<think>a</think> b <think> c")
    assert not has_open_thinking("<think>a</think>")
    assert not has_open_thinking("I think, Paris")


def test_answer_follows_the_end_of_thinking_that_the_prompt_opened():
    thinking = "Okay, it may be Rome.\nOr not."
    assert (
        answer_line(thinking, opened=True) is None and exact_answer(thinking, opened=True) is None
    )
    assert has_open_thinking(thinking, opened=True) and not has_open_thinking(thinking)
    text = thinking + "\n</think>\n\nParis."
    span = exact_answer(text, opened=True)
    assert span is not None and span.of(text) == "Paris"
    assert not has_open_thinking(text, opened=True)
    # A second block that is still open.
    assert has_open_thinking("a</think> <think>b", opened=True)


def test_is_right_compares_whole_words_in_any_case():
    assert is_right("the city of PARIS, France", ["Paris"])
    assert is_right("Tolstoy", ["Leo Tolstoy", "tolstoy"])
    assert not is_right("Parisian", ["Paris"])
    assert not is_right("anything", ["", "?"])
    assert is_right("U.S.A", ["u.s.a."])
