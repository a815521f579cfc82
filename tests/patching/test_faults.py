"""Mistakes that are injected between a grid and the engine are found."""

import pytest

from tests.patching.faults import KINDS, run_faults, share_found
from tests.tiers import ON_REQUEST


@pytest.mark.slow
def test_a_few_faults_of_each_kind_are_found():
    outcomes = run_faults(10, ("llama",))
    assert share_found(outcomes) == 1.0
    assert {kind for (kind, outcome) in outcomes if outcome == "found"} >= {*KINDS} - {
        "stale cache"
    }


@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        pytest.param("bfloat16", 8, marks=pytest.mark.slow),
        pytest.param("float32", 12, marks=ON_REQUEST),
        pytest.param("float16", 8, marks=ON_REQUEST),
    ],
)
def test_many_faults(dtype, n):
    assert share_found(run_faults(n, dtype=dtype)) >= 0.95
