"""User functions: name in outputs, number of arguments, and a fingerprint of the computation.

The fingerprint of a function covers its compiled code, inner functions, defaults, attributes and
closure, and the globals that it reads: numbers and texts, tensors and arrays, containers of these,
and functions, classes, objects and modules of the user's own. Of what a library made, such as a
model, only the type counts, and of a torch module its weights. That of an object covers its
attributes and its class's own members. Source text, line numbers, memory addresses and hash seeds
do not matter, so every process of one Python version gives the same fingerprint.
"""

import dis
import functools
import inspect
import pickle  # noqa: TID251 - only its exception; nothing is written
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Set
from operator import itemgetter
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, TypeVar

from anchorlens.display import short_repr
from anchorlens.errors import AnchorlensError, InputError

T = TypeVar("T")

_LENGTH = 12
# Flags of a code object that its instructions do not show: *args, **kwargs and the kinds of
# generator.
_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_CONSTANTS = (bool, str, bytes, int, float, complex, range, type(None))
# Levels of the contents of a global that are followed.
_DEPTH = 6
# Numbers of a parameter of a torch module that is larger than this many numbers.
_MOST_NUMBERS = 1_000_000
_SAMPLED = 1_000


def callable_name(fn: Callable[..., Any]) -> str:
    """Return the name of a user's function in outputs.

    >>> callable_name(len)
    'callable:len'
    """
    return f"callable:{getattr(fn, '__name__', type(fn).__name__)}"


def takes(fn: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with ``count`` positional arguments; True if Python
    cannot tell.

    >>> takes(lambda question: None, 1), takes(lambda question: None, 2)
    (True, False)
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def takes_row(fn: Callable[..., Any]) -> bool:
    """Return whether a metric function takes a row after the logits.

    It does if it needs two positional arguments, or if the second one has the name ``row``.

    >>> takes_row(lambda logits, row: 0), takes_row(lambda logits, scale=1.0: 0)
    (True, False)
    """
    if not takes(fn, 1):
        return takes(fn, 2)
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return False
    return takes(fn, 2) and len(parameters) > 1 and parameters[1].name == "row"


def call_user_function(
    argument: str, fn: Callable[..., T], error: type[InputError] = InputError, /, **values: Any
) -> T:
    """Call a user function with positional ``values``.

    Raises:
        InputError: If the function raises; the message names the function and its arguments. Out of
            memory and errors of this package are not wrapped.
    """
    try:
        return fn(*values.values())
    # A user function can raise anything; the error is raised again with its arguments.
    except Exception as why:
        if (
            isinstance(why, (AnchorlensError, MemoryError))
            or "out of memory" in str(why)
            or "allocate memory" in str(why)
        ):
            raise
        name = getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2]
        given: list[str] = []
        for key, value in values.items():
            shape = getattr(value, "shape", None)
            given.append(f"{key}={short_repr(value)}" if shape is None else f"{key} {list(shape)}")
        raise error(
            f"{argument}={name} raised {type(why).__name__}({why}) for {', '.join(given)}.",
            argument=argument,
        ) from why


def fingerprint(fn: Callable[..., Any]) -> str:
    """Return a hash of what a function computes, as 12 hexadecimal digits.

    Args:
        fn: A function, lambda, method, class, ``functools.partial`` or object with ``__call__``.
    """
    is_function = isinstance(fn, (FunctionType, BuiltinFunctionType, MethodType, functools.partial))
    value = fn if is_function else [fn, _members(fn)]
    return _hasher()("sha1").hash(value)[:_LENGTH]


@functools.cache
def _hasher() -> Any:
    """Return joblib's hasher of values, extended by functions, code and tensors; imported on first
    use.
    """
    from joblib.hashing import NumpyHasher

    class Hasher(NumpyHasher):
        def __init__(self, hash_name: str) -> None:
            super().__init__(hash_name)
            self._functions: list[FunctionType] = []

        def save(self, obj: Any) -> None:
            if isinstance(obj, FunctionType) and obj in self._functions:
                obj = ("function", self._functions.index(obj))
            elif isinstance(obj, FunctionType):
                self._functions.append(obj)
            try:
                super().save(_parts(obj))
            except (
                TypeError,
                AttributeError,
                NotImplementedError,
                RecursionError,
                pickle.PicklingError,
            ):
                super().save(("opaque", type(obj).__module__, type(obj).__qualname__))

    return Hasher


def _parts(value: Any) -> Any:
    """Return plain data for values that pickle stores by reference or address, or cannot store."""
    if isinstance(value, FunctionType):
        cells = [_contents_of(cell) for cell in value.__closure__ or ()]
        return [
            "function",
            value.__code__,
            value.__defaults__,
            value.__kwdefaults__,
            cells,
            dict(vars(value)),
            dict(_globals_read(value)),
        ]
    if isinstance(value, CodeType):
        facts = (
            value.co_argcount,
            value.co_posonlyargcount,
            value.co_kwonlyargcount,
            value.co_flags & _FLAGS,
            value.co_code,
            getattr(value, "co_exceptiontable", b""),
            value.co_names,
            value.co_varnames,
            value.co_freevars,
            value.co_cellvars,
        )
        # Python 3.10 stores an inner function's qualified name, which contains the outer function.
        return [
            "code",
            facts,
            [c.rsplit(".<locals>.", 1)[-1] if isinstance(c, str) else c for c in value.co_consts],
        ]
    if isinstance(value, MethodType):
        return ["method", value.__func__, type(value.__self__), value.__self__]
    if isinstance(value, (type, ModuleType)):
        return [
            "name",
            getattr(value, "__module__", ""),
            getattr(value, "__qualname__", value.__name__),
        ]
    if isinstance(value, frozenset):
        return ["frozenset", set(value)]
    if callable(wrapped := inspect.getattr_static(value, "__wrapped__", None)):
        return ["wrapper", type(value), wrapped]
    if hasattr(value, "detach") and hasattr(value, "untyped_storage"):
        import torch

        flat = value.detach().to_dense().cpu().reshape(-1)
        return ["tensor", str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy()]
    return value


def _contents_of(cell: Any) -> list[Any]:
    """Return a list with the contents of a cell; empty if it has none or holds itself."""
    try:
        contents = cell.cell_contents
    except ValueError:
        return []
    return [] if contents is cell else [contents]


def _globals_read(fn: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function reads and does not set, as plain data."""
    names = _global_names(fn.__code__)
    for name in sorted(names):
        if name in fn.__globals__:
            yield name, _content(fn.__globals__[name], fn, _DEPTH, ())


def _content(value: Any, reader: FunctionType, depth: int, inside: tuple[int, ...]) -> Any:
    """Return what of a global counts for the function that reads it.

    Args:
        value: The global, or a part of it.
        reader: Function that reads it.
        depth: Number of levels of contents that are followed.
        inside: Identities of the objects that contain it, so that circles end.
    """
    if isinstance(value, _CONSTANTS) or _is_array(value):
        return value
    if not depth or id(value) in inside:
        return _type_name(value)

    def inner(part: Any) -> Any:
        return _content(part, reader, depth - 1, (*inside, id(value)))

    if isinstance(value, Mapping):
        entries: list[tuple[str, Any]] = []
        for key, one in value.items():
            # Keys of other kinds are written with their addresses.
            name = repr(key) if isinstance(key, _CONSTANTS) else _type_name(key)
            entries.append((name, inner(one)))
        return ["mapping", sorted(entries, key=itemgetter(0))]
    if isinstance(value, Set):
        return ["set", {one if isinstance(one, _CONSTANTS) else _type_name(one) for one in value}]
    if isinstance(value, functools.partial):
        return ["partial", *map(inner, (value.func, value.args, value.keywords))]
    if isinstance(value, MethodType):
        return ["method", inner(value.__func__), inner(value.__self__)]
    if isinstance(value, functools._lru_cache_wrapper):
        return ["cached", inner(value.__wrapped__)]
    if isinstance(value, (list, tuple)):
        return [_type_name(value), *map(inner, value)]
    if isinstance(value, SimpleNamespace):
        return ["namespace", {name: inner(one) for name, one in vars(value).items()}]
    if isinstance(value, FunctionType):
        return value if _is_own(value.__module__, reader) else _type_name(value)
    if isinstance(value, ModuleType):
        used = _names_used(reader.__code__).intersection(vars(value))
        own = sorted(used) if _is_own(value.__name__, reader) else ()
        return ["module", value.__name__, {name: inner(vars(value)[name]) for name in own}]
    if hasattr(value, "state_dict") and hasattr(value, "named_parameters"):
        return ["torch module", _type_name(value), _weights_of(value)]
    cls = value if isinstance(value, type) else type(value)
    if not _is_own(cls.__module__, reader):
        return _type_name(value)
    parts: dict[str, Any] = {}
    if cls is not value:
        slots = [name for one in cls.__mro__ for name in getattr(one, "__slots__", ())]
        for name in {*getattr(value, "__dict__", ()), *slots}:
            if hasattr(value, name):
                parts[name] = inner(getattr(value, name))
    members = {name: inner(member) for name, member in _members(value).items()}
    kind = "class" if cls is value else "object"
    return [kind, cls.__qualname__, parts, members]


def _is_array(value: Any) -> bool:
    """Return whether a value is a tensor, an array, or a series or table of pandas."""
    if hasattr(value, "detach") and hasattr(value, "untyped_storage"):
        return True
    return type(value).__module__.partition(".")[0] in ("numpy", "pandas") and (
        hasattr(value, "dtype") or hasattr(value, "dtypes")
    )


def _type_name(value: Any) -> str:
    cls = value if isinstance(value, (type, FunctionType)) else type(value)
    return f"{cls.__module__}.{cls.__qualname__}"


def _weights_of(module: Any) -> dict[str, Any]:
    """Return the parameters of a torch module; of large ones numbers at regular distances."""
    weights: dict[str, Any] = {}
    for name, value in module.named_parameters():
        flat = value.detach().reshape(-1)
        if flat.device.type == "meta":
            weights[name] = tuple(value.shape)
        elif flat.numel() > _MOST_NUMBERS:
            weights[name] = [tuple(value.shape), flat[:: flat.numel() // _SAMPLED].clone()]
        else:
            weights[name] = value
    return weights


@functools.cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(Path(folder).resolve() for folder in [*folders, Path(__file__).parent])


def _is_own(module: str, reader: FunctionType) -> bool:
    """Return whether a module is the user's: that of the function that reads it, or a file outside
    the installed libraries.
    """
    if module in (reader.__module__, "__main__"):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        # Modules of C, and those that a user made at run time.
        return module not in sys.builtin_module_names and module.partition(".")[0] not in (
            sys.stdlib_module_names
        )
    return not any(Path(file).resolve().is_relative_to(one) for one in _library_folders())


def _names_used(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that code and its inner functions use."""
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= _names_used(inner)
    return names


def _global_names(code: CodeType) -> set[str]:
    """Return the names of globals that code and its inner functions read and do not set."""
    steps = list(dis.get_instructions(code))
    names = {step.argval for step in steps if step.opname == "LOAD_GLOBAL"}
    names -= {step.argval for step in steps if step.opname == "STORE_GLOBAL"}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= _global_names(inner)
    return names


def _members(value: Any) -> dict[str, Any]:
    """Return the methods, properties and constants that a class, or the class of an object, defines
    itself.
    """
    cls = value if isinstance(value, type) else type(value)
    members: dict[str, Any] = {}
    for name, member in vars(cls).items():
        if name.startswith("__") and name != "__call__":
            continue
        members[name] = member
        # The function of a class method, a property or a partial.
        for inner in ("__func__", "fget", "func"):
            if hasattr(member, inner):
                members[name] = getattr(member, inner)
                break
    return members
