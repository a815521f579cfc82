"""Geometry of one pass of the cone engine, as index tensors.

*Clean rows* are the distinct bases and donors of a batch, up to the last position that is needed.
Their common first tokens are the *prefix*: only its keys and values are used. *Lanes* are changed
copies of the clean rows that run in parallel. There is one lane per measured layer or window. It
holds the *cells* of every anchor and row, each from its first changed to its last read position.
All tokens of a pass are in one flat table: the clean rows, then the lanes that have started, by
starting layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.patches import PatchIndex


class JointAttention(NamedTuple):
    """Limits of cell groups whose attention is computed together.

    Attributes:
        tokens: Tokens of a lane, with padding.
        copied: Keys of clean rows that are copied for their rows.
        padded: Ratio of padded to real tokens.
    """

    tokens: int
    copied: int
    padded: float


# A GPU waits for its operations to be launched, about twenty for each group in each block.
JOINT_ATTENTION = {
    "cpu": JointAttention(64, 1024, 1.5),
    "cuda": JointAttention(2048, 2**16, 2.0),
    "mps": JointAttention(512, 2**14, 2.0),
}


def joint_attention(device: torch.device) -> JointAttention:
    """Return the limits for a device."""
    return JOINT_ATTENTION.get(device.type, JOINT_ATTENTION["cpu"])


@dataclass(frozen=True)
class ReadIndex:
    """Tokens of a group whose states are read.

    Attributes:
        tokens: Distinct tokens of the group, ascending.
        token_of: Index into ``tokens`` for each read in this group.
        number_of: Number of that read among all reads of the reader.
    """

    tokens: tuple[int, ...]
    token_of: Int[Tensor, "read"]
    number_of: Int[Tensor, "read"]

    @classmethod
    def make(cls, pairs: Sequence[tuple[int, int]]) -> "ReadIndex":
        """Make the index from (read, token) pairs."""
        tokens = sorted({token for _, token in pairs})
        place = dict(zip(tokens, range(len(tokens)), strict=True))
        token_of: list[int] = []
        number_of: list[int] = []
        for read, token in pairs:
            token_of.append(place[token])
            number_of.append(read)
        return cls(
            tokens=tuple(tokens),
            token_of=torch.tensor(token_of, dtype=torch.long),
            number_of=torch.tensor(number_of, dtype=torch.long),
        )


@dataclass(frozen=True, kw_only=True)
class AttentionGroup:
    """Rows whose attention is computed together, padded to one width.

    A row has its own tokens, from a first to a last position. The keys before them are those of the
    prefix and of the clean row up to its first token.

    Attributes:
        keys: Token of the group at each padded key slot; unused slots hold the row's first token.
        queries: Token of the group at each padded query slot.
        query_slots: Padded query slot of each query token, in token order.
        base: Clean token of each key between the prefix and the row's first token; no columns for
            clean rows.
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
        cls,
        starts: Sequence[int],
        ends: Sequence[int],
        *,
        prefix: int,
        base: Sequence[int] | None,
        tokens: Int[Tensor, "found"] | None = None,
    ) -> "AttentionGroup":
        """Make a group of rows that cover positions ``starts`` to ``ends``, behind a prefix of
        ``prefix`` tokens.

        ``base``: clean token at position ``prefix`` before each row, None for clean rows;
        ``tokens``: queries, None for all.
        """
        begin = torch.tensor(starts)
        stop = torch.tensor(ends)
        lengths = stop - begin
        first = lengths.cumsum(0) - lengths  # token at the start of each row
        steps = torch.arange(int(lengths.max()))
        # Key slots behind the end of a row hold its first token.
        keys = first[:, None] + steps * (steps < lengths[:, None])
        tokens = torch.arange(int(lengths.sum())) if tokens is None else tokens
        # Each query gets the next free slot of its row.
        row = torch.bucketize(tokens, first, right=True) - 1
        count = row.bincount(minlength=len(first))
        slot = torch.arange(len(tokens)) - (count.cumsum(0) - count)[row]
        queries = first[:, None].repeat(1, int(count.max()))
        queries[row, slot] = tokens
        # Clean keys between the prefix and each row, padded to the row that begins last.
        between = torch.arange(0 if base is None else int(begin.max()) - prefix)
        before = torch.minimum(between, (begin - prefix - 1).clamp(min=0)[:, None])
        shared = torch.arange(prefix + len(between)).expand(len(first), -1)
        later = begin[:, None] + steps
        return cls(
            keys=keys,
            queries=queries,
            query_slots=row * queries.shape[1] + slot,
            base=torch.tensor(base or starts)[:, None] + before,
            query_positions=queries - first[:, None] + begin[:, None],
            key_positions=torch.cat([shared, later], 1),
            is_key=torch.cat([shared < begin[:, None], later < stop[:, None]], 1),
        )

    def attention_mask(self, window: int | None) -> Bool[Tensor, "row query key"] | None:
        """Return True where a query attends to a key; None if it is True everywhere."""
        keys = self.key_positions[:, None, :]
        queries = self.query_positions[:, :, None]
        out = self.is_key[:, None, :] & (keys <= queries)
        if window is not None:
            out &= keys > queries - window
        return None if bool(out.all()) else out


@dataclass(frozen=True, kw_only=True)
class CellGroup:
    """Cells of one anchor or control in every lane.

    Attributes:
        first: First token of the cells in a lane.
        stop: One past their last token in a lane.
        copied_from: Clean token that each token is copied from when a lane starts.
        positions: Position of each token in its row.
        reads: Tokens that are read.
        starts: First computed position of each row.
        ends: One past the last computed position of each row.
        key_starts: Clean token at position ``prefix`` of the clean row whose keys precede each row.
        rows: Index of each row in the batch.
        offsets: First token of each row among the cells.
        queries: Tokens among the cells that are queries of attention: all of them, except in the
            last layer.

    Behind the last attention (:meth:`of_reads`), ``first``, ``stop``, ``copied_from``,
    ``positions`` and ``reads`` are those of the tokens that are read; the others are those of all
    cells.
    """

    first: int
    stop: int
    copied_from: tuple[int, ...]
    positions: tuple[int, ...]
    reads: ReadIndex
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    key_starts: tuple[int, ...]
    rows: tuple[int, ...]
    offsets: tuple[int, ...]
    queries: tuple[int, ...]

    def of_reads(self, first: int, new_clean: Int[Tensor, "clean_token"]) -> "CellGroup":
        """Return the group of its reads, at token ``first`` of a lane.

        ``new_clean``: new indices of clean tokens.
        """
        tokens = self.reads.tokens
        return replace(
            self,
            queries=tokens,
            first=first,
            stop=first + len(tokens),
            copied_from=tuple(new_clean[[self.copied_from[t] for t in tokens]].tolist()),
            positions=tuple(self.positions[t] for t in tokens),
            reads=replace(self.reads, tokens=tuple(range(len(tokens)))),
        )


@dataclass(frozen=True, kw_only=True)
class CleanRows:
    """Clean rows of a pass: their tokens after the prefix, row after row.

    Attributes:
        ids: Token ids.
        positions: Position of each token in its row.
        starts: Flat token at position ``prefix`` of each row.
        stops: One past the last position of each row.
        prefix: Token ids of the prefix.
        attention: Attention of the rows.
    """

    ids: Int[Tensor, "token"]
    positions: Int[Tensor, "token"]
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    prefix: tuple[int, ...]
    attention: AttentionGroup

    @classmethod
    def make(cls, rows: Sequence[tuple[tuple[int, ...], int]], prefix: int) -> "CleanRows":
        """Make the table from (token ids, one past the last needed position) pairs."""
        ids: list[int] = []
        positions: list[int] = []
        starts: list[int] = []
        stops: list[int] = []
        for row, stop in rows:
            starts.append(len(ids))
            stops.append(stop)
            ids += row[prefix:stop]
            positions += range(prefix, stop)
        return cls(
            ids=torch.tensor(ids),
            positions=torch.tensor(positions),
            starts=tuple(starts),
            stops=tuple(stops),
            prefix=tuple(rows[0][0][:prefix]),
            attention=_attention_of_clean_rows(stops, prefix),
        )

    def equals(self, other: "CleanRows") -> bool:
        """Return whether other clean rows have the same tokens."""
        return self.ids.tolist() == other.ids.tolist() and (self.stops, self.prefix) == (
            other.stops,
            other.prefix,
        )

    def token(self, row: int, position: int) -> int:
        """Return the flat token of a row at a position."""
        return self.starts[row] + position - len(self.prefix)


def _attention_of_clean_rows(
    stops: Sequence[int], prefix: int, tokens: Int[Tensor, "found"] | None = None
) -> AttentionGroup:
    """Return the attention group of clean rows.

    ``tokens``: queries, None for all.
    """
    return AttentionGroup.make(
        [prefix] * len(stops), stops, prefix=prefix, base=None, tokens=tokens
    )


@dataclass(frozen=True)
class Prefix:
    """Rotated keys and values of a shared prefix, per layer [pos kv_head d_head]; a pass appends to
    them layer by layer.
    """

    ids: tuple[int, ...]
    keys: list[Tensor]
    values: list[Tensor]

    def at(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first ``length`` tokens, [kv_head pos d_head]."""
        by_head = "pos head d_head -> head pos d_head"
        keys = rearrange(self.keys[layer][:length], by_head)
        values = rearrange(self.values[layer][:length], by_head)
        return keys, values

    def append(
        self,
        layer: int,
        keys: Float[Tensor, "token kv_head d_head"],
        values: Float[Tensor, "token kv_head d_head"],
        *,
        before: "Prefix | None",
        length: int,
    ) -> None:
        """Append the keys and values of one layer, after those of the first ``length`` tokens of
        the prefix ``before``, which this one extends.
        """
        first_keys, first_values = keys[:0], values[:0]
        if before is not None:
            first_keys = before.keys[layer][:length]
            first_values = before.values[layer][:length]
        # Copies, because views would keep the tables of all tokens in memory.
        self.keys.append(torch.cat([first_keys, keys]))
        self.values.append(torch.cat([first_values, values]))


@dataclass(frozen=True)
class Cut:
    """Attention edges that are cut in the cells of one variant."""

    edges: Bool[Tensor, "row query key"]
    mode: str
    heads: Bool[Tensor, "head"]


def _new_indices(tokens: Int[Tensor, "kept"], n: int) -> Int[Tensor, "token"]:
    """Return the index of each of ``n`` tokens in ``tokens``; -1 if it is not there."""
    out = torch.full((n,), -1)
    out[tokens] = torch.arange(len(tokens))
    return out


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Index tensors of one batch.

    Attributes:
        clean_rows: Clean rows.
        reads: Clean tokens that are read.
        cell_groups: Cells of each swap or variant that changes a row.
        group_of: Cell group of each swap or variant; None if it changes no row.
        patches: Activations that are patched; None for knockouts and clean passes.
        cuts: Attention edges that are cut in each cell group; () if none are.
    """

    clean_rows: CleanRows
    reads: ReadIndex
    cell_groups: tuple[CellGroup, ...] = ()
    group_of: tuple[int | None, ...] = ()
    patches: PatchIndex | None = None
    cuts: tuple[Cut, ...] = ()

    @property
    def n_cell_tokens(self) -> int:
        """Number of tokens of one lane."""
        return self.cell_groups[-1].stop if self.cell_groups else 0

    @property
    def cell_positions(self) -> list[int]:
        """Position of each token of a lane in its row."""
        positions: list[int] = []
        for cells in self.cell_groups:
            positions += cells.positions
        return positions

    @property
    def read_cell_tokens(self) -> Int[Tensor, "read"]:
        """Tokens of a lane that are read."""
        tokens: list[int] = []
        for cells in self.cell_groups:
            tokens += [cells.first + token for token in cells.reads.tokens]
        return torch.tensor(tokens, dtype=torch.long)

    def attention_ranges(self, limits: JointAttention) -> list[range]:
        """Return ranges of neighbouring cell groups whose attention is computed together: several
        if they are small and not cut.
        """
        ranges: list[range] = []
        for i in range(len(self.cell_groups)):
            longer = range(ranges[-1].start if ranges else 0, i + 1)
            if ranges and not self.cuts and self._is_small(longer, limits):
                ranges[-1] = longer
            else:
                ranges.append(range(i, i + 1))
        return ranges

    def _is_small(self, numbers: range, limits: JointAttention) -> bool:
        """Return whether computing the attention of neighbouring cell groups together saves
        time.
        """
        starts: list[int] = []
        lengths: list[int] = []
        for cells in self.cell_groups[numbers.start : numbers.stop]:
            for start, end in zip(cells.starts, cells.ends, strict=True):
                starts.append(start)
                lengths.append(end - start)
        padded = len(lengths) * max(lengths)
        copied = len(lengths) * (max(starts) - len(self.clean_rows.prefix))
        most = min(limits.tokens, limits.padded * sum(lengths))
        return padded <= most and copied <= limits.copied

    def attention(self, numbers: range) -> AttentionGroup:
        """Return the attention group of neighbouring cell groups; keys and values are those of all
        their cells.
        """
        starts: list[int] = []
        ends: list[int] = []
        key_starts: list[int] = []
        queries: list[int] = []
        for cells in self.cell_groups[numbers.start : numbers.stop]:
            offset = sum(ends) - sum(starts)
            queries += [offset + token for token in cells.queries]
            starts += cells.starts
            ends += cells.ends
            key_starts += cells.key_starts
        return AttentionGroup.make(
            starts,
            ends,
            prefix=len(self.clean_rows.prefix),
            base=key_starts,
            tokens=torch.tensor(queries, dtype=torch.long),
        )

    def after_attention(
        self,
    ) -> "tuple[Layout, Int[Tensor, 'clean_token'], Int[Tensor, 'cell_token']]":
        """Return the layout after the last attention: of tokens that are read, and of the sources
        of their patches.

        Returns:
            The layout, the clean tokens in it, and its tokens of a lane. Queries of its attention
            are these tokens only.
        """
        cell_tokens = self.read_cell_tokens
        new_lane = _new_indices(cell_tokens, self.n_cell_tokens)
        clean_tokens = self._find_clean_tokens(new_lane)
        new_clean = _new_indices(clean_tokens, len(self.clean_rows.ids))
        rows = self.clean_rows
        clean = replace(
            rows,
            ids=rows.ids[clean_tokens],
            positions=rows.positions[clean_tokens],
            attention=_attention_of_clean_rows(rows.stops, len(rows.prefix), clean_tokens),
        )
        groups: list[CellGroup] = []
        for cells in self.cell_groups:
            groups.append(cells.of_reads(groups[-1].stop if groups else 0, new_clean))
        reads = replace(self.reads, tokens=tuple(new_clean[list(self.reads.tokens)].tolist()))
        patches = self.patches
        small = replace(
            self,
            clean_rows=clean,
            reads=reads,
            cell_groups=tuple(groups),
            patches=None if patches is None else patches.within(new_lane, new_clean),
        )
        return small, clean_tokens, cell_tokens

    def _find_clean_tokens(self, new_lane: Int[Tensor, "cell_token"]) -> Int[Tensor, "clean_token"]:
        """Return the clean tokens that are read, and those that the patches of the kept tokens
        need.

        ``new_lane``: new index of each token of a lane, or -1.
        """
        needed = [torch.tensor(self.reads.tokens, dtype=torch.long)]
        patches = self.patches
        if patches is not None:
            kept = new_lane[patches.lane_token] >= 0
            needed.append(patches.clean_token[kept & (patches.clean_token >= 0)])
            needed.append(patches.turned[kept[patches.turned_at]])
        return torch.cat(needed).unique()

    @classmethod
    def clean(cls, rows: Sequence[tuple[int, ...]], prefix: int = 0) -> "Layout":
        """Make a layout without changes in which every token is read."""
        clean = CleanRows.make([(row, len(row)) for row in rows], prefix)
        n = len(clean.ids)
        reads = ReadIndex(
            tokens=tuple(range(n)),
            token_of=torch.arange(n),
            number_of=torch.arange(n),
        )
        return cls(clean_rows=clean, reads=reads)
