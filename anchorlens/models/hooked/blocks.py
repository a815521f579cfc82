"""Token-wise parts of the blocks of a HookedTransformer, and the devices that hold its parts.

TransformerLens moves the stream of block i to device ``first + i * n_devices // n_layers``. Its
loader may put the block on another device, so inputs are moved to the device of the weights.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.components.abstract_attention import AbstractAttention
from transformer_lens.components.layer_norm import LayerNorm
from transformer_lens.components.layer_norm_pre import LayerNormPre
from transformer_lens.components.mlps.gated_mlp import GatedMLP
from transformer_lens.components.mlps.mlp import MLP
from transformer_lens.components.rms_norm import RMSNorm
from transformer_lens.components.rms_norm_pre import RMSNormPre
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities.architectures import POST_NORM_ARCHITECTURES
from transformer_lens.utilities.multi_gpu import get_device_for_block_index
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

# Biases of queries, keys, values, output and the gated MLP's inside.
_N_BIASES = 5


def find_unsupported_feature(model: HookedTransformer) -> str | None:
    """Return the feature of a model that the cone engine does not support; None if there is
    none.
    """
    cfg = model.cfg
    for is_present, feature in (
        (
            cfg.positional_embedding_type not in ("rotary", "standard", "alibi"),
            f"{cfg.positional_embedding_type} positions",
        ),
        (cfg.attention_dir != "causal", f"{cfg.attention_dir} attention"),
        (bool(getattr(cfg, "load_in_4bit", False)), "4-bit weights"),
        (bool(getattr(cfg, "use_logn_attn", False)), "log-n attention"),
        (bool(getattr(cfg, "use_dynamic_ntk_rope", False)), "dynamic rotary scaling"),
    ):
        if is_present:
            return f"{feature} ({cfg.original_architecture or cfg.model_name})"
    for layer, block in enumerate(model.blocks):
        if not _is(block.attn, AbstractAttention):
            return f"attention of type {type(block.attn).__name__} in layer {layer}"
    return None


def find_user_hook(model: HookedTransformer) -> str | None:
    """Describe a user's hook, or a module in place of a hook point, that :class:`HookedBlock` would
    skip; None if none.
    """
    for name, hook in list_user_hooks(model):
        if isinstance(hook, type):
            return f"{name} holds a {hook.__name__} in place of a hook point"
        return f"a hook is attached to {name or 'the model'}"
    return None


def list_user_hooks(model: HookedTransformer) -> Iterator[tuple[str, Any]]:
    """Yield the name of each module that a user changed, and the function that runs there, or the
    class of a module in place of a hook point.
    """
    for name, module in model.named_modules():
        for each in HOOK_LISTS:
            for hook in (getattr(module, each, None) or {}).values():
                yield name, hook
        if "forward" in vars(module):
            yield name, vars(module)["forward"]
        if name.rpartition(".")[2].startswith("hook_") and not _is(module, HookPoint):
            yield name, type(module)


def find_biases(model: HookedTransformer, layers: Iterable[int]) -> list[tuple[bool, ...]]:
    """Return which biases of queries, keys, values, output and the gated MLP's inside are nonzero
    in each layer; zeros are not added.

    TransformerLens has a bias of zeros where a family has none. All flags of all layers are copied
    from the device at once.
    """
    flags: list[Tensor] = []
    for layer in layers:
        block = model.blocks[layer]
        attn = block.attn
        biases = [attn.b_Q, _kv(attn, "b_K"), _kv(attn, "b_V"), attn.b_O]
        inside = getattr(getattr(block, "mlp", None), "b_in", None)
        biases += [] if inside is None else [inside]
        own = torch.stack([bias.detach().any() for bias in biases])
        flags.append(torch.nn.functional.pad(own, (0, _N_BIASES - len(own))))
    together = torch.stack([one.to(flags[0].device) for one in flags])
    return [tuple(own) for own in together.tolist()]


class HookedBlock(Block):
    """Block of a model for which :func:`find_unsupported_feature` is None.

    Args:
        model: The model.
        layer: Number of the block.
        biased: Flags of nonzero biases (:func:`find_biases`). If None, they are computed.
    """

    def __init__(
        self, model: HookedTransformer, layer: int, biased: tuple[bool, ...] | None = None
    ) -> None:
        self.layer = layer
        self.block = model.blocks[layer]
        cfg = model.cfg
        attn = self.block.attn
        cap = cfg.attn_scores_soft_cap
        self.parallel = bool(cfg.parallel_attn_mlp)
        self.soft_cap = float(cap) if cap is not None and cap > 0 else None
        self.adjacent_pairs = bool(attn.cfg.rotary_adjacent_pairs)
        # OLMo 2 and 3 apply norms to the outputs of attention and MLP.
        self.norms_after = cfg.original_architecture in POST_NORM_ARCHITECTURES
        self.n_ctx = int(cfg.n_ctx)
        alibi = cfg.positional_embedding_type == "alibi"
        self.slopes: Tensor | None = None
        if alibi:
            self.slopes = AbstractAttention.create_alibi_multipliers(int(cfg.n_heads), self.device)
        self._has_sinks = bool(getattr(cfg, "use_attention_sinks", False))
        self._angles: Angles | None = None
        self.biased = find_biases(model, [layer])[0] if biased is None else biased

    @property
    @override
    def device(self) -> torch.device:
        return self.block.attn.W_Q.device

    @property
    @override
    def sinks(self) -> Float[Tensor, "head"] | None:
        return self.block.attn.sinks if self._has_sinks else None

    @property
    @override
    def window(self) -> int | None:
        attn = self.block.attn
        return attn.cfg.window_size if attn.attn_type == "local" else None

    @property
    @override
    def scale(self) -> float:
        return float(self.block.attn.attn_scale)

    @override
    def attention_input(self, x: Tokens) -> Tokens:
        return x if self.norms_after else _apply_norm(self.block.ln1, x)

    @override
    def project(self, x: Tokens) -> tuple[Heads, Keys, Keys]:
        attn = self.block.attn
        biased = self.biased
        cfg = self.block.attn.cfg
        normed = self.attention_input(x)
        q = _heads(normed, attn.W_Q, attn.b_Q if biased[0] else None)
        k = _heads(normed, _kv(attn, "W_K"), _kv(attn, "b_K") if biased[1] else None)
        v = _heads(normed, _kv(attn, "W_V"), _kv(attn, "b_V") if biased[2] else None)
        if attn.q_norm is not None:
            assert attn.k_norm is not None  # they come together
            if cfg.use_qk_norm:
                q = _apply_norm(attn.q_norm, q)
                k = _apply_norm(attn.k_norm, k)
            else:
                q = over_all_heads(partial(_apply_norm, attn.q_norm), q)
                k = over_all_heads(partial(_apply_norm, attn.k_norm), k)
        if cfg.clip_qkv is not None:
            q, k, v = (each.clamp(-cfg.clip_qkv, cfg.clip_qkv) for each in (q, k, v))
        return q, k, v

    @override
    def angles(self, positions: Int[Tensor, "*token"]) -> Angles | None:
        attn = self.block.attn
        if attn.cfg.positional_embedding_type != "rotary":
            return None
        cos, sin = self._angles or (attn.rotary_cos, attn.rotary_sin)
        return cos[positions][..., None, :], sin[positions][..., None, :]

    @override
    def reserve(self, last: int) -> None:
        attn = self.block.attn
        if attn.cfg.positional_embedding_type != "rotary":
            return
        cos, _ = self._angles or (attn.rotary_cos, attn.rotary_sin)
        if last < len(cos):
            return
        assert attn.cfg.rotary_dim is not None  # rotary models have one
        size = max(last + 1, min(self.n_ctx, 2 * last))
        sin, cos = attn.calculate_sin_cos_rotary(
            attn.cfg.rotary_dim, size, base=attn._rotary_base(), dtype=attn.cfg.dtype
        )
        self._angles = cos.to(attn.rotary_cos.device), sin.to(attn.rotary_sin.device)

    @override
    def attn_out(self, z: Heads) -> Tokens:
        attn = self.block.attn
        weight = rearrange(attn.W_O, "head d_head d_model -> (head d_head) d_model")
        out = product(rearrange(z, "token head d_head -> token (head d_head)"), weight)
        if self.biased[3]:
            out += attn.b_O
        return self._apply_post_norms(out, "ln1")

    @override
    def head_shares(self, z: Heads) -> Float[Tensor, "token head d_model"]:
        attn = self.block.attn
        parts = einsum(
            z.float(),
            attn.W_O.float(),
            "token head d_head, head d_head d_model -> token head d_model",
        )
        if not self.norms_after and not self.block.cfg.use_normalization_before_and_after:
            return parts
        total = parts.sum(1) + attn.b_O.float()
        return share_norm(parts, total.to(z.dtype), lambda out: self._apply_post_norms(out, "ln1"))

    @override
    def mlp_out(self, x: Tokens) -> Tokens | None:
        block = self.block
        mlp = getattr(self.block, "mlp", None)
        if mlp is None:
            return None
        out = apply_in_slices(
            x,
            lambda part: self._mlp(mlp, part if self.norms_after else _apply_norm(block.ln2, part)),
        )
        return self._apply_post_norms(out, "ln2")

    def _mlp(self, mlp: nn.Module, normed: Tokens) -> Tokens:
        if (
            not isinstance(mlp, (GatedMLP, MLP))
            or not _is(mlp, GatedMLP, MLP)
            or mlp.cfg.is_layer_norm_activation()
        ):
            return mlp(normed[None])[0]
        if isinstance(mlp, GatedMLP):
            inner = multiply_gate(mlp.act_fn(times(normed, mlp.W_gate)), times(normed, mlp.W_in))
            inner = inner.add_(mlp.b_in) if self.biased[4] else inner
        else:
            inner = mlp.act_fn(times(normed, mlp.W_in, mlp.b_in))
        return times(inner, mlp.W_out, mlp.b_out)

    def _apply_post_norms(self, out: Tokens, name: str) -> Tokens:
        if self.block.cfg.use_normalization_before_and_after:
            out = _apply_norm(getattr(self.block, f"{name}_post"), out)
        return _apply_norm(getattr(self.block, name), out) if self.norms_after else out


def final_norm(
    model: HookedTransformer,
) -> Callable[[Float[Tensor, "row d_model"]], Float[Tensor, "row d_model"]]:
    """Return the final norm of a model, computed in float32."""
    cfg = model.cfg
    kind = cfg.normalization_type
    if kind is None:  # there is no ln_final
        return lambda x: x.to(torch.float32)

    def apply(stream: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        module = model.ln_final
        if not _is_norm(module):
            return module(stream.to(cfg.dtype)[None])[0].to(torch.float32)
        x = stream.to(torch.float32)
        centred = kind.startswith("LN") and not cfg.final_rms
        if centred:
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.pow(2).mean(-1, keepdim=True) + cfg.eps).sqrt()
        if kind.endswith("Pre"):
            return x
        x = x * module.get_parameter("w").to(torch.float32)
        return x + module.get_parameter("b").to(torch.float32) if centred else x

    return apply


def _apply_norm(
    module: nn.Module, x: Float[Tensor, "*token width"]
) -> Float[Tensor, "*token width"]:
    """Apply a norm as TransformerLens does."""
    if isinstance(module, nn.Identity):
        return x
    if not _is_norm(module):
        return module(x[None])[0]
    if isinstance(module, (RMSNorm, RMSNormPre)):
        return norm(
            x,
            float(module.eps),
            centred=False,
            weight=module.w if isinstance(module, RMSNorm) else None,
        )
    assert isinstance(module, (LayerNorm, LayerNormPre))
    weight, bias = (module.w, module.b) if isinstance(module, LayerNorm) else (None, None)
    return norm(x, float(module.eps), centred=True, weight=weight, bias=bias)


def _is_norm(module: nn.Module) -> bool:
    return _is(module, RMSNorm, RMSNormPre, LayerNorm, LayerNormPre)


def _is(module: nn.Module, *classes: type[nn.Module]) -> bool:
    """Return whether a module's forward is that of one of these classes, not of a subclass."""
    return any(isinstance(module, cls) and type(module).forward is cls.forward for cls in classes)


def _kv(attn: nn.Module, name: str) -> Tensor:
    """Return the key or value weights of grouped heads, not repeated per query head."""
    grouped = getattr(attn, "_" + name, None)
    return grouped if grouped is not None else getattr(attn, name)


def _heads(
    x: Tokens,
    weight: Float[Tensor, "head d_model d_head"],
    bias: Float[Tensor, "head d_head"] | None,
) -> Heads:
    out = product(x, rearrange(weight, "head d_model d_head -> d_model (head d_head)"))
    out = rearrange(out, "token (head d_head) -> token head d_head", head=len(weight))
    return out if bias is None else out + bias


def device_of(cfg: HookedTransformerConfig, name: str) -> torch.device:
    """Return the device of a parameter or module, such as ``blocks.3.attn.W_Q`` or ``unembed``, in
    a loaded model.
    """
    if cfg.n_devices == 1:
        return torch.device(str(cfg.device))
    part, _, inside = name.partition(".")
    last = part in ("ln_final", "unembed")
    return get_device_for_block_index(
        int(inside.partition(".")[0]) if part == "blocks" else (cfg.n_layers - 1) * last, cfg
    )


def block_devices(model: HookedTransformer) -> list[torch.device]:
    """Return the device of each block; for streamed blocks, that of the embedding."""
    first = model.embed.W_E.device
    devices: list[torch.device] = []
    for device in map(_block_device, model.blocks):
        is_streamed = device.type == "meta"
        devices.append(first if is_streamed else device)
    return devices


def devices_of(model: HookedTransformer) -> tuple[torch.device, ...]:
    """Return the distinct devices of a model in layer order."""
    return tuple(
        dict.fromkeys([model.embed.W_E.device, *block_devices(model), model.unembed.W_U.device])
    )


@contextmanager
def inputs_follow_blocks(model: HookedTransformer) -> Iterator[None]:
    """Move streams and masks to each block's device during a ``with`` statement; TransformerLens
    moves the stream only.
    """
    with ExitStack() as stack:
        for block in model.blocks if len(devices_of(model)) > 1 else ():
            stack.enter_context(block.register_forward_pre_hook(_move_inputs, with_kwargs=True))
        yield


def _block_device(block: nn.Module) -> torch.device:
    """Return the device of a block's attention; RMS norms move to that of their input."""
    return next(iter(block.get_submodule("attn").parameters())).device


def _move_inputs(block: nn.Module, args: Any, kwargs: Any) -> Any:
    attn: Any = block.attn
    device = _block_device(block)
    args, kwargs = tree_map(
        lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, (args, kwargs)
    )
    if attn.cfg.positional_embedding_type == "alibi":
        mask = kwargs.get("attention_mask")
        # The mask includes cached tokens.
        length = args[0].shape[1] if mask is None else mask.shape[-1]
        if attn.alibi is None or attn.alibi.device != device or attn.alibi.shape[-1] < length:
            attn.alibi = AbstractAttention.create_alibi_bias(attn.cfg.n_heads, length, device)
    return args, kwargs
