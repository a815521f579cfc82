"""Find the columns of a file or table of prompt pairs, and describe those that do not fit."""

import difflib
from collections.abc import Collection, Mapping, Sequence

from anchorlens.display import join_words, short_repr
from anchorlens.errors import DataError, InputError, did_you_mean
from anchorlens.prompts.cells import field_key
from anchorlens.prompts.column_names import (
    find_label_columns,
    find_unfit_layout,
    has_fields,
    suggest_columns,
)
from anchorlens.prompts.delimited import ONE_COLUMN, describe_missing_header, looks_like_data
from anchorlens.prompts.read_rows import RawData, Rows

_REQUIRED = ("clean", "corrupted")
ANSWER_FIELDS = ("answer", "wrong")
"""Columns of answers."""
_TEXTS = (*_REQUIRED, *ANSWER_FIELDS)
FIELDS = (*_TEXTS, "id", "group", "template", "segments", "alignment")
"""Columns that are read."""
# A name of `columns=` that is as near as this to a field is a misspelt field.
_MISSPELT = 0.75


def check_pair_mapping(columns: object) -> dict[str, str]:
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not _has_text_only(columns):
        raise InputError(
            f"columns={short_repr(columns)}: must be a dictionary from field names to column names,"
            " such as {'clean': 'prompt', 'corrupted': 'other'}.",
            argument="columns",
        )
    for field, column in columns.items():
        near = difflib.get_close_matches(field, FIELDS, n=1, cutoff=_MISSPELT)
        if field not in FIELDS and near:
            raise InputError(
                f"columns={{{field!r}: {column!r}}}: is nearly the field {near[0]!r}. Write"
                f" {near[0]!r}, or another name for a column that a metric reads.",
                argument="columns",
            )
        if field not in FIELDS and column in FIELDS:
            raise InputError(
                f"columns={{{field!r}: {column!r}}}: {column!r} is a field. Write the field first,"
                " then the column.",
                argument="columns",
            )
    return dict(columns)


def _has_text_only(columns: Mapping[object, object]) -> bool:
    """Return whether all keys and values of a dictionary are text."""
    names = (*columns, *columns.values())
    return all(isinstance(name, str) for name in names)


def check_pair_layout(raw: RawData, columns: Mapping[str, str]) -> None:
    """Raise DataError for a file of a published layout that has no prompt pairs."""
    names = (*raw.columns, *raw.unread)
    layout = find_unfit_layout(raw.rows, names)
    needed = [(field,) for field in _REQUIRED]
    if layout is not None and not has_fields(needed, columns, names, layout):
        raise DataError(layout.cure)


def rename_pair_columns(rows: Rows, columns: Mapping[str, str], raw: RawData) -> Rows:
    """Return rows with the names of fields; with ``columns=`` only the fields and named columns.

    A column that differs from a field by case or blanks is the field.
    """
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    for field, column in columns.items():
        if column in names:
            continue
        problem = f"there is no column {column!r}, or it is empty"
        fix = did_you_mean(column, (*names, *raw.unread))
        if column in raw.empty_columns:
            problem = f"column {column!r} is empty in all rows"
            fix = "Fill in its cells, or name another column."
        raise DataError(f"columns={{{field!r}: {column!r}}}: {problem}. {fix}", argument="columns")
    sources: dict[str, str] = dict(columns)
    for field in FIELDS:
        near = [name for name in names if field_key(name) == field]
        if field in names:
            near = [field]
        if field not in sources and len(near) == 1 and near[0] not in columns.values():
            sources[field] = near[0]
    if not columns:
        taken = set(sources.values())
        sources |= {name: name for name in names if name not in taken}
    renamed: Rows = []
    for row in rows:
        own = {field: row[column] for field, column in sources.items() if column in row}
        renamed.append(own)
    return renamed


def check_pair_columns(rows: Rows, extra: Sequence[str], raw: RawData, *, has_unread: bool) -> None:
    """Raise DataError if there is no row, or if a column is unknown or missing in all rows.

    Args:
        rows: Rows with the names of fields.
        extra: Names of columns for a metric.
        raw: Rows as they were read, with the names of all columns.
        has_unread: Whether columns that were not decoded count as unknown.
    """
    if not rows:
        raise DataError("There is no row. Give at least one pair.")
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    if has_unread:
        names |= dict.fromkeys(raw.unread)
    known = {*FIELDS, *extra}
    unknown = [name for name in names if name not in known]
    missing = [name for name in _REQUIRED if name not in names]
    if raw.delimiter and not known.intersection(names) and looks_like_data(raw.columns, raw.rows):
        examples = [_TEXTS[:n] for n in range(2, len(_TEXTS) + 1)]
        raise DataError(describe_missing_header(raw.columns, examples, raw.delimiter))
    if unknown:
        labels = find_label_columns(rows) | frozenset(raw.unread_numbers)
        raise DataError(_describe_unknown(unknown, missing, list(names), labels))
    if missing:
        name = missing[0]
        problem = "is missing"
        if name in map(field_key, raw.empty_columns):
            problem = "is empty in all rows"
        needed = " and ".join(_REQUIRED)
        has = f" It has {join_words(names)}." if names else ""
        raise DataError(f"Column {name!r} {problem}. Rows need {needed}.{has}")


def _describe_unknown(
    unknown: Sequence[str],
    missing: Sequence[str],
    names: Sequence[str],
    labels: Collection[str],
) -> str:
    """Return the problem of columns that are no field, with the cure.

    Args:
        unknown: Names that are no field.
        missing: Required fields without a column.
        names: Names of all columns.
        labels: Names of columns that hold no answers.
    """
    name = unknown[0]
    if len(names) == 1:
        first = "The first line of the file has the names of the columns."
        return f"Unknown column {name!r}. {first} {ONE_COLUMN}"
    near = did_you_mean(name, FIELDS)
    if not missing:
        is_near = difflib.get_close_matches(name, FIELDS, n=1, cutoff=_MISSPELT)
        key = name if name.isidentifier() and not is_near else "label"
        fix = f"keep it for a metric function with columns={{{key!r}: {name!r}}}."
        return f"Unknown column {name!r}. {near} Rename or remove it, or {fix}"
    free = [field for field in _TEXTS if field not in names]
    suggested = suggest_columns(free, unknown, labels)
    if set(missing) <= set(suggested):
        return f"Unknown column {name!r}. {near} Rename it, or pass columns={suggested}."
    needed = " and ".join(_REQUIRED)
    return (
        f"Unknown column {name!r}. Rows need {needed}, and it has {join_words(names)}. Rename the"
        " columns that hold these prompts, or name them in columns=."
    )
