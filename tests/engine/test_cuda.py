"""The cone engine on CUDA: on a GPU where there is one, and everywhere on a stand-in that computes
nothing and keeps account (:mod:`tests.engine.stand_in`).
"""

import copy
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformer_lens import HookedTransformer, HookedTransformerConfig

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cone_pass import Pass
from anchorlens.engine.patches import no_progress
from anchorlens.engine.readouts import ChoiceReader
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models.load import adapt
from anchorlens.models.read import READ_SLICE
from tests.engine.configurations import BASE
from tests.engine.make import batch_of, case, given_swaps, random_rows, swaps_off
from tests.engine.make import cut_batch_of as cuts_of
from tests.engine.stand_in import GPU, StandIn, on_stand_in
from tests.tiers import choose_cases

FAMILIES = ["llama", "gemma3", "gpt2", "neox"]


def early(waits):
    """Return the events that the host waited for before the last layer ended."""
    last = len(waits) - waits[::-1].index("layer")
    return [wait for wait in waits[:last] if wait != "layer"]


def copied(tiny_model, family):
    """An engine that has not run yet."""
    adapter, batch = case(copy.deepcopy(tiny_model(family)))
    return ConeEngine(adapter), batch


WAITING = frozenset(
    [
        "_local_scalar_dense",
        "is_nonzero",
        "nonzero",
        "nonzero_static",
        "equal",
        "masked_select",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "repeat_interleave",
    ]
)


class NoWaits(TorchDispatchMode):
    """Raise at an operation that would wait for a GPU, between the first and the last block."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = args[1] if name in ("index", "index_put", "index_put_") else ()
        is_mask = any(one is not None and one.dtype is torch.bool for one in masks)
        assert name not in WAITING and not is_mask, f"{func} waits"
        return func(*args, **(kwargs or {}))

    def step(self, finished, block, on_progress):
        self.steps += 1
        with self:
            right_step(finished, block, on_progress)


right_step = Pass.step


@pytest.mark.parametrize("family", choose_cases(["gemma3", "gpt2"], [*FAMILIES, "qwen3", "olmo2"]))
def test_no_operation_of_a_block_waits(tiny_model, family):
    """Counted on a CPU, at every operation, in the first pass of an engine."""
    adapter, batch = case(tiny_model(family))
    batch = replace(batch, swaps=(*batch.swaps, *given_swaps(adapter)))
    watch = NoWaits()

    def step(self, block, on_progress=no_progress):
        watch.step(self, block, on_progress)

    with mock.patch.object(Pass, "step", step):
        for site in ("resid_pre", "mlp_out", "resid_post"):
            ConeEngine(adapter).run_swaps(batch, site=site, layers=[0, 2], window=2)
        ConeEngine(adapter).run_swaps(
            replace(batch, swaps=given_swaps(adapter)), site="attn_out", layers=[1], window=1
        )
        for mode in ("mask", "zero"):
            ConeEngine(adapter).knockout_states(
                cuts_of(mode=mode, heads=(1, 2)), where=None, windows=[range(1), range(1, 3)]
            )
    assert watch.steps == 6 * adapter.n_layers
    with pytest.raises(AssertionError, match="waits"), watch:
        bool(torch.ones(2).any())


def test_the_stand_in_finds_what_a_gpu_would_punish():
    with mock.patch("torch.cuda._lazy_init"), StandIn() as stand_in:
        table = torch.arange(3).to(GPU)
        assert stand_in.waits == ["copy"]
        other = torch.arange(3).pin_memory().to(GPU, non_blocking=True)
        assert stand_in.waits == ["copy"]
        assert (table + other).cpu().device.type == "cpu"
        table.tolist()
        assert stand_in.waits == ["copy", "read back", "read back"]
        with pytest.raises(AssertionError, match="lies on the CPU"):
            table[torch.tensor([1, 2])]
        for waiting in (lambda: int(table[0]), lambda: table.unique(), lambda: table[table > 0]):
            with pytest.raises((RuntimeError, NotImplementedError)):
                waiting()


@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(["gemma3"], FAMILIES))
def test_swaps_wait_for_nothing_before_the_last_layer(tiny_model, family):
    cone, batch = copied(tiny_model, family)
    batch = replace(batch, swaps=(*batch.swaps, *given_swaps(cone.adapter)))
    for site in ("resid_pre", "mlp_out"):
        with on_stand_in(cone) as gpu:
            before, after = cone.run_swaps(
                batch, site=site, layers=[0, 2], window=2, on_progress=gpu.layer
            )
        assert gpu.waits.count("layer") == 3
        assert early(gpu.waits) == []
        assert gpu.waits.count("copy") <= 1  # which tokens are read, at the end
        assert (before.p.shape, after[0].p.shape) == ((4,), (2, 4))


def swapped(cone, rows, lead):
    """The account of a sweep of so many rows that begin alike."""
    ids = [[*range(lead), *row] for row in random_rows([9 + i % 3 for i in range(rows)], 3)]
    reader = ChoiceReader(torch.tensor([len(row) - 1 for row in ids]), (5,), (6, 7))
    at = tuple((len(row) - 2,) for row in ids)
    batch = batch_of(reader, ids, ids[::-1], {"pre_answer": (at, at[::-1])})
    with on_stand_in(cone) as gpu:
        cone.run_swaps(batch, site="resid_pre", layers=range(3), window=1, on_progress=gpu.layer)
    return gpu


@pytest.mark.parametrize("lead", [0, 40])
def test_a_common_prefix_waits_for_nothing_and_rows_share_their_launches(tiny_model, lead):
    """Alone in its own pass, or in that of the rows."""
    cone, launches = copied(tiny_model, "llama")[0], []
    for rows in (
        16,
        24,
        32,
    ):  # even: the middle one of an odd number is its own donor, and its cells are shorter
        gpu = swapped(cone, rows, lead)
        launches.append(gpu.launches)
        assert early(gpu.waits) == []
        assert (cone._prefix is not None) is (lead > 0)
    assert lead or launches[1] == launches[2] > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(["gemma3"], FAMILIES))
def test_knockouts_wait_for_nothing_before_the_last_layer(tiny_model, family):
    cone, _ = copied(tiny_model, family)
    for mode in ("mask", "zero"):
        batch = cuts_of(mode=mode, heads=(1, 2))
        with on_stand_in(cone) as gpu:
            states = cone.knockout_states(
                batch, where=None, windows=[range(1), range(1, 3), range(0)], on_progress=gpu.layer
            )
            everywhere = cone.knockout_states_all_layers(
                batch, site="resid_post", layers=range(3), on_progress=gpu.layer
            )
        assert early(gpu.waits[: gpu.waits.index("read back") + 1]) == []
        assert (states.shape, everywhere.shape) == ((3, 3, 4, 48), (4, 3, 4, 48))


# One pass of 500 pairs at 30 layers with Llama 3's vocabulary: in a CPU's slices its read takes
# 86,875 launches.
READS, LLAMA3_VOCAB = 31_000, 128_256


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1600), (torch.bfloat16, 1700)])
def test_a_read_of_many_rows_takes_few_launches(dtype, most):
    sizes = BASE | {
        "n_layers": 1,
        "d_model": 8,
        "n_heads": 1,
        "d_head": 8,
        "d_vocab": LLAMA3_VOCAB,
        "dtype": dtype,
    }
    model = HookedTransformer(HookedTransformerConfig(**sizes))
    read = adapt(torch.nn.Module.to(model, "meta")).read
    stream, tokens = (
        torch.empty(READS, n, dtype=d, device="meta") for n, d in ((8, dtype), (2, torch.long))
    )
    with (
        mock.patch.dict(READ_SLICE, {"meta": READ_SLICE["cuda"]}),
        StandIn() as gpu,
        torch.no_grad(),
    ):
        picked, total, _ = read.scores(stream, tokens)
    assert (picked.shape, total.shape) == ((READS, 2), (READS,))
    assert 100 < gpu.launches < most
    assert gpu.waits == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_numbers_on_a_gpu(tiny_model, family):
    """And torch's own watch over synchronisation finds none between the first layer and the
    last.
    """
    model = copy.deepcopy(tiny_model(family)).to(GPU)
    adapter, batch = case(model)
    batch = replace(batch, swaps=(*batch.swaps, *given_swaps(adapter)))
    done = 0.0

    def watch(share):
        nonlocal done
        done += share
        torch.cuda.set_sync_debug_mode("default" if done > 0.999 else "error")

    options = {"site": "resid_pre", "layers": range(adapter.n_layers), "window": 1}
    try:
        found = ConeEngine(adapter).run_swaps(batch, **options, on_progress=watch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (
        swaps_off(found, ReferenceEngine(adapter).run_swaps(batch, **options), torch.float32) <= 1
    )
