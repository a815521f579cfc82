"""Read the cells of a prompt pair: prompts, answers, segments and alignment."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anchorlens.display import short_repr
from anchorlens.errors import DataError
from anchorlens.prompts.cells import cell_text, load_json
from anchorlens.prompts.dataset import RowDropped
from anchorlens.prompts.pairs import Alignment, AnswerText, AnyOf, TokenText

# Token ids in a cell of a csv file; model.to_tokens gives one list inside another.
_IDS = re.compile(r"\s*\[\s*\[?\s*(-?\d+\s*(,\s*-?\d+\s*)*)?\]?\s*\]\s*")
# A number that is no token id: with a sign, decimals or separators.
_NUMBER = re.compile(r"[-+]?\d[\d.,' \u00a0\u202f]*(e[-+]?\d+)?", re.IGNORECASE)
# Names of places that are not segments.
_RESERVED = re.compile(r"(pos|head):.*|last|all|paired|metric_reads")
TEXT = "text"
IDS = "ids"


@dataclass(frozen=True)
class CellReader:
    """Reads the cells of a data set of pairs.

    Attributes:
        is_text: Whether every value is text, as in a csv file, so that lists are written as JSON.
        numbers: Meaning of a bare number as an answer: ``text`` (its digits) or ``ids`` (a token).
        answers_sep: Separator of alternatives in one text of an answer. If None, none.
    """

    is_text: bool
    numbers: str = TEXT
    answers_sep: str | None = None

    def read_prompt(self, value: object, column: str) -> TokenText | None:
        """Return a prompt as text or token ids; None for a missing cell."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _number_text(value, column)
        return self._read_text(value, column)

    def _read_text(self, value: object, column: str) -> TokenText | None:
        """Return a text or token ids; None for a missing cell.

        Token ids may have a batch axis of one, as those of ``model.to_tokens``, or be the
        ``input_ids`` of a tokenizer's output.
        """
        if value is None or value == "":
            return None
        if self.is_text and isinstance(value, str) and _IDS.fullmatch(value):
            value = _parse(value)
        if isinstance(value, Mapping) and "input_ids" in value:
            value = _input_ids(value, column)
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]
        if isinstance(value, list) and is_ids(value):
            return tuple(value)
        if isinstance(value, str):
            return value
        raise RowDropped(
            "bad_cell", f"{column}={short_repr(value)} is neither text nor a list of token ids"
        )

    def read_answer(self, value: object, column: str) -> AnswerText | None:
        """Return an answer as text or token ids, or alternatives of a list of these; None for a
        missing cell.
        """
        if self.answers_sep and isinstance(value, str) and self.answers_sep in value:
            value = value.split(self.answers_sep)
        if self.is_text and isinstance(value, str) and value.lstrip().startswith("["):
            parsed = _parse(value)
            value = parsed if isinstance(parsed, list) else value
        if not isinstance(value, list) or is_ids(value):
            return self._read_single(value, column)
        found: dict[TokenText, None] = {}
        for one in value:
            answer = self._read_single(one, column)
            if answer is None or not strip_text(answer):
                raise RowDropped("empty_answer", f"{column} has an empty alternative")
            found[answer] = None
        return next(iter(found)) if len(found) == 1 else AnyOf(tuple(found))

    def _read_single(self, value: object, column: str) -> TokenText | None:
        if self.numbers == IDS:
            digits = _number_text(value, column) if isinstance(value, int | float) else value
            if isinstance(digits, str) and digits.strip().isdecimal():
                return (int(digits),)
            if isinstance(digits, str) and _NUMBER.fullmatch(digits.strip()):
                raise RowDropped(
                    "bad_cell",
                    f"{column}={short_repr(value)} is no token id, which numbers='ids' asks for."
                    " Write it without separators, sign and decimals",
                )
        return self.read_prompt(value, column)

    def read_segments(self, value: object) -> dict[str, tuple[TokenText, TokenText]]:
        """Return name -> segment of the clean and of the corrupted prompt."""
        given = _unpack(value, "bad_segments")
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise RowDropped(
                "bad_segments",
                f"{short_repr(given)} is no object: name -> text,"
                " or name -> [clean text, corrupted text]",
            )
        found: dict[str, tuple[TokenText, TokenText]] = {}
        for name, one in given.items():
            if one is None:  # a struct of parquet has all names in every row
                continue
            if not name.strip() or _RESERVED.fullmatch(name):
                raise RowDropped(
                    "bad_segments", f"{name!r} is the name of a place that is no segment"
                )
            both = [one, one]
            if isinstance(one, list) and len(one) == 2 and not is_ids(one):
                both = one
            clean = self._read_text(both[0], f"segments[{name!r}]")
            corrupted = self._read_text(both[1], f"segments[{name!r}]")
            if not clean or not corrupted:
                raise RowDropped("bad_segments", f"{name!r} is empty")
            found[name] = clean, corrupted
        return found


def strip_text(text: TokenText | None) -> object:
    """Return a text without blanks at its ends; token ids as they are."""
    return text.strip() if isinstance(text, str) else text


def is_ids(value: list[Any]) -> bool:
    """Return whether all items of a list are integers."""
    # bool is a subclass of int.
    return all(type(one) is int for one in value)


def _parse(value: str) -> object:
    try:
        return json.loads(value)
    # Unbalanced brackets, an integer beyond Python's limit of digits, too many brackets.
    except (ValueError, RecursionError):
        return value


def _input_ids(value: Mapping[str, Any], column: str) -> object:
    """Return the token ids of a tokenizer's output; raise RowDropped if they are padded."""
    mask = value.get("attention_mask")
    flat = mask[0] if isinstance(mask, list) and mask and isinstance(mask[0], list) else mask
    if isinstance(flat, list) and 0 in flat:
        raise RowDropped("bad_cell", f"{column}: its input_ids are padded. Tokenize each alone")
    return value["input_ids"]


def _number_text(value: "int | float", column: str) -> str:
    """Return a number as text, as a csv file has it: 4.0 of a column with a gap is 4."""
    try:
        return cell_text(value, column, column) or ""
    except DataError as why:
        raise RowDropped("bad_cell", f"{column}={short_repr(value)} is no finite number") from why


def _unpack(value: object, reason: str) -> object:
    """Return the value of a JSON text; other values as they are."""
    if not isinstance(value, str) or not value.strip():
        return value or None
    try:
        return load_json(value, "cell")
    except (json.JSONDecodeError, DataError) as why:
        raise RowDropped(reason, f"{short_repr(value)} is no JSON") from why


def read_alignment(value: object) -> Alignment | None:
    """Return pairs of clean and corrupted position; None for a missing cell."""
    given = _unpack(value, "bad_alignment")
    if given is None:
        return None
    problem = f"{short_repr(given)} is no list of [clean position, corrupted position]"
    if not isinstance(given, list) or not given:
        raise RowDropped("bad_alignment", problem)
    pairs: list[tuple[int, int]] = []
    for pair in given:
        if not isinstance(pair, list) or len(pair) != 2 or not is_ids(pair):
            raise RowDropped("bad_alignment", problem)
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)
