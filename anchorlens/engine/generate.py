"""Greedy generation in batches, within the length that the model takes (METHOD 3)."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry

from anchorlens.engine.cost import BUFFERS, rows_bytes, rows_per_batch
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.models.memory import free_memory
from anchorlens.prompts.batches import common_prefix

# One token a row goes through the model at each step, so many rows are needed before a step costs more than reading the weights;
# beyond these nothing is gained.
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
    """Return greedy continuations of token ids, at most ``max_new_tokens`` long, each until ``stop`` of its new tokens is True.

    The tokens that all prompts begin with go through the model once. Prompts of similar length go together, padded on the left:
    the tokens of a row stand as far from each other as they would alone, and positions are counted from the mask, so absolute
    positions, rotary positions and sliding windows are those of the row alone.

    No row grows longer than ``n_ctx``. ``on_batch`` gets the rows of each finished batch, and those of prompts that leave no room.

    Returns:
        New token ids of each prompt, in the order of ``prompts``; none of a prompt that leaves no room.
    """
    if not all(prompts):
        raise InputError("A prompt without tokens cannot be continued.")
    out: list[list[int]] = [[] for _ in prompts]
    room = [min(max_new_tokens, adapter.shape.n_ctx - len(ids)) for ids in prompts]
    by_length = sorted((i for i in range(len(prompts)) if room[i] > 0), key=lambda i: len(prompts[i]))
    if len(by_length) < len(prompts):
        on_batch(len(prompts) - len(by_length))
    size = _rows_at_once(adapter, max((len(prompts[i]) + room[i] for i in by_length), default=0), batch_size)
    # Not inference_mode: where the rotary table grows on the way, the live model would keep tensors that no gradient can pass.
    with torch.no_grad():
        prefix = _run_prefix(adapter, [prompts[i] for i in by_length])
        for start in range(0, len(by_length), size):
            chunk = by_length[start : start + size]
            new = _greedy_batch(adapter, [prompts[i] for i in chunk], prefix, [room[i] for i in chunk], stop)
            for i, ids in zip(chunk, new, strict=True):
                out[i] = ids
            on_batch(len(chunk))
    return out


def _rows_at_once(adapter: Adapter, width: int, batch_size: int | None) -> int:
    if batch_size is not None:
        return rows_per_batch(adapter.shape, adapter.devices, width, batch_size)
    # Unlike in a single pass, keys and values of all layers stay.
    shape = adapter.shape
    cached = 2 * shape.layers_together * shape.n_kv_heads * shape.d_head * shape.item
    by_memory = (free_memory(adapter.devices) // 2 - shape.peak_weight_bytes) // (
        rows_bytes(shape, 1, width) - BUFFERS + width * cached
    )
    if shape.streamed is not None:  # all weights are read for every token
        return max(1, by_memory)
    return max(1, min(by_memory, _MOST_ROWS.get(adapter.device.type, 64)))


def _run_prefix(adapter: Adapter, prompts: Sequence[Sequence[int]]) -> TransformerLensKeyValueCache:
    """Keys and values, in one row, of the tokens that all prompts begin with; the shortest prompt keeps a token to run."""
    cache = adapter.empty_cache()
    # Nobody shares a single prompt's tokens: two passes would be slower than one.
    shared = common_prefix(prompts, min(len(ids) for ids in prompts) - 1) if len(prompts) > 1 else 0
    if shared:
        row = torch.tensor([list(prompts[0][:shared])], dtype=torch.long, device="cpu").to(adapter.device)
        _next_tokens(adapter, row, torch.ones_like(row), cache)
    return cache


def _greedy_batch(
    adapter: Adapter,
    prompts: Sequence[Sequence[int]],
    prefix: TransformerLensKeyValueCache,
    room: Sequence[int],
    stop: Callable[[list[int]], bool],
) -> list[list[int]]:
    width, cached = max(len(ids) for ids in prompts), prefix.previous_attention_mask.shape[1]
    padding = [width - len(ids) for ids in prompts]
    padded = [[0] * pad + list(ids) for pad, ids in zip(padding, prompts, strict=True)]
    step = torch.tensor(padded, dtype=torch.long, device="cpu").to(adapter.device)[:, cached:]
    pads = torch.tensor(padding, dtype=torch.long, device="cpu").to(adapter.device)[:, None]
    mask = (torch.arange(width, device=adapter.device) >= pads).long()
    # Columns are those of the padded rows, so the prefix starts at each row's own padding, and what it thereby loses at its end is
    # run again. Keys may be moved because the cache holds them before they are rotated.
    cache = _gathered(prefix, (torch.arange(cached, device=adapter.device) - pads).clamp(min=0), mask[:, :cached])
    mask = mask[:, cached:]
    out: list[list[int]] = [[] for _ in prompts]
    running = list(range(len(prompts)))
    for _ in range(max(room)):
        chosen = _next_tokens(adapter, step, mask, cache)
        for i, token in zip(running, chosen.tolist(), strict=True):
            out[i].append(token)
        rows = [row for row, i in enumerate(running) if len(out[i]) < room[i] and not stop(out[i])]
        if not rows:
            break
        if len(rows) < len(running):
            running, chosen = [running[row] for row in rows], chosen[rows]
            _keep_rows(cache, rows)
        step = chosen[:, None]
        mask = torch.ones_like(step)
    return out


def _next_tokens(
    adapter: Adapter, ids: Int[Tensor, "row pos"], mask: Int[Tensor, "row pos"], cache: TransformerLensKeyValueCache
) -> Int[Tensor, "row"]:
    """The likeliest token after each row, where the embedding is; the cache grows by the row's keys and values."""
    return adapter.read.logits(adapter.forward(ids, mask, cache=cache)[:, -1]).argmax(-1).to(adapter.device)


def _gathered(
    prefix: TransformerLensKeyValueCache, columns: Int[Tensor, "row pos"], mask: Int[Tensor, "row pos"]
) -> TransformerLensKeyValueCache:
    """A new cache whose rows hold the given columns of the prefix."""
    entries: list[TransformerLensKeyValueCacheEntry] = []
    for entry in prefix.entries:
        at = columns.to(entry.past_keys.device)
        entries.append(TransformerLensKeyValueCacheEntry(entry.past_keys[0, at], entry.past_values[0, at]))
    return TransformerLensKeyValueCache(entries, mask)


def _keep_rows(cache: TransformerLensKeyValueCache, rows: list[int]) -> None:
    """Drop the other rows, so that finished continuations cost nothing more, and the columns in which the others stood alone.

    So no table grows wider than its longest row, and TransformerLens's rotary table, which ends at ``n_ctx``, serves all of it.
    """
    mask = cache.previous_attention_mask[rows]
    first = int((mask.sum(0) == 0).sum())
    cache.previous_attention_mask = mask[:, first:]
    for entry in cache.entries:
        entry.past_keys, entry.past_values = entry.past_keys[rows, first:], entry.past_values[rows, first:]
