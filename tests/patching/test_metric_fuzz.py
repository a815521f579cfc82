"""Random metrics beside one full forward pass per cell; more by ``python -m
tests.patching.metric_fuzz``.
"""

import pytest

from tests.patching.metric_fuzz import numbered
from tests.tiers import choose_cases

# One of each kind but one, of every family, in turn by the drop-in and by a sweep on both engines.
FIRST = (0, 1, 3, 4, 5, 7, 8, 10, 14, 15, 16, 18, 22, 24, 26, 33, 35)


def check(cases, n_kinds=17):
    outcomes = {case: numbered(case) for case in cases}
    bad = {
        case: (one.title, one.wrong[:1], one.raised)
        for case, one in outcomes.items()
        if one.wrong or one.raised
    }
    assert not bad
    assert len({one.kind for one in outcomes.values()}) >= n_kinds
    assert sum(one.moves for one in outcomes.values()) > len(cases) / 2


@pytest.mark.slow
def test_a_case_of_each_kind_equals_full_forward_passes():
    check(FIRST)


@pytest.mark.parametrize("first", choose_cases((), (0, 20, 40, 60), slow=(40,)))
def test_many_cases_equal_full_forward_passes(first):
    """Cases in blocks that run in several processes."""
    check(range(first, first + 20), n_kinds=10)
