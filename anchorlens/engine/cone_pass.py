"""One pass of the cone engine through the layers: clean rows and changed lanes (:mod:`anchorlens.engine.cone_layout`).

A :class:`Pass` runs one block at a time, so several passes can share a layer: streamed weights are read once for all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.cone_layout import AttentionGroup, Cut, Lanes, Layout, Prefix
from anchorlens.engine.patches import OnProgress, no_progress
from anchorlens.models.adapter import Adapter
from anchorlens.models.blocks import Block
from anchorlens.models.devices import half_on_cpu

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
    """

    def __init__(
        self, adapter: Adapter, layout: Layout, lanes: Lanes, prefix: Prefix | None, *, site: str = "",
        read_sites: Mapping[int, str], keep: bool = False,
    ) -> None:  # fmt: skip
        self.adapter, self.prefix, self.site, self.read_sites = adapter, prefix, site, read_sites
        # No lanes are needed if no row is changed.
        self.lanes = lanes if layout.cell_groups else Lanes((), (), (), ())
        self.top = adapter.n_layers - 1 if keep else max(read_sites)
        self.n_lanes = 0
        self.states: dict[int, Float[Tensor, "cell read d_model"]] = {}
        shared = layout.clean_rows.prefix
        self.new_prefix = Prefix((*shared, *layout.clean_rows.ids.tolist()), [], []) if keep else None
        positions = [p for cells in layout.cell_groups for p in cells.positions]
        self.last_position = max([int(layout.clean_rows.positions.max()), *positions])
        self._use(layout, adapter.device)
        x = adapter.embed(_on(self.device, layout.clean_rows.ids), self.positions)
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
        self.positions = _on(device, layout.clean_rows.positions)
        positions = [p for cells in layout.cell_groups for p in cells.positions]
        self.cell_positions = _on(device, torch.tensor(positions, dtype=torch.long))
        self.join = _on(device, torch.tensor([t for cells in layout.cell_groups for t in cells.join], dtype=torch.long))
        self.groups = self._groups_of(layout)
        if patches is not None:
            self.cell, self.clean_token = _on(device, patches.cell), _on(device, patches.clean.clamp(min=0))
            self.given_streams = None if patches.streams is None else _on(device, patches.streams)
            self.given_cells = _on(device, patches.streams_at)
            self.directions = None if patches.directions is None else _on(device, patches.directions)
            self.moved, self.moved_cells = _on(device, patches.moved), _on(device, patches.moved_at)
            self.heads = None if patches.heads is None else _on(device, patches.heads)
            # Only in z a token may be patched several times: in several heads.
            patched, entry = patches.cell.unique(return_inverse=True) if self.site == "z" else (patches.cell, patches.cell)
            self.patched, self.entry = _on(device, patched), _on(device, entry)

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
            x = x[_on(self.device, torch.cat([clean_tokens, lanes.flatten()]))]
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
        out = block.finish(x, z, self._room(layer)) if wanted == "resid_post" else self._stream_at(block, x, z, wanted)
        out = self._append_lanes(layer, out, n)
        self._patch_behind(block, x, z, out, wanted, old)
        if wanted == read_site or (read_site == "resid_post" and layer < self.top):
            self.states[layer] = self._gather_reads(out[self._read_tokens(self.n_lanes)])
        self.x = out

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

    def _patch_behind(self, block: Block, x: Table, z: Float[Tensor, "_ head d_head"], out: Table, wanted: str, n_old: int) -> None:
        """Replace the streams of patched tokens in the lanes whose window contains a block.

        ``out``: streams at site ``wanted``. ``x``, ``z``: streams before the block, and heads' output, of the clean rows and of the
        first ``n_old`` lanes. The other lanes start here, so that their tokens that are not patched equal those of the clean rows.
        """
        site, layer = self.site, block.layer
        if self.layout.patches is None or not len(self.patched) or site not in _BEHIND[: _BEHIND.index(wanted) + 1]:
            return
        for first, stop in self.lanes.active_ranges(layer):
            lanes = _on(self.device, torch.arange(first, stop))[:, None]
            tokens = self.n_clean + lanes * self.n_cell + self.patched
            own = torch.where(lanes < n_old, tokens, self.join[self.patched]).flatten()
            streams, heads, values = x[own], z[own], None
            if site == "z":
                assert self.given_streams is not None
                table = heads.view(*tokens.shape, *z.shape[1:])
                table[:, self.entry, self.heads] = self.given_streams[layer].to(z.dtype)
            else:
                values = self._patch_values(
                    layer, lambda at: out[at] if site == wanted else self._stream_at(block, x[at], z[at], site)
                ).repeat(len(lanes), 1)
            out[tokens.flatten()] = self._stream_at(block, streams, heads, wanted, site, values)

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
        return _on(self.device, torch.cat([base, (starts + lane).reshape(-1)]))

    def _gather_reads(self, streams: Tokens) -> Float[Tensor, "cell read d_model"]:
        """Return the states of all reads, clean cell first; a read that a change cannot reach has its clean state.

        ``streams``: those of :meth:`_read_tokens`.
        """
        reads, cell_groups = self.layout.reads, self.layout.cell_groups
        n_base, n_lanes, present = len(reads.tokens), len(self.lanes.start), self.n_lanes
        clean = streams[:n_base][_on(self.device, reads.of)]
        out = repeat(clean, "read d_model -> cell read d_model", cell=1 + len(cell_groups) * n_lanes).clone()
        width = sum(len(cells.reads.tokens) for cells in cell_groups)
        lanes = streams[n_base:].reshape(present, width, streams.shape[-1])
        at = 0
        for i, cells in enumerate(cell_groups):
            states = lanes[:, at : at + len(cells.reads.tokens)]
            start = 1 + i * n_lanes
            out[start : start + present, _on(self.device, cells.reads.index)] = states[:, _on(self.device, cells.reads.of)]
            at += len(cells.reads.tokens)
        return out

    def _attention(
        self, block: Block, x: Table, on_progress: OnProgress, groups: "Sequence[_DeviceGroup]"
    ) -> Float[Tensor, "_ head d_head"] | None:
        """Compute the heads' output z of the queries; None in the last block of a pass that computes a prefix."""
        q, k, v = block.project(x)
        n, lanes = self.n_clean, (self.n_lanes, self.n_cell)
        angles, at_cells = block.angles(self.positions), block.angles(self.cell_positions)
        base_q, base_k, base_v = block.rotate_(q[:n], angles), block.rotate_(k[:n], angles), v[:n]
        if self.new_prefix is not None:
            self._store_prefix(block.layer, base_k, base_v)
            if block.layer == self.top:
                return None
        base_q, base_k, base_v = _wide(base_q).div_(block.scale), _wide(base_k), _wide(base_v)
        sizes = [group.n_found for group in groups]
        out = q.new_empty(sizes[0] + self.n_lanes * sum(sizes[1:]), *q.shape[1:])
        out[: sizes[0]] = self._attend(block, groups[0], base_q[None], base_k[None], base_v[None], base_k, base_v)[0]
        if not self.n_lanes:
            return out
        cell_q = block.rotate_(q[n:].view(*lanes, *q.shape[1:]), at_cells)
        cell_k, cell_v = block.rotate_(k[n:].view(*lanes, *k.shape[1:]), at_cells), v[n:].view(*lanes, *v.shape[1:])
        cell_q, cell_k, cell_v = _wide(cell_q).div_(block.scale), _wide(cell_k), _wide(cell_v)
        in_lanes = out[sizes[0] :].view(self.n_lanes, sum(sizes[1:]), *q.shape[1:])
        at = 0
        for cells, group in zip(self.layout.cell_groups, groups[1:], strict=True):
            tokens, size = slice(cells.first, cells.stop), group.n_found
            in_lanes[:, at : at + size] = self._attend(
                block, group, cell_q[:, tokens], cell_k[:, tokens], cell_v[:, tokens], base_k, base_v
            )
            at += size
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

    def _groups_of(self, layout: Layout) -> "list[_DeviceGroup]":
        """Return the attention groups of a layout on the device, with the cuts of their cells."""
        groups = [layout.clean_rows.attention, *(cells.attention for cells in layout.cell_groups)]
        return [
            _DeviceGroup(group, self.device, layout.cuts[i - 1] if i and layout.cuts else None) for i, group in enumerate(groups)
        ]

    def _attend(
        self, block: Block, group: "_DeviceGroup", q: Float[Tensor, "lane token head d_head"],
        k: Float[Tensor, "lane token kv_head d_head"], v: Float[Tensor, "lane token kv_head d_head"],
        base_k: Float[Tensor, "clean_token kv_head d_head"], base_v: Float[Tensor, "clean_token kv_head d_head"],
    ) -> Float[Tensor, "lane found head d_head"]:  # fmt: skip
        """Compute the attention of one group to the prefix, to the clean row before each row's first token, and to its own tokens.

        Keys that all lanes of a row share are multiplied with their queries in one product, so no key is copied per lane.
        """
        n_rows, width, kv = group.n_rows, group.n_queries, k.shape[-2]
        rep = q.shape[-2] // kv
        sizes = {"row": n_rows, "kv": kv, "rep": rep}
        queries = rearrange(
            _take(q, group.queries),
            "lane (row query) (kv rep) d_head -> kv row lane (query rep) d_head", query=width, **sizes,
        )  # fmt: skip
        own_k = rearrange(_take(k, group.keys), "lane (row key) kv d_head -> kv row lane d_head key", row=n_rows)
        own_v = rearrange(_take(v, group.keys), "lane (row key) kv d_head -> kv row lane key d_head", row=n_rows)
        flat = rearrange(queries, "kv row lane query d_head -> kv row (lane query) d_head")
        shared: list[Tensor] = []  # values of keys that lanes share, [kv row key d_head] or [kv key d_head]
        scores: list[Tensor] = []
        n_prefix = len(self.layout.clean_rows.prefix)
        if n_prefix:
            assert self.prefix is not None  # a layout behind a prefix comes with it
            keys, values = (_wide(each) for each in self.prefix.at(block.layer, n_prefix))
            all_queries = rearrange(flat, "kv row query d_head -> kv (row query) d_head")
            scores.append(
                rearrange(all_queries @ keys.mT, "kv (row lane query) key -> kv row lane query key", row=n_rows, lane=len(q))
            )
            shared.append(values)
        if group.n_base:
            between = rearrange(base_k[group.base], "(row key) kv d_head -> kv row d_head key", row=n_rows)
            scores.append(rearrange(flat @ between, "kv row (lane query) key -> kv row lane query key", lane=len(q)))
            shared.append(rearrange(base_v[group.base], "(row key) kv d_head -> kv row key d_head", row=n_rows))
        scores.append(queries @ own_k)
        weights = self._weights(block, group, scores, kv, rep)
        out = weights[-1] @ own_v
        for weight, values in zip(weights, shared, strict=False):
            together = rearrange(weight, "kv row lane query key -> kv row (lane query) key")
            if values.ndim == 3:
                part = rearrange(together, "kv row query key -> kv (row query) key") @ values
                part = rearrange(part, "kv (row lane query) d -> kv row lane query d", row=n_rows, lane=len(q))
            else:
                part = rearrange(together @ values, "kv row (lane query) d -> kv row lane query d", lane=len(q))
            out += part
        out = rearrange(out, "kv row lane (query rep) d_head -> lane (row query) (kv rep) d_head", rep=rep)
        return _take(out, group.query_slots)

    def _weights(self, block: Block, group: "_DeviceGroup", scores: list[Tensor], kv: int, rep: int) -> tuple[Tensor, ...]:
        """Compute attention weights by a softmax over all keys, split into the parts of ``scores``; empties ``scores``."""
        sizes = [score.shape[-1] for score in scores]
        table = torch.cat(scores, -1) if len(scores) > 1 else scores[0]
        scores.clear()  # frees the parts
        if block.soft_cap is not None:
            table = block.soft_cap * torch.tanh(table / block.soft_cap)
        by_query = rearrange(table, "kv row lane (query rep) key -> kv row lane query rep key", rep=rep)
        if block.slopes is not None:
            slopes = rearrange(block.slopes, "(kv rep) -> kv 1 1 1 rep 1", kv=kv)
            by_query += slopes * group.distance
        excluded = group.exclusion_mask(block.window)
        if excluded is not None:
            by_query.masked_fill_(excluded, -torch.inf)
        if group.cut is not None and group.cut.mode == "mask":
            self._cut(block.layer, by_query, group, kv, -torch.inf)
        if block.sinks is None:
            weights = table.softmax(-1)
        else:  # a sink is a key without a value
            sinks = rearrange(block.sinks, "(kv rep) -> kv 1 1 1 rep 1", kv=kv).expand(*by_query.shape[:-1], 1)
            weights = torch.cat([by_query, sinks.to(table.dtype)], -1).softmax(-1)[..., :-1]
            weights = rearrange(weights, "kv row lane query rep key -> kv row lane (query rep) key")
        if group.cut is not None and group.cut.mode == "zero":
            by_query = rearrange(weights, "kv row lane (query rep) key -> kv row lane query rep key", rep=rep)
            self._cut(block.layer, by_query, group, kv, 0.0)
        return weights.split(sizes, -1)

    def _cut(
        self, layer: int, table: Float[Tensor, "kv row lane query rep key"], group: "_DeviceGroup", kv: int, value: float
    ) -> None:
        """Set the cut edges of the chosen heads to ``value`` in place, in the lanes that are cut in this layer."""
        heads = rearrange(group.heads, "(kv rep) -> kv 1 1 1 rep 1", kv=kv)
        for first, stop in self.lanes.active_ranges(layer):
            table[:, :, first:stop].masked_fill_(group.edges & heads, value)


class _DeviceGroup:
    """Index tensors of a group on a device."""

    def __init__(self, group: AttentionGroup, device: torch.device, cut: Cut | None = None) -> None:
        self.group, self.device, self.cut = group, device, cut
        self.n_rows, self.n_queries = group.queries.shape
        self.n_base = group.base.shape[1]
        self.n_found = len(group.query_slots)
        # None: all tokens in their order, as where all rows have the same length.
        self.keys = self._index(group.keys, group.keys.numel())
        self.queries = self._index(group.queries, group.keys.numel())
        self.query_slots, self.base = self._index(group.query_slots, group.queries.numel()), _on(device, group.base.reshape(-1))
        self._exclusion: dict[int | None, Tensor | None] = {}
        self.edges, self.heads = torch.empty(0), torch.empty(0)
        if cut is not None:
            rows = torch.arange(self.n_rows)[:, None, None]
            keys = group.key_positions.clamp(max=cut.edges.shape[-1] - 1)  # unused slots may lie behind the row
            edges = cut.edges[rows, group.query_positions[:, :, None], keys[:, None, :]] & group.is_key[:, None, :]
            self.edges = _on(device, rearrange(edges, "row query key -> 1 row 1 query 1 key"))
            self.heads = _on(device, cut.heads)

    def _index(self, tokens: Int[Tensor, "*slot"], n: int) -> Int[Tensor, "_"] | None:
        """Return an index on the device; None if it selects all of ``n`` tokens in order."""
        flat = tokens.reshape(-1)
        return None if torch.equal(flat, torch.arange(n)) else _on(self.device, flat)

    @cached_property
    def distance(self) -> Int[Tensor, "1 row 1 query 1 key"]:
        """Return the position of each key minus that of each query, at most 0 (for ALiBi)."""
        steps = self.group.key_positions[:, None, :] - self.group.query_positions[:, :, None]
        return _on(self.device, rearrange(steps.clamp(max=0), "row query key -> 1 row 1 query 1 key"))

    def exclusion_mask(self, window: int | None) -> Bool[Tensor, "1 row 1 query 1 key"] | None:
        """Return True where a query does not attend to a key; None if it is False everywhere."""
        if window not in self._exclusion:
            mask = self.group.attention_mask(window)
            self._exclusion[window] = (
                None if mask is None else _on(self.device, rearrange(~mask, "row query key -> 1 row 1 query 1 key"))
            )
        return self._exclusion[window]


def _take(table: Float[Tensor, "lane token head d_head"], index: Int[Tensor, "_"] | None) -> Float[Tensor, "lane _ head d_head"]:
    return table if index is None else table[:, index]


def _wide(heads: Float[Tensor, "*token head d_head"]) -> Float[Tensor, "*token head d_head"]:
    """Convert queries, keys or values to float32 if they are in half precision on a CPU.

    In half precision oneDNN makes a kernel for each of their many small product sizes, which takes longer than the product.
    """
    return heads.float() if half_on_cpu(heads.device, heads.dtype) else heads


def _on(device: torch.device, table: Tensor) -> Tensor:
    """Move a tensor to a device; copies to a GPU are pinned and asynchronous."""
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" and not table.is_cuda else table.to(device)
