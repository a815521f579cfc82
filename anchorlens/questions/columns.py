"""Read the columns of the user's tables: ``columns=``, ``answers_sep=``, and checks of the required
fields.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anchorlens.display import join_words, one_line, short_repr, shorten
from anchorlens.errors import DataError, InputError, did_you_mean
from anchorlens.prompts.cells import field_key, unpack
from anchorlens.prompts.delimited import DELIMITERS, ONE_CELL, ONE_COLUMN
from anchorlens.questions.schemas import SCHEMAS, Row, Schema, number_rows, read_answers
from anchorlens.warn import warn

_TABLE = re.compile(r"\.[ct]sv(\.gz)?$", re.IGNORECASE)
# Marks of a missing value, and errors of spreadsheets.
_MISSING = {
    *("nan", "<na>", "n/a", "null", "none"),
    *("#n/a", "#ref!", "#value!", "#name?", "#div/0!", "#num!", "#null!"),
}
# What may separate several answers of a text.
_SEPARATORS = ("|", ";", "\uff1b", "\n", "\t", " / ", "<br>")
# The same, if most answers have it: "Paris, France" is one answer. Commas in numbers and dates do
# not count.
_WEAK_SEPARATORS = {",": re.compile(r"(?<!\d),(?!\s*\d)"), " or ": re.compile(" or ")}
# A text in brackets with several parts that is neither JSON nor a list of Python.
_BARE_LIST = re.compile(r"\"?[\[{(].*[,\"'].*[\]})]\"?", re.DOTALL)
# A text without one of these characters or words needs no closer look.
_SUSPECT = re.compile(r"[^A-Za-z0-9 .'-]| or ")
_ENTITY = re.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|[a-zA-Z]{2,8});")
_SPLIT = "is read as one alias. Pass answers_sep={!r} to split it."
_SPLIT_IF = "is read as one alias. Pass answers_sep={!r} if it lists several."


def parse_columns(text: str) -> dict[str, str]:
    """Parse ``question=q,answers=gold`` into the dictionary of ``columns=``: field of the schema ->
    column.

    A column's name may contain an equals sign, but no comma.

    >>> parse_columns("question=q, answers=gold")
    {'question': 'q', 'answers': 'gold'}
    """
    columns: dict[str, str] = {}
    for part in text.split(",") if isinstance(text, str) else ("",):
        field, equals, column = (piece.strip() for piece in part.partition("="))
        if not (field and equals and column) or field in columns:
            raise InputError(
                f"columns={short_repr(text)}: {part.strip()!r} is not FIELD=COLUMN, or repeats a"
                " field. Write FIELD=COLUMN, separated by commas: 'question=q,answers=gold'.",
                argument="columns",
            )
        columns[field] = column
    return columns


def check_columns(columns: object, schema: Schema) -> dict[str, str]:
    """Return ``columns=`` as a dictionary, empty if None; raise InputError if it is invalid."""
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not _all_text([*columns, *columns.values()]):
        raise InputError(
            f"columns={short_repr(columns)}: must be a dictionary from field names to column names,"
            " such as {'question': 'q', 'answers': 'gold'}.",
            argument="columns",
        )
    for field, column in columns.items():
        if field not in schema.fields:
            if column in schema.fields:
                fix = "Write the field first, then the column."
            else:
                fix = did_you_mean(field, [group[0] for group in schema.groups])
            raise InputError(
                f"columns={{{field!r}: {column!r}}}: the schema {schema.name!r} has no field"
                f" {field!r}. {fix}",
                argument="columns",
            )
    return dict(columns)


def _all_text(names: Iterable[object]) -> bool:
    return all(isinstance(name, str) for name in names)


def _field_names(rows: Iterable[Row]) -> list[str]:
    """Return the fields of all rows, in order of first occurrence."""
    names: dict[str, Any] = {}
    for row in rows:
        names.update(row)
    return list(names)


def _has(names: Iterable[str], groups: Iterable[Iterable[str]]) -> bool:
    """Return True if every required field has one of its names among ``names``."""
    return all(set(group) & set(names) for group in groups)


def rename_columns(
    rows: Sequence[Row],
    columns: Mapping[str, str],
    schema: Schema,
    source: str,
    unread: Sequence[str] = (),
) -> list[Row]:
    """Rename the user's columns to the fields of the schema.

    Other columns with a name of a renamed field are removed, so that a field has one meaning.
    ``unread`` are the names of columns that were not read, for the error of an unknown column.
    """
    if not columns:
        return list(rows)
    names = _field_names(rows)
    for field, column in columns.items():
        if column not in names:
            raise DataError(
                f"columns={{{field!r}: {column!r}}}: {source} has no column {column!r}, or it is"
                f" empty. {did_you_mean(column, map(one_line, (*names, *unread)))}",
                argument="columns",
            )
    replaced = set(columns.values())
    for group in schema.groups:
        if set(group) & set(columns):
            replaced |= set(group)
    renamed: list[Row] = []
    for row in rows:
        own = {key: value for key, value in row.items() if key not in replaced}
        for field, column in columns.items():
            if column in row:
                own[field] = row[column]
        renamed.append(own)
    return renamed


def match_names(rows: Sequence[Row], schema: Schema) -> list[Row]:
    """Rename required columns that differ from their field by case or blanks, such as
    ``Question``, and ARC's ``answerKey``.
    """
    names = _field_names(rows)
    renames: dict[str, str] = {}
    for group in schema.needed:
        keys = {field_key(field): field for field in group}
        if "answer" in keys:
            keys["answerkey"] = "answer"
        near = [name for name in names if field_key(name) in keys]
        if not set(group) & set(names) and len(near) == 1:
            renames[near[0]] = keys[field_key(near[0])]
    if not renames:
        return list(rows)
    return [{renames.get(name, name): cell for name, cell in row.items()} for row in rows]


def check_fields(
    rows: Sequence[Row],
    schema: Schema,
    source: str,
    *,
    own: bool = True,
    unread: Sequence[str] = (),
) -> None:
    """Raise DataError if a required field is missing in all rows.

    The message suggests ``columns=`` if the rows are the user's own (``own``), and lists the
    columns that were not read (``unread``) as well.
    """
    names = [*_field_names(rows), *unread]
    missing = [group for group in schema.needed if not _has(names, [group])]
    if not missing:
        return
    needed = {group[0]: "..." for group in missing}
    fix = f" Pass columns={needed}." if own else ""
    fits = [name for name, other in SCHEMAS.items() if _has(names, other.needed)]
    if fits:
        fix = f" Its fields fit: {', '.join(fits)}."
        if own:
            fix += f" Pass dataset_name={fits[0]!r}."
    if own and len(missing) == len(schema.needed) and _TABLE.search(source):
        fix += " The first line of the file has the names of the columns."
    if own and len(names) == 1 and re.search(r"[^\w\s]", names[0]):
        fix = f" {ONE_CELL if set(names[0]) & set(DELIMITERS) else ONE_COLUMN}"
    lacks = " and ".join(" or ".join(group) for group in missing)
    raise DataError(
        f"{source} is not of the schema {schema.name!r}: it lacks {lacks}."
        f" It has {join_words(sorted(names)) or 'no field'}.{fix}"
    )


def _plain_answer(value: object, where: str) -> str:
    """Return an answer that is written as plain text, which may hold several aliases.

    Lists, JSON and missing values give an empty text.
    """
    return value.strip() if isinstance(value, str) and unpack(value, where) is value else ""


def split_answers(rows: Sequence[Row], schema: Schema, separator: object, source: str) -> list[Row]:
    """Split plain-text answers at a separator into lists of aliases; lists and JSON stay as they
    are.
    """
    if separator is None:
        return list(rows)
    if not isinstance(separator, str) or not separator:
        raise InputError(
            f"answers_sep={short_repr(separator)}:"
            " must be a non-empty string, such as ';', or None.",
            argument="answers_sep",
        )
    split: list[Row] = []
    for where, row in number_rows(rows, source):
        aliases: dict[str, list[str]] = {}
        for field in schema.answers:
            if separator in _plain_answer(row.get(field), where):
                aliases[field] = row[field].split(separator)
        split.append({**row, **aliases})
    return split


def warn_of_two_answers(rows: Sequence[Row], schema: Schema, source: str) -> None:
    """Warn once if rows have two columns of answers, and the one that is not read has others."""
    for where, row in number_rows(rows, source):
        names = [name for name in schema.answers if name in row]
        if len(names) < 2:
            continue
        read, ignored = names[:2]
        if set(read_answers(row[ignored], where)) - set(read_answers(row[read], where)):
            warn(
                f"{where}: {read!r} is read, but {ignored!r} has another answer. Remove the column"
                f" that is not meant, or pass columns={{'answers': ...}}."
            )
            return


def warn_of_cells(rows: Sequence[Row], schema: Schema, source: str) -> None:
    """Warn of questions and answers of a file or table that seem to have another meaning: several
    answers in one text, a missing value, a formula, HTML, or a text that was decoded wrongly.

    One warning per kind names the first cell.
    """
    found: dict[str, list[str]] = {}
    weak: dict[str, list[str]] = {separator: [] for separator in _WEAK_SEPARATORS}
    n_answers = 0
    for where, row in number_rows(rows, source):
        field = schema.answer_field(row)
        answer = None if field is None else row[field]
        cell = _plain_answer(answer, where)
        others = {"question": [row.get("question")], "answer": answer}
        for name, texts in others.items():
            for text in texts if isinstance(texts, list) else ():
                if isinstance(text, str) and (doubt := _find_coding(text)):
                    found.setdefault(doubt, []).append(f"{where}: the {name} {shorten(text)}")
        n_answers += bool(cell)
        if not _SUSPECT.search(cell) and cell.casefold() not in _MISSING:
            continue
        shown = f"{where}: the answer {shorten(cell)}"
        if doubt := _find_doubt(cell):
            found.setdefault(doubt, []).append(shown)
        for separator, pattern in _WEAK_SEPARATORS.items():
            if not doubt and pattern.search(cell):
                weak[separator].append(shown)
    for separator, cells in weak.items():
        if len(cells) > 1 and 2 * len(cells) > n_answers:
            found[_SPLIT_IF.format(separator)] = cells
    for doubt, cells in found.items():
        first, _, rest = cells[0].partition(": the ")
        more = f" (and {len(cells) - 1} more)" if len(cells) > 1 else ""
        warn(f"{first}{more}: the {rest} {doubt}")


def _find_doubt(cell: str) -> str:
    """Return what an answer may mean instead, and the cure; empty for a plain answer."""
    if cell.casefold() in _MISSING:
        return "is read as one alias. Leave the cell empty if there is no answer."
    if cell.startswith("="):
        return "is a formula of a spreadsheet. Save the sheet with its values."
    if doubt := _find_coding(cell):
        return doubt
    if _BARE_LIST.fullmatch(cell):
        return 'is read as one alias. Write several as JSON: ["Rome", "Roma"].'
    separator = next((one for one in _SEPARATORS if one in cell), "")
    return _SPLIT.format(separator) if separator else ""


def _find_coding(cell: str) -> str:
    """Return how a text seems to be coded, and the cure; empty for a plain text."""
    if "&" in cell and _ENTITY.search(cell):
        return "has characters of HTML (&amp;). Replace them (html.unescape)."
    if not cell.isascii() and _is_decoded_wrongly(cell):
        return "is UTF-8 that was read as Latin-1. Read its source as UTF-8."
    return ""


def _is_decoded_wrongly(text: str) -> bool:
    """Return whether the bytes of a text in UTF-8 were read as Windows-1252 or Latin-1."""
    for encoding in ("cp1252", "latin-1"):
        try:
            text.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
        return True
    return False
