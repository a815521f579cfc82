"""Forward passes with hooks: read activations, metrics and final states.

Read hooks are attached after all others, so they see changed activations. Every hook must fire
exactly once in a pass.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.function_reader import FunctionReader
from anchorlens.engine.knockout import AttentionKnockout, knockout_hooks
from anchorlens.engine.patches import Slots, TokenBatch, by_head, common_prefix, token_rows
from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.errors import HookError
from anchorlens.models.adapter import Adapter, Hook, ReadSite, SiteLike
from anchorlens.typing import SlotStreams, Stream

# Tokens that a prefix of all rows must save, because it costs a pass of its own.
MIN_SHARED_TOKENS = 64


def last_stream(
    adapter: Adapter,
    tokens: TokenBatch,
    hooks: Sequence[Hook] = (),
    cache: Any = None,
    *,
    with_graph: bool = False,
) -> Stream:
    """Return the final residual stream of one forward pass; raise HookError if a hook does not fire
    exactly once.

    ``with_graph``: whether operations are recorded for a backward pass.
    """
    fired = [0] * len(hooks)

    def run(value: Tensor, hook: Any, index: int) -> Tensor:
        fired[index] += 1
        return hooks[index][1](value, hook)

    on = tokens.to(adapter.device)
    counted: list[Hook] = []
    for index, (name, _) in enumerate(hooks):
        counted.append((name, partial(run, index=index)))
    stream = adapter.forward(on.ids, on.mask.long(), counted, cache, with_graph=with_graph)
    for (name, _), times in zip(hooks, fired, strict=True):
        if times != 1:
            raise HookError(
                f"The hook at {name} fired {times} times in one forward pass instead of once. The"
                " run was stopped. If a part of the model was compiled or replaced, pass the model"
                " with its own parts, uncompiled. If another thread uses this model, run one sweep"
                " at a time."
            )
    return stream


def run_prefix(
    adapter: Adapter, tokens: TokenBatch, most: int, min_saved: int = MIN_SHARED_TOKENS
) -> tuple[int, Any]:
    """Run the tokens that all rows begin with once, at most ``most``; return their number and the
    key-value cache for :func:`last_stream`, or (0, None) if that saves fewer than ``min_saved``
    tokens.

    The last token of each row is not part of the prefix.
    """
    rows = token_rows(tokens)
    shared = common_prefix(rows, min(most, *(len(row) - 1 for row in rows)))
    if not adapter.has_prefix_cache or shared * (len(rows) - 1) < min_saved:
        return 0, None
    return shared, adapter.prefix_cache(tokens.ids[0, :shared].to(adapter.device), len(rows))


def capture(
    adapter: Adapter,
    tokens: TokenBatch,
    site: SiteLike,
    wanted: Sequence[Slots],
    hooks: Sequence[Hook] = (),
    cache: Any = None,
    *,
    to_host: bool = False,
) -> list[SlotStreams]:
    """Return the activations of one forward pass at a site of every layer, at each set of slots.

    Positions are counted after the prefix whose keys and values are in ``cache``.

    Returns:
        [layer example slot d_model] for each set, on the device of the embedding, or with
        ``to_host`` in float32 on the CPU; of head sites [layer example slot (head d_head)]. Values
        at unused slots are undefined.
    """
    rows = torch.arange(tokens.ids.shape[0], device="cpu")[:, None]
    streams: list[list[Tensor]] = [[] for _ in wanted]

    def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        for out, slots in zip(streams, wanted, strict=True):
            states = by_head(value, site)[rows, slots.positions].flatten(-2)
            out.append(states.float().cpu() if to_host else states.to(adapter.device))
        return value

    layers = range(adapter.n_layers)
    reads: list[Hook] = [(adapter.hook_name(site, layer), keep) for layer in layers]
    last_stream(adapter, tokens, [*hooks, *reads], cache)
    return [torch.stack(out) for out in streams]


def full_reader(reader: Reader) -> Reader:
    """Return the reader that computes all logits for a function of the logits; any other reader
    unchanged.
    """
    return reader.plain() if isinstance(reader, FunctionReader) else reader


def measure(adapter: Adapter, tokens: TokenBatch, hooks: Sequence[Hook], reader: Reader) -> Metrics:
    """Run one forward pass with hooks and return the reader's metrics."""
    return reader.metrics(
        adapter, states_at(adapter, tokens, hooks, reader.where, reader.row, reader.position)
    )


def states_at(
    adapter: Adapter,
    tokens: TokenBatch,
    hooks: Sequence[Hook],
    where: ReadSite | None,
    row: Int[Tensor, "read"],
    position: Int[Tensor, "read"],
    cache: Any = None,
) -> Float[Tensor, "read d_model"]:
    """Run one forward pass with hooks and return states of a site and layer; if ``where`` is None,
    of the final residual stream.

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
    adapter: Adapter,
    tokens: TokenBatch,
    positions: Slots,
    site: SiteLike,
    cut: AttentionKnockout | None = None,
) -> SlotStreams:
    """Return the states at ``positions`` of every layer from one forward pass, clean or with edges
    cut.

    Returns:
        [layer example slot d_model], float32 on the CPU.
    """
    hooks = [] if cut is None else knockout_hooks(adapter, cut)
    return capture(adapter, tokens, site, [positions], hooks, to_host=True)[0]
