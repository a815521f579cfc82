"""Which cases of a parametrised test run every time, and which in the slow tier alone."""

from collections.abc import Iterable

import pytest


def fast(first: Iterable[str], names: Iterable[str]) -> list[object]:
    """The cases of a test: these in the fast tier, all others in the slow one."""
    chosen = list(first)
    return [
        name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in names
    ]
