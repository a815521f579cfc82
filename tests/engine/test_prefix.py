"""The common prefix of rows is computed once if that saves tokens, and changes no numbers."""

import random

import pytest
import torch

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.readouts import ChoiceReader
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models.hooked.blocks import HookedBlock
from tests.engine.configurations import adapter_of
from tests.engine.make import batch_of, counted, effects_of, swaps_off

A, B = (random.Random(seed).choices(range(97), k=40) for seed in range(2))
OWN = 4  # tokens of a row behind its prefix
WAY = {"site": "resid_pre", "layers": (1,), "window": 1}


def batch(begin, n):
    """Rows (and as many donors) that have these tokens in common; the first token behind them is
    changed, the last one read.
    """
    rng = random.Random(n)
    rows, donors = (
        [[*begin, i + side * n, *rng.choices(range(97), k=OWN - 1)] for i in range(n)]
        for side in (0, 1)
    )
    at = tuple((len(begin),) for _ in rows)
    reader = ChoiceReader(torch.tensor([len(begin) + OWN - 1] * n), (1, 2), (3,))
    return batch_of(reader, rows, donors, {"first": (at, at)})


def own(n):
    """Tokens of rows, donors and cells in the last layer that a batch takes beside its prefix.

    The token that is changed is in no cell: it goes on as its donor's, which stands behind the same
    prefix.
    """
    return n * OWN + n + n * (OWN - 1)


# Each step: what rows begin with, how many rows, then tokens of the prefix that are computed once,
# and that each row computes.
SWEEPS = {
    "rows of one batch share it": [(A[:20], 4, 20, 0)],
    "too short for so few rows": [(A[:4], 2, 0, 4), (A[:4], 2, 4, 0)],
    "short, and many rows": [(A[:4], 5, 4, 0)],
    "single rows share it from the second on": [(A, 1, 40, 0), (A, 1, 0, 0)],
    "it grows": [(A[:20], 4, 20, 0), (A, 4, 20, 0), (A, 1, 0, 0)],
    "it grows by what is worth it": [(A[:38], 2, 38, 0), (A, 2, 0, 2), (A, 2, 2, 0)],
    "a part of it is used": [
        (A, 4, 40, 0),
        (A[:15], 4, 0, 0),
        (A[:15] + B[:3], 2, 0, 3),
        (A, 2, 0, 0),
    ],
    "it branches": [
        (A, 4, 40, 0),
        (A[:15] + B[:20], 4, 20, 0),
        (A[:15] + B[:20], 1, 0, 0),
        (A[:20], 1, 0, 5),
    ],
    "another one takes its place": [(A, 4, 40, 0), (B, 4, 40, 0), (A, 4, 40, 0)],
    "it stays while others come that are not worth it": [
        (A, 4, 40, 0),
        (B[:3], 1, 0, 3),
        (A, 4, 0, 0),
    ],
    "it outgrows the branch": [
        (A[:30], 4, 30, 0),
        (A[:5] + B[:35], 4, 35, 0),
        (A[:5] + B[:38], 4, 0, 3),
    ],
}


@pytest.mark.parametrize("steps", SWEEPS.values(), ids=SWEEPS)
def test_what_is_computed_and_that_the_numbers_are_the_references(steps, monkeypatch):
    adapter = adapter_of("llama", torch.float64)
    cone, through = ConeEngine(adapter), counted(adapter, monkeypatch)
    for i, (begin, n, once, each) in enumerate(steps):
        one = batch(begin, n)
        through[2] = 0
        found, tokens = cone.run_swaps(one, **WAY), through[2]
        wanted = ReferenceEngine(adapter).run_swaps(one, **WAY)
        assert swaps_off(found, wanted, torch.float64) <= 1, i
        assert max(effects_of(wanted)) > 1e-3, i
        assert tokens == own(n) + once + each * 2 * n, (i, tokens - own(n))


@pytest.mark.parametrize("site", ["resid_pre", "resid_mid"])
def test_the_last_layer_asks_only_for_what_is_read(site, monkeypatch):
    """Also if the patch acts after the attention."""
    adapter, asked, right = adapter_of("llama"), [], HookedBlock.attn_out

    def attn_out(block, z):
        asked.append(len(z))
        return right(block, z)

    monkeypatch.setattr(HookedBlock, "attn_out", attn_out)
    ConeEngine(adapter).run_swaps(batch([], 2), site=site, layers=(1,), window=1)
    joined = 2 * (OWN - 1)
    runs = 2 * OWN + 2
    before = runs + joined if site == "resid_pre" else runs
    assert asked == [runs, before, 2 + 2]


def test_after_begin_the_same_batches_give_the_same_bits_whatever_came_before():
    adapter = adapter_of("llama")
    shots = tuple(range(1, 41))
    first, second = batch([*shots, 61, 62], 3), batch(list(shots), 2)

    def bits(cone, one):
        before, (after, *_) = cone.run_swaps(one, site="resid_pre", layers=(0, 1, 2), window=1)
        return torch.cat([before.log_p.reshape(-1), after.log_p.reshape(-1)])

    fresh = ConeEngine(adapter)
    fresh.reset(shots)
    wanted = bits(fresh, second)
    cone = ConeEngine(adapter)
    cone.reset(shots)
    bits(cone, first)
    kept = cone._shared
    assert kept is not None
    assert kept.ids == shots
    cone.reset(shots)
    assert cone._shared is kept  # not computed again
    assert torch.equal(bits(cone, second), wanted)
    cone.reset()
    assert cone._prefix is None
    assert torch.allclose(bits(cone, second), wanted, atol=1e-5)
