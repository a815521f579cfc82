"""Hand-made examples, and a check of errors by class, text and argument."""

import re
from contextlib import contextmanager
from fractions import Fraction
from functools import cache

import pytest

from anchorlens.questions.datasets import load_qa
from anchorlens.questions.example import Example, QAData, Span, normalise, question_id
from anchorlens.questions.spans.lexicon import STOP

CAPITALS = {
    "France": "Paris",
    "Japan": "Tokyo",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Russia": "Moscow",
    "China": "Beijing",
    "Germany": "Berlin",
    "Egypt": "Cairo",
    "Canada": "Ottawa",
    "Cuba": "Havana",
    "Iran": "Tehran",
    "Peru": "Lima",
}


@contextmanager
def refused(kind: type[Exception], message: str, argument: str = ""):
    """Expect an error whose message contains a text and, if given, whose argument has a name."""
    with pytest.raises(kind, match=re.escape(message)) as caught:
        yield caught
    assert not argument or caught.value.arguments == (argument,)


def example(
    question: str,
    subject: str,
    prop: str,
    *answers: str,
    relation: str | None = None,
    example_id: str | None = None,
) -> Example:
    """Make an example whose spans are the first occurrences of two texts."""
    start, at = question.index(subject), question.index(prop)
    return Example(
        example_id=example_id or f"id:{question}",
        question_id=question_id(question),
        dataset="made",
        question=question,
        answers=answers or ("Paris",),
        subject=Span(start, start + len(subject)),
        property=Span(at, at + len(prop)),
        relation=relation,
    )


def capital(country: str, city: str, *aliases: str) -> Example:
    """Make the example "What is the capital of ...?"."""
    return example(
        f"What is the capital of {country}?",
        country,
        "capital",
        city,
        *aliases,
        relation="capital",
        example_id=country,
    )


def data_of(examples: list[Example], n: int | None = None, name: str = "made") -> QAData:
    """Make a data set of examples: the first ``n`` are evaluated, all are the pool."""
    return QAData(
        name=name,
        examples=tuple(examples[:n]),
        pool=tuple(examples),
        dropped=(),
        pool_dropped={},
        source="test",
        sha256="0" * 64,
        limit=n,
        seed=0,
    )


@cache
def sample(name: str) -> QAData:
    """Load an embedded set once: "nq" for ``nq-sample``."""
    return load_qa(f"{name}-sample")


def capitals(n: int | None = None) -> QAData:
    """Make a data set of twelve capitals."""
    return data_of(
        [capital(country, city) for country, city in CAPITALS.items()], n, name="capitals"
    )


def equal_lengths() -> QAData:
    """Make a data set whose names and answers have equally many tokens with every byte-level
    tokenizer.
    """
    names, answers = (
        ("31q", "52w", "73x", "64z", "85v", "96j"),
        (
            "94",
            "83",
            "72",
            "65",
            "57",
            "46",
        ),
    )
    return data_of(
        [capital(name, answer) for name, answer in zip(names, answers, strict=True)], name="equal"
    )


def shared(answer: str, question: str) -> Fraction:
    """Return the share of an answer's words that occur in a question, without stop words if it has
    other words.
    """
    words = set(normalise(answer).split())
    words = words - STOP or words - {"the", "a", "an"} or words
    return Fraction(len(words & set(normalise(question).split())), len(words))
