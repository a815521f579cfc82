"""Parse csv and tsv texts whose delimiter may be another one than the format's."""

import csv
import io
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from anchorlens.display import one_line
from anchorlens.errors import DataError
from anchorlens.prompts.cells import field_key, unique_fields

DELIMITERS = (",", ";", "\t", "|")
"""Delimiters of tables."""

ONE_COLUMN = (
    "If another character than a comma, semicolon, tab or | delimits its columns, save it with"
    " commas."
)
"""Cure for a header that seems to have another delimiter."""

ONE_CELL = "Each line is quoted as one cell. Remove the quotation marks around the lines."
"""Cure for a header that is one quoted cell with delimiters."""


# Fewest words of a sentence, which is no name of a column, and of a question with its mark.
_SENTENCE_WORDS = 5
_QUESTION_WORDS = 3


class DelimitedTable(NamedTuple):
    """Rows of a csv or tsv text, their delimiter, and the cells of the first line."""

    rows: list[dict[str, Any]]
    delimiter: str
    header: tuple[str, ...]


def parse_table(text: str, source: str, usual: str, known: Collection[str] = ()) -> DelimitedTable:
    """Parse a csv or tsv text; empty cells are missing fields, and columns without a name are not
    read.

    Args:
        text: Content of the file.
        source: Name of the file, for errors.
        usual: Delimiter, unless a line ``sep=;`` or the header names another one.
        known: Names of columns, by which the delimiter of a header is recognised.

    Returns:
        The rows, their delimiter (with a blank if blanks stand before quotation marks), and the
        names of the columns.
    """
    text, delimiter = _find_delimiter(text, usual, known)
    is_spaced = _has_blanks_before_quotes(text, delimiter)
    reader = _reader(text, delimiter, is_spaced)
    rows: list[dict[str, Any]] = []
    try:
        header = next(filter(None, reader), [])
        if len(set(header)) < len(header) and looks_like_data(header):
            raise DataError(
                f"{source}: the first line looks like data. Add a line with the names of the"
                " columns."
            )
        unique_fields(((name, None) for name in header if name), source)
        for cells in filter(None, reader):
            if len(cells) != len(header):
                fix = f"Quote cells that contain {delimiter!r} or a line break"
                if len(header) == 1:
                    fix = "Write the names of the columns in the first line"
                elif len(cells) == len(header) + 1 and not rows:
                    fix += ", or name the first column if the rows have names"
                raise DataError(
                    f"{source}: line {reader.line_num} has {len(cells)} cells, but the header has"
                    f" {len(header)} columns. {fix}."
                )
            rows.append(
                {name: cell for name, cell in zip(header, cells, strict=True) if name and cell}
            )
    except csv.Error as error:
        problem = one_line(error)
        fix = 'Quote the cell, and double the quotation marks in it ("")'
        if "field limit" in problem:
            problem = f"a cell is longer than {csv.field_size_limit():,} characters"
            fix = "Close the quotation mark before it, if one is open, or save the file as jsonl"
        raise DataError(
            f"{source}: line {reader.line_num} cannot be read ({problem}). {fix}."
        ) from error
    if header and not rows:
        raise DataError(
            f"{source} has a header, but no rows. Write the names of the columns in its first line,"
            " and one row in each further line."
        )
    return DelimitedTable(rows, f"{delimiter} " if is_spaced else delimiter, tuple(header))


def looks_like_data(header: Sequence[str], rows: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Return whether the first line of a table seems to be a row, because the names are missing.

    A cell of it is a question or a sentence, or occurs again in its own column. A line that is
    repeated as a whole, as in joined files, is a header.
    """
    for name in header:
        n_words = len(name.split())
        fewest = _QUESTION_WORDS if name.rstrip().endswith("?") else _SENTENCE_WORDS
        if n_words >= fewest:
            return True
    for row in rows:
        n_equal = sum(row.get(name) == name for name in header if name)
        if 0 < n_equal < len(header):
            return True
    return False


def describe_missing_header(
    header: Sequence[str], examples: Sequence[Sequence[str]], delimiter: str
) -> str:
    """Return the cure of a table without names of columns.

    Args:
        header: Cells of the first line.
        examples: Headers with other numbers of columns. The one of as many columns is shown; the
            first names the columns that every table needs.
        delimiter: Delimiter of the table.
    """
    shown = next((one for one in examples if len(one) == len(header)), None)
    if shown is None:
        needed = " and ".join(examples[0])
        return (
            "The first line looks like data. Add a line with the names of the"
            f" {len(header)} columns, with {needed} among them."
        )
    names = (delimiter.strip() or ", ").join(shown)
    cure = f"Add a line with the names of the columns, such as {names}."
    return f"The first line looks like data. {cure}"


def _find_delimiter(text: str, usual: str, known: Collection[str]) -> tuple[str, str]:
    """Return a table without Excel's line ``sep=;``, and its delimiter.

    The header decides. It has the usual delimiter of the format, if that gives a known column. If
    not, it has the only other one that gives a known column; else the only one that gives several
    columns, where the usual one gives one.
    """
    first, _, rest = text.partition("\n")
    line = first.rstrip("\r").strip('" ')
    if len(line) == len("sep=,") and line.lower().startswith("sep="):
        return f"\n{rest}", line[-1]  # an empty line, so that errors name the lines of the file
    keys = {field_key(name) for name in known}
    headers = {one: _header(text, one) for one in (usual, *DELIMITERS)}
    with_known = [one for one, names in headers.items() if keys.intersection(names)]
    if usual not in with_known and len(with_known) == 1:
        return text, with_known[0]
    several = [one for one, names in headers.items() if len(names) > 1]
    if not with_known and len(several) == 1 and len(headers[usual]) == 1:
        return text, several[0]
    return text, usual


def _header(text: str, delimiter: str) -> list[str]:
    """Return the keys of the cells of the first line that is not empty; none if it cannot be read
    with this delimiter.
    """
    try:
        return [field_key(name) for name in next(filter(None, _reader(text, delimiter)), [])]
    except csv.Error:
        return []


def _has_blanks_before_quotes(text: str, delimiter: str) -> bool:
    """Return whether blanks stand between delimiters and the quotation marks of cells, which would
    be read as a part of these cells.
    """
    if not re.search(rf'{re.escape(delimiter)} +"', text):
        return False
    # A blank and a quotation mark may also be the first characters inside of a quoted cell.
    plain = _reader(text, delimiter)
    spaced = _reader(text, delimiter, is_spaced=True)
    try:
        for cells, others in zip(plain, spaced, strict=False):
            if [cell.lstrip(" ") for cell in cells] != [cell.lstrip(" ") for cell in others]:
                return True
    except csv.Error:
        pass
    return False


def _reader(text: str, delimiter: str, is_spaced: bool = False) -> Any:
    # newline="" preserves line ends inside quoted cells; splitlines() would also split at
    # characters such as U+2028.
    return csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        skipinitialspace=is_spaced,
        strict=True,
    )
