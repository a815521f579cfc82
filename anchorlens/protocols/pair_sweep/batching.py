"""Plan the batches of a sweep of activation patches and predict their cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from anchorlens.engine.cone_plans import cone_start
from anchorlens.engine.cost import PassSize, rows_bytes, rows_flops
from anchorlens.engine.engine import Engine
from anchorlens.engine.patches import window_layers
from anchorlens.engine.readouts import Reader
from anchorlens.models.adapter import SiteLike
from anchorlens.prompts.batches import common_prefix
from anchorlens.protocols.pair_sweep.donor_pairs import Pair, Placement
from anchorlens.protocols.planning import MemoryBudget, SweepPlan, halves


@dataclass(frozen=True)
class Batch:
    """Pairs measured in one pass at all layers of the sweep; some layers or placements if one pair alone exceeds the memory."""

    pairs: tuple[Pair[Any], ...]
    layers: tuple[int, ...]

    @property
    def work(self) -> int:
        """Number of cells."""
        return len(self.pairs) * len(self.pairs[0].placements) * len(self.layers)

    def split(self) -> "tuple[Batch, ...]":
        """Split the pairs in halves, else the layers, else the placements; () for one cell."""
        first, *others = self.pairs
        if others:
            return tuple(Batch(tuple(part), self.layers) for part in halves(self.pairs))
        if len(self.layers) > 1:
            return tuple(Batch(self.pairs, tuple(part)) for part in halves(self.layers))
        parts = halves(first.placements) if len(first.placements) > 1 else ()
        return tuple(Batch((replace(first, placements=tuple(part)),), self.layers) for part in parts)


@dataclass(frozen=True)
class SwapSweepPlan(SweepPlan):
    """Cost of a sweep of swaps, and its batches in execution order."""

    batches: tuple[Batch, ...]


def _key(pair: Pair[Any]) -> tuple[str, str]:
    """Return the names of a pair, which also its parts have."""
    return pair.base.id, pair.donor_id


class _PairSizes:
    """Read positions, cones and common prefix of the pairs of a sweep."""

    def __init__(self, pairs: Sequence[Pair[Any]], reader: Reader, site: SiteLike) -> None:
        positions: list[list[int]] = [[] for _ in pairs]
        for i, position in zip(reader.row.tolist(), reader.position.tolist(), strict=True):
            positions[i].append(position)
        self.site = site
        self.reads = {_key(pair): sorted(each) for pair, each in zip(pairs, positions, strict=True)}
        self._cone_of: dict[tuple[object, ...], int] = {}
        rows = [p.target.ids for p in pairs] + [p.source.ids for p in pairs if p.source is not None]
        touched = [t for p in pairs for place in p.placements for t in (*place.target, *(place.source if p.source else ()))]
        self.prefix = common_prefix(rows, min([*touched, *(int(at) for at in reader.position)], default=0))

    def end(self, pair: Pair[Any]) -> int:
        """Return one past the last read position."""
        return max(self.reads[_key(pair)], default=-1) + 1

    def cones(self, pair: Pair[Any]) -> tuple[int, ...]:
        """Return the number of tokens to compute in the cone of each placement; 0 without a change."""
        out: list[int] = []
        for place in pair.placements:
            key = (*_key(pair), place.target, place.source, bool(place.direction_label))  # heads share their cone
            if key not in self._cone_of:
                self._cone_of[key] = self._cone(pair, place)
            out.append(self._cone_of[key])
        return tuple(out)

    def _cone(self, pair: Pair[Any], place: Placement) -> int:
        as_is, end = pair.source is not None and not place.direction_label, self.end(pair)
        sources = place.source if as_is else [None] * len(place.target)
        pairs = [(t, s) for t, s in zip(place.target, sources, strict=True) if t < end]
        donor = pair.source.ids if pair.source is not None else ()
        return end - cone_start(pair.target.ids, donor, pairs, self.reads[_key(pair)], self.site) if pairs else 0

    def size(self, pairs: Sequence[Pair[Any]]) -> PassSize:
        batch = _BatchSize(self)
        for pair in pairs:
            batch.add(pair)
        return batch.size()


class _BatchSize:
    """Size of a growing batch of pairs."""

    def __init__(self, sweep: _PairSizes) -> None:
        self.sweep, self.pairs = sweep, list[Pair[Any]]()
        self.stops: dict[tuple[int, ...], int] = {}
        self.runs, self.keys, self.reads = 0, 0, 0
        self.packs: list[tuple[int, int, int]] = []

    def add(self, pair: Pair[Any]) -> None:
        sweep, end = self.sweep, self.sweep.end(pair)
        cones = sweep.cones(pair)
        self.pairs.append(pair)
        self._run(pair.target.ids, end)
        if pair.source is not None:
            self._run(pair.source.ids, max((p + 1 for place in pair.placements for p in place.source), default=0))
        self.packs = [
            (tokens + n, rows + (n > 0), max(width, n))
            for (tokens, rows, width), n in zip(self.packs or [(0, 0, 0)] * len(cones), cones, strict=True)
        ]
        self.reads += len(sweep.reads[_key(pair)])

    def _run(self, ids: tuple[int, ...], stop: int) -> None:
        before = self.stops.get(ids, self.sweep.prefix)
        stop = max(before, stop)
        self.runs += stop - before
        self.stops[ids], self.keys = stop, max(self.keys, stop)

    def size(self) -> PassSize:
        packs = tuple((*pack, self.keys) for pack in self.packs if pack[0])
        return PassSize(self.runs, len(self.stops), self.keys, packs, self.sweep.prefix, self.reads)


def plan_swaps(
    engine: Engine, pairs: Sequence[Pair[Any]], reader: Reader, layers: tuple[int, ...], *, site: SiteLike, window: int,
    batch_size: int | None, max_memory: int | None, checks: int | None, compares_writes: bool = False,
) -> SwapSweepPlan:  # fmt: skip
    """Plan batches that fit into memory, and their cost.

    ``checks``: number of spot checks, None for a share of the work; ``compares_writes``: whether rows and sources of each batch run
    through the model once more, to compare what was written.

    Raises:
        InputError: If one question at one layer does not fit into ``max_memory``.
    """
    cells = sum(len(p.placements) for p in pairs) * len(layers)
    memory, sweep = MemoryBudget(engine, max_memory, batch_size, cells), _PairSizes(pairs, reader, site)
    shape, budget, batches = engine.adapter.shape, memory.budget, list[Batch]()

    def fits(size: PassSize, pairs: int) -> bool:
        if engine.pass_bytes(size, len(layers)) > budget:
            return False
        return pairs <= batch_size if batch_size else not engine.saturates(size, len(layers))

    # Pairs of a batch have the same anchors and controls.
    tables = dict.fromkeys(tuple((place.anchor, place.control) for place in pair.placements) for pair in pairs)
    for table in sorted(tables, key=len, reverse=True):
        same = [p for p in pairs if tuple((place.anchor, place.control) for place in p.placements) == table]
        # Sorted by cone, for little padding; donors of a question stay together.
        group = sorted(same, key=lambda p: (sum(sweep.cones(p)), len(p.target.ids)))
        growing = _BatchSize(sweep)
        for pair in group:
            before = tuple(growing.pairs)
            growing.add(pair)
            if before and not fits(growing.size(), len(growing.pairs)):
                batches += _split_to_fit(memory, sweep, Batch(before, layers), budget)
                growing = _BatchSize(sweep)
                growing.add(pair)
        if growing.pairs:
            batches += _split_to_fit(memory, sweep, Batch(tuple(growing.pairs), layers), budget)
    passes = [sweep.size(b.pairs) for b in batches]
    starts = [[window_layers(layer, window, shape.n_layers).start for layer in b.layers] for b in batches]
    flops = sum(engine.pass_flops(size, start) for size, start in zip(passes, starts, strict=True))
    flops += sweep.prefix * shape.n_layers * shape.block_flops
    most = max(engine.pass_bytes(size, len(b.layers)) for size, b in zip(passes, batches, strict=True))
    questions = len({p.base.id for p in pairs})
    width = max(len(p.target.ids) for p in pairs)
    sizes = [len(b.pairs) for b in batches]
    if compares_writes:
        flops += rows_flops(shape, 2 * sum(sizes), width)
        most = max(most, rows_bytes(shape, 2, width))
    cost = memory.plan(
        sizes, rows=questions, cells=cells, flops=flops, most=most, width=width, checks=checks,
        more_passes=len(batches) if compares_writes else 0,
    )  # fmt: skip
    return SwapSweepPlan(**vars(cost), batches=tuple(batches))


def _split_to_fit(memory: MemoryBudget, sweep: _PairSizes, batch: Batch, budget: int) -> list[Batch]:
    """Return a batch, or its parts if it does not fit."""
    too_large = memory.engine.pass_bytes(sweep.size(batch.pairs), len(batch.layers)) > budget
    parts = batch.split() if too_large else ()
    return [one for part in parts for one in _split_to_fit(memory, sweep, part, budget)] or [batch]
