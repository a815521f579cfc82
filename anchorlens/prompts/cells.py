"""Give each cell of a question file or table one meaning, or raise DataError (rules:
docs/errors.md, "Question files").
"""

import ast
import io
import json
import math
import re
import tokenize
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any

from anchorlens.display import short_repr, shorten
from anchorlens.errors import DataError
from anchorlens.prompts.invisible import find_visible

# Integers beyond the range of a double are infinite, as 1e400 is.
_MOST_BITS = 1024
_DOUBLE_BYTES = 8
# Digits that tell any two numbers of float32 apart.
_MOST_DIGITS = 9
# A text that begins so is a list or an object, not an answer such as "[sic] Lima".
_LIST = re.compile(r"[\[{]\s*[\"'\[{]")

# Spaces at which no line is broken, which web pages leave in texts; no model was trained on them.
_NO_BREAK = str.maketrans("\u00a0\u2007\u202f", "   ")

# Reason to drop a row -> characters, and their description.
_BAD_CHARACTERS = {
    # Half of a UTF-16 pair, which cannot be written to a file.
    "lone_surrogate": (
        re.compile("[\ud800-\udfff]"),
        "half of a character (a lone surrogate). Save the file as UTF-8 again.",
    ),
    # All of C0 but tab and line ends, DEL, and all of C1 but a line end: quotation marks of
    # Windows-1252 that were read as Latin-1.
    "control_character": (
        re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]"),
        "a control character. Remove it.",
    ),
    # Tags, several variation selectors in a row (both hide a text), and marks of annotations.
    "hidden_character": (
        re.compile(
            "[\U000e0000-\U000e007f\u206a-\u206f\ufff9-\ufffb]"
            "|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2}"
        ),
        "an invisible character. Remove it.",
    ),
    # Marks that show the characters after them in another order than the model reads them.
    "direction_override": (
        re.compile("[\u202a-\u202e\u2066-\u2069]"),
        "a mark that changes the order in which text is shown. Remove it.",
    ),
}
# Flags of England, Scotland and Wales, the only ones that are written with tags.
_FLAGS = re.compile(
    "\U0001f3f4\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074|"
    "\U000e0077\U000e006c\U000e0073)\U000e007f"
)


def plain(value: Any) -> Any:
    """Convert a value to JSON types: arrays and tensors to lists, numpy numbers and decimals,
    missing values (also NaN) to None. Numbers of less than 64 bits keep the digits of their own
    type: float32 0.1 is 0.1, not 0.10000000149011612.

    Values without a JSON type (binary data, dates, sets) stay as they are, for :func:`cell_text` to
    refuse.
    """
    if isinstance(value, str | bool) or value is None:
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _MOST_BITS else math.inf
    if isinstance(value, float):
        # Frames write missing values as NaN.
        return None if math.isnan(value) else float(value)
    if isinstance(value, Decimal):
        return None if value.is_nan() else str(value) if value.is_finite() else math.inf
    if type(value).__name__ in {"NAType", "NaTType"}:
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    # tolist() would turn dates of numpy and bytes of a memoryview into integers.
    dtype: Any = getattr(value, "dtype", None)
    is_date = getattr(dtype, "kind", "") in {"m", "M"}
    if hasattr(value, "tolist") and not is_date and not isinstance(value, memoryview):
        # tolist() gives numbers the digits of their double.
        if is_narrow(dtype):
            value = value.astype(str).astype(float)  # numpy writes the shortest digits of a type
        elif getattr(dtype, "is_floating_point", False) and dtype.itemsize < _DOUBLE_BYTES:
            return plain(_with_own_digits(value.tolist(), value.detach().cpu()))
        return plain(value.tolist())
    return value


def _with_own_digits(number: Any, tensor: Any) -> Any:
    """Return a number of a torch tensor, or a list of them, with the fewest digits that are the
    same number in the type of the tensor.
    """
    if isinstance(number, list):
        return [_with_own_digits(one, tensor) for one in number]
    for n_digits in range(1, _MOST_DIGITS + 1):
        short = float(f"{number:.{n_digits}g}")
        if tensor.new_tensor(short).item() == number:
            return short
    return number


def is_narrow(dtype: Any) -> bool:
    """Return whether a type of numpy is of floating point numbers of less than 64 bits."""
    return getattr(dtype, "kind", "") == "f" and dtype.itemsize < _DOUBLE_BYTES


def cell_text(value: object, where: str, field: str) -> str | None:
    """Return a cell as text without blanks at its ends and characters of width zero
    (:func:`strip_blanks`); None if it is missing or blank.

    Whole numbers lose the ".0" that frames give them.

    Raises:
        DataError: If the cell is neither text nor a finite number; the message names file, row and
            column.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return strip_blanks(value) or None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(value)
    fix = "Write yes and no" if isinstance(value, bool) else "Write it as text"
    raise DataError(
        f"{where}: {field}={short_repr(value)}: must be text or a finite number. {fix}, or leave"
        " the cell empty."
    )


def strip_blanks(text: str) -> str:
    """Return a text without blanks at its ends and without the characters of width zero that its
    script does not need (:func:`~anchorlens.prompts.invisible.find_visible`); a no-break space is a
    space.
    """
    if text.isascii():
        return text.strip()
    kept = find_visible(text)
    if isinstance(kept, range):
        return text[kept.start : kept.stop].translate(_NO_BREAK)
    return "".join(text[index] for index in kept).translate(_NO_BREAK)


def shift_index(text: str, index: int) -> int:
    """Return the index in the stripped text of a character of the text, which may be outside."""
    kept = find_visible(text)
    if not kept:
        return index
    if not 0 <= index <= len(text):
        return index - _count_blanks(text[: kept[0]])
    n_before = _count_blanks(text[index : kept[0]])
    n_after = _count_blanks(text[kept[-1] + 1 : index])
    return bisect_left(kept, index) - n_before + n_after


def _count_blanks(text: str) -> int:
    return sum(one.isspace() for one in text)


def field_key(name: str) -> str:
    """Return a column's name by which it is recognised: without blanks, in lower case."""
    return strip_blanks(name).casefold()


def unique_fields(pairs: Iterable[tuple[str, Any]], where: str) -> dict[str, Any]:
    """Return a dictionary of (name, value) pairs; raise DataError if a name repeats."""
    pairs = list(pairs)
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name, times = Counter(name for name, _ in pairs).most_common(1)[0]
        raise DataError(
            f"{where}: the name {short_repr(name)} occurs {times} times."
            " Rename or remove the others."
        )
    return fields


def plain_rows(rows: Iterable[Mapping[Any, Any]], source: str) -> list[dict[str, Any]]:
    """Return rows with plain values and without empty fields."""
    out: list[dict[str, Any]] = []
    for number, row in enumerate(rows, start=1):
        where = f"{source}, row {number}"
        try:
            fields = unique_fields(((str(key), plain(value)) for key, value in row.items()), where)
        except RecursionError as error:
            raise DataError(
                f"{where}: a value is nested too deeply. Remove its column, or write it as text."
            ) from error
        out.append({name: value for name, value in fields.items() if value is not None})
    return out


def load_json(text: str, where: str) -> Any:
    """Parse JSON; raise DataError if a key repeats, a number is too long or values are nested too
    deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=partial(unique_fields, where=where))
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise DataError(
            f"{where}: JSON is nested too deeply. Write answers as a list of texts."
        ) from error
    except ValueError as error:  # Python's limit of digits
        raise DataError(
            f"{where}: JSON has an integer that is too long. Write it as text, in quotes."
        ) from error


def unpack(value: object, where: str) -> object:
    """Parse a list or object that is written as text, as in PopQA's answers and csv files; other
    values stay as they are.
    """
    text = value.strip() if isinstance(value, str) else ""
    if text[:1] not in {"[", "{"}:
        return value
    try:
        return plain(load_json(text, where))
    except json.JSONDecodeError as error:
        reason = error
    try:
        # pandas writes lists to csv files as Python literals.
        literal = ast.literal_eval(text)
        # It writes arrays without commas: ['Rome' 'Roma'], which Python would join to one text.
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        kinds = [token.type for token in tokens if token.type != tokenize.NL]
        if (tokenize.STRING, tokenize.STRING) not in pairwise(kinds):
            return plain(literal)
    except (ValueError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError):
        pass
    if _LIST.match(text):
        problem = f"{shorten(text)} is not a valid list ({reason.msg}, character {reason.pos + 1})"
        raise DataError(f'{where}: {problem}. Write JSON: ["Rome", "Roma"].')
    return value


def find_bad_character(texts: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the reason to drop a row of these fields, and its description; None if every text can
    be measured and written.
    """
    joined = "".join(texts.values())
    if joined.isascii() and joined.isprintable():
        return None
    for reason, (characters, description) in _BAD_CHARACTERS.items():
        for field, text in texts.items():
            if characters.search(_FLAGS.sub("", text)):
                return reason, f"{field} contains {description}"
    return None


def replace_bad_characters(text: str) -> str:
    """Return a text that can be written to a file."""
    for characters, _ in _BAD_CHARACTERS.values():
        text = characters.sub("\ufffd", text)
    return text
