"""Format the user's values in messages."""

import operator
from collections.abc import Iterable

# Maximum number of names listed in a message.
_MOST = 8
_LONGEST = 60
# Maximum length of a path or of another library's message.
_LONGEST_LINE = 300


def as_int(value: object) -> int | None:
    """Return a whole number of any type (also numpy's) as an int; None for other values, such as True and 3.0."""
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


def short_repr(value: object) -> str:
    """Return the repr of a value if it is short, else its number of values or its type.

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
            first = ", ".join(map(repr, value[:3]))
            return f"{len(value)} values" + (f" ({first}, ...)" if len(first) <= _LONGEST else "")
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def join_words(names: Iterable[object], most: int = _MOST) -> str:
    """Join names with commas; beyond ``most``, only their number is given.

    >>> join_words("abcd", most=3)
    'a, b, c and 1 more'
    """
    every = [one_line(name) for name in names]
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")


def shorten(text: str) -> str:
    """Return the repr of a text, shortened to 60 characters."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def one_line(value: object) -> str:
    """Return a name, path or error as one line of at most 300 characters; the repr of a text with control characters.

    >>> one_line("answers"), one_line(" answers"), one_line(ValueError("bad\\nvalue"))
    ('answers', "' answers'", 'bad value')
    """
    text = " ".join(str(value).split()) if isinstance(value, Exception) else str(value)
    text = text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"
    return text if text.isprintable() and text == text.strip() else repr(text)
