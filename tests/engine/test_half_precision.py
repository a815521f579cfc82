"""Memory of half precision on a CPU: oneDNN keeps a kernel for each shape of a product that it has met, and plans count them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anchorlens.engine.cost import PassSize, kernel_bytes, pass_bytes
from anchorlens.models.shape import Shape

ROOT, CPU = Path(__file__).resolve().parents[2], torch.device("cpu")
SHAPE = Shape(8, 1024, 16, 8, 64, 4096, 3, 32_000, 1024, torch.bfloat16)
SET_TO = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
# As tests/engine/test_memory.py measures it: a sweep of a small model first, what the allocator still holds handed back.
PEAK = """
import ctypes, gc, json, sys, threading, warnings
warnings.simplefilter("ignore")
import anchorlens as al

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

data = al.load_qa("popqa-sample", limit=4)
swap = {"n_donors": 1, "align": "last", "donors": "random", "progress": False, "check_cells": 0}
al.swap_sweep(al.load_model(sys.argv[1], device="cpu"), data, **swap)  # imports and thread pools
model = al.load_model(sys.argv[2], device="cpu", dtype="bfloat16", progress=False)
gc.collect()
ctypes.CDLL("libc.so.6").malloc_trim(0)
start = highest = anonymous()
done = threading.Event()
def watch():
    global highest
    while not done.wait(0.003):
        highest = max(highest, anonymous())
thread = threading.Thread(target=watch)
thread.start()
plans = []
al.swap_sweep(model, data, on_plan=plans.append, **swap)
done.set()
thread.join()
print(json.dumps({"peak": highest - start, "predicted": plans[0].peak_bytes, "batches": len(plans[0].batch_sizes)}))
"""


@pytest.fixture
def supported(monkeypatch):
    """As on a machine that has instructions for it."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True, raising=False)
    monkeypatch.delenv(SET_TO, raising=False)


@pytest.mark.usefixtures("supported")
def test_kernels_are_counted_up_to_what_onednn_keeps(monkeypatch):
    from dataclasses import replace

    assert kernel_bytes(SHAPE, CPU, 1, 0) == 5 * 950_000
    assert kernel_bytes(SHAPE, CPU, 9, 16) == 45 * 950_000 + 96 * 600_000
    assert kernel_bytes(SHAPE, CPU, 100, 10_000) == 500 * 950_000 + 524 * 600_000
    for shape, device in ((replace(SHAPE, dtype=torch.float32), CPU), (SHAPE, torch.device("cuda", 0))):
        assert kernel_bytes(shape, device, 9, 16) == 0
    size = PassSize(200, 8, 25, ((40, 8, 5, 25), (40, 8, 5, 25)), 0, 8)
    counted = pass_bytes(SHAPE, CPU, size, 8)
    monkeypatch.setenv(SET_TO, "64")
    assert kernel_bytes(SHAPE, CPU, 100, 10_000) == 128 * 950_000
    assert counted - pass_bytes(SHAPE, CPU, size, 8) == (102 - 83) * 600_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this processor")
def test_the_peak_in_bfloat16_is_below_what_was_predicted(tiny, tmp_path):
    from tests.models.tiny import llama, random_model, save_model

    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 16}
    model = random_model(llama(**sizes, num_key_value_heads=8, vocab_size=32_000))
    large = save_model(model.bfloat16(), tmp_path / "large")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tiny("llama")), str(large)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["peak"] <= told["predicted"] <= 3 * told["peak"], told
