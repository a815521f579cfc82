"""Plans of the cone engine: clean rows, cells, patches and cut edges of a batch.

``shared`` has the token ids that all clean rows begin with. The engine takes the keys and values of this prefix, or of a part of it,
from its cache. ``layout`` then makes the index tensors of the remaining tokens.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from anchorlens.engine.cone_layout import CellGroup, CleanRows, Cut, Layout, PatchIndex, ReadIndex, make_cell_group
from anchorlens.engine.patches import AnchorSwap, KnockoutBatch, Slots, SwapBatch, token_rows
from anchorlens.models.adapter import SiteLike
from anchorlens.prompts.batches import common_prefix


class KnockoutPlan:
    """Plan of a batch of knockouts.

    Attributes:
        shared: Token ids that all clean rows begin with, before the first cut or read position.
        rows: Number of clean rows.
    """

    def __init__(self, batch: KnockoutBatch, n_heads: int) -> None:
        self.batch, self.n_heads = batch, n_heads
        ids = token_rows(batch.tokens)
        self.reads = list(zip(batch.row.tolist(), batch.position.tolist(), strict=True))
        self.ends = _ends(len(ids), self.reads)
        self.first = [_first_cut(edges, self.ends) for edges in batch.edges]
        # Equal rows may have different edges, so none are merged.
        self.need = list(zip(ids, self.ends, strict=True))
        touched = [*(p for starts in self.first for p in starts.values()), *(p for _, p in self.reads)]
        self.shared, self.rows = ids[0][: common_prefix(ids, min(touched))], len(ids)

    def layout(self, prefix: int) -> Layout:
        """Return the index tensors of the batch behind a prefix of ``prefix`` tokens."""
        clean = CleanRows.make(self.need, prefix)
        base = ReadIndex.make([(r, clean.token(i, p)) for r, (i, p) in enumerate(self.reads)])
        groups: list[CellGroup] = []
        cuts: list[Cut] = []
        group_of: list[int | None] = []
        heads = torch.zeros(self.n_heads, dtype=torch.bool)
        heads[list(range(self.n_heads) if self.batch.heads is None else self.batch.heads)] = True
        for edges, starts in zip(self.batch.edges, self.first, strict=True):
            group_of.append(len(groups) if starts else None)
            if starts:
                first = groups[-1].stop if groups else 0
                cells = make_cell_group(clean, range(self.rows), starts, self.ends, self.reads, first)
                groups.append(cells)
                cuts.append(Cut(edges[list(cells.rows)], self.batch.mode, heads))
        return Layout(clean, base, tuple(groups), tuple(group_of), cuts=tuple(cuts))


def _first_cut(edges: Bool[Tensor, "example query key"], ends: Sequence[int]) -> dict[int, int]:
    """Return row -> first position with a cut edge, for rows that have one."""
    cut = [queries[:end] for queries, end in zip(edges.any(-1).tolist(), ends, strict=True)]
    return {i: queries.index(True) for i, queries in enumerate(cut) if True in queries}


class SwapPlan:
    """Plan of a batch of swaps; ``n_heads``: number of heads of the site ``z``, else 1.

    Attributes:
        shared: Token ids that all clean rows begin with, before the first patched, donor or read position.
        rows: Number of distinct clean rows, donors included.
    """

    def __init__(self, batch: SwapBatch, site: SiteLike, n_heads: int = 1) -> None:
        self.n_heads, self.is_z = n_heads, str(site) == "z"
        ids = token_rows(batch.tokens)
        self.batch, self.donors = batch, token_rows(batch.donors) if batch.donors is not None else []
        self.reads = list(zip(batch.reader.row.tolist(), batch.reader.position.tolist(), strict=True))
        self.ends = _ends(len(ids), self.reads)
        self.patches = [_list_patches(swap.slots, swap.source, self.ends) for swap in batch.swaps]
        self.cones = [self._cones(ids, *each, site) for each in zip(batch.swaps, self.patches, strict=True)]
        need: dict[tuple[int, ...], int] = {}
        for i, row in enumerate(ids):
            need[row] = max(need.get(row, 0), self.ends[i])
        for patches in self.patches:
            for i, _, source, _ in patches:
                if source is not None:
                    need[self.donors[i]] = max(need.get(self.donors[i], 0), source + 1)
        self.need, self.row_index = list(need.items()), {row: n for n, row in enumerate(need)}
        self.clean_row = [self.row_index[row] for row in ids]
        touched = [p for each in self.patches for _, target, source, _ in each for p in (target, source) if p is not None]
        n_shared = common_prefix(list(need), min([*touched, *(p for _, p in self.reads)]))
        self.shared, self.rows = ids[0][:n_shared], len(need)

    def _cones(
        self, ids: Sequence[tuple[int, ...]], swap: AnchorSwap, patches: Sequence[tuple[int, int, int | None, int]], site: SiteLike
    ) -> dict[int, tuple[int, bool]]:
        """Return patched row -> (first computed position, whether patched positions before it are read from the donor's row)."""
        changed: defaultdict[int, list[tuple[int, int | None]]] = defaultdict(list)
        for i, target, source, _ in patches:
            changed[i].append((target, None if i in swap.directions else source))
        reads: defaultdict[int, list[int]] = defaultdict(list)
        for i, position in self.reads:
            reads[i].append(position)
        out: dict[int, tuple[int, bool]] = {}
        for i, pairs in changed.items():
            start = cone_start(ids[i], self.donors[i] if self.donors else (), pairs, reads[i], site)
            out[i] = start, start > min(target for target, _ in pairs)
        return out

    def layout(self, prefix: int) -> Layout:
        """Return the index tensors of the batch behind a prefix of ``prefix`` tokens."""
        clean = CleanRows.make(self.need, prefix)
        base = ReadIndex.make([(r, clean.token(self.clean_row[i], p)) for r, (i, p) in enumerate(self.reads)])
        groups: list[CellGroup] = []
        group_of: list[int | None] = []
        puts: list[tuple[int, int]] = []
        heads: list[int] = []
        streams: list[Tensor] = []
        streams_at: list[int] = []
        moved: list[tuple[int, int]] = []
        directions: list[Tensor] = []
        for swap, patches, cones in zip(self.batch.swaps, self.patches, self.cones, strict=True):
            starts = {i: start for i, (start, _) in cones.items()}
            group_of.append(len(groups) if starts else None)
            if not starts:
                continue
            before = {i: self.row_index[self.donors[i]] for i, (_, theirs) in cones.items() if theirs}
            first = groups[-1].stop if groups else 0
            cells = make_cell_group(clean, self.clean_row, starts, self.ends, self.reads, first, before)
            groups.append(cells)
            offset = dict(zip(cells.rows, cells.offsets, strict=True))
            for i, target, source, slot in patches:
                if target < starts[i]:
                    continue
                token, cell = -1, cells.first + offset[i] + target - starts[i]
                if self.is_z:
                    assert swap.streams is not None
                    for head in range(self.n_heads) if swap.heads is None else swap.heads:
                        streams.append(swap.streams[:, i, slot].unflatten(-1, (self.n_heads, -1))[:, head])
                        streams_at.append(len(puts))
                        heads.append(head)
                        puts.append((cell, token))
                    continue
                if source is not None:
                    token = clean.token(self.row_index[self.donors[i]], source)
                else:
                    assert swap.streams is not None  # a swap has donors or streams
                    streams_at.append(len(puts))
                    streams.append(swap.streams[:, i, slot])
                if i in swap.directions:
                    moved.append((clean.token(self.clean_row[i], target), len(puts)))
                    directions.append(swap.directions[i][slot])
                puts.append((cell, token))
        cells, tokens = torch.tensor(puts, dtype=torch.long).reshape(-1, 2).T
        given, along = torch.stack(streams, 1) if streams else None, torch.stack(directions) if directions else None
        bases = torch.tensor(moved, dtype=torch.long).reshape(-1, 2).T
        at_heads = torch.tensor(heads, dtype=torch.long) if heads else None
        index = PatchIndex(cells, tokens, given, torch.tensor(streams_at, dtype=torch.long), along, *bases, heads=at_heads)
        return Layout(clean, base, tuple(groups), tuple(group_of), patches=index)


def cone_start(
    ids: Sequence[int], donor: Sequence[int], pairs: Sequence[tuple[int, int | None]], reads: Sequence[int], site: SiteLike
) -> int:
    """Return the first position of a patched row that has to be computed; ``pairs``: (patched, donor) positions.

    The start of a patched row can equal the donor's clean run, whose streams are already computed. Both are equal as long as
    each position is patched from the same donor position or lies in the common prefix of both rows.
    """
    source = dict(pairs)
    first = min(source)
    # Only a patched residual stream equals the donor's; attention and MLP outputs are added to the base's stream.
    if str(site) not in ("resid_pre", "resid_mid", "resid_post"):
        return first
    alike = common_prefix([tuple(ids), tuple(donor)], min(len(ids), len(donor)))
    stop = min(max(source) + 1, *(position for position in reads if position >= first))
    start = at = first
    while first <= alike and at < stop and (source[at] == at if at in source else at < alike):
        at += 1
        if at - 1 in source:  # the donor's clean row is computed up to the last position that is patched from it
            start = at
    return start


def _ends(rows: int, reads: Sequence[tuple[int, int]]) -> list[int]:
    """Return one past the last read position of each row; 0 if no position is read."""
    ends = [0] * rows
    for i, position in reads:
        ends[i] = max(ends[i], position + 1)
    return ends


def _list_patches(slots: Slots, source: Slots | None, ends: Sequence[int]) -> list[tuple[int, int, int | None, int]]:
    """Return (row, target position, donor position or None, slot) of each patch before the row's last read position."""
    row, slot = torch.nonzero(slots.mask, as_tuple=True)
    target = slots.positions[row, slot].tolist()
    donor = [None] * len(target) if source is None else source.positions[source.mask].tolist()
    patches = zip(row.tolist(), target, donor, slot.tolist(), strict=True)
    return [(i, t, s, n) for i, t, s, n in patches if t < ends[i]]
