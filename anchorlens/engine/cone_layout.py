"""Geometry of one pass of the cone engine, as index tensors.

*Clean rows* are the distinct bases and donors of a batch, up to the last position that is needed. Their common first tokens are the
*prefix*: only its keys and values are used. *Lanes* are changed copies of the clean rows that run in parallel. There is one lane per
measured layer or window. It holds the *cells* of every anchor and row, each from its first changed to its last read position.
All tokens of a pass are in one flat table: the clean rows, then the lanes that have started, by starting layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.patches import window_layers

# Limits of cell groups whose attention is computed together: tokens of a lane with padding, keys of clean rows that are copied for
# their rows, and the ratio of padded to real tokens.
TOGETHER, COPIED, PADDED = 64, 1024, 1.5


@dataclass(frozen=True)
class Lanes:
    """Changed copies of the clean rows that run in parallel, ordered by starting layer.

    Attributes:
        start: Layer at which each lane starts.
        first: First changed layer of each lane.
        last: Last changed layer of each lane; below ``first`` for a copy of the first lane that is not changed further.
        order: Index of each lane in the caller's list.
        forked: Whether lanes after the first are copies of the first, not of the clean rows.
    """

    start: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    order: tuple[int, ...]
    forked: bool = False

    @classmethod
    def windows(cls, layers: Sequence[int], window: int, n_layers: int) -> "Lanes":
        """Make one lane for the window around each layer."""
        return cls.of([window_layers(layer, window, n_layers) for layer in layers])

    @classmethod
    def of(cls, windows: Sequence[range]) -> "Lanes":
        """Make one lane for each window of layers; no window may be empty."""
        order = sorted(range(len(windows)), key=lambda i: (windows[i].start, windows[i].stop))
        starts = tuple(windows[i].start for i in order)
        return cls(starts, starts, tuple(windows[i][-1] for i in order), tuple(order))

    @classmethod
    def cuts(cls, windows: Sequence[range]) -> "tuple[Lanes, list[int]]":
        """Make lanes for windows that may be empty or equal.

        If all windows begin in the same layer, the first lane has the longest window. A shorter window that ends at layer b gives
        the same activations up to b. Its lane starts at layer b + 1 as a copy of the first lane.

        Returns:
            The lanes, and the lane of each window; -1 for an empty window, which is the clean pass.
        """
        full = [w for w in windows if w]
        if len({w.start for w in full}) != 1:
            lanes = cls.of(full)
            number = iter(range(len(full)))
            return lanes, [lanes.order.index(next(number)) if w else -1 for w in windows]
        first, last = full[0].start, max(w[-1] for w in full)
        ends = sorted({w[-1] for w in full if w[-1] < last})
        lanes = cls((first, *(end + 1 for end in ends)), (first, *(1 for _ in ends)), (last, *(0 for _ in ends)), (), forked=True)
        return lanes, [-1 if not w else 0 if w[-1] == last else 1 + ends.index(w[-1]) for w in windows]

    def count_lanes(self, layer: int) -> int:
        """Return the number of lanes that start at or before ``layer``."""
        return sum(start <= layer for start in self.start)

    def active_ranges(self, layer: int) -> list[tuple[int, int]]:
        """Return the ranges (first, stop) of neighbouring lanes that are changed in ``layer``."""
        ranges: list[tuple[int, int]] = []
        for j in range(len(self.start)):
            if self.first[j] <= layer <= self.last[j]:
                extends = ranges and ranges[-1][1] == j
                ranges = [*ranges[:-1], (ranges[-1][0], j + 1)] if extends else [*ranges, (j, j + 1)]
        return ranges


@dataclass(frozen=True)
class AttentionGroup:
    """Rows whose attention is computed together, padded to one width.

    Attributes:
        keys: Token of the group at each padded key slot; unused slots hold the row's first token.
        queries: Token of the group at each padded query slot.
        query_slots: Padded query slot of each query token, in token order.
        base: Clean token of each key between the prefix and the row's first token; no columns for clean rows.
        query_positions: Positions of the padded queries in their rows.
        key_positions: Positions of all keys: prefix, base, then the group's tokens.
        is_key: True at key slots that hold a key.
    """

    keys: Int[Tensor, "row own"]
    queries: Int[Tensor, "row query"]
    query_slots: Int[Tensor, "found"]
    base: Int[Tensor, "row base"]
    query_positions: Int[Tensor, "row query"]
    key_positions: Int[Tensor, "row key"]
    is_key: Bool[Tensor, "row key"]

    @classmethod
    def make(
        cls, starts: Sequence[int], ends: Sequence[int], prefix: int, base: Sequence[int] | None,
        tokens: Int[Tensor, "found"] | None = None,
    ) -> "AttentionGroup":  # fmt: skip
        """Make a group of rows that cover positions ``starts`` to ``ends``, behind a prefix of ``prefix`` tokens.

        ``base``: clean token at position ``prefix`` before each row, None for clean rows; ``tokens``: queries, None for all.
        """
        begin, stop = torch.tensor(starts), torch.tensor(ends)
        first = (stop - begin).cumsum(0) - (stop - begin)  # token at the start of each row
        steps = torch.arange(int((stop - begin).max()))
        keys = first[:, None] + steps * (steps < (stop - begin)[:, None])
        tokens = torch.arange(int((stop - begin).sum())) if tokens is None else tokens
        row = torch.bucketize(tokens, first, right=True) - 1
        count = row.bincount(minlength=len(first))
        slot = torch.arange(len(tokens)) - (count.cumsum(0) - count)[row]
        queries = first[:, None].repeat(1, int(count.max()))
        queries[row, slot] = tokens
        between = torch.arange(0 if base is None else int(begin.max()) - prefix)
        before = torch.minimum(between, (begin - prefix - 1).clamp(min=0)[:, None])
        shared, later = torch.arange(prefix + len(between)).expand(len(first), -1), begin[:, None] + steps
        return cls(
            keys, queries, row * queries.shape[1] + slot, torch.tensor(base or starts)[:, None] + before,
            queries - first[:, None] + begin[:, None], torch.cat([shared, later], 1),
            torch.cat([shared < begin[:, None], later < stop[:, None]], 1),
        )  # fmt: skip

    def attention_mask(self, window: int | None) -> Bool[Tensor, "row query key"] | None:
        """Return True where a query attends to a key; None if it is True everywhere."""
        keys, queries = self.key_positions[:, None, :], self.query_positions[:, :, None]
        out = self.is_key[:, None, :] & (keys <= queries)
        if window is not None:
            out &= keys > queries - window
        return None if bool(out.all()) else out


@dataclass(frozen=True)
class ReadIndex:
    """Tokens of a group whose states are read.

    Attributes:
        tokens: Distinct tokens of the group, ascending.
        of: Index into ``tokens`` for each read in this group.
        index: Index of that read among all reads of the reader.
    """

    tokens: tuple[int, ...]
    of: Int[Tensor, "read"]
    index: Int[Tensor, "read"]

    @classmethod
    def make(cls, pairs: Sequence[tuple[int, int]]) -> "ReadIndex":
        """Make the index from (read, token) pairs."""
        tokens = sorted({token for _, token in pairs})
        place = {token: i for i, token in enumerate(tokens)}
        of, index = [place[token] for _, token in pairs], [read for read, _ in pairs]
        return cls(tuple(tokens), torch.tensor(of, dtype=torch.long), torch.tensor(index, dtype=torch.long))


@dataclass(frozen=True)
class CellGroup:
    """Cells of one anchor or control in every lane.

    Attributes:
        first: First token of the cells in a lane.
        stop: One past their last token in a lane.
        join: Clean token that each token is copied from when a lane starts.
        positions: Position of each token in its row.
        reads: Tokens that are read.
        starts: First computed position of each row.
        ends: One past the last computed position of each row.
        bases: Clean token at position ``prefix`` of the clean row whose keys precede each row.
        rows: Index of each row in the batch.
        offsets: First token of each row among the cells.
        queries: Tokens among the cells that are queries of attention: all of them, except in the last layer.

    Behind the last attention (:meth:`of_reads`), ``first``, ``stop``, ``join``, ``positions`` and ``reads`` are those of the tokens
    that are read; the others are those of all cells.
    """

    first: int
    stop: int
    join: tuple[int, ...]
    positions: tuple[int, ...]
    reads: ReadIndex
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    bases: tuple[int, ...]
    rows: tuple[int, ...]
    offsets: tuple[int, ...]
    queries: tuple[int, ...]

    def of_reads(self, first: int, clean_slot: Int[Tensor, "clean_token"]) -> "CellGroup":
        """Return the group of its reads, at token ``first`` of a lane; ``clean_slot``: new indices of clean tokens."""
        tokens = self.reads.tokens
        return replace(
            self, queries=tokens, first=first, stop=first + len(tokens),
            join=tuple(clean_slot[[self.join[t] for t in tokens]].tolist()), positions=tuple(self.positions[t] for t in tokens),
            reads=replace(self.reads, tokens=tuple(range(len(tokens)))),
        )  # fmt: skip


@dataclass(frozen=True)
class CleanRows:
    """Clean rows of a pass: token ids and positions after the prefix, row after row."""

    ids: Int[Tensor, "token"]
    positions: Int[Tensor, "token"]
    starts: tuple[int, ...]  # flat token at position ``prefix`` of each row
    stops: tuple[int, ...]  # one past the last position of each row
    prefix: tuple[int, ...]
    attention: AttentionGroup

    @classmethod
    def make(cls, rows: Sequence[tuple[tuple[int, ...], int]], prefix: int) -> "CleanRows":
        """Make the table from (token ids, one past the last needed position) pairs."""
        ids = [token for row, stop in rows for token in row[prefix:stop]]
        positions = [p for _, stop in rows for p in range(prefix, stop)]
        stops = [stop for _, stop in rows]
        starts = [0]
        for stop in stops:
            starts.append(starts[-1] + stop - prefix)
        group = AttentionGroup.make([prefix] * len(rows), stops, prefix, None)
        return cls(torch.tensor(ids), torch.tensor(positions), tuple(starts[:-1]), tuple(stops), tuple(rows[0][0][:prefix]), group)

    def equals(self, other: "CleanRows") -> bool:
        """Return whether other clean rows have the same tokens."""
        return self.ids.tolist() == other.ids.tolist() and (self.stops, self.prefix) == (other.stops, other.prefix)

    def token(self, row: int, position: int) -> int:
        """Return the flat token of a row at a position."""
        return self.starts[row] + position - len(self.prefix)


def make_cell_group(
    clean: CleanRows,
    clean_row: Sequence[int],
    starts: dict[int, int],
    ends: Sequence[int],
    reads: Sequence[tuple[int, int]],
    first: int,
    before: Mapping[int, int] | None = None,
) -> CellGroup:
    """Make the cells of one anchor or control; they begin at token ``first`` of a lane.

    ``clean_row``: clean row of each row; ``starts``: changed row -> first computed position; ``ends``: one past the last read
    position of each row; ``reads``: (row, position) pairs; ``before``: row -> donor's clean row if its keys precede the cells.
    """
    rows = sorted(starts)
    begin, stop = [starts[i] for i in rows], [ends[i] for i in rows]
    bases = [clean.starts[(before or {}).get(i, clean_row[i])] for i in rows]
    positions = [p for a, b in zip(begin, stop, strict=True) for p in range(a, b)]
    join = [clean.token(clean_row[i], p) for i, a, b in zip(rows, begin, stop, strict=True) for p in range(a, b)]
    offsets = list(accumulate((b - a for a, b in zip(begin, stop, strict=True)), initial=0))[:-1]
    offset = dict(zip(rows, offsets, strict=True))
    pairs = [(r, offset[i] + p - starts[i]) for r, (i, p) in enumerate(reads) if i in starts and p >= starts[i]]
    return CellGroup(
        first, first + len(join), tuple(join), tuple(positions), ReadIndex.make(pairs), tuple(begin), tuple(stop), tuple(bases),
        tuple(rows), tuple(offsets), tuple(range(len(join))),
    )  # fmt: skip


@dataclass(frozen=True)
class Prefix:
    """Rotated keys and values of a shared prefix, per layer [pos kv_head d_head]; a pass appends to them layer by layer."""

    ids: tuple[int, ...]
    keys: list[Tensor]
    values: list[Tensor]

    def at(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first ``length`` tokens, [kv_head pos d_head]."""
        k, v = self.keys[layer][:length], self.values[layer][:length]
        return rearrange(k, "pos head d_head -> head pos d_head"), rearrange(v, "pos head d_head -> head pos d_head")


@dataclass(frozen=True)
class PatchIndex:
    """Activations that are patched into lanes."""

    cell: Int[Tensor, "token"]  # token of a lane that is replaced
    clean: Int[Tensor, "token"]  # clean token whose stream replaces it; -1 for given streams
    streams: Float[Tensor, "layer given d_model"] | None  # given streams at every layer
    streams_at: Int[Tensor, "given"]  # index into ``cell`` of each given stream
    directions: Float[Tensor, "moved d_model"] | None  # unit directions along which clean tokens are moved instead
    moved: Int[Tensor, "moved"]  # clean token that is moved along each direction
    moved_at: Int[Tensor, "moved"]  # index into ``cell`` of each direction
    heads: Int[Tensor, "token"] | None = None  # head of z that is replaced by each given stream

    def within(self, cell_slot: Int[Tensor, "cell_token"], clean_slot: Int[Tensor, "clean_token"]) -> "PatchIndex":
        """Return the patches of a table with fewer tokens; each slot is the new index of a token, or -1."""
        kept = cell_slot[self.cell] >= 0
        order, given, moved = kept.cumsum(0) - 1, kept[self.streams_at], kept[self.moved_at]
        return PatchIndex(
            cell_slot[self.cell[kept]], torch.where(self.clean < 0, -1, clean_slot[self.clean])[kept],
            None if self.streams is None else self.streams[:, given.to(self.streams.device)], order[self.streams_at[given]],
            None if self.directions is None else self.directions[moved.to(self.directions.device)], clean_slot[self.moved[moved]],
            order[self.moved_at[moved]], None if self.heads is None else self.heads[kept],
        )  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """Attention edges that are cut in the cells of one variant."""

    edges: Bool[Tensor, "row query key"]
    mode: str
    heads: Bool[Tensor, "head"]


def _slots(tokens: Int[Tensor, "kept"], n: int) -> Int[Tensor, "token"]:
    """Return the index of each of ``n`` tokens in ``tokens``; -1 if it is not there."""
    out = torch.full((n,), -1)
    out[tokens] = torch.arange(len(tokens))
    return out


@dataclass(frozen=True)
class Layout:
    """Index tensors of one batch."""

    clean_rows: CleanRows
    reads: ReadIndex
    cell_groups: tuple[CellGroup, ...] = ()
    group_of: tuple[int | None, ...] = ()  # for each swap or variant; None if it changes no row
    patches: PatchIndex | None = None
    cuts: tuple[Cut, ...] = ()  # one per cell group

    def attention_ranges(self) -> list[range]:
        """Return ranges of neighbouring cell groups whose attention is computed together: several if they are small and not cut."""
        ranges: list[range] = []
        for i in range(len(self.cell_groups)):
            longer = range(ranges[-1].start if ranges else 0, i + 1)
            some = self.cell_groups[longer.start : longer.stop]
            rows = [row for cells in some for row in zip(cells.starts, cells.ends, strict=True)]
            lengths = [stop - start for start, stop in rows]
            padded, copied = len(lengths) * max(lengths), len(lengths) * (max(rows)[0] - len(self.clean_rows.prefix))
            small = padded <= min(TOGETHER, PADDED * sum(lengths)) and copied <= COPIED
            if ranges and small and not self.cuts:
                ranges[-1] = longer
            else:
                ranges.append(range(i, i + 1))
        return ranges

    def attention(self, numbers: range) -> AttentionGroup:
        """Return the attention group of neighbouring cell groups; keys and values are those of all their cells."""
        groups, offset, queries = self.cell_groups[numbers.start : numbers.stop], 0, list[int]()
        for cells in groups:
            queries += [offset + token for token in cells.queries]
            offset += sum(cells.ends) - sum(cells.starts)
        rows = [row for cells in groups for row in zip(cells.starts, cells.ends, cells.bases, strict=True)]
        starts, ends, bases = zip(*rows, strict=True)
        return AttentionGroup.make(starts, ends, len(self.clean_rows.prefix), bases, torch.tensor(queries, dtype=torch.long))

    def after_attention(self) -> "tuple[Layout, Int[Tensor, 'clean_token'], Int[Tensor, 'cell_token']]":
        """Return the layout after the last attention: of tokens that are read, and of the sources of their patches.

        Returns:
            The layout, the clean tokens in it, and its tokens of a lane. Queries of its attention are these tokens only.
        """
        cell_tokens = torch.tensor([cells.first + t for cells in self.cell_groups for t in cells.reads.tokens], dtype=torch.long)
        cell_slot = _slots(cell_tokens, self.cell_groups[-1].stop if self.cell_groups else 0)
        patches, needed = self.patches, torch.tensor(self.reads.tokens, dtype=torch.long)
        if patches is not None:
            kept = cell_slot[patches.cell] >= 0
            needed = torch.cat([needed, patches.clean[kept & (patches.clean >= 0)], patches.moved[kept[patches.moved_at]]])
        clean_tokens = needed.unique()
        clean_slot = _slots(clean_tokens, len(self.clean_rows.ids))
        rows, prefix = self.clean_rows, len(self.clean_rows.prefix)
        clean = replace(
            rows, ids=rows.ids[clean_tokens], positions=rows.positions[clean_tokens],
            attention=AttentionGroup.make([prefix] * len(rows.stops), rows.stops, prefix, None, clean_tokens),
        )  # fmt: skip
        groups: list[CellGroup] = []
        for cells in self.cell_groups:
            groups.append(cells.of_reads(groups[-1].stop if groups else 0, clean_slot))
        reads = replace(self.reads, tokens=tuple(clean_slot[list(self.reads.tokens)].tolist()))
        small = replace(
            self, clean_rows=clean, reads=reads, cell_groups=tuple(groups),
            patches=None if patches is None else patches.within(cell_slot, clean_slot),
        )  # fmt: skip
        return small, clean_tokens, cell_tokens

    @classmethod
    def clean(cls, rows: Sequence[tuple[int, ...]], prefix: int = 0) -> "Layout":
        """Make a layout without changes in which every token is read."""
        clean = CleanRows.make([(row, len(row)) for row in rows], prefix)
        return cls(clean, ReadIndex.make([(i, i) for i in range(len(clean.ids))]))
