"""Who is computed where: the geometry of one pass of the cone engine, as index tensors.

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

from anchorlens.engine.interventions import window_layers


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
        """How many lanes have joined at ``layer``, those that join there included."""
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
        cls, starts: Sequence[int], ends: Sequence[int], prefix: int, base: Sequence[int] | None, reads: "Reads | None" = None
    ) -> "Group":
        """A group of rows.

        Args:
            starts: Position of the first own token of each row.
            ends: One past the last.
            prefix: Positions that every row shares.
            base: Run token at position ``prefix`` of the run that stands before each row; None for runs.
            reads: Only these tokens ask; all where it is left out.
        """
        first = [0]
        for start, end in zip(starts, ends, strict=True):
            first.append(first[-1] + end - start)
        spans = list(zip(starts, ends, first, strict=False))
        own = max(end - start for start, end, _ in spans)
        keys = [[at + u if u < end - start else at for u in range(own)] for start, end, at in spans]
        if reads is None:
            queries, asked = keys, [list(range(end - start)) for start, end, _ in spans]
        else:
            asked = [[token - at for token in reads.tokens if at <= token < at + end - start] for start, end, at in spans]
            width = max(map(len, asked))
            queries = [[at + u for u in row] + [at] * (width - len(row)) for row, (_, _, at) in zip(asked, spans, strict=True)]
        width = len(queries[0])
        found = [i * width + slot for i, row in enumerate(asked) for slot in range(len(row))]
        between = 0 if base is None else max(starts) - prefix
        tokens = [
            [at + min(u, max(start - prefix - 1, 0)) for u in range(between)]
            for at, start in zip(base or starts, starts, strict=True)
        ]
        positions = [[start + q - at for q in row] for row, (start, _, at) in zip(queries, spans, strict=True)]
        begin, stop = torch.tensor(starts)[:, None], torch.tensor(ends)[:, None]
        shared, mine = torch.arange(prefix + between).expand(len(starts), -1), begin + torch.arange(own)
        real = torch.cat([shared < begin, mine < stop], 1)
        return cls(
            torch.tensor(keys), torch.tensor(queries), torch.tensor(found, dtype=torch.long),
            torch.tensor(tokens, dtype=torch.long).reshape(len(starts), between), torch.tensor(positions),
            torch.cat([shared, mine], 1), real,
        )  # fmt: skip

    def allowed(self, window: int | None) -> Bool[Tensor, "row query key"] | None:
        """Which key each query may read; None where all may be."""
        keys, queries = self.key_positions[:, None, :], self.query_positions[:, :, None]
        out = self.real[:, None, :] & (keys <= queries)
        if window is not None:
            out &= keys > queries - window
        return None if bool(out.all()) else out


@dataclass(frozen=True)
class Reads:
    """Which tokens of a group are read in the end.

    Attributes:
        tokens: Own tokens, ascending, each once.
        of: Index into ``tokens`` of each of the reader's reads that lies in this group.
        index: Index of that read in the reader.
    """

    tokens: tuple[int, ...]
    of: Int[Tensor, "read"]
    index: Int[Tensor, "read"]

    @classmethod
    def make(cls, found: Sequence[tuple[int, int]]) -> "Reads":
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
    reads: Reads
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    bases: tuple[int, ...]
    rows: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Runs:
    """The clean rows of a pass.

    Attributes:
        ids: Token ids after the prefix, row after row.
        positions: Their positions.
        starts: Flat token at position ``prefix`` of each run.
        stops: One past the last position of each run.
        prefix: Ids of the tokens that all runs begin with and that are not computed here.
        group: For attention.
    """

    ids: Int[Tensor, "token"]
    positions: Int[Tensor, "token"]
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    prefix: tuple[int, ...]
    group: Group

    @classmethod
    def make(cls, rows: Sequence[tuple[tuple[int, ...], int]], prefix: int) -> "Runs":
        """From ids and needed length of each different row."""
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
    runs: Runs,
    of_row: Sequence[int],
    starts: dict[int, int],
    ends: Sequence[int],
    reads: Sequence[tuple[int, int]],
    first: int,
    before: Mapping[int, int] | None = None,
) -> Pack:
    """The cells of one anchor.

    Args:
        runs: The clean rows.
        of_row: Run of each row of the batch.
        starts: Row -> first position that is computed; rows that are not changed are left out.
        ends: One past the last read position of each row.
        reads: Row and position of each of the reader's reads.
        first: Where its tokens begin in a lane.
        before: Row -> run that stands before its first position, where that is not its own clean run.
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
        Group.make(begin, stop, prefix, bases), first, first + len(join), tuple(join), tuple(positions), Reads.make(found),
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
class Put:
    """Streams that are put into lanes in the same pass.

    Attributes:
        cell: Token of a lane that is replaced.
        run: Run token whose stream is put there; -1 where ``given`` says what.
        given: Streams at every layer for the tokens of ``from_given``; None where all come from runs.
        from_given: Indices into ``cell`` of the tokens that ``given`` replaces.
    """

    cell: Int[Tensor, "token"]
    run: Int[Tensor, "token"]
    given: Float[Tensor, "layer given d_model"] | None
    from_given: Int[Tensor, "given"]


@dataclass(frozen=True)
class Cut:
    """Attention edges that are cut in the lanes of one pack.

    Attributes:
        edges: True where a query of a row of the pack may not read a key.
        mode: ``mask`` or ``zero``.
        heads: True at query heads in which they are cut.
    """

    edges: Bool[Tensor, "row query key"]
    mode: str
    heads: Bool[Tensor, "head"]


@dataclass(frozen=True)
class Layout:
    """One batch, laid out.

    Attributes:
        runs: Clean rows.
        reads: What is read of them.
        packs: Cells of a lane.
        pack_of: Pack of each swap or variant of the batch; None where it changes nothing in any row.
        put: Streams that are put into lanes; None for cuts.
        cuts: Which edges are cut, by pack; none for swaps.
    """

    runs: Runs
    reads: Reads
    packs: tuple[Pack, ...] = ()
    pack_of: tuple[int | None, ...] = ()
    put: Put | None = None
    cuts: tuple[Cut, ...] = ()

    @classmethod
    def clean(cls, rows: Sequence[tuple[int, ...]], prefix: int = 0) -> "Layout":
        """Whole rows in which nothing is changed, every token of them read."""
        runs = Runs.make([(row, len(row)) for row in rows], prefix)
        return cls(runs, Reads.make([(i, i) for i in range(len(runs.ids))]))


__all__ = ["Cut", "Group", "Lanes", "Layout", "Pack", "Prefix", "Put", "Reads", "Runs", "make_pack"]
