"""The batches of a swap sweep and what they will cost, known before anything is measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from anchorlens.engine.cone_plans import cone_start
from anchorlens.engine.cost import PassSize
from anchorlens.engine.engine import Engine
from anchorlens.engine.interventions import window_layers
from anchorlens.engine.readouts import Reader
from anchorlens.models.adapter import SiteLike
from anchorlens.protocols.costing import Room, SweepPlan, halves
from anchorlens.protocols.swap.pairing import Pair
from anchorlens.questions.tokens import common_prefix


@dataclass(frozen=True)
class Batch:
    """Pairs that are measured in one pass, at some layers.

    Attributes:
        pairs: Base, donor and placements of each.
        layers: Layers that are measured; all of the sweep's, unless one pair alone would not fit.
    """

    pairs: tuple[Pair, ...]
    layers: tuple[int, ...]

    @property
    def work(self) -> int:
        """Cells."""
        return len(self.pairs) * len(self.pairs[0].placements) * len(self.layers)

    def split(self) -> "tuple[Batch, ...]":
        """The micro-batches that take its place where memory runs out: halves of its pairs, else of its layers; () if it has one."""
        if len(self.pairs) > 1:
            return tuple(Batch(tuple(part), self.layers) for part in halves(self.pairs))
        if len(self.layers) > 1:
            return tuple(Batch(self.pairs, tuple(part)) for part in halves(self.layers))
        return ()


@dataclass(frozen=True)
class SwapSweepPlan(SweepPlan):
    """What a sweep of swaps will do.

    Attributes:
        batches: In the order in which they are measured.
    """

    batches: tuple[Batch, ...]


class _Sweep:
    """What the pairs of a sweep need of a pass, each counted once."""

    def __init__(self, pairs: Sequence[Pair], reader: Reader, site: SiteLike) -> None:
        positions: list[list[int]] = [[] for _ in pairs]
        for i, position in zip(reader.row.tolist(), reader.position.tolist(), strict=True):
            positions[i].append(position)
        self.reads = {id(pair): sorted(each) for pair, each in zip(pairs, positions, strict=True)}
        self.cones = {id(pair): self._cones(pair, site) for pair in pairs}
        rows = [p.target.ids for p in pairs] + [p.source.ids for p in pairs if p.source is not None]
        touched = [t for p in pairs for place in p.placements for t in (*place.target, *(place.source if p.source else ()))]
        self.prefix = common_prefix(rows, min([*touched, *(int(at) for at in reader.position)], default=0))

    def end(self, pair: Pair) -> int:
        """One past the last read position."""
        return max(self.reads[id(pair)], default=-1) + 1

    def _cones(self, pair: Pair, site: SiteLike) -> tuple[int, ...]:
        """Tokens that are computed for each placement; 0 where nothing is changed."""
        end, out = self.end(pair), list[int]()
        for place in pair.placements:
            sources = place.source if pair.source is not None else [None] * len(place.target)
            pairs = [(t, s) for t, s in zip(place.target, sources, strict=True) if t < end]
            donor = pair.source.ids if pair.source is not None else ()
            out.append(end - cone_start(pair.target.ids, donor, pairs, self.reads[id(pair)], site) if pairs else 0)
        return tuple(out)

    def size(self, pairs: Sequence[Pair]) -> PassSize:
        """Of a pass over some pairs."""
        growing = _Growing(self)
        for pair in pairs:
            growing.add(pair)
        return growing.size()


class _Growing:
    """The size of a batch while pairs join it: nothing is counted twice."""

    def __init__(self, sweep: _Sweep) -> None:
        self.sweep, self.pairs = sweep, list[Pair]()
        self.stops: dict[tuple[int, ...], int] = {}
        self.runs, self.keys, self.reads = 0, 0, 0
        self.packs: list[tuple[int, int, int]] = []

    def add(self, pair: Pair) -> None:
        """One more pair."""
        sweep, end = self.sweep, self.sweep.end(pair)
        cones = sweep.cones[id(pair)]
        self.pairs.append(pair)
        self._run(pair.target.ids, end)
        if pair.source is not None:
            self._run(pair.source.ids, max((p + 1 for place in pair.placements for p in place.source), default=0))
        self.packs = [
            (tokens + n, rows + (n > 0), max(width, n))
            for (tokens, rows, width), n in zip(self.packs or [(0, 0, 0)] * len(cones), cones, strict=True)
        ]
        self.reads += len(sweep.reads[id(pair)])

    def _run(self, ids: tuple[int, ...], stop: int) -> None:
        had = self.stops.get(ids, self.sweep.prefix)
        stop = max(had, stop)
        self.runs += stop - had
        self.stops[ids], self.keys = stop, max(self.keys, stop)

    def size(self) -> PassSize:
        """As it stands."""
        packs = tuple((*pack, self.keys) for pack in self.packs if pack[0])
        return PassSize(self.runs, len(self.stops), self.keys, packs, self.sweep.prefix, self.reads)


def plan_swaps(
    engine: Engine, pairs: Sequence[Pair], reader: Reader, layers: tuple[int, ...], *, site: SiteLike, window: int,
    batch_size: int | None, max_memory: int | None, checks: int,
) -> SwapSweepPlan:  # fmt: skip
    """Batches that fit, and their cost.

    Args:
        engine: The engine that will measure.
        pairs: All pairs of the sweep.
        reader: What is read of them, in their order.
        layers: Layers that are measured.
        site: Where streams are put.
        window: Layers that are changed together.
        batch_size: The user's choice of pairs in a batch.
        max_memory: Most bytes beside the model.
        checks: Cells that the oracle measures again.

    Raises:
        InputError: Not even one question at one layer fits into ``max_memory``.
    """
    cells = sum(len(p.placements) for p in pairs) * len(layers)
    room, sweep = Room(engine, max_memory, batch_size, cells), _Sweep(pairs, reader, site)
    shape, budget, batches = engine.adapter.shape, room.budget, list[Batch]()

    def fits(size: PassSize, pairs: int) -> bool:
        if engine.pass_bytes(size, len(layers)) > budget:
            return False
        return pairs <= batch_size if batch_size else not engine.fills(size, len(layers))

    for with_null in (True, False):
        # By cone, so that rows that share a table need as little padding as can be; a question's donors stay together.
        group = sorted(
            (p for p in pairs if p.has_null is with_null), key=lambda p: (sum(sweep.cones[id(p)]), len(p.target.ids))
        )
        growing = _Growing(sweep)
        for pair in group:
            had = tuple(growing.pairs)
            growing.add(pair)
            if had and not fits(growing.size(), len(growing.pairs)):
                batches += _fitting(room, sweep, Batch(had, layers), budget)
                growing = _Growing(sweep)
                growing.add(pair)
        if growing.pairs:
            batches += _fitting(room, sweep, Batch(tuple(growing.pairs), layers), budget)
    passes = [sweep.size(b.pairs) for b in batches]
    starts = [[window_layers(layer, window, shape.n_layers).start for layer in b.layers] for b in batches]
    flops = sum(engine.pass_flops(size, start) for size, start in zip(passes, starts, strict=True))
    flops += sweep.prefix * shape.n_layers * shape.block_flops
    most = max(engine.pass_bytes(size, len(b.layers)) for size, b in zip(passes, batches, strict=True))
    questions = len({p.base.row_id for p in pairs})
    width = max(len(p.target.ids) for p in pairs)
    sizes = [len(b.pairs) for b in batches]
    cost = room.plan(sizes, rows=questions, cells=cells, flops=flops, most=most, width=width, checks=checks)
    return SwapSweepPlan(**vars(cost), batches=tuple(batches))


def _fitting(room: Room, sweep: _Sweep, batch: Batch, budget: int) -> list[Batch]:
    """A batch, or its micro-batches where it alone is too large."""
    too_large = room.engine.pass_bytes(sweep.size(batch.pairs), len(batch.layers)) > budget
    parts = batch.split() if too_large else ()
    return [one for part in parts for one in _fitting(room, sweep, part, budget)] or [batch]


__all__ = ["Batch", "SwapSweepPlan", "plan_swaps"]
