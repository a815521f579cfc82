"""Mistakes that are injected between a grid and the engine are found."""

import pytest

from tests.patching.faults import KINDS, run_faults, share_found


def test_a_few_faults_of_each_kind_are_found():
    outcomes = run_faults(24, ("llama",))
    assert share_found(outcomes) == 1.0
    assert {kind for (kind, outcome) in outcomes if outcome == "found"} >= {*KINDS} - {"stale cache"}


@pytest.mark.slow
def test_many_faults():
    assert share_found(run_faults(48)) >= 0.95
