"""Attention knockouts: the cone engine gives the oracle's states, in every family, mode and set of windows."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorlens.engine.cone import Cone
from anchorlens.engine.interventions import CutBatch, check_windows
from anchorlens.engine.knockout import cut_edges
from anchorlens.engine.reference import Oracle
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import pad_rows
from tests.engine.make import random_rows
from tests.engine.test_cone import EACH, TEXT_FAMILIES
from tests.models.tiny import VOCAB

# Largest difference of a state; states are of size 1 and more.
SAME = 1e-3
LENGTHS = (15, 11, 19, 13)
LATER = (None,) * 4
# Cut off row by row, for two variants and one that cuts nothing; the last row of the first is cut behind its read.
SOURCES = ([(3, 4, 5), (2,), (5, 9), (12,)], [(1,), (), (4, 6, 7), (2, 3)], [(), (), (), ()])
READS = (14, 9, 16, 11)
# Lists of windows: all from one layer (as cumulative curves have them), one of all layers beside short ones, gaps, none.
WINDOWS = (
    [range(0), range(1), range(2), range(3)],
    [range(3), range(1), range(1, 2), range(2, 3)],
    [range(3), range(2), range(3), range(1, 3)],
    [range(1, 2), range(0)],
    [range(2, 3), range(1)],
)


def batch_of(*, mode="mask", heads=None, targets=LATER, begin=(), vocab=VOCAB):
    rows = [[*begin, *row] for row in random_rows(LENGTHS, 5, vocab)]
    far = len(begin)
    width = max(map(len, rows))
    moved = [[tuple(p + far for p in own) for own in sources] for sources in SOURCES]
    goals = [None if t is None else tuple(p + far for p in t) for t in targets]
    edges = tuple(cut_edges(own, goals, width) for own in moved)
    return CutBatch(pad_rows(rows), torch.arange(4), torch.tensor(READS) + far, edges, mode, heads)


def gaps(found, wanted):
    assert found.shape == wanted.shape
    return float((found - wanted).abs().nan_to_num(torch.inf).max())


@pytest.mark.parametrize("family", EACH)
def test_the_oracles_states_in_every_family(tiny_model, family):
    adapter = Adapter(tiny_model(family))
    for windows, mode in zip(WINDOWS[:3], ("mask", "zero", "mask"), strict=True):
        batch = batch_of(mode=mode)
        options = {"where": None, "windows": windows}
        wanted = Oracle(adapter).cut_states(batch, **options)
        assert gaps(Cone(adapter).cut_states(batch, **options), wanted) <= SAME, windows
        clean = Oracle(adapter).cut_states(batch, where=None, windows=[range(0)])[:, 0]
        assert (wanted[0] - clean[:1]).abs().max() > 0.01
        # The variant without edges, and the row that is cut behind its read.
        assert torch.equal(wanted[2], clean[2].expand_as(wanted[2]))


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("family", ["llama", "gemma2", "neox"])
def test_states_of_a_middle_layer(tiny_model, family, layer):
    """Windows that reach above the layer that is read are seen up to there."""
    adapter = Adapter(tiny_model(family))
    batch = batch_of()
    for site in ("resid_post", "attn_out") if family == "llama" else ("mlp_out",):
        for windows in WINDOWS[1:3]:
            options = {"where": (site, layer), "windows": windows}
            wanted = Oracle(adapter).cut_states(batch, **options)
            assert gaps(Cone(adapter).cut_states(batch, **options), wanted) <= SAME, (site, windows)
            if range(1) in windows:
                cut, clean = (
                    Oracle(adapter).cut_states(batch, where=(site, layer), windows=[w]) for w in (range(1), range(0))
                )
                beside = family == "neox" and site == "mlp_out" and layer == 0  # its MLP reads what enters the block
                assert bool((cut[0] - clean[0]).abs().max() > 1e-3) is not beside, site


@pytest.mark.parametrize("family", EACH)
def test_states_of_all_layers(tiny_model, family):
    adapter = Adapter(tiny_model(family))
    for mode, layers, heads in (("mask", range(3), None), ("zero", range(1, 3), (1, 2)), ("mask", range(2, 3), (0,))):
        batch = batch_of(mode=mode, heads=heads)
        for site in ("resid_post", "mlp_out", "attn_out"):
            options = {"site": site, "layers": layers}
            wanted = Oracle(adapter).cut_states_everywhere(batch, **options)
            assert gaps(Cone(adapter).cut_states_everywhere(batch, **options), wanted) <= SAME, (site, mode)
            moved = (wanted[1] - wanted[0]).abs().amax((1, 2))
            first = layers[0] + (adapter.model.cfg.parallel_attn_mlp and site == "mlp_out")
            assert [bool(m > 0) for m in moved] == [layer >= first for layer in range(3)], site


def test_heads_targets_and_a_common_beginning(tiny_model):
    for family in ("llama", "gemma3", "gpt2"):
        adapter = Adapter(tiny_model(family))
        some = {
            "heads": batch_of(heads=(0, 3)),
            "targets": batch_of(targets=((10, 12), (8,), (16, 17), (11,))),
            "begin": batch_of(begin=tuple(range(40, 75))),
        }
        for name, batch in some.items():
            options = {"where": None, "windows": [range(3), range(1, 2), range(2, 3)]}
            wanted = Oracle(adapter).cut_states(batch, **options)
            assert gaps(Cone(adapter).cut_states(batch, **options), wanted) <= SAME, (family, name)
            assert (wanted[0, 0] - wanted[2, 0]).abs().max() > 0.01, (family, name)


@pytest.mark.parametrize("kind", [Cone, Oracle])
def test_windows_that_leave_layers_out_are_refused(tiny_model, kind):
    engine, batch = kind(Adapter(tiny_model("gpt2"))), batch_of()
    for run, options in (
        (engine.cut_states, {"where": None, "windows": [range(1), range(0, 3, 2)]}),
        (engine.cut_states_everywhere, {"site": "resid_post", "layers": range(0, 3, 2)}),
    ):
        with pytest.raises(InputError, match="a range of neighbouring layers"):
            run(batch, **options)
    with pytest.raises(InputError, match=r"as range\(2, 5\); got \[0, 2\]"):
        check_windows([range(2), [0, 2]])


@st.composite
def windows(draw):
    """Any windows of three layers, empty ones too."""
    first = st.integers(0, 2)
    ends = st.lists(st.tuples(first, first), min_size=1, max_size=5)
    return [range(a, b + 1) for a, b in draw(ends)]


@pytest.mark.slow
def test_any_windows_have_the_oracles_states(tiny_model):
    """On Hugging Face's families, other cases at every run; :mod:`tests.engine.fuzz` has all kinds of configurations."""
    moved = []

    @settings(
        max_examples=100, deadline=None, derandomize=False, print_blob=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )  # fmt: skip
    @given(
        family=st.sampled_from(TEXT_FAMILIES), some=windows(), mode=st.sampled_from(["mask", "zero"]),
        where=st.none() | st.tuples(st.sampled_from(["resid_post", "attn_out", "mlp_out"]), st.integers(0, 2)),
    )  # fmt: skip
    def holds(family, some, mode, where):
        adapter, batch = Adapter(tiny_model(family)), batch_of(mode=mode)
        options = {"where": where, "windows": some}
        wanted = Oracle(adapter).cut_states(batch, **options)
        assert gaps(Cone(adapter).cut_states(batch, **options), wanted) <= SAME
        moved.append(float((wanted[0] - wanted[2]).abs().max()))

    holds()
    assert sum(m > 0.01 for m in moved) > 5
