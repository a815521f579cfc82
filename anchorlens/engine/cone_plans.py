"""The geometry of a batch for the cone engine: which clean rows, which cells, what is put or cut where.

A plan is pure: it says what its rows share, and lays them out behind as much of that as somebody has computed.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from anchorlens.engine.cone_layout import CleanRows, Cut, Layout, Pack, PatchIndex, ReadIndex, make_pack
from anchorlens.engine.patches import KnockoutBatch, Slots, SwapBatch, token_rows
from anchorlens.models.adapter import SiteLike
from anchorlens.prompts.batches import common_prefix


class CutPlan:
    """One batch of knockouts.

    Attributes:
        shared: Ids that all clean rows begin with, up to what is changed or read.
        rows: Clean rows.
    """

    def __init__(self, batch: KnockoutBatch, n_heads: int) -> None:
        self.batch, self.n_heads = batch, n_heads
        ids = token_rows(batch.tokens)
        self.reads = list(zip(batch.row.tolist(), batch.position.tolist(), strict=True))
        self.ends = _ends(len(ids), self.reads)
        self.first = [_first_cut(edges, self.ends) for edges in batch.edges]
        # Rows may stand in a batch with different edges, so each is a run of its own.
        self.need = list(zip(ids, self.ends, strict=True))
        touched = [*(p for starts in self.first for p in starts.values()), *(p for _, p in self.reads)]
        self.shared, self.rows = ids[0][: common_prefix(ids, min(touched))], len(ids)

    def layout(self, prefix: int) -> Layout:
        runs = CleanRows.make(self.need, prefix)
        base = ReadIndex.make([(r, runs.token(i, p)) for r, (i, p) in enumerate(self.reads)])
        packs: list[Pack] = []
        cuts: list[Cut] = []
        pack_of: list[int | None] = []
        heads = torch.zeros(self.n_heads, dtype=torch.bool)
        heads[list(range(self.n_heads) if self.batch.heads is None else self.batch.heads)] = True
        for edges, starts in zip(self.batch.edges, self.first, strict=True):
            pack_of.append(len(packs) if starts else None)
            if starts:
                pack = make_pack(runs, range(self.rows), starts, self.ends, self.reads, packs[-1].stop if packs else 0)
                packs.append(pack)
                cuts.append(Cut(edges[list(pack.rows)], self.batch.mode, heads))
        return Layout(runs, base, tuple(packs), tuple(pack_of), cuts=tuple(cuts))


def _first_cut(edges: Bool[Tensor, "example query key"], ends: Sequence[int]) -> dict[int, int]:
    """Row -> first position that may not read something; rows without one are left out."""
    cut = [queries[:end] for queries, end in zip(edges.any(-1).tolist(), ends, strict=True)]
    return {i: queries.index(True) for i, queries in enumerate(cut) if True in queries}


class SwapPlan:
    """One batch of swaps.

    Attributes:
        shared: Ids that all clean rows begin with, up to what is changed, taken or read.
        rows: Clean rows.
    """

    def __init__(self, batch: SwapBatch, site: SiteLike) -> None:
        ids = token_rows(batch.tokens)
        self.batch, self.donors = batch, token_rows(batch.donors) if batch.donors is not None else []
        self.reads = list(zip(batch.reader.row.tolist(), batch.reader.position.tolist(), strict=True))
        self.ends = _ends(len(ids), self.reads)
        self.placed = [_placed(swap.slots, swap.source, self.ends) for swap in batch.swaps]
        self.cones = [self._cones(ids, place, site) for place in self.placed]
        need: dict[tuple[int, ...], int] = {}
        for i, row in enumerate(ids):
            need[row] = max(need.get(row, 0), self.ends[i])
        for place in self.placed:
            for i, _, source, _ in place:
                if source is not None:
                    need[self.donors[i]] = max(need.get(self.donors[i], 0), source + 1)
        self.need, self.run_of = list(need.items()), {row: n for n, row in enumerate(need)}
        self.of_row = [self.run_of[row] for row in ids]
        touched = [p for place in self.placed for _, target, source, _ in place for p in (target, source) if p is not None]
        n_shared = common_prefix(list(need), min([*touched, *(p for _, p in self.reads)]))
        self.shared, self.rows = ids[0][:n_shared], len(need)

    def _cones(
        self, ids: Sequence[tuple[int, ...]], place: Sequence[tuple[int, int, int | None, int]], site: SiteLike
    ) -> dict[int, tuple[int, bool]]:
        """Row -> where its cone begins, and whether what stands before that is the donor's; unchanged rows are left out."""
        changed: defaultdict[int, list[tuple[int, int | None]]] = defaultdict(list)
        for i, target, source, _ in place:
            changed[i].append((target, source))
        reads: defaultdict[int, list[int]] = defaultdict(list)
        for i, position in self.reads:
            reads[i].append(position)
        out: dict[int, tuple[int, bool]] = {}
        for i, pairs in changed.items():
            start = cone_start(ids[i], self.donors[i] if self.donors else (), pairs, reads[i], site)
            out[i] = start, start > min(target for target, _ in pairs)
        return out

    def layout(self, prefix: int) -> Layout:
        runs = CleanRows.make(self.need, prefix)
        base = ReadIndex.make([(r, runs.token(self.of_row[i], p)) for r, (i, p) in enumerate(self.reads)])
        packs: list[Pack] = []
        pack_of: list[int | None] = []
        cells: list[tuple[int, int]] = []
        given: list[Tensor] = []
        from_given: list[int] = []
        for swap, place, cones in zip(self.batch.swaps, self.placed, self.cones, strict=True):
            starts = {i: start for i, (start, _) in cones.items()}
            pack_of.append(len(packs) if starts else None)
            if not starts:
                continue
            before = {i: self.run_of[self.donors[i]] for i, (_, theirs) in cones.items() if theirs}
            pack = make_pack(runs, self.of_row, starts, self.ends, self.reads, packs[-1].stop if packs else 0, before)
            packs.append(pack)
            offset = dict(zip(pack.rows, pack.offsets, strict=True))
            for i, target, source, slot in place:
                if target < starts[i]:
                    continue
                run = -1
                if source is not None:
                    run = runs.token(self.run_of[self.donors[i]], source)
                else:
                    assert swap.streams is not None  # a swap has donors or streams
                    from_given.append(len(cells))
                    given.append(swap.streams[:, i, slot])
                cells.append((pack.first + offset[i] + target - starts[i], run))
        columns = torch.tensor(cells, dtype=torch.long).reshape(-1, 2)
        put = PatchIndex(
            columns[:, 0], columns[:, 1], torch.stack(given, 1) if given else None, torch.tensor(from_given, dtype=torch.long)
        )
        return Layout(runs, base, tuple(packs), tuple(pack_of), put=put)


def cone_start(
    ids: Sequence[int], donor: Sequence[int], pairs: Sequence[tuple[int, int | None]], reads: Sequence[int], site: SiteLike
) -> int:
    """First position of a swap's cone that has to be computed.

    That is the first changed one, unless all that it can read is the donor's, too: then from the changed layer on it goes its
    donor's own way, which the donor's clean run has computed once for all layers. So does every position behind it, as long as it is
    put there from the same position of the donor, or has nothing before it in which the two differ.
    """
    source = dict(pairs)
    first = min(source)
    # A whole stream goes on as the donor's; an attention's or MLP's output alone is added to the base's own.
    if str(site) not in ("resid_pre", "resid_mid", "resid_post"):
        return first
    alike = common_prefix([tuple(ids), tuple(donor)], min(len(ids), len(donor)))
    stop = min(max(source) + 1, *(position for position in reads if position >= first))
    start = at = first
    while first <= alike and at < stop and (source[at] == at if at in source else at < alike):
        at += 1
        if at - 1 in source:  # the donor's run is needed up to what is taken from it, and no further
            start = at
    return start


def _ends(rows: int, reads: Sequence[tuple[int, int]]) -> list[int]:
    """One past the last read position of each row; 0 where nothing is read."""
    ends = [0] * rows
    for i, position in reads:
        ends[i] = max(ends[i], position + 1)
    return ends


def _placed(slots: Slots, source: Slots | None, ends: Sequence[int]) -> list[tuple[int, int, int | None, int]]:
    """Row, target position, source position and slot of everything that is put before the last read position."""
    row, slot = torch.nonzero(slots.mask, as_tuple=True)
    target = slots.positions[row, slot].tolist()
    taken = [None] * len(target) if source is None else source.positions[source.mask].tolist()
    found = zip(row.tolist(), target, taken, slot.tolist(), strict=True)
    return [(i, t, s, n) for i, t, s, n in found if t < ends[i]]
