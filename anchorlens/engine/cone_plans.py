"""Plans of the cone engine: index tensors of a batch, made from the geometry of its rows.

``shared`` has the token ids that all clean rows begin with. The engine takes the keys and values of
this prefix, or of a part of it, from its cache. ``layout`` then makes the index tensors of the
remaining tokens.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from anchorlens.engine.cone_layout import (
    CellGroup,
    CleanRows,
    Cut,
    Layout,
    ReadIndex,
)
from anchorlens.engine.geometry import Change, Ids, PassGeometry, RowGeometry
from anchorlens.engine.patches import (
    AnchorSwap,
    KnockoutBatch,
    PatchIndex,
    SwapBatch,
    token_rows,
)
from anchorlens.models.adapter import SiteLike


class KnockoutPlan:
    """Plan of a batch of knockouts.

    Attributes:
        shared: Token ids that all clean rows begin with, before the first cut or read position.
        rows: Number of clean rows.
    """

    def __init__(self, batch: KnockoutBatch, n_heads: int) -> None:
        self.batch = batch
        self.n_heads = n_heads
        self.reads = list(zip(batch.row.tolist(), batch.position.tolist(), strict=True))
        starts = [_first_cuts(edges) for edges in batch.edges]
        reads_of = _reads_of(self.reads)
        # Equal rows may have different edges, so none are merged.
        self.geometry = PassGeometry(merge=False)
        for i, ids in enumerate(token_rows(batch.tokens)):
            own = [first[i] for first in starts]
            self.geometry.add(RowGeometry.of_cuts(ids, reads_of[i], own))
        self.shared = self.geometry.shared
        self.rows = len(self.geometry.clean_rows)

    def layout(self, prefix: int) -> Layout:
        """Return the index tensors of the batch behind a prefix of ``prefix`` tokens."""
        clean = CleanRows.make(self.geometry.clean_rows, prefix)
        base = ReadIndex.make([(r, clean.token(i, p)) for r, (i, p) in enumerate(self.reads)])
        groups: list[CellGroup] = []
        cuts: list[Cut] = []
        group_of: list[int | None] = []
        heads = torch.zeros(self.n_heads, dtype=torch.bool)
        heads[list(range(self.n_heads) if self.batch.heads is None else self.batch.heads)] = True
        for number, edges in enumerate(self.batch.edges):
            cones = self.geometry.cones_of(number)
            group_of.append(len(groups) if cones else None)
            if cones:
                starts = {i: cone.start for i, cone in cones.items()}
                first = groups[-1].stop if groups else 0
                cells = make_cell_group(
                    clean, range(self.rows), starts, self.geometry.ends, self.reads, first=first
                )
                groups.append(cells)
                cuts.append(Cut(edges[list(cells.rows)], self.batch.mode, heads))
        return Layout(
            clean_rows=clean,
            reads=base,
            cell_groups=tuple(groups),
            group_of=tuple(group_of),
            cuts=tuple(cuts),
        )


def _first_cuts(edges: Bool[Tensor, "example query key"]) -> list[int | None]:
    """Return the first position with a cut edge of each row; None for rows without one."""
    return [row.index(True) if True in row else None for row in edges.any(-1).tolist()]


def _reads_of(reads: Sequence[tuple[int, int]]) -> defaultdict[int, list[int]]:
    """Return row -> read positions."""
    out: defaultdict[int, list[int]] = defaultdict(list)
    for row, position in reads:
        out[row].append(position)
    return out


class _Patch(NamedTuple):
    """One patched position of one row; ``source``: position in the donor's row, if any."""

    row: int
    target: int
    source: int | None
    slot: int


class SwapPlan:
    """Plan of a batch of swaps.

    Args:
        batch: Rows and their patches.
        site: Patched site.
        n_heads: Number of heads of the site ``z``, else 1.

    Attributes:
        shared: Token ids that all clean rows begin with, before the first patched, donor or read
            position.
        rows: Number of distinct clean rows, donors included.
    """

    def __init__(self, batch: SwapBatch, site: SiteLike, n_heads: int = 1) -> None:
        self.batch = batch
        self.n_heads = n_heads
        self.is_z = str(site) == "z"
        self.reads = list(
            zip(batch.reader.row.tolist(), batch.reader.position.tolist(), strict=True)
        )
        self.patches = [_list_patches(swap) for swap in batch.swaps]
        self.geometry = PassGeometry(_row_geometries(batch, self.patches, self.reads, site))
        self.shared = self.geometry.shared
        self.rows = len(self.geometry.clean_rows)

    def layout(self, prefix: int) -> Layout:
        """Return the index tensors of the batch behind a prefix of ``prefix`` tokens."""
        geometry = self.geometry
        clean = CleanRows.make(geometry.clean_rows, prefix)
        clean_row = [geometry.clean_row(i) for i in range(len(geometry.rows))]
        base = ReadIndex.make(
            [(r, clean.token(clean_row[i], p)) for r, (i, p) in enumerate(self.reads)]
        )
        groups: list[CellGroup] = []
        group_of: list[int | None] = []
        index = _PatchLists(clean, geometry)
        for number, (swap, patches) in enumerate(zip(self.batch.swaps, self.patches, strict=True)):
            cones = geometry.cones_of(number)
            group_of.append(len(groups) if cones else None)
            if not cones:
                continue
            starts = {i: cone.start for i, cone in cones.items()}
            donor_rows = {i: geometry.donor_row(i) for i, cone in cones.items() if cone.reads_donor}
            first = groups[-1].stop if groups else 0
            cells = make_cell_group(
                clean,
                clean_row,
                starts,
                geometry.ends,
                self.reads,
                first=first,
                donor_rows=donor_rows,
            )
            groups.append(cells)
            offset = dict(zip(cells.rows, cells.offsets, strict=True))
            for patch in patches:
                start = starts.get(patch.row, patch.target + 1)
                if not start <= patch.target < geometry.rows[patch.row].end:
                    continue
                cell = cells.first + offset[patch.row] + patch.target - start
                if self.is_z:
                    index.add_heads(swap, patch, cell, self.n_heads)
                else:
                    index.add(swap, patch, cell)
        return Layout(
            clean_rows=clean,
            reads=base,
            cell_groups=tuple(groups),
            group_of=tuple(group_of),
            patches=index.tensors(),
        )


class _PatchLists:
    """Entries of a :class:`~anchorlens.engine.patches.PatchIndex`, in the order of patches."""

    def __init__(self, clean: CleanRows, geometry: PassGeometry) -> None:
        self.clean = clean
        self.geometry = geometry
        self.lane_tokens: list[int] = []
        self.clean_tokens: list[int] = []
        self.heads: list[int] = []
        self.streams: list[Tensor] = []
        self.streams_at: list[int] = []
        self.turned: list[int] = []
        self.turned_at: list[int] = []
        self.directions: list[Tensor] = []
        self.is_change = False

    def add(self, swap: AnchorSwap, patch: _Patch, cell: int) -> None:
        """Add a patch of all heads: a token of the donor, or given streams."""
        number = len(self.lane_tokens)
        token = -1
        if patch.source is not None:
            token = self.clean.token(self.geometry.donor_row(patch.row), patch.source)
        else:
            assert swap.streams is not None  # a swap has donors or streams
            self.streams_at.append(number)
            self.streams.append(swap.streams[:, patch.row, patch.slot])
        if patch.row in swap.directions:
            own = self.clean.token(self.geometry.clean_row(patch.row), patch.target)
            self.turned.append(own)
            self.turned_at.append(number)
            self.directions.append(swap.directions[patch.row][:, patch.slot])
        self.lane_tokens.append(cell)
        self.clean_tokens.append(token)

    def add_heads(self, swap: AnchorSwap, patch: _Patch, cell: int, n_heads: int) -> None:
        """Add one patch of ``z`` for each patched head, with given streams."""
        assert swap.streams is not None  # patches of z have them
        self.is_change = swap.is_change
        by_head = swap.streams[:, patch.row, patch.slot].unflatten(-1, (n_heads, -1))
        for head in range(n_heads) if swap.heads is None else swap.heads:
            self.streams_at.append(len(self.lane_tokens))
            self.streams.append(by_head[:, head])
            self.heads.append(head)
            self.lane_tokens.append(cell)
            self.clean_tokens.append(-1)

    def tensors(self) -> PatchIndex:
        """Return the index tensors."""
        return PatchIndex(
            lane_token=_indices(self.lane_tokens),
            clean_token=_indices(self.clean_tokens),
            streams=torch.stack(self.streams, 1) if self.streams else None,
            streams_at=_indices(self.streams_at),
            directions=torch.stack(self.directions, 1) if self.directions else None,
            turned=_indices(self.turned),
            turned_at=_indices(self.turned_at),
            heads=_indices(self.heads) if self.heads else None,
            is_change=self.is_change,
        )


def _indices(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.long)


def _list_patches(swap: AnchorSwap) -> list[_Patch]:
    """Return every patched position of a swap, row after row."""
    row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
    target = swap.slots.positions[row, slot].tolist()
    source: list[int | None] = [None] * len(target)
    if swap.source is not None:
        source = swap.source.positions[swap.source.mask].tolist()
    return [_Patch(*each) for each in zip(row.tolist(), target, source, slot.tolist(), strict=True)]


def make_cell_group(
    clean: CleanRows,
    clean_row: Sequence[int],
    starts: dict[int, int],
    ends: Sequence[int],
    reads: Sequence[tuple[int, int]],
    *,
    first: int,
    donor_rows: Mapping[int, int] | None = None,
) -> CellGroup:
    """Build the tokens that one anchor or control computes in each lane.

    Args:
        clean: Clean rows of the pass.
        clean_row: Clean row of each row.
        starts: Changed row -> first position that is computed.
        ends: One past the last read position of each row.
        reads: Row and position of each read.
        first: Token of a lane at which they begin.
        donor_rows: Row -> donor's clean row, if the keys before its cells are the donor's. If None,
            all keys are the row's own.
    """
    rows = sorted(starts)
    begin: list[int] = []
    stop: list[int] = []
    key_starts: list[int] = []
    positions: list[int] = []
    copied_from: list[int] = []
    offset: dict[int, int] = {}
    for i in rows:
        begin.append(starts[i])
        stop.append(ends[i])
        donor = None if donor_rows is None else donor_rows.get(i)
        key_starts.append(clean.starts[clean_row[i] if donor is None else donor])
        offset[i] = len(copied_from)
        first_token = clean.token(clean_row[i], starts[i])
        positions += range(starts[i], ends[i])
        copied_from += range(first_token, first_token + ends[i] - starts[i])
    pairs: list[tuple[int, int]] = []
    for read, (i, position) in enumerate(reads):
        # A change has no effect on the tokens before it, so their reads are those of the clean row.
        if i in starts and position >= starts[i]:
            pairs.append((read, offset[i] + position - starts[i]))
    return CellGroup(
        first=first,
        stop=first + len(copied_from),
        copied_from=tuple(copied_from),
        positions=tuple(positions),
        reads=ReadIndex.make(pairs),
        starts=tuple(begin),
        ends=tuple(stop),
        key_starts=tuple(key_starts),
        rows=tuple(rows),
        offsets=tuple(offset.values()),
        queries=tuple(range(len(copied_from))),
    )


def _row_geometries(
    batch: SwapBatch,
    patches: Sequence[Sequence[_Patch]],
    reads: Sequence[tuple[int, int]],
    site: SiteLike,
) -> list[RowGeometry]:
    """Return the geometry of each row of a batch."""
    rows = token_rows(batch.tokens)
    donors: list[Ids] = [()] * len(rows) if batch.donors is None else token_rows(batch.donors)
    changes: list[list[Change]] = [[] for _ in rows]
    for swap, own in zip(batch.swaps, patches, strict=True):
        targets: defaultdict[int, list[int]] = defaultdict(list)
        sources: defaultdict[int, list[int]] = defaultdict(list)
        for patch in own:
            targets[patch.row].append(patch.target)
            if patch.source is not None:
                sources[patch.row].append(patch.source)
        for i in range(len(rows)):
            changes[i].append(Change(targets[i], sources[i], i not in swap.directions))
    reads_of = _reads_of(reads)
    geometries: list[RowGeometry] = []
    for i, (ids, donor) in enumerate(zip(rows, donors, strict=True)):
        geometry = RowGeometry.of_patches(ids, donor, reads_of[i], changes[i], site)
        geometries.append(geometry)
    return geometries
