"""The ``columns=`` argument: names of the user's columns for the fields of a schema, and checks of the fields that are there."""

from collections.abc import Iterable, Mapping, Sequence

from anchorlens.display import join_words, short_repr, shorten
from anchorlens.errors import DataError, InputError, did_you_mean
from anchorlens.questions.schemas import SCHEMAS, Row, Schema, read_answers
from anchorlens.warn import warn

# How programs write that a cell holds nothing.
_NOTHING = {"nan", "<na>", "n/a", "null"}


def parse_columns(text: str) -> dict[str, str]:
    """Parse ``question=q,answers=gold`` into the dictionary that ``columns=`` takes: field of the schema -> column.

    A column's name may hold an equals sign, but no comma.

    >>> parse_columns("question=q, answers=gold")
    {'question': 'q', 'answers': 'gold'}
    """
    how = "Write FIELD=COLUMN, with commas between: question=q,answers=gold."
    columns: dict[str, str] = {}
    for part in text.split(",") if isinstance(text, str) else ("",):
        field, equals, column = (piece.strip() for piece in part.partition("="))
        if not (field and equals and column) or field in columns:
            raise InputError(
                f"columns={short_repr(text)}: {part.strip()!r} is no field with its column, or is there twice. {how}"
            )
        columns[field] = column
    return columns


def check_columns(columns: object, schema: Schema) -> dict[str, str]:
    """Return ``columns=`` as a dictionary; empty if it is None."""
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for pair in columns.items() for name in pair):
        raise InputError(
            f"columns={short_repr(columns)}: must be a dictionary from our field names to your column names, such as "
            "{'question': 'q', 'answers': 'gold'}."
        )
    for field, column in columns.items():
        if field not in schema.fields:
            turned = "Write our field first, then your column."
            cure = turned if column in schema.fields else did_you_mean(field, [group[0] for group in schema.groups])
            raise InputError(f"columns: the schema {schema.name!r} has no field {field!r}. {cure}")
    return dict(columns)


def _field_names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(field for row in rows for field in row))


def rename_columns(rows: Sequence[Row], columns: Mapping[str, str], schema: Schema, source: str) -> list[Row]:
    """Rename the user's columns to the fields of the schema; no other name of a renamed field is read."""
    if not columns:
        return list(rows)
    there = _field_names(rows)
    for field, column in columns.items():
        if column not in there:
            raise DataError(
                f"columns={{{field!r}: {column!r}}}: {source} has no column {column!r}, or nothing stands in it. "
                f"{did_you_mean(column, there)}"
            )
    unread = set(columns.values()).union(*(group for group in schema.groups if set(group) & set(columns)))
    return [
        {key: value for key, value in row.items() if key not in unread}
        | {field: row[column] for field, column in columns.items() if column in row}
        for row in rows
    ]


def check_fields(rows: Sequence[Row], schema: Schema, source: str, *, own: bool = True) -> None:
    """Raise if no row has a question field, or none a field with answers."""
    there = _field_names(rows)
    missing = [group for group in schema.needed if not set(group) & set(there)]
    if not missing:
        return
    fits = [name for name, other in SCHEMAS.items() if all(set(group) & set(there) for group in other.needed)]
    wanted = {group[0]: "..." for group in missing}
    cure = f" Its fields fit: {', '.join(fits)}." if fits else f" Give columns={wanted}." if own else ""
    lacks = " and ".join(" or ".join(group) for group in missing)
    raise DataError(
        f"{source} is not of the schema {schema.name!r}: it lacks {lacks}. It has {join_words(sorted(there)) or 'no field'}.{cure}"
    )


def warn_of_cells(rows: Sequence[Row], schema: Schema, source: str) -> None:
    """Warn if an answer of a csv or tsv file seems to be several answers in one cell, or a mark for no answer."""
    cells = (next((row[field] for field in schema.answers if read_answers(row.get(field))), None) for row in rows)
    plain = [
        (i, cell.strip()) for i, cell in enumerate(cells, 1) if isinstance(cell, str) and read_answers(cell) == (cell.strip(),)
    ]
    found = [(i, cell) for i, cell in plain if "|" in cell or ";" in cell or cell.casefold() in _NOTHING]
    if found:
        number, cell = found[0]
        more = f" (and so in {len(found) - 1} more)" if len(found) > 1 else ""
        warn(
            f"{source}, row {number}{more}: the answer {shorten(cell)} is taken as one alias. If it is several, write a JSON list "
            'in the cell: ["Paris", "Paname"]. If there is none, leave the cell empty.'
        )
