"""Greedy generation in batches, up to the model's context length (METHOD 3)."""

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
    """Generate greedily after each prompt, up to ``max_new_tokens`` or ``n_ctx`` tokens, or until ``stop(new_ids)`` is True.

    The common prefix of all prompts is run once. Prompts of similar length share a batch, padded on the left. Positions are counted
    without padding, so positions and sliding windows are those of the row alone. ``on_batch`` gets the number of finished rows.

    Returns:
        New token ids of each prompt, in the order of ``prompts``; [] for a prompt of ``n_ctx`` tokens or more.
    """
    if not all(prompts):
        raise InputError("prompts: one has no tokens. Give every prompt at least one token.")
    out: list[list[int]] = [[] for _ in prompts]
    room = [min(max_new_tokens, adapter.shape.n_ctx - len(ids)) for ids in prompts]
    by_length = sorted((i for i in range(len(prompts)) if room[i] > 0), key=lambda i: len(prompts[i]))
    if len(by_length) < len(prompts):
        on_batch(len(prompts) - len(by_length))
    size = _rows_at_once(adapter, max((len(prompts[i]) + room[i] for i in by_length), default=0), batch_size)
    # Not inference_mode: the model keeps the rotary tables that are made on the way.
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
    # Keys and values of all layers stay in memory.
    shape = adapter.shape
    cached = 2 * shape.layers_together * shape.n_kv_heads * shape.d_head * shape.item
    by_memory = (free_memory(adapter.devices) // 2 - shape.peak_weight_bytes) // (
        rows_bytes(shape, 1, width) - BUFFERS + width * cached
    )
    if shape.streamed is not None:  # all weights are read for every token
        return max(1, by_memory)
    return max(1, min(by_memory, _MOST_ROWS.get(adapter.device.type, 64)))


def _run_prefix(adapter: Adapter, prompts: Sequence[Sequence[int]]) -> TransformerLensKeyValueCache:
    """Return a key-value cache, of one row, of the prompts' common prefix, which excludes every prompt's last token."""
    cache = adapter.empty_cache()
    # For a single prompt two passes would be slower than one.
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
    # The prefix is shifted by each row's padding; cached keys are not rotated yet. Columns that no longer fit are run again.
    cache = _select_columns(prefix, (torch.arange(cached, device=adapter.device) - pads).clamp(min=0), mask[:, :cached])
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
    """Return the likeliest next token of each row, on the embedding's device, and extend the cache."""
    return adapter.read.logits(adapter.forward(ids, mask, cache=cache)[:, -1]).argmax(-1).to(adapter.device)


def _select_columns(
    prefix: TransformerLensKeyValueCache, columns: Int[Tensor, "row pos"], mask: Int[Tensor, "row pos"]
) -> TransformerLensKeyValueCache:
    """Make a cache whose rows hold the given columns of the prefix."""
    entries: list[TransformerLensKeyValueCacheEntry] = []
    for entry in prefix.entries:
        at = columns.to(entry.past_keys.device)
        entries.append(TransformerLensKeyValueCacheEntry(entry.past_keys[0, at], entry.past_values[0, at]))
    return TransformerLensKeyValueCache(entries, mask)


def _keep_rows(cache: TransformerLensKeyValueCache, rows: list[int]) -> None:
    """Keep some rows of the cache in place, without the columns that are padding in all of them.

    The cache is then as wide as its longest row, and within TransformerLens's rotary table of ``n_ctx`` positions.
    """
    mask = cache.previous_attention_mask[rows]
    first = int((mask.sum(0) == 0).sum())
    cache.previous_attention_mask = mask[:, first:]
    for entry in cache.entries:
        entry.past_keys, entry.past_values = entry.past_keys[rows, first:], entry.past_values[rows, first:]
