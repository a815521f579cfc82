"""Weights of a Hugging Face model become the parameters of a HookedTransformer, unprocessed.

TransformerLens's converters name and reshape the tensors; they leave out biases that only some members of a family have, so
those are added here. Every parameter must come from the checkpoint: nothing is filled in.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions.gemma import convert_gemma_weights
from transformer_lens.pretrained.weight_conversions.gpt2 import convert_gpt2_weights
from transformer_lens.pretrained.weight_conversions.llama import convert_llama_weights
from transformer_lens.pretrained.weight_conversions.mistral import convert_mistral_weights
from transformer_lens.pretrained.weight_conversions.neox import convert_neox_weights
from transformer_lens.pretrained.weight_conversions.qwen2 import convert_qwen2_weights
from transformer_lens.pretrained.weight_conversions.qwen3 import convert_qwen3_weights
from transformers import PreTrainedModel

from anchorlens.errors import CheckpointError, UnsupportedModelError
from anchorlens.models.mapping import text_config

CONVERTERS: dict[str, Callable[[Any, HookedTransformerConfig], dict[str, Tensor]]] = {
    "llama": convert_llama_weights,
    "mistral": convert_mistral_weights,
    "qwen2": convert_qwen2_weights,
    "qwen3": convert_qwen3_weights,
    "gemma2": convert_gemma_weights,
    "gemma3_text": convert_gemma_weights,
    "gpt2": convert_gpt2_weights,
    "gpt_neox": convert_neox_weights,
}


def language_model(model: PreTrainedModel) -> Any:
    """The module that holds ``layers`` (``h`` in GPT-2) and, with rotary positions, ``rotary_emb``."""
    base = model.base_model
    return getattr(base, "language_model", base)


def count_parameters(model: PreTrainedModel) -> int:
    """Parameters of the language model and its head, tied weights once, a vision tower left out."""
    head = model.get_output_embeddings()
    found = [*language_model(model).parameters(), *(head.parameters() if head is not None else ())]
    return sum(parameter.numel() for parameter in {id(parameter): parameter for parameter in found}.values())


def hooked_state(model: PreTrainedModel, cfg: HookedTransformerConfig) -> dict[str, Tensor]:
    """The model's weights under TransformerLens's names; mostly views of the model's own memory.

    Args:
        model: A Hugging Face model of a mapped family.
        cfg: Its mapped configuration.

    Returns:
        Parameter name -> tensor, on the model's device.
    """
    kind = text_config(model.config).model_type
    source = copy.copy(cfg)
    source.device = str(model.device)  # the converters make their zero biases there
    base = language_model(model)
    with torch.no_grad():
        state = _neox_state(model, base, source) if kind == "gpt_neox" else CONVERTERS[kind](model, source)
        if kind not in ("gpt2", "gpt_neox"):
            state |= _attention_biases(base, cfg)
        state.setdefault("unembed.b_U", torch.zeros(cfg.d_vocab, dtype=cfg.dtype))
        return {name: tensor.detach() for name, tensor in state.items()}


def _attention_biases(base: Any, cfg: HookedTransformerConfig) -> dict[str, Tensor]:
    """Biases of the four attention projections where the checkpoint has them (``attention_bias=True``)."""
    biases: dict[str, Tensor] = {}
    for index, layer in enumerate(base.layers):
        attention, prefix = layer.self_attn, f"blocks.{index}.attn."
        named = (
            ("q_proj", "b_Q", cfg.n_heads),
            ("k_proj", "_b_K", cfg.n_key_value_heads),
            ("v_proj", "_b_V", cfg.n_key_value_heads),
        )
        for projection, name, heads in named:
            bias = getattr(attention, projection).bias
            if bias is not None:
                biases[prefix + name] = rearrange(bias, "(head d_head) -> head d_head", head=heads)
        if attention.o_proj.bias is not None:
            biases[prefix + "b_O"] = attention.o_proj.bias
    return biases


def _neox_state(model: PreTrainedModel, base: Any, cfg: HookedTransformerConfig) -> dict[str, Tensor]:
    """GPT-NeoX; its converter needs attention biases, so where there are none the layers carry zero ones meanwhile."""
    bare = [
        linear
        for layer in base.layers
        for linear in (layer.attention.query_key_value, layer.attention.dense)
        if linear.bias is None
    ]
    try:
        for linear in bare:
            linear.bias = nn.Parameter(linear.weight.new_zeros(linear.out_features), requires_grad=False)
        return convert_neox_weights(model, cfg)
    finally:
        for linear in bare:
            linear.bias = None


def install(model: HookedTransformer, state: dict[str, Tensor], adopt: bool) -> None:
    """Give every parameter of ``model`` its tensor.

    The memory layout of the Hugging Face tensors is kept: TransformerLens multiplies by the transposed weights, which are then
    contiguous, so a forward pass copies none of them.

    Args:
        model: Freshly made, its parameters not yet filled; ends up on ``cfg.device`` in ``cfg.dtype``.
        state: From :func:`hooked_state`; emptied on the way.
        adopt: Take over memory that one tensor fills alone, instead of copying it. Only for a model that is thrown away after.

    Raises:
        UnsupportedModelError: The mapping left a parameter out, or made one too many.
        CheckpointError: A tensor has another shape than the configuration says.
    """
    wanted = dict(model.named_parameters())
    odd = sorted(set(wanted) ^ set(state))
    if odd:
        raise UnsupportedModelError(f"The mapping does not cover these parameters: {', '.join(odd[:6])}.")
    device, dtype = torch.device(str(model.cfg.device)), model.cfg.dtype
    taken: set[int] = set()
    for name, parameter in wanted.items():
        tensor = state.pop(name)
        if tensor.shape != parameter.shape:
            raise CheckpointError(f"{name} has shape {tuple(tensor.shape)}, the configuration says {tuple(parameter.shape)}.")
        fresh = tensor.to(device=device, dtype=dtype)
        storage = fresh.untyped_storage()
        moved = storage.data_ptr() != tensor.untyped_storage().data_ptr()
        alone = storage.nbytes() == fresh.numel() * fresh.element_size() and storage.data_ptr() not in taken
        if not moved and not (adopt and alone):
            fresh = fresh.clone(memory_format=torch.preserve_format)
        taken.add(fresh.untyped_storage().data_ptr())
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(fresh))
    nn.Module.to(model, device)
