"""Greedy generation of one batch with TransformerLens's key-value cache."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry

from anchorlens.models.adapter import Adapter, NextTokens


def make_decoder(
    adapter: Adapter, prompts: Sequence[Sequence[int]], prefix: TransformerLensKeyValueCache
) -> NextTokens:
    """Return a function that continues the prompts, padded on the left.

    Positions are counted without padding, so positions and sliding windows are those of the row
    alone.
    """
    width = max(len(ids) for ids in prompts)
    cached = prefix.previous_attention_mask.shape[1]
    padding = [width - len(ids) for ids in prompts]
    padded = [[0] * pad + list(ids) for pad, ids in zip(padding, prompts, strict=True)]
    first = torch.tensor(padded, dtype=torch.long, device="cpu").to(adapter.device)[:, cached:]
    pads = torch.tensor(padding, dtype=torch.long, device="cpu").to(adapter.device)[:, None]
    mask = (torch.arange(width, device=adapter.device) >= pads).long()
    # The prefix is shifted by each row's padding; cached keys are not rotated yet. Columns that no
    # longer fit are run again.
    cache = _select_columns(
        prefix, (torch.arange(cached, device=adapter.device) - pads).clamp(min=0), mask[:, :cached]
    )

    def next_tokens(rows: list[int], last: Int[Tensor, "row"] | None) -> Int[Tensor, "row"]:
        if last is not None and len(rows) < len(cache.previous_attention_mask):
            _keep_rows(cache, rows)
        step = first if last is None else last[:, None]
        stream = adapter.forward(
            step, mask[:, cached:] if last is None else torch.ones_like(step), cache=cache
        )
        return adapter.read.logits(stream[:, -1]).argmax(-1).to(adapter.device)

    return next_tokens


def _select_columns(
    prefix: TransformerLensKeyValueCache,
    columns: Int[Tensor, "row pos"],
    mask: Int[Tensor, "row pos"],
) -> TransformerLensKeyValueCache:
    """Make a cache whose rows hold the given columns of the prefix."""
    entries: list[TransformerLensKeyValueCacheEntry] = []
    for entry in prefix.entries:
        at = columns.to(entry.past_keys.device)
        entries.append(
            TransformerLensKeyValueCacheEntry(entry.past_keys[0, at], entry.past_values[0, at])
        )
    return TransformerLensKeyValueCache(entries, mask)


def _keep_rows(cache: TransformerLensKeyValueCache, rows: list[int]) -> None:
    """Keep some rows of the cache in place, without the columns that are padding in all of them.

    The cache is then as wide as its longest row, and within TransformerLens's rotary table of
    ``n_ctx`` positions.
    """
    mask = cache.previous_attention_mask[rows]
    first = int((mask.sum(0) == 0).sum())
    cache.previous_attention_mask = mask[:, first:]
    for entry in cache.entries:
        entry.past_keys = entry.past_keys[rows, first:]
        entry.past_values = entry.past_values[rows, first:]
