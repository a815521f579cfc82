"""Find the columns of a file that fit fields by name, and published layouts that do not fit."""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anchorlens.prompts.cells import field_key

# Words of names of columns for each field, the most telling first.
_WORDS = {
    "corrupted": ("corrupted", "corrupt", "counterfactual"),
    "clean": ("clean", "prompt"),
    "question": ("question", "query", "q"),
    "answers": ("answers", "answer", "gold", "aliases", "target", "label"),
    "wrong": ("wrong", "distractor"),
    "answer": ("answer", "target", "gold"),
}
# Last words of names of columns that describe a field, but are not it.
_OTHER = frozenset(
    ("id", "ids", "idx", "index", "type", "source", "start", "end", "count", "language", "category")
)
_ANSWERS = frozenset(("answers", "answer", "wrong"))
# Words of names of columns that hold no right answer.
_WRONG = frozenset(("wrong", "incorrect", "false", "distractor", "distractors"))
# Truth value or digit; an answer may be one, but a column of them labels its rows.
_LABEL = re.compile(r"true|false|-?\d")
# Most different texts that are labels in a column of this many cells; yes and no are answers.
_MOST_LABELS = 3
_MANY_CELLS = 20
_YES_NO = ("yes", "no")
# A name that is as near as this to a field's is a misspelt field.
_MISSPELT = 0.8


@dataclass(frozen=True, kw_only=True)
class UnfitLayout:
    """Published layout that has no columns of questions or of prompt pairs.

    Attributes:
        columns: Columns of the layout that hold no text of a field.
        cure: Sentence with the way to get a file that can be read.
    """

    columns: frozenset[str]
    cure: str


_NQ_COLUMNS = frozenset(("document", "document_text", "document_html", "question_text"))
_COUNTERFACT_CURE = (
    "CounterFact: its rows have no corrupted prompt. Make pairs from requested_rewrite of two rows"
    " r and s of one relation_id, for load_pairs:"
    " {'clean': r['prompt'].format(r['subject']), 'corrupted': r['prompt'].format(s['subject']),"
    " 'answer': ' ' + r['target_true'].get('str'), 'wrong': ' ' + s['target_true'].get('str')}."
)
_NQ_CURE = (
    "Natural Questions with documents: its answers are places in documents. Use NQ-open, with the"
    " columns question and answer: load_qa('nq'), or its file."
)


def find_unfit_layout(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> UnfitLayout | None:
    """Return the published layout of a file that cannot be read; None if it is none of them.

    Args:
        rows: Rows of the file.
        names: Names of its columns, with those that were not read.
    """
    if "requested_rewrite" in names:
        columns = frozenset(("requested_rewrite",))
        return UnfitLayout(columns=columns, cure=_COUNTERFACT_CURE)
    question = next((row["question"] for row in rows if "question" in row), None)
    has_parts = isinstance(question, Mapping)
    if "annotations" in names and (has_parts or _NQ_COLUMNS.intersection(names)):
        columns = (
            _NQ_COLUMNS - {"question_text"}
            | {"annotations"}
            | ({"question"} if has_parts else set())
        )
        return UnfitLayout(columns=columns, cure=_NQ_CURE)
    return None


def has_fields(
    needed: Sequence[Sequence[str]],
    columns: Mapping[str, str],
    names: Sequence[str],
    layout: UnfitLayout,
) -> bool:
    """Return whether every needed field has a column of its own beside those of a layout.

    Args:
        needed: For each field its names.
        columns: Field -> column, as in ``columns=``.
        names: Names of the columns.
        layout: Layout of the file.
    """
    own = {field_key(name) for name in names if name not in layout.columns}
    for group in needed:
        chosen = {field_key(columns.get(field, field)) for field in group}
        if not chosen & own:
            return False
    return True


def find_label_columns(rows: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the columns that label their rows (true and false, 0 and 1, three texts in all), which
    are not suggested as columns of answers.
    """
    cells: dict[str, list[object]] = {}
    for row in rows:
        for name, cell in row.items():
            cells.setdefault(name, []).append(cell)
    return frozenset(name for name, own in cells.items() if _are_labels(own))


def _are_labels(cells: Sequence[object]) -> bool:
    texts: set[str] = set()
    for cell in cells:
        if not isinstance(cell, str | int | float):
            return False
        texts.add(str(cell).strip().casefold().removesuffix(".0"))
    are_codes = all(_LABEL.fullmatch(text) for text in texts)
    are_few = len(cells) >= _MANY_CELLS and len(texts) <= _MOST_LABELS
    return are_codes or (are_few and texts.isdisjoint(_YES_NO))


def suggest_columns(
    fields: Sequence[str], names: Sequence[str], labels: Collection[str] = ()
) -> dict[str, str]:
    """Return field -> the column that fits it by name, for ``columns=``.

    Args:
        fields: Fields without a column.
        names: Names of columns that are no field.
        labels: Names of columns that hold no answers.

    Returns:
        A column for each field that exactly one column fits; no column twice.
    """
    free = [name for name in names if name]
    found: dict[str, str] = {}
    for field, words in _WORDS.items():
        if field not in fields:
            continue
        for word in words:
            fits = [name for name in free if _fits(name, word)]
            if field in _ANSWERS:
                fits = [name for name in fits if name not in labels]
            if field != "wrong":
                fits = [name for name in fits if _WRONG.isdisjoint(_words_of(name))]
            if len(fits) == 1:
                found[field] = fits[0]
                free.remove(fits[0])
                break
    return {field: found[field] for field in fields if field in found}


def _fits(name: str, word: str) -> bool:
    """Return whether a column's name has a word, or is nearly this word."""
    parts = _words_of(name)
    if not parts or parts[-1] in _OTHER:
        return False
    ratio = difflib.SequenceMatcher(None, field_key(name), word).ratio()
    return word in parts or ratio >= _MISSPELT


def _words_of(name: str) -> list[str]:
    return [part for part in re.split(r"[^a-z]+", field_key(name)) if part]
