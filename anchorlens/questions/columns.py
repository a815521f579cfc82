"""Read the columns of the user's tables: ``columns=``, ``answers_sep=``, and checks of the required fields."""

import string
from collections.abc import Iterable, Mapping, Sequence

from anchorlens.display import join_words, one_line, short_repr, shorten
from anchorlens.errors import DataError, InputError, did_you_mean
from anchorlens.prompts.cells import cell_text, unpack
from anchorlens.questions.schemas import SCHEMAS, Row, Schema
from anchorlens.warn import warn

# Marks of a missing value.
_MISSING = {"nan", "<na>", "n/a", "null"}


def parse_columns(text: str) -> dict[str, str]:
    """Parse ``question=q,answers=gold`` into the dictionary of ``columns=``: field of the schema -> column.

    A column's name may contain an equals sign, but no comma.

    >>> parse_columns("question=q, answers=gold")
    {'question': 'q', 'answers': 'gold'}
    """
    columns: dict[str, str] = {}
    for part in text.split(",") if isinstance(text, str) else ("",):
        field, equals, column = (piece.strip() for piece in part.partition("="))
        if not (field and equals and column) or field in columns:
            raise InputError(
                f"columns={short_repr(text)}: {part.strip()!r} is not FIELD=COLUMN, or repeats a field. "
                "Write FIELD=COLUMN, separated by commas: 'question=q,answers=gold'.",
                argument="columns",
            )
        columns[field] = column
    return columns


def check_columns(columns: object, schema: Schema) -> dict[str, str]:
    """Return ``columns=`` as a dictionary, empty if None; raise InputError if it is invalid."""
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for pair in columns.items() for name in pair):
        raise InputError(
            f"columns={short_repr(columns)}: must be a dictionary from field names to column names, such as "
            "{'question': 'q', 'answers': 'gold'}.",
            argument="columns",
        )
    for field, column in columns.items():
        if field not in schema.fields:
            swapped = "Write the field first, then the column."
            fix = swapped if column in schema.fields else did_you_mean(field, [group[0] for group in schema.groups])
            raise InputError(
                f"columns={{{field!r}: {column!r}}}: the schema {schema.name!r} has no field {field!r}. {fix}", argument="columns"
            )
    return dict(columns)


def _field_names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(field for row in rows for field in row))


def rename_columns(rows: Sequence[Row], columns: Mapping[str, str], schema: Schema, source: str) -> list[Row]:
    """Rename the user's columns to the fields of the schema; other columns of a renamed field are removed."""
    if not columns:
        return list(rows)
    names = _field_names(rows)
    for field, column in columns.items():
        if column not in names:
            raise DataError(
                f"columns={{{field!r}: {column!r}}}: {source} has no column {column!r}, or it is empty. "
                f"{did_you_mean(column, map(one_line, names))}",
                argument="columns",
            )
    unread = set(columns.values()).union(*(group for group in schema.groups if set(group) & set(columns)))
    return [
        {key: value for key, value in row.items() if key not in unread}
        | {field: row[column] for field, column in columns.items() if column in row}
        for row in rows
    ]


def match_names(rows: Sequence[Row], schema: Schema) -> list[Row]:
    """Rename required columns that differ from their field by case or blanks, such as ``Question``."""
    names = _field_names(rows)
    renames: dict[str, str] = {}
    for group in schema.needed:
        near = [name for name in names if name.strip().casefold() in group]
        if not set(group) & set(names) and len(near) == 1:
            renames[near[0]] = near[0].strip().casefold()
    return [{renames.get(name, name): cell for name, cell in row.items()} for row in rows] if renames else list(rows)


def resolve_choices(rows: Sequence[Row], schema: Schema, source: str) -> list[Row]:
    """Replace an answer that names one of the row's ``choices`` by its text.

    An answer is the number of a choice, from 0 (MMLU), or its label (ARC, whose choices have the lists ``text`` and ``label``; the
    choices of a plain list are A, B, C ...). A text that is itself one of the choices stays; a number never is.

    Raises:
        DataError: If an answer is a number, but no choice has it, or a text that is one choice and the number of another.
    """
    return [_resolve_choice(row, schema, f"{source}, row {number}") for number, row in enumerate(rows, start=1)]


def _resolve_choice(row: Row, schema: Schema, where: str) -> Row:
    choices = unpack(row.get("choices", row.get("options")), where)
    has_labels = isinstance(choices, Mapping)
    texts = choices.get("text") if has_labels else choices
    labels = choices.get("label") if has_labels else list(string.ascii_uppercase)
    field = next((name for name in schema.answers if name in row), None)
    if field is None or not isinstance(texts, list) or not isinstance(labels, list):
        return row
    value = row[field]
    answer = cell_text(value, where, field) if isinstance(value, str | int | float) else None
    if answer is None:
        return row
    is_text = isinstance(value, str) and answer in map(str, texts)
    if not is_text and answer in labels[: len(texts)]:
        return {**row, field: texts[labels.index(answer)]}
    if not answer.isdecimal() or has_labels:
        return row
    number = int(answer)
    if is_text:
        if number < len(texts) and str(texts[number]) != answer:
            problem = "one choice has this text, another this number. Remove the column of choices, if it is the text"
            raise DataError(f"{where}: {field}={answer}: {problem}.")
        return row
    if number >= len(texts):
        raise DataError(f"{where}: {field}={answer}: there are {len(texts)} choices, numbered from 0. Write the answer as text.")
    return {**row, field: texts[number]}


def check_fields(rows: Sequence[Row], schema: Schema, source: str, *, own: bool = True) -> None:
    """Raise DataError if a required field is missing in all rows; ``own`` if the user can rename columns."""
    names = _field_names(rows)
    missing = [group for group in schema.needed if not set(group) & set(names)]
    if not missing:
        return
    fits = [name for name, other in SCHEMAS.items() if all(set(group) & set(names) for group in other.needed)]
    needed = {group[0]: "..." for group in missing}
    fix = f" Pass columns={needed}." if own else ""
    if fits:
        fix = f" Its fields fit: {', '.join(fits)}." + (f" Pass dataset_name={fits[0]!r}." if own else "")
    lacks = " and ".join(" or ".join(group) for group in missing)
    raise DataError(
        f"{source} is not of the schema {schema.name!r}: it lacks {lacks}. It has {join_words(sorted(names)) or 'no field'}.{fix}"
    )


def _plain_answer(value: object, where: str) -> str:
    """Return a single answer that is written as plain text; empty for lists, JSON and missing values."""
    return value.strip() if isinstance(value, str) and unpack(value, where) is value else ""


def split_answers(rows: Sequence[Row], schema: Schema, separator: object, source: str) -> list[Row]:
    """Split plain-text answers at a separator into lists of aliases; lists and JSON stay as they are."""
    if separator is None:
        return list(rows)
    if not isinstance(separator, str) or not separator:
        raise InputError(
            f"answers_sep={short_repr(separator)}: must be a non-empty string, such as ';', or None.", argument="answers_sep"
        )
    return [
        {**row, **{key: row[key].split(separator) for key in schema.answers if separator in _plain_answer(row.get(key), where)}}
        for where, row in ((f"{source}, row {number}", row) for number, row in enumerate(rows, start=1))
    ]


def warn_of_cells(rows: Sequence[Row], schema: Schema, source: str) -> None:
    """Warn once if answers of a file or table look like several answers in one text, or like a missing value."""
    cells = (next((row[field] for field in schema.answers if field in row), None) for row in rows)
    plain = ((i, _plain_answer(cell, f"{source}, row {i}")) for i, cell in enumerate(cells, 1))
    suspect = [(i, cell) for i, cell in plain if "|" in cell or ";" in cell or cell.casefold() in _MISSING]
    if suspect:
        number, cell = suspect[0]
        more = f" (and {len(suspect) - 1} more)" if len(suspect) > 1 else ""
        separator = next((mark for mark in "|;" if mark in cell), None)
        fix = f"Pass answers_sep={separator!r} to split it." if separator else "Leave the cell empty if there is no answer."
        warn(f"{source}, row {number}{more}: the answer {shorten(cell)} is read as one alias. {fix}")
