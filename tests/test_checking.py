"""Types and shapes of the package's functions are checked in tests: arguments, results, and sizes
that must agree.
"""

from textwrap import dedent

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from tests.checking import _check_unless_nested, checked

SOURCE = dedent("""
    from collections.abc import Iterator
    from typing import TYPE_CHECKING
    from jaxtyping import Float, Int
    from torch import Tensor

    if TYPE_CHECKING:
        from somewhere import Unknown

    def rows(a: Float[Tensor, "row column"], b: "dict[str, Float[Tensor, 'row']]") -> Float[Tensor, "column"]:
        return a.sum(0) if a[0, 0] >= 0 else a.sum(1)

    def name(number: int, text: "str | None" = None, *, scale: float = 1) -> str:
        return text if number else number

    def texts(numbers: "list[int]") -> Iterator[str]:
        yield from map(str, numbers)

    def columns(a: Float[Tensor, "row column"]) -> Iterator[Tensor]:
        yield from a.T

    def ratio(a: Float[Tensor, "row column"], b: Float[Tensor, "other column"]) -> Float[Tensor, "column"]:
        return sum(columns(b)).sum() / a.sum(0)

    def unknown(one: "Unknown", number: int) -> "Unknown":
        return one
    """)


@pytest.fixture(scope="module")
def checked_functions():
    """Functions of a module, checked as those of the package are."""
    space = {"__name__": "checked_module"}
    exec(compile(SOURCE, "checked_module", "exec"), space)
    check = _check_unless_nested(typechecker=checked)
    for name in ("rows", "name", "texts", "columns", "ratio", "unknown"):
        space[name] = check(space[name])
    return space


def test_what_fits_is_computed(checked_functions):
    f = checked_functions
    assert f["rows"](torch.ones(2, 3), {"b": torch.ones(2)}).tolist() == [2, 2, 2]
    assert f["name"](1, "a", scale=2) == "a"
    assert f["name"](1, text="b") == "b"
    assert f["unknown"]("x", 1) == "x"
    assert list(f["texts"]([1, 2])) == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("rows", (torch.ones(2), {"b": torch.ones(2)})),  # a dimension is missing
        ("rows", (torch.ones(2, 3, dtype=torch.int64), {})),  # integers
        (
            "rows",
            (torch.ones(2, 3), {"b": torch.ones(3)}),
        ),  # another number of rows, in a type that is written as text
        ("rows", (-torch.ones(2, 3), {})),  # the result has rows
        ("name", ("1",)),
        ("name", (1, 2)),
        ("name", (0,)),  # the result is a number
        ("texts", (["1"],)),
        ("columns", (torch.ones(2),)),
        ("unknown", ("x", "1")),  # one type is unknown at run time, the other is not
    ],
)
def test_what_does_not_fit_is_refused(name, args, checked_functions):
    with pytest.raises(BeartypeCallHintViolation):
        result = checked_functions[name](*args)
        list(result)  # a generator checks its arguments when it is read


def test_a_call_does_not_bind_the_sizes_of_the_next(checked_functions):
    for n in (2, 3):
        assert checked_functions["rows"](torch.ones(n, n), {"b": torch.ones(n)}).tolist() == [n] * n


@pytest.mark.usefixtures("unchecked")
def test_checks_can_be_left_off(checked_functions):
    assert checked_functions["name"](0) == 0


def test_the_package_is_checked(monkeypatch):
    from anchorlens.display import join_words
    from anchorlens.engine.patches import common_prefix

    monkeypatch.setattr("tests.checking.EVERY", 1)  # tests before this one may have called them

    for call in (lambda: join_words(3), lambda: common_prefix(3, "a")):
        with pytest.raises(BeartypeCallHintViolation):
            call()


def test_a_generator_does_not_share_the_sizes_of_the_function_that_reads_it(checked_functions):
    ratio = checked_functions["ratio"](torch.ones(2, 3), torch.ones(4, 3))
    assert ratio.tolist() == [6, 6, 6]
