"""Adapter of a HookedTransformer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry
from typing_extensions import override

from anchorlens.models.adapter import Adapter, Hook, NextTokens, Shape, stream_of
from anchorlens.models.blocks import Blocks
from anchorlens.models.devices import without_autocast
from anchorlens.models.hooked.blocks import (
    HookedBlock,
    block_devices,
    devices_of,
    final_norm,
    find_biases,
    find_unsupported_feature,
    find_user_hook,
    inputs_follow_blocks,
    list_user_hooks,
)
from anchorlens.models.hooked.streaming import load_block
from anchorlens.models.read import Read
from anchorlens.typing import Stream


class HookedAdapter(Adapter):
    """Adapter of a HookedTransformer."""

    backend = "hooked"

    def __init__(self, model: HookedTransformer) -> None:
        self.model = self._model = model
        stream = stream_of(model)
        self.device = model.embed.W_E.device
        self.devices = devices_of(model)
        self.shape = Shape.of(
            model.cfg, None if stream is None else stream.sizes, block_devices(model)
        )
        self.norms_heads_together = (
            getattr(model.blocks[0].attn, "q_norm", None) is not None and not model.cfg.use_qk_norm
        )
        cap = model.cfg.output_logits_soft_cap
        self.read = Read(
            lambda: (model.unembed.W_U, model.unembed.b_U),
            final_norm(model),
            cap if cap and cap > 0 else None,
        )

    @property
    @override
    def embedding(self) -> Float[Tensor, "token d_model"]:
        return self._model.embed.W_E

    @override
    @torch.no_grad()
    def embed(
        self, ids: Int[Tensor, "token"], positions: Int[Tensor, "token"]
    ) -> Float[Tensor, "token d_model"]:
        x = self._model.embed(ids[None])[0]
        if self._model.cfg.positional_embedding_type == "standard":
            x = x + self._model.pos_embed.W_pos[positions]
        return x

    @override
    def forward(
        self,
        ids: Int[Tensor, "example pos"],
        mask: Int[Tensor, "example pos"],
        hooks: Sequence[Hook] = (),
        cache: TransformerLensKeyValueCache | None = None,
        *,
        with_graph: bool = False,
    ) -> Stream:
        """Run the forward pass, which extends an unfrozen ``cache``.

        Without a graph it uses ``no_grad``, not ``inference_mode``: TransformerLens may store a
        longer rotary table in the model, and an inference tensor could not be used with gradients
        later.
        """
        with (
            torch.set_grad_enabled(with_graph),
            _disable_ungrouping(self._model) if cache is not None else nullcontext(),
            inputs_follow_blocks(self._model),
        ):
            return self._model.run_with_hooks(
                ids,
                fwd_hooks=list(hooks),
                stop_at_layer=self.n_layers,
                past_kv_cache=cache,
                attention_mask=mask,
                prepend_bos=False,
                padding_side="right",
            )

    @override
    def prefix_cache(self, ids: Int[Tensor, "pos"], n_rows: int) -> TransformerLensKeyValueCache:
        cache = self.generation_prefix(ids)
        pattern = "1 pos head d_head -> row pos head d_head"
        entries: list[TransformerLensKeyValueCacheEntry] = []
        for entry in cache.entries:
            keys = repeat(entry.past_keys, pattern, row=n_rows)
            values = repeat(entry.past_values, pattern, row=n_rows)
            entries.append(TransformerLensKeyValueCacheEntry(keys, values))
        for_all_rows = TransformerLensKeyValueCache(
            entries, torch.ones_like(ids).expand(n_rows, -1)
        )
        for_all_rows.freeze()  # keys and values of the rows are used in their own layer only
        return for_all_rows

    @override
    @torch.no_grad()
    def whole(
        self, ids: Int[Tensor, "pos"]
    ) -> tuple[Float[Tensor, "pos d_model"], Float[Tensor, "pos d_vocab"]]:
        stream = self.forward(ids[None], torch.ones_like(ids[None]))
        last = stream.to(self.read.device)
        with without_autocast(last.device):
            logits = self._model(
                last, start_at_layer=self.n_layers, prepend_bos=False, padding_side="right"
            )
        assert isinstance(logits, Tensor)
        return stream[0], logits[0]

    @override
    def generation_prefix(self, ids: Int[Tensor, "pos"]) -> TransformerLensKeyValueCache:
        cache = TransformerLensKeyValueCache.init_cache(self._model.cfg, self.device, 1)
        for entry, device in zip(cache.entries, block_devices(self._model), strict=True):
            entry.past_keys = entry.past_keys.to(device)
            entry.past_values = entry.past_values.to(device)
        if len(ids):
            row = ids[None].to(self.device)
            self.forward(row, torch.ones_like(row), cache=cache)
        return cache

    @override
    def decoder(
        self, prompts: Sequence[Sequence[int]], prefix: TransformerLensKeyValueCache
    ) -> NextTokens:
        return _make_decoder(self, prompts, prefix)

    @override
    def blocks(self) -> Blocks:
        model = self._model
        if stream_of(model) is not None:  # the weights of a layer are there while it runs
            return Blocks(
                lambda layer: HookedBlock(model, layer),
                lambda layer: load_block(model.blocks[layer]),
            )
        # Before the first pass, so that no pass waits for the device.
        biased = find_biases(model, range(self.n_layers))
        return Blocks(lambda layer: HookedBlock(model, layer, biased[layer]))

    @property
    @override
    def windows(self) -> frozenset[int | None]:
        found: set[int | None] = set()
        for block in self._model.blocks:
            attn = block.attn
            found.add(attn.cfg.window_size if attn.attn_type == "local" else None)
        return frozenset(found)

    @override
    def find_unsupported_feature(self) -> str | None:
        return find_unsupported_feature(self._model)

    @override
    def find_user_hook(self) -> str | None:
        return find_user_hook(self._model)

    @override
    def list_user_hooks(self) -> Iterator[tuple[str, Any]]:
        return list_user_hooks(self._model)

    @override
    def reference(self) -> str:
        return "a live HookedTransformer has no Hugging Face model"

    @override
    def rotary_gap(self) -> float | None:
        model = self._model
        cfg = model.cfg
        gaps: list[float] = []
        # Dynamic scaling changes the tables while the model runs.
        if cfg.positional_embedding_type != "rotary" or getattr(cfg, "use_dynamic_ntk_rope", False):
            return None
        for block in model.blocks:
            attn: Any = block.attn
            tables = attn.rotary_sin, attn.rotary_cos
            is_local = attn.attn_type == "local" and cfg.rotary_base_local is not None
            base = cfg.rotary_base_local if is_local else cfg.rotary_base
            fresh = attn.calculate_sin_cos_rotary(
                cfg.rotary_dim, len(tables[0]), base=base, dtype=cfg.dtype
            )
            for own, expected in zip(tables, fresh, strict=True):
                gap = own.float().cpu() - expected.float().cpu()
                gaps.append(float(gap.abs().max()))
        return max(gaps, default=None)


@contextmanager
def _disable_ungrouping(model: HookedTransformer) -> Iterator[None]:
    """Switch ``ungroup_grouped_query_attention`` off, which TransformerLens's cache does not
    support.
    """
    cfg = model.cfg
    before = cfg.ungroup_grouped_query_attention
    cfg.ungroup_grouped_query_attention = False
    try:
        yield
    finally:
        cfg.ungroup_grouped_query_attention = before


def _make_decoder(
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
