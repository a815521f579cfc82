"""Errors by their class and the arguments that they name."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises(
    kind: type[Exception], *arguments: str, word: str = ""
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error of a class of anchorlens that names these arguments; ``word`` tells it from
    others of the same argument.
    """
    with pytest.raises(kind, match=re.escape(word) if word else None) as caught:
        yield caught
    assert caught.value.arguments == arguments, caught.value
