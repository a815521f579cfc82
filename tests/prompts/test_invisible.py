"""Characters of width zero: removed where nothing needs them, kept where a script does."""

import random

import pytest

from anchorlens.prompts.cells import shift_index, strip_blanks
from anchorlens.prompts.invisible import has_invisible
from anchorlens.questions.datasets import load_qa

CLEANED = {
    "joiner at the end": ("Paris\u200d", "Paris"),
    "non-joiner at the start": ("\u200cParis", "Paris"),
    "joiner before blanks": ("Paris\u200d \u00a0\u200c", "Paris"),
    "joiner in a Latin word": ("Pa\u200dr\u00eds", "Par\u00eds"),
    "Hangul filler at the end": ("\uc11c\uc6b8\u3164", "\uc11c\uc6b8"),
    "Hangul filler alone": ("\u3164", ""),
    "half-width filler": ("Lima\uffa0", "Lima"),
    "joiner at the end of Persian": (
        "\u062a\u0647\u0631\u0627\u0646\u200c",
        "\u062a\u0647\u0631\u0627\u0646",
    ),
    "joiner after the last emoji": ("\U0001f469\u200d", "\U0001f469"),
    "selector after a letter": ("Lima\ufe0f", "Lima"),
    "selector before a joiner": ("a\ufe0f\u200db", "ab"),
    "invisible operator": ("2\u2062x", "2x"),
    "mark of direction in Latin": ("Lima\u200e City", "Lima City"),
    "grapheme joiner": ("Li\u034fma", "Lima"),
    "vowel separator": ("Lima\u180e", "Lima"),
    "byte order mark beside a joiner": ("Paris\u200d\ufeff", "Paris"),
}
NEEDED = {
    "Persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "Hindi": "\u0915\u094d\u200d\u0937",
    "Malayalam, at the end": "\u0d05\u0d35\u0d28\u0d4d\u200d",
    "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "heart with a selector": "\u2764\ufe0f\u200d\U0001f525",
    "emoji with a selector at the end": "Peru \u2764\ufe0f",
    "key": "1\ufe0f\u20e3",
    "mark of direction in Hebrew": "\u05e9\u05dc\u05d5\u05dd!\u200e (x)",
    "variant of a Han character": "\u845b\U000e0100\u57ce",
    "old Hangul": "\u1100\u1160\u11ab",
    "Mongolian": "\u1820\u180b\u1821",
}


@pytest.mark.parametrize("case", CLEANED)
def test_a_character_that_nothing_needs_is_removed(case):
    text, expected = CLEANED[case]
    assert strip_blanks(text) == expected
    assert has_invisible(text)
    assert not has_invisible(expected)


@pytest.mark.parametrize("case", NEEDED)
def test_a_character_that_a_script_needs_is_kept(case):
    text = NEEDED[case]
    assert strip_blanks(text) == text
    assert strip_blanks(f"\u200b {text} ") == text
    assert not has_invisible(text)


@pytest.mark.parametrize("mark", ["\u200d", "\u200c", "\u3164", "\u180e", "\u2060"])
def test_a_gold_answer_has_no_invisible_end(mark):
    row = {"question": f"{mark}What is the capital of Peru?{mark}", "answer": f"{mark}Lima{mark}"}
    (example,) = load_qa([row]).examples
    assert example.answers == ("Lima",)
    assert example.question == "What is the capital of Peru?"
    listed = load_qa([{**row, "answer": None, "answers": [f"Lima{mark}", "Lima"]}])
    assert listed.examples[0].answers == ("Lima",)


def test_cleaning_twice_is_cleaning_once_and_indices_follow():
    rng = random.Random(0)
    alphabet = (
        "ab \u00e9\u200b\u200c\u200d\u200e\u3164\ufe0f\u034f\u0915\u094d\u0645\U0001f469\u1100"
    )
    for _ in range(3000):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(9)))
        cleaned = strip_blanks(text)
        assert strip_blanks(cleaned) == cleaned, ascii(text)
        for index, one in enumerate(text):
            if one in "ab\u00e9\u0915\U0001f469":
                assert cleaned[shift_index(text, index)] == one, ascii(text)
