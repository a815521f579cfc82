"""The batches of a swap sweep and what they will cost, known before anything is measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from anchorlens.engine.layout import Lanes, common_prefix
from anchorlens.engine.plan import (
    PassSize,
    SweepPlan,
    block_flops,
    check_fits,
    fitted,
    halves,
    most_tokens,
    pass_budget,
    pass_bytes,
    pass_flops,
    peak_of,
    rows_bytes,
    rows_per_batch,
)
from anchorlens.engine.readouts import Reader
from anchorlens.engine.select import Engine
from anchorlens.protocols.swap.pairing import Pair, make_batches


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


class _Sizes:
    """Sizes of passes of the cone engine over given pairs."""

    def __init__(self, pairs: Sequence[Pair], reader: Reader) -> None:
        self.ends = [0] * len(pairs)
        self.reads = [0] * len(pairs)
        for i, position in zip(reader.row.tolist(), reader.position.tolist(), strict=True):
            self.ends[i] = max(self.ends[i], position + 1)
            self.reads[i] += 1
        self.number = {id(pair): i for i, pair in enumerate(pairs)}
        rows = [p.target.ids for p in pairs] + [p.source.ids for p in pairs if p.source is not None]
        touched = [t for p in pairs for place in p.placements for t in (*place.target, *(place.source if p.source else ()))]
        self.prefix = common_prefix(rows, min([*touched, *(int(at) for at in reader.position)], default=0))

    def cone(self, pair: Pair) -> tuple[int, ...]:
        """First changed position to last read one, for each placement; 0 where nothing is changed."""
        end = self.ends[self.number[id(pair)]]
        return tuple(max(0, end - min(place.target, default=end)) for place in pair.placements)

    def of(self, pairs: Sequence[Pair]) -> PassSize:
        """What goes through the model for some pairs."""
        stops: dict[tuple[int, ...], int] = {}
        for pair in pairs:
            end = self.ends[self.number[id(pair)]]
            stops[pair.target.ids] = max(stops.get(pair.target.ids, 0), end)
            if pair.source is not None:
                last = max((p + 1 for place in pair.placements for p in place.source), default=0)
                stops[pair.source.ids] = max(stops.get(pair.source.ids, 0), last)
        keys = max(stops.values())
        columns = list(zip(*(self.cone(pair) for pair in pairs), strict=True))
        packs = tuple((sum(column), sum(n > 0 for n in column), max(column), keys) for column in columns if any(column))
        runs = sum(stop - self.prefix for stop in stops.values())
        reads = sum(self.reads[self.number[id(pair)]] for pair in pairs)
        return PassSize(runs, len(stops), keys, packs, self.prefix, reads)


def plan_swaps(
    engine: Engine, pairs: Sequence[Pair], reader: Reader, layers: tuple[int, ...], *, window: int, batch_size: int | None,
    max_memory: int | None,
) -> SwapSweepPlan:  # fmt: skip
    """Batches that fit, and their cost.

    Args:
        engine: The engine that will measure.
        pairs: All pairs of the sweep.
        reader: What is read of them, in their order.
        layers: Layers that are measured.
        window: Layers that are changed together.
        batch_size: The user's choice of pairs in a batch.
        max_memory: Most bytes beside the model.

    Raises:
        InputError: Not even one question at one layer fits into ``max_memory``.
    """
    cells = sum(len(p.placements) for p in pairs) * len(layers)
    questions = len({p.base.row_id for p in pairs})
    adapter = engine.adapter
    width = max(len(p.target.ids) for p in pairs)
    budget = pass_budget(adapter, max_memory, cells)

    def planned(batches: Sequence[Batch], flops: float, passes: int) -> SwapSweepPlan:
        peak = peak_of(passes, cells)
        check_fits(peak, max_memory)
        sizes = tuple(len(b.pairs) for b in batches)
        return SwapSweepPlan(
            engine.name,
            engine.blocks,
            engine.reason,
            sizes,
            questions,
            cells,
            flops,
            peak,
            max_memory,
            adapter,
            tuple(batches),
        )

    if engine.cone is None:
        size = rows_per_batch(adapter, width, batch_size, max(1, budget))
        whole = [Batch(tuple(b), layers) for b in make_batches(pairs, size)]
        forwards = sum(len(p.target.ids) * (2 + len(p.placements) * len(layers)) for p in pairs)
        flops = forwards * adapter.n_layers * block_flops(adapter)
        return planned(whole, flops, rows_bytes(adapter, min(size, len(pairs)), width))
    sizes = _Sizes(pairs, reader)
    limit = most_tokens(adapter.device)

    def fits(some: Sequence[Pair]) -> bool:
        size = sizes.of(some)
        if pass_bytes(adapter, size, len(layers)) > budget:
            return False
        return len(some) <= batch_size if batch_size else size.runs + len(layers) * size.lane <= limit

    batches: list[Batch] = []
    for with_null in (True, False):
        # By cone, so that rows that share a table need as little padding as can be; a question's donors stay together.
        group = sorted((p for p in pairs if p.has_null is with_null), key=lambda p: (sum(sizes.cone(p)), len(p.target.ids)))
        for packed in fitted(group, fits):
            batches += _fitting(engine, sizes, Batch(tuple(packed), layers), budget)
    lanes = [Lanes.windows(b.layers, window, adapter.n_layers) for b in batches]
    passes = [sizes.of(b.pairs) for b in batches]
    flops = sum(pass_flops(adapter, size, lane) for size, lane in zip(passes, lanes, strict=True))
    flops += sizes.prefix * adapter.n_layers * block_flops(adapter)
    most = max(pass_bytes(adapter, size, len(b.layers)) for size, b in zip(passes, batches, strict=True))
    # The oracle checks single cells.
    return planned(batches, flops, max(most, rows_bytes(adapter, 1, width)))


def _fitting(engine: Engine, sizes: _Sizes, batch: Batch, budget: int) -> list[Batch]:
    """A batch, or its micro-batches where it alone is too large."""
    parts = batch.split() if pass_bytes(engine.adapter, sizes.of(batch.pairs), len(batch.layers)) > budget else ()
    return [one for part in parts for one in _fitting(engine, sizes, part, budget)] or [batch]
