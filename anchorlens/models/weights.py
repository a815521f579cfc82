"""Weights of a Hugging Face model become the parameters of a HookedTransformer, unprocessed.

TransformerLens's converters name and reshape the tensors; they leave out biases that only some members of a family have, so
those are added here, and zeros where a HookedTransformer has a bias and the family has none. Every other parameter must come from
the checkpoint.
"""

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from einops import EinopsError, rearrange
from torch import Tensor, nn
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions.apertus import convert_apertus_weights
from transformer_lens.pretrained.weight_conversions.bloom import convert_bloom_weights
from transformer_lens.pretrained.weight_conversions.gemma import convert_gemma_weights
from transformer_lens.pretrained.weight_conversions.gpt2 import convert_gpt2_weights
from transformer_lens.pretrained.weight_conversions.gptj import convert_gptj_weights
from transformer_lens.pretrained.weight_conversions.llama import convert_llama_weights
from transformer_lens.pretrained.weight_conversions.mistral import convert_mistral_weights
from transformer_lens.pretrained.weight_conversions.mixtral import convert_mixtral_weights
from transformer_lens.pretrained.weight_conversions.neo import convert_neo_weights
from transformer_lens.pretrained.weight_conversions.neox import convert_neox_weights
from transformer_lens.pretrained.weight_conversions.olmo import convert_olmo_weights
from transformer_lens.pretrained.weight_conversions.olmo3 import convert_olmo3_weights
from transformer_lens.pretrained.weight_conversions.olmoe import convert_olmoe_weights
from transformer_lens.pretrained.weight_conversions.openai import convert_gpt_oss_weights
from transformer_lens.pretrained.weight_conversions.opt import convert_opt_weights
from transformer_lens.pretrained.weight_conversions.phi import convert_phi_weights
from transformer_lens.pretrained.weight_conversions.phi3 import convert_phi3_weights
from transformer_lens.pretrained.weight_conversions.qwen2 import convert_qwen2_weights
from transformer_lens.pretrained.weight_conversions.qwen3 import convert_qwen3_weights
from transformers import PreTrainedModel

from anchorlens.errors import CheckpointError, UnsupportedModelError
from anchorlens.models.mapping import text_config
from anchorlens.models.placement import home

CONVERTERS: dict[str, Callable[[Any, HookedTransformerConfig], dict[str, Tensor]]] = {
    "llama": convert_llama_weights,
    "mistral": convert_mistral_weights,
    "qwen2": convert_qwen2_weights,
    "qwen3": convert_qwen3_weights,
    "mixtral": convert_mixtral_weights,
    "phi3": convert_phi3_weights,
    "apertus": convert_apertus_weights,
    "olmo": convert_olmo_weights,
    # OLMo 2 has the parts of OLMo 3, whose converter knows grouped queries.
    "olmo2": convert_olmo3_weights,
    "olmo3": convert_olmo3_weights,
    "olmoe": convert_olmoe_weights,
    "gpt_oss": convert_gpt_oss_weights,
    "gemma": convert_gemma_weights,
    "gemma2": convert_gemma_weights,
    "gemma3_text": convert_gemma_weights,
    "gpt2": convert_gpt2_weights,
    "gpt_neox": convert_neox_weights,
    "gptj": convert_gptj_weights,
    "gpt_neo": convert_neo_weights,
    "opt": convert_opt_weights,
    "bloom": convert_bloom_weights,
    "phi": convert_phi_weights,
}
# Their converters take the biases of the attention along, or there can be none.
_WITH_BIASES = ("gpt2", "gpt_neox", "gptj", "gpt_neo", "opt", "bloom", "phi", "phi3", "gpt_oss", "olmo")


def language_model(model: PreTrainedModel) -> Any:
    """The module that holds ``layers`` (``h`` in GPT-2) and, with rotary positions, ``rotary_emb``."""
    base = model.base_model
    return getattr(base, "language_model", base)


def count_parameters(model: PreTrainedModel) -> int:
    """Parameters of the language model and its head, tied weights once, a vision tower left out."""
    head = model.get_output_embeddings()
    found = [*language_model(model).parameters(), *(head.parameters() if head is not None else ())]
    return sum(parameter.numel() for parameter in {id(parameter): parameter for parameter in found}.values())


def hooked_state(
    model: PreTrainedModel, cfg: HookedTransformerConfig, device: torch.device | None = None
) -> dict[str, Tensor]:
    """The model's weights under TransformerLens's names; mostly views of the model's own memory.

    Args:
        model: A Hugging Face model of a mapped family.
        cfg: Its mapped configuration.
        device: Where its weights lie; the model's own where it is left out.

    Returns:
        Parameter name -> tensor, on the model's device.

    Raises:
        UnsupportedModelError: Its modules or tensors are not those of its family (quantised or replaced ones, for example).
    """
    kind = text_config(model.config).model_type
    source = copy.copy(cfg)
    source.device = str(device or model.device)  # the converters make their zero biases there
    base = language_model(model)
    with torch.no_grad():
        try:
            state = _neox_state(model, base, source) if kind == "gpt_neox" else CONVERTERS[kind](model, source)
        except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError, EinopsError) as error:
            raise UnsupportedModelError(
                f"The weights of this {type(model).__name__} are not laid out as those of its family "
                f"({type(error).__name__}: {' '.join(str(error).split())}). Load the unchanged checkpoint, without quantisation and "
                "with its own modules."
            ) from error
        if kind not in _WITH_BIASES:
            state |= _attention_biases(base, cfg)
        for name, shape in _absent(kind, cfg).items():
            state[name] = torch.zeros(shape, dtype=cfg.dtype)
        for layer in range(cfg.n_layers if kind == "phi3" else 0):
            # The converter gives RMS norms, which have no bias, one of the vocabulary's size.
            del state[f"blocks.{layer}.ln1.b"], state[f"blocks.{layer}.ln2.b"]
        for name in state:
            if name.endswith(("act_fn.alpha_p", "act_fn.alpha_n")):
                state[name] = rearrange(state[name], "1 -> ")
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


def _absent(kind: str, cfg: HookedTransformerConfig) -> dict[str, tuple[int, ...]]:
    """What a HookedTransformer has, the family lacks and its converter leaves out, with its shape: zeros change nothing."""
    own = {
        "olmo": dict.fromkeys(("attn.b_Q", "attn.b_K", "attn.b_V"), (cfg.n_heads, cfg.d_head)),
        "phi3": {"mlp.b_in": (int(cfg.d_mlp or 0),), "mlp.b_out": (cfg.d_model,)},
    }.get(kind, {})
    absent = {f"blocks.{layer}.{name}": shape for layer in range(cfg.n_layers) for name, shape in own.items()}
    if kind in ("gpt2", "bloom"):
        absent["unembed.b_U"] = (cfg.d_vocab,)
    if kind == "bloom":
        absent["pos_embed.W_pos"] = (cfg.n_ctx, cfg.d_model)  # never read: its positions are a bias of the scores
    return absent


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


def check_names(wanted: Collection[str], state: Collection[str]) -> None:
    """Whether a state has every parameter, and none besides.

    Raises:
        UnsupportedModelError: The mapping left a parameter out, or made one too many.
    """
    odd = sorted(set(wanted) ^ set(state))
    if odd:
        raise UnsupportedModelError(f"The mapping does not cover these parameters: {', '.join(odd[:6])}.")


def fitted(name: str, tensor: Tensor, shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """A tensor as a parameter has to be; itself, where it is that already.

    Raises:
        CheckpointError: It has another shape.
    """
    if tuple(tensor.shape) != tuple(shape):
        raise CheckpointError(f"{name} has shape {tuple(tensor.shape)}, the configuration says {tuple(shape)}.")
    return tensor.to(device=device, dtype=dtype)


def install(model: HookedTransformer, state: dict[str, Tensor], adopt: bool) -> None:
    """Give every parameter of ``model`` its tensor.

    The memory layout of the Hugging Face tensors is kept: TransformerLens multiplies by the transposed weights, which are then
    contiguous, so a forward pass copies none of them.

    Args:
        model: Freshly made, its parameters not yet filled; ends up where its configuration says, in ``cfg.dtype``.
        state: From :func:`hooked_state`; emptied on the way.
        adopt: Take over memory that one tensor fills alone, instead of copying it. Only for a model that is thrown away after.

    Raises:
        UnsupportedModelError: The mapping left a parameter out, or made one too many.
        CheckpointError: A tensor has another shape than the configuration says.
    """
    wanted, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for name in state.keys() & buffers.keys():
        buffers[name].copy_(state.pop(name))
    check_names(wanted.keys(), state)
    cfg = model.cfg
    taken: set[int] = set()
    for name, parameter in wanted.items():
        tensor = state.pop(name)
        fresh = fitted(name, tensor, parameter.shape, home(cfg, name), cfg.dtype)
        storage = fresh.untyped_storage()
        moved = storage.data_ptr() != tensor.untyped_storage().data_ptr()
        alone = storage.nbytes() == fresh.numel() * fresh.element_size() and storage.data_ptr() not in taken
        if not moved and not (adopt and alone):
            fresh = fresh.clone(memory_format=torch.preserve_format)
        taken.add(fresh.untyped_storage().data_ptr())
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(fresh))
    for name, module in model.named_children():
        for inside, part in module.named_children() if name == "blocks" else [("", module)]:
            part.to(home(cfg, f"{name}.{inside}"))
