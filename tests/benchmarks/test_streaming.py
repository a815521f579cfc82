"""A model in the shape of Llama-3.2-3B, streamed: how much of it is in memory, and the same sweep as of the model in memory."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 2_500_000_000

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


def measured(directory, *options):
    """Both ways by the benchmark's own script, each in a process of its own."""
    command = [sys.executable, "benchmarks/streaming.py", "--json", "--dir", str(directory), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def room_for(n_bytes):
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < n_bytes:
        pytest.skip(f"the weights take {n_bytes / 1e9:.1f} GB of disk, and {free / 1e9:.1f} GB are free")


def the_same(found):
    whole, streamed = found["in memory"], found["streamed"]
    assert whole["weights"] == streamed["weights"]
    assert whole["engine"] == streamed["engine"] == "cone"
    assert whole["batches"] == streamed["batches"]  # in other batches the last digits of half precision move
    assert len(set(whole["log_p"])) > 10  # something is measured
    assert whole["log_p"] == streamed["log_p"]
    assert whole["effect"] == streamed["effect"]


@pytest.mark.slow
def test_four_layers_of_it(tmp_path):
    """In float32, where nothing is a view of a file: two of the four layers are never there."""
    room_for(3 * 10**9)
    options = ["--layers", "4", "--vocab", "49152", "--dtype", "float32", "--questions", "2", "--batch-size", "2", "--at", "3"]
    found = measured(tmp_path, *options, "--max-memory", "4GB")
    the_same(found)
    layer = 4 * (2 * 3072 * 24 * 128 + 2 * 3072 * 8 * 128 + 3 * 3072 * 8192 + 2 * 3072)
    embedding = 4 * 49152 * 3072
    assert found["in memory"]["anonymous"] > 4 * layer + embedding
    assert found["streamed"]["loading"] < 3.5 * layer + embedding
    assert found["streamed"]["anonymous"] < found["streamed"]["predicted"] < 3.5 * layer + embedding


@pytest.mark.slow
def test_all_of_it_stays_below_two_and_a_half_gigabytes(tmp_path):
    """In the checkpoint's own bfloat16, 6.4 GB: loading, hash, parity, trial, sweep and checked cells."""
    room_for(8 * 10**9)
    options = ["--questions", "2", "--batch-size", "2", "--at", "0", "14", "27"]
    found = measured(tmp_path, *options, "--only", "streamed")
    assert found["streamed"]["engine"] == "cone"
    for when in ("loading", "anonymous"):
        assert found["streamed"][when] < LIMIT, (when, found["streamed"][when])
    assert found["streamed"]["resident"] < 6.4e9 / 2  # pages of layers that are done are given back too
