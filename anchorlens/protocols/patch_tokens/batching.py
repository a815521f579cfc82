"""The batches of token patching and what they will cost at most, known before anything is measured.

Which true rows are predicted true is not known before the probes are fitted, so the plan counts them all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anchorlens.engine.cost import PassSize
from anchorlens.engine.engine import Engine
from anchorlens.protocols.patch_tokens.measuring import PatchUnit, PreparedPatches
from anchorlens.protocols.patch_tokens.spec import PatchTokens
from anchorlens.protocols.truth_probing import TruthPlan, by_length, room_of


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
    rows, patches = ready.truth.rows, ready.patches
    width = max(len(row.ids) for row in rows)
    cells = sum(len(patch.inputs) for patch in patches) * len(ready.layers)
    room = room_of(engine, ready, spec, 2 * cells)  # a cell has a P and a flip
    size, read_size = room.rows(width), room.rows(width, 1)
    training = by_length(ready.truth.of("train", "validation"), lambda i: len(rows[i].ids), size)
    reading = by_length(range(len(ready.test)), lambda j: len(ready.row(j).ids), read_size)
    units = tuple(_units(ready, size))
    widest = max([*map(len, training), *(unit.inputs for unit in units)])
    most = max(room.bytes_of(max(map(len, reading)), width, 1), room.bytes_of(widest, width))
    sizes = (*(len(batch) for batch in (*training, *reading)), *(unit.inputs for unit in units))
    n_rows = len({patch.test for patch in patches})
    flops = _flops(engine, ready, training, reading, units)
    cost = room.plan(sizes, rows=n_rows, cells=cells, flops=flops, most=most, width=width, checks=spec.check_cells)
    before = float(sum(map(len, training)) + 2 * len(ready.test))
    return PatchPlan(units, cost, "row", engine.adapter.device, before, training, reading)


def _units(ready: PreparedPatches, size: int) -> Iterator[PatchUnit]:
    """Pairs of similar length packed together, as long as their inputs are no more than ``size``; a row's donors stay together."""
    patches, packed = ready.patches, list[int]()
    for i in sorted(range(len(patches)), key=lambda i: len(ready.row(patches[i].test).ids)):
        if packed and PatchUnit.of(patches, [*packed, i]).inputs > size:
            yield PatchUnit.of(patches, packed)
            packed = []
        packed.append(i)
    if packed:
        yield PatchUnit.of(patches, packed)


def _flops(
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
    total = sum(engine.pass_flops(PassSize.clean(n), ()) for n in clean)
    for batch in reading:
        n = [length(j) for j in batch]
        cones = [length(j) - min(ready.row(j).positions["question"]) for j in batch]
        size = PassSize(sum(n), len(n), max(n), ((sum(cones), len(cones), max(cones), max(n)),), 0, len(n))
        total += engine.pass_flops(size, (0,))
    return total


__all__ = ["PatchPlan", "plan_patches"]
