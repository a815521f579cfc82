"""Decode the columns of a table of pyarrow or of a parquet file that are read, as far as they fit
into memory.

A small parquet file can hold any number of bytes: a text that repeats is stored once. Texts are
therefore read as numbers of a dictionary's texts, and their sizes are added up before they are
decoded. Lists that repeat are stored once as well, and how long they are is known only when they
are decoded: a process of its own, with bounded memory, decodes them first.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from anchorlens.display import join_words, one_line, short_repr
from anchorlens.errors import DataError
from anchorlens.prompts.cells import unique_fields
from anchorlens.prompts.decode_file import check_size, most_bytes

# Bytes of a number in a column, and of a row as a dictionary without its cells.
_NUMBER_BYTES = 8
_ROW_BYTES = 64
# Program that decodes columns of the parquet file in standard input with bounded memory. It fails
# for want of memory alone: another error is found again where the file is read.
_REHEARSAL = """
import json, os, resource, sys
most, columns = int(sys.argv[1]), json.loads(sys.argv[2])
sys.path[:] = sys.argv[3:]
import psutil, pyarrow.parquet
pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # the others reserve more than they use
content = sys.stdin.buffer.read()
limit = psutil.Process().memory_info().vms + most
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    pyarrow.parquet.read_table(pyarrow.BufferReader(content), columns=columns, use_threads=False)
except MemoryError:
    sys.exit(1)
except Exception:
    pass
os._exit(0)  # at the limit, the end of the interpreter may fail too
"""
# Types of numbers of less than 64 bits -> their scalars.
_NARROW = {pyarrow.float16(): np.float16, pyarrow.float32(): np.float32}
# Seconds of this program, its memory besides the values, and per byte of the values (measured: 5
# for lists of integers).
_REHEARSAL_SECONDS = 300
_REHEARSAL_BYTES = 1 << 28
_REHEARSAL_PER_BYTE = 5


def read_parquet(
    content: bytes, source: str, is_read: Callable[[str], bool]
) -> tuple[pyarrow.Table, tuple[str, ...], tuple[str, ...]]:
    """Read the columns of a parquet file that ``is_read`` selects.

    Returns:
        The columns, with texts as dictionaries, the names of the other columns (but those without
        any value, of the type null), and of these the names of columns of numbers.

    Raises:
        DataError: If the file is damaged, a name repeats, or the columns do not fit into memory.
    """
    try:
        # The schema and the number of rows alone. The sizes of columns are not read: pyarrow ends
        # the process where they are damaged (measured with 26.0).
        metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(content))
        schema = metadata.schema.to_arrow_schema()
        unique_fields(((name, None) for name in schema.names), source)
        selected = [name for name in schema.names if is_read(name)]
        leaves = [metadata.schema.column(number) for number in range(len(metadata.schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        n_rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
        check_size(n_rows * (_ROW_BYTES + _NUMBER_BYTES * len(selected)), source)
        nested = [name for name in selected if pyarrow.types.is_nested(schema.field(name).type)]
        if nested:
            _rehearse(content, nested, source)
        file = pyarrow.parquet.ParquetFile(
            pyarrow.BufferReader(content),
            page_checksum_verification=True,
            read_dictionary=[*dict.fromkeys(texts)],
        )
        table = file.read(columns=selected)
    except (pyarrow.ArrowException, OSError, ValueError, LookupError, OverflowError) as error:
        raise DataError(f"{source} is not a readable parquet file ({one_line(error)}).") from error
    others = (one for one in schema if one.name not in selected)
    unread = tuple(one.name for one in others if not pyarrow.types.is_null(one.type))
    return table, unread, select_numbers(schema, unread)


def select_numbers(schema: pyarrow.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of those columns that hold numbers or truth values."""
    kinds = {name: schema.field(name).type for name in names}
    return tuple(name for name, kind in kinds.items() if _is_number_or_truth(kind))


def _is_number_or_truth(kind: pyarrow.DataType) -> bool:
    """Return whether a type is of numbers or of truth values."""
    types = pyarrow.types
    return types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)


def _rehearse(content: bytes, columns: list[str], source: str) -> None:
    """Raise DataError if columns with lists do not fit into memory."""
    if sys.platform == "win32":  # no limit of memory
        return
    most = _REHEARSAL_BYTES + _REHEARSAL_PER_BYTE * most_bytes()
    command = [sys.executable, "-I", "-c", _REHEARSAL, str(most), json.dumps(columns), *sys.path]
    try:
        done = subprocess.run(
            command,
            input=content,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_REHEARSAL_SECONDS,
            check=False,
        )
        has_failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        has_failed = True
    if has_failed:
        raise DataError(
            f"{source} has more than {most / 1e9:,.2f} GB of data in {join_words(columns)}, or"
            " cannot be decoded. Keep the rows and columns that you need, or free memory."
        )


def decode_table(table: pyarrow.Table, source: str) -> Iterator[dict[str, Any]]:
    """Return the rows of a table.

    Raises:
        DataError: If the texts do not fit into memory, or a column cannot be converted.
    """
    columns = unique_fields(zip(table.column_names, table.columns, strict=True), source)
    cells: dict[str, list[Any]] = {}
    n_bytes = 0
    for name, column in columns.items():
        try:
            column.validate(full=True)
            n_bytes += sum(_bytes_of(chunk) for chunk in column.chunks)
            check_size(n_bytes, source)
            cells[name] = restore_digits(column.to_pylist(), pyarrow.list_(column.type))
        except (pyarrow.ArrowException, ValueError, OverflowError, LookupError) as error:
            raise DataError(
                f"{source}: column {short_repr(name)} cannot be"
                f" read ({one_line(error)}). Write it as text."
            ) from error
    if not cells:
        yield from ({} for _ in range(table.num_rows))
    names = list(cells)
    for row in zip(*cells.values(), strict=True):
        yield dict(zip(names, row, strict=True))


def restore_digits(value: Any, kind: "pyarrow.DataType | None") -> Any:
    """Return a value of pyarrow's type whose numbers of 16 and 32 bits have the shortest digits of
    their type, also inside lists and objects; pyarrow gives those of the next double.

    Args:
        value: Value as ``to_pylist`` gives it.
        kind: Type of the value. If None, the value stays as it is.

    >>> restore_digits([0.10000000149011612], pyarrow.list_(pyarrow.float32()))
    [0.1]
    """
    if value is None or kind is None or not _has_narrow(kind):
        return value
    types = pyarrow.types
    if isinstance(value, float):
        return float(str(_NARROW[kind](value)))
    if types.is_dictionary(kind):
        return restore_digits(value, kind.value_type)
    if types.is_struct(kind) and isinstance(value, Mapping):
        return {name: restore_digits(one, kind.field(name).type) for name, one in value.items()}
    if types.is_map(kind) and isinstance(value, list):
        own = kind.key_type, kind.item_type
        return [tuple(map(restore_digits, entry, own)) for entry in value]
    if isinstance(value, list):
        return [restore_digits(one, kind.value_type) for one in value]
    return value


def _has_narrow(kind: pyarrow.DataType) -> bool:
    """Return whether a type has floating point numbers of 16 or 32 bits."""
    if kind in _NARROW:
        return True
    if pyarrow.types.is_dictionary(kind):
        return _has_narrow(kind.value_type)
    if not pyarrow.types.is_nested(kind):
        return False
    return any(_has_narrow(kind.field(number).type) for number in range(kind.num_fields))


def _bytes_of(array: Any) -> int:
    """Return the bytes of the values of an array, where a text of a dictionary counts each time."""
    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        values = array.dictionary
        if not _is_text(values.type):
            return _NUMBER_BYTES * len(array)
        sizes = pyarrow.compute.call_function("binary_length", [values])
        return sum(size or 0 for size in sizes.take(array.indices).to_pylist())
    if pyarrow.types.is_struct(kind):
        return sum(map(_bytes_of, array.flatten()))
    if pyarrow.types.is_map(kind):
        return _bytes_of(array.keys) + _bytes_of(array.items)
    if pyarrow.types.is_nested(kind) and hasattr(array, "flatten"):
        return _NUMBER_BYTES * len(array) + _bytes_of(array.flatten())
    return int(array.nbytes)


def _is_text(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)
