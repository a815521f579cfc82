"""Normalisation removes case and punctuation, and keeps scripts, marks and signs."""

import random

import pytest

from anchorlens.questions.answer_text import is_right
from anchorlens.questions.example import normalise, pool_answers, question_id
from tests.questions.make import capital, example

# The flags of England and Scotland are one black flag with tags: gbeng, gbsct, and the tag that
# ends them.
FLAG = "\U0001f3f4"
ENGLAND, SCOTLAND = (
    "".join(chr(0xE0000 + ord(char)) for char in name) + "\U000e007f" for name in ("gbeng", "gbsct")
)


@pytest.mark.parametrize(
    ("texts", "name"),
    [
        (("The U.S.A.! ", "the u s a", " The  U. S. A."), "the u s a"),
        (("Rock & Roll", "rock, roll"), "rock roll"),
        (("Straße", "STRASSE"), "strasse"),
        (("Café", "Cafe\u0301", "CAFÉ"), "café"),
        (("X-ray", "x ray", "X–Ray"), "x ray"),
        (("1914-18", "1914–18", "1914 - 18"), "1914 18"),
        (("Don't", "Don’t", "Don´t"), "don t"),
        (("", "  "), ""),
        (("5%", "5 percent", "5 %"), "5 percent"),
        (("-40", "−40", "–40"), "-40"),
        (("+40", "40", "#40"), "40"),
        (("C++", "c++.", "(C++)", "C++-"), "c++"),
        (("C++11", "C++ 11", "c++11."), "c++ 11"),
        (("Lego™", "lego"), "lego"),
        (("❤", "❤\ufe0f"), "❤"),
        (("``Emma''", '"Emma"', "Emma"), "emma"),
        (("Qur`an", "Qur'an"), "qur an"),
        (("``Café''", "Café"), "café"),
        (("E=mc^2", "E = mc 2"), "e mc 2"),
        (("E=mc^2 é", "E = mc 2 é"), "e mc 2 é"),
        (("zero\u200dwidth", "zerowidth"), "zerowidth"),
        (("New\u200bYork", "New York"), "new york"),
        (("!!!", " !!! "), "!!!"),
        (("???",), "???"),
        ((" . . ",), ". ."),
    ],
)
def test_variants_of_a_text_are_normalised_to_the_same(texts, name):
    assert {normalise(text) for text in texts} == {name}


@pytest.mark.parametrize(
    "texts",
    [
        ("C++", "C#", "C"),
        ("C++11", "C11"),
        ("F#", "F"),
        ("-40", "40"),
        ("A+", "A-", "A"),
        ("AB-", "AB+", "AB"),
        ("$5", "5%", "£5", "€5"),
        ("2 + 2", "2 2"),
        ("काला", "कीला", "कल"),
        ("กิน", "กีน", "กน"),
        ("বাংলা", "বংল"),
        ("😀", "😂", "👍", "👍🏽"),
        ("❤", "💙"),
        ("🇫🇷", "🇮🇹"),
        (f"{FLAG}{ENGLAND}", f"{FLAG}{SCOTLAND}"),
        ("♀", "♂"),
        ("20 °", "20"),
        ("Ёлка", "Елка"),
        ("e", "é"),
        ("co-op", "coop"),
    ],
    ids=lambda texts: " ".join(map(ascii, texts)),
)
def test_signs_marks_and_scripts_that_carry_the_answer_stay_apart(texts):
    assert len({normalise(text) for text in texts}) == len(texts)
    assert len({question_id(f"What is {text} called?") for text in texts}) == len(texts)


def test_whole_words_are_found_with_their_signs_and_marks():
    assert is_right("It is written in C++, of course.", ["c++"])
    assert is_right("It is C++11.", ["C++"])
    assert not is_right("C", ["C++"]) and not is_right("C++", ["C"]) and not is_right("C#", ["C++"])
    assert not is_right("40", ["-40"]) and not is_right("-40", ["40"])
    assert is_right("at −40 degrees", ["-40"])
    assert not is_right("5%", ["$5"]) and is_right("5 percent", ["5%"])
    assert is_right("यह काला है", ["काला"]) and not is_right("कीला", ["काला"])
    assert not is_right("😂", ["😀"]) and is_right("😀!", ["😀"])
    assert is_right("She got an A+.", ["A+"]) and not is_right("She got an A.", ["A+"])


def test_normalising_twice_changes_nothing():
    """Test every character of the basic plane and the emoji, and random mixtures of special
    characters.
    """
    rng = random.Random(0)
    odd = "Aa1 +-#%$°`^\u200b.,'é़ा\u0301😀\u200d\ufe0f−–İßﬁΣς½™´¨_"
    texts = ["".join(rng.choices(odd, k=rng.randint(1, 9))) for _ in range(2_000)]
    texts += map(chr, [*range(0x10000), *range(0x1F000, 0x1FB00), *range(0xE0000, 0xE0080)])
    # What comes out as it went in is not asked again.
    once = {text: normalise(text) for text in texts}
    assert [text for text, made in once.items() if made != text and normalise(made) != made] == []


def test_answers_are_pooled_by_question_in_order():
    rows = [
        example("What is Jo Ray's job?", "Jo Ray", "job", *jobs)
        for jobs in (("actor",), ("judge", "actor"), ("poet",))
    ]
    pooled = pool_answers([*rows, capital("Italy", "Rome")])
    assert pooled == {
        rows[0].question_id: ("actor", "judge", "poet"),
        question_id("What is the capital of Italy?"): ("Rome",),
    }
