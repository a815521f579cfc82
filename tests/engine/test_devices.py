"""Models that lie on several devices, with pretended ones (tests/engine/pretended.py) and, where
there are two cards, on these.

The numbers are those of one device to the bit, and streams cross from a device to the next where
the blocks do, once.
"""

import gc
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformer_lens.utilities.multi_gpu import get_device_for_block_index

import anchorlens as al
from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cost import rows_per_batch
from anchorlens.engine.generate import _rows_at_once, greedy
from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import pad_rows
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.models.devices import free_memory
from anchorlens.models.hooked.blocks import (
    block_devices,
    device_of,
    devices_of,
    inputs_follow_blocks,
)
from anchorlens.models.load import adapt
from tests.engine.make import case, given_swaps, random_rows, swaps_off
from tests.engine.make import cut_batch_of as cuts_of
from tests.engine.pretended import CPU, There, pretended
from tests.models.tiny import FAMILIES, FURTHER_FAMILIES, llama, random_model, save_model
from tests.raised import raises
from tests.running.small_sweeps import sweep
from tests.tiers import choose_cases

FIRST, SECOND, THIRD = (torch.device("cuda", i) for i in range(3))
TOKENS = torch.arange(30, 54)[None]
# Transformers makes GPT-J's table of positions from tables that pretended devices cannot follow.
EVERY = [name for name in FAMILIES | FURTHER_FAMILIES if name != "gptj"]
# Attention sinks, alibi, learned positions, parallel blocks, experts, QK norms, windows and norms
# after the parts among them.
SOME = ["llama", "gpt2", "bloom", "gpt_oss", "gemma3", "mixtral", "neox"]
VALUES = ["value_before", "value_after", "logp_before", "logp_after"]


def load(path, n_devices=1, **options):
    return al.load_model(
        path, **{"device": "cuda:0", "n_devices": n_devices, "progress": False} | options
    )


@pytest.fixture
def devices():
    with pretended(3) as account:
        yield account


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A llama of seven layers."""
    return save_model(
        random_model(llama(num_hidden_layers=7)), tmp_path_factory.mktemp("deep") / "seven"
    )


def same(one, two):
    """Assert that the metrics of two engines are equal to the bit."""
    assert swaps_off(one, two, torch.float32) == 0


def test_the_pretended_devices_are_as_strict_as_cards(devices):
    one, two = torch.arange(6.0).to(FIRST), torch.arange(6.0).to(SECOND)
    assert (one.device, two.device) == (FIRST, SECOND)
    assert devices.moves == [(CPU, FIRST, torch.float32, (6,)), (CPU, SECOND, torch.float32, (6,))]
    for mixed in (
        lambda: one + two,
        lambda: torch.cat([one, two]),
        lambda: one[two.long()],
        lambda: one[:2].mul_(two[:2]),
        lambda: torch.where(one > 2, one, two),
    ):
        with pytest.raises(AssertionError, match="mixes"):
            mixed()
    for left in (
        lambda: one + torch.arange(6.0),
        lambda: torch.arange(6.0).index_select(0, one.long()),
    ):
        with pytest.raises(AssertionError, match="lies on the CPU"):
            left()
    assert one[torch.tensor([1, 2])].cpu().tolist() == [1.0, 2.0]
    assert (one + torch.tensor(1.0)).device == FIRST
    assert torch.zeros(2, device=SECOND).device == torch.arange(2, device=SECOND).device == SECOND
    one[1:3] = 7.0
    one.view(2, 3)[0].add_(1.0)
    assert one.tolist() == [1.0, 8.0, 8.0, 3.0, 4.0, 5.0]
    assert isinstance(one.to(SECOND), There)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "n", "first", "wanted"),
    [(7, 3, 0, [0, 0, 0, 1, 1, 2, 2]), (4, 2, 1, [1, 1, 2, 2]), (2, 3, 0, [0, 1])],
)
def test_blocks_lie_where_transformerlens_brings_the_stream(tmp_path, layers, n, first, wanted):
    path = save_model(random_model(llama(num_hidden_layers=layers)), tmp_path / "model")
    with pretended(4) as account:
        model = load(path, n, device=f"cuda:{first}")
        assert [device.index for device in block_devices(model)] == wanted
        assert [get_device_for_block_index(i, model.cfg).index for i in range(layers)] == wanted
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            part, _, rest = name.partition(".")
            there = (
                wanted[int(rest.partition(".")[0])]
                if part == "blocks"
                else wanted[0 if part == "embed" else -1]
            )
            assert tensor.device == torch.device("cuda", there) == device_of(model.cfg, name), name
        account.moves.clear()
        model(TOKENS)  # TransformerLens's own
        steps = [(f"cuda:{a}", f"cuda:{b}") for a, b in itertools.pairwise(wanted) if a != b]
        assert account.streams(48) == steps


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "family", choose_cases(["llama"], EVERY, slow=["gemma3", "gpt_oss", "neox"])
)
def test_it_is_the_model_that_lies_on_one_device(tiny, tiny_model, devices, family):
    one, three = load(tiny(family)), load(tiny(family), 3)
    assert devices_of(one) == (FIRST,)
    assert devices_of(three) == (FIRST, SECOND, THIRD)
    with inputs_follow_blocks(three), torch.no_grad():
        found = three(TOKENS)
    assert found.device == THIRD
    assert torch.equal(found.cpu(), one(TOKENS).cpu())
    # Hash and card say what the model is, not where: of the model on the CPU they are the same but
    # for the device.
    assert al.model_card(three) == al.model_card(one)
    whole = al.model_card(tiny_model(family))
    assert al.model_card(three).weights_sha256 == whole.weights_sha256
    assert al.model_card(three).parity == pytest.approx(whole.parity, abs=1e-3)
    assert not any(block._forward_pre_hooks for block in three.blocks)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(["llama"], SOME, slow=["gemma3", "gpt_oss"]))
def test_both_engines_give_the_numbers_of_one_device(tiny, devices, family):
    wide = 48
    (one, batch), (three, _) = case(load(tiny(family))), case(load(tiny(family), 3))
    taken, given = (
        replace(batch, swaps=batch.swaps[:2]),
        replace(batch, swaps=given_swaps(three)[1:2]),
    )
    for some, site in ((taken, "resid_pre"), (taken, "mlp_out"), (given, "resid_pre")):
        how = {"site": site, "layers": [0, 2], "window": 2}
        devices.moves.clear()
        found = ConeEngine(three).run_swaps(some, **how)
        # All that is measured crosses together; what is given comes from the CPU besides.
        assert [move for move in devices.streams(wide) if move[0] != "cpu"] == [
            ("cuda:0", "cuda:1"),
            ("cuda:1", "cuda:2"),
        ]
        same(found, ConeEngine(one).run_swaps(some, **how))
        if site == "resid_pre":
            same(
                ReferenceEngine(three).run_swaps(some, **how),
                ReferenceEngine(one).run_swaps(some, **how),
            )
    rows = pad_rows(random_rows((9, 12, 7), 3))
    devices.moves.clear()
    stream = last_stream(three, rows)
    assert stream.device == THIRD
    assert devices.streams(wide) == [("cuda:0", "cuda:1"), ("cuda:1", "cuda:2")]
    # Masks come along, so that no score has to be moved.
    between = [(dtype, shape) for a, b, dtype, shape in devices.moves if CPU not in (a, b)]
    assert all(dtype is torch.long or shape[-1] == wide for dtype, shape in between)
    assert torch.equal(stream.cpu(), last_stream(one, rows).cpu())
    assert torch.equal(
        ConeEngine(three).last_stream(rows).cpu(), ConeEngine(one).last_stream(rows).cpu()
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", choose_cases(["mask"], ["mask", "zero"]))
@pytest.mark.parametrize(
    "engine", [ConeEngine, pytest.param(ReferenceEngine, marks=pytest.mark.slow)]
)
def test_knockouts_give_the_states_of_one_device(tiny, devices, engine, mode):
    one, three = adapt(load(tiny("gemma3"))), adapt(load(tiny("gemma3"), 3))
    cuts = cuts_of(mode=mode, heads=(1, 2))
    for where in (None, ("resid_mid", 0), ("attn_out", 1)):
        windows = [range(1), range(1, 3), range(0)]
        a, b = (
            engine(adapter).knockout_states(cuts, where=where, windows=windows)
            for adapter in (one, three)
        )
        assert b.device == (THIRD if where is None else torch.device("cuda", where[1]))
        assert torch.equal(a.cpu(), b.cpu())
    a, b = (
        engine(x).knockout_states_all_layers(cuts, site="resid_post", layers=range(3))
        for x in (one, three)
    )
    assert a.device == b.device == CPU
    assert torch.equal(a, b)
    assert a.std() > 0.1


@pytest.mark.slow
def test_a_prefix_stays_where_its_layers_are(tiny, devices):
    model = load(tiny("llama"), 3)
    cone, begin = ConeEngine(adapt(model)), list(range(40))
    one = ConeEngine(adapt(load(tiny("llama"))))
    rows = [[*begin, *row] for row in random_rows((9, 8, 7, 9), 3)]
    for engine in (cone, one):
        engine.reset(begin)
    assert [k.device for k in cone._prefix.keys] == [FIRST, SECOND, THIRD]
    for some in (rows, rows[::-1]):
        found = [engine.last_stream(pad_rows(some)).cpu() for engine in (cone, one)]
        assert torch.equal(*found)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(["gpt2"], ["llama", "gpt2", "bloom", "gpt_oss"]))
def test_continuations_are_those_of_one_device(tiny, devices, family):
    prompts = [[*range(20), *row] for row in random_rows((9, 4, 12, 4), 5)]
    found = []
    for n in (1, 3):
        adapter = adapt(load(tiny(family), n))
        cache = adapter.generation_prefix(torch.tensor([], dtype=torch.long))
        assert [entry.past_keys.device for entry in cache.entries] == block_devices(adapter.model)
        options = {"max_new_tokens": 8, "batch_size": 3}
        found.append(greedy(adapter, prompts, **options, stop=lambda ids: sum(ids) % 4 == 0))
    assert found[0] == found[1]
    assert len({len(ids) for ids in found[0]}) > 1


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(["llama"], ["llama", "gpt2", "gpt_oss"]))
def test_a_live_model_whose_blocks_lie_anywhere(tiny, devices, family):
    """As TransformerLens's n_devices= leaves one, where the most memory was free; its own norms
    move to what they are given.
    """
    (one, batch), live = case(load(tiny(family))), load(tiny(family))
    live.cfg.n_devices = 2
    for block, device in zip(live.blocks, (SECOND, FIRST, SECOND), strict=True):
        torch.nn.Module.to(block, device)
    for part in (live.ln_final, live.unembed):
        torch.nn.Module.to(part, SECOND)
    torch.nn.Module.to(live.blocks[0].ln1, FIRST if family == "llama" else SECOND)
    adapter = adapt(live)
    assert (adapter.devices, adapt(live).shape.max_layers_per_device) == ((FIRST, SECOND), 2)
    engine = choose_engine(adapter, "cone", range(30, 50))
    assert engine.name == "cone"
    how, batch = (
        {"site": "resid_pre", "layers": [0, 2], "window": 1},
        replace(batch, swaps=batch.swaps[:1]),
    )
    same(engine.run_swaps(batch, **how), ConeEngine(one).run_swaps(batch, **how))
    same(
        ReferenceEngine(adapter).run_swaps(batch, **how),
        ReferenceEngine(one).run_swaps(batch, **how),
    )
    prompts = random_rows((5, 9), 2)
    new = [greedy(x, prompts, max_new_tokens=4, stop=lambda _: False) for x in (adapter, one)]
    assert new[0] == new[1]


@pytest.mark.slow
def test_a_sweep_of_a_spread_model(tiny, devices):
    told = []
    results = [
        sweep(
            load(tiny("llama"), n),
            batch_size=4,
            n_spot_checks=4,
            on_plan=lambda plan: told.append(plan),
        )
        for n in (1, 2)
    ]
    a, b = (result.samples()[VALUES].to_numpy() for result in results)
    np.testing.assert_array_equal(a, b)
    assert len(a) > 0
    one, two = (result.record for result in results)
    assert results[0].run_id == results[1].run_id
    assert (one["environment"]["device"], two["environment"]["device"]) == (
        "cuda:0",
        "cuda:0, cuda:1",
    )
    assert (one["environment"]["gpu"], two["environment"]["gpu"]) == (
        "Pretended 0",
        "Pretended 0, Pretended 1",
    )
    assert two["plan"]["engine"] == "cone"
    assert "MB beside the model" in str(told[0])
    assert "MB on each of 2 devices beside the model" in str(told[1])
    assert ("n_devices" in one["plan"], two["plan"]["n_devices"]) == (False, 2)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_truth_probes_of_a_spread_model(tiny, devices):
    data = al.load_qa("popqa-sample", limit=90)
    how = {
        "progress": False,
        "n_resamples": 20,
        "batch_size": 40,
        "placebos": False,
        "n_spot_checks": 2,
    }
    found = [
        al.knockout_sweep(load(tiny("gpt2"), n), data, **how).samples()[VALUES].to_numpy()
        for n in (1, 3)
    ]
    np.testing.assert_array_equal(*found)
    assert len(found[0]) > 0


@pytest.mark.slow
def test_the_fullest_device_decides_how_much_is_taken(tiny):
    gib = 2**30
    with pretended(2, [3 * gib, gib]):
        adapter = adapt(load(tiny("llama"), 2))
        assert free_memory(adapter.devices) == gib
        assert free_memory(adapter.devices[:1]) == 3 * gib
        assert (adapter.shape.n_layers, adapter.shape.max_layers_per_device) == (3, 2)
        rows = rows_per_batch(adapter.shape, adapter.devices, 2, None, None)
        assert rows == rows_per_batch(adapter.shape, adapter.devices[1:], 2, None, None)
    with pretended(2, [3 * gib, 2**26]):
        few = _rows_at_once(adapt(load(tiny("llama"), 2)), 200, None)
        assert 1 <= few < _rows_at_once(adapt(load(tiny("llama"))), 200, None)


@pytest.mark.slow
def test_sizes_are_those_of_each_device(tiny, deep):
    gib = 2**30
    with pretended(3, [3 * gib, 2 * gib, gib]):
        one, three = al.model_size(deep, "cuda:0"), al.model_size(deep, "cuda:0", n_devices=3)
        assert (one.free_memory, three.free_memory) == (3 * gib, gib)
        assert (one.device_bytes, sum(three.device_bytes)) == (
            (one.weight_bytes,),
            three.weight_bytes,
        )
        assert "free on each of 3 devices from cuda:0 on" in str(three)
        model = load(deep, 3)
        held = dict.fromkeys((FIRST, SECOND, THIRD), 0)
        for parameter in model.parameters():
            held[parameter.device] += parameter.numel() * 4
        # Biases that the family lacks stand in a HookedTransformer as zeros.
        for said, there in zip(three.device_bytes, held.values(), strict=True):
            assert said <= there < 1.05 * said
    with pretended(2, [one.weight_bytes] * 2):
        assert not al.model_size(deep, "cuda:0").fits
        assert al.model_size(deep, "cuda:0", n_devices=2).fits


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_devices": 4}, "n_devices=4.* 2 CUDA devices"),
        ({"n_devices": 2, "device": "cuda:1"}, "n_devices=2.*cuda:1"),
        ({"n_devices": 2, "device": "cpu"}, "n_devices=2.*device='cpu'"),
        ({"n_devices": 0}, "n_devices=0"),
        ({"n_devices": True}, "n_devices=True"),
        ({"n_devices": "two"}, "n_devices='two'"),
        ({"n_devices": 2, "stream": True}, "stream=True"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_spread_is_said_before_anything_is_read(tiny, options, said):
    from anchorlens.models.source import check_model

    with pretended(2):
        for refuse in (
            lambda: al.load_model("./no/such/model", **options),
            lambda: check_model(tiny("llama"), **options),
        ):
            with pytest.raises(InputError, match=said):
                refuse()


@pytest.mark.slow
def test_without_a_card_nothing_is_spread_and_a_live_hugging_face_model_is_on_two(tiny, tiny_model):
    if torch.cuda.device_count() == 0:
        with raises(InputError, "n_devices"):
            al.load_model(tiny("llama"), n_devices=4)
    with pretended(2), pytest.raises(InputError, match="keeps its device and dtype.* n_devices"):
        al.load_model(tiny_model("llama"), n_devices=2)
    live, how = random_model(llama()), {"n_devices": 2, "tokenizer": tiny("llama")}
    with pretended(2):
        with raises(InputError, "n_devices"):
            al.load_model(live, **how)
        model = al.load_model(live, device="cuda:0", progress=False, **how)
        assert devices_of(model) == (FIRST, SECOND)
        assert (
            al.model_card(model).weights_sha256 == al.model_card(load(tiny("llama"))).weights_sha256
        )


def test_a_card_that_is_too_small_says_what_to_do(tiny, devices, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("anchorlens.models.hooked.convert.install", full)
    said = r"does not fit on 2 devices from cuda:0 on in float32\. .*stream=True.*n_devices="
    with pytest.raises(InputError, match=said):
        load(tiny("llama"), 2)


needs_cards = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="there are not two GPUs here"
)


@needs_cards
@pytest.mark.parametrize("family", SOME)
def test_two_cards_give_the_numbers_of_one(tiny, family):
    """Kernels may differ between cards of two kinds, so not to the bit."""
    (one, batch), (two, _) = case(load(tiny(family))), case(load(tiny(family), 2))
    assert devices_of(two.model) == (FIRST, SECOND)
    assert al.model_card(two.model).weights_sha256 == al.model_card(one.model).weights_sha256
    for site in ("resid_pre", "mlp_out"):
        how = {"site": site, "layers": [0, 1, 2], "window": 2}
        for engine in (ConeEngine, ReferenceEngine):
            assert (
                swaps_off(
                    engine(two).run_swaps(batch, **how),
                    engine(one).run_swaps(batch, **how),
                    torch.float32,
                )
                <= 1
            )
    prompts = random_rows((5, 9), 2)
    new = [greedy(x, prompts, max_new_tokens=4, stop=lambda _: False) for x in (one, two)]
    assert new[0] == new[1]


@needs_cards
def test_each_card_holds_its_share(deep):
    gc.collect()
    torch.cuda.empty_cache()
    before = [torch.cuda.memory_allocated(i) for i in range(2)]
    model = load(deep, 2)
    held = [torch.cuda.memory_allocated(i) - at for i, at in enumerate(before)]
    said = al.model_size(deep, "cuda:0", n_devices=2).device_bytes
    for there, weights in zip(held, said, strict=True):
        assert (
            weights <= there < 4 * weights + 2**20
        )  # rotary tables and the allocator's blocks beside these small weights
    assert len(model.blocks) == 7
