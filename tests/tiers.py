"""Tiers of the cases of a parametrised test: that of the test, the slow one, or on request alone."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

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


def mark_cases_beyond_samples(items: Sequence[pytest.Item]) -> None:
    """Leave a sample of the slow cases of each test marked ``sampled(n)`` in the slow tier: ``n``
    of them, evenly spread; all others run on request.
    """
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        if is_slow and item.get_closest_marker("exhaustive") is None:
            cases[item.nodeid.split("[")[0]].append(item)
    for own in cases.values():
        mark = own[0].get_closest_marker("sampled")
        if mark is None:
            continue
        (n,) = mark.args
        kept = {round(i * (len(own) - 1) / max(1, n - 1)) for i in range(n)}
        for number, item in enumerate(own):
            if number not in kept:
                item.add_marker(pytest.mark.exhaustive)
