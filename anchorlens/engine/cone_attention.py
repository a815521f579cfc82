"""Attention of clean rows and lanes in one pass of the cone engine
(:mod:`anchorlens.engine.cone_pass`), and the index tensors of a layout on the device of a block.

Blocks may lie on several devices. A pass makes a new index where the next block is on another
device, or where the last block drops tokens that nothing reads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.cone_layout import AttentionGroup, Cut, Layout, joint_attention
from anchorlens.engine.patches import PatchIndex
from anchorlens.models.blocks import Block
from anchorlens.models.devices import half_on_cpu, on

LaneHeads = Float[Tensor, "lane token head d_head"]
LaneKeys = Float[Tensor, "lane token kv_head d_head"]
CleanKeys = Float[Tensor, "clean_token kv_head d_head"]
PrefixKeys = Float[Tensor, "kv_head pos d_head"]


class CleanActivations(NamedTuple):
    """Activations of the clean rows in one block.

    Attributes:
        keys: Rotated keys.
        values: Values of the same tokens.
        z: Outputs of the heads at the queries.
    """

    keys: CleanKeys
    values: CleanKeys
    z: Float[Tensor, "found head d_head"]


class GroupAttention:
    """Attention of one group, with its index tensors on a device.

    ``tokens``: tokens of a lane whose keys and values the group has. ``cut``: attention edges that
    are cut in its rows.
    """

    def __init__(
        self, group: AttentionGroup, device: torch.device, tokens: slice, cut: Cut | None = None
    ) -> None:
        self.group = group
        self.device = device
        self.tokens = tokens
        self.cut = cut
        self.n_rows, self.n_queries = group.queries.shape
        self.n_base = group.base.shape[1]
        self.n_found = len(group.query_slots)
        # None: all tokens in their order, as where all rows have the same length.
        self.keys = self._index(group.keys, group.keys.numel())
        self.queries = self._index(group.queries, group.keys.numel())
        self.query_slots = self._index(group.query_slots, group.queries.numel())
        self.base = on(device, group.base.reshape(-1))
        self._exclusion: dict[int | None, Tensor | None] = {}
        # Cut edges and heads; empty without a cut.
        self.edges = torch.empty(0)
        self.heads = torch.empty(0)
        if cut is not None:
            rows = torch.arange(self.n_rows)[:, None, None]
            # Unused slots may lie behind the row.
            keys = group.key_positions.clamp(max=cut.edges.shape[-1] - 1)
            edges = cut.edges[rows, group.query_positions[:, :, None], keys[:, None, :]]
            edges = edges & group.is_key[:, None, :]
            self.edges = on(device, rearrange(edges, "row query key -> 1 row 1 query 1 key"))
            self.heads = on(device, cut.heads)

    def _index(self, tokens: Int[Tensor, "*slot"], n: int) -> Int[Tensor, "_"] | None:
        """Return an index on the device; None if it selects all of ``n`` tokens in order."""
        flat = tokens.reshape(-1)
        return None if torch.equal(flat, torch.arange(n)) else on(self.device, flat)

    @cached_property
    def distance(self) -> Int[Tensor, "1 row 1 query 1 key"]:
        """Return the position of each key minus that of each query, at most 0 (for ALiBi)."""
        steps = self.group.key_positions[:, None, :] - self.group.query_positions[:, :, None]
        return on(
            self.device, rearrange(steps.clamp(max=0), "row query key -> 1 row 1 query 1 key")
        )

    def prepare(self, windows: Iterable[int | None]) -> None:
        """Make the masks of windows before the first block runs."""
        for window in windows:
            self.exclusion_mask(window)

    def exclusion_mask(self, window: int | None) -> Bool[Tensor, "1 row 1 query 1 key"] | None:
        """Return True where a query does not attend to a key; None if it is False everywhere."""
        if window not in self._exclusion:
            mask = self.group.attention_mask(window)
            self._exclusion[window] = (
                None
                if mask is None
                else on(self.device, rearrange(~mask, "row query key -> 1 row 1 query 1 key"))
            )
        return self._exclusion[window]

    def attend(
        self,
        block: Block,
        q: LaneHeads,
        k: LaneKeys,
        v: LaneKeys,
        *,
        base: tuple[CleanKeys, CleanKeys],
        prefix: tuple[PrefixKeys, PrefixKeys] | None,
        cut_lanes: Sequence[tuple[int, int]] = (),
    ) -> Float[Tensor, "lane found head d_head"]:
        """Compute the attention to the prefix, to the clean row before each row's first token, and
        to the group's own tokens.

        Keys that all lanes of a row share are multiplied with their queries in one product, so no
        key is copied per lane. ``base``, ``prefix``: keys and values of the clean rows and of the
        prefix; ``cut_lanes``: ranges of lanes whose edges are cut in this block.
        """
        kv = k.shape[-2]
        rep = q.shape[-2] // kv
        queries = rearrange(
            _take(q, self.queries),
            "lane (row query) (kv rep) d_head -> kv row lane (query rep) d_head",
            row=self.n_rows,
            query=self.n_queries,
            kv=kv,
            rep=rep,
        )
        own_k = rearrange(
            _take(k, self.keys),
            "lane (row key) kv d_head -> kv row lane d_head key",
            row=self.n_rows,
        )
        own_v = rearrange(
            _take(v, self.keys),
            "lane (row key) kv d_head -> kv row lane key d_head",
            row=self.n_rows,
        )
        scores, shared = self._score_common_keys(queries, base, prefix)
        scores.append(queries @ own_k)
        weights = self._weights(block, scores, kv, rep, cut_lanes)
        out = weights[-1] @ own_v
        for weight, values in zip(weights, shared, strict=False):
            out += self._sum_common_values(weight, values)
        out = rearrange(
            out, "kv row lane (query rep) d_head -> lane (row query) (kv rep) d_head", rep=rep
        )
        return _take(out, self.query_slots)

    def _score_common_keys(
        self,
        queries: Float[Tensor, "kv row lane query d_head"],
        base: tuple[CleanKeys, CleanKeys],
        prefix: tuple[PrefixKeys, PrefixKeys] | None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return scores of the keys that all lanes share, [kv row lane query key], and their
        values: [kv key d_head] of the prefix, then [kv row key d_head] of the clean rows.
        """
        n_lanes = queries.shape[2]
        scores: list[Tensor] = []
        shared: list[Tensor] = []
        flat = rearrange(queries, "kv row lane query d_head -> kv row (lane query) d_head")
        if prefix is not None:
            keys = wide(prefix[0])
            all_queries = rearrange(flat, "kv row query d_head -> kv (row query) d_head")
            of_prefix = rearrange(
                all_queries @ keys.mT,
                "kv (row lane query) key -> kv row lane query key",
                row=self.n_rows,
                lane=n_lanes,
            )
            scores.append(of_prefix)
            shared.append(wide(prefix[1]))
        if self.n_base:
            between = rearrange(
                base[0][self.base], "(row key) kv d_head -> kv row d_head key", row=self.n_rows
            )
            of_base = rearrange(
                flat @ between, "kv row (lane query) key -> kv row lane query key", lane=n_lanes
            )
            values = rearrange(
                base[1][self.base], "(row key) kv d_head -> kv row key d_head", row=self.n_rows
            )
            scores.append(of_base)
            shared.append(values)
        return scores, shared

    def _sum_common_values(
        self, weight: Float[Tensor, "kv row lane query key"], values: Float[Tensor, "..."]
    ) -> Float[Tensor, "kv row lane query d_head"]:
        """Return the weighted sum of values that all lanes share."""
        n_lanes = weight.shape[2]
        together = rearrange(weight, "kv row lane query key -> kv row (lane query) key")
        if values.ndim == 4:
            return rearrange(
                together @ values, "kv row (lane query) d -> kv row lane query d", lane=n_lanes
            )
        part = rearrange(together, "kv row query key -> kv (row query) key") @ values
        return rearrange(
            part, "kv (row lane query) d -> kv row lane query d", row=self.n_rows, lane=n_lanes
        )

    def _weights(
        self,
        block: Block,
        scores: list[Tensor],
        kv: int,
        rep: int,
        cut_lanes: Sequence[tuple[int, int]],
    ) -> tuple[Tensor, ...]:
        """Compute attention weights by a softmax over all keys, split into the parts of ``scores``;
        empties ``scores``.
        """
        sizes = [score.shape[-1] for score in scores]
        table = torch.cat(scores, -1) if len(scores) > 1 else scores[0]
        scores.clear()  # frees the parts
        if block.soft_cap is not None:
            table = block.soft_cap * torch.tanh(table / block.soft_cap)
        by_query = rearrange(
            table, "kv row lane (query rep) key -> kv row lane query rep key", rep=rep
        )
        if block.slopes is not None:
            slopes = rearrange(block.slopes, "(kv rep) -> kv 1 1 1 rep 1", kv=kv)
            by_query += slopes * self.distance
        excluded = self.exclusion_mask(block.window)
        if excluded is not None:
            by_query.masked_fill_(excluded, -torch.inf)
        if self.cut is not None and self.cut.mode == "mask":
            self._cut(by_query, kv, -torch.inf, cut_lanes)
        if block.sinks is None:
            weights = table.softmax(-1)
        else:  # a sink is a key without a value
            sinks = rearrange(block.sinks, "(kv rep) -> kv 1 1 1 rep 1", kv=kv).expand(
                *by_query.shape[:-1], 1
            )
            weights = torch.cat([by_query, sinks.to(table.dtype)], -1).softmax(-1)[..., :-1]
            weights = rearrange(weights, "kv row lane query rep key -> kv row lane (query rep) key")
        if self.cut is not None and self.cut.mode == "zero":
            by_query = rearrange(
                weights, "kv row lane (query rep) key -> kv row lane query rep key", rep=rep
            )
            self._cut(by_query, kv, 0.0, cut_lanes)
        return weights.split(sizes, -1)

    def _cut(
        self,
        table: Float[Tensor, "kv row lane query rep key"],
        kv: int,
        value: float,
        cut_lanes: Sequence[tuple[int, int]],
    ) -> None:
        """Set the cut edges of the chosen heads to ``value`` in place."""
        heads = rearrange(self.heads, "(kv rep) -> kv 1 1 1 rep 1", kv=kv)
        for first, stop in cut_lanes:
            table[:, :, first:stop].masked_fill_(self.edges & heads, value)


def _take(
    table: Float[Tensor, "lane token head d_head"], index: Int[Tensor, "_"] | None
) -> Float[Tensor, "lane _ head d_head"]:
    return table if index is None else table[:, index]


def wide(heads: Float[Tensor, "*token head d_head"]) -> Float[Tensor, "*token head d_head"]:
    """Convert queries, keys or values to float32 if they are in half precision on a CPU.

    In half precision oneDNN makes a kernel for each of their many small product sizes, which takes
    longer than the product.
    """
    return heads.float() if half_on_cpu(heads.device, heads.dtype) else heads


@dataclass(frozen=True, kw_only=True)
class DeviceIndex:
    """Index tensors of a layout on a device.

    Attributes:
        layout: Index tensors on the CPU.
        device: Device of the block that runs next.
        n_clean: Number of clean tokens.
        n_cell: Number of tokens of one lane.
        positions: Positions of the clean tokens.
        cell_positions: Positions of the tokens of a lane.
        copied_from: Clean token that each token of a lane is copied from when the lane starts.
        patches: Patches; None for knockouts and clean passes.
    """

    layout: Layout
    device: torch.device
    n_clean: int
    n_cell: int
    positions: Int[Tensor, "clean_token"]
    cell_positions: Int[Tensor, "cell_token"]
    copied_from: Int[Tensor, "cell_token"]
    patches: PatchIndex | None

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> "DeviceIndex":
        """Move the index tensors of a layout to a device."""
        copied_from: list[int] = []
        for cells in layout.cell_groups:
            copied_from += cells.copied_from
        patches = layout.patches
        return cls(
            layout=layout,
            device=device,
            n_clean=len(layout.clean_rows.ids),
            n_cell=layout.n_cell_tokens,
            positions=on(device, layout.clean_rows.positions),
            cell_positions=on(device, torch.tensor(layout.cell_positions, dtype=torch.long)),
            copied_from=on(device, torch.tensor(copied_from, dtype=torch.long)),
            patches=None if patches is None else patches.to(device),
        )

    @cached_property
    def groups(self) -> Sequence[GroupAttention]:
        """Attention groups of the layout, clean rows first."""
        return self.groups_of(self.layout)

    def groups_of(self, queries: Layout) -> list[GroupAttention]:
        """Return attention groups, clean rows first, whose queries are the tokens of ``queries``;
        keys and values are those of all tokens of this layout.
        """
        clean = slice(0, self.n_clean)
        groups = [GroupAttention(queries.clean_rows.attention, self.device, clean)]
        for numbers in queries.attention_ranges(joint_attention(self.device)):
            first = self.layout.cell_groups[numbers.start].first
            stop = self.layout.cell_groups[numbers[-1]].stop
            cut = queries.cuts[numbers.start] if queries.cuts else None
            own = queries.attention(numbers)
            groups.append(GroupAttention(own, self.device, slice(first, stop), cut))
        return groups
