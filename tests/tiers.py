"""Which cases of a parametrised test run every time, which in the slow tier, and which on request
alone.
"""

from collections.abc import Iterable

import pytest

ON_REQUEST = (pytest.mark.slow, pytest.mark.exhaustive)
"""Marks of further cases of a kind that the slow tier has: ``make test-exhaustive``."""


def fast(
    first: Iterable[str], names: Iterable[str], slow: Iterable[str] | None = None
) -> list[object]:
    """The cases of a test: ``first`` in the fast tier, ``slow`` in the slow one, all others on
    request. If ``slow`` is None, all others are in the slow tier.
    """
    chosen = list(first)
    some = None if slow is None else list(slow)
    cases: list[object] = []
    for name in names:
        if name in chosen:
            cases.append(name)
        elif some is None or name in some:
            cases.append(pytest.param(name, marks=pytest.mark.slow))
        else:
            cases.append(pytest.param(name, marks=ON_REQUEST))
    return cases
