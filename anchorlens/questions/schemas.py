"""What a row of each data set means: its fields become one plain record."""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from anchorlens.errors import DataError, SpanError
from anchorlens.questions.answers import ANSWER_TYPES

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Schema:
    """The fields of a data set.

    Attributes:
        name: Its name.
        answers: Fields that may hold the gold answers; the first that a row fills is read.
        relation: Fields that may name the relation.
        popularity: Fields that may hold the popularity.
        ids: Fields that may hold the row's id.
        templated: Its questions are made from PopQA's templates.
    """

    name: str
    answers: tuple[str, ...]
    relation: tuple[str, ...] = ("relation",)
    popularity: tuple[str, ...] = ("popularity",)
    ids: tuple[str, ...] = ("id",)
    templated: bool = False

    @property
    def needed(self) -> tuple[tuple[str, ...], ...]:
        """Fields without which nothing can be read, each with its other names."""
        return (("question",), self.answers)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Every field that is read, each with its other names."""
        optional = (self.ids, self.relation, ("answer_type",), self.popularity)
        segments = (("subject",), ("property",), ("subject_span",), ("property_span",))
        return (*self.needed, *optional, *segments, *((("subj",),) if self.templated else ()))

    @property
    def fields(self) -> frozenset[str]:
        """Every name that is read."""
        return frozenset(name for group in self.groups for name in group)


SCHEMAS = {
    "popqa": Schema("popqa", ("possible_answers", "obj"), ("prop", "relation"), ("s_pop", "popularity"), templated=True),
    "triviaqa": Schema("triviaqa", ("answer",), ids=("question_id", "id")),
    "hotpotqa": Schema("hotpotqa", ("answer",)),
    "nq": Schema("nq", ("answer",)),
    "own": Schema("own", ("answers", "answer"), ("relation", "prop"), ("popularity", "s_pop")),
}


@dataclass(frozen=True)
class Record:
    """One row, read.

    Attributes:
        question: Its question, white space at the ends cut off; empty where the row has none.
        answers: Gold aliases, the canonical one first; empty where the row has none.
        file_id: The row's own id.
        relation: The relation that it asks for.
        answer_type: The kind of its answer, where the file says so.
        popularity: Monthly page views of the subject.
        subject_text, property_text: Annotated segments as text.
        subject_span, property_span: Annotated segments as characters of ``question``.
        popqa_subject: PopQA's ``subj``.
        templated: The question is made from one of PopQA's templates.
        fault: Why an annotated span cannot be read; empty where it can.
    """

    question: str
    answers: tuple[str, ...]
    file_id: str | None = None
    relation: str | None = None
    answer_type: str | None = None
    popularity: float | None = None
    subject_text: str | None = None
    property_text: str | None = None
    subject_span: tuple[int, int] | None = None
    property_span: tuple[int, int] | None = None
    popqa_subject: str | None = None
    templated: bool = False
    fault: str = ""


def _text(value: object) -> str | None:
    """A value as text; None for what is missing. Whole numbers lose the ".0" that a frame with gaps gives them."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or None


def _first_text(row: Row, fields: Sequence[str]) -> str | None:
    """The first of the fields that the row fills."""
    return next((text for text in (_text(row.get(field)) for field in fields) if text is not None), None)


def _unpacked(value: object) -> object:
    """A list or object that stands in a string, as PopQA's answers and every list of a csv file do."""
    if not isinstance(value, str) or value.strip()[:1] not in {"[", "{"}:
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        pass
    try:
        # What pandas writes for a list in a csv file.
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def read_answers(value: object) -> tuple[str, ...]:
    """Gold aliases, canonical one first, without blanks and repeats.

    Accepts a string, a number, a list, either as JSON in a string, and TriviaQA's object with ``value`` and ``aliases``.

    >>> read_answers('["Jem Cohen", "Jem Alan Cohen"]'), read_answers({"value": "Rome", "aliases": ["Roma", "Rome"]})
    (('Jem Cohen', 'Jem Alan Cohen'), ('Rome', 'Roma'))
    """
    value = _unpacked(value)
    if isinstance(value, Mapping):
        value = [value.get("value"), *_listed(value.get("aliases"))]
    texts = (_text(item) for item in _listed(value))
    return tuple(dict.fromkeys(text for text in texts if text is not None))


def _listed(value: object) -> list[object]:
    """A list of what may be one thing, several or nothing."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


def _offsets(row: Row, field: str, where: str) -> tuple[int, int] | None:
    """An annotated span; None where the field is empty.

    Raises:
        SpanError: It is not a pair of whole numbers.
    """
    value = _unpacked(row.get(field))
    if value is None or (isinstance(value, str | list | tuple) and not (value.strip() if isinstance(value, str) else value)):
        return None
    pair = list(value) if isinstance(value, list | tuple) else []
    whole = [int(x) for x in pair if isinstance(x, int) or (isinstance(x, float) and x.is_integer())]
    if len(pair) != 2 or len(whole) != 2 or any(isinstance(x, bool) for x in pair):
        raise SpanError(f"{where}: {field} must be [first character, one past the last], got {value!r}.")
    return whole[0], whole[1]


def _number(row: Row, fields: Sequence[str], where: str) -> float | None:
    """The first filled field as a number.

    Raises:
        DataError: It is none.
    """
    text = _first_text(row, fields)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise DataError(f"{where}: {' or '.join(fields)} must be a number, got {text!r}.") from error


def _answer_type(row: Row, where: str) -> str | None:
    """The row's own answer type.

    Raises:
        DataError: It is none of the known ones.
    """
    text = _text(row.get("answer_type"))
    if text is not None and text not in ANSWER_TYPES:
        raise DataError(f"{where}: answer_type must be one of {', '.join(ANSWER_TYPES)}; got {text!r}.")
    return text


def read_row(row: Row, schema: Schema, where: str) -> Record:
    """One row as a record. Missing optional fields are None; a missing question or answer is empty, for the caller to drop.

    Args:
        row: Field names to values.
        schema: What the fields mean.
        where: How messages name the row.

    Raises:
        DataError: A field has a value that it cannot have.
    """
    raw = row.get("question")
    question = raw if isinstance(raw, str) else _text(raw) or ""
    left = len(question) - len(question.lstrip())
    spans: dict[str, tuple[int, int] | None] = {"subject_span": None, "property_span": None}
    fault = ""
    for field in spans:
        try:
            pair = _offsets(row, field, where)
        except SpanError as error:
            fault = fault or str(error)
            continue
        spans[field] = None if pair is None else (pair[0] - left, pair[1] - left)
    found = (read_answers(row.get(field)) for field in schema.answers)
    return Record(
        question=question.strip(),
        answers=next((answers for answers in found if answers), ()),
        file_id=_first_text(row, schema.ids),
        relation=_first_text(row, schema.relation),
        answer_type=_answer_type(row, where),
        popularity=_number(row, schema.popularity, where),
        subject_text=_text(row.get("subject")),
        property_text=_text(row.get("property")),
        subject_span=spans["subject_span"],
        property_span=spans["property_span"],
        popqa_subject=_text(row.get("subj")) if schema.templated else None,
        templated=schema.templated,
        fault=fault,
    )
