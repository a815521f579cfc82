"""The batches of a knockout sweep and what they will cost, known before anything is measured."""

from typing import TYPE_CHECKING

from anchorlens.analysis.cuts import CutPlan
from anchorlens.analysis.truth import TruthRows
from anchorlens.engine.interventions import window_layers
from anchorlens.engine.layout import Lanes
from anchorlens.engine.plan import (
    PassSize,
    SweepPlan,
    block_flops,
    check_fits,
    cut_bytes,
    cut_rows,
    pass_budget,
    pass_flops,
    peak_of,
    rows_bytes,
    rows_per_batch,
)
from anchorlens.engine.select import Engine

if TYPE_CHECKING:
    from anchorlens.analysis.knockout import KnockoutConfig


def plan_knockout(
    engine: Engine, rows: TruthRows, config: "KnockoutConfig", *, batch_size: int | None, max_memory: int | None
) -> tuple[CutPlan, SweepPlan]:
    """Batches that fit, and their cost.

    Args:
        engine: The engine that will measure.
        rows: All rows.
        config: What is measured.
        batch_size: The user's choice of rows in a batch.
        max_memory: Most bytes beside the model.

    Raises:
        InputError: ``batch_size`` is below 1, or not even one row at a time fits into ``max_memory``.
    """
    adapter = engine.adapter
    width = max(len(row.ids) for row in rows.rows)
    everywhere = config.readout == "probe" and not config.window
    lanes = 1 if everywhere else 1 + len(config.layers)
    n_test = len(rows.rows) if config.readout == "p_true" else len(rows.of("test"))
    # Every placebo has rows of its own in the table, and states of its own where they are kept.
    cells = n_test * len(config.layers) * (5 if config.placebos else 1)
    states = len(rows.rows) + (3 * n_test if everywhere else 0) if config.readout == "probe" else 0
    kept = 4 * states * adapter.n_layers * adapter.d_model
    budget = pass_budget(adapter, max_memory, cells) - kept
    size = rows_per_batch(adapter, width, batch_size, max(1, budget) if max_memory else None)
    test_size = size if engine.cone is None or batch_size else cut_rows(adapter, width, lanes, budget)
    while engine.cone is not None and not batch_size and size > 1 and cut_bytes(adapter, size, width, 0) > budget:
        size //= 2
    plan = CutPlan.make(rows, config, size=size, test_size=test_size)
    most = rows_bytes(adapter, min(size, len(rows.rows)), width)
    if engine.cone is not None:
        most = max(cut_bytes(adapter, test_size, width, lanes), rows_bytes(adapter, 1, width))
        most = max(most, cut_bytes(adapter, size, width, 0)) if plan.other else most
    peak = peak_of(most, cells) + kept
    check_fits(peak, max_memory)
    flops = _oracle_flops(engine, plan, config, width) if engine.cone is None else _cone_flops(engine, plan, config)
    sizes = tuple(len(batch) for batch in (*plan.other, *plan.batches))
    planned = SweepPlan(
        engine.name, engine.blocks, engine.reason, sizes, n_test, cells, flops, peak, max_memory, adapter
    )  # fmt: skip
    return plan, planned


def _oracle_flops(engine: Engine, plan: CutPlan, config: "KnockoutConfig", width: int) -> float:
    return plan.forward_rows(config) * width * engine.adapter.n_layers * block_flops(engine.adapter)


def _cone_flops(engine: Engine, plan: CutPlan, config: "KnockoutConfig") -> float:
    adapter, rows = engine.adapter, plan.rows.rows
    allowed = range(config.cut_layers[0], config.cut_layers[1] + 1)
    if config.window:
        around = [
            [i for i in window_layers(layer, config.window, adapter.n_layers) if i in allowed] for layer in config.layers
        ]
        starts = [allowed.start, *(layers[0] for layers in around if layers)]
    elif config.readout == "probe":
        starts = [allowed.start]
    else:
        starts = list(range(allowed.start, allowed.stop))
    lanes = Lanes(tuple(sorted(starts)), (), (), ())
    total = 0.0
    for batch in plan.other:
        lengths = [len(rows[i].ids) for i in batch]
        total += pass_flops(adapter, PassSize(sum(lengths), len(batch), max(lengths), (), 0, len(batch)), lanes)
    for batch in plan.batches:
        lengths = {j: len(rows[plan.test[j]].ids) for j in batch}
        packs: list[tuple[int, int, int, int]] = []
        for variant in plan.variants:
            cones = [lengths[j] - min(plan.cuts[j].sources[variant]) for j in plan.members(batch, variant)]
            if cones:
                packs.append((sum(cones), len(cones), max(cones), max(lengths.values())))
        size = PassSize(sum(lengths.values()), len(batch), max(lengths.values()), tuple(packs), 0, len(batch))
        total += pass_flops(adapter, size, lanes)
    return total


__all__ = ["plan_knockout"]
