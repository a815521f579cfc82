"""Read the columns of the user's tables: ``columns=``, ``answers_sep=``, and checks of the required
fields.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anchorlens.display import join_words, one_line, short_repr, shorten, warn
from anchorlens.errors import DataError, InputError, did_you_mean
from anchorlens.prompts.alias_cells import AliasCells, warn_of_doubts
from anchorlens.prompts.cells import field_key, unpack
from anchorlens.prompts.column_names import (
    find_label_columns,
    find_unfit_layout,
    has_fields,
    suggest_columns,
)
from anchorlens.prompts.delimited import (
    DELIMITERS,
    ONE_CELL,
    ONE_COLUMN,
    describe_missing_header,
    looks_like_data,
)
from anchorlens.prompts.doubtful_cells import find_coding, find_doubt, find_line_ends
from anchorlens.prompts.read_rows import RawData
from anchorlens.questions.choices import is_choice_column
from anchorlens.questions.schemas import SCHEMAS, Row, Schema, number_rows, read_answers

_TABLE = re.compile(r"\.[ct]sv(\.gz)?$", re.IGNORECASE)
_TRUTH_VALUES = frozenset(("true", "false"))
# Labels of choices, as the names of their columns.
_LETTERS = "ABCDEFGHIJ"
# Texts that stand for no answer in a question file.
_BLANKS = frozenset(("-", "--", "\u2013", "\u2014", "?", "??", "...", "\u2026"))
# Fields beside question and answers in which a mark of a missing value would be a name.
_NAMED_FIELDS = ("relation", "prop", "cluster", "subject", "subj")


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
    raw: RawData,
) -> list[Row]:
    """Rename the user's columns to the fields of the schema.

    Other columns with a name of a renamed field, in any case, are removed, so that a field has one
    meaning.
    ``raw`` has the names of all columns, for the error of an unknown one.
    """
    if not columns:
        return list(rows)
    names = _field_names(rows)
    for field, column in columns.items():
        if column in names:
            continue
        problem = f"{source} has no column {column!r}, or it is empty"
        fix = did_you_mean(column, map(one_line, (*names, *raw.unread)))
        if column in raw.empty_columns:
            problem = f"column {column!r} of {source} is empty in all rows"
            fix = "Fill in its cells, or name another column."
        raise DataError(f"columns={{{field!r}: {column!r}}}: {problem}. {fix}", argument="columns")
    replaced = set(columns.values())
    for group in schema.groups:
        if set(group) & set(columns):
            keys = {field_key(field) for field in group}
            replaced |= {name for name in names if field_key(name) in keys}
    renamed: list[Row] = []
    for row in rows:
        own = {key: value for key, value in row.items() if key not in replaced}
        for field, column in columns.items():
            if column in row:
                own[field] = row[column]
        renamed.append(own)
    return renamed


def match_names(rows: Sequence[Row], schema: Schema, source: str) -> list[Row]:
    """Rename columns that differ from their field by case or blanks, such as ``Question`` and
    ``Relation``, and ARC's ``answerKey``; warn of one beside the field, and of two for an optional
    field.
    """
    names = _field_names(rows)
    renames: dict[str, str] = {}
    for group in schema.groups:
        keys = {field_key(field): field for field in group}
        if "answer" in keys:
            keys["answerkey"] = "answer"
        near = [name for name in names if field_key(name) in keys]
        own = set(group) & set(names)
        beside = [name for name in near if name not in own]
        if own and beside:
            same = [name for name in own if field_key(name) == field_key(beside[0])]
            for read in same:
                warn(
                    f"{source}: {read!r} is read, but there is a column {beside[0]!r} too. Remove"
                    " the one that is not meant."
                )
        if group in schema.needed:
            # Two columns are as good as none: the error shows their names.
            if not own and len(near) == 1:
                renames[near[0]] = keys[field_key(near[0])]
            continue
        for field in group:
            same = [name for name in near if field_key(name) == field_key(field)]
            if field in own or not same:
                continue
            if len(same) == 1:
                renames[same[0]] = field
            else:
                warn(
                    f"{source}: the columns {join_words(same)} are not read, because both have the"
                    f" name {field!r}. Remove the one that is not meant."
                )
    if not renames:
        return list(rows)
    named: list[Row] = []
    for row in rows:
        cells = {renames.get(name, name): cell for name, cell in row.items()}
        named.append(cells)
    return named


def check_layout(
    rows: Sequence[Row], columns: Mapping[str, str], schema: Schema, source: str, raw: RawData
) -> None:
    """Raise DataError for a file of a published layout that has no questions with answers."""
    names = [*_field_names(rows), *raw.unread]
    layout = find_unfit_layout(rows, names)
    if layout is not None and not has_fields(schema.needed, columns, names, layout):
        raise DataError(f"{source}: {layout.cure}")


def check_fields(
    rows: Sequence[Row], schema: Schema, source: str, raw: RawData, *, own: bool = True
) -> None:
    """Raise DataError if a required field is missing in all rows.

    The message suggests a cure if the rows are the user's own (``own``). ``raw`` has the names of
    all columns.
    """
    names = [*_field_names(rows), *raw.unread]
    missing = [group for group in schema.needed if not _has(names, [group])]
    if not missing:
        return
    missing_names: set[str] = set().union(*missing)
    empty = [name for name in raw.empty_columns if field_key(name) in missing_names]
    if own and len(empty) == len(missing):
        shown = " and ".join(f"column {name!r}" for name in empty)
        verb = "is" if len(empty) == 1 else "are"
        raise DataError(f"{source}: {shown} {verb} empty in all rows. Fill in the cells.")
    fix = f" {_cure_of_names(missing, names, schema, source, rows, raw)}" if own else ""
    fits = [name for name, other in SCHEMAS.items() if _has(names, other.needed)]
    if fits:
        fix = f" Its fields fit: {', '.join(fits)}."
        if own:
            fix += f" Pass dataset_name={fits[0]!r}."
    if own and len(names) == 1 and re.search(r"[^\w\s]", names[0]):
        fix = f" {ONE_CELL if set(names[0]) & set(DELIMITERS) else ONE_COLUMN}"
    lacks = " and ".join(" or ".join(group) for group in missing)
    raise DataError(
        f"{source} is not of the schema {schema.name!r}: it lacks {lacks}."
        f" It has {join_words(sorted(names)) or 'no field'}.{fix}"
    )


def _cure_of_names(
    missing: Sequence[Sequence[str]],
    names: Sequence[str],
    schema: Schema,
    source: str,
    rows: Sequence[Row],
    raw: RawData,
) -> str:
    """Return the cure of a file whose columns have other names, or none."""
    is_nameless = len(missing) == len(schema.needed)
    if is_nameless and raw.delimiter and looks_like_data(raw.columns, raw.rows):
        examples = [["question", schema.answers[-1]]]
        n_choices = len(raw.columns) - 2
        if 2 <= n_choices <= len(_LETTERS) and raw.columns[-1].strip() in list(_LETTERS):
            examples.append(["question", *_LETTERS[:n_choices], "answer"])
        return describe_missing_header(raw.columns, examples, raw.delimiter)
    fields = ["answers" if group == schema.answers else group[0] for group in missing]
    labels = find_label_columns(rows) | frozenset(raw.unread_numbers)
    if any(map(is_choice_column, names)):
        labels = frozenset()  # of a row with choices, a label or number is the answer
    suggested = suggest_columns(fields, names, labels)
    fix = "Rename the columns that hold these, or name them in columns=."
    if len(suggested) == len(fields):
        columns = {group[0]: suggested[field] for group, field in zip(missing, fields, strict=True)}
        fix = f"Pass columns={columns}."
    if is_nameless and _TABLE.search(source):
        fix += " The first line of the file has the names of the columns."
    return fix


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


def warn_of_truth_values(rows: Sequence[Row], schema: Schema, source: str) -> None:
    """Warn if all answers of a data set are the texts true and false, as pandas writes booleans.

    Rows with choices keep them, because true may be a choice.
    """
    answers: dict[str, None] = {}
    for where, row in number_rows(rows, source):
        field = schema.answer_field(row)
        if field is None:
            continue
        if any(is_choice_column(name) for name in row):
            return
        answers |= dict.fromkeys(read_answers(row[field], where, field))
    if answers and all(answer.casefold() in _TRUTH_VALUES for answer in answers):
        warn(
            f"{source}: all answers are {join_words(answers)}. Write yes and no, if they are"
            " answers to yes/no questions."
        )


def warn_of_cells(rows: Sequence[Row], schema: Schema, source: str) -> None:
    """Warn of cells of a file or table that seem to have another meaning: several answers in one
    text, a missing value, a formula, HTML, or a text that was decoded wrongly.

    One warning per kind names the first cell.
    """
    found: dict[str, list[str]] = {}
    aliases = AliasCells()
    for where, row in number_rows(rows, source):
        field = schema.answer_field(row)
        answer = None if field is None else row[field]
        cell = _plain_answer(answer, where)
        others = {"question": [row.get("question")], "answer": answer}
        for name, texts in others.items():
            for text in texts if isinstance(texts, list) else ():
                if isinstance(text, str) and (doubt := find_coding(text)):
                    found.setdefault(doubt, []).append(f"{where}: the {name} {shorten(text)}")
        for name in _NAMED_FIELDS:
            text = row.get(name)
            if isinstance(text, str) and (doubt := find_doubt(text)):
                found.setdefault(doubt, []).append(f"{where}: the {name} {shorten(text)}")
        question = row.get("question")
        if isinstance(question, str) and (doubt := find_line_ends(question.strip())):
            found.setdefault(doubt, []).append(f"{where}: the question {shorten(question)}")
        shown = f"{where}: the answer {shorten(cell)}"
        if doubt := find_doubt(cell, _BLANKS):
            found.setdefault(doubt, []).append(shown)
            aliases.count(cell)
        else:
            aliases.add(cell, shown)
    warn_of_doubts({**found, **aliases.doubts()})
