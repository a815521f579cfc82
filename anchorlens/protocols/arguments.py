"""Kinds of arguments of a specification; each validates values from Python, the command line or a
TOML file.

A field of a specification is declared as ``name: Annotated[type, Kind(...)] = argument(default,
help)``. Signature, docstring, command line option, checks and tables of the docs are made from it.
Only light modules are imported here.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler
from typing_extensions import override

from anchorlens.display import as_int, short_repr, shorten
from anchorlens.errors import InputError, did_you_mean
from anchorlens.fingerprint import callable_name, takes

_LARGEST_INDEX = 10**5
GROUPS = {
    "usual": "Measurement",
    "controls": "Controls",
    "truth": "Truth probes and readouts",
    "statistics": "Statistics",
    "execution": "Execution",
}
"""Group of arguments -> title, in the order of help and docs."""


class Kind:
    """Annotation of an argument; validates the value before pydantic."""

    metavar: ClassVar[str] = "NAME"

    def check(self, name: str, value: Any) -> Any:
        """Return the value to store. Raise InputError if the value is invalid."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        def validate(value: Any, info: Any) -> Any:
            try:
                return self.check(info.field_name or "", value)
            except InputError as error:
                error.arguments = error.arguments or (info.field_name or "",)
                raise

        return BeforeValidator(validate).__get_pydantic_core_schema__(source, handler)


@dataclass(frozen=True)
class Choice(Kind):
    """One of several names, or a user function if ``function`` describes one."""

    names: Sequence[str]
    function: str = ""
    n_arguments: int | tuple[int, ...] = 0
    error: type[InputError] = InputError

    @override
    def check(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            if value in self.names:
                return value
            raise self.error(f"Unknown {name}={value!r}. {did_you_mean(value, self.names)}")
        is_function = callable(value) and not isinstance(value, type)
        if self.function and is_function:
            allowed = self.n_arguments
            if isinstance(allowed, int):
                allowed = (allowed,)
            if any(takes(value, count) for count in allowed):
                return value
            raise self.error(
                f"{name}={callable_name(value)}: takes another number of arguments. Give"
                f" {self.function}."
            )
        also = f", or {self.function}" if self.function else ""
        raise self.error(
            f"{name}={short_repr(value)} must be one of {', '.join(self.names)}{also}."
        )


@dataclass(frozen=True)
class Choices(Kind):
    """One or more different names, as a sequence or a comma-separated string.

    Attributes:
        names: Allowed names.
        noun: Noun for one name in messages.
        none: Argument that stands for no name, such as ``n_null_donors=0``.
    """

    names: Sequence[str]
    noun: str
    none: str = ""
    metavar: ClassVar[str] = "A,B"

    @override
    def check(self, name: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        given = tuple(value) if isinstance(value, Iterable) else ()
        unknown = next((one for one in given if one not in self.names), None)
        if isinstance(unknown, str):
            raise InputError(
                f"Unknown {self.noun} {unknown!r}. {did_you_mean(unknown, self.names)}"
            )
        if not given or unknown is not None or len(set(given)) != len(given):
            known = ", ".join(self.names)
            instead = f" For none, pass {self.none}." if self.none and not given else ""
            raise InputError(
                f"{name}={short_repr(value)} must be one or more different {self.noun}s ({known})."
                f"{instead}"
            )
        return given


@dataclass(frozen=True)
class Int(Kind):
    """A whole number from ``least`` to ``most``, the string ``word`` if given, or None if ``none``
    describes it.
    """

    least: int = 0
    none: str = ""
    word: str = ""
    most: int = 2**31 - 1
    metavar: ClassVar[str] = "N"

    @override
    def check(self, name: str, value: Any) -> int | str | None:
        if value is None and self.none:
            return value
        given = value
        if self.word and isinstance(value, str):
            if value == self.word:
                return value
            if value.isdecimal():
                given = int(value)
        number = as_int(given)
        also = ""
        if self.none:
            also = f", or None for {self.none}"
        elif self.word:
            also = f", or {self.word!r}"
        if number is None:
            raise InputError(f"{name}={short_repr(value)} must be a whole number{also}.")
        if number < self.least:
            raise InputError(f"{name}={number} must be at least {self.least}{also}.")
        if number > self.most:
            raise InputError(f"{name}={short_repr(number)} must be at most {self.most}{also}.")
        return number


@dataclass(frozen=True)
class Indices(Kind):
    """Indices of layers or heads: None, "all", a number, a sequence, or a string such as "0-28:4"
    or "-4:".

    Negative indices count from the end, as in Python; :meth:`resolve` replaces them when the model
    is known.

    Attributes:
        bounds: Whether the value is the first and the last index.
        of: Kind of index, ``layers`` or ``heads``.
    """

    bounds: bool = False
    of: str = "layers"
    metavar: ClassVar[str] = "0-11"

    @override
    def check(self, name: str, value: Any) -> tuple[int, ...] | None:
        if value is None or (isinstance(value, str) and value.strip().lower() == "all"):
            return None
        if isinstance(value, str):
            numbers = _parse_indices(name, value)
        else:
            numbers = _whole_numbers(value if isinstance(value, Iterable) else [value])
        if self.bounds:
            is_pair = len(numbers) == 2
            is_range = numbers and numbers == list(range(numbers[0], numbers[-1] + 1))
            is_range = is_range and (isinstance(value, str) or len(numbers) == 1)
            crossed = False
            if is_pair:
                first, last = numbers
                crossed = first > last and (first < 0) == (last < 0)
            if crossed or not (is_pair or is_range):
                raise InputError(
                    f"{name}={short_repr(value)} must be first and last, such as (0, 11) or (-4,"
                    " -1)."
                )
            return numbers[0], numbers[-1]
        if not numbers or len(set(numbers)) != len(numbers):
            raise InputError(
                f"{name}={short_repr(value)} must be different whole numbers, 'all' or a text such"
                " as '0-11'."
            )
        return tuple(sorted(numbers))

    def resolve(self, name: str, value: Sequence[int], size: int) -> tuple[int, ...]:
        """Return indices that count from 0, in a model with ``size`` layers or heads.

        Raises:
            InputError: If the model lacks one of them, or one is named twice.
        """
        indices = tuple(index + size if index < 0 else index for index in value)
        in_order = indices[0] <= indices[-1] if self.bounds else len(set(indices)) == len(indices)
        if min(indices) < 0 or max(indices) >= size or not in_order:
            lacking = next((one for one in value if not -size <= one < size), None)
            if lacking is not None:
                raise InputError(
                    f"{name}={short_repr(value)}: the model has {size} {self.of};"
                    f" {lacking} is the first that it lacks. Give numbers from {-size} to"
                    f" {size - 1}.",
                    argument=name,
                )
            what = "first and last" if self.bounds else "different numbers"
            raise InputError(
                f"{name}={short_repr(value)} must be {what} from {-size} to {size - 1}.",
                argument=name,
            )
        return indices if self.bounds else tuple(sorted(indices))


def _whole_numbers(values: Iterable[Any]) -> list[int]:
    """Return values as whole numbers; none of them if one is not a whole number."""
    numbers: list[int] = []
    for value in values:
        number = as_int(value)
        if number is None:
            return []
        numbers.append(number)
    return numbers


# A number, a range with a step, or the last N.
_INDEX_PART = re.compile(
    r"(?P<one>-?\d+)|(?P<first>\d+)-(?P<last>\d+)(:(?P<step>\d+))?|-(?P<count>\d+):"
)


def _parse_indices(name: str, text: str) -> list[int]:
    """Parse ``0-11``, ``0,4,8``, ``0-28:4``, ``-1`` or ``-4:``."""
    numbers: list[int] = []
    for part in text.split(","):
        match = _INDEX_PART.fullmatch(part.strip())
        given: dict[str, int] = {}
        for key, value in match.groupdict().items() if match else ():
            if value is not None:
                given[key] = int(value)
        first = given.get("one", given.get("first", -given.get("count", 0)))
        last = given.get("one", given.get("last", -1))
        step = given.get("step", 1)
        if not given or step < 1 or not 0 <= last - first <= _LARGEST_INDEX:
            raise InputError(
                f"{name}={shorten(text)} is invalid. Write 0-11, or 0,4,8, or 0-28:4, or -4: (the"
                " last 4)."
            )
        numbers += range(first, last + 1, step)
    return numbers


class MemorySize(Kind):
    """Bytes, or a number with a unit such as "2GB"; stricter than pydantic's ``ByteSize``, which
    accepts "1,5GB".
    """

    metavar: ClassVar[str] = "SIZE"

    @override
    def check(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and not re.fullmatch(r"\s*\d*\.?\d+\s*[a-zA-Z]*\s*", value):
            raise InputError(
                f"{name}={shorten(value)} is invalid. Write bytes, or for example '2GB' or"
                " '512MiB'."
            )
        return value


@dataclass(frozen=True)
class PythonOnly(Kind):
    """Object that can be passed from Python only; None by default."""

    what: str
    is_valid: Callable[[Any], bool] = callable

    @override
    def check(self, name: str, value: Any) -> Any:
        if value is None or self.is_valid(value):
            return value
        raise InputError(f"{name}={short_repr(value)} must be {self.what}.")


@dataclass(frozen=True, kw_only=True)
class Argument:
    """Documentation and command line option of an argument.

    Attributes:
        help: Description, one or two sentences.
        group: A key of :data:`GROUPS`; ``execution`` if ``execution_only``.
        flag: Option on the command line; derived from the name if empty.
        off: Option that turns a boolean off; ``--no-NAME`` if empty.
        metavar: Placeholder of the value in ``--help``; that of the kind if empty.
        execution_only: Whether the argument affects execution only, so that ``run_id`` excludes it.
        in_shell: Whether the command line and files accept the argument.
    """

    help: str
    group: str = "usual"
    flag: str = ""
    off: str = ""
    metavar: str = ""
    execution_only: bool = False
    in_shell: bool = True

    def __post_init__(self) -> None:
        if self.execution_only:
            object.__setattr__(self, "group", "execution")


def group_arguments(arguments: Mapping[str, Argument]) -> dict[str, dict[str, Argument]]:
    """Return title -> arguments of each non-empty group."""
    groups: dict[str, dict[str, Argument]] = {}
    for group, title in GROUPS.items():
        members = {name: one for name, one in arguments.items() if one.group == group}
        if members:
            groups[title] = members
    return groups


def argument(default: Any, help: str, **details: Any) -> Any:  # noqa: A002
    """Declare a field of a specification; ``details`` are the other attributes of
    :class:`Argument`.
    """
    extra: Any = {"argument": Argument(help=help, **details)}
    return Field(default, description=help, json_schema_extra=extra)
