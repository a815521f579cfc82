"""Geometry of one pass of the cone engine, as index tensors.

*Runs* are the clean rows of a batch (bases and donors), each different one once, up to the last position that anybody needs. The
tokens that all runs begin with are the *prefix*: they stand in no table here, only their keys and values are read. *Lanes* are the
changed copies, one for each layer (or window) that is measured; a lane holds the *cells* of every anchor and row, and of each cell
only the positions from the first changed one to the last read one. All tokens of a pass lie in one flat table: the runs, then the
lanes that have joined, in the order in which they join.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.patches import window_layers


@dataclass(frozen=True)
class Lanes:
    """The changed copies of a batch, in the order in which they join.

    Attributes:
        start: Layer at which each joins.
        first: First layer in which each is changed.
        last: Last layer in which each is changed; below ``first`` where it is not changed any more.
        order: Index of each lane in the caller's list.
        forked: Lanes after the first are copies of the first, not of the clean rows.
    """

    start: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    order: tuple[int, ...]
    forked: bool = False

    @classmethod
    def windows(cls, layers: Sequence[int], window: int, n_layers: int) -> "Lanes":
        """One lane for the window around each layer."""
        return cls.of([window_layers(layer, window, n_layers) for layer in layers])

    @classmethod
    def of(cls, windows: Sequence[range]) -> "Lanes":
        """One lane for each window of layers; none of them is empty."""
        order = sorted(range(len(windows)), key=lambda i: (windows[i].start, windows[i].stop))
        starts = tuple(windows[i].start for i in order)
        return cls(starts, starts, tuple(windows[i][-1] for i in order), tuple(order))

    @classmethod
    def cuts(cls, windows: Sequence[range]) -> "tuple[Lanes, list[int]]":
        """Lanes for windows of which some may be empty or alike.

        Windows that all begin in the same layer become one lane that is changed all the way and copies that leave it: a run that is
        changed in layers a .. b is, up to b, the run that is changed in a .. c for any c > b, so it need not be computed before
        b + 1.

        Returns:
            The lanes, and the lane of each window; -1 for an empty window, which is the clean run.
        """
        full = [w for w in windows if w]
        if len({w.start for w in full}) != 1:
            lanes = cls.of(full)
            number = iter(range(len(full)))
            return lanes, [lanes.order.index(next(number)) if w else -1 for w in windows]
        first, last = full[0].start, max(w[-1] for w in full)
        ends = sorted({w[-1] for w in full if w[-1] < last})
        lanes = cls(
            (first, *(end + 1 for end in ends)), (first, *(1 for _ in ends)), (last, *(0 for _ in ends)), (), forked=True
        )
        return lanes, [-1 if not w else 0 if w[-1] == last else 1 + ends.index(w[-1]) for w in windows]

    def joined(self, layer: int) -> int:
        """Return the number of lanes that have joined up to ``layer``, inclusive."""
        return sum(start <= layer for start in self.start)

    def changed(self, layer: int) -> list[tuple[int, int]]:
        """Stretches of neighbouring lanes that are changed in ``layer``: first and one past the last of each."""
        stretches: list[tuple[int, int]] = []
        for j in range(len(self.start)):
            if self.first[j] <= layer <= self.last[j]:
                go_on = stretches and stretches[-1][1] == j
                stretches = [*stretches[:-1], (stretches[-1][0], j + 1)] if go_on else [*stretches, (j, j + 1)]
        return stretches


@dataclass(frozen=True)
class Group:
    """Rows whose attention is computed together, padded to one width.

    Attributes:
        keys: Own token of each padded key slot; a slot without a token holds the row's first.
        queries: Own token of each padded query slot.
        found: Padded query slot of each query token, in the order of the tokens that are computed.
        base: Run token of the keys between the prefix and the row's own first token; no column for runs themselves.
        query_positions: Positions of the padded queries in their rows.
        key_positions: Positions of all keys: prefix, base, own.
        real: True at key slots that hold a key.
    """

    keys: Int[Tensor, "row own"]
    queries: Int[Tensor, "row query"]
    found: Int[Tensor, "found"]
    base: Int[Tensor, "row base"]
    query_positions: Int[Tensor, "row query"]
    key_positions: Int[Tensor, "row key"]
    real: Bool[Tensor, "row key"]

    @classmethod
    def make(
        cls,
        starts: Sequence[int],
        ends: Sequence[int],
        prefix: int,
        base: Sequence[int] | None,
        reads: "ReadIndex | None" = None,
    ) -> "Group":
        """Make a group of rows from their first positions and ends.

        ``prefix``: positions that all rows share; ``base``: run token at that position of the run before each row, None for runs;
        ``reads``: own tokens that are queries, None for all.
        """
        begin, stop = torch.tensor(starts), torch.tensor(ends)
        first = (stop - begin).cumsum(0) - (stop - begin)  # own token at the start of each row
        own = torch.arange(int((stop - begin).max()))
        keys = first[:, None] + own * (own < (stop - begin)[:, None])
        tokens = torch.arange(int((stop - begin).sum())) if reads is None else torch.tensor(reads.tokens, dtype=torch.long)
        row = torch.bucketize(tokens, first, right=True) - 1
        count = row.bincount(minlength=len(first))
        slot = torch.arange(len(tokens)) - (count.cumsum(0) - count)[row]
        queries = first[:, None].repeat(1, int(count.max()))
        queries[row, slot] = tokens
        between = torch.arange(0 if base is None else int(begin.max()) - prefix)
        before = torch.minimum(between, (begin - prefix - 1).clamp(min=0)[:, None])
        shared, mine = torch.arange(prefix + len(between)).expand(len(first), -1), begin[:, None] + own
        return cls(
            keys, queries, row * queries.shape[1] + slot, torch.tensor(base or starts)[:, None] + before,
            queries - first[:, None] + begin[:, None], torch.cat([shared, mine], 1),
            torch.cat([shared < begin[:, None], mine < stop[:, None]], 1),
        )  # fmt: skip

    def allowed(self, window: int | None) -> Bool[Tensor, "row query key"] | None:
        """Return True where a query may read a key; None if all may be read."""
        keys, queries = self.key_positions[:, None, :], self.query_positions[:, :, None]
        out = self.real[:, None, :] & (keys <= queries)
        if window is not None:
            out &= keys > queries - window
        return None if bool(out.all()) else out


@dataclass(frozen=True)
class ReadIndex:
    """Tokens of a group that the reader reads.

    Attributes:
        tokens: Own tokens, ascending, each once.
        of: Index into ``tokens`` of each of the reader's reads that lies in this group.
        index: Index of that read in the reader.
    """

    tokens: tuple[int, ...]
    of: Int[Tensor, "read"]
    index: Int[Tensor, "read"]

    @classmethod
    def make(cls, found: Sequence[tuple[int, int]]) -> "ReadIndex":
        """From (read, token) pairs."""
        tokens = sorted({token for _, token in found})
        place = {token: i for i, token in enumerate(tokens)}
        of, index = [place[token] for _, token in found], [read for read, _ in found]
        return cls(tuple(tokens), torch.tensor(of, dtype=torch.long), torch.tensor(index, dtype=torch.long))


@dataclass(frozen=True)
class Pack:
    """The cells of one anchor or control: a group, its tokens in a lane, and what is read of them.

    Attributes:
        group: For attention.
        first: Its first token in a lane.
        stop: One past its last token in a lane.
        join: Run token of each of its tokens: what a cell is before it is changed.
        positions: Position of each token in its row.
        reads: What is read of it.
        starts: First own position of each row.
        ends: One past the last.
        bases: Run token at position ``prefix`` of the run that stands before each row.
        rows: Row of the batch of each of its rows.
        offsets: First token of the pack of each row.
    """

    group: Group
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


@dataclass(frozen=True)
class CleanRows:
    """The clean rows of a pass: ids and positions after the prefix, row after row."""

    ids: Int[Tensor, "token"]
    positions: Int[Tensor, "token"]
    starts: tuple[int, ...]  # flat token at position ``prefix`` of each run
    stops: tuple[int, ...]  # one past the last position of each run
    prefix: tuple[int, ...]
    group: Group

    @classmethod
    def make(cls, rows: Sequence[tuple[tuple[int, ...], int]], prefix: int) -> "CleanRows":
        ids = [token for row, stop in rows for token in row[prefix:stop]]
        positions = [p for _, stop in rows for p in range(prefix, stop)]
        stops = [stop for _, stop in rows]
        starts = [0]
        for stop in stops:
            starts.append(starts[-1] + stop - prefix)
        group = Group.make([prefix] * len(rows), stops, prefix, None)
        return cls(
            torch.tensor(ids), torch.tensor(positions), tuple(starts[:-1]), tuple(stops), tuple(rows[0][0][:prefix]), group
        )

    def token(self, run: int, position: int) -> int:
        """Flat token of a run at a position."""
        return self.starts[run] + position - len(self.prefix)


def make_pack(
    runs: CleanRows,
    of_row: Sequence[int],
    starts: dict[int, int],
    ends: Sequence[int],
    reads: Sequence[tuple[int, int]],
    first: int,
    before: Mapping[int, int] | None = None,
) -> Pack:
    """Return the cells of one anchor.

    ``starts``: row -> first position that is computed, changed rows only; ``ends``: one past the last read position of each row;
    ``first``: its first token in a lane; ``before``: row -> run that stands before its first position, where it is not its own.
    """
    prefix, rows = len(runs.prefix), sorted(starts)
    begin, stop = [starts[i] for i in rows], [ends[i] for i in rows]
    bases = [runs.starts[(before or {}).get(i, of_row[i])] for i in rows]
    positions = [p for a, b in zip(begin, stop, strict=True) for p in range(a, b)]
    join = [runs.token(of_row[i], p) for i, a, b in zip(rows, begin, stop, strict=True) for p in range(a, b)]
    offsets = list(accumulate((b - a for a, b in zip(begin, stop, strict=True)), initial=0))[:-1]
    offset = dict(zip(rows, offsets, strict=True))
    found = [(r, offset[i] + p - starts[i]) for r, (i, p) in enumerate(reads) if i in starts and p >= starts[i]]
    return Pack(
        Group.make(begin, stop, prefix, bases), first, first + len(join), tuple(join), tuple(positions), ReadIndex.make(found),
        tuple(begin), tuple(stop), tuple(bases), tuple(rows), tuple(offsets),
    )  # fmt: skip


@dataclass(frozen=True)
class Prefix:
    """Rotated keys and values of tokens that many rows begin with, by layer [pos head d_head]; a pass makes them as it goes."""

    ids: tuple[int, ...]
    keys: list[Tensor]
    values: list[Tensor]

    def at(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first ``length`` tokens, [kv_head pos d_head]."""
        k, v = self.keys[layer][:length], self.values[layer][:length]
        return rearrange(k, "pos head d_head -> head pos d_head"), rearrange(v, "pos head d_head -> head pos d_head")


@dataclass(frozen=True)
class PatchIndex:
    """Streams that are put into lanes: from ``run`` tokens, or ``given`` at every layer for the cells ``from_given`` (run -1)."""

    cell: Int[Tensor, "token"]
    run: Int[Tensor, "token"]
    given: Float[Tensor, "layer given d_model"] | None
    from_given: Int[Tensor, "given"]


@dataclass(frozen=True)
class Cut:
    """Attention edges that are cut in the lanes of one pack."""

    edges: Bool[Tensor, "row query key"]
    mode: str
    heads: Bool[Tensor, "head"]


@dataclass(frozen=True)
class Layout:
    """One batch, laid out."""

    runs: CleanRows
    reads: ReadIndex
    packs: tuple[Pack, ...] = ()
    pack_of: tuple[int | None, ...] = ()  # of each swap or variant; None where it changes nothing in any row
    put: PatchIndex | None = None
    cuts: tuple[Cut, ...] = ()  # by pack

    @classmethod
    def clean(cls, rows: Sequence[tuple[int, ...]], prefix: int = 0) -> "Layout":
        """Whole rows in which nothing is changed, every token of them read."""
        runs = CleanRows.make([(row, len(row)) for row in rows], prefix)
        return cls(runs, ReadIndex.make([(i, i) for i in range(len(runs.ids))]))
