"""One pass up the layers of the cone engine: clean rows, and the changed lanes that join them (:mod:`anchorlens.engine.layout`)."""

from collections.abc import Callable, Sequence

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.layout import Cut, Group, Lanes, Pack, Prefix, Put, Reads, Runs
from anchorlens.models.adapter import SiteLike
from anchorlens.models.blocks import FusedBlocks

Heads = Float[Tensor, "token head d_head"]
Tokens = Float[Tensor, "token d_model"]
# Tables that differ in their tokens.
Table = Float[Tensor, "_ d_model"]


class Pass:
    """One pass up the layers.

    Args:
        blocks: The model's blocks.
        device: Where they are.
        prefix: Keys and values of what the runs begin with; None where they share nothing, or where this pass makes them.
        runs: Clean rows.
        packs: Cells of a lane.
        lanes: When lanes join and are changed.
        site: Where streams are put.
        put: Which streams.
        cuts: Which edges are cut, by pack.
        lead: What the runs begin with, to be computed in this pass; then :attr:`prefix` holds its keys and values in the end.
    """

    def __init__(
        self, blocks: FusedBlocks, device: torch.device, prefix: Prefix | None, runs: Runs, packs: Sequence[Pack],
        lanes: Lanes, site: str, *, put: Put | None = None, cuts: Sequence[Cut] = (), lead: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.blocks, self.device, self.prefix, self.lanes, self.site = blocks, device, prefix, lanes, site
        self.runs, self.packs, self.cuts = runs, packs, cuts
        # In the flat table the lead stands first, as if it were of the runs.
        self.n_lead, self.n_cell = len(lead), packs[-1].stop if packs else 0
        self.n_runs = self.n_lead + len(runs.ids)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        if lead:
            self.prefix = Prefix(lead, self.keys, self.values)
            self.lead_group = _Placed(Group.make([0], [self.n_lead], 0, None), device)
        self.n_lanes = 0
        self.put = put
        self.lead_positions = _on(device, torch.arange(self.n_lead))
        self.ids = _on(device, torch.cat([torch.tensor(lead, dtype=torch.long), runs.ids]))
        self.run_positions = _on(device, runs.positions)
        self.positions = torch.cat([self.lead_positions, self.run_positions])
        self.join = _on(device, self.n_lead + torch.tensor([t for pack in packs for t in pack.join], dtype=torch.long))
        self.cell_positions = _on(device, torch.tensor([p for pack in packs for p in pack.positions], dtype=torch.long))
        self.groups = self._placed([runs.group, *(pack.group for pack in packs)])
        self.read_groups: list[_Placed] = []
        if put is not None:
            self.cell, self.run_token = _on(device, put.cell), _on(device, self.n_lead + put.run.clamp(min=0))
            self.given = None if put.given is None else _on(device, put.given)
            self.from_given = _on(device, put.from_given)
        self.blocks.reserve(max((int(runs.positions.max()), *(p for pack in packs for p in pack.positions))))

    def keys_and_values(self) -> tuple[list[Tensor], list[Tensor]]:
        """Rotated keys and values of the runs at every layer."""
        keys: list[Tensor] = []
        values: list[Tensor] = []
        with torch.inference_mode():
            x = self.blocks.embed(self.ids, self.positions)
            for layer in range(self.blocks.n_layers):
                q, k, v = self.blocks.project(layer, x)
                q /= self.blocks.scale(layer)
                angles = self.blocks.angles(layer, self.run_positions)
                q, k = self.blocks.rotate_(q, angles), self.blocks.rotate_(k, angles)
                keys.append(k)
                values.append(v)
                if layer < self.blocks.n_layers - 1:
                    z = self._attend(layer, 0, self.groups[0], q[None], k[None], v[None], k, v)
                    x = self._ended(layer, x, self.blocks.attn_out(layer, z[0]))
        return keys, values

    def last_stream(self) -> Tokens:
        """What leaves the last block."""
        x = self.blocks.embed(self.ids, self.positions)
        for layer in range(self.blocks.n_layers):
            x = self._layer(layer, x, None)[1]
        return x

    def _ended(self, layer: int, x: Tokens, attn: Tokens) -> Tokens:
        mid = x + attn
        return mid + self.blocks.mlp_out(layer, x if self.blocks.parallel else mid)

    def run(
        self, where: tuple[SiteLike, int] | None, reads: Reads, on_share: Callable[[float], object]
    ) -> Float[Tensor, "cell read d_model"]:
        """States that the reader asks for: of the clean rows, and of every pack and lane.

        Args:
            where: Site and layer; None: the stream that leaves the last block.
            reads: What is read of the runs.
            on_share: Called after each layer with its share of the pass.
        """
        last = self.blocks.n_layers - 1 if where is None else where[1]
        site = "resid_post" if where is None else str(where[0])
        # In the last layer only what is read has to be asked for; but what is put there after its attention has other places.
        trimmed = where is None and self.site in ("resid_pre", "")
        x = self.blocks.embed(self.ids, self.positions)
        for layer in range(last):
            x = self._layer(layer, x, None)[1]
            on_share(1 / (last + 1))
        seen, _ = self._layer(last, x, site, reads if trimmed else None)
        on_share(1 / (last + 1))
        return self._gathered(seen, reads, trimmed=trimmed)

    def run_everywhere(
        self, site: str, reads: Reads, on_share: Callable[[float], object]
    ) -> Float[Tensor, "layer cell read d_model"]:
        """What :meth:`run` gives, at every layer."""
        x = self.blocks.embed(self.ids, self.positions)
        found: list[Tensor] = []
        for layer in range(self.blocks.n_layers):
            seen, x = self._layer(layer, x, site)
            found.append(self._gathered(seen, reads, trimmed=False))
            on_share(1 / self.blocks.n_layers)
        return torch.stack(found)

    def _layer(self, layer: int, x: Table, seen_at: str | None, trim: Reads | None = None) -> tuple[Table, Table]:
        """One block; what stood at ``seen_at`` and what leaves it."""
        site, blocks, seen = self.site, self.blocks, x
        if site in ("resid_pre", ""):
            (x,) = self._joined(layer, x)
            self._put(layer, x)
        seen = x
        attn = blocks.attn_out(layer, self._attention(layer, x, trim))
        if trim is not None:
            x = x[self._read_tokens(trim, self.n_lanes)]
        if site == "attn_out":
            x, attn = self._joined(layer, x, attn)
            self._put(layer, attn)
        seen = attn if seen_at == "attn_out" else seen
        mid = x + attn
        if site == "resid_mid":
            (mid,) = self._joined(layer, mid)
            self._put(layer, mid)
        seen = mid if seen_at == "resid_mid" else seen
        mlp = blocks.mlp_out(layer, x if blocks.parallel else mid)
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
        if self.put is None or not changed:
            return
        cells = table[self.n_runs :].view(self.n_lanes, self.n_cell, -1)
        values = table[self.run_token]
        if self.given is not None:
            values[self.from_given] = self.given[layer].to(values.dtype)
        for first, stop in changed:
            cells[first:stop, self.cell] = values

    def _read_tokens(self, reads: Reads, n_lanes: int) -> Int[Tensor, "token"]:
        """Flat tokens that are read: of the runs, then of so many lanes."""
        base = self.n_lead + torch.tensor(reads.tokens)
        lane = torch.tensor([pack.first + t for pack in self.packs for t in pack.reads.tokens], dtype=torch.long)
        starts = self.n_runs + self.n_cell * torch.arange(n_lanes)[:, None]
        return _on(self.device, torch.cat([base, (starts + lane).reshape(-1)]))

    def _gathered(self, seen: Tokens, reads: Reads, *, trimmed: bool) -> Float[Tensor, "cell read d_model"]:
        """States of the reader's reads: clean, then pack by pack and lane by lane; what a lane does not hold is clean there."""
        # Lanes that joined after what is read, in the same layer, are not in it.
        held = self.n_lanes if trimmed or not self.n_cell else (len(seen) - self.n_runs) // self.n_cell
        if not trimmed:
            seen = seen[self._read_tokens(reads, held)]
        n_base, n_lanes = len(reads.tokens), len(self.lanes.start)
        clean = seen[:n_base][_on(self.device, reads.of)]
        out = repeat(clean, "read d_model -> cell read d_model", cell=1 + len(self.packs) * n_lanes).clone()
        width = sum(len(pack.reads.tokens) for pack in self.packs)
        lanes = seen[n_base:].reshape(held, width, seen.shape[-1])
        at = 0
        for i, pack in enumerate(self.packs):
            own = lanes[:, at : at + len(pack.reads.tokens)]
            start = 1 + i * n_lanes
            out[start : start + held, _on(self.device, pack.reads.index)] = own[:, _on(self.device, pack.reads.of)]
            at += len(pack.reads.tokens)
        return out

    def _attention(self, layer: int, x: Table, trim: Reads | None) -> Float[Tensor, "_ head d_head"]:
        """What the heads of every token gather, [token head d_head]; of the read tokens alone where ``trim`` names them."""
        blocks = self.blocks
        q, k, v = blocks.project(layer, x)
        q /= blocks.scale(layer)
        angles, at_cells = blocks.angles(layer, self.positions), blocks.angles(layer, self.cell_positions)
        n, lanes, lead = self.n_runs, (self.n_lanes, self.n_cell), self.n_lead
        base_q, base_k, base_v = blocks.rotate_(q[:n], angles), blocks.rotate_(k[:n], angles), v[:n]
        if lead:
            self.keys.append(base_k[:lead].clone())
            self.values.append(base_v[:lead].clone())
        groups = self._trimmed(trim) if trim is not None else self.groups
        sizes = [len(group.found) for group in groups]
        out = q.new_empty((lead if trim is None else 0) + sizes[0] + self.n_lanes * sum(sizes[1:]), *q.shape[1:])
        whole = out
        if lead and trim is None:
            own = base_q[None, :lead], base_k[None, :lead], base_v[None, :lead]
            out[:lead] = self._attend(layer, 0, self.lead_group, *own, base_k, base_v)[0]
            out = out[lead:]
        base_q, base_k, base_v = base_q[lead:], base_k[lead:], base_v[lead:]
        out[: sizes[0]] = self._attend(layer, 0, groups[0], base_q[None], base_k[None], base_v[None], base_k, base_v)[0]
        if not self.n_lanes:
            return whole
        cell_q = blocks.rotate_(q[n:].view(*lanes, *q.shape[1:]), at_cells)
        cell_k, cell_v = blocks.rotate_(k[n:].view(*lanes, *k.shape[1:]), at_cells), v[n:].view(*lanes, *v.shape[1:])
        in_lanes = out[sizes[0] :].view(self.n_lanes, sum(sizes[1:]), *q.shape[1:])
        at = 0
        for i, pack in enumerate(self.packs, 1):
            own = slice(pack.first, pack.stop)
            in_lanes[:, at : at + sizes[i]] = self._attend(
                layer, i, groups[i], cell_q[:, own], cell_k[:, own], cell_v[:, own], base_k, base_v
            )
            at += sizes[i]
        return whole

    def _trimmed(self, reads: Reads) -> "list[_Placed]":
        """Groups in which only the read tokens ask."""
        if not self.read_groups:
            prefix = len(self.runs.prefix)
            groups = [Group.make([prefix] * len(self.runs.stops), self.runs.stops, prefix, None, reads)]
            groups += [Group.make(p.starts, p.ends, prefix, p.bases, p.reads) for p in self.packs]
            self.read_groups = self._placed(groups)
        return self.read_groups

    def _placed(self, groups: Sequence[Group]) -> "list[_Placed]":
        """Groups on the device, with the cuts of their packs."""
        return [_Placed(group, self.device, self.cuts[i - 1] if i and self.cuts else None) for i, group in enumerate(groups)]

    def _attend(
        self, layer: int, index: int, group: "_Placed", q: Float[Tensor, "lane token head d_head"],
        k: Float[Tensor, "lane token kv_head d_head"], v: Float[Tensor, "lane token kv_head d_head"],
        base_k: Float[Tensor, "run_token kv_head d_head"], base_v: Float[Tensor, "run_token kv_head d_head"],
    ) -> Float[Tensor, "lane found head d_head"]:  # fmt: skip
        """Attention of one group: keys of the prefix, of each row's clean run before its first token, and its own.

        Queries of all lanes of a row meet the keys that they share in one product, so that no key is ever copied for a lane.
        """
        blocks, n_rows, width = self.blocks, group.n_rows, group.n_queries
        kv, rep = blocks.n_kv_heads, blocks.n_heads // blocks.n_kv_heads
        sizes = {"row": n_rows, "kv": kv, "rep": rep}
        asked = rearrange(
            q[:, group.queries],
            "lane (row query) (kv rep) d_head -> kv row lane (query rep) d_head", query=width, **sizes,
        )  # fmt: skip
        own_k = rearrange(k[:, group.keys], "lane (row key) kv d_head -> kv row lane d_head key", row=n_rows)
        own_v = rearrange(v[:, group.keys], "lane (row key) kv d_head -> kv row lane key d_head", row=n_rows)
        flat = rearrange(asked, "kv row lane query d_head -> kv row (lane query) d_head")
        shared: list[Tensor] = []  # values of keys that lanes share, [kv row key d_head] or [kv 1 key d_head]
        scores: list[Tensor] = []
        leads = self.n_lead and group is self.lead_group
        prefix = None if self.prefix is None or leads else self.prefix.at(layer, len(self.runs.prefix))
        if prefix is not None:
            every = rearrange(flat, "kv row query d_head -> kv (row query) d_head")
            scores.append(
                rearrange(every @ prefix[0].mT, "kv (row lane query) key -> kv row lane query key", row=n_rows, lane=len(q))
            )
            shared.append(prefix[1])
        if group.n_base:
            between = rearrange(base_k[group.base], "(row key) kv d_head -> kv row d_head key", row=n_rows)
            scores.append(rearrange(flat @ between, "kv row (lane query) key -> kv row lane query key", lane=len(q)))
            shared.append(rearrange(base_v[group.base], "(row key) kv d_head -> kv row key d_head", row=n_rows))
        scores.append(asked @ own_k)
        weights = self._weights(layer, index, group, scores)
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

    def _weights(self, layer: int, index: int, group: "_Placed", scores: list[Tensor]) -> tuple[Tensor, ...]:
        """Softmax over all keys of a query, in parts as the scores came."""
        blocks = self.blocks
        sizes = [score.shape[-1] for score in scores]
        table = torch.cat(scores, -1) if len(scores) > 1 else scores[0]
        scores.clear()  # the parts would stand beside the whole
        if blocks.soft_cap is not None:
            table = blocks.soft_cap * torch.tanh(table / blocks.soft_cap)
        by_query = rearrange(
            table, "kv row lane (query rep) key -> kv row lane query rep key", rep=blocks.n_heads // blocks.n_kv_heads
        )
        denied = group.denied(blocks.window(layer))
        if denied is not None:
            by_query.masked_fill_(denied, -torch.inf)
        cut = self.cuts[index - 1] if index and self.cuts else None
        if cut is not None and cut.mode == "mask":
            self._cut(layer, by_query, group, -torch.inf)
        weights = table.softmax(-1)
        if cut is not None and cut.mode == "zero":
            by_query = rearrange(
                weights, "kv row lane (query rep) key -> kv row lane query rep key", rep=blocks.n_heads // blocks.n_kv_heads
            )
            self._cut(layer, by_query, group, 0.0)
        return weights.split(sizes, -1)

    def _cut(self, layer: int, table: Float[Tensor, "kv row lane query rep key"], group: "_Placed", value: float) -> None:
        """Set the cut edges of the chosen heads, in place, in the lanes that are cut in this layer."""
        assert group.cut is not None  # packs with cuts are placed with them
        assert group.heads is not None
        heads = rearrange(group.heads, "(kv rep) -> kv 1 1 1 rep 1", kv=self.blocks.n_kv_heads)
        for first, stop in self.lanes.changed(layer):
            table[:, :, first:stop].masked_fill_(group.cut & heads, value)


class _Placed:
    """A group's tables on the model's device."""

    def __init__(self, group: Group, device: torch.device, cut: Cut | None = None) -> None:
        self.group, self.device = group, device
        self.n_rows, self.n_queries = group.queries.shape
        self.n_base = group.base.shape[1]
        self.keys, self.queries = _on(device, group.keys.reshape(-1)), _on(device, group.queries.reshape(-1))
        self.found, self.base = _on(device, group.found), _on(device, group.base.reshape(-1))
        self._denied: dict[int | None, Tensor | None] = {}
        self.cut: Tensor | None = None
        self.heads: Tensor | None = None
        if cut is not None:
            rows = torch.arange(self.n_rows)[:, None, None]
            keys = group.key_positions.clamp(max=cut.edges.shape[-1] - 1)  # slots without a key may lie behind the row
            edges = cut.edges[rows, group.query_positions[:, :, None], keys[:, None, :]] & group.real[:, None, :]
            self.cut = _on(device, rearrange(edges, "row query key -> 1 row 1 query 1 key"))
            self.heads = _on(device, cut.heads)

    def denied(self, window: int | None) -> Bool[Tensor, "1 row 1 query 1 key"] | None:
        """True where a query may not read a key; None where all may be read."""
        if window not in self._denied:
            allowed = self.group.allowed(window)
            self._denied[window] = (
                None if allowed is None else _on(self.device, rearrange(~allowed, "row query key -> 1 row 1 query 1 key"))
            )
        return self._denied[window]


def _on(device: torch.device, table: Tensor) -> Tensor:
    """A table on the device; copies to a GPU are pinned, so that nothing waits for them."""
    return (
        table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" and not table.is_cuda else table.to(device)
    )


__all__ = ["Pass"]
