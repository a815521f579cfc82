"""Run-time checks of types and shapes in tests."""

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

# As in PEP 484, an int is a float too.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def check_package() -> None:
    """Check every function and dataclass of anchorlens that is imported from here on, except functions inside functions.

    A nested function is defined anew at every call, and its checks take a millisecond to compile: 40% of the engine's tests.
    """
    jaxtyping.jaxtyped = _check_unless_nested
    jaxtyping.install_import_hook("anchorlens", "tests.checking.checked").__enter__()


def _check_unless_nested(*, typechecker: Any) -> Callable[[Any], Any]:
    def check(kind: Any) -> Any:
        if "<locals>" in kind.__qualname__:
            return kind
        return _check_function(kind) if isinstance(kind, FunctionType) else _jaxtyped(kind, typechecker=typechecker)

    return check


def _check_function(function: FunctionType) -> Callable[..., Any]:
    """Check arguments and result by one call of beartype; dimensions are compared only where a type has some.

    jaxtyping's own way binds the arguments and checks them twice at every call, which was half of the time of the tests.
    """
    plain = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    plain.__kwdefaults__, plain.__module__, plain.__qualname__ = function.__kwdefaults__, function.__module__, function.__qualname__
    plain.__annotations__ = {name: _resolve(one, function) for name, one in function.__annotations__.items()}
    strict = checked(plain)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if jaxtyping.config.jaxtyping_disable else strict)(*args, **kwargs)

    @wraps(function)
    def call_with_dimensions(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        with _jaxtyped("context"):  # one size for a dimension's name, in all arguments and the result
            return strict(*args, **kwargs)

    return call_with_dimensions if any("jaxtyping." in repr(one) for one in plain.__annotations__.values()) else call


def _resolve(annotation: Any, function: FunctionType) -> Any:
    """Return a type of which no part is text; Any if a name in it is imported for type checkers alone, or defined later."""

    def of(value: Any) -> None: ...

    of.__annotations__["value"] = annotation
    try:
        return get_type_hints(of, function.__globals__, include_extras=True)["value"]
    except NameError:
        return Any
