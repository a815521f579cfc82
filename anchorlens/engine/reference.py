"""The oracle: hooks, and one full forward pass for every cell. Slow, obvious, kept forever.

Every faster way to get the same numbers is tested against this one. Nothing is reused between cells, and the rows of a batch stay
together: the clean pass that gives P before and the changed passes have the same shape, so a change that does nothing gives a ΔP
of exactly zero.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from anchorlens.engine.interventions import Slots, SwapBatch, window_layers
from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.errors import HookError
from anchorlens.models.adapter import Adapter, Hook, SiteLike
from anchorlens.questions.tokens import TokenBatch
from anchorlens.typing import SlotStreams, Stream


def last_stream(adapter: Adapter, tokens: TokenBatch, hooks: Sequence[Hook] = ()) -> Stream:
    """One forward pass over all blocks; the stream that leaves the last one.

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
    with torch.inference_mode():
        stream = adapter.model.run_with_hooks(
            on.ids,
            fwd_hooks=[(name, counted(i, hook)) for i, (name, hook) in enumerate(hooks)],
            stop_at_layer=adapter.n_layers,
            attention_mask=on.mask.long(),
            prepend_bos=False,
            padding_side="right",
        )
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
        [layer example slot d_model] for each set; what stands in unused slots means nothing.
    """
    n_rows = tokens.ids.shape[0]
    rows = torch.arange(n_rows)[:, None]
    taken: list[list[Tensor]] = [[] for _ in wanted]

    def keep(value: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
        for out, slots in zip(taken, wanted, strict=True):
            out.append(value[rows, slots.positions].clone())
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


def run_swaps(
    adapter: Adapter,
    batch: SwapBatch,
    *,
    site: SiteLike,
    layers: Sequence[int],
    window: int,
    on_share: Callable[[float], object] = lambda share: None,  # noqa: ARG005
) -> tuple[Metrics, list[Metrics]]:
    """Measure every cell of a batch.

    Args:
        adapter: The model.
        batch: Rows, reader and swaps.
        site: Which activation is replaced.
        layers: Layers that are measured.
        window: How many layers are replaced together around each (:func:`window_layers`).
        on_share: Called after each forward pass with its share of all.

    Returns:
        Metrics of the clean pass ([example]), and for each swap those of the changed passes ([layer example]).
    """
    passes = 1 + len(batch.swaps) * len(layers)

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
) -> Float[Tensor, "read d_model"]:
    """One forward pass with these changes, and chosen states of it: of a site and layer, or of the last stream (None)."""
    seen: list[Tensor] = []

    def keep(value: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
        seen.append(value[row, position])
        return value

    # After the hooks of the intervention: what is read is the changed state.
    reads: list[Hook] = [(adapter.hook_name(*where), keep)] if where is not None else []
    stream = last_stream(adapter, tokens, [*hooks, *reads])
    return seen[0] if seen else stream[row, position]


def stacked(cells: Sequence[Metrics]) -> Metrics:
    """Metrics of several passes, [layer example]."""
    return Metrics(*(torch.stack([getattr(cell, name) for cell in cells]) for name in ("p", "log_p", "logit_diff")))
