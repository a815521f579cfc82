"""Fields of each data set, and the conversion of rows into records."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from anchorlens.display import short_repr, shorten
from anchorlens.errors import DataError
from anchorlens.prompts.cells import cell_text, shift_index, unpack
from anchorlens.questions.answers import ANSWER_TYPES

Row: TypeAlias = Mapping[str, Any]

# Names of the first alias in an object with ``aliases``: TriviaQA has ``Value``, other sets one of
# the others.
_FIRST_ALIAS = ("value", "answer", "text", "name", "label")


OWN_ID = "id"
"""Field of the id of a row in a file of one's own."""
PUBLISHED_IDS = ("QuestionId", "_id", "qid")
"""Fields of ids in the files of TriviaQA, HotpotQA and MRQA."""


@dataclass(frozen=True, kw_only=True)
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
        optional = (self.ids, self.relation, ("cluster",), ("answer_type",), self.popularity)
        segments = (("subject",), ("property",), ("subject_span",), ("property_span",))
        return (*self.needed, *optional, *segments, *((("subj",),) if self.templated else ()))

    @property
    def fields(self) -> frozenset[str]:
        """Column names that are read."""
        return frozenset(chain.from_iterable(self.groups))

    def answer_field(self, row: Row) -> str | None:
        """Return the field of a row that has its answers; None if there is none."""
        for name in self.answers:
            if name in row:
                return name
        return None


SCHEMAS = {
    "popqa": Schema(
        name="popqa",
        answers=("possible_answers", "obj"),
        relation=("prop", "relation"),
        popularity=("s_pop", "popularity"),
        templated=True,
    ),
    "triviaqa": Schema(
        name="triviaqa", answers=("answer",), ids=("question_id", "QuestionId", "id")
    ),
    "hotpotqa": Schema(name="hotpotqa", answers=("answer",), ids=("id", "_id")),
    "nq": Schema(name="nq", answers=("answer",)),
    "own": Schema(
        name="own",
        answers=("answers", "answer"),
        relation=("relation", "prop"),
        popularity=("popularity", "s_pop"),
        ids=(OWN_ID, *PUBLISHED_IDS),
    ),
}


class Record(NamedTuple):
    """Row of a question set with converted fields; ``fault`` describes an invalid annotation."""

    question: str
    answers: tuple[str, ...]
    file_id: str | None = None
    relation: str | None = None
    cluster: str | None = None
    answer_type: str | None = None
    popularity: float | None = None
    subject_text: str | None = None
    property_text: str | None = None
    subject_span: tuple[int, int] | None = None
    property_span: tuple[int, int] | None = None
    popqa_subject: str | None = None
    templated: bool = False
    fault: str = ""


def number_rows(rows: Iterable[Row], source: str) -> Iterator[tuple[str, Row]]:
    """Yield each row with its place for messages: the source and its number from 1."""
    for number, row in enumerate(rows, start=1):
        yield f"{source}, row {number}", row


def _first_text(row: Row, fields: Sequence[str], where: str) -> str | None:
    """Return the first field that is not missing."""
    for field in fields:
        # Most fields are missing in most rows.
        if (value := row.get(field)) is not None:
            text = cell_text(value, where, field)
            if text is not None:
                return text
    return None


def read_answers(value: object, where: str = "cell", field: str = "answers") -> tuple[str, ...]:
    """Return the gold aliases, the canonical one first, of a string, number, list, JSON, or an
    object of TriviaQA or SQuAD.

    >>> read_answers('["Jem Cohen", "Jem Alan Cohen"]')
    ('Jem Cohen', 'Jem Alan Cohen')
    >>> read_answers({"value": "Rome", "aliases": ["Roma", "Rome"]})
    ('Rome', 'Roma')
    """
    items = _aliases(unpack(value, f"{where}: {field}"))
    texts = [cell_text(item, where, field) for item in items]
    return tuple(dict.fromkeys(text for text in texts if text is not None))


def _aliases(value: object) -> list[object]:
    """Return the items of a list, or the parts of an object with aliases."""
    if isinstance(value, Mapping):
        # TriviaQA's published file has Value and Aliases.
        parts = {str(name).casefold(): part for name, part in value.items()}
        if {"value", "aliases"} & set(parts):
            first = next((parts[name] for name in _FIRST_ALIAS if name in parts), None)
            return [first, *_as_list(parts.get("aliases"))]
        if "text" in parts:
            return _as_list(parts["text"])
        return [value]
    if isinstance(value, list):
        aliases: list[object] = []
        for item in value:
            # Published SQuAD has a list of objects with a text each.
            aliases += _aliases(item) if isinstance(item, Mapping) else [item]
        return aliases
    return [value]


def _first_answers(row: Row, fields: Sequence[str], where: str) -> tuple[str, ...]:
    for field in fields:
        value = row.get(field)
        answers = () if value is None else read_answers(value, where, field)
        if answers:
            return answers
    return ()


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, float) and value.is_integer())


def read_row(row: Row, schema: Schema, where: str) -> Record:
    """Convert one row into a record: None for missing optional fields, empty for a missing question
    or answer.
    """
    raw = row.get("question")
    question = cell_text(raw, where, "question") or ""
    written = raw if isinstance(raw, str) else ""
    spans: dict[str, tuple[int, int]] = {}
    fault = ""
    for field in ("subject_span", "property_span"):
        value = unpack(row.get(field), where)
        value = value.strip() or None if isinstance(value, str) else value
        if isinstance(value, list) and len(value) == 2 and all(map(_is_whole, value)):
            start = shift_index(written, int(value[0]))
            spans[field] = start, shift_index(written, int(value[1]))
        elif value is not None and not (isinstance(value, list) and not value):
            fault = fault or (
                f"{where}: {field} must be [first character, one past the last], "
                f"got {short_repr(value)}."
            )
    kind = cell_text(row.get("answer_type"), where, "answer_type")
    popularity = _first_text(row, schema.popularity, where)
    if kind is not None and kind not in ANSWER_TYPES:
        raise DataError(
            f"{where}: answer_type={shorten(kind)} is unknown."
            f" Use one of {', '.join(ANSWER_TYPES)}."
        )
    try:
        views = None if popularity is None else float(popularity)
    except ValueError:
        views = math.nan
    if views is not None and not math.isfinite(views):
        raise DataError(
            f"{where}: {' or '.join(schema.popularity)} must be a number, got"
            f" {shorten(str(popularity))}. Write it as 3.5, or leave the column out."
        )
    subject = _popqa_subject(row, question, schema, where)
    return Record(
        question=question,
        answers=_first_answers(row, schema.answers, where),
        file_id=_first_text(row, schema.ids, where),
        relation=_first_text(row, schema.relation, where),
        cluster=_first_text(row, ("cluster",), where),
        answer_type=kind,
        popularity=views,
        subject_text=cell_text(row.get("subject"), where, "subject"),
        property_text=cell_text(row.get("property"), where, "property"),
        **spans,
        popqa_subject=subject,
        templated=schema.templated or subject is not None,
        fault=fault,
    )


def _popqa_subject(row: Row, question: str, schema: Schema, where: str) -> str | None:
    """Return PopQA's annotation ``subj`` of a row; None if there is none.

    Rows of PopQA that are read by another schema, with ``columns=`` or renamed, keep it. There a
    column of this name may also be something else: it is an annotation if the question has it.
    """
    value = row.get("subj")
    if schema.templated:
        return cell_text(value, where, "subj")
    subject = cell_text(value, where, "subj") if isinstance(value, str) else None
    return subject if subject is not None and subject in question else None
