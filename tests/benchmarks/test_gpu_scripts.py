"""The scripts for GPUs run without one, on one layer of a target model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRY = ["--device", "cpu", "--layers", "1", "--small", "--shapes", "Llama-3.2-1B"]


def run(script, *args):
    command = [sys.executable, f"benchmarks/{script}.py", *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_part_of_the_gpu_benchmark_runs(tmp_path):
    printed = run("gpu", *TRY, "--json", str(tmp_path / "gpu.json"))
    found = json.loads((tmp_path / "gpu.json").read_text())
    parts = ["numbers", "engine", "grids", "sweeps", "memory", "knockout", "figure"]
    assert list(dict.fromkeys(row["part"] for row in found["rows"])) == parts
    assert all(f"### {part}" in printed for part in parts)
    assert not any(row.get("fell back") for row in found["rows"])
    assert found["left_out"] == []


@pytest.mark.slow
@pytest.mark.exhaustive
def test_parts_without_time_are_left_out_and_said(tmp_path):
    printed = run("gpu", *TRY, "--parts", "engine", "figure", "--minutes", "0")
    assert "Left out: Llama-3.2-1B, its model" in printed


@pytest.mark.slow
@pytest.mark.exhaustive
def test_memory_is_counted_without_a_gpu(tmp_path):
    """A pass needs less than is planned for it, and waits at most ten times."""
    run("without_gpu", "--shape", "Llama-3.2-1B", "--layers", "1", "--json", str(tmp_path / "a"))
    rows = json.loads((tmp_path / "a").read_text())
    assert len(rows) == 8
    for row in rows:
        assert float(row["peak GiB"]) <= float(row["planned GiB"]), row
        assert int(row["waits"]) <= 10, row
