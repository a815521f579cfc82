"""A live model stays as it was: differentiable, with its flags, hooks, weights and tables; and rows
beyond its rotary tables.
"""

import random

import pytest
import torch
from transformer_lens.components.abstract_attention import AbstractAttention

from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.reference import ReferenceEngine
from tests.engine.configurations import adapter_of
from tests.engine.fuzz import cells, cut_batch, swap_batch
from tests.engine.make import effects_of, states_off, swaps_off

TABLE = 16
ROTARY = ["llama", "gptj", "qk_norm", "olmo3", "sinks"]


@pytest.fixture
def live(monkeypatch):
    """``live("llama")`` -> a model of this test's own, with rotary tables of 16 positions."""
    monkeypatch.setattr(AbstractAttention, "ROTARY_INITIAL_CACHE_SIZE", TABLE)
    return lambda name, dtype=torch.float32: adapter_of.__wrapped__(name, dtype)


def batches(name, dtype=torch.float32):
    """Rows, donors, spans and reads that reach far behind the tables; made with another model of
    the same weights.
    """
    rng, adapter = random.Random(1), adapter_of(name, dtype)
    begin = [rng.randrange(97) for _ in range(2 * TABLE)]
    swaps = swap_batch(rng, adapter, begin=begin, n=4)
    return swaps, cut_batch(rng, adapter, begin=begin, n=3, everywhere=True)


WAY = {"site": "resid_pre", "layers": (0, 2, 1), "window": 1}


def swept(engine, swaps, cuts):
    """Return the results of every method of an engine."""
    way = {"where": None, "windows": [range(3), range(1), range(0)]}
    return (
        engine.run_swaps(swaps, **WAY),
        engine.knockout_states(cuts, **way),
        engine.knockout_states_all_layers(cuts, site="resid_post", layers=range(2)),
    )


def tables(model):
    return [
        getattr(block.attn, name) for block in model.blocks for name in ("rotary_cos", "rotary_sin")
    ]


@pytest.mark.parametrize("name", ROTARY)
def test_rows_beyond_the_rotary_table_have_the_reference_numbers(live, name):
    """The cone engine first: what it needs is not in the model yet."""
    adapter = live(name, torch.float64)
    swaps, cuts = batches(name, torch.float64)
    before = [table.clone() for table in tables(adapter.model)]
    assert {len(table) for table in before} == {TABLE}
    cone = ConeEngine(adapter)
    found = [swept(cone, swaps, cuts) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(tables(adapter.model), before, strict=True))
    last = cone.last_stream(swaps.tokens)
    assert {len(table) for table in tables(adapter.model)} == {TABLE}
    wanted, exact = swept(ReferenceEngine(adapter), swaps, cuts), torch.float64
    assert min(len(table) for table in tables(adapter.model)) > 2 * TABLE
    assert max(effects_of(wanted[0])) > 0.1
    for mine in found:
        assert swaps_off(mine[0], wanted[0], exact) <= 1
        assert states_off(mine[1], wanted[1], exact) <= 1
        assert states_off(mine[2], wanted[2], torch.float32) <= 1  # these are float32
    theirs = adapter.forward(swaps.tokens.ids, swaps.tokens.mask.long())
    assert states_off(last[swaps.tokens.mask], theirs[swaps.tokens.mask], exact) <= 1


@pytest.mark.slow
def test_tables_grow_from_batch_to_batch(live):
    """Rows that are longer each time, by one engine: the first table of its own is soon too
    short.
    """
    adapter, other = live("llama", torch.float64), adapter_of("llama", torch.float64)
    cone = ConeEngine(adapter)
    for length in (12, 17, 18, 33, 34, 63, 20):
        begin = random.Random(length).choices(range(97), k=length - 1)
        batch = swap_batch(random.Random(length), other, begin=begin, n=2, longest=1)
        wanted = ReferenceEngine(other).run_swaps(batch, **WAY)
        assert swaps_off(cone.run_swaps(batch, **WAY), wanted, torch.float64) <= 1, length
    assert {len(table) for table in tables(adapter.model)} == {TABLE}


def state(model):
    """Return the parts of a model that a sweep must not change."""
    return {
        "training": [module.training for module in model.modules()],
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        "grad": {name: p.grad for name, p in model.named_parameters()},
        "hooks": [
            (
                name,
                dict(module._forward_hooks),
                dict(module._backward_hooks),
                dict(module._forward_pre_hooks),
            )
            for name, module in model.named_modules()
        ],
        "own": {
            name: (list(point.fwd_hooks), list(point.bwd_hooks))
            for name, point in model.hook_dict.items()
        },
        "cfg": {name: str(value) for name, value in vars(model.cfg).items()},
        "modules": [id(module) for module in model.modules()],
        "parameters": {
            name: (id(p), p.data_ptr(), p._version) for name, p in model.named_parameters()
        },
    }


def loss_of(model):
    ids = torch.arange(2 * TABLE + 4)[None]
    return model(ids, return_type="loss", prepend_bos=False)


@pytest.mark.parametrize("name", ["llama", "olmo3", "alibi", "experts", "gpt2"])
@pytest.mark.parametrize("engine", ["cone", "reference"])
def test_a_model_is_as_it_was_and_can_still_be_trained(live, name, engine):
    adapter, untouched = live(name), live(name)
    model = adapter.model
    model.blocks[1].train()
    model.blocks[0].eval()
    model.blocks[0].attn.W_Q.requires_grad_(False)
    wanted = loss_of(untouched.model)
    wanted.backward()
    was, weights = state(model), {key: value.clone() for key, value in model.state_dict().items()}
    chosen = choose_engine(adapter, engine, list(range(20)), ["resid_pre"])
    assert chosen.name == engine
    (before, after), *states = swept(chosen, *batches(name))
    # Sweeps keep no graph, and leave torch's mode alone.
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert not any(
        x.requires_grad or x.is_inference() for x in (before.log_p, after[0].log_p, *states)
    )
    chosen.run_swaps(batches(name)[0], **WAY)
    if engine == "reference":
        assert cells(random.Random(0), adapter).off <= 1  # one cell a row
    now = state(model)
    for what in was:
        assert now[what] == was[what], what
    left = [
        *model.parameters(),
        *model.buffers(),
        *(x for m in model.modules() for x in vars(m).values()),
    ]
    assert not [x for x in left if isinstance(x, torch.Tensor) and x.is_inference()]
    for key, value in model.state_dict().items():
        if engine == "reference" and "rotary" in key:  # TransformerLens makes its tables longer
            value = value[:TABLE]
        assert torch.equal(value, weights[key]), key
    loss = loss_of(model)
    loss.backward()
    assert torch.equal(loss, wanted)
    for (key, mine), theirs in zip(
        model.named_parameters(), untouched.model.parameters(), strict=True
    ):
        if key == "blocks.0.attn.W_Q":
            assert mine.grad is None
        else:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
