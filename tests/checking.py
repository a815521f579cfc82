"""Run-time checks of types and shapes in tests."""

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache, wraps
from inspect import isgeneratorfunction
from types import FunctionType
from typing import Any, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

# As in PEP 484, an int is a float too.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped

# Checks of every call took 37 % of the tests' CPU time, nearly all of it in functions that a process
# calls thousands of times with the same types.
FIRST_CALLS = 40
EVERY = 20
"""After the first calls of a function in a process, one call of so many is checked."""


def check_package() -> None:
    """Check every function and dataclass of anchorlens that is imported from here on, except
    functions inside functions.

    A nested function is defined anew at every call, and its checks take a millisecond to compile:
    40% of the engine's tests.
    """
    jaxtyping.jaxtyped = _check_unless_nested
    jaxtyping.install_import_hook("anchorlens", "tests.checking.checked").__enter__()


def _check_unless_nested(*, typechecker: Any) -> Callable[[Any], Any]:
    def check(kind: Any) -> Any:
        if "<locals>" in kind.__qualname__:
            return kind
        if isinstance(kind, FunctionType):
            return _check_function(kind)
        if is_dataclass(kind) and isinstance(vars(kind).get("__init__"), FunctionType):
            kind.__init__ = _check_function(kind.__init__)
            return kind
        return _jaxtyped(kind, typechecker=typechecker)

    return check


def _check_function(function: FunctionType) -> Callable[..., Any]:
    """Check arguments and result by one call of beartype; dimensions are compared only where a type
    has some.

    jaxtyping's own way binds the arguments and checks them twice at every call, which was half of
    the time of the tests. The check is compiled at the first call: most functions that a test
    imports are never called there.
    """
    n_calls = 0

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        is_checked = n_calls <= FIRST_CALLS or n_calls % EVERY == 0
        if not is_checked or jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        strict, has_dimensions = _compile(function)
        if not has_dimensions:
            return strict(*args, **kwargs)
        if isgeneratorfunction(function):
            return _read(strict(*args, **kwargs))
        with _jaxtyped(
            "context"
        ):  # one size for a dimension's name, in all arguments and the result
            return strict(*args, **kwargs)

    return call


def _read(values: Iterator[Any]) -> Iterator[Any]:
    """Yield the values of a generator that checks its arguments when it is first read: with sizes of
    its own, not those of the function that reads it.
    """
    end = object()
    while True:
        with _jaxtyped("context"):
            value = next(values, end)
        if value is end:
            return
        yield value


@cache
def _compile(function: FunctionType) -> tuple[Callable[..., Any], bool]:
    """Return a function with its types checked, and whether a type has dimensions."""
    plain = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    plain.__kwdefaults__ = function.__kwdefaults__
    plain.__module__ = function.__module__
    plain.__qualname__ = function.__qualname__
    plain.__annotations__ = {
        name: _resolve(one, function) for name, one in function.__annotations__.items()
    }
    kinds = plain.__annotations__.values()
    return checked(plain), any("jaxtyping." in repr(one) for one in kinds)


def _resolve(annotation: Any, function: FunctionType) -> Any:
    """Return a type of which no part is text; Any if a name in it is imported for type checkers
    alone, or defined later.
    """

    def of(value: Any) -> None: ...

    of.__annotations__["value"] = annotation
    try:
        return get_type_hints(of, function.__globals__, include_extras=True)["value"]
    except NameError:
        return Any
