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
from types import FunctionType

import numpy
import pytest
import torch

from anchorlens.callables import callable_name, fingerprint, takes

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

    names = [callable_name(f) for f in (mine, len, lambda: 0, Threshold(1), functools.partial(mine))]
    assert names == ["callable:mine", "callable:len", "callable:<lambda>", "callable:Threshold", "callable:partial"]


def test_two_lambdas_on_one_line_differ():
    first, second = lambda lp, m: lp[:, 0], lambda lp, m: (lp * m).sum(-1)
    assert fingerprint(first) != fingerprint(second)
    assert re.fullmatch("[0-9a-f]{12}", fingerprint(first))


# Pairs of functions of one name that do different things.
DIFFERENT = {
    "operator": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "constant": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "type of a constant": ("def f(x): return x + 1", "def f(x): return x + 1.0"),
    "sign of a zero": ("def f(x): return 0.0", "def f(x): return -0.0"),
    "attribute": ("def f(x): return x.min()", "def f(x): return x.max()"),
    "default": ("def f(x, k=1): return k", "def f(x, k=2): return k"),
    "keyword default": ("def f(x, *, k=1): return k", "def f(x, *, k=2): return k"),
    "argument's name": ("def f(x, a): return x", "def f(x, b): return x"),
    "rest": ("def f(x): return x", "def f(*x): return x"),
    "inner function": ("def f(x): return [y + 1 for y in x]", "def f(x): return [y + 2 for y in x]"),
    "inner lambda": ("def f(x): return (lambda y: y + 1)(x)", "def f(x): return (lambda y: y + 2)(x)"),
    "members": ("def f(x): return x in {'a', 'b'}", "def f(x): return x in {'a', 'c'}"),
    "what is caught": (
        "def f(x):\n try: return x()\n except KeyError: pass",
        "def f(x):\n try: return x()\n except IndexError: pass",
    ),
    "generator": ("def f(x): return x", "def f(x): yield x"),
}


@pytest.mark.parametrize(("first", "second"), DIFFERENT.values(), ids=DIFFERENT)
def test_functions_that_do_different_things_differ(first, second):
    assert fingerprint(defined(first)) == fingerprint(defined(first))
    assert fingerprint(defined(first)) != fingerprint(defined(second))


def test_where_it_stands_and_what_is_said_about_it_do_not_count():
    plain = defined("def f(x):\n    return [y + 1 for y in x]")
    moved = defined(
        "\n\n\ndef outer():\n    def f(x):  # a comment\n        return [y + 1 for y in x]\n    return f\ng = outer()\n"
    )
    assert fingerprint(plain) == fingerprint(moved)


VALUES = [
    1, 2, 1.0, True, None, "1", b"1", (1, 2), [1, 2], (1, (2, 3)), {1, 2}, frozenset({1, 2}), {"a": 1}, {"a": 2}, range(3),
    slice(1, 3),
    Plain(1, "x"), Plain(1, ["x"]), re.compile("a"), re.compile("a", re.IGNORECASE), Path("a"), Path("b"), float("nan"),
    complex(1, 2),
    numpy.zeros(3), numpy.zeros((3, 1)), numpy.zeros(3, dtype="float32"), numpy.arange(3.0), numpy.float32(1), numpy.array(["a"]),
    torch.zeros(3), torch.ones(3), torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.float16), torch.eye(3).to_sparse(),
    torch.ones(2, requires_grad=True), torch.zeros(3, device="meta"), len, max, "a".startswith, "b".startswith, double,
    through_double, numpy.add, numpy.subtract, torch.sum, Plain, Threshold, os, re, operator.itemgetter(0), operator.itemgetter(1),
    operator.attrgetter("a"), operator.methodcaller("a", 1), operator.methodcaller("a", k=1), functools.partial(max, 1),
    functools.partial(max, 2), functools.partial(max, key=1), ..., Opaque(), [[], [[]]], [[[]], []],
]  # fmt: skip


def test_what_a_closure_holds_tells_functions_apart():
    prints = [fingerprint(holding(value)) for value in VALUES]
    alike = [(VALUES[i], VALUES[j]) for j in range(len(prints)) for i in range(j) if prints[i] == prints[j]]
    assert alike == []
    assert prints == [fingerprint(holding(value)) for value in VALUES]


def test_the_same_values_made_again_are_the_same():
    for make in (
        lambda: numpy.arange(6.0).reshape(2, 3), lambda: torch.arange(3), lambda: Plain(1, [2]), lambda: {"b": 1, "a": {3, 4}},
        Opaque, lambda: holding(3), lambda: functools.partial(holding(1), 2), lambda: torch.nn.Linear(2, 2, bias=False).eval(),
    ):  # fmt: skip
        torch.manual_seed(0)
        first = fingerprint(holding(make()))
        torch.manual_seed(0)
        assert fingerprint(holding(make())) == first
    assert fingerprint(holding({"a": 1, "b": 2})) == fingerprint(holding({"b": 2, "a": 1}))


def test_weights_of_a_module_count():
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert fingerprint(holding(one)) != fingerprint(holding(two))
    assert fingerprint(one) != fingerprint(two)
    two.load_state_dict(one.state_dict())
    assert fingerprint(holding(one)) == fingerprint(holding(two))
    assert fingerprint(one) == fingerprint(two)
    assert fingerprint(one.forward) == fingerprint(two.forward)


@pytest.mark.parametrize("kind", [Threshold, Slotted])
def test_attributes_of_an_object_count(kind):
    assert fingerprint(kind(1)) == fingerprint(kind(1)) != fingerprint(kind(2))


def test_methods_count_with_their_object():
    assert fingerprint(Threshold(1).below) == fingerprint(Threshold(1).below)
    assert len({fingerprint(f) for f in (Threshold(1).below, Threshold(2).below, Threshold(1), Threshold(1).__call__)}) == 4


def test_the_code_and_constants_of_a_class_count():
    def made(floor, step, static):
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

    given = [(0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3)]
    prints = [fingerprint(made(*values)) for values in given]
    assert len(set(prints)) == 4
    assert prints == [fingerprint(made(*values)) for values in given]


def test_constants_and_helpers_of_the_same_file_count():
    text = "def helper(x): return x {} 1\ndef f(x): return helper(x) * K"
    prints = [
        fingerprint(defined(text.format(sign), K=k)) for sign, k in (("+", 1), ("-", 1), ("+", 2), ("+", 1.0))
    ]  # fmt: skip
    assert len(set(prints)) == 4
    assert fingerprint(defined(text.format("+"), K=1, unread=5)) == prints[0]
    assert fingerprint(defined(text.format("+"), K=[1])) == fingerprint(defined(text.format("+"), K=[2]))


def test_what_the_function_itself_counts_does_not_count():
    f = defined("n = 0\ndef f(x):\n    global n\n    n += 1\n    return x")
    before = fingerprint(f)
    f(1)
    assert f.__globals__["n"] == 1
    assert fingerprint(f) == before


def test_wrapped_functions_count():
    one, two = functools.lru_cache(holding(1)), functools.lru_cache(holding(2))
    assert fingerprint(one) != fingerprint(two)
    assert fingerprint(one) == fingerprint(functools.lru_cache(holding(1)))
    assert fingerprint(functools.partial(double, 1)) != fingerprint(functools.partial(double, 2))
    assert fingerprint(functools.partial(holding(1), 1)) != fingerprint(functools.partial(holding(2), 1))


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
from anchorlens.callables import fingerprint
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


def test_every_process_gives_the_same_fingerprints():
    said = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(root=str(ROOT))], capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)
    (prints,) = said
    assert len(set(ast.literal_eval(prints))) == 13


@pytest.mark.parametrize(
    ("fn", "counts"),
    [
        (lambda x: x, {1}), (lambda x, y=1: x, {1, 2}), (lambda *x: x, {0, 1, 2, 3}), (lambda *, k: k, set()),
        (Threshold(1), {1}), (Threshold(1).below, {1}), (functools.partial(lambda x, y: x, 1), {1}),
    ],
)  # fmt: skip
def test_how_many_arguments_a_function_takes(fn, counts):
    assert {n for n in range(4) if takes(fn, n)} == counts


def test_where_python_cannot_tell_a_function_takes_anything():
    assert takes(max, 3)
