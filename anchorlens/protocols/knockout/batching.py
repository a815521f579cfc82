"""The batches of a knockout and what they will cost, known before anything is measured."""

from collections.abc import Sequence

from anchorlens.engine.interventions import window_layers
from anchorlens.engine.layout import Lanes
from anchorlens.engine.plan import PassSize, block_flops, cut_bytes, pass_flops, rows_bytes
from anchorlens.engine.select import Engine
from anchorlens.protocols.knockout.measuring import PreparedKnockout, RowUnit
from anchorlens.protocols.knockout.spec import Knockout
from anchorlens.protocols.truth_probing import Room, TruthPlan, by_length
from anchorlens.truth.fitted import DRAWS


def plan_knockout(engine: Engine, ready: PreparedKnockout, spec: Knockout) -> TruthPlan:
    """Batches that fit, and their cost.

    Raises:
        InputError: Not even one row at a time fits into ``max_memory``.
    """
    adapter, rows = engine.adapter, ready.truth.rows
    width = max(len(row.ids) for row in rows)
    everywhere = spec.readout == "probe" and not spec.window
    lanes = 1 if everywhere else 1 + len(ready.layers)
    n_test = len(ready.test)
    # Every variant and every placebo probe has rows of its own in the table.
    probed = DRAWS + 1 if spec.placebos and spec.readout == "probe" else 0
    cells = n_test * len(ready.layers) * (len(ready.variants) + probed)
    room = Room.of(engine, ready, spec, cells, probed=spec.readout == "probe")
    size, test_size = room.rows(width), room.cut_rows(width, lanes)
    rest = [] if spec.readout == "p_true" else ready.truth.of("train", "validation")
    training = by_length(rest, lambda i: len(rows[i].ids), size)
    batches = by_length(range(n_test), lambda j: len(ready.row(j).ids), test_size)
    units = tuple(RowUnit(batch, ready.layers, _passes(ready, spec, batch)) for batch in batches)
    before = float(sum(map(len, training)))
    most = rows_bytes(adapter, min(size, len(rows)), width)
    if engine.cone is None:
        flops = (before + sum(unit.work for unit in units)) * width * adapter.n_layers * block_flops(adapter)
    else:
        most = max(cut_bytes(adapter, test_size, width, lanes), rows_bytes(adapter, 1, width))
        most = max(most, cut_bytes(adapter, size, width, 0)) if training else most
        flops = _cone_flops(engine, ready, spec, training, batches)
    sizes = [len(batch) for batch in (*training, *batches)]
    cost = room.cost(sizes, rows=n_test, cells=cells, flops=flops, most=most)
    return TruthPlan(units, cost, "row", before, training)


def _passes(ready: PreparedKnockout, spec: Knockout, batch: Sequence[int]) -> int:
    """Passes of the oracle for each row of a batch: the clean one, and those of every variant."""
    each = 1 if spec.readout == "probe" and not spec.window else 1 + len(ready.layers)
    return 1 + each * sum(bool(ready.members(batch, variant)) for variant in ready.variants)


def _cone_flops(
    engine: Engine,
    ready: PreparedKnockout,
    spec: Knockout,
    training: Sequence[Sequence[int]],
    batches: Sequence[Sequence[int]],
) -> float:
    adapter, rows, allowed = engine.adapter, ready.truth.rows, ready.cut_layers
    if spec.window:
        around = [[i for i in window_layers(layer, spec.window, adapter.n_layers) if i in allowed] for layer in ready.layers]
        starts = [allowed.start, *(layers[0] for layers in around if layers)]
    elif spec.readout == "probe":
        starts = [allowed.start]
    else:
        starts = list(range(allowed.start, allowed.stop))
    lanes = Lanes(tuple(sorted(starts)), (), (), ())
    total = 0.0
    for batch in training:
        lengths = [len(rows[i].ids) for i in batch]
        total += pass_flops(adapter, PassSize(sum(lengths), len(batch), max(lengths), (), 0, len(batch)), lanes)
    for batch in batches:
        by_test = {j: len(ready.row(j).ids) for j in batch}
        packs: list[tuple[int, int, int, int]] = []
        for variant in ready.variants:
            cones = [by_test[j] - min(ready.cuts[j].sources[variant]) for j in ready.members(batch, variant)]
            if cones:
                packs.append((sum(cones), len(cones), max(cones), max(by_test.values())))
        size = PassSize(sum(by_test.values()), len(batch), max(by_test.values()), tuple(packs), 0, len(batch))
        total += pass_flops(adapter, size, lanes)
    return total


__all__ = ["plan_knockout"]
