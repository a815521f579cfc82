"""Bring rows of published files with nested questions into rows with one question each."""

from collections.abc import Mapping, Sequence
from typing import Any

from anchorlens.questions.schemas import Row

NESTED_FIELDS = ("paragraphs", "qas", "answerKey")
"""Columns of published files that :func:`unfold_rows` and ``match_names`` read."""


def unfold_rows(rows: Sequence[Row]) -> list[Row]:
    """Return one row per question.

    SQuAD's file has articles with ``paragraphs`` whose ``qas`` are questions, and MRQA's has
    ``qas`` in each row. ARC's file has a question of the parts ``stem`` and ``choices``.
    """
    unfolded: list[Row] = []
    for row in rows:
        nested = row.get("paragraphs", row.get("qas"))
        if "question" not in row and _is_list_of_objects(nested):
            parts = nested if "paragraphs" in row else [row]
            for part in parts:
                questions = part.get("qas")
                unfolded += [_plain_row(one) for one in questions or ()]
        else:
            unfolded.append(_plain_row(row))
    return unfolded


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Mapping) for one in value)


def _plain_row(row: Mapping[str, Any]) -> Row:
    """Return a row without empty fields, with the parts of ARC's question as fields."""
    question = row.get("question")
    if isinstance(question, Mapping) and "stem" in question:
        row = {**row, "question": question["stem"], "choices": question.get("choices")}
    return {name: cell for name, cell in row.items() if cell is not None}
