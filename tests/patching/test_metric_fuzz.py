"""Random metrics beside one full forward pass per cell; more by ``python -m tests.patching.metric_fuzz``."""

import pytest

from tests.patching.metric_fuzz import numbered


def check(cases):
    outcomes = {case: numbered(case) for case in cases}
    bad = {case: (one.title, one.wrong[:1], one.raised) for case, one in outcomes.items() if one.wrong or one.raised}
    assert not bad
    assert len({one.kind for one in outcomes.values()}) >= 12
    assert sum(one.moves for one in outcomes.values()) > len(cases) / 2


def test_fixed_cases_equal_full_forward_passes():
    check(range(48))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(48, 500, 113))
def test_many_cases_equal_full_forward_passes(first):
    """The other cases up to 500, in blocks that run in several processes."""
    check(range(first, first + 113))
