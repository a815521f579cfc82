"""Passes that run together, and positions that are not patched because nothing changes there."""

import pytest
import torch

import anchorlens as al
from anchorlens.engine.cone import ConeEngine
from anchorlens.measure import patch_plan
from anchorlens.measure.patch_plan import SizedPass, join_passes
from tests.engine.replace_swaps import replace_swaps, right_swaps

ROWS = [
    {"clean": "ab cd ef gh is in", "corrupted": "ab cd xy gh is in", "answer": " e", "wrong": " f"},
    {"clean": "gh cd ef is in ab", "corrupted": "gh cd ef is in xy", "answer": " e", "wrong": " f"},
]


def sized(tokens, flops=1.0, n_bytes=10):
    return SizedPass(
        content=tokens,
        n_tokens=tokens,
        flops=flops,
        stream_bytes=n_bytes // 2,
        terms={"pass": n_bytes},
    )


def contents(groups):
    return [[one.content for one in group] for group in groups]


def test_passes_join_by_tokens_work_and_memory():
    few = [sized(1), sized(2), sized(3)]
    assert contents(join_passes(few, 1000)) == [[1, 2, 3]]
    assert contents(join_passes(few, 1000, most_flops=2.0)) == [[1, 2], [3]]
    assert contents(join_passes(few, 1000, most_flops=0.0)) == [[1], [2], [3]]
    # One pass of 10 bytes with the streams of the others, 5 bytes each.
    assert contents(join_passes(few, 19)) == [[1, 2], [3]]
    assert contents(join_passes(few, 20)) == [[1, 2, 3]]
    assert contents(join_passes(few, 1)) == [[1], [2], [3]]
    wide = [sized(40_000), sized(40_000)]
    assert contents(join_passes(wide, 1000)) == [[40_000], [40_000]]


def effects(sweep):
    keys = ["example_id", "layer", "anchor", "control"]
    return sweep.samples(all_columns=True).set_index(keys)["effect"].sort_index()


def patch(model, **options):
    how = {"progress": False, "controls": "none", "n_spot_checks": 0} | options
    return al.patch_sweep(model, al.load_pairs(ROWS), **how)


@pytest.mark.filterwarnings("ignore:.*answers begin without")
@pytest.mark.parametrize("by", ["position", "layer", "head"])
@pytest.mark.parametrize("site", ["resid_pre", "z", "v"])
def test_positions_before_the_first_difference_are_not_computed(tiny_model, monkeypatch, by, site):
    """The reference engine patches them all the same, and finds the same effects."""
    if by == "head" and site == "resid_pre":
        pytest.skip("resid_pre has no heads")
    model = tiny_model("llama")
    wanted = effects(patch(model, by=by, site=site, engine="reference"))
    patched = []

    def noted(engine, batch, **options):
        patched.extend(swap.slots.positions[swap.slots.mask] for swap in batch.swaps)
        return right_swaps(engine, batch, **options)

    replace_swaps(monkeypatch, noted)
    found = effects(patch(model, by=by, site=site))
    assert (found - wanted).abs().max() <= 1e-4
    pairs = al.tokenize_pairs(model, ROWS)
    differs = []
    for clean, corrupted in zip(pairs["clean"], pairs["corrupted"], strict=True):
        same = [one == other for one, other in zip(clean, corrupted, strict=False)]
        differs.append(same.index(False))
    assert int(torch.cat(patched).min()) == min(differs) > 0
    assert ConeEngine.name in patch(model, by=by, site=site).record["plan"]["engine"]


@pytest.mark.filterwarnings("ignore:.*answers begin without")
@pytest.mark.parametrize("layers", [(0, 1), (1, 0), (0,), (1,)])
def test_in_the_embedding_the_same_token_has_no_effect_and_is_not_computed(
    tiny_model, monkeypatch, layers
):
    model = tiny_model("llama")
    options = {"layers": layers, "by": "position"}
    wanted = effects(patch(model, engine="reference", **options))
    patched = {}

    def noted(engine, batch, **how):
        for swap in batch.swaps:
            positions = swap.slots.positions[swap.slots.mask].tolist()
            patched.setdefault(tuple(how["layers"]), set()).update(positions)
        return right_swaps(engine, batch, **how)

    replace_swaps(monkeypatch, noted)
    # A later token differs in the first pair alone, so that block 0 has less to compute.
    found = effects(patch(model, **options))
    assert (found - wanted).abs().max() <= 1e-4
    assert sorted(found.index) == sorted(wanted.index)
    if len(layers) > 1:
        assert patched[(0,)] < patched[(1,)]
        of_embedding = found.xs(0, level="layer")
        assert (of_embedding == 0).mean() > 0.5  # exactly, as equal tokens are not computed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*answers begin without")
def test_a_pass_of_half_the_places_has_the_same_numbers(tiny_model, monkeypatch):
    model = tiny_model("llama")
    plans = []
    whole = effects(patch(model, on_plan=plans.append))
    monkeypatch.setattr(patch_plan, "PASS_TOKENS", 8)
    parts = effects(patch(model, on_plan=plans.append))
    assert len(plans[1].batch_sizes) > len(plans[0].batch_sizes)
    assert len(plans[1].groups) == 1
    assert (whole - parts).abs().max() <= 1e-4
