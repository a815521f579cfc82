"""Whether the value of a metric depends on its argument alone, and state that it keeps between
calls.

TransformerLens calls a metric once per cell, in the order of the cells. A metric that counts its
calls, or divides by the value of its first call, depends on that order. Whether a call changed
anything that the function can reach is observed, not guessed.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from anchorlens.display import warn
from anchorlens.errors import InputError
from anchorlens.fingerprint import callable_name

State: TypeAlias = list[tuple[object, object]]
"""Objects that a function can reach, each with what a change of it would alter."""

# Objects that are looked at, and how deep containers and attributes are followed.
_MOST, _DEPTH = 2000, 4

# Relative and absolute difference of two values of a metric on the same logits that counts as none:
# sums on a GPU may be added up in another order.
_REPEATS = 1e-5


def first_change(one: Tensor, other: Tensor) -> int | None:
    """Return the index of the first two values of a metric that differ by more than rounding; None
    if there are none.
    """
    differs = ~torch.isclose(one, other, rtol=_REPEATS, atol=_REPEATS)
    return int(differs.flatten().int().argmax()) if bool(differs.any()) else None


def check_repeats(
    argument: str,
    function: Callable[..., Any],
    call: Callable[[], Tensor],
    value: Tensor,
    of: str = "logits",
) -> None:
    """Call a metric or readout function of the user again with the same numbers.

    Warn if the second call, too, changed what the function can reach. A value that is computed once
    and kept is no state.

    Args:
        argument: Argument that the function was given as.
        function: The function.
        call: Calls it with the same numbers and returns its values.
        value: Values of its first call with these numbers.
        of: Name of the numbers.

    Raises:
        InputError: If it gives another value.
    """
    name = f"{argument}={callable_name(function)}"
    state = state_of(function)
    again = call()
    at = first_change(value, again)
    if at is not None:
        raise InputError(
            f"{name}: gave {float(value.flatten()[at]):.6g} and {float(again.flatten()[at]):.6g}"
            f" for the same {of}, which would count as an effect. Return a value that depends on"
            f" the {of} alone, without random draws and counters.",
            argument=argument,
        )
    if not is_same_state(state, state_of(function)):
        warn(
            f"{name}: changes something that it keeps between calls. If its value depends on that,"
            " effects depend on the order of the cells, which is another for each engine and each"
            f" job. Return a value that depends on the {of} alone."
        )


def state_of(*functions: Callable[..., Any]) -> State:
    """Return the state that functions can reach: closures, defaults, attributes and globals.

    Random generators are not looked at: a metric that draws gives two values for the same logits,
    which is found, and type checkers draw too.

    Example:
        >>> seen = []
        >>> before = state_of(seen.append)
        >>> seen.append(1)
        >>> is_same_state(before, state_of(seen.append))
        False
    """
    found: State = []
    visited: set[int] = set()
    for function in functions:
        _visit(function, _DEPTH, found, visited)
    return found


def is_same_state(before: State, after: State) -> bool:
    """Return whether nothing changed."""
    if len(before) != len(after):
        return False
    for (one, mark), (two, other) in zip(before, after, strict=True):
        if one is not two:
            return False
        if not (mark is other or mark == other):
            return False
    return True


def _visit(value: object, depth: int, found: State, visited: set[int]) -> None:
    if len(found) >= _MOST or isinstance(value, (ModuleType, type, nn.Module)):
        return
    if isinstance(value, (int, float, complex, str, bytes, type(None))):
        found.append((None, value))
        return
    if id(value) in visited:
        found.append((value, None))
        return
    visited.add(id(value))
    found.append((value, _mark(value)))
    if depth:
        for part in _parts(value):
            _visit(part, depth - 1, found, visited)


def _mark(value: object) -> object:
    """Return what changes with the value of an object, beside its parts."""
    if isinstance(value, Tensor):
        return value._version
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes < 10_000 else value.shape
    try:
        return len(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, RuntimeError):
        return None


def _parts(value: object) -> Iterator[object]:
    """Yield the objects that a value refers to and that a call may change."""
    if isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        for name in _names(value.__code__):
            one = value.__globals__.get(name)
            if not isinstance(one, FunctionType) or one.__module__ == value.__module__:
                yield one
        yield from vars(value).values()
    elif isinstance(value, MethodType):
        yield value.__func__
        yield value.__self__
    elif isinstance(value, BuiltinFunctionType):  # such as list.append of a list
        yield value.__self__
    elif isinstance(value, partial):
        yield value.func
        yield from value.args
        yield from value.keywords.values()
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif not isinstance(value, (Tensor, np.ndarray)) and hasattr(value, "__dict__"):
        yield from vars(value).values()
        call = getattr(type(value), "__call__", None)  # noqa: B004
        if isinstance(call, FunctionType):
            yield call


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function and its inner functions use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
