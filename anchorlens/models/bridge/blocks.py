"""Token-wise parts of the blocks of a TransformerBridge, from the Hugging Face modules that it
wraps, without copies of weights.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import (
    joint_qkv_position_embeddings_attention as joint_qkv_rotary,
)
from transformer_lens.model_bridge.generalized_components.block import (
    BlockBridge,
    ParallelBlockBridge,
)
from transformer_lens.model_bridge.generalized_components.gated_mlp import (
    GatedMLPBridge,
    resolve_activation_fn,
)
from transformer_lens.model_bridge.generalized_components.joint_gate_up_mlp import (
    JointGateUpMLPBridge,
)
from transformer_lens.model_bridge.generalized_components.joint_qkv_attention import (
    JointQKVAttentionBridge,
)
from transformer_lens.model_bridge.generalized_components.mlp import MLPBridge
from transformer_lens.model_bridge.generalized_components.normalization import (
    LayerNormPreBridge,
    RMSNormPreBridge,
)
from transformer_lens.model_bridge.generalized_components.position_embeddings_attention import (
    PositionEmbeddingsAttentionBridge,
)
from transformers import PretrainedConfig
from transformers.pytorch_utils import Conv1D
from typing_extensions import override

from anchorlens.models.adapter import HOOK_LISTS
from anchorlens.models.blocks import (
    Angles,
    Block,
    Heads,
    Keys,
    Tokens,
    apply_in_slices,
    multiply_gate,
    norm,
    over_all_heads,
    product,
    share_norm,
    times,
)
from anchorlens.models.hf_model import layer_window, text_config
from anchorlens.models.parity import rotary_tables

_ATTENTION = (
    PositionEmbeddingsAttentionBridge,
    JointQKVAttentionBridge,
    joint_qkv_rotary.JointQKVPositionEmbeddingsAttentionBridge,
)
# Names of parts with a recurrent state: gated delta nets, Mamba and other state space models, short
# convolutions.
_RECURRENT = ("linear_attn", "mamba", "mixer", "ssm", "conv")
# Rope types whose tables depend on the length of the row.
_DYNAMIC_ROPE = ("dynamic", "longrope")


def unwrap(module: Any) -> Any:
    """Return the Hugging Face module inside a bridge's component; other modules unchanged."""
    inside = getattr(module, "original_component", None)
    return module if inside is None else inside


def find_unsupported_feature(model: TransformerBridge) -> str | None:
    """Return the feature of a bridge that the cone engine does not support; None if there
    is none.
    """
    hf: Any = model.original_model
    config = text_config(hf.config)
    ropes: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    for rope in [ropes, *(each for each in ropes.values() if isinstance(each, Mapping))]:
        if rope.get("rope_type") in _DYNAMIC_ROPE:
            return f"rope of type {rope['rope_type']!r}, which depends on the length of the row"
    for layer, block in enumerate(model.blocks):
        found = _find_in_block(block, config, layer)
        if found is not None:
            return f"{found} in layer {layer}"
    return None


def recurrent_parts(block: Any) -> list[str]:
    """Return the classes of a block's parts that carry a state from token to token; of a block
    without attention at least one.
    """
    parts = [type(block._modules[name]).__name__ for name in _RECURRENT if name in block._modules]
    return parts or ([] if "attn" in block._modules else [type(block).__name__])


def _has_methods_of(attn: Any, cls: type) -> bool:
    """Return whether a subclass of attention computes as its base class does."""
    for name in ("forward", "_reconstruct_attention"):
        if getattr(type(attn), name, None) is not getattr(cls, name, None):
            return False
    return True


def _find_in_block(block: Any, config: PretrainedConfig, layer: int) -> str | None:
    if recurrent := recurrent_parts(block):
        return f"a recurrent block ({', '.join(recurrent)})"
    attn = block._modules["attn"]
    if type(block) not in (BlockBridge, ParallelBlockBridge):
        return f"a block of type {type(block).__name__}"
    if not any(isinstance(attn, cls) and _has_methods_of(attn, cls) for cls in _ATTENTION):
        return f"attention of type {type(attn).__name__}"
    inside = unwrap(attn)
    scaled = getattr(inside, "key_multiplier", None) is not None
    if scaled or getattr(block.config, "gated_q_proj", False) or "gate" in attn.submodules:
        return "gated or scaled attention"
    for name in ("q", "k", "v", "o"):
        kind = type(unwrap(getattr(attn, name, None)))
        if kind not in (nn.Linear, Conv1D):
            return f"a projection of type {kind.__name__}"
    try:
        layer_window(config, layer)
    except ValueError as error:
        return str(error)
    return None


def find_user_hook(model: TransformerBridge) -> str | None:
    """Describe a user's hook that :class:`BridgeBlock` would skip; None if there is none.

    Hooks of transformers, which ``run_with_cache`` leaves, only record values.
    """
    for name, _ in list_user_hooks(model):
        return f"a hook is attached to {name or 'the model'}"
    for option in ("use_attn_result", "use_split_qkv_input", "use_attn_in", "use_hook_mlp_in"):
        if getattr(model.cfg, option, False):
            return f"the bridge runs with {option}=True"
    return None


def list_user_hooks(model: TransformerBridge) -> Iterator[tuple[str, Any]]:
    """Yield the name of each module with a user's hook, and the function."""
    own: set[int] = set()
    for block in model.blocks:
        own.update(handle.id for handle in getattr(block, "_capture_hook_handles", ()))
    for name, module in model.named_modules():
        attached: dict[int, Any] = {}
        for each in HOOK_LISTS:
            attached |= getattr(module, each, None) or {}
        for key, hook in attached.items():
            if key not in own and not str(hook.__module__).startswith("transformers."):
                yield name.replace("_original_component.", ""), hook


class Rotary:
    """Rotary tables of a Hugging Face model, shared by its blocks and made longer on demand."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._model = model
        self._dtype = dtype
        self._tables: dict[str, Angles] = rotary_tables(model, 1)
        self._length = 1

    def reserve(self, last: int) -> None:
        """Extend the tables to position ``last`` if they are shorter."""
        if self._tables and last >= self._length:
            self._length = max(last + 1, 2 * self._length)
            self._tables = rotary_tables(self._model, self._length)

    def table(self, kind: str, device: torch.device) -> Angles | None:
        """Return cosines and sines of a layer type, [pos rotary_dim]."""
        if not self._tables:
            return None
        cos, sin = (part.to(device, self._dtype) for part in self._tables[kind])
        self._tables[kind] = cos, sin
        return cos, sin


class BridgeBlock(Block):
    """Block of a bridge for which :func:`find_unsupported_feature` is None."""

    def __init__(self, model: TransformerBridge, layer: int, rotary: Rotary) -> None:
        self.layer = layer
        self.block = model.blocks[layer]
        self.rotary = rotary
        self.attn: Any = self.block.attn
        hf: Any = model.original_model
        inside = unwrap(self.attn)
        config = text_config(hf.config)
        self.parallel = isinstance(self.block, ParallelBlockBridge)
        cap = getattr(inside, "attn_logit_softcapping", None)
        self.soft_cap = float(cap) if cap else None
        self.adjacent_pairs = bool(getattr(model.cfg, "rotary_adjacent_pairs", False))
        # OLMo 2 and 3 apply norms to the outputs of attention and MLP: ln1 and ln2 in 3.9, ln1_post
        # and ln2_post in 4.x.
        self.norms_after = (
            bool(self.block.mlp_reads_resid_directly) and "ln1_post" not in self.block.submodules
        )
        self._window = layer_window(config, layer)
        self._rope = "local" if self._window is not None else "global"
        self.d_head = int(getattr(inside, "head_dim", None) or model.cfg.d_head)
        joint = isinstance(self.attn, JointQKVAttentionBridge)
        # A bridge with a split projection computes the scale itself.
        if joint:
            self._scale = self.d_head**0.5
        else:
            self._scale = 1.0 / float(getattr(inside, "scaling", self.d_head**-0.5))
        if joint and getattr(model.cfg, "scale_attn_by_inverse_layer_idx", False):
            self._scale *= layer + 1
        self.clip = getattr(getattr(inside, "config", None), "clip_qkv", None)
        phase = getattr(self.attn, "_qk_norm_phase", None)
        self._norm_heads = (
            None if phase is None else over_all_heads if phase == "pre_reshape" else _apply
        )

    @property
    @override
    def device(self) -> torch.device:
        return unwrap(self.attn.q).weight.device

    @property
    @override
    def sinks(self) -> Float[Tensor, "head"] | None:
        return getattr(unwrap(self.attn), "sinks", None)

    @property
    @override
    def window(self) -> int | None:
        return self._window

    @property
    @override
    def scale(self) -> float:
        return self._scale

    def _heads(self, linear: Any, normed: Tokens) -> Heads:
        flat = _project(linear, normed)
        return rearrange(flat, "token (head d_head) -> token head d_head", d_head=self.d_head)

    @override
    def attention_input(self, x: Tokens) -> Tokens:
        return x if self.norms_after else self._norm("ln1", x)

    @override
    def project(self, x: Tokens) -> tuple[Heads, Keys, Keys]:
        attn = self.attn
        normed = self.attention_input(x)
        q = self._heads(attn.q, normed)
        k = self._heads(attn.k, normed)
        v = self._heads(attn.v, normed)
        if self._norm_heads is not None:
            q = self._norm_heads(partial(apply_norm, attn.q_norm), q)
            if "k_norm" in attn.submodules:
                k = self._norm_heads(partial(apply_norm, attn.k_norm), k)
        if self.clip is not None:
            q, k, v = (each.clamp(-self.clip, self.clip) for each in (q, k, v))
        return q, k, v

    @override
    def angles(self, positions: Int[Tensor, "*token"]) -> Angles | None:
        table = self.rotary.table(self._rope, positions.device)
        if table is None:
            return None
        cos, sin = (part[positions][..., None, :] for part in table)
        # The table of gpt-oss has each angle once.
        if cos.shape[-1] * 2 == self.d_head and self.sinks is not None:
            cos = torch.cat([cos, cos], -1)
            sin = torch.cat([sin, sin], -1)
        return cos, sin

    @override
    def reserve(self, last: int) -> None:
        self.rotary.reserve(last)

    @override
    def attn_out(self, z: Heads) -> Tokens:
        out = _project(self.attn.o, rearrange(z, "token head d_head -> token (head d_head)"))
        return self._apply_post_norms(out, "ln1")

    @override
    def head_shares(self, z: Heads) -> Float[Tensor, "token head d_model"]:
        weight, bias = _weights(self.attn.o)
        by_head = rearrange(
            weight, "(head d_head) d_model -> head d_head d_model", d_head=self.d_head
        )
        parts = einsum(
            z.float(),
            by_head.float(),
            "token head d_head, head d_head d_model -> token head d_model",
        )
        name = "ln1" if self.norms_after else "ln1_post"
        if name not in self.block.submodules:
            return parts
        total = parts.sum(1) if bias is None else parts.sum(1) + bias.float()
        return share_norm(parts, total.to(z.dtype), lambda out: self._apply_post_norms(out, "ln1"))

    @override
    def mlp_out(self, x: Tokens) -> Tokens | None:
        mlp = self.block._modules.get("mlp")
        if mlp is None:
            return None
        # Parallel blocks of some families have one norm for attention and MLP.
        name = "ln1" if self.parallel and "ln2" not in self.block.submodules else "ln2"
        run = _mlp(mlp)
        out = apply_in_slices(
            x, lambda part: run(part if self.norms_after else self._norm(name, part))
        )
        return self._apply_post_norms(out, "ln2")

    def _norm(self, name: str, x: Tokens) -> Tokens:
        return apply_norm(getattr(self.block, name), x) if name in self.block.submodules else x

    def _apply_post_norms(self, out: Tokens, name: str) -> Tokens:
        return self._norm(name if self.norms_after else f"{name}_post", out)


def apply_norm(module: Any, x: Float[Tensor, "*token width"]) -> Float[Tensor, "*token width"]:
    """Apply a norm as the bridge does."""
    inside: Any = unwrap(module)
    eps = getattr(inside, "eps", None)
    if eps is None:
        eps = getattr(inside, "variance_epsilon", None)
    if isinstance(module, (LayerNormPreBridge, RMSNormPreBridge)):
        config: Any = module.config
        return norm(
            x,
            float(config.eps if eps is None else eps),
            centred=isinstance(module, LayerNormPreBridge),
        )
    if isinstance(inside, nn.Identity):
        return x
    if type(inside) is nn.LayerNorm and eps is not None:
        return norm(x, float(eps), centred=True, weight=inside.weight, bias=inside.bias)
    if (
        type(inside).__name__.endswith("RMSNorm")
        and eps is not None
        and _is_plain(inside, float(eps))
    ):
        return norm(x, float(eps), centred=False, weight=getattr(inside, "weight", None))
    return inside(x[None])[0]


# Class of RMS norms -> whether it multiplies by its weight; those of Gemma and Qwen 3 Next multiply
# by 1 + weight.
_plain: dict[type, bool] = {}


def _is_plain(module: Any, eps: float) -> bool:
    """Return whether an RMS norm multiplies by its weight, by a comparison on one row."""
    kind = type(module)
    if kind not in _plain:
        weight = getattr(module, "weight", None)
        if weight is None:
            return True
        row = torch.linspace(-1.0, 1.0, len(weight), dtype=weight.dtype, device=weight.device)[None]
        with torch.no_grad():
            gap = (module(row) - norm(row, eps, centred=False, weight=weight)).abs().max()
        _plain[kind] = float(gap) < 0.1
    return _plain[kind]


def _apply(function: Callable[[Tensor], Tensor], heads: Heads) -> Heads:
    return function(heads)


def _weights(linear: Any) -> tuple[Float[Tensor, "inner outer"], Float[Tensor, "outer"] | None]:
    """Return weight and bias of a projection."""
    inside = unwrap(linear)
    return (inside.weight if isinstance(inside, Conv1D) else inside.weight.T), inside.bias


def _project(linear: Any, x: Tokens) -> Float[Tensor, "token outer"]:
    weight, bias = _weights(linear)
    out = product(x, weight)
    return out if bias is None else out.add_(bias)


def _mlp(mlp: Any) -> Callable[[Tokens], Tokens]:
    """Return a function that computes the output of an MLP for normed tokens."""
    processed = bool(getattr(mlp, "_use_processed_weights", False))
    is_gated = type(mlp) in (GatedMLPBridge, JointGateUpMLPBridge)
    inside = unwrap(mlp)
    act: Any = None
    for name in ("activation_fn", "act_fn", "act"):
        if act is None and callable(getattr(inside, name, None)):
            act = getattr(inside, name)
    if processed:
        act = resolve_activation_fn(mlp.config)
    names = ("in", "out", "gate") if is_gated else ("in", "out")
    parts = [unwrap(mlp._modules.get(name)) for name in names]
    is_plain = all(type(part) in (nn.Linear, Conv1D) for part in parts)
    if act is None or not is_plain or not (is_gated or type(mlp) is MLPBridge):

        def run(normed: Tokens) -> Tokens:
            result = mlp(normed[None])
            return (result[0] if isinstance(result, tuple) else result)[0]

        return run
    weights: list[tuple[Tensor, Tensor | None]] = []
    # TransformerLens 3.9 keeps processed weights beside the projections, 4 in them.
    if processed and is_gated and hasattr(mlp, "_processed_W_in"):
        for name in names:
            weight = getattr(mlp, f"_processed_W_{name}")
            weights.append((weight.T, getattr(mlp, f"_processed_b_{name}")))
    else:
        weights += [_weights(part) for part in parts]

    def run_products(normed: Tokens) -> Tokens:
        (w_in, b_in), (w_out, b_out), *gate = weights
        inner = times(normed, w_in, b_in)
        inner = multiply_gate(act(times(normed, *gate[0])), inner) if gate else act(inner)
        return times(inner, w_out, b_out)

    return run_products
