"""Memory runs out in the middle of a sweep: units are split, and the numbers stay."""

import pytest
import torch

from anchorlens.engine.cone import Cone
from tests.protocols.small_sweeps import delta_p, running_out, sweep, told_by


def test_a_sweep_that_runs_out_of_memory_goes_on_in_smaller_batches(tiny_model, plain, monkeypatch):
    through = running_out(monkeypatch, lambda rows, layers: rows > 2)
    split, told = told_by(lambda: sweep(tiny_model("llama")))
    assert len(told) == 1
    assert split.record["plan"]["split"] > 0
    assert plain.record["plan"]["split"] == 0
    assert {rows for rows, _ in through} == {1, 2}
    far = (delta_p(split) - delta_p(plain)).abs()
    assert len(far) == len(plain.samples()) > 50
    assert far.max() <= 1e-3
    assert delta_p(plain).abs().max() > 0.1
    assert split.run_id == plain.run_id


def test_a_pair_that_does_not_fit_at_all_layers_is_measured_at_some(tiny_model, plain, monkeypatch):
    through = running_out(monkeypatch, lambda rows, layers: rows * layers > 2)
    split, told = told_by(lambda: sweep(tiny_model("llama")))
    assert len(told) == 1
    assert max(rows * layers for rows, layers in through) <= 2
    assert (delta_p(split) - delta_p(plain)).abs().max() <= 1e-3


def test_memory_that_suffices_for_nothing_is_an_error(tiny_model, monkeypatch):
    through = running_out(monkeypatch, lambda rows, layers: True)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        told_by(lambda: sweep(tiny_model("llama")))
    assert through == []


def test_another_error_is_not_taken_for_missing_memory(tiny_model, monkeypatch):
    def broken(self, batch, **options):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Cone, "run_swaps", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        sweep(tiny_model("llama"))
