"""Convert the weights of a Hugging Face model to the parameters of a HookedTransformer, without
folding or centring.

TransformerLens's converters omit biases that only some models of a family have; they are added
here.
"""

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from einops import EinopsError, rearrange
from torch import Tensor, nn
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained import weight_conversions
from transformers import PreTrainedModel

from anchorlens.errors import CheckpointError, UnsupportedModelError
from anchorlens.models.hf_model import language_model, text_config
from anchorlens.models.hooked.blocks import device_of

conversions: Any = weight_conversions  # untyped: the names are not declared as exports
# Families whose converter has another name; OLMo 2 uses that of OLMo 3, which supports grouped
# queries.
_CONVERTERS = {
    "olmo2": conversions.convert_olmo3_weights,
    "gemma2": conversions.convert_gemma_weights,
    "gemma3_text": conversions.convert_gemma_weights,
    "gpt_neox": conversions.convert_neox_weights,
    "gpt_neo": conversions.convert_neo_weights,
}
# Families whose converter maps the attention biases, or that have none.
_WITH_BIASES = (
    "gpt2",
    "gpt_neox",
    "gptj",
    "gpt_neo",
    "opt",
    "bloom",
    "phi",
    "phi3",
    "gpt_oss",
    "olmo",
)


def convert_weights(
    model: PreTrainedModel, cfg: HookedTransformerConfig, device: str | None = None
) -> dict[str, Tensor]:
    """Return a model's weights under TransformerLens's names, mostly as views of the model's
    memory.
    """
    kind = text_config(model.config).model_type
    source = copy.copy(cfg)
    source.device = str(device or model.device)  # device of the converters' zero biases
    base = language_model(model)
    with torch.no_grad():
        try:
            convert = _CONVERTERS.get(kind) or getattr(conversions, f"convert_{kind}_weights")
            with _zero_biases(base) if kind == "gpt_neox" else nullcontext():
                state = convert(model, source)
        except (
            AttributeError,
            TypeError,
            ValueError,
            RuntimeError,
            NotImplementedError,
            EinopsError,
        ) as error:
            raise UnsupportedModelError(
                f"The weights of this {type(model).__name__} do not have the layout of its family"
                f" ({type(error).__name__}: {' '.join(str(error).split())}). Load the unchanged"
                " checkpoint, without quantisation and with its original modules."
            ) from error
        if kind not in _WITH_BIASES:
            state |= _attention_biases(base, cfg)
        for name, shape in _absent(kind, cfg).items():
            state[name] = torch.zeros(shape, dtype=cfg.dtype)
        for layer in range(cfg.n_layers if kind == "phi3" else 0):
            # The converter adds biases of the vocabulary's size to RMS norms, which have none.
            del state[f"blocks.{layer}.ln1.b"], state[f"blocks.{layer}.ln2.b"]
        for name in state:
            if name.endswith(("act_fn.alpha_p", "act_fn.alpha_n")):
                state[name] = rearrange(state[name], "1 -> ")
        return {name: tensor.detach() for name, tensor in state.items()}


def _attention_biases(base: Any, cfg: HookedTransformerConfig) -> dict[str, Tensor]:
    """Return the biases of the attention projections that the checkpoint has."""
    names = {"q_proj": "b_Q", "k_proj": "_b_K", "v_proj": "_b_V", "o_proj": "b_O"}
    biases: dict[str, Tensor] = {}
    for index, layer in enumerate(base.layers):
        for projection, name in names.items():
            bias = getattr(layer.self_attn, projection).bias
            if bias is None:
                continue
            if name != "b_O":
                bias = rearrange(bias, "(h d_head) -> h d_head", d_head=cfg.d_head)
            biases[f"blocks.{index}.attn.{name}"] = bias
    return biases


def _absent(kind: str, cfg: HookedTransformerConfig) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of parameters that neither the family nor its converter has; they are
    set to zero.
    """
    per_layer = {
        "olmo": dict.fromkeys(("attn.b_Q", "attn.b_K", "attn.b_V"), (cfg.n_heads, cfg.d_head)),
        "phi3": {"mlp.b_in": (int(cfg.d_mlp or 0),), "mlp.b_out": (cfg.d_model,)},
    }.get(kind, {})
    absent: dict[str, tuple[int, ...]] = {}
    for layer in range(cfg.n_layers):
        for name, shape in per_layer.items():
            absent[f"blocks.{layer}.{name}"] = shape
    if kind in ("gpt2", "bloom"):
        absent["unembed.b_U"] = (cfg.d_vocab,)
    if kind == "bloom":
        # Unused: ALiBi positions are a bias of the scores.
        absent["pos_embed.W_pos"] = (cfg.n_ctx, cfg.d_model)
    return absent


@contextmanager
def _zero_biases(base: Any) -> Iterator[None]:
    """Add zero attention biases to GPT-NeoX's layers during a ``with`` statement, because its
    converter needs them.
    """
    linears: list[Any] = []
    for layer in base.layers:
        linears += [layer.attention.query_key_value, layer.attention.dense]
    bare = [linear for linear in linears if linear.bias is None]
    try:
        for linear in bare:
            linear.bias = nn.Parameter(
                linear.weight.new_zeros(linear.out_features), requires_grad=False
            )
        yield
    finally:
        for linear in bare:
            linear.bias = None


def check_names(wanted: Collection[str], state: Collection[str]) -> None:
    """Raise UnsupportedModelError if a state misses a parameter or has another one."""
    odd = sorted(set(wanted) ^ set(state))
    if odd:
        raise UnsupportedModelError(
            f"The mapping does not cover these parameters: {', '.join(odd[:6])}."
        )


def cast_tensor(
    name: str, tensor: Tensor, shape: Sequence[int], device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Move a tensor to the device and dtype of a parameter; raise CheckpointError if it has another
    shape.
    """
    if tuple(tensor.shape) != tuple(shape):
        raise CheckpointError(
            f"{name} has shape {tuple(tensor.shape)}, the configuration says {tuple(shape)}."
        )
    return tensor.to(device=device, dtype=dtype)


def install(model: HookedTransformer, state: dict[str, Tensor], adopt: bool) -> None:
    """Set every parameter of a new model, in the memory layout of the Hugging Face tensor; empties
    ``state``.

    With ``adopt``, memory that one tensor fills alone is reused instead of copied; only if the
    Hugging Face model is discarded.
    """
    wanted = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    for name in state.keys() & buffers.keys():
        buffers[name].copy_(state.pop(name))
    check_names(wanted.keys(), state)
    cfg = model.cfg
    taken: set[int] = set()
    for name, parameter in wanted.items():
        tensor = state.pop(name)
        fresh = cast_tensor(name, tensor, parameter.shape, device_of(cfg, name), cfg.dtype)
        storage = fresh.untyped_storage()
        moved = storage.data_ptr() != tensor.untyped_storage().data_ptr()
        alone = (
            storage.nbytes() == fresh.numel() * fresh.element_size()
            and storage.data_ptr() not in taken
        )
        if not moved and not (adopt and alone):
            fresh = fresh.clone(memory_format=torch.preserve_format)
        taken.add(fresh.untyped_storage().data_ptr())
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(fresh))
    for name, module in model.named_children():
        for inside, part in module.named_children() if name == "blocks" else [("", module)]:
            part.to(device_of(cfg, f"{name}.{inside}"))
