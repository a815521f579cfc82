"""Plan of a sweep of activation patches: batches that fit into memory, and their cost.

A :class:`Batch` is a rectangle of cells (pairs, places, layers) that one pass measures. Consecutive
batches run through the layers together (:class:`~anchorlens.measure.budget.UnitGroup`), so that
each weight is read from memory once and batches of the same rows share their clean rows. Sizes come
from the geometry that the engine runs (:mod:`anchorlens.engine.geometry`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from operator import methodcaller
from typing import Any, Generic, TypeVar

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cost import (
    FULL_PASSES,
    PassSize,
    rows_bytes,
    rows_flops,
    rows_per_batch,
    slack,
)
from anchorlens.engine.engine import Engine
from anchorlens.engine.function_reader import FunctionReader
from anchorlens.engine.geometry import Change, PassGeometry, RowGeometry
from anchorlens.engine.hooked_passes import full_reader
from anchorlens.engine.patches import common_prefix, window_layers
from anchorlens.engine.readouts import Reader
from anchorlens.measure.budget import MemoryBudget, SweepPlan, UnitGroup, halves
from anchorlens.measure.patched_pairs import (
    Pair,
    count_directions,
    direction_bytes,
    group_by_places,
)
from anchorlens.models.adapter import Shape, SiteLike

# Tokens in the top layer of a pass on a CPU beyond which a pass of fewer places is faster, and of
# passes that run together.
PASS_TOKENS = 8192
TOGETHER_TOKENS = 65_536
# Operations of passes of a sweep that run together, which is about what a shard stores.
SHARD_FLOPS = 1e12

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Cells of one pass: pairs with the same places, at the same layers.

    With ``of_embedding``, the stream into block 0 is patched, where the same token has the same
    activation.
    """

    pairs: tuple[Pair[Any], ...]
    layers: tuple[int, ...]
    of_embedding: bool = False

    def __post_init__(self) -> None:
        assert not self.of_embedding or self.layers == (0,)

    @property
    def changed_pairs(self) -> tuple[Pair[Any], ...]:
        """The pairs with those positions alone whose activations differ between both inputs."""
        changed = methodcaller("without_equal_positions", of_embedding=self.of_embedding)
        return tuple(map(changed, self.pairs))

    @property
    def work(self) -> int:
        """Number of cells."""
        return len(self.pairs) * len(self.pairs[0].placements) * len(self.layers)

    def split(self) -> "tuple[Batch, ...]":
        """Split the pairs in halves, else the layers, else the placements; () for one cell."""
        first, *others = self.pairs
        if others:
            return tuple(replace(self, pairs=tuple(part)) for part in halves(self.pairs))
        if len(self.layers) > 1:
            return tuple(replace(self, layers=tuple(part)) for part in halves(self.layers))
        return self.split_places() if len(first.placements) > 1 else ()

    def split_places(self) -> "tuple[Batch, ...]":
        """Split the placements of all pairs in halves."""
        numbers = halves(range(len(self.pairs[0].placements)))
        parts: list[Batch] = []
        for some in numbers:
            pairs = tuple(pair.at_places(some) for pair in self.pairs)
            parts.append(replace(self, pairs=pairs))
        return tuple(parts)


@dataclass(frozen=True, kw_only=True)
class SizedPass(Generic[T]):
    """Pass with its predicted size.

    Attributes:
        content: Cells of the pass.
        n_tokens: Tokens in its top layer.
        flops: Floating-point operations.
        stream_bytes: Memory of its residual streams between blocks.
        terms: Terms of ``n_bytes`` by name, in bytes.
    """

    content: T
    n_tokens: int
    flops: float
    stream_bytes: int
    terms: Mapping[str, int]

    @cached_property
    def n_bytes(self) -> int:
        """Peak memory of the pass alone."""
        return sum(self.terms.values())

    @classmethod
    def make(
        cls, engine: Engine, content: T, size: PassSize, starts: Sequence[int]
    ) -> "SizedPass[T]":
        """Return a pass with the size that the engine predicts.

        ``starts``: first patched layer of each lane.
        """
        n_layers = len(starts)
        n_tokens = size.clean_tokens + n_layers * size.lane
        shape = engine.adapter.shape
        held = slack(engine.adapter.device) * shape.d_model * shape.number_bytes
        return cls(
            content=content,
            n_tokens=n_tokens,
            flops=engine.pass_flops(size, starts),
            stream_bytes=int(held * n_tokens),
            terms=engine.pass_terms(size, n_layers),
        )


def is_wide(engine: Engine, size: PassSize, n_layers: int) -> bool:
    """Return whether a pass with more places would not be faster."""
    if engine.name != "cone":
        return False
    if engine.adapter.device.type == "cpu":
        return size.clean_tokens + n_layers * size.lane > PASS_TOKENS
    return engine.saturates(size, n_layers)


def join_passes(
    passes: Iterable[SizedPass[T]], budget: int, most_flops: float = float("inf")
) -> Iterator[list[SizedPass[T]]]:
    """Join consecutive passes that run through the layers together.

    Args:
        passes: Passes in the order in which they run.
        budget: Memory limit of passes that run together, in bytes.
        most_flops: Operations of passes that run together, unless one alone has more.
    """
    some: list[SizedPass[T]] = []
    for one in passes:
        more = [*some, one]
        is_large = sum(each.n_tokens for each in more) > TOGETHER_TOKENS
        is_long = sum(each.flops for each in more) > most_flops
        if some and (is_large or is_long or joint_bytes(more) > budget):
            yield some
            more = [one]
        some = more
    if some:
        yield some


def joint_bytes(passes: Sequence[SizedPass[Any]]) -> int:
    """Return the peak memory of passes that run together."""
    return sum(joint_terms(passes).values())


def joint_terms(passes: Sequence[SizedPass[Any]]) -> dict[str, int]:
    """Return the terms of :func:`joint_bytes` by name."""
    largest = max(passes, key=lambda each: each.n_bytes)
    # The streams of the pass that computes a block are among its own terms.
    others = sum(each.stream_bytes for each in passes) - largest.stream_bytes
    return dict(largest.terms) | ({"streams of joined passes": others} if others else {})


@dataclass(frozen=True)
class SwapSweepPlan(SweepPlan):
    """Cost of a sweep of patches, and its groups of batches in execution order."""

    groups: tuple[UnitGroup[Batch], ...]

    @property
    def batches(self) -> tuple[Batch, ...]:
        """Batches of all groups, in execution order."""
        return tuple(chain.from_iterable(group.parts for group in self.groups))


class PairGeometries:
    """Geometry of the pairs of a sweep.

    Args:
        pairs: Pairs of a sweep or of a batch.
        reader: Reader of the metric, with one row per pair.
        site: Patched site.

    Attributes:
        prefix: Number of tokens that all rows begin with, before any patched or read position.
        vocab_rows: Rows of logits over the whole vocabulary that the metric holds at once.
    """

    def __init__(self, pairs: Sequence[Pair[Any]], reader: Reader, site: SiteLike) -> None:
        self.site = site
        self.vocab_rows = reader.n_held_rows if isinstance(reader, FunctionReader) else 0
        self._reads: dict[tuple[str, str], list[int]] = {pair.key: [] for pair in pairs}
        for i, position in zip(reader.row.tolist(), reader.position.tolist(), strict=True):
            self._reads[pairs[i].key].append(position)
        self._known: dict[tuple[object, ...], RowGeometry] = {}
        rows = [pair.target.ids for pair in pairs]
        rows += [pair.source.ids for pair in pairs if pair.source is not None]
        firsts = [first for pair in pairs if (first := self.of(pair).first) is not None]
        self.prefix = common_prefix(rows, min(firsts, default=0))

    def of(self, pair: Pair[Any], *, of_embedding: bool = False) -> RowGeometry:
        """Return the geometry of a pair with its placements, which may be a part of all.

        ``of_embedding``: as in :class:`Batch`.
        """
        key = (of_embedding, *pair.names)
        if key not in self._known:
            pair = pair.without_equal_positions(of_embedding=of_embedding)
            source = pair.source
            changes: list[Change] = []
            for place in pair.placements:
                sources = place.source_positions if source else ()
                changes.append(Change(place.target_positions, sources, not place.direction_label))
            self._known[key] = RowGeometry.of_patches(
                pair.target.ids,
                () if source is None else source.ids,
                sorted(self._reads[pair.key]),
                changes,
                self.site,
            )
        return self._known[key]

    def count_lane_tokens(self, pair: Pair[Any], *, of_embedding: bool = False) -> int:
        """Return the number of tokens that a pair adds to a lane."""
        row = self.of(pair, of_embedding=of_embedding)
        return sum(row.end - cone.start for cone in row.cones if cone is not None)

    def size(self, batch: Batch) -> PassSize:
        """Return the size of the pass of a batch."""
        rows = [self.of(pair, of_embedding=batch.of_embedding) for pair in batch.pairs]
        return self.size_of(PassGeometry(rows, prefix=self.prefix))

    def size_of(self, geometry: PassGeometry) -> PassSize:
        """Return the size of a pass with this metric."""
        return replace(geometry.size(), vocab_rows=self.vocab_rows)


def plan_swaps(
    engine: Engine,
    pairs: Sequence[Pair[Any]],
    reader: Reader,
    layers: tuple[int, ...],
    *,
    site: SiteLike,
    window: int,
    batch_size: int | None,
    max_memory: int | None,
    checks: int | None,
    stored_bytes: int = 0,
    compares_writes: bool = False,
) -> SwapSweepPlan:
    """Plan batches that fit into memory, and their cost.

    Args:
        engine: Engine that runs the batches.
        pairs: Pairs of the sweep.
        reader: Reader of the metric, with one row per pair.
        layers: Measured layers.
        site: Patched site.
        window: Number of layers patched together.
        batch_size: Maximum number of pairs of a batch; if None, as many as raise the throughput.
        max_memory: Memory limit in bytes; if None, half of the free memory.
        checks: Number of spot checks; if None, a share of the work.
        stored_bytes: Bytes of what the inputs keep of other runs.
        compares_writes: Whether rows and sources of each batch run through the model once more, to
            compare what was written.

    Raises:
        InputError: If one question at one layer does not fit into ``max_memory``.
    """
    n_cells = sum(len(pair.placements) for pair in pairs) * len(layers)
    # Checked cells run with all logits of a metric function.
    of_checks = full_reader(reader)
    budget = MemoryBudget(
        engine=engine,
        max_memory=max_memory,
        batch_size=batch_size,
        n_sample_rows=n_cells,
        stored_bytes=stored_bytes,
        vocab_rows=of_checks.n_held_rows if isinstance(of_checks, FunctionReader) else 0,
    )
    geometries = PairGeometries(pairs, reader, site)
    groups: list[list[SizedPass[Batch]]] = []
    for same in group_by_places(pairs):
        whole = Batch(tuple(same), layers)
        groups += _pack_passes(engine, geometries, whole, window, batch_size, budget.budget)
    passes = list(chain.from_iterable(groups))
    shape = engine.adapter.shape
    flops = geometries.prefix * shape.n_layers * shape.block_flops
    flops += sum(one.flops for one in passes)
    terms = joint_terms(max(groups, key=joint_bytes))
    width = max(len(pair.target.ids) for pair in pairs)
    sizes = [len(one.content.pairs) for one in passes]
    n_directions = count_directions(pairs)
    if n_directions:
        flops += rows_flops(shape, n_directions, width)
    if compares_writes:
        flops += rows_flops(shape, 2 * len(pairs), width)
        # Sources of passes that run together run at once, as far as they fit; so do rows that are
        # turned.
        n_rows = (2 if n_directions else 1) * max(map(_count_pairs, groups))
        fitting = rows_per_batch(shape, engine.adapter.devices, width, None, max_memory)
        of_rows = rows_bytes(shape, max(2, min(n_rows, fitting)), width)
        if of_rows > sum(terms.values()):
            terms = {FULL_PASSES: of_rows}
    cost = budget.plan(
        sizes,
        rows=len({pair.base.id for pair in pairs}),
        cells=n_cells,
        flops=flops,
        largest_pass=sum(terms.values()),
        terms=terms,
        width=width,
        checks=checks,
        n_passes=len(groups),
        more_passes=len(groups) * (bool(n_directions) + compares_writes),
        n_pairs=len({pair.key for pair in pairs}),
    )
    joined = tuple(map(_batches_together, groups))
    return SwapSweepPlan(**vars(cost), groups=joined)


def _count_pairs(passes: Sequence[SizedPass[Batch]]) -> int:
    """Return the number of pairs of passes that run together."""
    return len({pair.key for one in passes for pair in one.content.pairs})


def _batches_together(passes: Sequence[SizedPass[Batch]]) -> UnitGroup[Batch]:
    """Return the batches of passes that run together."""
    return UnitGroup(tuple(one.content for one in passes))


def _pack_passes(
    engine: Engine,
    geometries: PairGeometries,
    whole: Batch,
    window: int,
    batch_size: int | None,
    budget: int,
) -> list[list[SizedPass[Batch]]]:
    """Return the passes of pairs with the same places, in groups that run together."""
    shape = engine.adapter.shape
    # A streamed model reads its weights again for a pass that does not fit beside the others.
    is_in_memory = shape.streamed is None
    is_split = is_in_memory and batch_size is None and window == 1
    is_split = is_split and str(geometries.site) == "resid_pre" and engine.name == ConeEngine.name
    parts = _split_embedding(geometries, whole) if is_split else [whole]
    passes: list[SizedPass[Batch]] = []
    for part in parts:
        for batch in _grow_batches(engine, geometries, part, batch_size, budget):
            passes += _split_to_fit(engine, geometries, batch, window, budget)
    # A given number of rows is that of what runs at once. A streamed model reads its weights once
    # per group; else what is stored together bounds what is lost when a run stops.
    if batch_size is not None:
        most_flops = 0.0
    elif is_in_memory:
        most_flops = SHARD_FLOPS
    else:
        most_flops = float("inf")
    return list(join_passes(passes, budget, most_flops))


def _split_embedding(geometries: PairGeometries, batch: Batch) -> list[Batch]:
    """Return the batch without block 0, and that block alone, if there at most half of the tokens
    have to be computed; else the batch.
    """
    others = tuple(layer for layer in batch.layers if layer > 0)
    if not others or len(others) == len(batch.layers):
        return [batch]
    n_tokens = sum(geometries.count_lane_tokens(pair) for pair in batch.pairs)
    n_changed = sum(geometries.count_lane_tokens(pair, of_embedding=True) for pair in batch.pairs)
    if 2 * n_changed > n_tokens:
        return [batch]
    return [replace(batch, layers=others), Batch(batch.pairs, (0,), of_embedding=True)]


def _grow_batches(
    engine: Engine,
    geometries: PairGeometries,
    whole: Batch,
    batch_size: int | None,
    budget: int,
) -> Iterator[Batch]:
    """Yield parts of a batch with as many pairs as memory, batch size and throughput allow."""
    n_layers = len(whole.layers)
    of = partial(geometries.of, of_embedding=whole.of_embedding)
    lane = partial(geometries.count_lane_tokens, of_embedding=whole.of_embedding)
    # Sorted by cone, for little padding; donors of a question stay together.
    ordered = sorted(whole.pairs, key=lambda pair: (lane(pair), len(pair.target.ids)))
    some: list[Pair[Any]] = []
    growing = PassGeometry(prefix=geometries.prefix)
    for pair in ordered:
        growing.add(of(pair))
        size = geometries.size_of(growing)
        if batch_size is not None:
            is_full = len(some) >= batch_size
        else:
            is_full = engine.saturates(size, n_layers)
        if some and (is_full or engine.pass_bytes(size, n_layers) > budget):
            yield replace(whole, pairs=tuple(some))
            some = []
            growing = PassGeometry([of(pair)], prefix=geometries.prefix)
        some.append(pair)
    if some:
        yield replace(whole, pairs=tuple(some))


def _split_to_fit(
    engine: Engine, geometries: PairGeometries, batch: Batch, window: int, budget: int
) -> list[SizedPass[Batch]]:
    """Return the passes of a batch: several if it does not fit, or has more places than a pass
    computes fast.
    """
    size = geometries.size(batch)
    shape = engine.adapter.shape
    whole = SizedPass.make(engine, batch, size, _starts(batch, window, shape))
    # All directions of passes that run together are there at once.
    more = direction_bytes(batch.pairs, shape.n_layers, shape.d_model)
    if more:
        whole = replace(
            whole,
            stream_bytes=whole.stream_bytes + more,
            terms=dict(whole.terms) | {"directions of norm_matched": more},
        )
    parts: tuple[Batch, ...] = ()
    if whole.n_bytes > budget:
        parts = batch.split()
    elif len(batch.pairs[0].placements) > 1 and is_wide(engine, size, len(batch.layers)):
        parts = batch.split_places()
    passes: list[SizedPass[Batch]] = []
    for part in parts:
        passes += _split_to_fit(engine, geometries, part, window, budget)
    return passes or [whole]


def _starts(batch: Batch, window: int, shape: Shape) -> list[int]:
    """Return the first patched layer of each lane of a batch."""
    return [window_layers(layer, window, shape.n_layers).start for layer in batch.layers]
