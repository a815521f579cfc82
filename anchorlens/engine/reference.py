"""The oracle: hooks, and one full forward pass for every cell. Slow, obvious, kept forever.

Every faster way to get the same numbers is tested against this one. Nothing is reused between cells, and the rows of a batch stay
together: the clean pass that gives P before and the changed passes have the same shape, so a change that does nothing gives a ΔP
of exactly zero.
"""

from collections.abc import Sequence
from functools import partial

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry
from transformer_lens.hook_points import HookPoint
from typing_extensions import override

from anchorlens.engine.cost import MOST_TOKENS, PassSize, rows_bytes, rows_flops
from anchorlens.engine.engine import Engine
from anchorlens.engine.knockout import AttentionKnockout, knockout_hooks
from anchorlens.engine.patches import (
    KnockoutBatch,
    OnProgress,
    Slots,
    SwapBatch,
    check_windows,
    no_progress,
    token_rows,
    window_layers,
)
from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.errors import HookError
from anchorlens.models.adapter import Adapter, Hook, SiteLike
from anchorlens.prompts.batches import TokenBatch, common_prefix, pad_rows
from anchorlens.typing import SlotStreams, Stream


class ReferenceEngine(Engine):
    """Measures batches of one model, cell by cell.

    Args:
        adapter: The model.
        reason: Why it is the oracle, where the cone was asked for.
        min_shared_tokens: Tokens that a beginning which is run once has to spare in :meth:`run_cells`: its pass reads all weights again.
    """

    name = "reference"

    def __init__(self, adapter: Adapter, reason: str = "", min_shared_tokens: int = 64) -> None:
        self.adapter, self.reason, self.min_shared_tokens = adapter, reason, min_shared_tokens

    @override
    def reset(self, shared: Sequence[int] = ()) -> None:
        """Do nothing: this engine keeps no state."""

    @override
    def run_swaps(
        self, batch: SwapBatch, *, site: SiteLike, layers: Sequence[int], window: int, on_progress: OnProgress = no_progress
    ) -> tuple[Metrics, list[Metrics]]:
        adapter, passes = self.adapter, 1 + len(batch.swaps) * len(layers)

        def measured(hooks: Sequence[Hook]) -> Metrics:
            metrics = measure(adapter, batch.tokens, hooks, batch.reader)
            on_progress(1 / passes)
            return metrics

        before, after = measured(()), list[Metrics]()
        for swap, streams in zip(batch.swaps, donor_streams(adapter, batch, site), strict=True):
            around = (window_layers(layer, window, adapter.n_layers) for layer in layers)
            cells = [measured(swap_hooks(adapter, swap.slots, streams, site, where)) for where in around]
            after.append(Metrics({name: torch.stack([cell.values[name] for cell in cells]) for name in before.values}))
        return before, after

    def run_cells(self, batch: SwapBatch, *, site: SiteLike, layers: Sequence[int], window: int) -> tuple[Metrics, Metrics]:
        """One cell a row, all in one forward pass: the clean rows, their donors, and the rows that are changed.

        What :meth:`run_swaps` does in a pass for each cell, for a few cells of many layers. A donor's streams are taken from its
        row on the way. What all rows begin with goes through the model once, into the model's own cache of keys and values.

        Returns:
            Metrics before and after, [example].
        """
        (swap,), n = batch.swaps, len(layers)
        if n == 1:  # one row at a time is all that the smallest memory holds
            before, (after,) = self.run_swaps(batch, site=site, layers=layers, window=window)
            return before, after.map(lambda value: value[0])
        bases = token_rows(batch.tokens)
        donors = [] if swap.source is None or batch.donors is None else token_rows(batch.donors)
        # Equal clean rows and donors are computed once; the changed rows come last, each for itself.
        distinct = list(dict.fromkeys([*bases, *donors]))
        clean, donor = (torch.tensor([distinct.index(row) for row in rows], dtype=torch.long) for rows in (bases, donors))
        tokens, changed = pad_rows([*distinct, *bases]), len(distinct) + torch.arange(n)
        row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
        reader = batch.reader
        used = [swap.slots.positions[row, slot], reader.position]
        if swap.source is not None:
            used.append(swap.source.positions[row, slot])
        first = min(int(positions.min()) for positions in used if len(positions))
        n_shared, cache = _beginning(self.adapter, tokens, first, self.min_shared_tokens)
        tokens = TokenBatch(tokens.ids[:, n_shared:], tokens.mask[:, n_shared:])
        target = swap.slots.positions[row, slot] - n_shared
        around = [window_layers(layer, window, self.adapter.n_layers) for layer in layers]

        def put_at(layer: int, own: list[int]) -> Hook:
            of = torch.tensor(own)

            def put(value: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
                out = value.clone()
                if swap.source is not None:
                    new = value[donor[row[of]], swap.source.positions[row, slot][of] - n_shared]
                else:
                    assert swap.streams is not None  # a swap has one or the other
                    new = swap.streams[layer, row[of], slot[of]].to(value.dtype).to(value.device)
                out[changed[row[of]], target[of]] = new
                return out

            return self.adapter.hook_name(site, layer), put

        owned = {k: [i for i, r in enumerate(row.tolist()) if k in around[r]] for k in range(self.adapter.n_layers)}
        rows = torch.cat([clean[reader.row], changed[reader.row]])
        hooks = [put_at(layer, own) for layer, own in owned.items() if own]
        states = states_at(self.adapter, tokens, hooks, reader.where, rows, (reader.position - n_shared).repeat(2), cache)
        before, after = (reader.metrics(self.adapter, part) for part in states.chunk(2))
        return before, after

    @override
    def knockout_states(
        self,
        batch: KnockoutBatch,
        *,
        where: tuple[SiteLike, int] | None,
        windows: Sequence[range],
        on_progress: OnProgress = no_progress,
    ) -> Float[Tensor, "variant window read d_model"]:
        check_windows(windows)
        out: list[Tensor] = []
        for edges in batch.edges:
            for window in windows:
                cut = AttentionKnockout(edges, tuple(window), batch.mode, batch.heads)
                hooks = knockout_hooks(self.adapter, cut) if window else []
                out.append(states_at(self.adapter, batch.tokens, hooks, where, batch.row, batch.position))
                on_progress(1 / (len(batch.edges) * len(windows)))
        return torch.stack(out).unflatten(0, (len(batch.edges), len(windows)))

    @override
    def knockout_states_all_layers(
        self, batch: KnockoutBatch, *, site: SiteLike, layers: range, on_progress: OnProgress = no_progress
    ) -> Float[Tensor, "run layer read d_model"]:
        check_windows([layers])
        where = Slots(batch.position[:, None], torch.ones(len(batch.position), 1, dtype=torch.bool))
        assert torch.equal(batch.row, torch.arange(len(batch.tokens.ids)))  # one read a row
        cuts = [None, *(AttentionKnockout(edges, tuple(layers), batch.mode, batch.heads) for edges in batch.edges)]
        runs = []
        for cut in cuts:
            runs.append(read_states(self.adapter, batch.tokens, where, site, cut)[:, :, 0])
            on_progress(1 / len(cuts))
        return torch.stack(runs)

    @override
    def pass_bytes(self, size: PassSize, lanes: int) -> int:
        return rows_bytes(self.adapter.shape, size.run_rows, size.run_keys)

    @override
    def pass_flops(self, size: PassSize, starts: Sequence[int]) -> float:
        changed = sum(rows_flops(self.adapter.shape, rows, keys) for _, rows, _, keys in size.packs)
        return rows_flops(self.adapter.shape, size.run_rows, size.run_keys) + len(starts) * changed

    @override
    def saturates(self, size: PassSize, lanes: int) -> bool:
        if self.adapter.shape.streamed is not None:
            return False
        return size.run_rows * size.run_keys > MOST_TOKENS.get(self.adapter.device.type, MOST_TOKENS["cpu"])


def last_stream(
    adapter: Adapter, tokens: TokenBatch, hooks: Sequence[Hook] = (), cache: TransformerLensKeyValueCache | None = None
) -> Stream:
    """Return the stream that leaves the last block. Raise HookError if a hook did not fire exactly once."""
    fired = [0] * len(hooks)

    def run(value: Tensor, hook: HookPoint, index: int) -> Tensor:
        fired[index] += 1
        return hooks[index][1](value, hook)

    on = tokens.to(adapter.device)
    counted: list[Hook] = [(name, partial(run, index=i)) for i, (name, _) in enumerate(hooks)]
    stream = adapter.forward(on.ids, on.mask.long(), counted, cache)
    for (name, _), times in zip(hooks, fired, strict=True):
        if times != 1:
            raise HookError(
                f"The hook at {name} fired {times} times in one forward pass, planned was once. The run was stopped."
            )
    return stream


def capture(
    adapter: Adapter,
    tokens: TokenBatch,
    site: SiteLike,
    wanted: Sequence[Slots],
    hooks: Sequence[Hook] = (),
    *,
    to_host: bool = False,
) -> list[SlotStreams]:
    """Return the activations of one pass at one site of every layer, at several sets of positions.

    Returns:
        [layer example slot d_model] for each set, on the device of the embedding, or in float32 on the CPU (``to_host``); values at
        unused slots are undefined.
    """
    rows = torch.arange(tokens.ids.shape[0], device="cpu")[:, None]
    taken: list[list[Tensor]] = [[] for _ in wanted]

    def keep(value: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
        for out, slots in zip(taken, wanted, strict=True):
            states = value[rows, slots.positions]
            out.append(states.float().cpu() if to_host else states.to(adapter.device))
        return value

    reads: list[Hook] = [(adapter.hook_name(site, layer), keep) for layer in range(adapter.n_layers)]
    last_stream(adapter, tokens, [*hooks, *reads])
    return [torch.stack(out) for out in taken]


def donor_streams(adapter: Adapter, batch: SwapBatch, site: SiteLike) -> list[SlotStreams]:
    """Return what each swap of a batch puts at its slots: given streams, or those of one clean pass of the donors."""
    wanted = [swap.source for swap in batch.swaps if swap.source is not None]
    taken = iter(capture(adapter, batch.donors, site, wanted) if batch.donors is not None and wanted else ())
    return [swap.streams if swap.streams is not None and swap.source is None else next(taken) for swap in batch.swaps]


def swap_hooks(adapter: Adapter, slots: Slots, streams: SlotStreams, site: SiteLike, layers: Sequence[int]) -> list[Hook]:
    """Return hooks that put streams at their slots, in each of ``layers``."""
    row, slot = torch.nonzero(slots.mask, as_tuple=True)

    def put(value: Tensor, hook: HookPoint, layer: int) -> Tensor:  # noqa: ARG001
        changed = value.clone()
        changed[row, slots.positions[row, slot]] = streams[layer, row, slot].to(value.dtype).to(value.device)
        return changed

    return [(adapter.hook_name(site, layer), partial(put, layer=layer)) for layer in layers]


def measure(adapter: Adapter, tokens: TokenBatch, hooks: Sequence[Hook], reader: Reader) -> Metrics:
    """One forward pass with these changes, and what the reader makes of it."""
    return reader.metrics(adapter, states_at(adapter, tokens, hooks, reader.where, reader.row, reader.position))


def states_at(
    adapter: Adapter,
    tokens: TokenBatch,
    hooks: Sequence[Hook],
    where: tuple[SiteLike, int] | None,
    row: Int[Tensor, "read"],
    position: Int[Tensor, "read"],
    cache: TransformerLensKeyValueCache | None = None,
) -> Float[Tensor, "read d_model"]:
    """One forward pass with these changes, and chosen states of it: of a site and layer, or of the last stream (None).

    A cache holds keys and values of the tokens before; positions are counted from behind them.
    """
    seen: list[Tensor] = []

    def keep(value: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
        seen.append(value[row, position])
        return value

    # After the hooks of the intervention: what is read is the changed state.
    reads: list[Hook] = [(adapter.hook_name(*where), keep)] if where is not None else []
    stream = last_stream(adapter, tokens, [*hooks, *reads], cache)
    return seen[0] if seen else stream[row, position]


def read_states(
    adapter: Adapter, tokens: TokenBatch, positions: Slots, site: SiteLike, cut: AttentionKnockout | None = None
) -> SlotStreams:
    """Return the states at chosen positions of every layer, in one pass, clean or with edges cut.

    Returns:
        [layer example slot d_model], float32 on the CPU.
    """
    hooks = [] if cut is None else knockout_hooks(adapter, cut)
    return capture(adapter, tokens, site, [positions], hooks, to_host=True)[0]


def _beginning(adapter: Adapter, tokens: TokenBatch, most: int, worth: int) -> tuple[int, TransformerLensKeyValueCache | None]:
    """Return the number of tokens that all rows begin with (0 if not worth a pass), and the model's cache of them for every row."""
    rows = token_rows(tokens)
    shared = common_prefix(rows, min(most, *(len(row) - 1 for row in rows)))
    if shared * (len(rows) - 1) < worth:
        return 0, None
    cache, ids = adapter.empty_cache(), tokens.ids[:1, :shared].to(adapter.device)
    adapter.forward(ids, torch.ones_like(ids), cache=cache)
    entries = [
        TransformerLensKeyValueCacheEntry(
            repeat(entry.past_keys, "1 pos head d_head -> row pos head d_head", row=len(rows)),
            repeat(entry.past_values, "1 pos head d_head -> row pos head d_head", row=len(rows)),
        )
        for entry in cache.entries
    ]
    every = TransformerLensKeyValueCache(entries, torch.ones_like(ids).expand(len(rows), -1))
    every.freeze()  # the rows' own keys and values are needed in their layer alone; nothing of the beginning is copied for a row
    return shared, every
