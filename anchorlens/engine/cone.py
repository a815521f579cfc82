"""The cone engine: the oracle's numbers from one pass up the layers.

In a causal model a change at layer l and position p alters only layers >= l and positions >= p: its cone. This engine computes
nothing else. Clean rows (bases and donors, each different one once) go up the layers together; the cells of a layer join when the
pass reaches it, as copies of their base from the first changed position to the last read one. What stands before that enters their
attention as keys and values of the clean row, which are there already; so do the tokens that all rows begin with, computed once for
many batches. Donor streams are read from the donors' rows in the same pass. All tokens, whatever they belong to, share each matrix
product.

It has the interface of the oracle, :mod:`anchorlens.engine.reference`, and gives the same numbers up to the rounding of float32:
sums are taken in another order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.interventions import Slots, SwapBatch
from anchorlens.engine.layout import Group, Lanes, Pack, Reads, Runs, common_prefix, make_pack
from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.models.blocks import FusedBlocks
from anchorlens.questions.tokens import TokenBatch
from anchorlens.typing import Stream

# A prefix costs a pass of its own over the weights, so it has to spare the rows at least this many tokens.
_WORTH_A_PASS = 32

Heads = Float[Tensor, "token head d_head"]
Tokens = Float[Tensor, "token d_model"]
# Tables that differ in their tokens.
Table = Float[Tensor, "_ d_model"]


@dataclass(frozen=True)
class Prefix:
    """Rotated keys and values of tokens that many rows begin with, by layer: [pos head d_head]."""

    ids: tuple[int, ...]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


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
        edges: True where a query of a row may not read a key, keys in the order of the group.
        mode: ``mask`` or ``zero``.
        heads: True at query heads in which they are cut.
    """

    edges: Bool[Tensor, "row query key"]
    mode: str
    heads: Bool[Tensor, "head"]


class Cone:
    """Measures batches of one model.

    Args:
        adapter: A model for which :func:`anchorlens.models.blocks.unsupported_reason` is None.
        blocks: Its blocks as functions of tokens; fused ones where they are left out.
    """

    def __init__(self, adapter: Adapter, blocks: FusedBlocks | None = None) -> None:
        self.adapter, self.blocks = adapter, blocks or FusedBlocks(adapter.model)
        self._prefix: Prefix | None = None

    def run_swaps(
        self,
        batch: SwapBatch,
        *,
        site: SiteLike,
        layers: Sequence[int],
        window: int,
        on_share: Callable[[float], object] = lambda share: None,  # noqa: ARG005
    ) -> tuple[Metrics, list[Metrics]]:
        """Measure every cell of a batch: see :func:`anchorlens.engine.reference.run_swaps`.

        Args:
            batch: Rows, donors, reader and swaps.
            site: Which activation is replaced.
            layers: Layers that are measured.
            window: How many layers are replaced together around each.
            on_share: Called after each layer with its share of the pass.

        Returns:
            Metrics of the clean pass ([example]), and for each swap those of the changed passes ([layer example]).
        """
        with torch.inference_mode():
            plan = SwapPlan(self, batch)
            lanes = Lanes.windows(layers, window, self.blocks.n_layers)
            states = Pass(self, plan.runs, plan.packs, lanes, str(site), put=plan.put).run(
                batch.reader.where, plan.reads, on_share
            )
            return self._metrics(batch.reader, states, lanes, plan.pack_of_swap)

    def _metrics(
        self, reader: Reader, states: Float[Tensor, "cell read d_model"], lanes: Lanes, pack_of_swap: Sequence[int | None]
    ) -> tuple[Metrics, list[Metrics]]:
        """Metrics of the clean rows and of every swap, lanes in the caller's order."""
        n = len(lanes.start)
        every = reader.metrics(self.adapter, states)
        back = sorted(range(n), key=lambda j: lanes.order[j])

        def at(cells: list[int]) -> Metrics:
            return Metrics(every.p[cells], every.log_p[cells], every.logit_diff[cells])

        clean = at([0])
        before = Metrics(clean.p[0], clean.log_p[0], clean.logit_diff[0])
        # A swap that changes nothing in any row (a null that found no position) leaves everything as it was.
        after = [at([0] * n if p is None else [1 + p * n + j for j in back]) for p in pack_of_swap]
        return before, after

    def last_stream(self, tokens: TokenBatch) -> Stream:
        """What leaves the last block in a clean run, as :func:`anchorlens.engine.reference.last_stream` gives it; 0 at padding."""
        rows = _rows(tokens)
        with torch.inference_mode():
            runs = Runs.make([(row, len(row)) for row in rows], 0)
            x = Pass(self, runs, [], Lanes((), (), (), ()), "").last_stream()
        out = x.new_zeros(*tokens.ids.shape, x.shape[-1])
        out[tokens.mask.to(out.device)] = x
        return out

    def prefix(self, ids: tuple[int, ...], rows: int) -> int:
        """Make keys and values of a prefix ready, where that is worth a pass.

        Args:
            ids: What the rows begin with, at most up to the first position that is changed or read.
            rows: How many rows there are.

        Returns:
            Length of the prefix to use.
        """
        had = self._prefix
        if had is not None:
            shared = common_prefix([had.ids, ids], min(len(had.ids), len(ids)))
            if shared and (len(ids) - shared) * (rows - 1) < _WORTH_A_PASS:
                return shared
        if len(ids) * (rows - 1) < _WORTH_A_PASS:
            return 0
        runs = Runs.make([(ids, len(ids))], 0)
        keys, values = Pass(self, runs, [], Lanes((), (), (), ()), "").keys_and_values()
        self._prefix = Prefix(ids, tuple(keys), tuple(values))
        return len(ids)

    def prefix_at(self, layer: int, length: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values of the first ``length`` tokens, [head pos d_head]; None where there are none."""
        if not length:
            return None
        assert self._prefix is not None  # Runs with a prefix are made after it
        k, v = self._prefix.keys[layer][:length], self._prefix.values[layer][:length]
        return rearrange(k, "pos head d_head -> head pos d_head"), rearrange(v, "pos head d_head -> head pos d_head")


class SwapPlan:
    """The geometry of one batch of swaps.

    Args:
        engine: Has prefixes ready.
        batch: What is to be measured.
    """

    def __init__(self, engine: Cone, batch: SwapBatch) -> None:
        rows = _rows(batch.tokens)
        donors = _rows(batch.donors) if batch.donors is not None else []
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
        prefix = engine.prefix(next(iter(need))[:shared], len(need))
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


def _rows(tokens: TokenBatch) -> list[tuple[int, ...]]:
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


class Pass:
    """One pass up the layers.

    Args:
        engine: Model and prefix.
        runs: Clean rows.
        packs: Cells of a lane.
        lanes: When lanes join and are changed.
        site: Where streams are put.
        put: Which streams.
        cuts: Which edges are cut, by pack.
    """

    def __init__(
        self, engine: Cone, runs: Runs, packs: Sequence[Pack], lanes: Lanes, site: str, *, put: Put | None = None,
        cuts: Sequence[Cut] = (),
    ) -> None:  # fmt: skip
        self.engine, self.blocks, self.lanes, self.site = engine, engine.blocks, lanes, site
        self.runs, self.packs, self.cuts = runs, packs, cuts
        device = engine.adapter.device
        self.n_runs, self.n_cell = len(runs.ids), packs[-1].stop if packs else 0
        self.n_lanes = 0
        self.put = put
        self.ids, self.run_positions = _on(device, runs.ids), _on(device, runs.positions)
        self.join = _on(device, torch.tensor([t for pack in packs for t in pack.join], dtype=torch.long))
        self.cell_positions = _on(device, torch.tensor([p for pack in packs for p in pack.positions], dtype=torch.long))
        groups = [runs.group, *(pack.group for pack in packs)]
        self.groups = [_Placed.of(group, device) for group in groups]
        self.read_groups: list[_Placed] = []
        if put is not None:
            self.cell, self.run_token = _on(device, put.cell), _on(device, put.run.clamp(min=0))
            self.given = None if put.given is None else _on(device, put.given)
            self.from_given = _on(device, put.from_given)
        self.masks: dict[tuple[int, int | None, bool], Tensor | None] = {}
        self.device = device
        self.blocks.reserve(max((int(runs.positions.max()), *(p for pack in packs for p in pack.positions))))

    def keys_and_values(self) -> tuple[list[Tensor], list[Tensor]]:
        """Rotated keys and values of the runs at every layer."""
        keys: list[Tensor] = []
        values: list[Tensor] = []
        with torch.inference_mode():
            x = self.blocks.embed(self.ids, self.run_positions)
            for layer in range(self.blocks.n_layers):
                q, k, v = self.blocks.project(layer, x)
                angles = self.blocks.angles(layer, self.run_positions)
                q, k = self.blocks.rotated(q, angles), self.blocks.rotated(k, angles)
                keys.append(k)
                values.append(v)
                if layer < self.blocks.n_layers - 1:
                    z = self._attend(layer, 0, self.groups[0], q[None], k[None], v[None], k, v)
                    x = self._ended(layer, x, self.blocks.attn_out(layer, z[0]))
        return keys, values

    def last_stream(self) -> Tokens:
        """What leaves the last block."""
        x = self.blocks.embed(self.ids, self.run_positions)
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
        x = self.blocks.embed(self.ids, self.run_positions)
        for layer in range(last):
            x = self._layer(layer, x, None)[1]
            on_share(1 / (last + 1))
        seen, _ = self._layer(last, x, site, reads if trimmed else None)
        on_share(1 / (last + 1))
        return self._gathered(seen, reads, trimmed=trimmed)

    def _layer(self, layer: int, x: Table, seen_at: str | None, trim: Reads | None = None) -> tuple[Table, Table]:
        """One block; what stood at ``seen_at`` and what leaves it."""
        site, blocks, seen = self.site, self.blocks, x
        if site in ("resid_pre", ""):
            (x,) = self._joined(layer, x)
            self._put(layer, x)
        seen = x
        attn = blocks.attn_out(layer, self._attention(layer, x, trim))
        if trim is not None:
            x = x[self._read_tokens(trim)]
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
        out = mid.add_(mlp)
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
        first, stop = self.lanes.changed(layer)
        if self.put is None or first == stop:
            return
        cells = table[self.n_runs :].view(self.n_lanes, self.n_cell, -1)
        values = table[self.run_token]
        if self.given is not None:
            values[self.from_given] = self.given[layer].to(values.dtype)
        cells[first:stop, self.cell] = values

    def _read_tokens(self, reads: Reads) -> Int[Tensor, "token"]:
        """Flat tokens that are read: of the runs, then lane by lane."""
        base = torch.tensor(reads.tokens)
        lane = torch.tensor([pack.first + t for pack in self.packs for t in pack.reads.tokens], dtype=torch.long)
        starts = self.n_runs + self.n_cell * torch.arange(self.n_lanes)[:, None]
        return _on(self.device, torch.cat([base, (starts + lane).reshape(-1)]))

    def _gathered(self, seen: Tokens, reads: Reads, *, trimmed: bool) -> Float[Tensor, "cell read d_model"]:
        """States of the reader's reads: clean, then pack by pack and lane by lane; what a lane does not hold is clean there."""
        if not trimmed:
            seen = seen[self._read_tokens(reads)]
        n_base, n_lanes = len(reads.tokens), len(self.lanes.start)
        clean = seen[:n_base][_on(self.device, reads.of)]
        out = repeat(clean, "read d_model -> cell read d_model", cell=1 + len(self.packs) * n_lanes).clone()
        width = sum(len(pack.reads.tokens) for pack in self.packs)
        lanes = (
            seen[n_base:].reshape(-1, width, seen.shape[-1]) if self.n_lanes else seen[:0].reshape(0, width, seen.shape[-1])
        )
        at = 0
        for i, pack in enumerate(self.packs):
            own = lanes[:, at : at + len(pack.reads.tokens)]
            start = 1 + i * n_lanes
            out[start : start + self.n_lanes, _on(self.device, pack.reads.index)] = own[:, _on(self.device, pack.reads.of)]
            at += len(pack.reads.tokens)
        return out

    def _attention(self, layer: int, x: Table, trim: Reads | None) -> Float[Tensor, "_ head d_head"]:
        """What the heads of every token gather, [token head d_head]; of the read tokens alone where ``trim`` names them."""
        blocks = self.blocks
        q, k, v = blocks.project(layer, x)
        angles, at_cells = blocks.angles(layer, self.run_positions), blocks.angles(layer, self.cell_positions)
        lanes = (self.n_lanes, self.n_cell)
        runs, cells = slice(None, self.n_runs), slice(self.n_runs, None)
        base_k, base_v = blocks.rotated(k[runs], angles), v[runs]
        base_q = blocks.rotated(q[runs], angles)
        groups = self._trimmed(trim) if trim is not None else self.groups
        out = [self._attend(layer, 0, groups[0], base_q[None], base_k[None], base_v[None], base_k, base_v)[0]]
        if self.n_lanes:
            cell_q = blocks.rotated(q[cells].view(*lanes, *q.shape[1:]), at_cells)
            cell_k, cell_v = blocks.rotated(k[cells].view(*lanes, *k.shape[1:]), at_cells), v[cells].view(*lanes, *v.shape[1:])
            found = []
            for i, pack in enumerate(self.packs):
                own = slice(pack.first, pack.stop)
                found.append(
                    self._attend(layer, i + 1, groups[i + 1], cell_q[:, own], cell_k[:, own], cell_v[:, own], base_k, base_v)
                )
            out.append(rearrange(torch.cat(found, 1), "lane token head d_head -> (lane token) head d_head"))
        return torch.cat(out)

    def _trimmed(self, reads: Reads) -> "list[_Placed]":
        """Groups in which only the read tokens ask."""
        if not self.read_groups:
            prefix = len(self.runs.prefix)
            groups = [Group.make([prefix] * len(self.runs.stops), self.runs.stops, prefix, None, reads)]
            groups += [Group.make(p.starts, p.ends, prefix, p.bases, p.reads) for p in self.packs]
            self.read_groups = [_Placed.of(group, self.device) for group in groups]
        return self.read_groups

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
            q[:, group.queries] / blocks.scale(layer),
            "lane (row query) (kv rep) d_head -> kv row lane (query rep) d_head", query=width, **sizes,
        )  # fmt: skip
        own_k = rearrange(k[:, group.keys], "lane (row key) kv d_head -> kv row lane d_head key", row=n_rows)
        own_v = rearrange(v[:, group.keys], "lane (row key) kv d_head -> kv row lane key d_head", row=n_rows)
        flat = rearrange(asked, "kv row lane query d_head -> kv row (lane query) d_head")
        shared: list[Tensor] = []  # values of keys that lanes share, [kv row key d_head] or [kv 1 key d_head]
        scores: list[Tensor] = []
        prefix = self.engine.prefix_at(layer, len(self.runs.prefix))
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
            out = out + got
        return rearrange(
            out, "kv row lane (query rep) d_head -> lane (row query) (kv rep) d_head", rep=rep
        )[:, group.found]  # fmt: skip

    def _weights(self, layer: int, index: int, group: "_Placed", scores: list[Tensor]) -> tuple[Tensor, ...]:
        """Softmax over all keys of a query, in parts as the scores came."""
        blocks = self.blocks
        table = torch.cat(scores, -1) if len(scores) > 1 else scores[0]
        if blocks.soft_cap is not None:
            table = blocks.soft_cap * torch.tanh(table / blocks.soft_cap)
        by_query = rearrange(
            table, "kv row lane (query rep) key -> kv row lane query rep key", rep=blocks.n_heads // blocks.n_kv_heads
        )
        denied = group.denied(blocks.window(layer))
        if denied is not None:
            by_query.masked_fill_(denied, -torch.inf)
        cut = self.cuts[index - 1] if index and self.cuts else None
        first, stop = self.lanes.changed(layer) if cut is not None else (0, 0)
        if cut is not None and first < stop and cut.mode == "mask":
            self._cut(by_query[:, :, first:stop], cut, -torch.inf)
        weights = table.softmax(-1)
        if cut is not None and first < stop and cut.mode == "zero":
            by_query = rearrange(
                weights, "kv row lane (query rep) key -> kv row lane query rep key", rep=blocks.n_heads // blocks.n_kv_heads
            )
            self._cut(by_query[:, :, first:stop], cut, 0.0)
        return weights.split([score.shape[-1] for score in scores], -1)

    def _cut(self, table: Float[Tensor, "kv row lane query rep key"], cut: Cut, value: float) -> None:
        """Set the cut edges of the chosen heads, in place."""
        edges = rearrange(cut.edges, "row query key -> 1 row 1 query 1 key")
        heads = rearrange(cut.heads, "(kv rep) -> kv 1 1 1 rep 1", kv=self.blocks.n_kv_heads)
        table.masked_fill_(edges & heads, value)


class _Placed:
    """A group's tables on the model's device."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group, self.device = group, device
        self.n_rows, self.n_queries = group.queries.shape
        self.n_base = group.base.shape[1]
        self.keys, self.queries = _on(device, group.keys.reshape(-1)), _on(device, group.queries.reshape(-1))
        self.found, self.base = _on(device, group.found), _on(device, group.base.reshape(-1))
        self._denied: dict[int | None, Tensor | None] = {}

    @classmethod
    def of(cls, group: Group, device: torch.device) -> "_Placed":
        return cls(group, device)

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


__all__ = ["Cone", "Cut", "Pass", "Put", "SwapPlan"]
