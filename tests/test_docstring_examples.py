"""Every public name has an example that can be pasted, and the examples are true."""

import ast
import builtins
import doctest
import inspect
import sys

import pytest

import anchorlens as al

NAMES = [name for name in al.__all__ if name != "__version__"]  # test_docs: those of __init__.pyi
# Their methods too. A sweep is made in `running.sweeps`, and names the module of its protocol.
MODULES = sorted({inspect.getmodule(getattr(al, name)).__name__ for name in NAMES})


def example_of(name: str) -> doctest.DocTest:
    text = (inspect.getdoc(getattr(al, name)) or "").partition("Examples:\n")[2]
    return doctest.DocTestParser().get_doctest(text, {}, name, None, None)


def undefined_names(source: str) -> set[str]:
    """Names that a piece of code reads and does not make."""
    read: set[str] = set()
    made = set(dir(builtins))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.alias):
            made.add(node.asname or node.name)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
            made.add(node.name or "")
        elif isinstance(node, ast.arg):
            made.add(node.arg)
    return read - made


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example_that_can_be_pasted(name):
    source = "".join(one.source for one in example_of(name).examples)
    assert source.startswith("import anchorlens as al\n")
    assert undefined_names(source) == set()


@pytest.mark.parametrize("name", NAMES)
def test_the_example_is_true(name):
    """By itself, without the names of its module."""
    assert doctest.DocTestRunner().run(example_of(name)).failed == 0


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_the_module_are_true(module):
    assert doctest.testmod(sys.modules[module]).failed == 0


@pytest.mark.parametrize("name", [name for name in al.__all__ if callable(getattr(al, name))])
def test_help_shows_the_arguments(name):
    kinds = {
        parameter.kind for parameter in inspect.signature(getattr(al, name)).parameters.values()
    }
    if not isinstance(getattr(al, name), type):
        assert inspect.Parameter.VAR_POSITIONAL not in kinds
        assert inspect.Parameter.VAR_KEYWORD not in kinds
