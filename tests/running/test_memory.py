"""Memory runs out in the middle of a sweep: units are split, and the numbers stay."""

import pytest
import torch

from anchorlens.measure.budget import MallocTrimmer
from tests.engine.memory import STATUS, anonymous, holes, settled
from tests.engine.replace_swaps import replace_swaps
from tests.running.small_sweeps import delta_p, memory_warnings, running_out, sweep


@pytest.mark.slow
def test_a_pair_that_does_not_fit_at_all_layers_is_measured_at_some(tiny_model, plain, monkeypatch):
    through = running_out(monkeypatch, lambda rows, layers: rows * layers > 2)
    split, told = memory_warnings(lambda: sweep(tiny_model("llama")))
    assert len(told) == 1
    assert max(rows * layers for rows, layers in through) <= 2
    assert (delta_p(split) - delta_p(plain)).abs().max() <= 1e-3


def test_memory_that_suffices_for_nothing_and_another_error_are_raised(tiny_model, monkeypatch):
    through = running_out(monkeypatch, lambda rows, layers: True)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        memory_warnings(lambda: sweep(tiny_model("llama")))
    assert through == []

    def broken(self, batch, **options):
        raise RuntimeError("shapes do not match")

    replace_swaps(monkeypatch, broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        sweep(tiny_model("llama"))


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_what_is_freed_goes_back_where_more_is_held_than_planned():
    kept = holes(40)
    start = settled()
    heap, roomy, elsewhere = (
        MallocTrimmer(torch.device(name), size)
        for name, size in [("cpu", 8 * 2**20), ("cpu", 2**30), ("meta", 8 * 2**20)]
    )

    def used_and_freed():
        for _ in range(40):
            torch.empty(2**20, dtype=torch.uint8).fill_(1)
            again = [
                torch.empty(size, dtype=torch.uint8).fill_(1) for size in range(2**18, 2**21, 2**17)
            ]
            del again

    used_and_freed()
    held = anonymous() - start
    assert held > 8 * 2**20  # else nothing is shown
    roomy.trim()
    elsewhere.trim()
    assert anonymous() - start > held / 2
    heap.trim()
    assert anonymous() - start < held / 2
    assert len(kept) == 20


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_what_is_in_use_is_not_looked_for_with_every_call(monkeypatch):
    heap = MallocTrimmer(torch.device("cpu"), 8 * 2**20)
    trims = []
    monkeypatch.setattr(heap, "_trim", trims.append)
    in_use = torch.ones(2**24)
    for _ in range(5):
        heap.trim()
    assert trims == [0]
    assert in_use.sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["cone", "reference"])
def test_a_sweep_looks_in_every_layer(engine, tiny_model, monkeypatch):
    looks = []
    monkeypatch.setattr(MallocTrimmer, "trim", lambda heap: looks.append(heap))
    result = sweep(tiny_model("llama"), engine=engine)
    n_layers = result.record["model"]["n_layers"]
    assert len(looks) >= n_layers * len(result.record["plan"]["batches"]) > 0
