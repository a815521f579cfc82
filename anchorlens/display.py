"""Format the user's values in messages, text tables, and warnings at the user's own line."""

import json
import operator
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence

# Maximum number of names listed in a message.
_MOST = 8
_LONGEST = 60
# Maximum length of a path or of another library's message.
_LONGEST_LINE = 300
# Characters that a terminal obeys or that change how the text around them is shown: C0 without tab
# and line end, DEL and C1; marks of direction; line separators; invisible characters and tags;
# halves of characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
# A hyphen before a digit that does not join two numbers or words, as in "layers 3-8".
_SIGNED_ZERO = re.compile(r"(?<![\w.])[+-](0(?:\.0+)?)(?![\d.])")
_NEGATIVE = re.compile(r"(?<![\w.)\]])-(?=\d)")
# Modules with a frame of their own between a decorated function and its caller.
_DECORATORS = frozenset({"contextlib", "torch.utils._contextlib"})


def as_int(value: object) -> int | None:
    """Return a whole number of any type (also numpy's) as an int; None for other values, such as
    True and 3.0.
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def is_utf8(text: str) -> bool:
    """Return whether a text can be written as UTF-8: it has no unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escape_hidden(text: str) -> str:
    """Return a text for a terminal, with control, bidi and invisible characters as escapes; tabs
    and line ends stay.

    >>> print(escape_hidden("run\x1b[31m \u202egnp.exe"))
    run\\x1b[31m \\u202egnp.exe
    """
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def escape_hidden_json(text: str) -> str:
    """Return a JSON text for a terminal: the same value, with hidden characters as escapes of
    JSON.
    """
    return _HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def short_repr(value: object) -> str:
    """Return the repr of a value if it is short, else the ends of a text, the number of values or
    the type.

    >>> short_repr("3"), short_repr(open)
    ("'3'", 'a builtin_function_or_method')
    >>> short_repr("a/long/directory/" * 10 + "pairs.csv")
    "'a/long/directory/a/long/direct…ong/directory/pairs.csv'"
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | bytes | bool | int | float | tuple | list | range):
        text = repr(value)
        if len(text) <= _LONGEST:
            return text
        if isinstance(value, tuple | list | range):
            first = ", ".join(map(repr, value[:3]))
            return f"{len(value)} values" + (f" ({first}, ...)" if len(first) <= _LONGEST else "")
        if isinstance(value, str):
            return repr(f"{value[:30]}…{value[-23:]}")
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def shorten(text: str) -> str:
    """Return the repr of a text, shortened to 60 characters."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def one_line(value: object) -> str:
    """Return a name, path or error as one line of at most 300 characters; the repr of a text with
    control characters.

    >>> one_line("answers"), one_line(" answers"), one_line(ValueError("bad\\nvalue"))
    ('answers', "' answers'", 'bad value')
    """
    text = " ".join(str(value).split()) if isinstance(value, Exception) else str(value)
    text = text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"
    return text if text.isprintable() and text == text.strip() else repr(text)


def join_words(names: Iterable[object], most: int = _MOST) -> str:
    """Join names with commas; beyond ``most``, only their number is given.

    >>> join_words("abcd", most=3)
    'a, b, c and 1 more'
    """
    every = [one_line(name) for name in names]
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")


def list_counts(counts: Mapping[str, int]) -> str:
    """Return counts as text, in their order.

    >>> list_counts({"no_subject": 3, "too_long": 1})
    'no_subject 3, too_long 1'
    """
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a text table with left-aligned columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        line = "  ".join(cells).rstrip()
        lines.append(f"  {line}")
    return "\n".join(lines)


def three_digits(value: float, *, sign: bool = True) -> str:
    """Return a number with three significant digits, also where the last ones are 0.

    >>> [three_digits(value) for value in (16.2, 16.0, 1234.5, -0.05)]
    ['+16.2', '+16.0', '+1.23e+03', '-0.0500']
    >>> three_digits(5, sign=False)
    '5.00'
    """
    return f"{value:{'+' if sign else ''}#.3g}".rstrip(".")


def minus(text: str) -> str:
    """Return a text with a typographic minus sign in negative numbers.

    >>> minus("-9.7 [-19.3, +1.1] at layers 3-8")
    '−9.7 [−19.3, +1.1] at layers 3-8'
    """
    return _NEGATIVE.sub("\N{MINUS SIGN}", text)


def drop_zero_signs(text: str) -> str:
    """Return a text in which numbers that round to 0 have no sign.

    >>> drop_zero_signs("-0.0 [-0.5, +0.00] and -0.04, +0.0 %")
    '0.0 [-0.5, 0.00] and -0.04, 0.0 %'
    """
    return _SIGNED_ZERO.sub(r"\1", text)


def warn(message: str) -> None:
    """Emit a UserWarning at the line that called into this package."""
    frame = sys._getframe(1)
    # Depths as in stacklevel=: this function has depth 1, its caller 2.
    depth = 1
    entry_depth = 1
    while frame is not None:
        depth += 1
        module = frame.f_globals.get("__name__", "")
        is_decorator = entry_depth == depth - 1 and module in _DECORATORS
        if module.partition(".")[0] == "anchorlens" or is_decorator:
            entry_depth = depth
        frame = frame.f_back
    # The user's line is in the caller of the outermost frame of this package.
    warnings.warn(escape_hidden(message), UserWarning, stacklevel=entry_depth + 1)
