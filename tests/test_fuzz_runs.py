"""Damaged run directories and parts: the values of the undamaged run, or one clear error (``python
-m tests.fuzz_runs``).
"""

import pytest

from anchorlens.protocols import base
from tests.fuzz_runs import OUTCOMES, Runs, run_case

# Cases that failed once, of ``--seed 0``.
FAILED = (
    12,
    27,
    45,
    83,
    168,
    242,
    284,
    406,
    510,
    593,
    610,
    746,
    755,
    876,
    1160,
    1387,
    1391,
    2625,
    3316,
    3868,
    4112,
    5015,
    6649,
    6902,
    8540,
    8587,
    8735,
    9312,
    9872,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    before = base.SHARD_FLOPS
    yield Runs(tmp_path_factory.mktemp("fuzz"))
    base.SHARD_FLOPS = before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_damage_is_found_or_changes_nothing(runs):
    bad = [
        (number, *found)
        for number in (*FAILED, *range(6))
        if (found := run_case(runs, number, 0))[0] in OUTCOMES[2:]
    ]
    assert not bad, bad[:3]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_damage_is_found_or_changes_nothing_in_many_cases(runs):
    bad = [
        (number, *found)
        for number in range(40)
        if (found := run_case(runs, number, 1))[0] in OUTCOMES[2:]
    ]
    assert not bad, bad[:3]
