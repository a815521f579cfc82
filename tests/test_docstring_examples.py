"""Public names of these rooms have an example that can be pasted, and the examples are true."""

import doctest
import inspect
import sys

import pytest

import anchorlens as al

ROOMS = (
    "errors",
    "models",
    "prompts",
    "diagnosis",
    "questions",
    "probing",
    "statistics",
    "runs",
    "report",
)


def is_of_rooms(name):
    return getattr(getattr(al, name), "__module__", "").startswith(
        tuple(f"anchorlens.{room}" for room in ROOMS)
    )


NAMES = [name for name in al.__all__ if is_of_rooms(name)]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    text = inspect.getdoc(getattr(al, name)) or ""
    example = text.partition("Examples:\n")[2]
    assert example.lstrip().startswith(">>> import anchorlens as al")


@pytest.mark.parametrize("module", sorted({getattr(al, name).__module__ for name in NAMES}))
def test_the_examples_are_true(module):
    assert doctest.testmod(sys.modules[module]).failed == 0


@pytest.mark.parametrize("name", [name for name in al.__all__ if callable(getattr(al, name))])
def test_help_shows_the_arguments(name):
    kinds = {
        parameter.kind for parameter in inspect.signature(getattr(al, name)).parameters.values()
    }
    if not isinstance(getattr(al, name), type):
        assert inspect.Parameter.VAR_POSITIONAL not in kinds
        assert inspect.Parameter.VAR_KEYWORD not in kinds
