"""Fields of each data set, and the conversion of rows into records."""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from anchorlens.errors import DataError
from anchorlens.questions.answers import ANSWER_TYPES

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Schema:
    """Fields of a data set: for each value the names of its columns, in order of preference."""

    name: str
    answers: tuple[str, ...]
    relation: tuple[str, ...] = ("relation",)
    popularity: tuple[str, ...] = ("popularity",)
    ids: tuple[str, ...] = ("id",)
    templated: bool = False

    @property
    def needed(self) -> tuple[tuple[str, ...], ...]:
        """Required fields, each with its alternative names."""
        return (("question",), self.answers)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Fields that are read, each with its alternative names."""
        optional = (self.ids, self.relation, ("answer_type",), self.popularity)
        segments = (("subject",), ("property",), ("subject_span",), ("property_span",))
        return (*self.needed, *optional, *segments, *((("subj",),) if self.templated else ()))

    @property
    def fields(self) -> frozenset[str]:
        """Column names that are read."""
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
    """Row of a question set with converted fields; ``fault`` describes an invalid annotation."""

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
    """Return a value as text, None if missing; whole numbers without the ".0" of frames with missing values."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or None


def _first_text(row: Row, fields: Sequence[str]) -> str | None:
    return next((text for text in (_text(row.get(field)) for field in fields) if text is not None), None)


def _unpack(value: object) -> object:
    """Parse a list or object that is written as a string, as in PopQA's answers and csv files."""
    if not isinstance(value, str) or value.strip()[:1] not in {"[", "{"}:
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        pass
    try:
        # pandas writes lists to csv files as Python literals.
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def read_answers(value: object) -> tuple[str, ...]:
    """Return the gold aliases, the canonical one first, of a string, number, list, JSON or TriviaQA's object.

    >>> read_answers('["Jem Cohen", "Jem Alan Cohen"]'), read_answers({"value": "Rome", "aliases": ["Roma", "Rome"]})
    (('Jem Cohen', 'Jem Alan Cohen'), ('Rome', 'Roma'))
    """
    value = _unpack(value)
    if isinstance(value, Mapping):
        value = [value.get("value"), *_as_list(value.get("aliases"))]
    texts = (_text(item) for item in _as_list(value))
    return tuple(dict.fromkeys(text for text in texts if text is not None))


def _as_list(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


def read_row(row: Row, schema: Schema, where: str) -> Record:
    """Convert one row into a record: None for missing optional fields, empty for a missing question or answer."""
    raw = row.get("question")
    question = raw if isinstance(raw, str) else _text(raw) or ""
    left = len(question) - len(question.lstrip())
    spans, fault = dict[str, tuple[int, int]](), ""
    for field in ("subject_span", "property_span"):
        value = _unpack(row.get(field))
        value = value.strip() if isinstance(value, str) else value
        pair = list(value) if isinstance(value, list | tuple) else []
        if len(pair) == 2 and all(type(x) is int or (isinstance(x, float) and x.is_integer()) for x in pair):
            spans[field] = int(pair[0]) - left, int(pair[1]) - left
        elif value not in (None, "", [], ()):
            fault = fault or f"{where}: {field} must be [first character, one past the last], got {value!r}."
    aliases = (read_answers(row.get(field)) for field in schema.answers)
    kind, popularity = _text(row.get("answer_type")), _first_text(row, schema.popularity)
    if kind is not None and kind not in ANSWER_TYPES:
        raise DataError(f"{where}: answer_type={kind!r} is unknown. Use one of {', '.join(ANSWER_TYPES)}.")
    try:
        views = None if popularity is None else float(popularity)
    except ValueError as error:
        raise DataError(f"{where}: {' or '.join(schema.popularity)} must be a number, got {popularity!r}.") from error
    return Record(
        question.strip(), next((answers for answers in aliases if answers), ()), file_id=_first_text(row, schema.ids),
        relation=_first_text(row, schema.relation), answer_type=kind, popularity=views,
        subject_text=_text(row.get("subject")), property_text=_text(row.get("property")), **spans,
        popqa_subject=_text(row.get("subj")) if schema.templated else None, templated=schema.templated, fault=fault,
    )  # fmt: skip
