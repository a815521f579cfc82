"""Sizes, lanes, groups and costs of passes."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cone_layout import JOINT_ATTENTION, AttentionGroup
from anchorlens.engine.cost import GroupSize, PassSize, out_of_memory
from anchorlens.engine.geometry import Lanes, cone_start
from anchorlens.engine.patches import window_layers
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models.load import adapt
from tests.engine.make import answer_reader, batch_of, counted, random_rows, swaps_off


def test_what_counts_as_out_of_memory():
    told = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    assert [out_of_memory(e) for e in (torch.OutOfMemoryError("x"), MemoryError(), told)] == [
        True,
        True,
        True,
    ]
    assert not out_of_memory(RuntimeError("shapes do not match"))


def test_more_of_anything_needs_more_memory(tiny_model):
    cone = ConeEngine(adapt(tiny_model("llama")))
    groups = (GroupSize(800, 40, 20, 50), GroupSize(40, 40, 1, 50))
    size = PassSize(
        clean_tokens=2000, clean_rows=40, clean_keys=50, cell_groups=groups, prefix=10, reads=40
    )
    one = cone.pass_bytes(size, 3)
    more = {
        "lanes": cone.pass_bytes(size, 6),
        "runs": cone.pass_bytes(replace(size, clean_tokens=4000, clean_rows=80), 3),
        "cells": cone.pass_bytes(
            replace(size, cell_groups=(GroupSize(1600, 80, 20, 50), GroupSize(80, 80, 1, 50))), 3
        ),
        "keys": cone.pass_bytes(replace(size, clean_keys=500), 3),
        "prefix": cone.pass_bytes(replace(size, prefix=1000), 3),
        "reads": cone.pass_bytes(replace(size, reads=4000), 3),
    }
    assert {name for name, need in more.items() if need <= one} == set()


@pytest.mark.parametrize("reads", [1, 4000])
@pytest.mark.parametrize("engine", [ConeEngine, ReferenceEngine])
def test_the_terms_of_a_pass_are_all_of_its_memory(tiny_model, engine, reads):
    own = engine(adapt(tiny_model("llama")))
    group = GroupSize(80, 4, 20, 50)
    size = PassSize(
        clean_tokens=200, clean_rows=4, clean_keys=50, cell_groups=(group,), reads=reads
    )
    terms = own.pass_terms(size, 3)
    assert sum(terms.values()) == own.pass_bytes(size, 3)
    assert all(terms.values())
    if engine is ConeEngine:  # many reads: their logits take more than a block
        assert ("logits" in terms) is (reads > 1)


def test_lanes_join_where_their_window_begins():
    """Layers in any order: lanes stand in the order in which they join, and those that are changed
    together are neighbours.
    """
    lanes = Lanes.windows((5, 0, 3), 3, 6)
    assert (lanes.start, lanes.first, lanes.last) == ((0, 2, 4), (0, 2, 4), (1, 4, 5))
    assert lanes.lane_of == (2, 0, 1)
    assert [lanes.count_lanes(layer) for layer in range(6)] == [1, 1, 2, 2, 3, 3]
    assert [lanes.active_ranges(layer) for layer in range(6)] == [
        [(0, 1)],
        [(0, 1)],
        [(1, 2)],
        [(1, 2)],
        [(1, 3)],
        [(2, 3)],
    ]
    gap = Lanes.windows((0, 4), 1, 6)
    assert [gap.active_ranges(layer) for layer in range(6)] == [[(0, 1)], [], [], [], [(1, 2)], []]
    # A long window beside short ones: the lanes that are changed need not be neighbours.
    long = Lanes(start=(0, 0, 1, 2), first=(0, 0, 1, 2), last=(0, 3, 1, 2), lane_of=(0, 1, 2, 3))
    assert [long.active_ranges(layer) for layer in range(4)] == [
        [(0, 2)],
        [(1, 3)],
        [(1, 2), (3, 4)],
        [(1, 2)],
    ]


@pytest.mark.parametrize("window", [1, 2, 3, 6])
def test_changed_lanes_are_those_whose_window_holds_the_layer(window):
    layers = (4, 1, 0, 5, 2)
    lanes = Lanes.windows(layers, window, 6)
    for layer in range(6):
        changed = [j for first, stop in lanes.active_ranges(layer) for j in range(first, stop)]
        wanted = {i for i, at in enumerate(layers) if layer in window_layers(at, window, 6)}
        assert {i for i, lane in enumerate(lanes.lane_of) if lane in changed} == wanted
        assert max(changed, default=0) <= lanes.count_lanes(layer)


def test_which_keys_a_query_may_read():
    """A prefix of two tokens; a row with own tokens 3, 4 (one of its clean run before them), one
    with own token 2.
    """
    group = AttentionGroup.make([3, 2], [5, 3], prefix=2, base=[0, 3])
    assert group.key_positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 2, 3]]
    assert group.query_positions.tolist() == [[3, 4], [2, 2]]
    assert group.base.tolist() == [[0], [3]]
    assert group.query_slots.tolist() == [0, 1, 2]
    full = [[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], [[1, 1, 0, 1, 0], [1, 1, 0, 1, 0]]]
    near = [[[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]], [[0, 1, 0, 1, 0], [0, 1, 0, 1, 0]]]
    assert group.attention_mask(None).int().tolist() == full
    assert group.attention_mask(2).int().tolist() == near
    assert group.attention_mask(5).int().tolist() == full
    # One query that may read everything needs no mask.
    one = AttentionGroup.make([4], [5], prefix=3, base=[0])
    assert one.attention_mask(None) is None
    assert one.attention_mask(5) is None
    assert one.attention_mask(4).tolist() == [[[False, True, True, True, True]]]


def one_row(adapter):
    (row,), (donor,) = random_rows((15,), 1), random_rows((12,), 2)
    return answer_reader(adapter, [row], [(11,)]), [row], [donor]


def test_an_answer_site_costs_one_token_for_each_layer_above(tiny_model, monkeypatch):
    adapter = adapt(tiny_model("llama"))
    cone, n = ConeEngine(adapter), 3
    reader, rows, donors = one_row(adapter)
    through = counted(adapter, monkeypatch)
    batch = batch_of(reader, rows, donors, {"pre_answer": (((11,),), ((8,),))})
    after = cone.run_swaps(batch, site="resid_pre", layers=range(n), window=1)[1]
    # The base is needed up to its read (12 tokens), the donor up to what is taken (9); a lane is
    # one token.
    assert through == [12 + 9 + layer + 1 for layer in range(n)]
    assert sum(through) <= (15 + 12) * n + n * (n + 1) // 2
    assert after[0].p.shape == (3, 1)


def test_cells_hold_the_positions_from_the_first_changed_to_the_last_read(tiny_model, monkeypatch):
    adapter = adapt(tiny_model("llama"))
    cone = ConeEngine(adapter)
    reader, rows, donors = one_row(adapter)
    through = counted(adapter, monkeypatch)
    batch = batch_of(reader, rows, donors, {"exact_question": (((7, 4, 5),), ((2, 3, 4),))})
    cone.run_swaps(batch, site="resid_pre", layers=(0, 2), window=1)
    cell = 12 - 4  # positions 4 to 11
    assert through == [12 + 5 + cell, 12 + 5 + cell, 12 + 5 + 2 * cell]


BASE, TWIN = (1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 4, 50, 6, 70)
STARTS = {
    "a donor's stretch behind the same prefix": ([(4, 4), (5, 5)], [8], 6),
    "in any order": ([(5, 5), (4, 4)], [8], 6),
    "what stands alike between two": ([(2, 2), (4, 4)], [8], 5),
    "what stands alike, but reads what does not": ([(4, 4), (6, 6)], [8], 5),
    "alike behind it, where nothing is taken": ([(2, 2), (6, 0)], [8], 3),
    "nothing but what is alike": ([(1, 1), (2, 2)], [8], 3),
    "taken from elsewhere": ([(4, 3)], [8], 4),
    "taken from elsewhere at last": ([(4, 4), (5, 3)], [8], 5),
    "taken from nowhere": ([(4, None)], [8], 4),
    "what differs before it": ([(5, 5)], [8], 5),
    "a read in it": ([(2, 2), (4, 4), (5, 5)], [4, 8], 3),
    "a read before it": ([(4, 4)], [2, 8], 5),
}


@pytest.mark.parametrize(("pairs", "reads", "start"), STARTS.values(), ids=STARTS)
def test_a_cone_begins_behind_what_goes_the_donors_own_way(pairs, reads, start):
    for site in ("resid_pre", "resid_mid", "resid_post"):
        assert cone_start(BASE, TWIN, pairs, reads, site) == start
    for site in ("attn_out", "mlp_out"):  # what is added to the base's own stream
        assert cone_start(BASE, TWIN, pairs, reads, site) == min(target for target, _ in pairs)


@pytest.mark.parametrize("site", ["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"])
@pytest.mark.parametrize("family", ["llama", "qwen3_sliding", "gpt2", "neox"])
def test_donors_of_the_same_template_cost_what_stands_behind_them(
    family, site, tiny_model, monkeypatch
):
    """The subject of a template, and a word of it that both have: all that is computed stands
    behind the subject.
    """
    adapter = adapt(tiny_model(family))
    if site not in adapter.sites:
        pytest.skip(f"{family} has no {site}")
    cone, (row,) = ConeEngine(adapter), random_rows((12,), 1)
    donor = [*row[:5], *[token + 1 for token in row[5:7]], *row[7:]]
    at, null = (((2, 5, 6),), ((2, 5, 6),)), (((4, 8, 9),), ((2, 5, 6),))
    batch = batch_of(
        answer_reader(adapter, [row], [(11,)]), [row], [donor], {"exact_question": at, "null": null}
    )
    way = {"site": site, "layers": range(adapter.n_layers), "window": 1}
    wanted = ReferenceEngine(adapter).run_swaps(batch, **way)
    through = counted(adapter, monkeypatch)
    assert swaps_off(cone.run_swaps(batch, **way), wanted, torch.float32) <= 1
    cell = 12 - 7 if site.startswith("resid") else 12 - 2
    lanes = [layer + (site == "resid_pre") for layer in range(adapter.n_layers)]
    # The base up to its read, the donor up to what is taken; then the lanes that have joined before
    # the attention.
    assert through == [12 + 7 + n * (cell + 12 - 4) for n in lanes]


class Softmaxes(TorchDispatchMode):
    """Counts the softmax computations of the attention, and their entries."""

    def __init__(self):
        super().__init__()
        self.calls, self.entries = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "softmax" in str(func) and result.ndim > 2:
            self.calls, self.entries = self.calls + 1, self.entries + result.numel()
        return result


def test_small_cell_groups_share_their_attention(tiny_model, monkeypatch):
    """Nine groups of 1 to 9 tokens: the same metrics in a third of the attention computations, of
    at most twice the entries.
    """
    adapter = adapt(tiny_model("llama"))
    reader, rows, donors = one_row(adapter)
    batch = batch_of(reader, rows, donors, {str(p): (((p,),), ((p,),)) for p in range(3, 12)})

    def after() -> tuple[torch.Tensor, Softmaxes]:
        with Softmaxes() as work:
            _, cells = ConeEngine(adapter).run_swaps(
                batch, site="resid_pre", layers=range(3), window=1
            )
        return torch.stack([cell.log_p for cell in cells]), work

    together, few = after()
    limits = JOINT_ATTENTION["cpu"]
    for none in (limits._replace(tokens=0), limits._replace(copied=0)):
        with monkeypatch.context() as patch:
            patch.setitem(JOINT_ATTENTION, "cpu", none)
            alone, many = after()
        torch.testing.assert_close(alone, together, rtol=0, atol=1e-5)
        assert 3 * few.calls <= many.calls
        assert few.entries <= 2 * many.entries
