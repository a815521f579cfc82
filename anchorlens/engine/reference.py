"""The reference engine: TransformerLens hooks and one full forward pass per cell.

The cone engine is tested against it. No result is reused between cells. Clean and patched passes
have the same batch shape, so a patch without effect gives ΔP = 0 exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from anchorlens.engine.cost import FULL_PASSES, MOST_TOKENS, PassSize, rows_bytes, rows_flops
from anchorlens.engine.engine import Engine
from anchorlens.engine.hooked_passes import (
    MIN_SHARED_TOKENS,
    capture,
    full_reader,
    measure,
    read_states,
    run_prefix,
    states_at,
)
from anchorlens.engine.knockout import AttentionKnockout, knockout_hooks
from anchorlens.engine.patches import (
    AnchorSwap,
    KnockoutBatch,
    OnProgress,
    Slots,
    SwapBatch,
    TokenBatch,
    by_head,
    check_windows,
    no_progress,
    pad_rows,
    token_rows,
    turn,
    window_layers,
)
from anchorlens.engine.readouts import Metrics
from anchorlens.models.adapter import Adapter, Hook, ReadSite, SiteLike
from anchorlens.typing import SlotStreams


class ReferenceEngine(Engine):
    """Engine that runs a full forward pass with hooks for every cell.

    Args:
        adapter: The model.
        reason: Reason why it replaces the cone engine; "" if it was requested.
        min_shared_tokens: :meth:`run_cells` runs the common prefix of its rows once if that saves
            at least this number of tokens.
    """

    name = "reference"

    def __init__(
        self, adapter: Adapter, reason: str = "", min_shared_tokens: int = MIN_SHARED_TOKENS
    ) -> None:
        self.adapter = adapter
        self.reason = reason
        self.min_shared_tokens = min_shared_tokens

    @override
    def reset(self, shared: Sequence[int] = ()) -> None:
        """Do nothing: this engine keeps no state."""

    @override
    def run_swaps(
        self,
        batch: SwapBatch,
        *,
        site: SiteLike,
        layers: Sequence[int],
        window: int,
        on_progress: OnProgress = no_progress,
    ) -> tuple[Metrics, list[Metrics]]:
        adapter = self.adapter
        passes = 1 + len(batch.swaps) * len(layers)
        reader = full_reader(batch.reader)

        def run(hooks: Sequence[Hook]) -> Metrics:
            metrics = measure(adapter, batch.tokens, hooks, reader)
            on_progress(1 / passes)
            return metrics

        before = run(())
        after: list[Metrics] = []
        for swap, streams in zip(batch.swaps, swap_streams(adapter, batch, site), strict=True):
            cells: list[Metrics] = []
            for layer in layers:
                own = window_layers(layer, window, adapter.n_layers)
                cells.append(run(swap_hooks(adapter, swap.slots, streams, site, own, swap.heads)))
            values: dict[str, Tensor] = {}
            for name in before.values:
                of_layers = [cell.values[name] for cell in cells]
                values[name] = torch.stack(of_layers)
            after.append(Metrics(values))
        return before, after

    @override
    def run_swap_batches(
        self,
        batches: Sequence[tuple[SwapBatch, Sequence[int]]],
        *,
        site: SiteLike,
        window: int,
        on_progress: OnProgress = no_progress,
    ) -> list[tuple[Metrics, list[Metrics]]]:
        share = 1 / len(batches)
        out: list[tuple[Metrics, list[Metrics]]] = []
        for batch, layers in batches:
            values = self.run_swaps(
                batch,
                site=site,
                layers=layers,
                window=window,
                on_progress=lambda done: on_progress(share * done),
            )
            out.append(values)
        return out

    def run_cells(
        self, batch: SwapBatch, *, site: SiteLike, layers: Sequence[int], window: int
    ) -> tuple[Metrics, Metrics]:
        """Measure one cell per row in one forward pass over clean rows, donors and patched rows.

        Row i is patched in the window around ``layers[i]``, so that spot checks of different layers
        share a pass. Donor streams are read in the same pass. The common prefix is run once, into
        TransformerLens's key-value cache.

        Returns:
            Metrics before and after the patch, [example].
        """
        (swap,) = batch.swaps
        n = len(layers)
        if n == 1:  # the smallest memory holds one row at a time
            before, (after,) = self.run_swaps(batch, site=site, layers=layers, window=window)
            return before, after.map(lambda value: value[0])
        adapter = self.adapter
        bases = token_rows(batch.tokens)
        donors = [] if swap.source is None or batch.donors is None else token_rows(batch.donors)
        # Equal clean rows and donors are computed once; the patched rows come last.
        distinct = list(dict.fromkeys([*bases, *donors]))
        tokens = pad_rows([*distinct, *bases])
        row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
        target = swap.slots.positions[row, slot]
        source = None if swap.source is None else swap.source.positions[row, slot]
        reader = full_reader(batch.reader)
        used = [target, reader.position] if source is None else [target, reader.position, source]
        first = min(int(positions.min()) for positions in used if len(positions))
        n_shared, cache = run_prefix(adapter, tokens, first, self.min_shared_tokens)
        patches = _RowPatches(
            swap=swap,
            site=site,
            row=row,
            slot=slot,
            target=target - n_shared,
            source=None if source is None else source - n_shared,
            clean=_find_rows(bases, distinct),
            donor=_find_rows(donors, distinct),
            changed=len(distinct) + torch.arange(n),
        )
        states = states_at(
            adapter,
            TokenBatch(tokens.ids[:, n_shared:], tokens.mask[:, n_shared:]),
            patches.hooks(adapter, layers, window),
            reader.where,
            torch.cat([patches.clean[reader.row], patches.changed[reader.row]]),
            (reader.position - n_shared).repeat(2),
            cache=cache,
        )
        of_clean, of_changed = states.chunk(2)
        return reader.metrics(adapter, of_clean), reader.metrics(adapter, of_changed)

    @override
    def knockout_states(
        self,
        batch: KnockoutBatch,
        *,
        where: ReadSite | None,
        windows: Sequence[range],
        on_progress: OnProgress = no_progress,
    ) -> Float[Tensor, "variant window read d_model"]:
        check_windows(windows)
        out: list[Tensor] = []
        for edges in batch.edges:
            for window in windows:
                cut = AttentionKnockout(edges, tuple(window), batch.mode, batch.heads)
                hooks = knockout_hooks(self.adapter, cut) if window else []
                states = states_at(
                    self.adapter, batch.tokens, hooks, where, batch.row, batch.position
                )
                out.append(states)
                on_progress(1 / (len(batch.edges) * len(windows)))
        return torch.stack(out).unflatten(0, (len(batch.edges), len(windows)))

    @override
    def knockout_states_all_layers(
        self,
        batch: KnockoutBatch,
        *,
        site: SiteLike,
        layers: range,
        on_progress: OnProgress = no_progress,
    ) -> Float[Tensor, "run layer read d_model"]:
        check_windows([layers])
        where = Slots(batch.position[:, None], torch.ones(len(batch.position), 1, dtype=torch.bool))
        assert torch.equal(batch.row, torch.arange(len(batch.tokens.ids)))  # one read a row
        states: list[Tensor] = []
        for edges in (None, *batch.edges):
            cut = None
            if edges is not None:
                cut = AttentionKnockout(edges, tuple(layers), batch.mode, batch.heads)
            states.append(read_states(self.adapter, batch.tokens, where, site, cut)[:, :, 0])
            on_progress(1 / (1 + len(batch.edges)))
        return torch.stack(states)

    @override
    def pass_bytes(self, size: PassSize, lanes: int) -> int:
        vocab_rows = 8 * size.clean_rows + size.vocab_rows
        return rows_bytes(self.adapter.shape, size.clean_rows, size.clean_keys, vocab_rows)

    @override
    def pass_terms(self, size: PassSize, lanes: int) -> dict[str, int]:
        return {FULL_PASSES: self.pass_bytes(size, lanes)}

    @override
    def pass_flops(self, size: PassSize, starts: Sequence[int]) -> float:
        shape = self.adapter.shape
        changed = sum(rows_flops(shape, rows, keys) for _, rows, _, keys in size.cell_groups)
        return rows_flops(shape, size.clean_rows, size.clean_keys) + len(starts) * changed

    @override
    def saturates(self, size: PassSize, lanes: int) -> bool:
        if self.adapter.shape.streamed is not None:
            return False
        return size.clean_rows * size.clean_keys > MOST_TOKENS.get(
            self.adapter.device.type, MOST_TOKENS["cpu"]
        )


@dataclass(frozen=True, kw_only=True)
class _RowPatches:
    """Patches of a swap in a forward pass over clean rows, donors and patched rows.

    Attributes:
        swap: Swap whose patches are written.
        site: Patched site.
        row: Row of the batch of each patch.
        slot: Slot of each patch in its row.
        target: Patched position, after the prefix.
        source: Position in the donor's row, after the prefix; None if streams are given.
        clean: Row of the pass that is the clean run of each row of the batch.
        donor: Row of the pass that is the donor of each row of the batch; empty without donors.
        changed: Row of the pass in which each row of the batch is patched.
    """

    swap: AnchorSwap
    site: SiteLike
    row: Int[Tensor, "patch"]
    slot: Int[Tensor, "patch"]
    target: Int[Tensor, "patch"]
    source: Int[Tensor, "patch"] | None
    clean: Int[Tensor, "example"]
    donor: Int[Tensor, "donor"]
    changed: Int[Tensor, "example"]

    def hooks(self, adapter: Adapter, layers: Sequence[int], window: int) -> list[Hook]:
        """Return the hooks that patch row i in the window around ``layers[i]``."""
        windows = [window_layers(layer, window, adapter.n_layers) for layer in layers]
        rows = self.row.tolist()
        hooks: list[Hook] = []
        for layer in range(adapter.n_layers):
            patches = [i for i, row in enumerate(rows) if layer in windows[row]]
            if patches:
                patch = partial(self._patch, layer=layer, patches=patches)
                hooks.append((adapter.hook_name(self.site, layer), patch))
        return hooks

    def _patch(
        self,
        value: Tensor,
        hook: Any,  # noqa: ARG002
        layer: int,
        patches: list[int],
    ) -> Tensor:
        """Return an activation of a layer in which some patches are written."""
        swap = self.swap
        of = torch.tensor(patches)
        row = self.row[of]
        out = value.clone()
        before = by_head(value, self.site)
        heads = _heads(swap.heads, before.shape[2])
        if self.source is not None:
            new = before[self.donor[row], self.source[of], heads]
        else:
            assert swap.streams is not None  # a swap has one or the other
            given = swap.streams[layer, row, self.slot[of]].to(value.dtype).to(value.device)
            new = _split(given, before.shape[2])[:, heads]
        for n, i in enumerate(patches):
            direction = swap.directions.get(int(self.row[i]))
            if direction is not None:
                own = before[self.clean[self.row[i]], self.target[i], heads]
                towards = direction[layer, self.slot[i]]
                turned = turn(own.flatten(), new[n].flatten(), towards)
                new[n] = _split(turned, len(own))
        by_head(out, self.site)[self.changed[row], self.target[of], heads] = new
        return out


def _find_rows(
    rows: Sequence[tuple[int, ...]], distinct: Sequence[tuple[int, ...]]
) -> Int[Tensor, "row"]:
    """Return the index of each row among distinct rows."""
    return torch.tensor([distinct.index(row) for row in rows], dtype=torch.long)


def donor_streams(adapter: Adapter, batch: SwapBatch, site: SiteLike) -> list[SlotStreams]:
    """Return the activations that each swap patches in: its given ones, or those of one clean pass
    over the donors.

    Swaps with the same sources, such as those of several heads, share one tensor.
    """
    wanted: dict[object, Slots] = {}
    for swap in batch.swaps:
        if swap.source is not None:
            wanted.setdefault(_positions_of(swap.source), swap.source)
    captured: dict[object, SlotStreams] = {}
    if batch.donors is not None and wanted:
        read = capture(adapter, batch.donors, site, [*wanted.values()])
        captured = dict(zip(wanted, read, strict=True))
    streams: list[SlotStreams] = []
    for swap in batch.swaps:
        if swap.source is not None:
            streams.append(captured[_positions_of(swap.source)])
        else:
            assert swap.streams is not None  # a swap has one or the other
            streams.append(swap.streams)
    return streams


def _positions_of(slots: Slots) -> object:
    """Return a key that is equal for equal positions."""
    return tuple(slots.positions.shape), tuple(slots.positions.flatten().tolist())


def swap_streams(adapter: Adapter, batch: SwapBatch, site: SiteLike) -> list[SlotStreams]:
    """Return the activations of each swap; in rows with ``directions``, the row's own activations
    turned towards these.
    """
    donors = donor_streams(adapter, batch, site)
    streams: list[SlotStreams] = []
    for swap, donor in zip(batch.swaps, donors, strict=True):
        own = _in_directions(adapter, batch.tokens, site, swap, donor)
        streams.append(own)
    return streams


def _in_directions(
    adapter: Adapter, tokens: TokenBatch, site: SiteLike, swap: AnchorSwap, donor: SlotStreams
) -> SlotStreams:
    """Return the donor's streams; in rows with ``directions``, the row's own streams turned towards
    these instead.
    """
    if not swap.directions:
        return donor
    (own,) = capture(adapter, tokens, site, [swap.slots])
    streams = donor.to(torch.promote_types(donor.dtype, torch.float32), copy=True)
    n_heads = adapter.n_heads(site)
    heads = _heads(swap.heads, n_heads)
    for i, directions in swap.directions.items():
        n = directions.shape[1]
        moved = _split(streams[:, i, :n], n_heads)[:, :, heads]
        base = _split(own[:, i, :n], n_heads)[:, :, heads]
        other = _split(donor[:, i, :n], n_heads)[:, :, heads]
        new = turn(base.flatten(-2), other.flatten(-2), directions)
        moved.copy_(_split(new, moved.shape[2]))
    return streams


def swap_hooks(
    adapter: Adapter,
    slots: Slots,
    streams: SlotStreams,
    site: SiteLike,
    layers: Sequence[int],
    heads: range | None = None,
) -> list[Hook]:
    """Return one hook per layer of ``layers`` that replaces the activations at the slots;
    ``heads``: if None, of all heads.
    """
    row, slot = torch.nonzero(slots.mask, as_tuple=True)

    def patch(value: Tensor, hook: Any, layer: int) -> Tensor:  # noqa: ARG001
        changed = value.clone()
        at = by_head(changed, site)
        some = _heads(heads, at.shape[2])
        new = streams[layer, row, slot].to(value.dtype).to(value.device)
        at[row, slots.positions[row, slot], some] = _split(new, at.shape[2])[:, some]
        return changed

    return [(adapter.hook_name(site, layer), partial(patch, layer=layer)) for layer in layers]


def _split(states: Float[Tensor, "*slot all"], n_heads: int) -> Float[Tensor, "*slot head width"]:
    return states.unflatten(-1, (n_heads, -1))


def _heads(heads: range | None, n_heads: int) -> slice:
    """Return the slice of neighbouring heads; if None, of all."""
    return slice(0, n_heads) if heads is None else slice(heads.start, heads.stop)
