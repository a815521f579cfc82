"""Functions of the user's own: their name in outputs, whether they can be called, and a fingerprint that tells two of them apart.

The fingerprint is made of what decides a function's behaviour: its compiled code (with all functions inside it), its defaults, the
values in its closure, and the constants and helper functions of its own file that it reads. Not of its source text: the text of a
lambda is the whole statement around it, and a file may have been edited since it was imported. It is the same in every process of
one Python version; another version compiles other code, so it gives another fingerprint. What cannot be looked into (a tokenizer,
an open file) counts by its type alone.
"""

import dataclasses
import dis
import functools
import hashlib
import inspect
import numbers
import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

_LENGTH = 12
# An array above this many entries is told by evenly spaced ones: a closure over a large model must not cost minutes.
_MOST_ENTRIES = 1 << 22
_MOST_NESTED = 24
# Of co_flags, what the code itself does not say: *args, **kwargs, and the kinds of generator. Not whether it is nested.
_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_SCALARS = (bool, str, bytes, int, float, complex)


def callable_name(fn: Callable[..., Any]) -> str:
    """How outputs name a function of the user's own.

    >>> callable_name(len)
    'callable:len'
    """
    return f"callable:{getattr(fn, '__name__', type(fn).__name__)}"


def takes(fn: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments; True where Python cannot tell.

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


def fingerprint(fn: Callable[..., Any]) -> str:
    """A short hash of what a function does, 12 hexadecimal digits.

    Two functions that do different things differ, whatever they are called; the same function defined twice is the same.

    Args:
        fn: A function, lambda, method, ``functools.partial`` or object with ``__call__``; of the last, the attributes count too.
    """
    return hashlib.sha256(_Reader().function(fn).encode("utf8", "backslashreplace")).hexdigest()[:_LENGTH]


class _Reader:
    """Writes functions and values as text without memory addresses.

    It keeps what it is inside of, so that circles end, and the functions it has read, so that each is read once.
    """

    def __init__(self) -> None:
        self._inside: list[object] = []
        self._read: list[types.FunctionType] = []

    def function(self, fn: Callable[..., Any]) -> str:
        """What is called: of an object with ``__call__``, its type's code and its attributes."""
        if isinstance(fn, type):
            return f"class({self._class(fn)})"
        whole = functools.partial | types.MethodType | operator.itemgetter | operator.attrgetter | operator.methodcaller
        if isinstance(fn, whole) or inspect.isroutine(fn) or callable(getattr(fn, "__wrapped__", None)):
            return self.value(fn)
        return f"{_kind(fn)}({self._class(type(fn))},{self._attributes(fn)})"

    def value(self, value: object) -> str:
        """Any value: plain data by content, functions by code, the rest by type."""
        if value is None or value is ... or isinstance(value, (*_SCALARS, numbers.Number, bytearray, range)):
            return f"{_kind(value)}:{_plain(value)}"
        if isinstance(value, types.FunctionType):
            if any(value is other for other in self._read):
                return f"function {next(i for i, other in enumerate(self._read) if other is value)}"
            self._read.append(value)
        if any(value is outer for outer in self._inside) or len(self._inside) > _MOST_NESTED:
            return f"again:{_kind(value)}"
        self._inside.append(value)
        try:
            return f"{_kind(value)}({','.join(self._parts(value))})"
        finally:
            self._inside.pop()

    def _parts(self, value: object) -> list[str]:
        """What stands between a value's brackets."""
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, functools.partial):
            return [self.function(value.func), self.value(value.args), self.value(value.keywords)]
        if isinstance(value, types.MethodType):
            owner = value.__self__
            return [self.value(value.__func__), self._class(type(owner)), self._attributes(owner)]
        if isinstance(value, operator.itemgetter | operator.attrgetter | operator.methodcaller):
            return [self.value(part) for part in value.__reduce__()]
        return self._data(value)

    def _data(self, value: object) -> list[str]:
        """Containers and other values that are looked into."""
        if isinstance(value, Enum):
            return [value.name]
        if isinstance(value, PurePath):
            return [repr(str(value))]
        if isinstance(value, re.Pattern):
            return [repr(value.pattern), str(value.flags)]
        if isinstance(value, slice):
            return [self.value(part) for part in (value.start, value.stop, value.step)]
        if isinstance(value, set | frozenset):
            return sorted(self.value(item) for item in value)
        if isinstance(value, Mapping):
            return sorted(f"{self.value(key)}={self.value(item)}" for key, item in value.items())
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return [f"{f.name}={self.value(getattr(value, f.name, None))}" for f in dataclasses.fields(value)]
        return self._opaque(value)

    def _opaque(self, value: object) -> list[str]:
        """Arrays, modules of weights, what wraps a function, what has nothing but a name, and what is known by its type alone."""
        array = _array(value)
        if array is not None:
            return array
        if _has_weights(value):
            return [self.value(dict(value.state_dict()))]  # pyright: ignore[reportAttributeAccessIssue]
        wrapped = getattr(value, "__wrapped__", None)
        if callable(wrapped):
            return [self.function(wrapped)]
        if not (
            isinstance(value, type) or inspect.ismodule(value) or inspect.isroutine(value) or type(value).__name__ == "ufunc"
        ):
            return []
        names = (getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None)))
        bound = [self.value(value.__self__)] if isinstance(value, types.BuiltinMethodType) else []
        return [*(name for name in names if isinstance(name, str)), *bound]

    def _function(self, fn: types.FunctionType) -> list[str]:
        """Code, defaults, closure, and what it reads of its own file."""
        names = fn.__code__.co_freevars
        cells = [f"{name}={self._cell(cell)}" for name, cell in zip(names, fn.__closure__ or (), strict=True)]
        own = [self.value(fn.__code__), self.value(fn.__defaults__), self.value(fn.__kwdefaults__)]
        return [*own, *cells, *self._globals(fn)]

    def _cell(self, cell: types.CellType) -> str:
        """What a closure holds."""
        try:
            return self.value(cell.cell_contents)
        except ValueError:
            return "empty"

    def _globals(self, fn: types.FunctionType) -> Iterator[str]:
        """What the code reads of its file: constants, and functions of the same file. What can be changed in place is left out."""
        for name in sorted(_global_names(fn.__code__)):
            value = fn.__globals__.get(name)
            if _is_constant(value) or (isinstance(value, types.FunctionType) and value.__module__ == fn.__module__):
                yield f"{name}={self.value(value)}"

    def _code(self, code: types.CodeType) -> list[str]:
        """Compiled code without the place where it stands."""
        facts = (
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS, code.co_code,
            getattr(code, "co_exceptiontable", b""), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
        )  # fmt: skip
        # Python 3.10 keeps the qualified name of an inner function among the constants: it says where the outer one stands.
        constants = [c.rsplit(".<locals>.", 1)[-1] if isinstance(c, str) else c for c in code.co_consts]
        return [repr(facts), *(self.value(constant) for constant in constants)]

    def _class(self, cls: type) -> str:
        """The methods and constants of a class, and of the classes of the same package that it is made from."""
        parts: list[str] = []
        for base in cls.__mro__[:-1]:
            parts.append(f"{base.__module__}.{base.__qualname__}")
            if base.__module__.partition(".")[0] == cls.__module__.partition(".")[0]:
                parts += self._members(base)
        return ",".join(parts)

    def _members(self, cls: type) -> Iterator[str]:
        """What a class itself defines, but for the names that Python adds."""
        for name, member in sorted(vars(cls).items()):
            if name.startswith("__") and name.endswith("__") and name != "__call__":
                continue
            if isinstance(member, staticmethod | classmethod):
                member = member.__func__
            elif isinstance(member, property):
                member = member.fget
            elif isinstance(member, functools.cached_property):
                member = member.func
            yield f"{name}={self.value(member)}"

    def _attributes(self, owner: object) -> str:
        """The values that an object holds."""
        if isinstance(owner, type | types.ModuleType) or _array(owner) is not None:
            return self.value(owner)
        there = dict(getattr(owner, "__dict__", {}))
        for cls in type(owner).__mro__:
            slots = vars(cls).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else tuple(slots):
                if hasattr(owner, name) and name not in ("__dict__", "__weakref__"):
                    there[name] = getattr(owner, name)
        if _has_weights(owner):
            there = {name: value for name, value in there.items() if not name.startswith("_")}
            return f"{self.value(there)},{self.value(owner)}"
        return self.value(there)


def _kind(value: object) -> str:
    """A value's type, in full."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _plain(value: object) -> str:
    """A plain value as text; of a subclass with a ``repr`` of its own, as its base writes it."""
    for base in _SCALARS:
        if isinstance(value, base):
            return base.__repr__(value)  # pyright: ignore[reportArgumentType]
    return repr(value)


def _is_constant(value: object) -> bool:
    """Plain data that cannot be changed in place."""
    if isinstance(value, tuple | frozenset):
        return all(_is_constant(item) for item in value)
    return isinstance(value, (*_SCALARS, Enum, range))


def _global_names(code: types.CodeType) -> set[str]:
    """Global names that a code object reads and does not set, with those of the functions inside it."""
    steps = list(dis.get_instructions(code))
    names = {step.argval for step in steps if step.opname in _LOADS}
    names -= {step.argval for step in steps if step.opname == "STORE_GLOBAL"}
    return names.union(*(_global_names(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def _has_weights(value: Any) -> bool:
    """Whether it is a torch module, as far as it is looked at."""
    return not isinstance(value, type) and callable(getattr(value, "state_dict", None)) and hasattr(value, "parameters")


def _array(value: Any) -> list[str] | None:
    """A numpy array or torch tensor: its type, shape and the hash of its bytes; None for what is neither.

    Of a large one evenly spaced entries are hashed; one of Python objects counts by its type and shape.
    """
    if isinstance(value, type) or not all(hasattr(value, name) for name in ("dtype", "shape", "reshape")):
        return None
    about = [str(value.dtype), str(tuple(value.shape))]
    if hasattr(value, "detach"):
        value = value.detach()
        value = value if str(value.layout) == "torch.strided" else value.to_dense()
    flat = value.reshape(-1)
    flat = flat[:: max(1, -(-len(flat) // _MOST_ENTRIES))]
    try:
        if hasattr(flat, "cpu"):
            # numpy has no bfloat16 and no 8-bit floats; float32 holds all of them exactly.
            narrow = "float" in str(flat.dtype) and flat.element_size() < 4
            flat = (flat.float() if narrow else flat).cpu().numpy()
    except (TypeError, NotImplementedError):
        return about
    if getattr(flat.dtype, "hasobject", False) or not hasattr(flat, "tobytes"):
        return about
    return [*about, hashlib.sha256(flat.tobytes()).hexdigest()]
