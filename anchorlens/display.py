"""Descriptions of the user's values in messages."""

import operator
from collections.abc import Iterable

# Names that a message lists at most.
_MOST = 8
_LONGEST = 60


def as_int(value: object) -> int | None:
    """A whole number of any type (numpy's too) as an int; None for everything else, True and 3.0 among it."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def short_repr(value: object) -> str:
    """A value as a message shows it: itself where that is short, else how many values it has, or its type.

    >>> short_repr("3"), short_repr(open)
    ("'3'", 'a builtin_function_or_method')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | bytes | bool | int | float | tuple | list | range):
        text = repr(value)
        if len(text) <= _LONGEST:
            return text
        if isinstance(value, tuple | list | range):
            return f"{len(value)} values ({', '.join(map(repr, value[:3]))}, ...)"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def join_words(names: Iterable[object], most: int = _MOST) -> str:
    """Names with commas, and how many there are beyond the first few.

    >>> join_words("abcd", most=3)
    'a, b, c and 1 more'
    """
    every = [str(name) for name in names]
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")


def shorten(text: str) -> str:
    """A text in quotes, cut where it is long."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
