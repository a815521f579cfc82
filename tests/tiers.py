"""Tiers of the cases of a parametrised test: that of the test, the slow one, or on request alone."""

from collections.abc import Iterable

import pytest

ON_REQUEST = (pytest.mark.slow, pytest.mark.exhaustive)
"""Marks of further cases of a kind that the slow tier has: ``make test-exhaustive``."""


def choose_cases(
    first: Iterable[object], names: Iterable[object], slow: Iterable[object] | None = None
) -> list[object]:
    """Return the cases of a test: ``first`` in the tier of the test, ``slow`` in the slow one, all
    others on request. If ``slow`` is None, all others are in the slow tier. A tuple has several
    arguments.
    """
    chosen = list(first)
    some = None if slow is None else list(slow)
    cases: list[object] = []
    for name in names:
        values = name if isinstance(name, tuple) else (name,)
        if name in chosen:
            cases.append(name)
        elif some is None or name in some:
            cases.append(pytest.param(*values, marks=pytest.mark.slow))
        else:
            cases.append(pytest.param(*values, marks=ON_REQUEST))
    return cases
