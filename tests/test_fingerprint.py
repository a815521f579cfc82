"""Fingerprints: different functions differ; the same function has the same one in every process."""

import ast
import functools
import operator
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

import numpy
import pytest
import torch

from anchorlens.errors import DonorError, InputError
from anchorlens.fingerprint import call_user_function, callable_name, fingerprint, takes

ROOT = Path(__file__).resolve().parents[1]
SCALE = 2


def double(x):
    return x * SCALE


def through_double(x):
    return double(x)


def holding(value):
    """A function whose closure holds a value."""
    return lambda x: (x, value)


class Threshold:
    """A readout of the user's own, with a number and a constant of its class."""

    FLOOR = 0.0

    def __init__(self, at):
        self.at = at

    def __call__(self, x):
        return x > self.at

    def below(self, x):
        return x < self.at


class Slotted:
    __slots__ = ("at",)

    def __init__(self, at):
        self.at = at

    def __call__(self, x):
        return x > self.at


@dataclass
class Plain:
    a: int
    b: object


class Opaque:
    """Nothing is known of it but its type."""


def defined(text, **names):
    """A function defined by a text, in names of its own."""
    home = {"__name__": "somewhere", **names}
    exec(textwrap.dedent(text), home)
    return next(value for value in reversed(home.values()) if isinstance(value, FunctionType))


def test_names_are_those_that_outputs_write():
    def mine():
        return 0

    names = [
        callable_name(f) for f in (mine, len, lambda: 0, Threshold(1), functools.partial(mine))
    ]
    assert names == [
        "callable:mine",
        "callable:len",
        "callable:<lambda>",
        "callable:Threshold",
        "callable:partial",
    ]


# Pairs of functions of one name that do different things.
TEXTS = {
    "operator": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "constant": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "type of a constant": ("def f(x): return x + 1", "def f(x): return x + 1.0"),
    "sign of a zero": ("def f(x): return 0.0", "def f(x): return -0.0"),
    "attribute": ("def f(x): return x.min()", "def f(x): return x.max()"),
    "default": ("def f(x, k=1): return k", "def f(x, k=2): return k"),
    "keyword default": ("def f(x, *, k=1): return k", "def f(x, *, k=2): return k"),
    "argument's name": ("def f(x, a): return x", "def f(x, b): return x"),
    "rest": ("def f(x): return x", "def f(*x): return x"),
    "inner function": (
        "def f(x): return [y + 1 for y in x]",
        "def f(x): return [y + 2 for y in x]",
    ),
    "inner lambda": (
        "def f(x): return (lambda y: y + 1)(x)",
        "def f(x): return (lambda y: y + 2)(x)",
    ),
    "members": ("def f(x): return x in {'a', 'b'}", "def f(x): return x in {'a', 'c'}"),
    "what is caught": (
        "def f(x):\n try: return x()\n except KeyError: pass",
        "def f(x):\n try: return x()\n except IndexError: pass",
    ),
    "generator": ("def f(x): return x", "def f(x): yield x"),
}


def test_where_it_stands_and_what_is_said_about_it_do_not_count():
    plain = defined("def f(x):\n    return [y + 1 for y in x]")
    moved = defined(
        "\n\n\ndef outer():\n    def f(x):  # a comment\n        return [y + 1 for y in x]\n   "
        " return f\ng = outer()\n"
    )
    assert fingerprint(plain) == fingerprint(moved)


VALUES = [
    1,
    2,
    1.0,
    True,
    None,
    "1",
    b"1",
    (1, 2),
    [1, 2],
    (1, (2, 3)),
    {1, 2},
    frozenset({1, 2}),
    {"a": 1},
    {"a": 2},
    range(3),
    slice(1, 3),
    Plain(1, "x"),
    Plain(1, ["x"]),
    re.compile("a"),
    re.compile("a", re.IGNORECASE),
    Path("a"),
    Path("b"),
    float("nan"),
    complex(1, 2),
    numpy.zeros(3),
    numpy.zeros((3, 1)),
    numpy.zeros(3, dtype="float32"),
    numpy.arange(3.0),
    numpy.float32(1),
    numpy.array(["a"]),
    torch.zeros(3),
    torch.ones(3),
    torch.ones(3, dtype=torch.bfloat16),
    torch.ones(3, dtype=torch.float16),
    torch.eye(3).to_sparse(),
    torch.ones(2, requires_grad=True),
    torch.zeros(3, device="meta"),
    len,
    max,
    "a".startswith,
    "b".startswith,
    double,
    through_double,
    numpy.add,
    numpy.subtract,
    torch.sum,
    Plain,
    Threshold,
    os,
    re,
    operator.itemgetter(0),
    operator.itemgetter(1),
    operator.attrgetter("a"),
    operator.methodcaller("a", 1),
    operator.methodcaller("a", k=1),
    functools.partial(max, 1),
    functools.partial(max, 2),
    functools.partial(max, key=1),
    ...,
    Opaque(),
    [[], [[]]],
    [[[]], []],
]


def linear(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Linear(2, 2, bias=False).eval()


def of_class(floor, step, static):
    class Mine:
        FLOOR = floor

        @staticmethod
        def static(x):
            return (x, static)

        @property
        def half(self):
            return step / 2

        def __call__(self, x):
            return x

    return Mine()


READS = "def f(x): return C.at + x"


def with_attribute(value):
    def f(x):
        return x + f.value

    f.value = value
    return f


def of_own_module(value):
    """A function that reads an attribute of a module that the user made."""
    mine = ModuleType("mine_of_a_test")
    mine.value = value
    mine.unread = object()
    return defined("def f(x): return x + (lambda: mine.value)()", mine=mine)


HELPED = "def helper(x): return x {} 1\ndef f(x): return helper(x) * K"
# name -> functions that all differ.
DIFFERENT = {name: lambda pair=pair: map(defined, pair) for name, pair in TEXTS.items()} | {
    "lambdas on one line": lambda: (lambda lp, m: lp[:, 0], lambda lp, m: (lp * m).sum(-1)),
    "what a closure holds": lambda: map(holding, VALUES),
    "what it holds, made again": lambda: map(
        holding,
        (
            numpy.arange(6.0).reshape(2, 3),
            torch.arange(3),
            Plain(1, [2]),
            {"b": 1, "a": {3, 4}},
            Opaque(),
            holding(3),
            functools.partial(holding(1), 2),
            linear(0),
            linear(1),
        ),
    ),
    "weights of a module": lambda: (linear(0), linear(1), linear(0).forward, linear(1).forward),
    "attributes of an object": lambda: (Threshold(1), Threshold(2), Slotted(1), Slotted(2)),
    "methods and their object": lambda: (
        Threshold(1).below,
        Threshold(2).below,
        Threshold(1),
        Threshold(1).__call__,
    ),
    "code and constants of a class": lambda: (
        of_class(*given) for given in ((0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3))
    ),
    "constants and helpers of the same file": lambda: (
        defined(HELPED.format(sign), K=k) for sign, k in (("+", 1), ("-", 1), ("+", 2), ("+", 1.0))
    ),
    "globals that hold data": lambda: (
        defined(HELPED.format("+"), K=held)
        for held in (
            None,
            [1],
            [2],
            [[2]],
            (1,),
            {"a": 1},
            {"a": 2},
            {1},
            {2},
            SimpleNamespace(a=1),
            SimpleNamespace(a=2),
            torch.tensor(1),
            torch.tensor(2),
            numpy.float32(1),
            numpy.arange(2),
            numpy.arange(3),
            linear(0),
            linear(1),
            functools.partial(defined(HELPED.format("+"), K=1), 1),
            functools.partial(defined(HELPED.format("+"), K=1), 2),
            functools.lru_cache(defined(HELPED.format("+"), K=1)),
            functools.lru_cache(defined(HELPED.format("+"), K=2)),
        )
    ),
    "globals of the user's own classes": lambda: (
        defined(f"class C:\n    at = {at}\n    def get(self): return {got}\nC = {made}\n{READS}")
        for at, got, made in ((1, 1, "C"), (2, 1, "C"), (1, 1, "C()"), (1, 2, "C()"))
    ),
    "attributes of a function": lambda: map(with_attribute, (1, 2)),
    "attributes of a module of one's own": lambda: map(of_own_module, (1, 2)),
    "wrapped functions": lambda: (
        *(functools.lru_cache(holding(value)) for value in (1, 2)),
        *(functools.partial(double, value) for value in (1, 2)),
        *(functools.partial(holding(value), 1) for value in (1, 2)),
    ),
}


@pytest.mark.parametrize("make", DIFFERENT.values(), ids=DIFFERENT)
def test_functions_that_do_different_things_differ_and_made_again_they_are_the_same(make):
    functions = list(make())
    prints = [fingerprint(f) for f in functions]
    assert [
        (functions[i], functions[j])
        for j in range(len(prints))
        for i in range(j)
        if prints[i] == prints[j]
    ] == []
    assert prints == [fingerprint(f) for f in make()]
    assert all(re.fullmatch("[0-9a-f]{12}", one) for one in prints)


def test_what_does_not_count():
    """The order of a dictionary, names that a function does not read, and what may change while a
    program runs.
    """
    assert fingerprint(holding({"a": 1, "b": 2})) == fingerprint(holding({"b": 2, "a": 1}))
    assert fingerprint(defined(HELPED.format("+"), K=1, unread=5)) == fingerprint(
        defined(HELPED.format("+"), K=1)
    )
    assert fingerprint(defined(HELPED.format("+"), K={"a": 1, "b": 2})) == fingerprint(
        defined(HELPED.format("+"), K={"b": 2, "a": 1})
    )
    for make in (lambda: {Opaque()}, lambda: {Opaque(): 1}, lambda: [Opaque()]):  # addresses
        assert fingerprint(defined(HELPED.format("+"), K=make())) == fingerprint(
            defined(HELPED.format("+"), K=make())
        )


def test_what_the_function_itself_counts_does_not_count():
    f = defined("n = 0\ndef f(x):\n    global n\n    n += 1\n    return x")
    before = fingerprint(f)
    f(1)
    assert f.__globals__["n"] == 1
    assert fingerprint(f) == before


def test_circles_end():
    def recursive(x):
        return recursive(x - 1) if x else 0

    ring = []
    ring.append(ring)
    deep = functools.reduce(lambda inner, _: [inner], range(500), [])
    assert len({fingerprint(f) for f in (recursive, holding(ring), holding(deep))}) == 3


def test_an_empty_cell_is_no_error():
    def outer(fill):
        def inner():
            return later

        print_before = fingerprint(inner)
        if fill:
            later = 1
        return print_before, fingerprint(inner)

    before, after = outer(True)
    assert before != after
    assert outer(False) == (before, before)


PROGRAM = """
import functools, re, sys
sys.path.insert(0, {root!r})
from anchorlens.fingerprint import fingerprint
class Thing: pass
class Rule:
    names = frozenset({{"x", "y", "z"}})
    def __init__(self): self.thing, self.many = Thing(), {{"a", "b", "c"}}
    def __call__(self, base, pool): return [e for e in pool if e in {{"a", "b", "c"}}]
def made(value): return lambda x: x in {{"p", "q", "r", "s"}} and value
held = [{{"a", "b", "c"}}, {{"k": {{"l", "m"}}}}, Thing(), object(), Thing, open, made(Thing()), frozenset("abc"), re.compile("x")]
print([fingerprint(f) for f in (Rule(), Rule().__call__, functools.partial(Rule(), Thing()), made, *map(made, held))])
assert not {{"torch", "pandas"}} & set(sys.modules)
"""


@pytest.mark.slow
def test_every_process_gives_the_same_fingerprints():
    said = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(root=str(ROOT))],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)
    (prints,) = said
    assert len(set(ast.literal_eval(prints))) == 13


@pytest.mark.parametrize(
    ("fn", "counts"),
    [
        (lambda x: x, {1}),
        (lambda x, y=1: x, {1, 2}),
        (lambda *x: x, {0, 1, 2, 3}),
        (lambda *, k: k, set()),
        (Threshold(1), {1}),
        (Threshold(1).below, {1}),
        (functools.partial(lambda x, y: x, 1), {1}),
        (max, {0, 1, 2, 3}),  # where Python cannot tell
    ],
)
def test_how_many_arguments_a_function_takes(fn, counts):
    assert {n for n in range(4) if takes(fn, n)} == counts


def test_an_error_of_a_user_function_names_the_function_and_its_arguments():
    def my_readout(log_probs, mask):
        raise KeyError("x")

    with pytest.raises(
        InputError,
        match=r"readout=my_readout raised KeyError\('x'\) for log_probs \[8, 3\], mask=None",
    ) as raised:
        call_user_function("readout", my_readout, log_probs=torch.zeros(8, 3), mask=None)
    assert raised.value.arguments == ("readout",)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "error", [DonorError("bad"), MemoryError(), torch.OutOfMemoryError("CUDA out of memory")]
)
def test_errors_of_the_package_and_out_of_memory_are_not_wrapped(error):
    def fails():
        raise error

    with pytest.raises(type(error)) as raised:
        call_user_function("donors", fails)
    assert raised.value is error
