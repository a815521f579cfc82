"""Adapter of a TransformerBridge, raw or in compatibility mode."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.exceptions import StopAtLayerException
from transformers import DynamicCache, PreTrainedModel
from typing_extensions import override

from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, Hook, NextTokens, Shape
from anchorlens.models.blocks import Blocks
from anchorlens.models.bridge.blocks import (
    BridgeBlock,
    Rotary,
    apply_norm,
    find_unsupported_feature,
    find_user_hook,
    list_user_hooks,
    recurrent_parts,
    unwrap,
)
from anchorlens.models.hf_model import layer_window, make_empty_model, text_config
from anchorlens.models.parity import ROTARY_LENGTH, Reference, rotary_tables
from anchorlens.models.read import Read
from anchorlens.typing import Stream

# Tokens per row when token embeddings are computed: the attention mask of a row grows with the
# square of its length.
_EMBED_WIDTH = 256


class BridgeAdapter(Adapter):
    """Adapter of a TransformerBridge of a causal language model."""

    backend = "bridge"

    def __init__(self, model: TransformerBridge) -> None:
        self.model = self._model = model
        self.hf: Any = model.original_model
        config = text_config(self.hf.config)
        if (
            getattr(config, "is_encoder_decoder", False)
            or not hasattr(model, "blocks")
            or not hasattr(model, "unembed")
        ):
            raise InputError(
                f"model: a bridge of {type(self.hf).__name__}, which is no causal language model.",
                argument="model",
            )
        self._head = unwrap(model.unembed)
        self.device = self.embedding.device
        self.devices = tuple(
            dict.fromkeys([self.device, *(p.device for p in self.hf.parameters())])
        )
        self.shape = Shape.of(model.cfg)
        cap = getattr(config, "final_logit_softcapping", None) or getattr(
            config, "logits_soft_cap", None
        )
        factor = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        self.read = Read(
            lambda: (self._head.weight.T, self._head.bias),
            self._final_norm,
            float(cap) if cap else None,
            factor,
        )
        # transformers keeps the state of recurrent parts in caches of other classes.
        self.has_prefix_cache = not any(map(recurrent_parts, model.blocks))
        self.norms_heads_together = any(map(_norms_before_reshape, model.blocks))
        self._last = f"blocks.{self.n_layers - 1}.hook_resid_post"

    @property
    @override
    def embedding(self) -> Float[Tensor, "token d_model"]:
        return unwrap(self._model.embed).weight

    @override
    def attention_hook(self, layer: int, name: str) -> str:
        block = self._model.blocks[layer]
        if recurrent := recurrent_parts(block):
            raise InputError(
                f"model: layer {layer} of this bridge has a recurrent part"
                f" ({', '.join(recurrent)}), through which tokens act without attention: no"
                " knockout is possible. Measure a swap.",
                argument="model",
            )
        attn = block.attn
        # Other classes run transformers' own attention and show its scores afterwards, so that a
        # change has no effect.
        if not (hasattr(attn, "_reconstruct_attention") or hasattr(attn, "_qk_norm_phase")):
            raise InputError(
                f"model: layer {layer} of this bridge has attention of type {type(attn).__name__},"
                " whose scores hooks cannot change: no knockout is possible. Load the model with"
                " backend='hooked', which needs transformer-lens 3.9.",
                argument="model",
            )
        return super().attention_hook(layer, name)

    @override
    @torch.no_grad()
    def embed(
        self, ids: Int[Tensor, "token"], positions: Int[Tensor, "token"]
    ) -> Float[Tensor, "token d_model"]:
        missing = -len(ids) % min(_EMBED_WIDTH, max(1, len(ids)))
        padded = (torch.cat([each, each.new_zeros(missing)]) for each in (ids, positions))
        rows = [each.view(-1, min(_EMBED_WIDTH, len(ids))) for each in padded]
        x = self._run_until("blocks.0.hook_resid_pre", rows[0], position_ids=rows[1])
        return x.flatten(0, 1)[: len(ids)]

    @override
    def forward(
        self,
        ids: Int[Tensor, "example pos"],
        mask: Int[Tensor, "example pos"],
        hooks: Sequence[Hook] = (),
        cache: DynamicCache | None = None,
        *,
        with_graph: bool = False,
    ) -> Stream:
        cached = 0 if cache is None else cache.get_seq_length()
        whole_mask = torch.cat([mask.new_ones(len(mask), cached), mask], 1) if cached else mask
        extra = (
            {"use_cache": False} if cache is None else {"past_key_values": cache, "use_cache": True}
        )
        with torch.set_grad_enabled(with_graph):
            return self._run_until(self._last, ids, hooks, attention_mask=whole_mask, **extra)

    @override
    def prefix_cache(self, ids: Int[Tensor, "pos"], n_rows: int) -> DynamicCache:
        cache = DynamicCache()
        self.forward(ids[None], torch.ones_like(ids[None]), cache=cache)
        cache.batch_repeat_interleave(n_rows)
        return cache

    @override
    @torch.no_grad()
    def whole(
        self, ids: Int[Tensor, "pos"]
    ) -> tuple[Float[Tensor, "pos d_model"], Float[Tensor, "pos d_vocab"]]:
        streams: list[Tensor] = []

        def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
            streams.append(value)
            return value

        logits = self._model.run_with_hooks(
            ids[None],
            fwd_hooks=[(self._last, keep)],
            attention_mask=torch.ones_like(ids[None]),
            use_cache=False,
        )
        return streams[0][0], logits[0]

    @override
    def generation_prefix(self, ids: Int[Tensor, "pos"]) -> None:
        """Do nothing: transformers' cache holds rotated keys, which a row with padding could not
        use.
        """

    @override
    def decoder(self, prompts: Sequence[Sequence[int]], prefix: Any) -> NextTokens:
        """Continue the prompts with transformers' cache, padded on the left; recurrent models run
        whole rows every time.
        """
        if not self.has_prefix_cache:
            return self._decoder_without_cache(prompts)
        width = max(len(ids) for ids in prompts)
        first = torch.tensor(
            [[0] * (width - len(ids)) + list(ids) for ids in prompts], device=self.device
        )
        pads = torch.tensor([width - len(ids) for ids in prompts], device=self.device)[:, None]
        mask = (torch.arange(width, device=self.device) >= pads).long()
        cache = DynamicCache()

        def next_tokens(rows: list[int], last: Int[Tensor, "row"] | None) -> Int[Tensor, "row"]:
            nonlocal mask
            if last is not None:
                if len(rows) < len(mask):
                    cache.batch_select_indices(torch.tensor(rows, device=self.device))
                mask = torch.cat([mask[rows], mask.new_ones(len(rows), 1)], 1)
            step = first if last is None else last[:, None]
            stream = self._run_until(
                self._last, step, attention_mask=mask, past_key_values=cache, use_cache=True
            )
            return self._likeliest(stream[:, -1])

        return next_tokens

    def _decoder_without_cache(self, prompts: Sequence[Sequence[int]]) -> NextTokens:
        texts = [list(ids) for ids in prompts]

        def next_tokens(rows: list[int], last: Int[Tensor, "row"] | None) -> Int[Tensor, "row"]:
            if last is not None:
                new = last.tolist()
                texts[:] = [[*texts[row], token] for row, token in zip(rows, new, strict=True)]
            batch = pad_sequence(
                [torch.tensor(ids, device=self.device) for ids in texts], batch_first=True
            )
            ends = torch.tensor([len(ids) - 1 for ids in texts], device=self.device)
            stream = self.forward(
                batch, (torch.arange(batch.shape[1], device=self.device) <= ends[:, None]).long()
            )
            return self._likeliest(stream[range(len(texts)), ends])

        return next_tokens

    def _likeliest(self, stream: Float[Tensor, "row d_model"]) -> Int[Tensor, "row"]:
        return self.read.logits(stream).argmax(-1).to(self.device)

    @override
    def blocks(self) -> Blocks:
        rotary = Rotary(self.hf, self.shape.dtype)
        return Blocks(lambda layer: BridgeBlock(self._model, layer, rotary))

    @property
    @override
    def windows(self) -> frozenset[int | None]:
        config = text_config(self.hf.config)
        return frozenset(layer_window(config, layer) for layer in range(self.n_layers))

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
    def reference(self) -> Reference | str:
        model = self._model
        if getattr(model, "_weights_processed", False):
            return "the bridge's weights are processed, so Hugging Face's model does not have them"
        empty = _empty(model)
        tensors: dict[str, Tensor] = {}
        for stored, tensor in model.original_model.state_dict().items():
            own = _COMPONENT.sub("", stored)
            tensors[own] = tensor
        wanted = set(empty.state_dict())
        missing = wanted - set(tensors)
        if missing:
            return f"the bridge lacks {min(missing)} of Hugging Face's weights"
        empty.load_state_dict({name: tensors[name] for name in wanted}, assign=True)
        devices: Any = model.original_model
        # Moves the buffers; the weights are there.
        return Reference.of(empty.to(next(devices.parameters()).device))

    @override
    def rotary_gap(self) -> float | None:
        model = self._model
        hf: Any = model.original_model
        ours = rotary_tables(hf, ROTARY_LENGTH)
        theirs = rotary_tables(_empty(model), ROTARY_LENGTH)
        gaps: list[float] = []
        for kind, tables in theirs.items():
            for a, b in zip(ours[kind], tables, strict=True):
                gaps.append(float((a.cpu() - b.cpu()).abs().max()))
        return max(gaps, default=None)

    def _run_until(
        self, name: str, ids: Int[Tensor, "example pos"], hooks: Sequence[Hook] = (), **options: Any
    ) -> Stream:
        """Run the model with hooks up to a hook point and return the value there."""

        def finish(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
            raise StopAtLayerException(value)

        # run_with_hooks resolves all aliases of the model again for every pair that names a hook
        # (16 ms in SmolLM2), so it gets one.
        points = self._model.hook_dict
        functions: dict[int, list[Callable[[Tensor, Any], Any]]] = {}
        for each, function in [*hooks, (name, finish)]:
            if each in points:
                own = functions.setdefault(id(points[each]), [])
                own.append(_in_place(function) if each.endswith("hook_resid_mid") else function)

        def run_all(value: Tensor, hook: Any) -> Tensor:
            for function in functions[id(hook)]:
                value = function(value, hook)
            return value

        chosen = {each for each, point in points.items() if id(point) in functions}
        return self._model.run_with_hooks(
            ids, fwd_hooks=[(chosen.__contains__, run_all)], **options
        )

    def _final_norm(self, stream: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        module = self._model._modules.get("ln_final")
        if module is None:
            return stream.to(torch.float32)
        return apply_norm(module, stream.to(torch.float32))


def _norms_before_reshape(block: Any) -> bool:
    """Return whether a block norms the queries and keys of all heads together."""
    attention = block._modules.get("attn")
    return getattr(attention, "_qk_norm_phase", "") == "pre_reshape"


def _in_place(function: Callable[[Tensor, Any], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """Write a hook's result into the tensor itself.

    The stream between attention and MLP is read by a norm and by the sum after the MLP. A bridge's
    hook is on the norm's input, so a new tensor would leave the sum unchanged.
    """

    def run(value: Tensor, hook: Any) -> Tensor:
        changed = function(value, hook)
        return value if changed is value else value.copy_(changed)

    return run


_COMPONENT = re.compile(r"\._original_component\b")


def _empty(model: TransformerBridge) -> PreTrainedModel:
    hf: Any = model.original_model
    return make_empty_model(hf.config, next(hf.parameters()).dtype)
