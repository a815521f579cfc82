"""Read raw rows from a file, a pandas frame, a ``datasets.Dataset`` or a list of dictionaries."""

import codecs
import csv
import gzip
import io
import json
import zlib
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
    if not hasattr(table, "__len__"):
        raise DataError("The data set is streamed. Pass a list of its rows, such as list(dataset.take(1000)).")
    if hasattr(table, "to_list"):
        return _with_class_names(_arrow_rows(table.with_format("arrow")[:], "dataset"), table.features or {})
    raise DataError(f"Cannot read rows from {short_repr(table)}. Pass a pandas frame, a datasets.Dataset or a list of rows.")


def _with_class_names(rows: Rows, features: Mapping[str, Any]) -> Rows:
    """Replace the numbers of columns of the type ``ClassLabel`` by the names of their classes."""
    names = {column: kind.names for column, kind in features.items() if type(kind).__name__ == "ClassLabel"}
    return [{column: names[column][cell] if column in names and cell >= 0 else cell for column, cell in row.items()} for row in rows]


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
    rows = value.get("data", value.get("Data")) if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{source} must contain a list of objects, or an object with such a list under 'data'.")
    return rows


def _header(text: str, delimiter: str) -> list[str]:
    """Return the cells of the first line that is not empty; none if it cannot be read with this delimiter."""
    try:
        return next(filter(None, _reader(text, delimiter)), [])
    except csv.Error:
        return []


def _reader(text: str, delimiter: str) -> Any:
    # newline="" preserves line ends inside quoted cells; splitlines() would also split at characters such as U+2028.
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)


def _find_delimiter(text: str, usual: str) -> tuple[str, str]:
    """Return a table without Excel's line ``sep=;``, and its delimiter.

    The header decides: if it has one column with the usual delimiter of the format, and several with one other alone, that is it.
    """
    first, _, rest = text.partition("\n")
    line = first.strip()
    if len(line) == len("sep=,") and line.lower().startswith("sep="):
        return f"\n{rest}", line[-1]  # an empty line, so that errors name the lines of the file
    others = [one for one in DELIMITERS if one != usual and len(_header(text, one)) > 1]
    return text, others[0] if len(_header(text, usual)) == 1 and len(others) == 1 else usual


def parse_table(text: str, source: str, usual: str) -> Rows:
    """Parse a csv or tsv text; empty cells are missing fields, and columns without a name are not read.

    Args:
        text: Content of the file.
        source: Name of the file, for errors.
        usual: Delimiter, unless a line ``sep=;`` or the header names another one.
    """
    text, delimiter = _find_delimiter(text, usual)
    reader = _reader(text, delimiter)
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


DELIMITERS = (",", ";", "\t", "|")
"""Delimiters of tables."""
_TEXT_PARSERS: dict[str, Callable[[str, str], Rows]] = {
    ".jsonl": parse_jsonl,
    ".json": _parse_json,
    ".csv": lambda text, source: parse_table(text, source, ","),
    ".tsv": lambda text, source: parse_table(text, source, "\t"),
}
EXTENSIONS = (*_TEXT_PARSERS, ".parquet")
"""Extensions of data files; ``.gz`` may follow."""
_GZIP = ".gz"
# Most bytes of a file without its compression: a small file can hold any number of them.
_MOST_BYTES = 4 << 30


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


def file_stem(path: Path) -> str:
    """Return the name of a data file without its extensions: ``popqa`` of ``popqa.jsonl.gz``."""
    return Path(_without_gzip(path.name)).stem


def file_extension(path: Path) -> str:
    """Return the extension that selects the format, in lower case: ``.jsonl`` of ``popqa.jsonl.gz``."""
    return Path(_without_gzip(path.name)).suffix.lower()


def _without_gzip(name: str) -> str:
    return name[: -len(_GZIP)] if name.lower().endswith(_GZIP) else name


def _decompress(content: bytes, name: str) -> bytes:
    """Return the content of a gzip file. Raise DataError if it is damaged or has more than :data:`_MOST_BYTES`."""
    try:
        with gzip.open(io.BytesIO(content)) as file:
            found = file.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is not a readable gzip file ({one_line(error)}). Copy it again.") from error
    if len(found) > _MOST_BYTES:
        raise DataError(f"{name} has more than {_MOST_BYTES >> 30} GiB without compression. Unpack it, and keep the rows you need.")
    return found


def _decode(content: bytes, name: str) -> str:
    """Return a text in UTF-8, or in UTF-16 with a byte order mark, as Excel's "Unicode text" has it."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        kind = "UTF-16" if is_utf16 else "UTF-8"
        raise DataError(f"{name} is not {kind} (byte {error.start}). Save it as UTF-8.") from error
    if text[1:2] == "\0":
        raise DataError(f"{name} has null characters, as UTF-16 without a byte order mark. Save it as UTF-8.")
    return text


def file_rows(path: Path) -> Rows:
    """Read a local jsonl, json, csv, tsv or parquet file, selected by its extension; each may be compressed (``.csv.gz``)."""
    content, extension, name = _read_bytes(path), file_extension(path), one_line(path.name)
    if extension not in EXTENSIONS:
        raise DataError(f"{name}: the extension {path.suffix!r} is not supported. Pass one of {', '.join(EXTENSIONS)}.")
    if path.name.lower().endswith(_GZIP):
        content = _decompress(content, name)
    if not content:
        raise DataError(f"{name} is empty. It needs at least one row.")
    if extension == ".parquet":
        return _parse_parquet(content, name)
    text = _decode(content, name)
    return plain_rows(_TEXT_PARSERS[extension](text, name), name)
