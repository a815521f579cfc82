"""Kinds of arguments: each says once what it takes, how a shell writes it, and what is wrong with anything else.

A specification's fields are made of these (:func:`argument`). Python's signature, the command line with its ``--help``, the checks
and the tables of the docs all read them. Nothing heavy is imported here.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo

from anchorlens.callables import takes
from anchorlens.errors import InputError, did_you_mean
from anchorlens.kinds import as_whole, described, shortened

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


@dataclass(frozen=True)
class Kind:
    """What an argument takes.

    Attributes:
        metavar: How a shell's help writes the value.
    """

    metavar: str = "TEXT"

    def check(self, name: str, value: Any) -> Any:  # noqa: ARG002
        """The value as the specification keeps it.

        Raises:
            InputError: It is none; the message says what it takes.
        """
        return value

    def parse(self, text: str) -> Any:
        """What a shell's text means in Python."""
        return text


@dataclass(frozen=True)
class Word(Kind):
    """One of some words, or (``own``) something of the user's own.

    Attributes:
        words: The words.
        own: What it may be beside a word, in words; empty where only words are taken.
        takes: With how many arguments it is then called.
        error: Raised for anything else.
    """

    words: Sequence[str] = ()
    own: str = ""
    error: type[InputError] = InputError
    takes: int = 0

    def check(self, name: str, value: Any) -> Any:
        """One of the words, or something callable."""
        if isinstance(value, str):
            if value in self.words:
                return value
            raise self.error(f"Unknown {name}={value!r}. {did_you_mean(value, self.words)}")
        if self.own and callable(value) and not isinstance(value, type) and takes(value, self.takes):
            return value
        also = f", or {self.own}" if self.own else ""
        raise self.error(f"{name} takes one of {', '.join(self.words)}{also}; got {described(value)}.")


@dataclass(frozen=True)
class Words(Kind):
    """Several different words; one alone may be given as it is.

    Attributes:
        words: The words.
        what: What each of them is.
    """

    words: Sequence[str] = ()
    what: str = "name"

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        """At least one, each once."""
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        listed: list[Any] = list(value) if isinstance(value, Iterable) else [None]
        given = [str(one) for one in listed if isinstance(one, str)]
        if len(given) != len(listed):
            raise InputError(f"{name} takes names of {self.what}s ({', '.join(self.words)}); got {described(value)}.")
        if not given or len(set(given)) != len(given):
            raise InputError(f"{name} must name at least one {self.what}, each once; got {described(value)}.")
        for one in given:
            if one not in self.words:
                raise InputError(f"Unknown {self.what} {one!r}. {did_you_mean(one, self.words)}")
        return tuple(given)


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number.

    Attributes:
        least: The smallest that is taken.
        none: What None means; empty where None is not taken.
    """

    least: int = 0
    none: str = ""

    def check(self, name: str, value: Any) -> int | None:
        """A whole number of any kind, numpy's too; no truth value."""
        if value is None and self.none:
            return None
        number = as_whole(value)
        also = f", or None for {self.none}" if self.none else ""
        if number is None:
            raise InputError(f"{name} takes a whole number{also}; got {described(value)}.")
        if number < self.least:
            raise InputError(f"{name} must be at least {self.least}{also}, got {number}.")
        return number

    def parse(self, text: str) -> int | str:
        """A number where it is one; what is none is refused by the check."""
        return int(text) if re.fullmatch(r"[+-]?\d+", text.strip()) else text


@dataclass(frozen=True)
class Switch(Kind):
    """Yes or no.

    Attributes:
        off: The shell's flag for no.
    """

    off: str = ""

    def check(self, name: str, value: Any) -> bool:
        """A truth value."""
        if isinstance(value, bool):
            return value
        raise InputError(f"{name} takes True or False; got {described(value)}.")


@dataclass(frozen=True)
class Numbers(Kind):
    """Different whole numbers: layers, heads. ``None`` or ``"all"`` for all of them, one number, a list, or ``"0-11"``.

    Attributes:
        pair: First and last of a run are meant.
    """

    pair: bool = False

    def check(self, name: str, value: Any) -> tuple[int, ...] | None:
        """The numbers, ascending; None for all."""
        if value is None or (isinstance(value, str) and value.strip().lower() in ("", "all")):
            return None
        numbers = number_list(value, name) if isinstance(value, str) else self._given(name, value)
        if self.pair:
            # A shell gives a run of numbers, Python its two ends.
            first, last = numbers[0], numbers[-1]
            run = numbers == list(range(first, last + 1))
            if not (len(numbers) == 2 or (run and isinstance(value, str))) or not 0 <= first <= last:
                raise InputError(f"{name} must be first and last, such as (0, 11); got {described(value)}.")
            return first, last
        if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0:
            raise InputError(f"{name} must be different numbers from 0 on, got {described(value)}.")
        return tuple(sorted(numbers))

    def _given(self, name: str, value: Any) -> list[int]:
        given = [value] if as_whole(value) is not None else value
        if not isinstance(given, Iterable):
            raise InputError(
                f"{name} takes 'all', a number, a list of numbers or a text such as '0-11'; got {described(value)}."
            )
        numbers = [as_whole(one) for one in given]
        if not numbers or any(one is None for one in numbers):
            raise InputError(
                f"{name} takes 'all', a number, a list of numbers or a text such as '0-11'; got {described(value)}."
            )
        return [one for one in numbers if one is not None]


@dataclass(frozen=True)
class Shares(Kind):
    """Three positive numbers that sum to 1."""

    def check(self, name: str, value: Any) -> tuple[float, float, float]:
        """Shares of training, validation and test questions."""
        given = value.split(",") if isinstance(value, str) else value
        try:
            shares = tuple(float(share) for share in given)
        except (TypeError, ValueError):
            shares = ()
        if len(shares) != 3 or not (min(shares) > 0 and abs(sum(shares) - 1) <= 1e-6):  # NaN is neither
            raise InputError(
                f"{name} must be three positive numbers that sum to 1 (train, validation, test); got {described(value)}."
            )
        return shares[0], shares[1], shares[2]


@dataclass(frozen=True)
class Memory(Kind):
    """Bytes, as a number or as ``"2GB"``."""

    def check(self, name: str, value: Any) -> int | None:
        """Bytes."""
        return None if value is None else memory_size(value, name)


@dataclass(frozen=True)
class Maybe(Kind):
    """True, False, or None for what the tokenizer does."""

    def check(self, name: str, value: Any) -> bool | None:
        """A truth value or None."""
        if value is None or isinstance(value, bool):
            return value
        raise InputError(f"{name} takes True, False or None; got {described(value)}.")

    def parse(self, text: str) -> Any:
        """``yes`` or ``no``."""
        return {"yes": True, "true": True, "no": False, "false": False}.get(text.strip().lower(), text)


@dataclass(frozen=True)
class Own(Kind):
    """An object that no shell and no file can write.

    Attributes:
        what: What it has to be.
        fits: Whether something is one.
    """

    what: str = ""
    fits: Callable[[Any], bool] = callable

    def check(self, name: str, value: Any) -> Any:
        """None or such an object."""
        if value is None or self.fits(value):
            return value
        raise InputError(f"{name} takes {self.what}; got {described(value)}.")


@dataclass(frozen=True)
class Argument:
    """One argument of a protocol.

    Attributes:
        kind: What it takes.
        help: One or two sentences.
        flag: The shell's name for it.
        how: It decides how numbers are computed, not which: it is no part of a specification's identity.
        shell: Whether a shell and a file can give it.
    """

    kind: Kind
    help: str
    flag: str
    how: bool
    shell: bool


def argument(
    default: Any, kind: Kind, help: str, *, flag: str = "", how: bool = False, shell: bool = True  # noqa: A002
) -> Any:  # fmt: skip
    """A field of a specification; see :class:`Argument`."""
    meta = Argument(kind, help, flag, how, shell and not isinstance(kind, Own))
    extra: Any = {"argument": meta}
    return Field(default, description=help, json_schema_extra=extra)


def argument_of(field: FieldInfo) -> Argument:
    """What was declared with :func:`argument`."""
    extra = field.json_schema_extra
    assert isinstance(extra, dict)  # argument() made it
    found: Any = extra["argument"]
    assert isinstance(found, Argument)
    return found


def number_list(text: str, name: str) -> list[int]:
    """``0-11``, ``0,4,8`` or ``0-28:4``.

    Raises:
        InputError: The text is not of this form.
    """
    chosen: list[int] = []
    for part in text.split(","):
        body, _, step = part.strip().partition(":")
        first, dash, last = body.partition("-")
        numbers = [first, last if dash else first, step or "1"]
        if not all(n.isdecimal() for n in numbers) or int(numbers[2]) < 1 or int(numbers[1]) - int(numbers[0]) > 10**5:
            raise InputError(f"{name}={shortened(text)} is not understood. Write 0-11, or 0,4,8, or 0-28:4.")
        if int(numbers[0]) > int(numbers[1]):
            raise InputError(f"{name}={shortened(text)} runs backwards. Write the lower number first, for example 0-11.")
        chosen += range(int(numbers[0]), int(numbers[1]) + 1, int(numbers[2]))
    return chosen


def memory_size(value: Any, name: str = "max_memory") -> int:
    """Bytes of a number or of a text such as ``"1.5GB"`` or ``"512 MiB"``.

    Raises:
        InputError: It is not understood, or not positive.

    >>> memory_size("1.5GB"), memory_size("512 MiB")
    (1500000000, 536870912)
    """
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMG]I?)?B?\s*", str(value).upper())
    size = 0 if found is None or isinstance(value, bool) else int(float(found[1]) * _UNITS[found[2] or ""])
    if size < 1:
        raise InputError(f"{name}={described(value)} is not understood. Write bytes, or for example '2GB' or '512MiB'.")
    return size


__all__ = [
    "Argument", "Kind", "Maybe", "Memory", "Numbers", "Own", "Shares", "Switch", "Whole", "Word", "Words", "argument", "argument_of",
    "memory_size", "number_list",
]  # fmt: skip
