"""kill -9 at random moments; ``python -m tests.runs.kills 50`` does more of them."""

import random
import sys

import pytest

from tests.runs.kills import kills


@pytest.mark.skipif(sys.platform != "linux", reason="children are forked")
def test_a_sweep_that_is_killed_three_times_has_the_tables_of_one_that_is_not(tiny_model, tmp_path):
    seed = random.randrange(10**6)
    there, finished, differing = kills(tiny_model("llama"), tmp_path, 3, seed)
    assert len(there) == 3
    assert finished >= 1, seed
    assert not differing, (seed, there)
