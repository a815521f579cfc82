"""Read raw rows from a file, a pandas frame, a ``datasets.Dataset`` or a list of dictionaries."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorlens.display import join_words, one_line, short_repr
from anchorlens.errors import DataError, did_you_mean
from anchorlens.prompts.cells import load_json, plain_rows, unique_fields

if TYPE_CHECKING:
    import pyarrow

Rows = list[dict[str, Any]]


def is_table(value: object) -> bool:
    """Return True if :func:`table_rows` reads or rejects a value."""
    return isinstance(value, Mapping | list | tuple) or (
        not isinstance(value, type) and (_is_frame(value) or hasattr(value, "column_names"))
    )


def _is_frame(value: object) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_dict")


def table_name(table: object) -> str:
    """Return the name of an unnamed table in outputs: ``list``, ``frame`` or ``dataset``."""
    return "list" if isinstance(table, list | tuple) else "frame" if _is_frame(table) else "dataset"


def table_rows(table: Any) -> Rows:
    """Read a pandas frame, a ``datasets.Dataset`` or a list of dictionaries."""
    if isinstance(table, Mapping):
        columns = any(isinstance(column, list | tuple) for column in table.values())
        fix = "Pass a list of rows, one dictionary per row" if columns else "Pass one of its splits"
        raise DataError(f"The table is a dictionary with the keys {join_words(table)}. {fix}.")
    if isinstance(table, list | tuple):
        wrong = next((i for i, row in enumerate(table, start=1) if not isinstance(row, Mapping)), None)
        if wrong is not None:
            raise DataError(f"list, row {wrong} is {short_repr(table[wrong - 1])}. Pass a list of dictionaries.")
        return plain_rows(table, "list")
    if hasattr(table, "to_dicts"):
        raise DataError(f"Cannot read rows from {short_repr(table)} of this library. Pass frame.to_dicts().")
    if _is_frame(table):
        unique_fields(((str(name), None) for name in table.columns), "frame")
        return plain_rows(table.to_dict("records"), "frame")
    if hasattr(table, "to_list"):
        return _arrow_rows(table.with_format("arrow")[:], "dataset")
    raise DataError(f"Cannot read rows from {short_repr(table)}. Pass a pandas frame, a datasets.Dataset or a list of rows.")


def _arrow_rows(table: "pyarrow.Table", source: str) -> Rows:
    """Return the rows of a table of pyarrow."""
    import pyarrow

    columns = unique_fields(zip(table.column_names, table.columns, strict=True), source)
    for name, column in columns.items():
        try:
            column.validate(full=True)
            columns[name] = column.to_pylist()
        except (pyarrow.ArrowException, ValueError, OverflowError, LookupError) as error:
            raise DataError(f"{source}: column {short_repr(name)} cannot be read ({one_line(error)}). Write it as text.") from error
    return plain_rows((dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)), source)


def _parse_parquet(content: bytes, source: str) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), page_checksum_verification=True)
        table = file.read()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{source} is not a readable parquet file ({one_line(error)}).") from error
    return _arrow_rows(table, source)


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
                raise DataError(f"{source}: line {number} is a {kind}, not an object. Write one object per line.")
    return rows


def _parse_json(text: str, source: str) -> Rows:
    try:
        value = load_json(text, source)
    except json.JSONDecodeError as error:
        hint = " If it has one object per line, name the file .jsonl." if error.msg == "Extra data" else ""
        raise DataError(f"{source}: bad JSON at line {error.lineno}, column {error.colno} ({error.msg}).{hint}") from error
    rows = value.get("data") if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{source} must contain a list of objects, or an object with such a list under 'data'.")
    return rows


def parse_table(text: str, source: str, delimiter: str) -> Rows:
    """Parse a csv or tsv text; empty cells are missing fields, and columns without a name are not read."""
    # newline="" preserves line ends inside quoted cells; splitlines() would also split at characters such as U+2028.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: Rows = []
    try:
        header = next(filter(None, reader), [])
        unique_fields(((name, None) for name in header if name), source)
        for cells in filter(None, reader):
            if len(cells) != len(header):
                fix = f"Quote cells that contain {delimiter!r} or a line break"
                raise DataError(
                    f"{source}: line {reader.line_num} has {len(cells)} cells, but the header has {len(header)} columns. {fix}."
                )
            rows.append({name: cell for name, cell in zip(header, cells, strict=True) if name and cell})
    except csv.Error as error:
        fix = 'Quote the cell, and double the quotation marks in it ("")'
        raise DataError(f"{source}: line {reader.line_num} cannot be read ({one_line(error)}). {fix}.") from error
    return rows


_TEXT_PARSERS: dict[str, Callable[[str, str], Rows]] = {
    ".jsonl": parse_jsonl,
    ".json": _parse_json,
    ".csv": lambda text, source: parse_table(text, source, ","),
    ".tsv": lambda text, source: parse_table(text, source, "\t"),
}
EXTENSIONS = (*_TEXT_PARSERS, ".parquet")


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file; raise DataError if it cannot be read."""
    shown = one_line(path)
    try:
        if path.is_dir():
            raise DataError(f"{shown} is a directory. Pass one file ({', '.join(EXTENSIONS)}).")
        return path.read_bytes()
    except FileNotFoundError as error:
        near = [other.name for other in path.parent.iterdir() if other.suffix in EXTENSIONS] if path.parent.is_dir() else []
        fix = did_you_mean(path.name, map(one_line, near)) if near else "Check the path."
        raise DataError(f"No such file: {shown}. {fix}") from error
    except (OSError, ValueError) as error:  # ValueError: a null character or half of a character
        raise DataError(
            f"{shown} cannot be read ({getattr(error, 'strerror', None) or one_line(error)}). Check the path."
        ) from error


def file_rows(path: Path) -> Rows:
    """Read a local jsonl, json, csv, tsv or parquet file, selected by its extension."""
    content, extension, name = _read_bytes(path), path.suffix.lower(), one_line(path.name)
    if extension not in EXTENSIONS:
        raise DataError(f"{name}: the extension {path.suffix!r} is not supported. Pass one of {', '.join(EXTENSIONS)}.")
    if not content:
        raise DataError(f"{name} is empty. It needs at least one row.")
    if extension == ".parquet":
        return _parse_parquet(content, name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 (byte {error.start}). Save it as UTF-8.") from error
    return plain_rows(_TEXT_PARSERS[extension](text, name), name)
