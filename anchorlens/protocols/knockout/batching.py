"""The batches of a knockout and what they will cost, known before anything is measured."""

from collections.abc import Sequence

from anchorlens.engine.cost import PassSize
from anchorlens.engine.engine import Engine
from anchorlens.protocols.knockout.measuring import PreparedKnockout, RowUnit, layers_at
from anchorlens.protocols.knockout.spec import Knockout
from anchorlens.protocols.truth_probing import TruthPlan, by_length, room_of
from anchorlens.truth.fitted import DRAWS


def plan_knockout(engine: Engine, ready: PreparedKnockout, spec: Knockout) -> TruthPlan:
    """Batches that fit, and their cost.

    Raises:
        InputError: Not even one row at a time fits into ``max_memory``.
    """
    rows = ready.truth.rows
    width = max(len(row.ids) for row in rows)
    everywhere = spec.readout == "probe" and not spec.window
    lanes = 1 if everywhere else 1 + len(ready.layers)
    n_test = len(ready.test)
    # Every variant and every placebo probe has rows of its own in the table.
    probed = DRAWS + 1 if spec.placebos and spec.readout == "probe" else 0
    cells = n_test * len(ready.layers) * (len(ready.variants) + probed)
    room = room_of(engine, ready, spec, cells, probed=spec.readout == "probe")
    size, test_size = room.rows(width), room.rows(width, lanes)
    rest = [] if spec.readout == "p_true" else ready.truth.of("train", "validation")
    training = by_length(rest, lambda i: len(rows[i].ids), size)
    batches = by_length(range(n_test), lambda j: len(ready.row(j).ids), test_size)
    units = tuple(RowUnit(batch, ready.layers, _passes(ready, spec, batch)) for batch in batches)
    before = float(sum(map(len, training)))
    most = max(room.bytes_of(test_size, width, lanes), room.bytes_of(size, width) if training else 0)
    flops = _flops(engine, ready, spec, training, batches)
    sizes = [len(batch) for batch in (*training, *batches)]
    cost = room.plan(sizes, rows=n_test, cells=cells, flops=flops, most=most, width=width, checks=spec.check_cells)
    return TruthPlan(units, cost, "row", engine.adapter.device, before, training)


def _passes(ready: PreparedKnockout, spec: Knockout, batch: Sequence[int]) -> int:
    """Passes of the oracle for each row of a batch: the clean one, and those of every variant."""
    each = 1 if spec.readout == "probe" and not spec.window else 1 + len(ready.layers)
    return 1 + each * sum(bool(ready.members(batch, variant)) for variant in ready.variants)


def _flops(
    engine: Engine,
    ready: PreparedKnockout,
    spec: Knockout,
    training: Sequence[Sequence[int]],
    batches: Sequence[Sequence[int]],
) -> float:
    rows, allowed = ready.truth.rows, ready.cut_layers
    starts = [allowed.start]
    if spec.window:
        cut = [layers_at(ready, spec, engine.adapter.n_layers, layer) for layer in ready.layers]
        starts = [allowed.start, *(layers.start for layers in cut if layers)]
    elif spec.readout != "probe":
        starts = list(allowed)
    total = sum(engine.pass_flops(PassSize.clean([len(rows[i].ids) for i in batch]), ()) for batch in training)
    for batch in batches:
        by_test = {j: len(ready.row(j).ids) for j in batch}
        packs: list[tuple[int, int, int, int]] = []
        for variant in ready.variants:
            cones = [by_test[j] - min(ready.cuts[j].sources[variant]) for j in ready.members(batch, variant)]
            if cones:
                packs.append((sum(cones), len(cones), max(cones), max(by_test.values())))
        size = PassSize(sum(by_test.values()), len(batch), max(by_test.values()), tuple(packs), 0, len(batch))
        total += engine.pass_flops(size, starts)
    return total


__all__ = ["plan_knockout"]
