"""Fields of each data set, and the conversion of rows into records."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from anchorlens.display import short_repr, shorten
from anchorlens.errors import DataError
from anchorlens.prompts.cells import cell_text, unpack
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
    "triviaqa": Schema("triviaqa", ("answer",), ids=("question_id", "QuestionId", "id")),
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


def _first_text(row: Row, fields: Sequence[str], where: str) -> str | None:
    return next((text for text in (cell_text(row.get(field), where, field) for field in fields) if text is not None), None)


def read_answers(value: object, where: str = "cell", field: str = "answers") -> tuple[str, ...]:
    """Return the gold aliases, the canonical one first, of a string, number, list, JSON, or an object of TriviaQA or SQuAD.

    >>> read_answers('["Jem Cohen", "Jem Alan Cohen"]'), read_answers({"value": "Rome", "aliases": ["Roma", "Rome"]})
    (('Jem Cohen', 'Jem Alan Cohen'), ('Rome', 'Roma'))
    """
    value = unpack(value, where)
    if isinstance(value, Mapping):
        parts = {str(name).casefold(): part for name, part in value.items()}  # the published file has Value and Aliases
        if {"value", "aliases"} & set(parts):
            value = [parts.get("value"), *_as_list(parts.get("aliases"))]
        elif "text" in parts:
            value = parts["text"]
    texts = (cell_text(item, where, field) for item in _as_list(value))
    return tuple(dict.fromkeys(text for text in texts if text is not None))


def _as_list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, float) and value.is_integer())


def read_row(row: Row, schema: Schema, where: str) -> Record:
    """Convert one row into a record: None for missing optional fields, empty for a missing question or answer."""
    raw = row.get("question")
    question = cell_text(raw, where, "question") or ""
    left = raw.find(question) if isinstance(raw, str) else 0  # characters before the text
    spans, fault = dict[str, tuple[int, int]](), ""
    for field in ("subject_span", "property_span"):
        value = unpack(row.get(field), where)
        value = value.strip() or None if isinstance(value, str) else value
        if isinstance(value, list) and len(value) == 2 and all(map(_is_whole, value)):
            spans[field] = int(value[0]) - left, int(value[1]) - left
        elif value is not None and not (isinstance(value, list) and not value):
            fault = fault or f"{where}: {field} must be [first character, one past the last], got {short_repr(value)}."
    aliases = (read_answers(row.get(field), where, field) for field in schema.answers)
    kind, popularity = cell_text(row.get("answer_type"), where, "answer_type"), _first_text(row, schema.popularity, where)
    if kind is not None and kind not in ANSWER_TYPES:
        raise DataError(f"{where}: answer_type={shorten(kind)} is unknown. Use one of {', '.join(ANSWER_TYPES)}.")
    try:
        views = None if popularity is None else float(popularity)
    except ValueError:
        views = math.nan
    if views is not None and not math.isfinite(views):
        raise DataError(f"{where}: {' or '.join(schema.popularity)} must be a number, got {shorten(str(popularity))}.")
    return Record(
        question, next((answers for answers in aliases if answers), ()), file_id=_first_text(row, schema.ids, where),
        relation=_first_text(row, schema.relation, where), answer_type=kind, popularity=views,
        subject_text=cell_text(row.get("subject"), where, "subject"),
        property_text=cell_text(row.get("property"), where, "property"), **spans,
        popqa_subject=cell_text(row.get("subj"), where, "subj") if schema.templated else None,
        templated=schema.templated, fault=fault,
    )  # fmt: skip
