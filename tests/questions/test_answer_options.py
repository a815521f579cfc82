"""Options of a question."""

import time

import pytest

from anchorlens.questions.answer_options import find_options


def test_the_options_that_a_question_names():
    wanted = {
        "Who is older Carrie Akre or Shifty Shellshock?": ("carrie akre", "shifty shellshock"),
        "Which singer is the older: Nate Albert or Rod Stewart?": ("nate albert", "rod stewart"),
        "Which director, John Lee or Ann Ray, was also a writer?": ("john lee", "ann ray"),
        "Was Hello Times or the Sea Weekly published first?": ("hello times", "sea weekly"),
        "Between Bo Ray and Ann Lee, who is older?": ("bo ray", "ann lee"),
        "Which is colder, steam or ice?": ("steam", "ice"),
        "Between 1990 and 2000, which was larger, Boston or Miami?": ("boston", "miami"),
        "In case 3: is it Alpha or Beta?": ("alpha", "beta"),
        "Which came first: was it the egg, or was it the hen?": ("egg", "hen"),
        "Which one of Ann Lee and Bo Ray was born first?": ("ann lee", "bo ray"),
        "Who was born first out of Ann Lee and Bo Ray?": ("ann lee", "bo ray"),
        "Who is older, Kobe Bryant or Will Smith?": ("kobe bryant", "will smith"),
        "Who  is\nolder, Ann   Lee or\tBo Ray ?": ("ann lee", "bo ray"),
        "Were both Ann Lee and Bo Ray actors?": None,
        "What color is the sky?": None,
    }
    assert {question: find_options(question) for question in wanted} == wanted


@pytest.mark.parametrize(
    "hostile",
    [
        "between" + " " * 20_000 + "x",
        "between " + "a and " * 4_000 + "x",
        "between " * 4_000,
        "Which " + "Ann of the " * 4_000 + "or x",
        "x or " + "Ann of the " * 4_000,
    ],
    ids=lambda text: f"{text[:12]}...{text[-4:]}",
)
def test_a_hostile_question_is_read_in_less_than_a_second(hostile):
    start = time.process_time()
    find_options(hostile)
    assert time.process_time() - start < 1
