"""Greedy generation in batches, up to the model's context length (METHOD 3)."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from anchorlens.engine.cost import BUFFERS, rows_bytes, rows_per_batch
from anchorlens.engine.patches import common_prefix
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, NextTokens
from anchorlens.models.devices import free_memory

# Rows beyond which throughput no longer grows. With fewer rows, reading the weights limits a step.
_MOST_ROWS = {"cpu": 64, "cuda": 512, "mps": 128}


def greedy(
    adapter: Adapter,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    batch_size: int | None = None,
    stop: Callable[[list[int]], bool],
    on_batch: Callable[[int], None] = lambda rows: None,  # noqa: ARG005
) -> list[list[int]]:
    """Generate greedily after each prompt, up to ``max_new_tokens`` or ``n_ctx`` tokens, or until
    ``stop(new_ids)`` is True.

    The common prefix of all prompts is run once. Prompts of similar length share a batch.
    ``on_batch`` gets the number of finished rows.

    Returns:
        New token ids of each prompt, in the order of ``prompts``; [] for a prompt of ``n_ctx``
        tokens or more.
    """
    if not all(prompts):
        raise InputError("prompts: one has no tokens. Give every prompt at least one token.")
    out: list[list[int]] = []
    room: list[int] = []
    by_length: list[int] = []
    longest = 0  # prompt and new tokens together
    for i, ids in enumerate(prompts):
        out.append([])
        room.append(min(max_new_tokens, adapter.shape.n_ctx - len(ids)))
        if room[i] > 0:
            by_length.append(i)
            longest = max(longest, len(ids) + room[i])
    by_length.sort(key=lambda i: len(prompts[i]))
    if len(by_length) < len(prompts):
        on_batch(len(prompts) - len(by_length))
    size = _rows_at_once(adapter, longest, batch_size)
    # Not inference_mode: the model keeps the rotary tables that are made on the way.
    with torch.no_grad():
        prefix = None
        if by_length:
            rows = [prompts[i] for i in by_length]
            # Every prompt's last token is run in its own row. For a single prompt two passes would
            # be slower than one.
            shared = common_prefix(rows, min(len(ids) for ids in rows) - 1) if len(rows) > 1 else 0
            prefix = adapter.generation_prefix(
                torch.tensor(list(rows[0][:shared]), dtype=torch.long, device="cpu")
            )
        for start in range(0, len(by_length), size):
            chunk = by_length[start : start + size]
            next_tokens = adapter.decoder([prompts[i] for i in chunk], prefix)
            new = _decode(next_tokens, [room[i] for i in chunk], stop)
            for i, ids in zip(chunk, new, strict=True):
                out[i] = ids
            on_batch(len(chunk))
    return out


def _decode(
    next_tokens: NextTokens, room: Sequence[int], stop: Callable[[list[int]], bool]
) -> list[list[int]]:
    """Generate tokens of each row of a batch until it has ``room[row]`` tokens or ``stop(new_ids)``
    is True.
    """
    out: list[list[int]] = [[] for _ in room]
    running = rows = list(range(len(room)))
    last: Int[Tensor, "row"] | None = None
    while rows:
        running = [running[row] for row in rows]
        chosen = next_tokens(rows, None if last is None else last[rows])
        for i, token in zip(running, chosen.tolist(), strict=True):
            out[i].append(token)
        last = chosen
        rows = []
        for row, i in enumerate(running):
            if len(out[i]) < room[i] and not stop(out[i]):
                rows.append(row)
    return out


def _rows_at_once(adapter: Adapter, width: int, batch_size: int | None) -> int:
    if batch_size is not None:
        return rows_per_batch(adapter.shape, adapter.devices, width, batch_size)
    # Keys and values of all layers stay in memory.
    shape = adapter.shape
    cached = 2 * shape.max_layers_per_device * shape.n_kv_heads * shape.d_head * shape.number_bytes
    by_memory = (free_memory(adapter.devices) // 2 - shape.peak_weight_bytes) // (
        rows_bytes(shape, 1, width) - BUFFERS + width * cached
    )
    if shape.streamed is not None:  # all weights are read for every token
        return max(1, by_memory)
    return max(1, min(by_memory, _MOST_ROWS.get(adapter.device.type, 64)))
