"""The geometry of a batch for the cone engine: which clean rows, which cells, what is put or cut where."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from anchorlens.engine.interventions import CutBatch, Slots, SwapBatch
from anchorlens.engine.layout import Cut, Pack, Put, Reads, Runs, common_prefix, make_pack
from anchorlens.questions.tokens import TokenBatch

# Makes keys and values of a prefix ready for so many rows, and says how many of its tokens may be used.
MakePrefix = Callable[[tuple[int, ...], int], int]


class CutPlan:
    """The geometry of one batch of knockouts.

    Args:
        make_prefix: Makes the shared prefix ready.
        batch: What is to be measured.
        n_heads: Query heads of the model.
    """

    def __init__(self, make_prefix: MakePrefix, batch: CutBatch, n_heads: int) -> None:
        rows = token_rows(batch.tokens)
        reads = list(zip(batch.row.tolist(), batch.position.tolist(), strict=True))
        ends = [0] * len(rows)
        for i, position in reads:
            ends[i] = max(ends[i], position + 1)
        first = [_first_cut(edges, ends) for edges in batch.edges]
        # Rows may stand in a batch with different edges, so each is a run of its own.
        need = list(zip(rows, ends, strict=True))
        touched = [*(p for starts in first for p in starts.values()), *(p for _, p in reads)]
        shared = common_prefix(rows, min(touched))
        self.runs = Runs.make(need, make_prefix(rows[0][:shared], len(rows)))
        of_row = list(range(len(rows)))
        self.reads = Reads.make([(r, self.runs.token(i, p)) for r, (i, p) in enumerate(reads)])
        self.packs: list[Pack] = []
        self.cuts: list[Cut] = []
        self.pack_of_variant: list[int | None] = []
        heads = torch.zeros(n_heads, dtype=torch.bool)
        heads[list(range(n_heads) if batch.heads is None else batch.heads)] = True
        for edges, starts in zip(batch.edges, first, strict=True):
            self.pack_of_variant.append(len(self.packs) if starts else None)
            if starts:
                pack = make_pack(self.runs, of_row, starts, ends, reads, self.packs[-1].stop if self.packs else 0)
                self.packs.append(pack)
                self.cuts.append(Cut(edges[list(pack.rows)], batch.mode, heads))


def _first_cut(edges: Bool[Tensor, "example query key"], ends: Sequence[int]) -> dict[int, int]:
    """Row -> first position that may not read something; rows without one are left out."""
    found: dict[int, int] = {}
    for i, queries in enumerate(edges.any(-1).tolist()):
        cut = [p for p, is_cut in enumerate(queries[: ends[i]]) if is_cut]
        if cut:
            found[i] = cut[0]
    return found


class SwapPlan:
    """The geometry of one batch of swaps.

    Args:
        make_prefix: Makes the shared prefix ready.
        batch: What is to be measured.
    """

    def __init__(self, make_prefix: MakePrefix, batch: SwapBatch) -> None:
        rows = token_rows(batch.tokens)
        donors = token_rows(batch.donors) if batch.donors is not None else []
        reads = list(zip(batch.reader.row.tolist(), batch.reader.position.tolist(), strict=True))
        ends = [0] * len(rows)
        for i, position in reads:
            ends[i] = max(ends[i], position + 1)
        placed = [_placed(swap.slots, swap.source, ends) for swap in batch.swaps]
        need: dict[tuple[int, ...], int] = {}
        for i, row in enumerate(rows):
            need[row] = max(need.get(row, 0), ends[i])
        for place in placed:
            for i, _, source, _ in place:
                if source is not None:
                    need[donors[i]] = max(need.get(donors[i], 0), source + 1)
        index = {row: n for n, row in enumerate(need)}
        touched = [p for place in placed for _, target, source, _ in place for p in (target, source) if p is not None]
        shared = common_prefix(list(need), min([*touched, *(p for _, p in reads)]))
        prefix = make_prefix(next(iter(need))[:shared], len(need))
        self.runs = Runs.make(list(need.items()), prefix)
        of_row = [index[row] for row in rows]
        self.reads = Reads.make([(r, self.runs.token(of_row[i], p)) for r, (i, p) in enumerate(reads)])
        self.packs: list[Pack] = []
        self.pack_of_swap: list[int | None] = []
        cells: list[tuple[int, int]] = []
        given: list[Tensor] = []
        from_given: list[int] = []
        width = 0
        for swap, place in zip(batch.swaps, placed, strict=True):
            starts: dict[int, int] = {}
            for i, target, _, _ in place:
                starts[i] = min(starts.get(i, target), target)
            if not starts:
                self.pack_of_swap.append(None)
                continue
            pack = make_pack(self.runs, of_row, starts, ends, reads, width)
            offset = dict(zip(pack.rows, _offsets(pack), strict=True))
            for i, target, source, slot in place:
                run = -1
                if source is not None:
                    run = self.runs.token(index[donors[i]], source)
                else:
                    assert swap.streams is not None  # a swap has donors or streams
                    from_given.append(len(cells))
                    given.append(swap.streams[:, i, slot])
                cells.append((pack.first + offset[i] + target - starts[i], run))
            self.pack_of_swap.append(len(self.packs))
            self.packs.append(pack)
            width = pack.stop
        columns = torch.tensor(cells, dtype=torch.long).reshape(-1, 2)
        self.put = Put(
            columns[:, 0], columns[:, 1], torch.stack(given, 1) if given else None, torch.tensor(from_given, dtype=torch.long)
        )


def token_rows(tokens: TokenBatch) -> list[tuple[int, ...]]:
    return [tuple(ids[: int(n)]) for ids, n in zip(tokens.ids.tolist(), tokens.mask.sum(1), strict=True)]


def _offsets(pack: Pack) -> list[int]:
    return [pack.token(i, pack.starts[i]) for i in range(len(pack.rows))]


def _placed(slots: Slots, source: Slots | None, ends: Sequence[int]) -> list[tuple[int, int, int | None, int]]:
    """Row, target position, source position and slot of everything that is put before the last read position."""
    row, slot = torch.nonzero(slots.mask, as_tuple=True)
    target = slots.positions[row, slot].tolist()
    taken = [None] * len(target) if source is None else source.positions[source.mask].tolist()
    found = zip(row.tolist(), target, taken, slot.tolist(), strict=True)
    return [(i, t, s, n) for i, t, s, n in found if t < ends[i]]


__all__ = ["CutPlan", "SwapPlan", "token_rows"]
