"""The oracle: hooks, and one full forward pass for every cell. Slow, obvious, kept forever.

Every faster way to get the same numbers is tested against this one. Nothing is reused between cells, and the rows of a batch stay
together: the clean pass that gives P before and the changed passes have the same shape, so a change that does nothing gives a ΔP
of exactly zero.
"""

from collections.abc import Callable, Sequence

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry
from transformer_lens.hook_points import HookPoint

from anchorlens.engine.cost import MOST_TOKENS, PassSize, rows_bytes, rows_flops
from anchorlens.engine.interventions import CutBatch, OnShare, Slots, SwapBatch, check_windows, untold, window_layers
from anchorlens.engine.knockout import AttentionKnockout, knockout_hooks
from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.errors import HookError
from anchorlens.models.adapter import Adapter, Hook, SiteLike
from anchorlens.questions.tokens import TokenBatch, common_prefix
from anchorlens.typing import SlotStreams, Stream


class Oracle:
    """Measures batches of one model, cell by cell.

    Args:
        adapter: The model.
        reason: Why it is the oracle, where the cone was asked for.
        worth_a_pass: Tokens that a beginning which is run once has to spare in :meth:`run_cells`: its pass reads all weights again.
    """

    name = "reference"

    def __init__(self, adapter: Adapter, reason: str = "", worth_a_pass: int = 64) -> None:
        self.adapter, self.reason, self.worth_a_pass = adapter, reason, worth_a_pass

    def begin(self, shared: Sequence[int] = ()) -> None:
        """See :class:`~anchorlens.engine.engine.Engine`; nothing is ever left."""

    def run_swaps(
        self, batch: SwapBatch, *, site: SiteLike, layers: Sequence[int], window: int, on_share: OnShare = untold
    ) -> tuple[Metrics, list[Metrics]]:
        """See :class:`~anchorlens.engine.engine.Engine`: one pass for the clean rows, and one for each swap and layer."""
        adapter, passes = self.adapter, 1 + len(batch.swaps) * len(layers)

        def measured(hooks: Sequence[Hook]) -> Metrics:
            metrics = measure(adapter, batch.tokens, hooks, batch.reader)
            on_share(1 / passes)
            return metrics

        before = measured(())
        after = [
            stacked(
                [
                    measured(swap_hooks(adapter, swap.slots, streams, site, window_layers(layer, window, adapter.n_layers)))
                    for layer in layers
                ]
            )
            for swap, streams in zip(batch.swaps, donor_streams(adapter, batch, site), strict=True)
        ]
        return before, after

    def run_cells(self, batch: SwapBatch, *, site: SiteLike, layers: Sequence[int], window: int) -> tuple[Metrics, Metrics]:
        """One cell a row, all in one forward pass: the clean rows, their donors, and the rows that are changed.

        What :meth:`run_swaps` does in a pass for each cell, for a few cells of many layers. A donor's streams are taken from its
        row on the way. What all rows begin with goes through the model once, into the model's own cache of keys and values.

        Args:
            batch: Rows, donors and one swap.
            site: Which activation is replaced.
            layers: The layer of each row.
            window: See :meth:`run_swaps`.

        Returns:
            Metrics before and after, [example].
        """
        (swap,), n = batch.swaps, len(layers)
        if n == 1:  # one row at a time is all that the smallest memory holds
            before, (after,) = self.run_swaps(batch, site=site, layers=layers, window=window)
            return before, Metrics(after.p[0], after.log_p[0], after.logit_diff[0])
        donors = () if swap.source is None or batch.donors is None else (batch.donors,)
        together = _together([batch.tokens, *donors, batch.tokens])
        # Clean rows and donors that stand there twice go through once; the changed ones come last, each for itself.
        tokens, place = _distinct(together, len(together.ids) - n)
        clean, donor, changed = place[:n], place[n : 2 * n], place[-n:]
        row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
        reader = batch.reader
        used = [swap.slots.positions[row, slot], reader.position]
        if swap.source is not None:
            used.append(swap.source.positions[row, slot])
        first = min(int(positions.min()) for positions in used if len(positions))
        n_shared, cache = _beginning(self.adapter, tokens, first, self.worth_a_pass)
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

    def cut_states(
        self, batch: CutBatch, *, where: tuple[SiteLike, int] | None, windows: Sequence[range], on_share: OnShare = untold
    ) -> Float[Tensor, "variant window read d_model"]:
        """See :class:`~anchorlens.engine.engine.Engine`: one pass for each variant and window."""
        check_windows(windows)
        out: list[Tensor] = []
        for edges in batch.edges:
            for window in windows:
                cut = AttentionKnockout(edges, tuple(window), batch.mode, batch.heads)
                hooks = knockout_hooks(self.adapter, cut) if window else []
                out.append(states_at(self.adapter, batch.tokens, hooks, where, batch.row, batch.position))
                on_share(1 / (len(batch.edges) * len(windows)))
        return torch.stack(out).unflatten(0, (len(batch.edges), len(windows)))

    def cut_states_everywhere(
        self, batch: CutBatch, *, site: SiteLike, layers: range, on_share: OnShare = untold
    ) -> Float[Tensor, "run layer read d_model"]:
        """See :class:`~anchorlens.engine.engine.Engine`: one pass for each run."""
        check_windows([layers])
        where = Slots(batch.position[:, None], torch.ones(len(batch.position), 1, dtype=torch.bool))
        assert torch.equal(batch.row, torch.arange(len(batch.tokens.ids)))  # one read a row
        cuts = [None, *(AttentionKnockout(edges, tuple(layers), batch.mode, batch.heads) for edges in batch.edges)]
        runs = []
        for cut in cuts:
            runs.append(read_states(self.adapter, batch.tokens, where, site, cut)[:, :, 0])
            on_share(1 / len(cuts))
        return torch.stack(runs)

    def pass_bytes(self, size: PassSize, lanes: int) -> int:  # noqa: ARG002
        """See :class:`~anchorlens.engine.engine.Engine`."""
        return rows_bytes(self.adapter.shape, size.run_rows, size.run_keys)

    def pass_flops(self, size: PassSize, starts: Sequence[int]) -> float:
        """See :class:`~anchorlens.engine.engine.Engine`."""
        changed = sum(rows_flops(self.adapter.shape, rows, keys) for _, rows, _, keys in size.packs)
        return rows_flops(self.adapter.shape, size.run_rows, size.run_keys) + len(starts) * changed

    def fills(self, size: PassSize, lanes: int) -> bool:  # noqa: ARG002
        """See :class:`~anchorlens.engine.engine.Engine`."""
        if self.adapter.shape.streamed is not None:
            return False
        return size.run_rows * size.run_keys > MOST_TOKENS.get(self.adapter.device.type, MOST_TOKENS["cpu"])


def last_stream(
    adapter: Adapter, tokens: TokenBatch, hooks: Sequence[Hook] = (), cache: TransformerLensKeyValueCache | None = None
) -> Stream:
    """One forward pass over all blocks; the stream that leaves the last one. A cache holds keys and values of the tokens before.

    Raises:
        HookError: A hook did not fire exactly once.
    """
    fired = [0] * len(hooks)

    def counted(index: int, change: Callable[[Tensor, HookPoint], Tensor]) -> Callable[[Tensor, HookPoint], Tensor]:
        def run(value: Tensor, hook: HookPoint) -> Tensor:
            fired[index] += 1
            return change(value, hook)

        return run

    on = tokens.to(adapter.device)
    stream = adapter.forward(on.ids, on.mask.long(), [(name, counted(i, hook)) for i, (name, hook) in enumerate(hooks)], cache)
    for (name, _), times in zip(hooks, fired, strict=True):
        if times != 1:
            raise HookError(
                f"The hook at {name} fired {times} times in one forward pass, planned was once. The run was stopped."
            )
    return stream


def capture(adapter: Adapter, tokens: TokenBatch, site: SiteLike, wanted: Sequence[Slots]) -> list[SlotStreams]:
    """A clean run's activations at one site of every layer, at chosen positions only.

    Args:
        adapter: The model.
        tokens: The rows.
        site: Where in the block.
        wanted: Sets of positions; one tensor is returned for each.

    Returns:
        [layer example slot d_model] for each set, where the embedding is; what stands in unused slots means nothing.
    """
    n_rows = tokens.ids.shape[0]
    rows = torch.arange(n_rows, device="cpu")[:, None]
    taken: list[list[Tensor]] = [[] for _ in wanted]

    def keep(value: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
        for out, slots in zip(taken, wanted, strict=True):
            out.append(value[rows, slots.positions].to(adapter.device))
        return value

    last_stream(adapter, tokens, [(adapter.hook_name(site, layer), keep) for layer in range(adapter.n_layers)])
    return [torch.stack(out) for out in taken]


def donor_streams(adapter: Adapter, batch: SwapBatch, site: SiteLike) -> list[SlotStreams]:
    """What each swap of a batch puts at its slots: given, or taken from one clean run of the donors."""
    wanted = [swap.source for swap in batch.swaps if swap.source is not None]
    taken = iter(capture(adapter, batch.donors, site, wanted) if batch.donors is not None and wanted else ())
    streams = [next(taken) if swap.source is not None else swap.streams for swap in batch.swaps]
    assert all(stream is not None for stream in streams)  # a swap has one or the other
    return [stream for stream in streams if stream is not None]


def swap_hooks(adapter: Adapter, slots: Slots, streams: SlotStreams, site: SiteLike, layers: Sequence[int]) -> list[Hook]:
    """Hooks that put streams at their slots, in each of ``layers``."""
    row, slot = torch.nonzero(slots.mask, as_tuple=True)
    position = slots.positions[row, slot]

    def at(layer: int) -> Hook:
        def put(value: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
            changed = value.clone()
            changed[row, position] = streams[layer, row, slot].to(value.dtype).to(value.device)
            return changed

        return adapter.hook_name(site, layer), put

    return [at(layer) for layer in layers]


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
    """States at chosen positions of every layer, in one pass, clean or with edges cut.

    Args:
        adapter: The model.
        tokens: The rows.
        positions: Where the states are read, by row.
        site: Where in the block, for example ``resid_post``.
        cut: What is cut; None for a clean run.

    Returns:
        [layer example slot d_model], float32 on the CPU.

    Raises:
        HookError: A hook did not fire exactly once.
    """
    rows = torch.arange(tokens.ids.shape[0], device="cpu")[:, None]
    taken: list[Tensor] = []

    def keep(value: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
        taken.append(value[rows, positions.positions].float().cpu())
        return value

    reads: list[Hook] = [(adapter.hook_name(site, layer), keep) for layer in range(adapter.n_layers)]
    last_stream(adapter, tokens, [*(knockout_hooks(adapter, cut) if cut is not None else ()), *reads])
    return torch.stack(taken)


def stacked(cells: Sequence[Metrics]) -> Metrics:
    """Metrics of several passes, [layer example]."""
    return Metrics(*(torch.stack([getattr(cell, name) for cell in cells]) for name in ("p", "log_p", "logit_diff")))


def _beginning(adapter: Adapter, tokens: TokenBatch, most: int, worth: int) -> tuple[int, TransformerLensKeyValueCache | None]:
    """How many tokens all rows begin with, where that is worth a pass of its own, and the model's cache of them for every row."""
    lengths = tokens.mask.sum(1).tolist()
    rows = [ids[:n] for ids, n in zip(tokens.ids.tolist(), lengths, strict=True)]
    shared = common_prefix(rows, min(most, *(n - 1 for n in lengths)))
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


def _together(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Rows of several batches in one, padded to one width."""
    width = max(batch.ids.shape[1] for batch in batches)

    def joined(tables: Sequence[Tensor]) -> Tensor:
        return torch.cat([nn.functional.pad(table, (0, width - table.shape[1])) for table in tables])

    return TokenBatch(joined([batch.ids for batch in batches]), joined([batch.mask for batch in batches]))


def _distinct(tokens: TokenBatch, n: int) -> tuple[TokenBatch, Int[Tensor, "row"]]:
    """The rows with each of the first ``n`` only once, and where each row is now."""
    kept: list[int] = []
    seen: dict[tuple[int, ...], int] = {}
    place: list[int] = []
    for i, row in enumerate(zip(tokens.ids.tolist(), tokens.mask.tolist(), strict=True)):
        key = (*row[0], sum(row[1])) if i < n else (-1, i)
        if key not in seen:
            seen[key] = len(kept)
            kept.append(i)
        place.append(seen[key])
    return TokenBatch(tokens.ids[kept], tokens.mask[kept]), torch.tensor(place)


__all__ = ["Oracle", "capture", "last_stream", "measure", "read_states", "states_at"]
