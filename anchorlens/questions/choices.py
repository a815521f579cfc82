"""Replace answers that name one of a row's choices (MMLU, ARC) by its text."""

import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from anchorlens.display import join_words, shorten, warn
from anchorlens.errors import DataError
from anchorlens.prompts.cells import cell_text, field_key, unpack
from anchorlens.questions.schemas import Row, Schema, number_rows

_FIELDS = ("choices", "options")
# Columns with one choice each: A, B, C, D (MMLU), option_a, opa (MedMCQA).
_CHOICE_COLUMN = re.compile(r"(?:op|option|choice)?[ _]?([a-j])")
# Parts of a choice that is an object.
_TEXTS = ("text", "value", "content")
_LABELS = ("label", "key", "id")
# A label may be written as (B), B. or b.
_AROUND = "().: "
# A choice may begin with its label: "A) Quito", "(A) Quito", "A. Quito".
_LABELLED = re.compile(r"\(?([A-Ja-j])[).:]\s*(?=\S)")
_MISSING_LABEL = "-1"
# Fewest rows of which all answers are single digits that are taken for numbers of choices.
_MANY = 4


@dataclass(frozen=True)
class _Choices:
    """Choices of a row; ``is_numbered`` is True if a number of one counts from 0."""

    labels: list[str]
    texts: list[str]
    is_numbered: bool


def is_choice_column(name: str) -> bool:
    """Return whether a column has the choices of a row, or one of them."""
    return name in _FIELDS or bool(_choice_letter(name))


@lru_cache(maxsize=1000)
def _choice_letter(column: str) -> str:
    """Return the letter of a column that has one choice; empty for other columns."""
    match = _CHOICE_COLUMN.fullmatch(field_key(column))
    return match[1].upper() if match else ""


def resolve_choices(rows: Sequence[Row], schema: Schema, source: str) -> list[Row]:
    """Replace an answer that names one of the row's ``choices`` or ``options`` by its text.

    An answer is the number of a choice, from 0 (MMLU), or its label (ARC, whose choices have labels
    of their own; other choices are A, B, C ...). A text that is itself one of the choices stays; a
    number never is. The choices may also be columns of their own, such as A, B, C and D.

    Warn once if answers are none of their choices, or look like labels of choices that are missing.

    Raises:
        DataError: If an answer is a number, but no choice has it, or a text that is one choice and
            the number of another.
    """
    resolved: list[Row] = []
    unknown: list[str] = []
    for where, row in number_rows(rows, source):
        field = schema.answer_field(row)
        choices = _find_choices(row, where)
        if field is None or choices is None:
            resolved.append(row)
            continue
        value = unpack(row[field], f"{where}: {field}")
        answers = value if isinstance(value, list) else [value]
        found = [_resolve(answer, choices, where, field) for answer in answers]
        others = [one for one in found if isinstance(one, str) and one not in choices.texts]
        unknown += [f"{where}: the answer {shorten(answer)}" for answer in others]
        resolved.append({**row, field: found if isinstance(value, list) else found[0]})
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        warn(
            f"{unknown[0]}{more} is none of the row's choices. Write a choice, its label or its"
            " number from 0, or remove the choices."
        )
    _warn_of_labels(resolved, rows, schema, source)
    return resolved


def remove_topics(rows: Sequence[Row], source: str) -> list[Row]:
    """Return the rows without ``subject`` if it is the topic of questions with choices.

    MMLU has a column ``subject`` with the name of a school subject, such as ``abstract_algebra``.
    Warn once, because ``subject`` is otherwise a segment of the question.
    """
    topics: dict[str, None] = {}
    for where, row in number_rows(rows, source):
        topic = row.get("subject")
        if topic is None:
            continue
        has_choices = _find_choices(row, where) is not None
        if not isinstance(topic, str) or not has_choices or "property" in row:
            return list(rows)
        if topic.casefold() in str(row.get("question")).casefold():
            return list(rows)
        topics[topic] = None
    if not topics:
        return list(rows)
    warn(
        f"{source}: the column subject has topics ({join_words(topics, 3)}), no words of the"
        " questions. It is not read; subject and property come from the rules."
    )
    without_topics: list[Row] = []
    for row in rows:
        cells = {name: row[name] for name in row if name != "subject"}
        without_topics.append(cells)
    return without_topics


def _find_choices(row: Row, where: str) -> _Choices | None:
    """Return the choices of a row: a list, lists of texts and labels, label -> text, a list of
    objects, or columns of their own.
    """
    name = next((name for name in _FIELDS if name in row), None)
    if name is None:
        columns: dict[str, Any] = {}
        for column, cell in row.items():
            if letter := _choice_letter(column):
                columns[letter] = cell
        letters = string.ascii_uppercase[: len(columns)]
        if len(columns) < 2 or sorted(columns) != list(letters):
            return None
        return _Choices(list(letters), [_text(columns[letter]) for letter in letters], True)
    given = unpack(row[name], f"{where}: {name}")
    if isinstance(given, Mapping):
        if isinstance(given.get("text"), list) and isinstance(given.get("label"), list):
            return _Choices([_text(one) for one in given["label"]], _all(given["text"]), False)
        return _Choices([_text(one) for one in given], _all(given.values()), False)
    if not isinstance(given, list) or not given:
        return None
    if all(isinstance(one, Mapping) for one in given):
        labels = [_part(one, _LABELS) for one in given]
        return _Choices(labels, [_part(one, _TEXTS) for one in given], False)
    labels = list(string.ascii_uppercase[: len(given)])
    return _Choices(labels, _without_labels(_all(given), labels), True)


def _without_labels(texts: list[str], labels: Sequence[str]) -> list[str]:
    """Return choices without the labels at their beginnings, if all of several choices have them
    (AQuA).
    """
    found = [_LABELLED.match(text) for text in texts]
    own = [match[1].upper() for match in found if match]
    if len(texts) < 2 or own != list(labels):
        return texts
    return [text[match.end() :] for text, match in zip(texts, found, strict=True) if match]


def _all(values: Any) -> list[str]:
    return [_text(one) for one in values]


def _part(choice: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((_text(choice[name]) for name in names if name in choice), "")


def _text(value: object) -> str:
    """Return a choice, a label or an answer as text."""
    if isinstance(value, str):
        return cell_text(value, "choice", "text") or ""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return cell_text(value, "choice", "text") or ""
    return str(value)


def _resolve(value: object, choices: _Choices, where: str, field: str) -> object:
    """Return the text of the choice that an answer names, or the answer; None for the label -1."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return value
    answer = cell_text(value, where, field)
    if answer is None:
        return value
    is_text = isinstance(value, str) and answer in choices.texts
    if not is_text and answer == _MISSING_LABEL:
        return None
    labelled = _LABELLED.match(answer)
    if labelled and not is_text and answer[labelled.end() :] in choices.texts:
        answer = labelled[1]  # "B. Lima"
    label = answer.strip(_AROUND)
    for one in (label, label.upper()):
        if not is_text and one in choices.labels[: len(choices.texts)]:
            return choices.texts[choices.labels.index(one)]
    if not answer.isdecimal() or not choices.is_numbered:
        return value
    number = int(answer)
    if is_text:
        if number < len(choices.texts) and choices.texts[number] != answer:
            problem = (
                "one choice has this text, another this number."
                " Remove the column of choices, if it is the text"
            )
            raise DataError(f"{where}: {field}={answer}: {problem}.")
        return value
    if number >= len(choices.texts):
        raise DataError(
            f"{where}: {field}={answer}: there are {len(choices.texts)} choices, numbered from 0."
            " Write the answer as text."
        )
    return choices.texts[number]


def _warn_of_labels(
    resolved: Sequence[Row], rows: Sequence[Row], schema: Schema, source: str
) -> None:
    """Warn if all answers of rows without choices are letters, numbers below 10, or whole numbers
    from 0 on without a gap.
    """
    answers: set[str] = set()
    count = 0
    for row, before in zip(resolved, rows, strict=True):
        field = schema.answer_field(row)
        value = None if field is None else row[field]
        if field is None or value is None:
            continue
        if value is not before[field] or not isinstance(value, str | int | float):
            return  # an answer of a row with choices, or a list
        text = _text(value)
        is_letter = len(text) == 1 and text in string.ascii_uppercase
        if not (is_letter or (text.isascii() and text.isdecimal())):
            return
        answers.add(text)
        count += 1
    numbers = sorted({int(answer) for answer in answers if answer.isdecimal()})
    is_letters = bool(answers) and not numbers
    is_numbers = len(numbers) == len(answers) > 0
    is_digits = is_numbers and numbers[-1] < 10 and count >= _MANY
    is_codes = is_numbers and len(numbers) > 1 and numbers == list(range(len(numbers)))
    if is_letters or is_digits or is_codes:
        shown = [str(number) for number in numbers] or sorted(answers)
        warn(
            f"{source}: all answers are one of {join_words(shown)}. If they name choices,"
            " add the column 'choices' with a list of texts."
        )
