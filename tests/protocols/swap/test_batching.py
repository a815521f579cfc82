"""The batches of a swap: how they split, and what fits into how much memory."""

import pytest

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cone_plans import SwapPlan
from anchorlens.protocols.pair_sweep.batching import Batch
from anchorlens.protocols.pair_sweep.donor_pairs import Pair
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer
from tests.questions.make import capital
from tests.running.small_sweeps import sweep


def test_a_batch_splits_into_halves_of_pairs_then_of_layers(tiny_model):
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())
    row = tokenizer.row(capital("France", "Paris"))
    a, b, c = (Pair(row, row, None, None, name, ()) for name in "abc")
    first, second = Batch((a, b, c), (0, 1, 2)).split()
    assert [[p.donor_id for p in part.pairs] for part in (first, second)] == [["a", "b"], ["c"]]
    assert [part.layers for part in (first, second)] == [(0, 1, 2), (0, 1, 2)]
    assert [(part.layers, part.pairs) for part in second.split()] == [((0, 1), (c,)), ((2,), (c,))]
    assert Batch((a,), (2,)).split() == ()


@pytest.mark.parametrize("site", ["resid_pre", "mlp_out"])
def test_what_is_planned_is_what_the_engine_lays_out(tiny_model, monkeypatch, site):
    """Tokens of clean rows and of each anchor's cells; most donors are of the same template."""
    prefix, planned, laid, shorter, flops, run = [], [], [], [], ConeEngine.pass_flops, ConeEngine.run_swaps

    def pass_flops(cone, size, starts):
        prefix.append(size.prefix)
        planned.append((size.clean_tokens, [tokens for tokens, *_ in size.cell_groups]))
        return flops(cone, size, starts)

    def run_swaps(cone, batch, **way):
        plan = SwapPlan(batch, way["site"])
        layout = plan.layout(prefix[0])
        laid.append((len(layout.clean_rows.ids), [cells.stop - cells.first for cells in layout.cell_groups]))
        shorter.append(any(theirs for cones in plan.cones for _, theirs in cones.values()))
        return run(cone, batch, **way)

    monkeypatch.setattr(ConeEngine, "pass_flops", pass_flops)
    monkeypatch.setattr(ConeEngine, "run_swaps", run_swaps)
    sweep(tiny_model("llama"), site=site, n_spot_checks=0, batch_size=2)
    assert sorted(planned) == sorted(laid)
    assert any(shorter) == (site == "resid_pre")
