"""Questions with gold answers and the two spans of their exact question tokens."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from anchorlens.prompts.dataset import Dropped


@dataclass(frozen=True, order=True)
class Span:
    """Span of characters ``text[start:end]``.

    Examples:
        >>> import anchorlens as al
        >>> al.Span(10, 14).of("Who wrote Emma?")
        'Emma'

    Attributes:
        start: Index of the first character, from 0.
        end: Index one past the last character.
    """

    start: int
    end: int

    def of(self, text: str) -> str:
        """Return the characters of ``text`` in this span."""
        return text[self.start : self.end]

    def overlaps(self, other: "Span") -> bool:
        """Return True if the two spans share a character."""
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, kw_only=True)
class Example:
    """Row of a question set.

    Examples:
        >>> import anchorlens as al
        >>> row = al.load_qa([("Who wrote Emma?", "Jane Austen")]).examples[0]
        >>> row.subject.of(row.question), row.answers, row.answer_type
        ('Emma', ('Jane Austen',), 'person')

    Attributes:
        example_id: Unique id within the data set.
        question_id: Hash of the normalised question, always resampled as a
            whole.
        dataset: Name of the data set.
        question: Text of the question.
        answers: Gold aliases, at least one; the first is the canonical one.
        subject: First segment of E_Q, characters of ``question``.
        property: Second segment of E_Q, characters of ``question``; does not overlap ``subject``.
        relation: Relation of the question, such as ``capital``. If None, unknown.
        cluster: Unit of resampling where the data name at least ten. If None, the relation.
        answer_type: ``year``, ``number``, ``person``, ``place``, ``yes/no`` or ``other``.
        span_source: Source of the spans: ``annotation``, ``annotation+rules`` (one annotated, the
            other by rules), ``template``, ``rules``, ``spacy:NAME`` or ``callable:NAME``.
        popularity: Monthly page views of the subject (PopQA's ``s_pop``). If None, unknown.
    """

    example_id: str
    question_id: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    subject: Span
    property: Span
    relation: str | None = None
    cluster: str | None = None
    answer_type: str = "other"
    span_source: str = "rules"
    popularity: float | None = None

    def drop(self, reason: str, detail: str = "") -> Dropped:
        """Return the record of this example as a row that was left out.

        Args:
            reason: Name under which dropped rows are counted, such as ``no_donor``.
            detail: Circumstances of this row.
        """
        return Dropped(
            example_id=self.example_id,
            dataset=self.dataset,
            question=self.question,
            answer=self.answers[0],
            reason=reason,
            detail=detail,
        )


# Signs that are written as words, and variants of one sign.
_WORDED = {"%": " percent ", "°": " degrees ", "♯": "#", "−": "-", "⁄": " ", "_": "_"}
# Signs that distinguish answers: of a number (-40), at the end of a name or grade (C++, C#, A+,
# AB-), in a sum (2 + 2).
_SIGNS = re.compile(
    r"""( (?<!\S)-(?=\d)
        | (?<=[^\s+\#-])(?:\++|\#)(?!\w)
        | (?:(?<=(?<!\S)[^\W\d_])|(?<=(?<!\S)[^\W\d_]{2}))-(?!\S)
        | (?<=\d\ )\+(?=\ \d)
        ) | [-+\#]+""",
    re.VERBOSE,
)
_SUM = re.compile(r"(?<=\d)\+(?=\d)")
# Equates "C++11" and "C++ 11".
_PLUSES_END = re.compile(r"(?<=\+\+)(?=\w)")


class _Table(dict[int, str]):
    """Table for ``str.translate`` that is filled on demand."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = made = self._rule(chr(code))
        return made


def _drop_invisible(char: str) -> str:
    """Map zero-width joiners, variation selectors and trade marks to nothing, zero-width spaces and
    lone accents to a space.
    """
    # Tag characters distinguish flags, modifiers distinguish emoji: both are kept.
    if char in "™®©℠" or "\ufe00" <= char <= "\ufe0f":
        return ""
    if char == "\u200b":
        return " "
    category = unicodedata.category(char)
    if category == "Cf" and not "\U000e0020" <= char <= "\U000e007f":
        return ""
    return " " if category == "Sk" and char < "\U0001f3fb" else char


def _map_character(char: str) -> str:
    """Map a character to itself within a word, to a word of its own, or to a space."""
    if char in _WORDED:
        return _WORDED[char]
    category = unicodedata.category(char)
    # Vowels of Indic and Thai scripts are combining marks.
    if category[0] in "LNM" or category == "Cf" or char in "+#-":
        return char
    if category == "Pd":
        return "-"
    # In ASCII, "`" is a quote and "^", "+", "<" are parts of a formula.
    sign = category in {"Sc", "So"} or (category in {"Sk", "Sm"} and not char.isascii())
    return f" {char} " if sign else " "


_VISIBLE = _Table(_drop_invisible)
_WORDS = _Table(_map_character)


def normalise(text: str) -> str:
    """Return a text without case, punctuation, extra white space and variants of accents, for
    comparison.

    Scripts, combining marks and distinctive signs are kept: "C++" is not "C", "-40" not "40", "$5"
    not "5%". A text of punctuation only is kept.

    >>> normalise("  The U.S.A.! "), normalise("C++, -40 and 1914-18")
    ('the u s a', 'c++ -40 and 1914 18')
    """
    if text.isascii():
        folded = text.casefold()
    else:
        folded = unicodedata.normalize("NFKC", text.translate(_VISIBLE)).casefold()
        folded = unicodedata.normalize("NFKC", folded)
    words = folded.translate(_WORDS)
    if "+" in words or "-" in words or "#" in words:
        words = _SIGNS.sub(
            lambda sign: sign[1] or " ", _PLUSES_END.sub(" ", _SUM.sub(" + ", words))
        )
    return " ".join(words.split()) or " ".join(folded.split())


def question_id(question: str) -> str:
    """Return a hash of 16 hex digits of a question's normalised text."""
    return hashlib.sha256(normalise(question).encode("utf8")).hexdigest()[:16]


def pool_answers(examples: Iterable[Example]) -> dict[str, tuple[str, ...]]:
    """Return ``question_id`` -> gold aliases of all rows with this question, since an answer of one
    row is right for the others.
    """
    pooled: dict[str, dict[str, None]] = {}
    for example in examples:
        pooled.setdefault(example.question_id, {}).update(dict.fromkeys(example.answers))
    return {question: tuple(answers) for question, answers in pooled.items()}
