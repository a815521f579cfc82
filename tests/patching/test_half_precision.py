"""Grids in half precision: no fallback for rounding, and what is said about noise."""

import warnings
from copy import copy
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch

from anchorlens import patching
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cone_pass import Pass
from anchorlens.engine.rounding_noise import round_anew
from anchorlens.models.load import adapt, load_model
from benchmarks import half_grids
from tests.engine.make import random_rows
from tests.patching.faults import OtherPositions, unchecked

LENGTH = 9
FALLBACK = "one forward pass per cell"


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def half(request, tiny):
    return load_model(str(tiny("gemma2")), device="cpu", dtype=request.param, progress=False)


def run(model, metric, change=3, function=patching.get_act_patch_resid_pre):
    """Return a grid, its unpatched value, and what was said."""
    clean = torch.tensor(random_rows((LENGTH, LENGTH), 1))
    corrupted = clean.clone()
    corrupted[:, change:] = torch.tensor(random_rows((LENGTH, LENGTH), 2))[:, change:]
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache = model.run_with_cache(clean)[1]
        grid = function(model, corrupted, cache, metric)
        before = metric(model(corrupted))
    return grid, before, [str(one.message) for one in caught]


METRICS = {
    "logit difference": lambda x: (x[:, -1, 3] - x[:, -1, 5]).mean(),
    "probability": lambda x: x[:, -1].float().softmax(-1)[:, 3].mean(),
    "sequence loss": lambda x: -x.float().log_softmax(-1)[..., 3].mean(),
    "rank": lambda x: (x[:, -1] > x[:, -1, 3, None]).sum().float(),
    "accuracy": lambda x: (x.argmax(-1) == 3).float().mean(),
    "last row": lambda x: x[-1, -1, 7],
}


@pytest.mark.slow
def test_no_metric_falls_back(half):
    for name, metric in METRICS.items():
        _, _, said = run(half, metric)
        assert not [one for one in said if FALLBACK in one], name


def weighted(x):
    """A metric in which all logits at the end have a weight."""
    weight = torch.randn(x.shape[-1], generator=torch.Generator().manual_seed(3))
    return (x[:, -1].float() @ weight).mean()


@pytest.mark.slow
def test_a_flip_within_the_noise_is_no_fault_and_is_counted(half):
    """The threshold lies between the values that both engines give to a checked cell."""
    function = patching.get_act_patch_resid_pre

    def engine_alone(*given):
        return unchecked(function, given, ConeEngine.run_swap_batches)

    exact = float(run(half, weighted)[0][-1, -1])
    found = float(run(half, weighted, function=engine_alone)[0][-1, -1])
    assert exact != found
    grid, _, said = run(half, lambda x: (weighted(x) > (exact + found) / 2).float())
    assert not [one for one in said if FALLBACK in one]
    assert [one for one in said if "1 checked cells differ by a step of the metric" in one], said
    assert float(grid[-1, -1]) == float(exact > found)


def test_effects_within_the_noise_floor_are_said_to_be(half):
    """A metric that rests on a large number: its own rounding hides the effects."""
    _, _, said = run(half, METRICS["probability"], change=LENGTH - 1)
    assert not [one for one in said if "noise floor" in one]

    def hidden(x):
        return x[:, -1].float().sum() * 0 + x[:, 0, 3].mean() + 1e-6 * x[:, -1, 3].mean()

    _, _, said = run(half, hidden)
    assert [one for one in said if "all effects are within the noise floor" in one], said


@pytest.mark.slow
def test_a_reader_of_other_positions_is_found(half):
    right = ConeEngine.run_swap_batches

    def wrong(self, jobs, **options):
        made = []
        for batch, layers in jobs:
            made.append((replace(batch, reader=OtherPositions(batch.reader, -1)), layers))
        return right(self, made, **options)

    with mock.patch.object(ConeEngine, "run_swap_batches", wrong):
        for name in ("logit difference", "rank"):
            _, _, said = run(half, METRICS[name])
            assert [one for one in said if FALLBACK in one], name


def test_the_model_rounds_in_another_way(half):
    adapter = adapt(half)
    ids = torch.tensor(random_rows((LENGTH,), 4)[0])
    exact = adapter.whole(ids)[1]
    one, again, two = (round_anew(adapter, seed).whole(ids)[1] for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    noise = (one - exact).float().pow(2).mean().sqrt() / exact.float().std()
    assert 0.1 * torch.finfo(exact.dtype).eps < noise < 10 * torch.finfo(exact.dtype).eps
    assert torch.equal(adapter.whole(ids)[1], exact)  # the model itself is as before


@pytest.mark.slow
def test_grids_of_many_families(tmp_path):
    """The small version of benchmarks/half_grids.py."""
    names = ["llama", "gemma3", "neox massive", "mixtral", "gpt2", "olmo2"]
    grids = half_grids.run(names, half_grids.DTYPES, 24, 12)
    assert len(grids) == 24
    assert [grid for grid in grids if grid.fallback] == []
    smooth = [grid for grid in grids if grid.metric not in half_grids.STEPS]
    # Medians alone: the 99th percentile is that of the few grids with next to no effect. The
    # benchmark has enough of them.
    ours, theirs = np.median(half_grids.differing(smooth), axis=1)
    assert ours <= 1.5 * theirs


def other_heads(right, patches, layer, table):
    wrong = copy(patches)
    object.__setattr__(wrong, "heads", patches.heads.flip(0))
    right(wrong, layer, table)


def twice(right, patches, layer, table):
    right(patches, layer, table)
    right(patches, layer, table)


def never(right, patches, layer, table):
    pass


@pytest.mark.parametrize("fault", [None, other_heads, twice, never])
def test_changes_of_heads_that_are_written_elsewhere_are_found(half, fault):
    """Queries are patched by the change of their heads' outputs."""
    function = patching.get_act_patch_attn_head_q_all_pos
    right = Pass._patch_heads
    wrong = right if fault is None else partial(fault, right)
    for name in ("logit difference", "rank"):
        with mock.patch.object(Pass, "_patch_heads", staticmethod(wrong)):
            _, _, said = run(half, METRICS[name], function=function)
        assert any(FALLBACK in one for one in said) == (fault is not None), name
