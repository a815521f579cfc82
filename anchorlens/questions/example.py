"""One question with its gold answers and the two spans of its exact question tokens."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Span:
    """A run of characters ``text[start:end]``.

    Attributes:
        start: Index of the first character, from 0.
        end: Index one past the last.
    """

    start: int
    end: int

    def of(self, text: str) -> str:
        """The characters of ``text`` that this span covers."""
        return text[self.start : self.end]

    def overlaps(self, other: "Span") -> bool:
        """Whether the two share a character."""
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Example:
    """One row of a question set.

    Attributes:
        example_id: Unique inside its data set.
        question_id: The same for all rows with the same normalised question text; the unit of resampling.
        dataset: Name of the data set.
        question: The question's text.
        answers: Gold aliases; the first is the canonical one. Never empty.
        subject: First segment of E_Q, characters of ``question``.
        property: Second segment of E_Q, characters of ``question``; never overlaps ``subject``.
        relation: The relation that the question asks for, where the data set names one.
        answer_type: ``year``, ``number``, ``person``, ``place``, ``yes/no`` or ``other``.
        span_source: Where the spans come from: ``annotation``, ``annotation+rules`` (one of the two was annotated, the rules found
            the other), ``template``, ``rules``, ``spacy:NAME`` or ``callable:NAME``.
        popularity: Monthly page views of the subject (PopQA's ``s_pop``), where known.
    """

    example_id: str
    question_id: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    subject: Span
    property: Span
    relation: str | None = None
    answer_type: str = "other"
    span_source: str = "rules"
    popularity: float | None = None


# Signs that have a word, and those that only differ in how they are written.
_WORDED = {"%": " percent ", "°": " degrees ", "♯": "#", "−": "-", "⁄": " ", "_": "_"}
# Kept where they carry the answer: the sign of a number (-40), what a name or a grade ends with (C++, C#, A+, AB-), a sum (2 + 2).
_SIGNS = re.compile(
    r"""( (?<!\S)-(?=\d)
        | (?<=[^\s+\#-])(?:\++|\#)(?!\w)
        | (?:(?<=(?<!\S)[^\W\d_])|(?<=(?<!\S)[^\W\d_]{2}))-(?!\S)
        | (?<=\d\ )\+(?=\ \d)
        ) | [-+\#]+""",
    re.VERBOSE,
)
_SUM = re.compile(r"(?<=\d)\+(?=\d)")
# "C++11" is "C++ 11".
_PLUSES_END = re.compile(r"(?<=\+\+)(?=\w)")


class _Table(dict[int, str]):
    """A table for ``str.translate``, filled as characters are met."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = made = self._rule(chr(code))
        return made


def _drop_invisible(char: str) -> str:
    """Nothing for zero-width joiners, variation selectors and trade marks; a space for a zero-width space and a lone accent."""
    # The tag characters of a flag say whose it is, the modifiers of an emoji which.
    if char in "™®©℠" or "\ufe00" <= char <= "\ufe0f":
        return ""
    if char == "\u200b":
        return " "
    category = unicodedata.category(char)
    if category == "Cf" and not "\U000e0020" <= char <= "\U000e007f":
        return ""
    return " " if category == "Sk" and char < "\U0001f3fb" else char


def _map_character(char: str) -> str:
    """A character as part of a word, a word of its own, or a space."""
    if char in _WORDED:
        return _WORDED[char]
    category = unicodedata.category(char)
    # Vowels of Indic and Thai scripts are combining marks.
    if category[0] in "LNM" or category == "Cf" or char in "+#-":
        return char
    if category == "Pd":
        return "-"
    # Of ASCII, "`" is a quote and "^", "+", "<" are parts of a formula.
    sign = category in {"Sc", "So"} or (category in {"Sk", "Sm"} and not char.isascii())
    return f" {char} " if sign else " "


_VISIBLE, _WORDS = _Table(_drop_invisible), _Table(_map_character)


def normalise(text: str) -> str:
    """What makes two strings the same answer or question: case, composition of accents, punctuation and white space taken out.

    Scripts, combining marks and signs that carry the answer stay apart: "C++" is not "C", "-40" not "40", "$5" not "5%". A text of
    nothing but punctuation stays as it is.

    >>> normalise("  The U.S.A.! "), normalise("C++, -40 and 1914-18")
    ('the u s a', 'c++ -40 and 1914 18')
    """
    if text.isascii():
        folded = text.casefold()
    else:
        folded = unicodedata.normalize("NFKC", text.translate(_VISIBLE)).casefold()
        folded = unicodedata.normalize("NFKC", folded)
    said = folded.translate(_WORDS)
    if "+" in said or "-" in said or "#" in said:
        said = _SIGNS.sub(lambda sign: sign[1] or " ", _PLUSES_END.sub(" ", _SUM.sub(" + ", said)))
    return " ".join(said.split()) or " ".join(folded.split())


def question_id(question: str) -> str:
    """A short stable name of a question's normalised text."""
    return hashlib.sha256(normalise(question).encode("utf8")).hexdigest()[:16]


def pool_answers(examples: Iterable[Example]) -> dict[str, tuple[str, ...]]:
    """The gold aliases of all rows of each question: where two rows ask the same, an answer of one is right for the other."""
    pooled: dict[str, dict[str, None]] = {}
    for example in examples:
        pooled.setdefault(example.question_id, {}).update(dict.fromkeys(example.answers))
    return {question: tuple(answers) for question, answers in pooled.items()}
