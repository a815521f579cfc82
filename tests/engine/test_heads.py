"""Patches of heads: the cone engine, the reference engine and TransformerLens's own hooks agree."""

from dataclasses import replace

import pytest
import torch

from anchorlens.constants import HEAD_SITES
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.patches import AnchorSwap
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.models.load import adapt, load_model
from tests.engine.configurations import adapter_of
from tests.engine.make import (
    ANCHORS,
    LENGTHS,
    answer_reader,
    batch_of,
    case,
    effects_of,
    random_rows,
    slots,
    swaps_off,
)
from tests.raised import raises
from tests.tiers import choose_cases

FAMILIES = ["gpt2", "neox", "llama", "qwen3", "gemma2", "gemma3", "mistral", "olmo2"]
CELL = ((3, 9), (2, 4), (5, 14), (1, 9))


def head_batch(adapter, site):
    """Four ragged rows with donors of the same lengths: all heads, each single head, and a head
    moved in a random direction.
    """
    rows, donors = random_rows(LENGTHS, 1), random_rows(LENGTHS, 2)
    batch = batch_of(
        answer_reader(adapter, rows),
        rows,
        donors,
        {name: (ANCHORS[name][0],) * 2 for name in ("exact_question", "null")},
    )
    at = slots(CELL)
    single = [
        AnchorSwap(anchor=f"head:{h}", control="none", slots=at, source=at, heads=range(h, h + 1))
        for h in range(adapter.n_heads(site))
    ]
    generator = torch.Generator().manual_seed(3)
    unit = torch.nn.functional.normalize(
        torch.randn(adapter.n_layers, 2, adapter.shape.d_head, generator=generator), dim=-1
    )
    moved = replace(single[0], control="norm_matched", directions={0: unit, 2: unit})
    return replace(batch, swaps=(*batch.swaps, *single, *([] if site == "pattern" else [moved])))


@pytest.mark.parametrize("site", HEAD_SITES)
@pytest.mark.parametrize("family", choose_cases(["llama", "gemma3"], FAMILIES, slow=["neox"]))
def test_both_engines_agree(tiny_model, family, site):
    adapter = adapt(tiny_model(family))
    batch, way = head_batch(adapter, site), {"site": site, "layers": (2, 0, 1), "window": 1}
    wanted = ReferenceEngine(adapter).run_swaps(batch, **way)
    assert swaps_off(ConeEngine(adapter).run_swaps(batch, **way), wanted, torch.float32) <= 1
    assert min(effects_of(wanted)) > 1e-4


@pytest.mark.parametrize("site", HEAD_SITES)
def test_a_model_with_one_head(site):
    adapter = adapter_of("one_head")
    batch, way = head_batch(adapter, site), {"site": site, "layers": (2, 0, 1), "window": 1}
    wanted = ReferenceEngine(adapter).run_swaps(batch, **way)
    assert swaps_off(ConeEngine(adapter).run_swaps(batch, **way), wanted, torch.float32) <= 1
    assert min(effects_of(wanted)) > 1e-5


@pytest.mark.parametrize("site", ["resid_pre", "mlp_out", "z"])
def test_batches_that_run_together_give_what_each_gives_alone(tiny_model, site):
    adapter = adapt(tiny_model("llama"))
    batch = head_batch(adapter, "z") if site == "z" else case(tiny_model("llama"))[1]
    jobs = [
        (replace(batch, swaps=batch.swaps[:1]), (0, 2)),
        (replace(batch, swaps=batch.swaps[1:]), (1,)),
    ]
    together = ConeEngine(adapter).run_swap_batches(jobs, site=site, window=1)
    for (one, layers), found in zip(jobs, together, strict=True):
        wanted = ReferenceEngine(adapter).run_swaps(one, site=site, layers=layers, window=1)
        assert swaps_off(found, wanted, torch.float32) <= 1


@pytest.mark.parametrize("site", HEAD_SITES)
def test_a_spot_check_measures_the_same_cell(tiny_model, site):
    adapter = adapt(tiny_model("llama"))
    batch, engine = head_batch(adapter, site), ReferenceEngine(adapter, min_shared_tokens=1)
    for swap in batch.swaps:
        one = replace(batch, swaps=(swap,))
        before, after = engine.run_cells(one, site=site, layers=(1, 0, 2, 1), window=1)
        clean, (wanted,) = engine.run_swaps(one, site=site, layers=(0, 1, 2), window=1)
        picked = wanted.map(
            lambda value: torch.stack([value[k, i] for i, k in enumerate((1, 0, 2, 1))])
        )
        assert swaps_off((before, [after]), (clean, [picked]), torch.float32) <= 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("site", HEAD_SITES[1:])
def test_in_half_precision_a_patch_of_the_own_activations_changes_nothing(tiny, site, dtype):
    """The outputs of the patched heads come from a pass that rounds in another way: with them
    instead of their change, the mean is 0.002 to 0.03 nats.
    """
    adapter = adapt(load_model(str(tiny("llama")), device="cpu", dtype=dtype, progress=False))
    rows = random_rows(LENGTHS, 1)
    anchors = {name: (ANCHORS[name][0],) * 2 for name in ("exact_question", "null")}
    batch = batch_of(answer_reader(adapter, rows), rows, rows, anchors)
    before, after = ConeEngine(adapter).run_swaps(batch, site=site, layers=(0, 1, 2), window=1)
    gaps = [patched.values["log_p"] - before.values["log_p"] for patched in after]
    assert float(torch.cat(gaps).abs().mean()) < 1e-4


@pytest.mark.parametrize("site", ["z", "q"])
def test_windows_of_layers(tiny_model, site):
    adapter = adapt(tiny_model("llama"))
    batch, way = head_batch(adapter, site), {"site": site, "layers": (0, 1), "window": 2}
    wanted = ReferenceEngine(adapter).run_swaps(batch, **way)
    if site == "q":
        with raises(InputError, "window"):
            ConeEngine(adapter).run_swaps(batch, **way)
    else:
        assert swaps_off(ConeEngine(adapter).run_swaps(batch, **way), wanted, torch.float32) <= 1


@pytest.mark.parametrize("site", HEAD_SITES)
def test_the_reference_engine_equals_a_hook(tiny_model, site):
    """One head at two positions, against TransformerLens's forward pass on each row alone."""
    model = tiny_model("llama")
    adapter = adapt(model)
    batch = head_batch(adapter, site)
    swap = next(one for one in batch.swaps if one.anchor == "head:1")
    _, (found,) = ReferenceEngine(adapter).run_swaps(
        replace(batch, swaps=(swap,)), site=site, layers=(1,), window=1
    )
    name = f"blocks.1.attn.hook_{site}"
    for i, n in enumerate(LENGTHS):
        with torch.no_grad():
            donor = model.run_with_cache(batch.donors.ids[i : i + 1, :n])[1][name]

        def put(value, hook, i=i, donor=donor):
            for p in CELL[i]:
                if site == "pattern":
                    value[:, 1, p] = donor[:, 1, p]
                else:
                    value[:, p, 1] = donor[:, p, 1]
            return value

        with torch.no_grad():
            logits = model.run_with_hooks(batch.tokens.ids[i : i + 1, :n], fwd_hooks=[(name, put)])[
                0
            ].log_softmax(-1)
        plan = batch.reader.plan
        own = [
            (int(p), int(t))
            for r, p, t in zip(plan.row, plan.position, plan.token, strict=True)
            if r == i
        ]
        assert float(found.log_p[0, i]) == pytest.approx(
            float(sum(logits[p, t] for p, t in own)), abs=2e-4
        )
