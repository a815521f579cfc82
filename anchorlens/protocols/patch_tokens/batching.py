"""The batches of token patching and what they will cost at most, known before anything is measured.

Which true rows are predicted true is not known before the probes are fitted, so the plan counts them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anchorlens.engine.layout import Lanes
from anchorlens.engine.plan import PassSize, block_flops, cut_bytes, fitted, pass_flops, rows_bytes
from anchorlens.engine.select import Engine
from anchorlens.protocols.patch_tokens.measuring import PatchUnit, PreparedPatches
from anchorlens.protocols.patch_tokens.spec import PatchTokens
from anchorlens.protocols.truth_probing import Room, TruthPlan, by_length


@dataclass(frozen=True)
class PatchPlan(TruthPlan):
    """A plan that reads the clean test rows before it patches.

    Attributes:
        reading: Batches of the test rows, as indices into them.
    """

    reading: tuple[tuple[int, ...], ...] = ()


def plan_patches(engine: Engine, ready: PreparedPatches, spec: PatchTokens) -> PatchPlan:
    """Batches that fit, and what they cost at most.

    Raises:
        InputError: Not even one pair of row and donor fits into ``max_memory``.
    """
    adapter, rows, patches = engine.adapter, ready.truth.rows, ready.patches
    width = max(len(row.ids) for row in rows)
    cells = sum(len(patch.inputs) for patch in patches) * len(ready.layers)
    room = Room.of(engine, ready, spec, 2 * cells)  # a cell has a P and a flip
    size, read_size = room.rows(width), room.cut_rows(width, 1)
    training = by_length(ready.truth.of("train", "validation"), lambda i: len(rows[i].ids), size)
    reading = by_length(range(len(ready.test)), lambda j: len(ready.row(j).ids), read_size)
    order = sorted(range(len(patches)), key=lambda i: len(ready.row(patches[i].test).ids))  # the donors of a row stay together
    packed = fitted(order, lambda pairs: PatchUnit.of(patches, pairs).inputs <= size)
    units = tuple(PatchUnit.of(patches, pairs) for pairs in packed)
    widest = max([*map(len, training), *(unit.inputs for unit in units)])
    most = rows_bytes(adapter, widest, width)
    if engine.cone is not None:
        reads = max(map(len, reading))
        most = max(cut_bytes(adapter, reads, width, 1), cut_bytes(adapter, widest, width, 0), rows_bytes(adapter, 1, width))
    before = float(sum(map(len, training)) + 2 * len(ready.test))
    if engine.cone is not None:
        flops = _cone_flops(engine, ready, training, reading, units)
    else:
        flops = (before + sum(unit.work for unit in units)) * width * adapter.n_layers * block_flops(adapter)
    sizes = (*(len(batch) for batch in (*training, *reading)), *(unit.inputs for unit in units))
    n_rows = len({patch.test for patch in patches})
    cost = room.cost(sizes, rows=n_rows, cells=cells, flops=flops, most=most)
    return PatchPlan(units, cost, "row", before, training, reading)


def _cone_flops(
    engine: Engine, ready: PreparedPatches, training: Sequence[Sequence[int]], reading: Sequence[Sequence[int]],
    units: Sequence[PatchUnit],
) -> float:  # fmt: skip
    def length(test: int) -> int:
        return len(ready.row(test).ids)

    clean = [[len(ready.truth.rows[i].ids) for i in batch] for batch in training]
    for unit in units:  # a patched input is as long as its clean row
        pairs = [ready.patches[i] for i in unit.pairs]
        bases = {patch.test for patch in pairs}
        clean.append([*map(length, bases), *(length(patch.test) for patch in pairs for _ in patch.own(unit.variants))])
    sizes = [PassSize(sum(n), len(n), max(n), (), 0, len(n)) for n in clean]
    for batch in reading:
        n = [length(j) for j in batch]
        cones = [length(j) - min(ready.row(j).positions["question"]) for j in batch]
        sizes.append(PassSize(sum(n), len(n), max(n), ((sum(cones), len(cones), max(cones), max(n)),), 0, len(n)))
    lanes = Lanes((0,), (), (), ())
    return sum(pass_flops(engine.adapter, size, lanes) for size in sizes)


__all__ = ["PatchPlan", "plan_patches"]
