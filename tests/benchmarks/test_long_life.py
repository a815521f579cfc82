"""Memory, files and threads stay as they are over the rounds of ``benchmarks/long_life.py``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_rounds_of_sweeps_leave_nothing_behind():
    command = [
        sys.executable,
        "benchmarks/long_life.py",
        "--sweeps",
        "24",
        "--every",
        "8",
        "--json",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    # The first sweeps import modules and start the process of chat templates.
    _, early, *later = json.loads(done.stdout)
    for state in later:
        assert (state["files"], state["threads"]) == (early["files"], early["threads"]), state
        assert state["MB"] - early["MB"] < 3, (early, state)
