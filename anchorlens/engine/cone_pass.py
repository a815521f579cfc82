"""One pass of the cone engine through the layers: clean rows and changed lanes (:mod:`anchorlens.engine.cone_layout`).

A :class:`Pass` runs one block at a time, so several passes can share a layer: streamed weights are read once for all of them.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.cone_attention import GroupAttention, on, wide
from anchorlens.engine.cone_layout import Lanes, Layout, Prefix
from anchorlens.engine.landing import code, project
from anchorlens.engine.patches import OnProgress, no_progress
from anchorlens.models.adapter import Adapter
from anchorlens.models.blocks import Block

Tokens = Float[Tensor, "token d_model"]
# Streams whose number of tokens changes within a function.
Table = Float[Tensor, "_ d_model"]
# Sites of a block behind attention, in order of computation.
_BEHIND = ("z", "attn_out", "resid_mid", "mlp_out", "resid_post")


class Pass:
    """Pass of one batch through the layers.

    ``site``: patched site, "" for knockouts. ``read_sites``: layer -> site to read. ``top``: last layer to run. ``states``: layer ->
    states that were read, [cell read d_model]; the clean cell is first, then one cell per cell group and lane. If ``keep`` is True,
    no states are read, and ``new_prefix`` collects keys and values of the clean rows.

    A pass that ``follows`` another, which has the same clean rows and runs each block first, takes their activations from it.
    """

    def __init__(
        self, adapter: Adapter, layout: Layout, lanes: Lanes, prefix: Prefix | None, *, site: str = "",
        read_sites: Mapping[int, str], keep: bool = False, follows: "Pass | None" = None,
    ) -> None:  # fmt: skip
        self.adapter, self.prefix, self.site, self.read_sites, self.follows = adapter, prefix, site, read_sites, follows
        # Keys, values and z of the clean rows in the block that ran last, for passes that follow this one.
        self.is_followed = False
        self.clean: tuple[Tensor, Tensor, Tensor] | None = None
        if follows is not None:
            follows.is_followed = True
        # No lanes are needed if no row is changed.
        self.lanes = lanes if layout.cell_groups else Lanes((), (), (), ())
        self.top = adapter.n_layers - 1 if keep else max(read_sites)
        self.n_lanes = 0
        self.states: dict[int, Float[Tensor, "cell read d_model"]] = {}
        shared = layout.clean_rows.prefix
        self.new_prefix = Prefix((*shared, *layout.clean_rows.ids.tolist()), [], []) if keep else None
        positions = [p for cells in layout.cell_groups for p in cells.positions]
        self.last_position = max([int(layout.clean_rows.positions.max()), *positions])
        # Evidence of what was written: cell group of each patch, first lane, and the terms, [lane patch] on the device.
        self._evidence: list[tuple[Int[Tensor, "patch"], int, Float[Tensor, "lane patch"]]] = []
        self._use(layout, adapter.device)
        x = adapter.embed(on(self.device, layout.clean_rows.ids), self.positions)
        self.x: Table = self._append_lanes(-1, x, len(x))

    def _use(self, layout: Layout, device: torch.device) -> None:
        """Use a layout from now on."""
        self.layout = layout
        self.n_clean, self.n_cell = len(layout.clean_rows.ids), layout.cell_groups[-1].stop if layout.cell_groups else 0
        self._place(device)

    def _place(self, device: torch.device) -> None:
        """Move the index tensors to the device of the next block."""
        layout, patches = self.layout, self.layout.patches
        self.device = device
        self.positions = on(device, layout.clean_rows.positions)
        positions = [p for cells in layout.cell_groups for p in cells.positions]
        self.cell_positions = on(device, torch.tensor(positions, dtype=torch.long))
        self.join = on(device, torch.tensor([t for cells in layout.cell_groups for t in cells.join], dtype=torch.long))
        self._groups: list[GroupAttention] | None = None
        if patches is not None:
            self.cell, self.clean_token = on(device, patches.cell), on(device, patches.clean.clamp(min=0))
            self.given_streams = None if patches.streams is None else on(device, patches.streams)
            self.given_cells = on(device, patches.streams_at)
            self.directions = None if patches.directions is None else on(device, patches.directions)
            self.moved, self.moved_cells = on(device, patches.moved), on(device, patches.moved_at)
            self.heads = None if patches.heads is None else on(device, patches.heads)
            # Only in z a token may be patched several times: in several heads.
            patched, entry = patches.cell.unique(return_inverse=True) if self.site == "z" else (patches.cell, patches.cell)
            self.patched, self.entry = on(device, patched), on(device, entry)

    @property
    def groups(self) -> list[GroupAttention]:
        """Attention groups of the layout, clean rows first."""
        if self._groups is None:
            self._groups = self._groups_of(self.layout)
        return self._groups

    @torch.no_grad()
    def step(self, block: Block, on_progress: OnProgress = no_progress) -> None:
        """Run the next block in order of layers; calls ``on_progress(0)`` within the block, so that a caller can check memory."""
        layer = block.layer
        if layer > self.top:
            return
        block.reserve(self.last_position)
        if block.device != self.device:
            self._place(block.device)
            self.x = self.x.to(block.device)
        x, site = self.x, self.read_sites.get(layer)
        if self.site == "resid_pre":
            self._patch(layer, x)
        if site == "resid_pre":
            self.states[layer] = self._gather_reads(x[self._read_tokens(self.n_lanes)])
        if site != "resid_pre" or layer < self.top:
            self._run_block(block, x, site, on_progress)

    def _run_block(self, block: Block, x: Table, read_site: str | None, on_progress: OnProgress) -> None:
        """Run one block on the streams before it, and keep the streams after it and the states at ``read_site``."""
        layer, wanted = block.layer, "resid_post"
        if layer == self.top and read_site is not None:
            # Behind the last keys and values, only the tokens that are read matter.
            wanted = read_site
            layout, clean_tokens, cell_tokens = self.layout.after_attention()
            z = self._attention(block, x, on_progress, self._groups_of(layout))
            lanes = self.n_clean + self.n_cell * torch.arange(self.n_lanes)[:, None] + cell_tokens
            x = x[on(self.device, torch.cat([clean_tokens, lanes.flatten()]))]
            self._use(layout, self.device)
        else:
            z = self._attention(block, x, on_progress, self.groups)
        if z is None:
            return
        on_progress(0.0)
        if layer < self.top and read_site not in (None, "resid_pre", "resid_post"):
            tokens = self._read_tokens(self.n_lanes)
            self.states[layer] = self._gather_reads(self._stream_at(block, x[tokens], z[tokens], read_site))
        n, old = len(x), self.n_lanes
        if wanted == "resid_post":
            out, own = x.new_empty(n + self._room(layer), x.shape[1]), self._first_own(layer)
            if self.follows is not None:
                out[:own] = self.follows.x[:own]
            if own < n:
                block.finish(x[own:], z[own:], out[own:n])
        else:
            out = self._stream_at(block, x, z, wanted)
        out = self._append_lanes(layer, out, n)
        self._patch_behind(block, x, z, out, wanted, old)
        if wanted == read_site or (read_site == "resid_post" and layer < self.top):
            self.states[layer] = self._gather_reads(out[self._read_tokens(self.n_lanes)])
        self.x = out

    def _first_own(self, layer: int) -> int:
        """Return the first token that this pass computes in a block; those before it are of the pass that it follows."""
        # In the last block, the passes may need different clean tokens.
        return 0 if self.follows is None or layer == self.top else self.n_clean

    @staticmethod
    def _stream_at(
        block: Block, x: Tokens, z: Float[Tensor, "token head d_head"], wanted: str, site: str = "", values: Tokens | None = None
    ) -> Tokens:
        """Return the streams at a site behind attention, with those at ``site`` replaced by ``values``; ``x``: before the block."""
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
        """Return the number of tokens of the lanes that are appended behind block ``layer``.

        Lanes with patches behind attention are appended where they start, others after the block before; -1 is the embedding.
        """
        starting = layer if self.site in _BEHIND else min(layer + 1, self.top)
        return (self.lanes.count_lanes(starting) - self.n_lanes) * self.n_cell

    def _append_lanes(self, layer: int, table: Table, n: int) -> Table:
        """Append lanes to the first ``n`` tokens, which may have room behind them: copies of the clean rows or the first lane."""
        room = self._room(layer)
        if room:
            table = table if len(table) > n else torch.cat([table, table.new_empty(room, *table.shape[1:])])
            forked = self.lanes.forked and self.n_lanes > 0
            lane = table[self.n_clean : self.n_clean + self.n_cell] if forked else table[self.join]
            table[n:].view(-1, *lane.shape)[:] = lane
            self.n_lanes += room // self.n_cell
        return table

    def _patch(self, layer: int, x: Tokens) -> None:
        """Replace the streams of patched tokens before a block, in the lanes whose window contains it."""
        ranges = self.lanes.active_ranges(layer)
        if self.layout.patches is None or not ranges:
            return
        cells = x[self.n_clean :].view(self.n_lanes, self.n_cell, -1)
        values = self._patch_values(layer, lambda tokens: x[tokens])
        for first, stop in ranges:
            cells[first:stop, self.cell] = values
            self._add_evidence(layer, first, cells[first:stop, self.cell])

    def _patch_behind(self, block: Block, x: Table, z: Float[Tensor, "_ head d_head"], out: Table, wanted: str, n_old: int) -> None:
        """Replace the streams of patched tokens in the lanes whose window contains a block.

        ``out``: streams at site ``wanted``. ``x``, ``z``: streams before the block, and heads' output, of the clean rows and of the
        first ``n_old`` lanes. The other lanes start here, so that their tokens that are not patched equal those of the clean rows.
        """
        site, layer = self.site, block.layer
        if self.layout.patches is None or not len(self.patched) or site not in _BEHIND[: _BEHIND.index(wanted) + 1]:
            return
        for first, stop in self.lanes.active_ranges(layer):
            lanes = on(self.device, torch.arange(first, stop))[:, None]
            tokens = self.n_clean + lanes * self.n_cell + self.patched
            own = torch.where(lanes < n_old, tokens, self.join[self.patched]).flatten()
            streams, heads, values = x[own], z[own], None
            if site == "z":
                assert self.given_streams is not None
                table = heads.view(*tokens.shape, *z.shape[1:])
                table[:, self.entry, self.heads] = self.given_streams[layer].to(z.dtype)
                self._add_evidence(layer, first, table[:, self.entry, self.heads])
            else:
                values = self._patch_values(
                    layer, lambda at: out[at] if site == wanted else self._stream_at(block, x[at], z[at], site)
                ).repeat(len(lanes), 1)
                self._add_evidence(layer, first, values.view(len(lanes), -1, values.shape[-1]))
            out[tokens.flatten()] = self._stream_at(block, streams, heads, wanted, site, values)

    def _add_evidence(self, layer: int, first_lane: int, values: Float[Tensor, "lane patch width"]) -> None:
        """Add activations that were written in a layer to the evidence of their cells."""
        patches = self.layout.patches
        assert patches is not None  # the caller has written some
        group, row, position = self._places_of_cells()
        at = patches.cell
        heads = 0 if patches.heads is None else patches.heads
        terms = project(values, self.device) * code(layer, row[at], position[at], heads, self.device)
        self._evidence.append((group[at], first_lane, terms))

    def evidence(self) -> Float[Tensor, "cell_group lane"]:
        """Return the evidence of the patches of each cell group in each lane (:mod:`anchorlens.engine.landing`), on the CPU."""
        n_groups = len(self.layout.cell_groups)
        out = torch.zeros(n_groups, len(self.lanes.start), dtype=torch.float64, device="cpu")
        for group, first, terms in self._evidence:
            out[:, first : first + len(terms)].index_add_(0, group, terms.double().cpu().T)
        return out

    def _places_of_cells(self) -> tuple[Int[Tensor, "token"], Int[Tensor, "token"], Int[Tensor, "token"]]:
        """Return cell group, row and position of each token of a lane."""
        groups: list[int] = []
        rows: list[int] = []
        positions: list[int] = []
        for number, cells in enumerate(self.layout.cell_groups):
            for token, position in zip(cells.queries, cells.positions, strict=True):
                groups.append(number)
                rows.append(cells.rows[bisect_right(cells.offsets, token) - 1])
                positions.append(position)
        return torch.tensor(groups), torch.tensor(rows), torch.tensor(positions)

    def _patch_values(self, layer: int, at: Callable[[Int[Tensor, "token"]], Tokens]) -> Tokens:
        """Return the streams that replace those of patched tokens; ``at``: clean tokens -> their streams at the site."""
        given = self.given_streams
        if given is not None and given.shape[1] == len(self.cell) and self.directions is None:
            return given[layer].to(self.x.dtype)
        values = at(self.clean_token)
        if given is not None:
            values[self.given_cells] = given[layer].to(values.dtype)
        if self.directions is not None:
            wide = torch.promote_types(values.dtype, torch.float32)
            base, donor = at(self.moved).to(wide), values[self.moved_cells].to(wide)
            values[self.moved_cells] = (base + self.directions * (donor - base).norm(dim=-1, keepdim=True)).to(values.dtype)
        return values

    def _read_tokens(self, n_lanes: int) -> Int[Tensor, "token"]:
        """Return the flat tokens that are read: of the clean rows, then of ``n_lanes`` lanes."""
        base = torch.tensor(self.layout.reads.tokens)
        lane = torch.tensor([cells.first + t for cells in self.layout.cell_groups for t in cells.reads.tokens], dtype=torch.long)
        starts = self.n_clean + self.n_cell * torch.arange(n_lanes)[:, None]
        return on(self.device, torch.cat([base, (starts + lane).reshape(-1)]))

    def _gather_reads(self, streams: Tokens) -> Float[Tensor, "cell read d_model"]:
        """Return the states of all reads, clean cell first; a read that a change cannot reach has its clean state.

        ``streams``: those of :meth:`_read_tokens`.
        """
        reads, cell_groups = self.layout.reads, self.layout.cell_groups
        n_base, n_lanes, present = len(reads.tokens), len(self.lanes.start), self.n_lanes
        clean = streams[:n_base][on(self.device, reads.of)]
        out = repeat(clean, "read d_model -> cell read d_model", cell=1 + len(cell_groups) * n_lanes).clone()
        width = sum(len(cells.reads.tokens) for cells in cell_groups)
        lanes = streams[n_base:].reshape(present, width, streams.shape[-1])
        at = 0
        for i, cells in enumerate(cell_groups):
            states = lanes[:, at : at + len(cells.reads.tokens)]
            start = 1 + i * n_lanes
            out[start : start + present, on(self.device, cells.reads.index)] = states[:, on(self.device, cells.reads.of)]
            at += len(cells.reads.tokens)
        return out

    def _attention(
        self, block: Block, x: Table, on_progress: OnProgress, groups: Sequence[GroupAttention]
    ) -> Float[Tensor, "_ head d_head"] | None:
        """Compute the heads' output z of the queries; None in the last block of a pass that computes a prefix."""
        own, shared = self._first_own(block.layer), None if self.follows is None else self.follows.clean
        if shared is not None and own and not self.n_lanes:
            return shared[2]
        q, k, v = block.project(x[own:])
        n, lanes = self.n_clean - own, (self.n_lanes, self.n_cell)
        angles, at_cells = block.angles(self.positions), block.angles(self.cell_positions)
        sizes = [group.n_found for group in groups]
        out = q.new_empty(sizes[0] + self.n_lanes * sum(sizes[1:]), *q.shape[1:])
        n_prefix, prefix = len(self.layout.clean_rows.prefix), None
        if n_prefix:
            assert self.prefix is not None  # a layout behind a prefix comes with it
            prefix = self.prefix.at(block.layer, n_prefix)
        if own and shared is not None:
            base_k, base_v, out[: sizes[0]] = shared
        else:
            base_q, base_k, base_v = block.rotate_(q[:n], angles), block.rotate_(k[:n], angles), v[:n]
            if self.new_prefix is not None:
                self._store_prefix(block.layer, base_k, base_v)
                if block.layer == self.top:
                    return None
            base_q, base_k, base_v = wide(base_q).div_(block.scale), wide(base_k), wide(base_v)
            out[: sizes[0]] = groups[0].attend(block, base_q[None], base_k[None], base_v[None], base_k, base_v, prefix)[0]
        if self.is_followed:
            # Copies, because views would keep the tables of all tokens in memory.
            self.clean = base_k.clone(), base_v.clone(), out[: sizes[0]].clone()
        if not self.n_lanes:
            return out
        cell_q = block.rotate_(q[n:].view(*lanes, *q.shape[1:]), at_cells)
        cell_k, cell_v = block.rotate_(k[n:].view(*lanes, *k.shape[1:]), at_cells), v[n:].view(*lanes, *v.shape[1:])
        cell_q, cell_k, cell_v = wide(cell_q).div_(block.scale), wide(cell_k), wide(cell_v)
        in_lanes = out[sizes[0] :].view(self.n_lanes, sum(sizes[1:]), *q.shape[1:])
        at, cut_lanes = 0, self.lanes.active_ranges(block.layer) if self.layout.cuts else ()
        for group in groups[1:]:
            q, k, v = (heads[:, group.tokens] for heads in (cell_q, cell_k, cell_v))
            in_lanes[:, at : at + group.n_found] = group.attend(block, q, k, v, base_k, base_v, prefix, cut_lanes)
            at += group.n_found
            on_progress(0.0)
        return out

    def _store_prefix(self, layer: int, k: Float[Tensor, "token kv_head d_head"], v: Float[Tensor, "token kv_head d_head"]) -> None:
        """Append one layer's keys and values of the new prefix, behind those of the prefix that it extends."""
        assert self.new_prefix is not None
        n = len(self.layout.clean_rows.prefix)
        known = [] if self.prefix is None or not n else [(self.prefix.keys[layer][:n], self.prefix.values[layer][:n])]
        keys, values = zip(*known, (k, v), strict=True)
        self.new_prefix.keys.append(torch.cat(keys))
        self.new_prefix.values.append(torch.cat(values))

    def _groups_of(self, layout: Layout) -> list[GroupAttention]:
        """Return the attention groups of a layout on the device, clean rows first; keys and values are those of all tokens."""
        groups = [GroupAttention(layout.clean_rows.attention, self.device, slice(0, self.n_clean))]
        for some in layout.attention_ranges():
            first, last = self.layout.cell_groups[some.start], self.layout.cell_groups[some[-1]]
            cut = layout.cuts[some.start] if layout.cuts else None
            groups.append(GroupAttention(layout.attention(some), self.device, slice(first.first, last.stop), cut))
        return groups
