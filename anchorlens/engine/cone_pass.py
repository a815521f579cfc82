"""One pass up the layers of the cone engine: clean rows, and the changed lanes that join them (:mod:`anchorlens.engine.cone_layout`).

A :class:`Pass` takes one block at a time, so that many of them can go through a layer before the next layer is touched: weights
that are read from disk, or that lie on another device, are needed once for all batches.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.cone_layout import Cut, Group, Lanes, Layout, Prefix
from anchorlens.engine.patches import OnProgress, no_progress
from anchorlens.models.adapter import Adapter
from anchorlens.models.blocks import Block
from anchorlens.models.devices import half_on_cpu

Tokens = Float[Tensor, "token d_model"]
# Tables that differ in their tokens.
Table = Float[Tensor, "_ d_model"]


class Pass:
    """One batch on its way up.

    Streams are put at ``site``; ``seen`` names the site that is read at each of some layers, and the pass ends after the last of
    them (``top``). ``states`` holds what was read by layer: clean, then pack by pack and lane by lane. With ``keep`` nothing is
    read, and ``kept`` collects keys and values of the runs.
    """

    def __init__(
        self, adapter: Adapter, layout: Layout, lanes: Lanes, prefix: Prefix | None, *, site: str = "",
        seen: Mapping[int, str], keep: bool = False,
    ) -> None:  # fmt: skip
        self.adapter, self.layout, self.prefix, self.site, self.seen = adapter, layout, prefix, site, seen
        # Where nothing is changed in any row, no lane has to run.
        self.lanes = lanes if layout.packs else Lanes((), (), (), ())
        self.top = adapter.n_layers - 1 if keep else max(seen)
        self.n_runs, self.n_cell = len(layout.runs.ids), layout.packs[-1].stop if layout.packs else 0
        self.n_lanes = 0
        self.states: dict[int, Float[Tensor, "cell read d_model"]] = {}
        shared = layout.runs.prefix
        self.kept = Prefix((*shared, *layout.runs.ids.tolist()), [], []) if keep else None
        positions = [p for pack in layout.packs for p in pack.positions]
        self.last_position = max([int(layout.runs.positions.max()), *positions])
        self.host_cells = torch.tensor(positions, dtype=torch.long)
        self._place(adapter.device)
        self.x: Table = adapter.embed(_on(self.device, layout.runs.ids), self.positions)

    def _place(self, device: torch.device) -> None:
        """Tables of indices, on the device of the next block."""
        layout, put = self.layout, self.layout.put
        self.device = device
        self.positions = _on(device, layout.runs.positions)
        self.cell_positions = _on(device, self.host_cells)
        self.join = _on(device, torch.tensor([t for pack in layout.packs for t in pack.join], dtype=torch.long))
        self.groups = self._placed([layout.runs.group, *(pack.group for pack in layout.packs)])
        if put is not None:
            self.cell, self.run_token = _on(device, put.cell), _on(device, put.run.clamp(min=0))
            self.given = None if put.given is None else _on(device, put.given)
            self.from_given = _on(device, put.from_given)

    @torch.no_grad()
    def step(self, block: Block, on_progress: OnProgress = no_progress) -> None:
        """Run one block; blocks come in order. ``on_progress`` is also called with 0, so that memory can be checked on the way."""
        layer = block.layer
        if layer > self.top:
            return
        block.reserve(self.last_position)
        if block.device != self.device:
            self._place(block.device)
            self.x = self.x.to(block.device)
        site = self.seen.get(layer)
        # In the last layer only what is read has to be asked for; but what is put there after its attention has other places.
        trim = layer == self.top and site == "resid_post" and self.site in ("resid_pre", "")
        seen, out = self._layer(block, self.x, site, on_progress, trim=trim)
        if site is not None:
            self.states[layer] = self._gathered(seen, trimmed=trim)
        self.x = out if layer < self.top else out[:0]

    def _layer(
        self, block: Block, x: Table, seen_at: str | None, on_progress: OnProgress, *, trim: bool
    ) -> tuple[Table, Table]:
        """One block; what stood at ``seen_at`` and what leaves it."""
        layer, site = block.layer, self.site
        if site in ("resid_pre", ""):
            (x,) = self._joined(layer, x)
            self._put(layer, x)
        seen = x
        z = self._attention(block, x, on_progress, trim=trim)
        if z is None:
            return x, x
        attn = block.attn_out(z)
        on_progress(0.0)
        if trim:
            x = x[self._read_tokens(self.n_lanes)]
        if site == "attn_out":
            x, attn = self._joined(layer, x, attn)
            self._put(layer, attn)
        seen = attn if seen_at == "attn_out" else seen
        mid = x + attn
        if site == "resid_mid":
            (mid,) = self._joined(layer, mid)
            self._put(layer, mid)
        seen = mid if seen_at == "resid_mid" else seen
        out, mlp = mid, block.mlp_out(x if block.parallel else mid)
        if mlp is not None:
            if site == "mlp_out":
                mid, mlp = self._joined(layer, mid, mlp)
                self._put(layer, mlp)
            seen = mlp if seen_at == "mlp_out" else seen
            out = mid + mlp
        if site == "resid_post":
            (out,) = self._joined(layer, out)
            self._put(layer, out)
        return out if seen_at == "resid_post" else seen, out

    def _joined(self, layer: int, *tables: Table) -> tuple[Table, ...]:
        """The tables with the lanes that join at this layer, as copies of the clean rows or of the first lane."""
        new = self.lanes.joined(layer) - self.n_lanes
        if new == 0:
            return tables
        forked = self.lanes.forked and self.n_lanes > 0
        self.n_lanes += new

        def grown(table: Table) -> Table:
            one = table[self.n_runs : self.n_runs + self.n_cell] if forked else table[self.join]
            return torch.cat([table, *[one] * new])

        return tuple(grown(table) for table in tables)

    def _put(self, layer: int, table: Tokens) -> None:
        """Replace the changed tokens of the lanes whose window holds this layer."""
        changed = self.lanes.changed(layer)
        if self.layout.put is None or not changed:
            return
        cells = table[self.n_runs :].view(self.n_lanes, self.n_cell, -1)
        values = table[self.run_token]
        if self.given is not None:
            values[self.from_given] = self.given[layer].to(values.dtype)
        for first, stop in changed:
            cells[first:stop, self.cell] = values

    def _read_tokens(self, n_lanes: int) -> Int[Tensor, "token"]:
        """Flat tokens that are read: of the runs, then of so many lanes."""
        base = torch.tensor(self.layout.reads.tokens)
        lane = torch.tensor([pack.first + t for pack in self.layout.packs for t in pack.reads.tokens], dtype=torch.long)
        starts = self.n_runs + self.n_cell * torch.arange(n_lanes)[:, None]
        return _on(self.device, torch.cat([base, (starts + lane).reshape(-1)]))

    def _gathered(self, seen: Tokens, *, trimmed: bool) -> Float[Tensor, "cell read d_model"]:
        """States of the reader's reads: clean, then pack by pack and lane by lane; what a lane does not hold is clean there."""
        reads, packs = self.layout.reads, self.layout.packs
        # Lanes that joined after what is read, in the same layer, are not in it.
        held = self.n_lanes if trimmed or not self.n_cell else (len(seen) - self.n_runs) // self.n_cell
        if not trimmed:
            seen = seen[self._read_tokens(held)]
        n_base, n_lanes = len(reads.tokens), len(self.lanes.start)
        clean = seen[:n_base][_on(self.device, reads.of)]
        out = repeat(clean, "read d_model -> cell read d_model", cell=1 + len(packs) * n_lanes).clone()
        width = sum(len(pack.reads.tokens) for pack in packs)
        lanes = seen[n_base:].reshape(held, width, seen.shape[-1])
        at = 0
        for i, pack in enumerate(packs):
            own = lanes[:, at : at + len(pack.reads.tokens)]
            start = 1 + i * n_lanes
            out[start : start + held, _on(self.device, pack.reads.index)] = own[:, _on(self.device, pack.reads.of)]
            at += len(pack.reads.tokens)
        return out

    def _attention(
        self, block: Block, x: Table, on_progress: OnProgress, *, trim: bool
    ) -> Float[Tensor, "_ head d_head"] | None:
        """Return the heads' output [token head d_head] of every token, or of the read tokens only (``trim``).

        None in the last block of a pass that only keeps keys and values.
        """
        q, k, v = block.project(x)
        n, lanes = self.n_runs, (self.n_lanes, self.n_cell)
        angles, at_cells = block.angles(self.positions), block.angles(self.cell_positions)
        base_q, base_k, base_v = block.rotate_(q[:n], angles), block.rotate_(k[:n], angles), v[:n]
        if self.kept is not None:
            self._keep(block.layer, base_k, base_v)
            if block.layer == self.top:
                return None
        base_q, base_k, base_v = _wide(base_q).div_(block.scale), _wide(base_k), _wide(base_v)
        groups = self._trimmed() if trim else self.groups
        sizes = [len(group.found) for group in groups]
        out = q.new_empty(sizes[0] + self.n_lanes * sum(sizes[1:]), *q.shape[1:])
        out[: sizes[0]] = self._attend(block, groups[0], base_q[None], base_k[None], base_v[None], base_k, base_v)[0]
        if not self.n_lanes:
            return out
        cell_q = block.rotate_(q[n:].view(*lanes, *q.shape[1:]), at_cells)
        cell_k, cell_v = block.rotate_(k[n:].view(*lanes, *k.shape[1:]), at_cells), v[n:].view(*lanes, *v.shape[1:])
        cell_q, cell_k, cell_v = _wide(cell_q).div_(block.scale), _wide(cell_k), _wide(cell_v)
        in_lanes = out[sizes[0] :].view(self.n_lanes, sum(sizes[1:]), *q.shape[1:])
        at = 0
        for pack, group in zip(self.layout.packs, groups[1:], strict=True):
            own, size = slice(pack.first, pack.stop), len(group.found)
            in_lanes[:, at : at + size] = self._attend(
                block, group, cell_q[:, own], cell_k[:, own], cell_v[:, own], base_k, base_v
            )
            at += size
            on_progress(0.0)
        return out

    def _keep(self, layer: int, k: Float[Tensor, "token kv_head d_head"], v: Float[Tensor, "token kv_head d_head"]) -> None:
        """Keys and values of the whole prefix that is being made, what was known of it before included."""
        assert self.kept is not None
        n = len(self.layout.runs.prefix)
        had = [] if self.prefix is None or not n else [(self.prefix.keys[layer][:n], self.prefix.values[layer][:n])]
        keys, values = zip(*had, (k, v), strict=True)
        self.kept.keys.append(torch.cat(keys))
        self.kept.values.append(torch.cat(values))

    def _trimmed(self) -> "list[_Placed]":
        """Groups in which only the read tokens ask."""
        runs, packs = self.layout.runs, self.layout.packs
        prefix = len(runs.prefix)
        groups = [Group.make([prefix] * len(runs.stops), runs.stops, prefix, None, self.layout.reads)]
        groups += [Group.make(p.starts, p.ends, prefix, p.bases, p.reads) for p in packs]
        return self._placed(groups)

    def _placed(self, groups: Sequence[Group]) -> "list[_Placed]":
        """Groups on the device, with the cuts of their packs."""
        cuts = self.layout.cuts
        return [_Placed(group, self.device, cuts[i - 1] if i and cuts else None) for i, group in enumerate(groups)]

    def _attend(
        self, block: Block, group: "_Placed", q: Float[Tensor, "lane token head d_head"],
        k: Float[Tensor, "lane token kv_head d_head"], v: Float[Tensor, "lane token kv_head d_head"],
        base_k: Float[Tensor, "run_token kv_head d_head"], base_v: Float[Tensor, "run_token kv_head d_head"],
    ) -> Float[Tensor, "lane found head d_head"]:  # fmt: skip
        """Attention of one group: keys of the prefix, of each row's clean run before its first token, and its own.

        Queries of all lanes of a row meet the keys that they share in one product, so that no key is ever copied for a lane.
        """
        n_rows, width, kv = group.n_rows, group.n_queries, k.shape[-2]
        rep = q.shape[-2] // kv
        sizes = {"row": n_rows, "kv": kv, "rep": rep}
        asked = rearrange(
            q[:, group.queries],
            "lane (row query) (kv rep) d_head -> kv row lane (query rep) d_head", query=width, **sizes,
        )  # fmt: skip
        own_k = rearrange(k[:, group.keys], "lane (row key) kv d_head -> kv row lane d_head key", row=n_rows)
        own_v = rearrange(v[:, group.keys], "lane (row key) kv d_head -> kv row lane key d_head", row=n_rows)
        flat = rearrange(asked, "kv row lane query d_head -> kv row (lane query) d_head")
        shared: list[Tensor] = []  # values of keys that lanes share, [kv row key d_head] or [kv key d_head]
        scores: list[Tensor] = []
        n_prefix = len(self.layout.runs.prefix)
        if n_prefix:
            assert self.prefix is not None  # who laid the runs out behind one gave it
            keys, values = (_wide(each) for each in self.prefix.at(block.layer, n_prefix))
            every = rearrange(flat, "kv row query d_head -> kv (row query) d_head")
            scores.append(
                rearrange(every @ keys.mT, "kv (row lane query) key -> kv row lane query key", row=n_rows, lane=len(q))
            )
            shared.append(values)
        if group.n_base:
            between = rearrange(base_k[group.base], "(row key) kv d_head -> kv row d_head key", row=n_rows)
            scores.append(rearrange(flat @ between, "kv row (lane query) key -> kv row lane query key", lane=len(q)))
            shared.append(rearrange(base_v[group.base], "(row key) kv d_head -> kv row key d_head", row=n_rows))
        scores.append(asked @ own_k)
        weights = self._weights(block, group, scores, kv, rep)
        out = weights[-1] @ own_v
        for weight, values in zip(weights, shared, strict=False):
            together = rearrange(weight, "kv row lane query key -> kv row (lane query) key")
            if values.ndim == 3:
                got = rearrange(together, "kv row query key -> kv (row query) key") @ values
                got = rearrange(got, "kv (row lane query) d -> kv row lane query d", row=n_rows, lane=len(q))
            else:
                got = rearrange(together @ values, "kv row (lane query) d -> kv row lane query d", lane=len(q))
            out += got
        return rearrange(
            out, "kv row lane (query rep) d_head -> lane (row query) (kv rep) d_head", rep=rep
        )[:, group.found]  # fmt: skip

    def _weights(self, block: Block, group: "_Placed", scores: list[Tensor], kv: int, rep: int) -> tuple[Tensor, ...]:
        """Softmax over all keys of a query, in parts as the scores came."""
        sizes = [score.shape[-1] for score in scores]
        table = torch.cat(scores, -1) if len(scores) > 1 else scores[0]
        scores.clear()  # the parts would stand beside the whole
        if block.soft_cap is not None:
            table = block.soft_cap * torch.tanh(table / block.soft_cap)
        by_query = rearrange(table, "kv row lane (query rep) key -> kv row lane query rep key", rep=rep)
        if block.slopes is not None:
            slopes = rearrange(block.slopes, "(kv rep) -> kv 1 1 1 rep 1", kv=kv)
            by_query += slopes * group.distance
        denied = group.denied(block.window)
        if denied is not None:
            by_query.masked_fill_(denied, -torch.inf)
        if group.cut is not None and group.cut.mode == "mask":
            self._cut(block.layer, by_query, group, kv, -torch.inf)
        if block.sinks is None:
            weights = table.softmax(-1)
        else:  # a key that nobody's value stands behind
            sinks = rearrange(block.sinks, "(kv rep) -> kv 1 1 1 rep 1", kv=kv).expand(*by_query.shape[:-1], 1)
            weights = torch.cat([by_query, sinks.to(table.dtype)], -1).softmax(-1)[..., :-1]
            weights = rearrange(weights, "kv row lane query rep key -> kv row lane (query rep) key")
        if group.cut is not None and group.cut.mode == "zero":
            by_query = rearrange(weights, "kv row lane (query rep) key -> kv row lane query rep key", rep=rep)
            self._cut(block.layer, by_query, group, kv, 0.0)
        return weights.split(sizes, -1)

    def _cut(
        self, layer: int, table: Float[Tensor, "kv row lane query rep key"], group: "_Placed", kv: int, value: float
    ) -> None:
        """Set the cut edges of the chosen heads, in place, in the lanes that are cut in this layer."""
        heads = rearrange(group.heads, "(kv rep) -> kv 1 1 1 rep 1", kv=kv)
        for first, stop in self.lanes.changed(layer):
            table[:, :, first:stop].masked_fill_(group.edges & heads, value)


class _Placed:
    """A group's tables on the model's device."""

    def __init__(self, group: Group, device: torch.device, cut: Cut | None = None) -> None:
        self.group, self.device, self.cut = group, device, cut
        self.n_rows, self.n_queries = group.queries.shape
        self.n_base = group.base.shape[1]
        self.keys, self.queries = _on(device, group.keys.reshape(-1)), _on(device, group.queries.reshape(-1))
        self.found, self.base = _on(device, group.found), _on(device, group.base.reshape(-1))
        self._denied: dict[int | None, Tensor | None] = {}
        self.edges, self.heads = torch.empty(0), torch.empty(0)
        if cut is not None:
            rows = torch.arange(self.n_rows)[:, None, None]
            keys = group.key_positions.clamp(max=cut.edges.shape[-1] - 1)  # slots without a key may lie behind the row
            edges = cut.edges[rows, group.query_positions[:, :, None], keys[:, None, :]] & group.real[:, None, :]
            self.edges = _on(device, rearrange(edges, "row query key -> 1 row 1 query 1 key"))
            self.heads = _on(device, cut.heads)

    @cached_property
    def distance(self) -> Int[Tensor, "1 row 1 query 1 key"]:
        """Position of each key minus that of each query, at most 0."""
        steps = self.group.key_positions[:, None, :] - self.group.query_positions[:, :, None]
        return _on(self.device, rearrange(steps.clamp(max=0), "row query key -> 1 row 1 query 1 key"))

    def denied(self, window: int | None) -> Bool[Tensor, "1 row 1 query 1 key"] | None:
        """True where a query may not read a key; None where all may be read."""
        if window not in self._denied:
            allowed = self.group.allowed(window)
            self._denied[window] = (
                None if allowed is None else _on(self.device, rearrange(~allowed, "row query key -> 1 row 1 query 1 key"))
            )
        return self._denied[window]


def _wide(heads: Float[Tensor, "*token head d_head"]) -> Float[Tensor, "*token head d_head"]:
    """Queries, keys or values for attention: in float32 where they are in half precision on a CPU.

    Their products are small ones of ever other sizes, whose kernels would take longer to make than they take.
    """
    return heads.float() if half_on_cpu(heads.device, heads.dtype) else heads


def _on(device: torch.device, table: Tensor) -> Tensor:
    """A table on the device; copies to a GPU are pinned, so that nothing waits for them."""
    return (
        table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" and not table.is_cuda else table.to(device)
    )
