"""Columns of the user's own: which of them are the fields of a schema, and what to say where one is missing or misspelt."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence

from anchorlens.errors import DataError, InputError, did_you_mean
from anchorlens.kinds import described, listed
from anchorlens.questions.schemas import SCHEMAS, Row, Schema, read_answers

# How alike a column and a field must be to be taken for a slip of the pen: "relaton" is, "relation_id" is not.
_ALIKE = 0.88
# How programs write that a cell holds nothing.
_NOTHING = {"nan", "<na>", "n/a", "null"}


def parse_columns(text: str) -> dict[str, str]:
    """``question=q,answers=gold`` as the dictionary that ``columns=`` takes: fields of the schema, and the columns they stand in.

    A column's name may hold an equals sign, but no comma.

    >>> parse_columns("question=q, answers=gold")
    {'question': 'q', 'answers': 'gold'}

    Raises:
        InputError: A part is not of this form, or a field stands twice.
    """
    how = "write FIELD=COLUMN, with commas between: question=q,answers=gold."
    if not isinstance(text, str):
        raise InputError(f"columns is {described(text)}; {how}")
    columns: dict[str, str] = {}
    for part in text.split(","):
        field, equals, column = (piece.strip() for piece in part.partition("="))
        if not (field and equals and column):
            raise InputError(f"columns: {part.strip()!r} is not a field and its column; {how}")
        if field in columns:
            raise InputError(f"columns: {field!r} stands twice; a field is read from one column.")
        columns[field] = column
    return columns


def check_columns(columns: object, schema: Schema) -> dict[str, str]:
    """``columns=`` as a dictionary; empty where it is left out.

    Raises:
        InputError: It is no dictionary of names, or the schema has no such field.
    """
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for pair in columns.items() for name in pair):
        raise InputError(
            "columns must be a dictionary from our field names to your column names, such as "
            f"{{'question': 'q', 'answers': 'gold'}}; got {described(columns)}."
        )
    for field, column in columns.items():
        if field in schema.fields:
            continue
        # All that is the wrong way round, so that nobody is told of one pair after the other.
        right = dict((c, f) if f not in schema.fields and c in schema.fields else (f, c) for f, c in columns.items())
        turned = f"Write {right}: our field first, then your column."
        cure = turned if column in schema.fields else did_you_mean(field, [group[0] for group in schema.groups])
        raise InputError(f"columns: the schema {schema.name!r} has no field {field!r}. {cure}")
    return dict(columns)


def _fields_there(rows: Iterable[Row]) -> list[str]:
    """Every field that a row has, in the order in which they come."""
    return list(dict.fromkeys(field for row in rows for field in row))


def renamed(rows: Sequence[Row], columns: Mapping[str, str], schema: Schema, source: str) -> list[Row]:
    """Rows with the user's columns under our names.

    A column that is named is no longer read under its own name, and no other name of the same field is read: with
    ``answers`` from ``gold``, a column ``answer`` is not what stands in for an empty ``gold``.

    Raises:
        DataError: There is no such column.
    """
    if not columns:
        return list(rows)
    there = _fields_there(rows)
    for field, column in columns.items():
        if column not in there:
            near = did_you_mean(column, there) if difflib.get_close_matches(column, there, cutoff=0.6) else ""
            raise DataError(
                f"columns={{{field!r}: {column!r}}}: {source} has no column {column!r}, or nothing stands in it. "
                f"{near or f'It has {listed(there)}.'}"
            )
    unread = set(columns.values()).union(*(group for group in schema.groups if set(group) & set(columns)))
    return [
        {key: value for key, value in row.items() if key not in unread}
        | {field: row[column] for field, column in columns.items() if column in row}
        for row in rows
    ]


def _alike(group: Sequence[str], columns: Iterable[str]) -> str | None:
    """The column that is a field in another case or spelling."""
    plain = {column.strip().casefold().replace(" ", "_").replace("-", "_"): column for column in columns}
    for field in group:
        near = (
            [field]
            if field in plain
            else difflib.get_close_matches(field, plain, n=1, cutoff=_ALIKE)
            if len(field) > 3
            else []
        )
        if near:
            return plain[near[0]]
    return None


def _either(group: Sequence[str]) -> str:
    """A field and its other names."""
    return f"{group[0]} (or {', '.join(group[1:])})" if len(group) > 1 else group[0]


def check_fields(rows: Sequence[Row], schema: Schema, source: str, *, own: bool = True) -> None:
    """Whether the rows have the fields without which nothing can be read.

    Args:
        rows: Rows, columns renamed.
        schema: What the fields should be.
        source: How messages name the rows.
        own: Whether ``columns=`` can help: not with a set of the hub.

    Raises:
        DataError: No row has a question field, or none a field with answers. The message names what is missing and what is there.
    """
    there = _fields_there(rows)
    missing = [group for group in schema.needed if not set(group) & set(there)]
    if not missing:
        return
    unused = [column for column in there if column not in schema.fields]
    alike = {group: _alike(group, unused) for group in missing}
    found = {_same_name(group, column): column for group, column in alike.items() if column is not None}
    fits = [name for name, other in SCHEMAS.items() if all(set(group) & set(there) for group in other.needed)]
    if own and found and (len(found) == len(missing) or not fits):
        cure = f"It has {' and '.join(map(repr, found.values()))}: give columns={found}."
    else:
        cure = f"It has {listed(sorted(there)) or 'no field'}."
        if fits:
            cure += f" Its fields fit: {', '.join(fits)}."
        elif own:
            cure += f" Say which column is what: columns={dict.fromkeys((group[0] for group in missing), '...')}."
    raise DataError(
        f"{source} is not of the schema {schema.name!r}: it lacks {' and '.join(_either(group) for group in missing)}. {cure}"
    )


def _same_name(group: Sequence[str], column: str) -> str:
    """Which name of a field a column's name is nearest to: ``Answer`` is ``answer``, not ``answers``."""
    return difflib.get_close_matches(column.strip().casefold(), group, n=1, cutoff=0.0)[0]


def misspelt_columns(rows: Sequence[Row], schema: Schema, source: str) -> str | None:
    """What to warn of where an optional field seems to be there under another spelling; None where none does."""
    there = _fields_there(rows)
    unused = [column for column in there if column not in schema.fields]
    absent = [group for group in schema.groups if group not in schema.needed and not set(group) & set(there)]
    alike = {group: _alike(group, unused) for group in absent}
    found = {_same_name(group, column): column for group, column in alike.items() if column is not None}
    if not found:
        return None
    what, meant = " and ".join(map(repr, found.values())), " and ".join(found)
    said = f"the column {what} is not read. If it is" if len(found) == 1 else f"the columns {what} are not read. If they are"
    return f"{source}: {said} {meant}, give columns={found}."


def packed_answers(rows: Sequence[Row], schema: Schema, source: str) -> str | None:
    """What to warn of where a cell of a csv or tsv file seems to hold several answers; None where none does."""
    found: list[tuple[int, str]] = []
    for number, row in enumerate(rows, start=1):
        cell = next((row[field] for field in schema.answers if read_answers(row.get(field))), None)
        if isinstance(cell, str) and ("|" in cell or ";" in cell) and read_answers(cell) == (cell.strip(),):
            found.append((number, cell.strip()))
    if not found:
        return None
    number, cell = found[0]
    more = f" (and so in {len(found) - 1} more)" if len(found) > 1 else ""
    parts = [part.strip() for part in cell.replace("|", ";").split(";") if part.strip()]
    meant = json.dumps(parts, ensure_ascii=False) if 1 < len(parts) <= 3 and len(cell) <= 60 else '["Paris", "Paname"]'
    shown = cell if len(cell) <= 60 else f"{cell[:60]}…"
    return (
        f"{source}, row {number}{more}: the answer {shown!r} is taken as one alias. "
        f"If it is several, write a JSON list in the cell: {meant}."
    )


def missing_marks(rows: Sequence[Row], schema: Schema, source: str) -> str | None:
    """What to warn of where a cell of a csv or tsv file seems to say that there is no answer; None where none does."""
    for number, row in enumerate(rows, start=1):
        cell = next((row[field] for field in schema.answers if read_answers(row.get(field))), None)
        if isinstance(cell, str) and cell.strip().casefold() in _NOTHING:
            return (
                f"{source}, row {number}: the answer {cell.strip()!r} is taken as it stands. If it means that there is none, leave "
                "the cell empty."
            )
    return None
