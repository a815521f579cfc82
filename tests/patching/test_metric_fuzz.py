"""Random metrics beside one full forward pass per cell; more by ``python -m tests.patching.metric_fuzz``."""

import pytest

from tests.patching.metric_fuzz import numbered


def check(n_cases):
    outcomes = {case: numbered(case) for case in range(n_cases)}
    bad = {case: (one.title, one.wrong[:1], one.raised) for case, one in outcomes.items() if one.wrong or one.raised}
    assert not bad
    assert len({one.kind for one in outcomes.values()}) >= 12
    assert sum(one.moves for one in outcomes.values()) > n_cases / 2


def test_fixed_cases_equal_full_forward_passes():
    check(48)


@pytest.mark.slow
def test_many_cases_equal_full_forward_passes():
    check(500)
