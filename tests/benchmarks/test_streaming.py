"""A model in the shape of Llama-3.2-3B, streamed: how much of it is in memory, and the same sweep
as of the model in memory.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1_000_000_000

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is read from /proc"
)


def measured(directory, *options):
    """Both ways by the benchmark's own script, each in a process of its own."""
    command = [
        sys.executable,
        "benchmarks/streaming.py",
        "--json",
        "--dir",
        str(directory),
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def room_for(n_bytes):
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < n_bytes:
        pytest.skip(
            f"the weights take {n_bytes / 1e9:.1f} GB of disk, and {free / 1e9:.1f} GB are free"
        )


def the_same(found):
    whole, streamed = found["in memory"], found["streamed"]
    assert whole["weights"] == streamed["weights"]
    assert whole["engine"] == streamed["engine"] == "cone"
    # In other batches the last digits of half precision move.
    assert whole["batches"] == streamed["batches"]
    assert len(set(whole["log_p"])) > 10  # something is measured
    # Prompts of directions run in passes as large as the free memory allows, which is less here:
    # the last digit of float32 moves.
    assert whole["log_p"] == pytest.approx(streamed["log_p"], rel=1e-6)
    assert whole["effect"] == pytest.approx(streamed["effect"], rel=1e-4, abs=1e-8)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_four_layers_of_it(tmp_path):
    """In float32, where nothing is a view of a file: two of the four layers are never there."""
    room_for(3 * 10**9)
    options = [
        "--layers",
        "4",
        "--vocab",
        "49152",
        "--dtype",
        "float32",
        "--questions",
        "2",
        "--batch-size",
        "2",
        "--at",
        "3",
    ]
    found = measured(tmp_path, *options, "--max-memory", "4GB")
    the_same(found)
    layer = 4 * (2 * 3072 * 24 * 128 + 2 * 3072 * 8 * 128 + 3 * 3072 * 8192 + 2 * 3072)
    embedding = 4 * 49152 * 3072
    assert found["in memory"]["anonymous"] > 4 * layer + embedding
    assert found["streamed"]["loading"] < 3.5 * layer + embedding
    # The allocator keeps some freed matrices: up to 1 % beyond the prediction was measured. A third
    # layer would add 25 %.
    assert found["streamed"]["anonymous"] < 1.05 * found["streamed"]["predicted"]
    assert found["streamed"]["predicted"] < 3.5 * layer + embedding


@pytest.mark.slow
@pytest.mark.exhaustive
def test_eight_layers_of_it_stay_below_one_gigabyte(tmp_path):
    """In the checkpoint's own bfloat16, 1.9 GB: loading, hash, parity, trial, sweep and checked
    cells. ``benchmarks/streaming.py --only streamed`` measures all 28 layers.
    """
    room_for(4 * 10**9)
    options = ["--layers", "8", "--vocab", "49152", "--questions", "1", "--batch-size", "2"]
    found = measured(tmp_path, *options, "--at", "0", "7", "--only", "streamed")
    assert found["streamed"]["engine"] == "cone"
    for when in ("loading", "anonymous"):
        assert found["streamed"][when] < LIMIT, (when, found["streamed"][when])
    # Pages of layers that are done are given back too.
    assert found["streamed"]["resident"] < 1.35e9
