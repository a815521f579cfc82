"""What a knockout sweep does beside its numbers: plan, memory, noise floor, spot checks."""

import warnings

import numpy as np
import pytest
import torch

import anchorlens as al
from anchorlens.engine.cone import Cone
from anchorlens.errors import CheckError, InputError

OPTIONS = {"progress": False, "n_resamples": 50}
READINGS = ({}, {"window": 1, "layers": [0, 2]}, {"readout": "p_true", "layers": [0, 2]})
SLOWER = [READINGS[0], *(pytest.param(options, marks=pytest.mark.slow) for options in READINGS[1:])]


@pytest.fixture(scope="module")
def data():
    return al.load_qa("popqa-sample", limit=60)


def swept(model, data, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return al.knockout_sweep(model, data, **{**OPTIONS, **options})


@pytest.mark.parametrize("options", SLOWER)
def test_checks_noise_and_plan_are_recorded(tiny_model, data, options):
    plans = []
    result = swept(tiny_model("llama"), data, check_cells=3, on_plan=plans.append, **options)
    record = result.record
    assert record["checks"]["cells"] == 3
    assert 0 <= record["checks"]["largest_difference"] < 1e-3
    assert 0 < record["noise"]["floor"] < 1e-2
    assert result.noise_floor == record["noise"]["floor"]
    assert set(result.curves(controls=True)["noise_floor"]) == {result.noise_floor}
    (plan,) = plans
    assert plan.engine == "cone"
    assert plan.questions == len(result.example_ids) + record["counts"]["without_edge"]
    assert record["plan"]["batches"] == list(plan.batch_sizes)
    assert plan.flops > 0


@pytest.mark.parametrize("options", SLOWER)
def test_the_whole_sweep_is_the_oracles(tiny_model, data, options):
    cone, oracle = (swept(tiny_model("llama"), data, engine=engine, **options).samples() for engine in ("cone", "reference"))
    keys = ["control", "example_id", "layer"]
    cone, oracle = cone.set_index(keys).sort_index(), oracle.set_index(keys).sort_index()
    assert cone.index.equals(oracle.index)
    assert np.nanmax(np.abs(cone["value_after"] - oracle["value_after"])) < 1e-5
    assert np.nanmax(np.abs(oracle["value_after"] - oracle["value_before"])) > 1e-4


@pytest.mark.parametrize("options", SLOWER)
def test_a_spot_check_finds_an_engine_that_is_wrong(tiny_model, data, monkeypatch, options):
    name = "cut_states" if options else "cut_states_everywhere"
    right = getattr(Cone, name)

    def falsified(self, batch, **own):
        states = right(self, batch, **own)
        wrong = states if options else states[1:]  # the first of these runs is the clean one
        wrong += 50.0 * torch.randn(wrong.shape, generator=torch.Generator().manual_seed(1))
        return states

    monkeypatch.setattr(Cone, name, falsified)
    with pytest.raises(CheckError, match=r"differ by .* points \(allowed: .*\) at example .*, layer \d"):
        swept(tiny_model("llama"), data, check_cells=40, **options)
    assert swept(tiny_model("llama"), data, check_cells=0, **options).record["checks"]["cells"] == 0


def test_a_sweep_that_runs_out_of_memory_goes_on_in_smaller_batches(tiny_model, data, monkeypatch):
    whole = swept(tiny_model("llama"), data).samples()
    right = Cone.cut_states_everywhere

    def scarce(self, batch, **own):
        if len(batch.tokens.ids) > 3:
            raise torch.OutOfMemoryError("out of memory")
        return right(self, batch, **own)

    monkeypatch.setattr(Cone, "cut_states_everywhere", scarce)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        split = al.knockout_sweep(tiny_model("llama"), data, **OPTIONS)
    assert sum("Memory ran out" in str(w.message) for w in told) == 1
    assert split.record["plan"]["split"] > 0
    assert np.nanmax(np.abs(split.samples()["value_after"] - whole["value_after"])) < 1e-5


@pytest.mark.slow
def test_little_memory_makes_more_batches_or_one_clear_error(tiny_model, data):
    plans = []
    swept(tiny_model("llama"), data, on_plan=plans.append)
    swept(tiny_model("llama"), data, batch_size=1, on_plan=plans.append)
    most, least = (plan.peak_bytes for plan in plans)
    limit = least + (most - least) // 3
    little = swept(tiny_model("llama"), data, max_memory=limit)
    assert len(little.record["plan"]["batches"]) > len(plans[0].batch_sizes)
    assert little.record["plan"]["peak_bytes"] <= limit
    with pytest.raises(InputError, match=r"max_memory is 1 MB, and with the smallest batches this sweep needs about \d+ MB"):
        swept(tiny_model("llama"), data, max_memory="1MB")
    with pytest.raises(InputError, match="check_cells must be at least 0, got -1"):
        swept(tiny_model("llama"), data, check_cells=-1)
