"""Read raw rows from a file, a pandas frame, a ``datasets.Dataset`` or a list of dictionaries."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from anchorlens.display import join_words, one_line, short_repr
from anchorlens.errors import DataError
from anchorlens.prompts.cells import field_key, is_narrow, load_json, plain_rows, unique_fields
from anchorlens.prompts.class_names import name_classes, read_features
from anchorlens.prompts.decode_file import GZIP, decode, decompress, read_bytes
from anchorlens.prompts.delimited import parse_table

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class RawData:
    """Rows of a file or table.

    Attributes:
        rows: The rows, without empty fields.
        reading: Properties of the source that were recognised and are recorded: ``delimiter`` and
            ``encoding`` of a file, if they are not the format's, and ``stream``.
        unread: Names of columns with values that were not decoded, because the schema does not name
            them.
        unread_numbers: Names of the unread columns that hold numbers or truth values.
        columns: Names of the columns that were read, in the order of the source, with those that
            are empty in all rows. Empty for a stream.
        delimiter: Delimiter of a csv or tsv file; empty for other sources.
    """

    rows: Rows
    reading: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    unread_numbers: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    delimiter: str = ""

    @property
    def empty_columns(self) -> tuple[str, ...]:
        """Names of the columns without a value in any row."""
        filled: set[str] = set()
        for row in self.rows:
            filled.update(row)
        return tuple(name for name in self.columns if name and name not in filled)


def is_table(value: object) -> bool:
    """Return True if :func:`read_table` reads or rejects a value."""
    return isinstance(value, Mapping | list | tuple) or (
        not isinstance(value, type) and (_is_frame(value) or hasattr(value, "column_names"))
    )


def _is_frame(value: object) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_dict")


def table_name(table: object) -> str:
    """Return the name of an unnamed table in outputs: ``list``, ``frame`` or ``dataset``."""
    return "list" if isinstance(table, list | tuple) else "frame" if _is_frame(table) else "dataset"


def any_column(_name: str) -> bool:
    """Return True, for tables of which every column is read."""
    return True


def column_filter(known: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a column has one of these names, in any case."""
    names = {name for name in known if isinstance(name, str)}
    keys = {field_key(name) for name in names}
    return lambda name: name in names or field_key(name) in keys


def read_table(
    table: Any, limit: int | None = None, is_read: Callable[[str], bool] = any_column
) -> RawData:
    """Read a pandas frame, a ``datasets.Dataset`` or a list of dictionaries.

    Args:
        table: The table.
        limit: Number of rows that are read of a streamed data set, from the first.
        is_read: Function of a column's name that selects the columns of a ``datasets.Dataset``.
    """
    if is_streamed(table):
        return RawData(_read_stream(table, limit), {"stream": f"first {limit} rows"})
    if isinstance(table, Mapping) or not hasattr(table, "select_columns"):
        rows = _table_rows(table)
        is_rows = isinstance(table, list | tuple | Mapping)
        names = _names_of(table) if is_rows else table.columns
        return RawData(rows, columns=tuple(map(str, names)))
    from anchorlens.prompts.arrow_columns import decode_table, select_numbers

    selected = [name for name in table.column_names if is_read(name)]
    arrow = table.select_columns(selected).with_format("arrow")[:]
    # Without a column the table of arrow has no rows either.
    decoded = decode_table(arrow, "dataset") if selected else [{} for _ in range(len(table))]
    rows = plain_rows(decoded, "dataset")
    unread = tuple(name for name in table.column_names if name not in selected)
    named = name_classes(rows, _features_of(table), "dataset")
    return RawData(
        named,
        unread=unread,
        unread_numbers=select_numbers(table.features.arrow_schema, unread),
        columns=tuple(selected),
    )


def _names_of(rows: Iterable[Mapping[Any, Any]]) -> list[Any]:
    """Return the names of the fields of all rows, in order of first occurrence."""
    names: dict[Any, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    return list(names)


def _has_splits(table: Mapping[Any, Any]) -> bool:
    """Return whether the values of a dictionary are tables or lists of rows."""
    return all(_is_split(one) for one in table.values())


def _is_split(value: object) -> bool:
    """Return whether a value is a table or a list of rows."""
    if isinstance(value, list) and value:
        return isinstance(value[0], Mapping)
    return _is_frame(value) or hasattr(value, "column_names")


def _table_rows(table: Any) -> Rows:
    """Return the rows of a pandas frame or a list of dictionaries; refuse other tables."""
    if isinstance(table, Mapping):
        fix = (
            "Pass one of its splits"
            if _has_splits(table)
            else "Pass a list of rows, one dictionary per row"
        )
        raise DataError(f"The table is a dictionary with the keys {join_words(table)}. {fix}.")
    if isinstance(table, list | tuple):
        for number, row in enumerate(table, start=1):
            if not isinstance(row, Mapping):
                raise DataError(
                    f"list, row {number} is {short_repr(row)}. Pass a list of dictionaries."
                )
        return plain_rows(table, "list")
    if hasattr(table, "to_dicts"):
        raise DataError(
            f"Cannot read rows from {short_repr(table)} of this library. Pass frame.to_dicts()."
        )
    if _is_frame(table):
        unique_fields(((str(name), None) for name in table.columns), "frame")
        return plain_rows(_frame_rows(table), "frame")
    raise DataError(
        f"Cannot read rows from {short_repr(table)}."
        " Pass a pandas frame, a datasets.Dataset or a list of rows."
    )


def _frame_rows(frame: Any) -> list[dict[Any, Any]]:
    """Return the rows of a pandas frame; ``to_dict`` alone would turn numbers of 32 bits into
    others of 64.
    """
    rows = frame.to_dict("records")
    for name, dtype in getattr(frame, "dtypes", {}).items():
        own = getattr(dtype, "numpy_dtype", dtype)  # that of a nullable type
        if is_narrow(own):
            cells = frame[name].to_numpy(dtype=own, na_value=math.nan)
        elif str(dtype) == "object":
            cells = frame[name].to_numpy()
        else:
            continue
        for row, cell in zip(rows, cells, strict=True):
            if is_narrow(getattr(cell, "dtype", None)):
                row[name] = cell
    return rows


def is_streamed(table: object) -> bool:
    """Return whether a data set is read row by row, without a known length."""
    return hasattr(table, "column_names") and not hasattr(table, "__len__")


def _read_stream(table: Any, limit: int | None) -> Rows:
    """Return the first ``limit`` rows of a streamed data set."""
    if limit is None:
        raise DataError("The data set is streamed. Pass limit= to read its first rows.")
    from anchorlens.prompts.arrow_columns import restore_digits

    features = getattr(table, "features", None)
    types = {} if features is None else {one.name: one.type for one in features.arrow_schema}
    try:
        given = [
            {name: restore_digits(cell, types.get(name)) for name, cell in row.items()}
            for row in islice(table, limit)
        ]
        rows = plain_rows(given, "dataset")
    except (OSError, ValueError) as error:
        raise DataError(
            f"The data set cannot be streamed ({one_line(error)}). Download it, or pass a local"
            " file."
        ) from error
    return name_classes(rows, _features_of(table), "dataset")


def _features_of(table: Any) -> object:
    """Return the types of the columns of a data set as plain values; None if they are not known."""
    features = getattr(table, "features", None)
    return None if features is None else features.to_dict()


def _parse_parquet(content: bytes, source: str, is_read: Callable[[str], bool]) -> RawData:
    from anchorlens.prompts.arrow_columns import decode_table, read_parquet

    table, unread, numbers = read_parquet(content, source, is_read)
    rows = plain_rows(decode_table(table, source), source)
    features = read_features(table.schema.metadata)
    named = name_classes(rows, features, source)
    return RawData(named, unread=unread, unread_numbers=numbers, columns=tuple(table.column_names))


def parse_jsonl(text: str, source: str) -> Rows:
    """Parse a jsonl text; blank lines are skipped."""
    rows: Rows = []
    # splitlines() would also split at characters that JSON allows in strings.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append(load_json(line, f"{source}, line {number}"))
            except json.JSONDecodeError as error:
                problem = f"bad JSON at line {number}, column {error.colno} ({error.msg})"
                raise DataError(f"{source}: {problem}. Write one object per line.") from error
            if not isinstance(rows[-1], dict):
                kind = type(rows[-1]).__name__
                raise DataError(
                    f"{source}: line {number} is a {kind}, not an object."
                    " Write one object per line, or name a file with one list .json."
                )
    return rows


def _parse_json(text: str, source: str) -> Rows:
    try:
        value = load_json(text, source)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        message = f"{source}: bad JSON at {place} ({error.msg})."
        if error.msg == "Extra data":
            message += " If it has one object per line, name the file .jsonl."
        raise DataError(message) from error
    rows = value.get("data", value.get("Data")) if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        found = f" It has the keys {join_words(value)}." if isinstance(value, dict) else ""
        raise DataError(
            f"{source} must contain a list of objects, or an object with such a list under 'data'."
            f"{found}"
        )
    return rows


_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_TEXT_PARSERS: dict[str, Callable[[str, str], Rows]] = {".jsonl": parse_jsonl, ".json": _parse_json}
EXTENSIONS = (*_TEXT_PARSERS, *_DELIMITERS, ".parquet")
"""Extensions of data files; ``.gz`` may follow."""
# Extension of another kind of file -> cure.
_OTHER_FILES = {
    ".txt": "If its columns are separated by tabs, as Excel's Unicode text, name it .tsv",
    ".ndjson": "Name it .jsonl",
    ".tab": "Name it .tsv",
    ".arrow": "Save it as parquet",
    ".feather": "Save it as parquet",
    ".xlsx": "Save the sheet as csv",
    ".xls": "Save the sheet as csv",
    ".ods": "Save the sheet as csv",
    ".zip": "Unpack it",
    ".bz2": "Unpack it, or compress it by gzip",
    ".xz": "Unpack it, or compress it by gzip",
    ".zst": "Unpack it, or compress it by gzip",
}


def file_stem(path: Path) -> str:
    """Return the name of a data file without its extensions: ``popqa`` of ``popqa.jsonl.gz``."""
    return Path(_without_gzip(path.name)).stem


def file_extension(path: Path) -> str:
    """Return the extension that selects the format, in lower case: ``.jsonl`` of
    ``popqa.jsonl.gz``.
    """
    return Path(_without_gzip(path.name)).suffix.lower()


def _without_gzip(name: str) -> str:
    return name[: -len(GZIP)] if name.lower().endswith(GZIP) else name


def read_file(
    path: Path, known: Collection[str] = (), is_read: Callable[[str], bool] = any_column
) -> RawData:
    """Read a local jsonl, json, csv, tsv or parquet file, selected by its extension; each may be
    compressed (``.csv.gz``).

    Args:
        path: Path of the file.
        known: Names of columns, by which the delimiter of a csv or tsv file is recognised.
        is_read: Function of a column's name that selects the columns of a parquet file.
    """
    try:
        return _read_file(path, known, is_read)
    except MemoryError as error:
        raise DataError(
            f"{one_line(path)} does not fit into the free memory. Keep the rows and columns that"
            " you need, or free memory."
        ) from error


def _read_file(path: Path, known: Collection[str], is_read: Callable[[str], bool]) -> RawData:
    content = read_bytes(path, EXTENSIONS)
    extension = file_extension(path)
    name = one_line(path.name)
    if extension not in EXTENSIONS:
        fix = _OTHER_FILES.get(extension, "")
        raise DataError(
            f"{name}: the extension {path.suffix!r} is not supported."
            f" Pass one of {', '.join(EXTENSIONS)}.{f' {fix}.' if fix else ''}"
        )
    if path.name.lower().endswith(GZIP):
        content = decompress(content, name)
    if not content:
        raise DataError(f"{name} is empty. It needs at least one row.")
    if extension == ".parquet":
        return _parse_parquet(content, name, is_read)
    text, encoding = decode(content, name)
    reading: dict[str, str] = {}
    if encoding != "utf-8":
        reading["encoding"] = encoding
    if extension in _TEXT_PARSERS:
        rows = _TEXT_PARSERS[extension](text, name)
        return RawData(plain_rows(rows, name), reading, columns=tuple(_names_of(rows)))
    usual = _DELIMITERS[extension]
    table = parse_table(text, name, usual, known)
    if table.delimiter != usual:
        reading["delimiter"] = table.delimiter
    return RawData(
        plain_rows(table.rows, name), reading, columns=table.header, delimiter=table.delimiter
    )
