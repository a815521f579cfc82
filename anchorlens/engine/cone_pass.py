"""One pass of the cone engine through the layers: clean rows and changed lanes
(:mod:`anchorlens.engine.cone_layout`).

A :class:`Pass` runs one block at a time, so several passes can share a layer: streamed weights are
read once for all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.constants import SITE_ORDER
from anchorlens.engine.cone_attention import (
    CleanActivations,
    CleanKeys,
    DeviceIndex,
    GroupAttention,
    PrefixKeys,
    wide,
)
from anchorlens.engine.cone_layout import Layout, Prefix
from anchorlens.engine.evidence import WrittenEvidence
from anchorlens.engine.geometry import Lanes
from anchorlens.engine.patches import OnProgress, PatchIndex, no_progress, turn
from anchorlens.models.adapter import Adapter
from anchorlens.models.blocks import Block
from anchorlens.models.devices import on

Tokens = Float[Tensor, "token d_model"]
# Streams whose number of tokens changes within a function.
Table = Float[Tensor, "_ d_model"]
# Sites of a block after its attention, in order of computation.
_AFTER_ATTENTION = ("z", *SITE_ORDER[1:])


@dataclass(frozen=True, kw_only=True)
class _LastTables:
    """Index tables after the last attention.

    Attributes:
        groups: Attention groups whose queries are the tokens that are read.
        tokens: Tokens that are read, and the sources of their patches.
        index: Index tensors of these tokens.
    """

    groups: Sequence[GroupAttention]
    tokens: Int[Tensor, "token"]
    index: DeviceIndex


class Pass:
    """Pass of one batch through the layers.

    Args:
        adapter: The model.
        layout: Tokens that are computed.
        lanes: Layers that each lane changes.
        prefix: Keys and values of the tokens that all rows begin with; None if they are computed.
        site: Patched site; empty for knockouts.
        read_sites: Layer -> site whose states are read.
        keep: Whether to collect keys and values of the clean rows instead of reading states.
        follows: Pass with the same clean rows, which runs each block first; their activations are
            taken from it. If None, all are computed.

    Attributes:
        top: Last layer to run.
        states: Layer -> states that were read, [cell read d_model]: the clean cell, then one cell
            for each cell group and lane.
        new_prefix: Keys and values that are collected; None without ``keep``.
        clean: Activations of the clean rows in the block that ran last, for passes that follow.
    """

    def __init__(
        self,
        adapter: Adapter,
        layout: Layout,
        lanes: Lanes,
        prefix: Prefix | None,
        *,
        site: str = "",
        read_sites: Mapping[int, str],
        keep: bool = False,
        follows: "Pass | None" = None,
    ) -> None:
        self.adapter = adapter
        self.prefix = prefix
        self.site = site
        self.read_sites = read_sites
        self.follows = follows
        self.is_followed = False
        self.clean: CleanActivations | None = None
        if follows is not None:
            follows.is_followed = True
        # No lanes are needed if no row is changed.
        self.lanes = lanes if layout.cell_groups else Lanes.of([])
        self.top = adapter.n_layers - 1 if keep else max(read_sites)
        self.n_lanes = 0
        self.states: dict[int, Float[Tensor, "cell read d_model"]] = {}
        rows = layout.clean_rows
        self.new_prefix = Prefix((*rows.prefix, *rows.ids.tolist()), [], []) if keep else None
        self.last_position = max([int(rows.positions.max()), *layout.cell_positions])
        self._written = WrittenEvidence(adapter.n_layers)
        self.index = DeviceIndex.of(layout, adapter.device)
        # Index tables of all blocks are made before the first one, so that no block waits for them.
        self._prepare(self.index.groups)
        self._last: _LastTables | None = None
        if read_sites.get(self.top, "resid_pre") != "resid_pre":
            before = self.top - 1 if site in _AFTER_ATTENTION else self.top
            self._last = self._make_last_tables(self.lanes.count_lanes(before))
        x = adapter.embed(on(adapter.device, rows.ids), self.index.positions)
        self.x: Table = self._append_lanes(-1, x, len(x))

    def _prepare(self, groups: Sequence[GroupAttention]) -> None:
        for group in groups:
            group.prepare(self.adapter.windows)

    def _make_last_tables(self, n_lanes: int) -> "_LastTables":
        """Make the index tables after the last attention, behind which ``n_lanes`` lanes run."""
        device = self.index.device
        layout, clean_tokens, cell_tokens = self.layout.after_attention()
        groups = self.index.groups_of(layout)
        self._prepare(groups)
        starts = self.index.n_clean + self.index.n_cell * torch.arange(n_lanes)
        lane_tokens = (starts[:, None] + cell_tokens).flatten()
        return _LastTables(
            groups=groups,
            tokens=on(device, torch.cat([clean_tokens, lane_tokens])),
            index=DeviceIndex.of(layout, device),
        )

    @property
    def layout(self) -> Layout:
        """Layout of the tokens that are computed; after the last attention, of those that are
        read.
        """
        return self.index.layout

    @torch.no_grad()
    def step(self, block: Block, on_progress: OnProgress = no_progress) -> None:
        """Run the next block in order of layers, and keep the streams after it and the states that
        are read; calls ``on_progress(0)`` within the block, so that a caller can check memory.
        """
        layer = block.layer
        if layer > self.top:
            return
        block.reserve(self.last_position)
        if block.device != self.index.device:
            self.index = DeviceIndex.of(self.layout, block.device)
            self.x = self.x.to(block.device)
        x = self.x
        read_site = self.read_sites.get(layer)
        if self.site == "resid_pre":
            self._patch(layer, x)
        if read_site == "resid_pre":
            self.states[layer] = self._gather_reads(x[self._read_tokens(self.n_lanes)])
            if layer == self.top:
                return

        wanted = "resid_post"
        if layer == self.top and read_site is not None:
            # Behind the last keys and values, only the tokens that are read matter.
            wanted = read_site
            last = self._last
            if last is None or last.index.device != self.index.device:
                last = self._make_last_tables(self.n_lanes)
            z = self._attention(block, x, on_progress, last.groups)
            x = x[last.tokens]
            self.index = last.index
        else:
            z = self._attention(block, x, on_progress, self.index.groups)
        if z is None:
            return
        on_progress(0.0)
        if layer < self.top and read_site not in (None, "resid_pre", "resid_post"):
            tokens = self._read_tokens(self.n_lanes)
            self.states[layer] = self._gather_reads(
                self._stream_at(block, x[tokens], z[tokens], read_site)
            )
        n = len(x)
        n_old = self.n_lanes
        if wanted == "resid_post":
            out = self._finish(block, x, z)
        else:
            out = self._stream_at(block, x, z, wanted)
        out = self._append_lanes(layer, out, n)
        self._patch_after_attention(block, x, z, out, wanted, n_old=n_old)
        if wanted == read_site or (read_site == "resid_post" and layer < self.top):
            self.states[layer] = self._gather_reads(out[self._read_tokens(self.n_lanes)])
        self.x = out

    def _finish(self, block: Block, x: Tokens, z: Float[Tensor, "token head d_head"]) -> Table:
        """Return the streams after a block, with room behind them for the lanes that start next."""
        n = len(x)
        own = self._first_own(block.layer)
        out = x.new_empty(n + self._room(block.layer), x.shape[1])
        if self.follows is not None:
            out[:own] = self.follows.x[:own]
        if own < n:
            block.finish(x[own:], z[own:], out[own:n])
        return out

    def _first_own(self, layer: int) -> int:
        """Return the first token that this pass computes in a block; those before it are of the
        pass that it follows.
        """
        # In the last block, the passes may need different clean tokens.
        return 0 if self.follows is None or layer == self.top else self.index.n_clean

    @staticmethod
    def _stream_at(
        block: Block,
        x: Tokens,
        z: Float[Tensor, "token head d_head"],
        wanted: str,
        site: str = "",
        values: Tokens | None = None,
    ) -> Tokens:
        """Return the streams at a site after attention, with those at ``site`` replaced by
        ``values``.

        ``x``: before the block.
        """
        if site == "resid_post":
            assert values is not None
            return values
        if site == "resid_mid" and values is not None:
            mid = values
        else:
            attn = values if site == "attn_out" and values is not None else block.attn_out(z)
            if wanted == "attn_out":
                return attn
            mid = x + attn
        if wanted == "resid_mid":
            return mid
        mlp = values if site == "mlp_out" else block.mlp_out(x if block.parallel else mid)
        if mlp is None:
            return mid
        return mlp if wanted == "mlp_out" else mid + mlp

    def _room(self, layer: int) -> int:
        """Return the number of tokens of the lanes that are appended after block ``layer``.

        Lanes with patches after attention are appended where they start, others after the block
        before; -1 is the embedding.
        """
        starting = layer if self.site in _AFTER_ATTENTION else min(layer + 1, self.top)
        return (self.lanes.count_lanes(starting) - self.n_lanes) * self.index.n_cell

    def _append_lanes(self, layer: int, table: Table, n: int) -> Table:
        """Append lanes to the first ``n`` tokens, which may have room behind them: copies of the
        clean rows or the first lane.
        """
        room = self._room(layer)
        if not room:
            return table
        index = self.index
        if len(table) == n:
            table = torch.cat([table, table.new_empty(room, *table.shape[1:])])
        if self.lanes.forked and self.n_lanes > 0:
            lane = table[index.n_clean : index.n_clean + index.n_cell]
        else:
            lane = table[index.copied_from]
        table[n:].view(-1, *lane.shape)[:] = lane
        self.n_lanes += room // index.n_cell
        return table

    def _patch(self, layer: int, x: Tokens) -> None:
        """Replace the streams of patched tokens before a block, in the lanes whose window contains
        it.
        """
        patches = self.index.patches
        ranges = self.lanes.active_ranges(layer)
        if patches is None or not ranges:
            return
        cells = x[self.index.n_clean :].view(self.n_lanes, self.index.n_cell, -1)
        values = self._patch_values(patches, layer, lambda tokens: x[tokens])
        for first, stop in ranges:
            cells[first:stop, patches.lane_token] = values
            self._written.add(self.index, layer, first, cells[first:stop, patches.lane_token])

    def _patch_after_attention(
        self,
        block: Block,
        x: Table,
        z: Float[Tensor, "_ head d_head"],
        out: Table,
        wanted: str,
        *,
        n_old: int,
    ) -> None:
        """Replace the streams of patched tokens in the lanes whose window contains a block.

        ``out``: streams at site ``wanted``. ``x``, ``z``: streams before the block, and heads'
        output, of the clean rows and of the first ``n_old`` lanes. The other lanes start here, so
        that their tokens that are not patched equal those of the clean rows.
        """
        site = self.site
        index = self.index
        patches = index.patches
        is_after_attention = site in _AFTER_ATTENTION[: _AFTER_ATTENTION.index(wanted) + 1]
        if patches is None or not len(patches.tokens) or not is_after_attention:
            return

        def clean_values(tokens: Int[Tensor, "token"]) -> Tokens:
            if site == wanted:
                return out[tokens]
            return self._stream_at(block, x[tokens], z[tokens], site)

        for first, stop in self.lanes.active_ranges(block.layer):
            lanes = on(index.device, torch.arange(first, stop))[:, None]
            tokens = index.n_clean + lanes * index.n_cell + patches.tokens
            own = torch.where(lanes < n_old, tokens, index.copied_from[patches.tokens]).flatten()
            streams = x[own]
            heads = z[own]
            values = None
            if site == "z":
                table = heads.view(*tokens.shape, *z.shape[1:])
                clean = table.clone() if patches.is_change else None
                self._patch_heads(patches, block.layer, table)
                written = patches.written_heads(block.layer, table, clean)
            else:
                values = self._patch_values(patches, block.layer, clean_values)
                values = values.repeat(len(lanes), 1)
                written = values.view(len(lanes), -1, values.shape[-1])
            self._written.add(index, block.layer, first, written)
            out[tokens.flatten()] = self._stream_at(block, streams, heads, wanted, site, values)

    @staticmethod
    def _patch_heads(
        patches: PatchIndex, layer: int, table: Float[Tensor, "lane token head d_head"]
    ) -> None:
        """Replace the patched heads of z in place, or add their changes."""
        assert patches.streams is not None  # patches of z have them
        given = patches.streams[layer].to(table.dtype)
        at = (slice(None), patches.entry, patches.heads)
        table[at] = table[at] + given if patches.is_change else given

    def evidence(self) -> Float[Tensor, "cell_group lane"]:
        """Return the evidence of the patches of each cell group in each lane
        (:mod:`anchorlens.engine.evidence`), on the CPU.
        """
        return self._written.table(len(self.layout.cell_groups), len(self.lanes.start))

    def _patch_values(
        self,
        patches: PatchIndex,
        layer: int,
        at: Callable[[Int[Tensor, "token"]], Tokens],
    ) -> Tokens:
        """Return the streams that replace those of patched tokens.

        ``at``: clean tokens -> their streams at the site.
        """
        given = patches.streams
        directions = patches.directions
        if given is not None and given.shape[1] == len(patches.lane_token) and directions is None:
            return given[layer].to(self.x.dtype)
        values = at(patches.clean_token)
        if given is not None:
            values[patches.streams_at] = given[layer].to(values.dtype)
        if directions is not None:
            turned = turn(at(patches.turned), values[patches.turned_at], directions[layer])
            values[patches.turned_at] = turned.to(values.dtype)
        return values

    def _read_tokens(self, n_lanes: int) -> Int[Tensor, "token"]:
        """Return the flat tokens that are read: of the clean rows, then of ``n_lanes`` lanes."""
        index = self.index
        base = torch.tensor(self.layout.reads.tokens)
        starts = index.n_clean + index.n_cell * torch.arange(n_lanes)[:, None]
        in_lanes = (starts + self.layout.read_cell_tokens).reshape(-1)
        return on(index.device, torch.cat([base, in_lanes]))

    def cell_of(self, group: int | None, lane: int) -> int:
        """Return the cell of a cell group in a lane: cell 0, the clean one, for no group (the
        change of no row) and for lane -1.
        """
        if group is None or lane < 0:
            return 0
        return 1 + group * len(self.lanes.start) + lane

    def _gather_reads(self, streams: Tokens) -> Float[Tensor, "cell read d_model"]:
        """Return the states of all reads, clean cell first; a read that a change cannot reach has
        its clean state.

        ``streams``: those of :meth:`_read_tokens`.
        """
        device = self.index.device
        reads = self.layout.reads
        n_base = len(reads.tokens)
        n_lanes = len(self.lanes.start)
        present = self.n_lanes
        clean = streams[:n_base][on(device, reads.token_of)]
        n_cells = 1 + len(self.layout.cell_groups) * n_lanes
        out = repeat(clean, "read d_model -> cell read d_model", cell=n_cells).clone()
        width = sum(len(cells.reads.tokens) for cells in self.layout.cell_groups)
        lanes = streams[n_base:].reshape(present, width, streams.shape[-1])
        at = 0
        for i, cells in enumerate(self.layout.cell_groups):
            states = lanes[:, at : at + len(cells.reads.tokens)]
            # Lanes that have not started yet keep the clean states.
            start = self.cell_of(i, 0)
            found = states[:, on(device, cells.reads.token_of)]
            out[start : start + present, on(device, cells.reads.number_of)] = found
            at += len(cells.reads.tokens)
        return out

    def _attention(
        self, block: Block, x: Table, on_progress: OnProgress, groups: Sequence[GroupAttention]
    ) -> Float[Tensor, "_ head d_head"] | None:
        """Compute the heads' output z of the queries; None in the last block of a pass that
        computes a prefix.
        """
        n_followed = self._first_own(block.layer)
        clean = None if self.follows is None or not n_followed else self.follows.clean
        if clean is not None and not self.n_lanes:
            return clean.z
        q, k, v = block.project(x[n_followed:])
        n_clean = self.index.n_clean - n_followed
        n_clean_found = groups[0].n_found
        n_lane_found = sum(group.n_found for group in groups[1:])
        out = q.new_empty(n_clean_found + self.n_lanes * n_lane_found, *q.shape[1:])
        prefix = self._prefix_at(block.layer)
        if clean is None:
            clean = self._attend_clean(
                block, q[:n_clean], k[:n_clean], v[:n_clean], prefix, groups[0]
            )
        if clean is None:
            return None
        base = (clean.keys, clean.values)
        out[:n_clean_found] = clean.z
        del clean
        if self.is_followed:
            # Copies, because views would keep the tables of all tokens in memory.
            z = out[:n_clean_found].clone()
            self.clean = CleanActivations(base[0].clone(), base[1].clone(), z)
        if not self.n_lanes:
            return out
        angles = block.angles(self.index.cell_positions)
        by_lane = (self.n_lanes, self.index.n_cell)
        q = wide(block.rotate_(q[n_clean:].unflatten(0, by_lane), angles)).div_(block.scale)
        k = wide(block.rotate_(k[n_clean:].unflatten(0, by_lane), angles))
        v = wide(v[n_clean:].unflatten(0, by_lane))
        in_lanes = out[n_clean_found:].view(self.n_lanes, n_lane_found, *q.shape[2:])
        cut_lanes = self.lanes.active_ranges(block.layer) if self.layout.cuts else ()
        at = 0
        for group in groups[1:]:
            in_lanes[:, at : at + group.n_found] = group.attend(
                block,
                q[:, group.tokens],
                k[:, group.tokens],
                v[:, group.tokens],
                base=base,
                prefix=prefix,
                cut_lanes=cut_lanes,
            )
            at += group.n_found
            on_progress(0.0)
        return out

    def _attend_clean(
        self,
        block: Block,
        q: Float[Tensor, "token head d_head"],
        k: CleanKeys,
        v: CleanKeys,
        prefix: tuple[PrefixKeys, PrefixKeys] | None,
        group: GroupAttention,
    ) -> CleanActivations | None:
        """Return rotated keys, values and z of the clean rows; None in the last block of a pass
        that computes a prefix.
        """
        angles = block.angles(self.index.positions)
        q = block.rotate_(q, angles)
        k = block.rotate_(k, angles)
        if self.new_prefix is not None:
            n = len(self.layout.clean_rows.prefix)
            self.new_prefix.append(block.layer, k, v, before=self.prefix, length=n)
            if block.layer == self.top:
                return None
        q = wide(q).div_(block.scale)
        base = (wide(k), wide(v))
        found = group.attend(block, q[None], base[0][None], base[1][None], base=base, prefix=prefix)
        return CleanActivations(*base, found[0])

    def _prefix_at(self, layer: int) -> tuple[PrefixKeys, PrefixKeys] | None:
        """Return keys and values of the prefix in one layer; None without a prefix."""
        n = len(self.layout.clean_rows.prefix)
        if not n:
            return None
        assert self.prefix is not None  # a layout behind a prefix comes with it
        return self.prefix.at(layer, n)
