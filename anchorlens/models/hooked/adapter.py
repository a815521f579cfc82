"""Adapter of a HookedTransformer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry
from typing_extensions import override

from anchorlens.models.adapter import Adapter, Hook, NextTokens, stream_of
from anchorlens.models.blocks import Blocks
from anchorlens.models.devices import without_autocast
from anchorlens.models.hooked.blocks import (
    HookedBlock,
    final_norm,
    find_biases,
    find_unsupported_feature,
    find_user_hook,
)
from anchorlens.models.hooked.greedy import make_decoder
from anchorlens.models.hooked.placement import block_devices, devices_of, inputs_follow_blocks
from anchorlens.models.hooked.rotary import rotary_gap
from anchorlens.models.hooked.streaming import load_block
from anchorlens.models.read import Read
from anchorlens.models.shape import Shape
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
        return make_decoder(self, prompts, prefix)

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
    def reference(self) -> str:
        return "a live HookedTransformer has no Hugging Face model"

    @override
    def rotary_gap(self) -> float | None:
        return rotary_gap(self._model)


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
