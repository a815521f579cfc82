"""The reference engine: TransformerLens hooks and one full forward pass per cell.

The cone engine is tested against it. No result is reused between cells. Clean and patched passes have the same batch shape, so a
patch without effect gives ΔP = 0 exactly.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from anchorlens.engine.cost import MOST_TOKENS, PassSize, rows_bytes, rows_flops
from anchorlens.engine.engine import Engine
from anchorlens.engine.function_reader import FunctionReader
from anchorlens.engine.knockout import AttentionKnockout, knockout_hooks
from anchorlens.engine.patches import (
    AnchorSwap,
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
from anchorlens.models.adapter import Adapter, Hook, ReadSite, SiteLike
from anchorlens.prompts.batches import TokenBatch, common_prefix, pad_rows
from anchorlens.typing import SlotStreams, Stream


class ReferenceEngine(Engine):
    """Engine that runs a full forward pass with hooks for every cell.

    Args:
        adapter: The model.
        reason: Reason why it replaces the cone engine; "" if it was requested.
        min_shared_tokens: :meth:`run_cells` runs the common prefix of its rows once if that saves at least this number of tokens.
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
        reader = full_reader(batch.reader)

        def run(hooks: Sequence[Hook]) -> Metrics:
            metrics = measure(adapter, batch.tokens, hooks, reader)
            on_progress(1 / passes)
            return metrics

        before, after = run(()), list[Metrics]()
        for swap, streams in zip(batch.swaps, swap_streams(adapter, batch, site), strict=True):
            windows = (window_layers(layer, window, adapter.n_layers) for layer in layers)
            cells = [run(swap_hooks(adapter, swap.slots, streams, site, each, swap.heads)) for each in windows]
            after.append(Metrics({name: torch.stack([cell.values[name] for cell in cells]) for name in before.values}))
        return before, after

    def run_cells(self, batch: SwapBatch, *, site: SiteLike, layers: Sequence[int], window: int) -> tuple[Metrics, Metrics]:
        """Measure one cell per row in one forward pass over clean rows, donors and patched rows.

        Row i is patched in the window around ``layers[i]``, so that spot checks of different layers share a pass. Donor streams are
        read in the same pass. The common prefix is run once, into TransformerLens's key-value cache.

        Returns:
            Metrics before and after the patch, [example].
        """
        (swap,), n = batch.swaps, len(layers)
        if n == 1:  # the smallest memory holds one row at a time
            before, (after,) = self.run_swaps(batch, site=site, layers=layers, window=window)
            return before, after.map(lambda value: value[0])
        bases = token_rows(batch.tokens)
        donors = [] if swap.source is None or batch.donors is None else token_rows(batch.donors)
        # Equal clean rows and donors are computed once; the patched rows come last.
        distinct = list(dict.fromkeys([*bases, *donors]))
        clean, donor = (torch.tensor([distinct.index(row) for row in rows], dtype=torch.long) for rows in (bases, donors))
        tokens, changed = pad_rows([*distinct, *bases]), len(distinct) + torch.arange(n)
        row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
        reader = full_reader(batch.reader)
        used = [swap.slots.positions[row, slot], reader.position]
        if swap.source is not None:
            used.append(swap.source.positions[row, slot])
        first = min(int(positions.min()) for positions in used if len(positions))
        n_shared, cache = _run_prefix(self.adapter, tokens, first, self.min_shared_tokens)
        tokens = TokenBatch(tokens.ids[:, n_shared:], tokens.mask[:, n_shared:])
        target = swap.slots.positions[row, slot] - n_shared
        windows = [window_layers(layer, window, self.adapter.n_layers) for layer in layers]

        def make_hook(layer: int, patches: list[int]) -> Hook:
            of = torch.tensor(patches)

            def patch(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
                out = value.clone()
                before, after = by_head(value, site), by_head(out, site)
                heads = _heads(swap.heads, before.shape[2])
                if swap.source is not None:
                    new = before[donor[row[of]], swap.source.positions[row, slot][of] - n_shared, heads]
                else:
                    assert swap.streams is not None  # a swap has one or the other
                    new = _split(swap.streams[layer, row[of], slot[of]].to(value.dtype).to(value.device), before.shape[2])[:, heads]
                for n, i in enumerate(patches):
                    direction = swap.directions.get(int(row[i]))
                    if direction is not None:
                        own = before[clean[row[i]], target[i], heads]
                        new[n] = _split(move(own.flatten(), new[n].flatten(), direction[slot[i]]), len(own))
                after[changed[row[of]], target[of], heads] = new
                return out

            return self.adapter.hook_name(site, layer), patch

        by_layer = {k: [i for i, r in enumerate(row.tolist()) if k in windows[r]] for k in range(self.adapter.n_layers)}
        rows = torch.cat([clean[reader.row], changed[reader.row]])
        hooks = [make_hook(layer, patches) for layer, patches in by_layer.items() if patches]
        states = states_at(self.adapter, tokens, hooks, reader.where, rows, (reader.position - n_shared).repeat(2), cache)
        before, after = (reader.metrics(self.adapter, part) for part in states.chunk(2))
        return before, after

    @override
    def knockout_states(
        self, batch: KnockoutBatch, *, where: ReadSite | None, windows: Sequence[range], on_progress: OnProgress = no_progress
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
        states = []
        for cut in cuts:
            states.append(read_states(self.adapter, batch.tokens, where, site, cut)[:, :, 0])
            on_progress(1 / len(cuts))
        return torch.stack(states)

    @override
    def pass_bytes(self, size: PassSize, lanes: int) -> int:
        return rows_bytes(self.adapter.shape, size.clean_rows, size.clean_keys)

    @override
    def pass_flops(self, size: PassSize, starts: Sequence[int]) -> float:
        changed = sum(rows_flops(self.adapter.shape, rows, keys) for _, rows, _, keys in size.cell_groups)
        return rows_flops(self.adapter.shape, size.clean_rows, size.clean_keys) + len(starts) * changed

    @override
    def saturates(self, size: PassSize, lanes: int) -> bool:
        if self.adapter.shape.streamed is not None:
            return False
        return size.clean_rows * size.clean_keys > MOST_TOKENS.get(self.adapter.device.type, MOST_TOKENS["cpu"])


def last_stream(adapter: Adapter, tokens: TokenBatch, hooks: Sequence[Hook] = (), cache: Any = None) -> Stream:
    """Return the final residual stream of one forward pass; raise HookError if a hook does not fire exactly once."""
    fired = [0] * len(hooks)

    def run(value: Tensor, hook: Any, index: int) -> Tensor:
        fired[index] += 1
        return hooks[index][1](value, hook)

    on = tokens.to(adapter.device)
    counted: list[Hook] = [(name, partial(run, index=i)) for i, (name, _) in enumerate(hooks)]
    stream = adapter.forward(on.ids, on.mask.long(), counted, cache)
    for (name, _), times in zip(hooks, fired, strict=True):
        if times != 1:
            raise HookError(
                f"The hook at {name} fired {times} times in one forward pass instead of once. The run was stopped. If another "
                "thread uses this model, run one sweep at a time."
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
    """Return the activations of one forward pass at a site of every layer, at each set of slots.

    Returns:
        [layer example slot d_model] for each set, on the device of the embedding, or with ``to_host`` in float32 on the CPU; of head
        sites [layer example slot (head d_head)]. Values at unused slots are undefined.
    """
    rows = torch.arange(tokens.ids.shape[0], device="cpu")[:, None]
    streams: list[list[Tensor]] = [[] for _ in wanted]

    def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        for out, slots in zip(streams, wanted, strict=True):
            states = by_head(value, site)[rows, slots.positions].flatten(-2)
            out.append(states.float().cpu() if to_host else states.to(adapter.device))
        return value

    reads: list[Hook] = [(adapter.hook_name(site, layer), keep) for layer in range(adapter.n_layers)]
    last_stream(adapter, tokens, [*hooks, *reads])
    return [torch.stack(out) for out in streams]


def donor_streams(adapter: Adapter, batch: SwapBatch, site: SiteLike) -> list[SlotStreams]:
    """Return the activations that each swap patches in: its given ones, or those of one clean pass over the donors."""
    wanted = [swap.source for swap in batch.swaps if swap.source is not None]
    captured = iter(capture(adapter, batch.donors, site, wanted) if batch.donors is not None and wanted else ())
    return [swap.streams if swap.streams is not None and swap.source is None else next(captured) for swap in batch.swaps]


def move(
    base: Float[Tensor, "*slot d_model"], donor: Float[Tensor, "*slot d_model"], direction: Float[Tensor, "*slot d_model"]
) -> Float[Tensor, "*slot d_model"]:
    """Return ``base`` moved along unit directions, as far as it lies from ``donor``."""
    wide = torch.promote_types(base.dtype, torch.float32)
    base, donor = base.to(wide), donor.to(base.device, wide)
    return base + torch.linalg.vector_norm(donor - base, dim=-1, keepdim=True) * direction.to(base.device, wide)


def swap_streams(adapter: Adapter, batch: SwapBatch, site: SiteLike) -> list[SlotStreams]:
    """Return the activations of each swap; in rows with ``directions``, the row's own activations moved along these."""
    return [
        _in_directions(adapter, batch.tokens, site, swap, donor)
        for swap, donor in zip(batch.swaps, donor_streams(adapter, batch, site), strict=True)
    ]


def _in_directions(adapter: Adapter, tokens: TokenBatch, site: SiteLike, swap: AnchorSwap, donor: SlotStreams) -> SlotStreams:
    """Return the donor's streams; in rows with ``directions``, the row's own streams moved along these instead."""
    if not swap.directions:
        return donor
    (own,) = capture(adapter, tokens, site, [swap.slots])
    streams = donor.to(torch.promote_types(donor.dtype, torch.float32), copy=True)
    n_heads = adapter.n_heads(site)
    heads = _heads(swap.heads, n_heads)
    for i, directions in swap.directions.items():
        n = len(directions)
        moved, base, other = (_split(each[:, i, :n], n_heads)[:, :, heads] for each in (streams, own, donor))
        at_layers = repeat(directions, "slot width -> layer slot width", layer=len(own))
        new = move(base.flatten(-2), other.flatten(-2), at_layers)
        moved.copy_(_split(new, moved.shape[2]))
    return streams


def swap_hooks(
    adapter: Adapter, slots: Slots, streams: SlotStreams, site: SiteLike, layers: Sequence[int], heads: range | None = None
) -> list[Hook]:
    """Return one hook per layer of ``layers`` that replaces the activations at the slots; ``heads``: if None, of all heads."""
    row, slot = torch.nonzero(slots.mask, as_tuple=True)

    def patch(value: Tensor, hook: Any, layer: int) -> Tensor:  # noqa: ARG001
        changed = value.clone()
        at = by_head(changed, site)
        some = _heads(heads, at.shape[2])
        at[row, slots.positions[row, slot], some] = _split(streams[layer, row, slot].to(value.dtype).to(value.device), at.shape[2])[
            :, some
        ]
        return changed

    return [(adapter.hook_name(site, layer), partial(patch, layer=layer)) for layer in layers]


def by_head(value: Tensor, site: SiteLike) -> Float[Tensor, "example pos head width"]:
    """Return a view of an activation with a head axis: of a pattern [example query head key], of sites without heads one head."""
    if site == "pattern":
        return rearrange(value, "example head query key -> example query head key")
    return value if value.ndim == 4 else rearrange(value, "example pos width -> example pos 1 width")


def _split(states: Float[Tensor, "*slot all"], n_heads: int) -> Float[Tensor, "*slot head width"]:
    return states.unflatten(-1, (n_heads, -1))


def _heads(heads: range | None, n_heads: int) -> slice:
    """Return the slice of neighbouring heads; if None, of all."""
    return slice(0, n_heads) if heads is None else slice(heads.start, heads.stop)


def full_reader(reader: Reader) -> Reader:
    """Return the reader that computes all logits for a function of the logits; any other reader unchanged."""
    return reader.plain() if isinstance(reader, FunctionReader) else reader


def measure(adapter: Adapter, tokens: TokenBatch, hooks: Sequence[Hook], reader: Reader) -> Metrics:
    """Run one forward pass with hooks and return the reader's metrics."""
    return reader.metrics(adapter, states_at(adapter, tokens, hooks, reader.where, reader.row, reader.position))


def states_at(
    adapter: Adapter,
    tokens: TokenBatch,
    hooks: Sequence[Hook],
    where: ReadSite | None,
    row: Int[Tensor, "read"],
    position: Int[Tensor, "read"],
    cache: Any = None,
) -> Float[Tensor, "read d_model"]:
    """Run one forward pass with hooks and return states of a site and layer; if ``where`` is None, of the final residual stream.

    Positions are counted after the prefix whose keys and values are in ``cache``.
    """
    seen: list[Tensor] = []

    def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        seen.append(value[row, position])
        return value

    # Read hooks come last, so they see the changed states.
    reads: list[Hook] = [(adapter.hook_name(*where), keep)] if where is not None else []
    stream = last_stream(adapter, tokens, [*hooks, *reads], cache)
    return seen[0] if seen else stream[row, position]


def read_states(
    adapter: Adapter, tokens: TokenBatch, positions: Slots, site: SiteLike, cut: AttentionKnockout | None = None
) -> SlotStreams:
    """Return the states at ``positions`` of every layer from one forward pass, clean or with edges cut.

    Returns:
        [layer example slot d_model], float32 on the CPU.
    """
    hooks = [] if cut is None else knockout_hooks(adapter, cut)
    return capture(adapter, tokens, site, [positions], hooks, to_host=True)[0]


def _run_prefix(adapter: Adapter, tokens: TokenBatch, most: int, min_saved: int) -> tuple[int, Any]:
    """Run the common prefix of all rows once; return its length and key-value cache, (0, None) if that saves too few tokens."""
    rows = token_rows(tokens)
    shared = common_prefix(rows, min(most, *(len(row) - 1 for row in rows)))
    if not adapter.has_prefix_cache or shared * (len(rows) - 1) < min_saved:
        return 0, None
    return shared, adapter.prefix_cache(tokens.ids[0, :shared].to(adapter.device), len(rows))
