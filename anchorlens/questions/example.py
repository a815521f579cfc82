"""One question with its gold answers and the two spans of its exact question tokens."""

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Span:
    """A run of characters ``text[start:end]``."""

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


@dataclass(frozen=True)
class Dropped:
    """A row that was left out, and why."""

    example_id: str
    dataset: str
    question: str
    answer: str
    reason: str
    detail: str = field(default="")


def normalise(text: str) -> str:
    """Case, accents' composition, punctuation and white space taken out: what makes two strings the same answer or question.

    >>> normalise("  The U.S.A.! ")
    'the u s a'
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"\w+", folded))


def question_id(question: str) -> str:
    """A short stable name of a question's normalised text."""
    return hashlib.sha256(normalise(question).encode("utf8")).hexdigest()[:16]
