"""The batches of a swap: how they split, and what fits into how much memory."""

import pytest

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cone_plans import SwapPlan
from anchorlens.measure.patch_plan import Batch
from anchorlens.measure.patched_pairs import Pair
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


@pytest.mark.slow
@pytest.mark.parametrize("site", ["resid_pre", "mlp_out"])
def test_what_is_planned_is_what_the_engine_lays_out(tiny_model, monkeypatch, site):
    """Tokens of clean rows and of each anchor's cells; most donors are of the same template."""
    prefix, planned, laid, shorter, flops, run = (
        [],
        [],
        [],
        [],
        ConeEngine.pass_flops,
        ConeEngine.run_swap_batches,
    )

    def pass_flops(cone, size, starts):
        prefix.append(size.prefix)
        planned.append((size.clean_tokens, [tokens for tokens, *_ in size.cell_groups]))
        return flops(cone, size, starts)

    def run_swap_batches(cone, batches, **way):
        for batch, _ in batches:
            plan = SwapPlan(batch, way["site"])
            layout = plan.layout(prefix[0])
            lengths = [cells.stop - cells.first for cells in layout.cell_groups]
            laid.append((len(layout.clean_rows.ids), lengths))
            cones = [cone for row in plan.geometry.rows for cone in row.cones]
            shorter.append(any(cone is not None and cone.reads_donor for cone in cones))
        return run(cone, batches, **way)

    monkeypatch.setattr(ConeEngine, "pass_flops", pass_flops)
    monkeypatch.setattr(ConeEngine, "run_swap_batches", run_swap_batches)
    sweep(tiny_model("llama"), site=site, n_spot_checks=0, batch_size=2)
    assert sorted(planned) == sorted(laid)
    assert any(shorter) == (site == "resid_pre")
