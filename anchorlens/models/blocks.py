"""Token-wise parts of TransformerLens's blocks (norms, projections, rotation, MLP), without hooks.

Weights are used in place, because TransformerLens spends most of a short forward pass on transposing them. Results are compared with
TransformerLens's before they are used (:mod:`anchorlens.engine.choose_engine`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedTransformer
from transformer_lens.components.abstract_attention import AbstractAttention
from transformer_lens.components.layer_norm import LayerNorm
from transformer_lens.components.layer_norm_pre import LayerNormPre
from transformer_lens.components.mlps.gated_mlp import GatedMLP
from transformer_lens.components.mlps.mlp import MLP
from transformer_lens.components.rms_norm import RMSNorm
from transformer_lens.components.rms_norm_pre import RMSNormPre
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities.architectures import POST_NORM_ARCHITECTURES

from anchorlens.models.devices import half_in_float32, half_on_cpu
from anchorlens.models.streaming import load_block

# Tokens per MLP product: inner activations are the widest of a block, and a slice stays in the CPU's cache.
MLP_SLICE = {"cpu": 512, "cuda": 65536, "mps": 8192}
# Multiple of tokens in half-precision products on a CPU: oneDNN makes a kernel for every size.
EVEN = 64
# Entries of a weight that are converted to float32 at once on a CPU without half-precision products.
WIDE_SLICE = 2**22

Heads = Float[Tensor, "token head d_head"]
Keys = Float[Tensor, "token kv_head d_head"]
Tokens = Float[Tensor, "token d_model"]


def find_unsupported_feature(model: HookedTransformer) -> str | None:
    """Return the feature of a model that the cone engine does not support; None if there is none."""
    cfg = model.cfg
    for is_present, feature in (
        (cfg.positional_embedding_type not in ("rotary", "standard", "alibi"), f"{cfg.positional_embedding_type} positions"),
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
    """Describe a user's hook, or a module that replaces a hook point, which :class:`Block` would skip; None if there is none."""
    lists = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    for name, module in model.named_modules():
        if any(getattr(module, each, None) for each in lists) or "forward" in vars(module):
            return f"a hook is attached to {name or 'the model'}"
        if name.rpartition(".")[2].startswith("hook_") and not _is(module, HookPoint):
            return f"{name} holds a {type(module).__name__} in place of a hook point"
    return None


class Block:
    """Token-wise parts of one block of a model for which :func:`find_unsupported_feature` is None."""

    def __init__(self, model: HookedTransformer, layer: int) -> None:
        self.layer, self.block, cfg = layer, model.blocks[layer], model.cfg
        attn, cap = self.block.attn, cfg.attn_scores_soft_cap
        self.parallel = bool(cfg.parallel_attn_mlp)
        self.soft_cap = float(cap) if cap is not None and cap > 0 else None
        # OLMo 2 and 3 apply norms to the outputs of attention and MLP.
        self.norms_after = cfg.original_architecture in POST_NORM_ARCHITECTURES
        self.n_ctx = int(cfg.n_ctx)
        alibi = cfg.positional_embedding_type == "alibi"
        self.slopes = AbstractAttention.create_alibi_multipliers(int(cfg.n_heads), self.device) if alibi else None
        self._has_sinks = bool(getattr(cfg, "use_attention_sinks", False))
        self._angles: tuple[Tensor, Tensor] | None = None
        # Whether biases of queries, keys, values, output and the gated MLP's inside are nonzero; zeros are not added.
        inside = getattr(getattr(self.block, "mlp", None), "b_in", None)
        biases = (attn.b_Q, _kv(attn, "b_K"), _kv(attn, "b_V"), attn.b_O, *([] if inside is None else [inside]))
        self.biased = tuple(bool(bias.any()) for bias in biases)

    @property
    def device(self) -> torch.device:
        return self.block.attn.W_Q.device

    @property
    def sinks(self) -> Float[Tensor, "head"] | None:
        return self.block.attn.sinks if self._has_sinks else None

    @property
    def window(self) -> int | None:
        """Number of keys that a query attends to, itself included; None for all."""
        attn = self.block.attn
        return attn.cfg.window_size if attn.attn_type == "local" else None

    @property
    def scale(self) -> float:
        return float(self.block.attn.attn_scale)

    def project(self, x: Tokens) -> tuple[Heads, Keys, Keys]:
        """Compute queries, keys and values before rotation."""
        attn, biased, cfg = self.block.attn, self.biased, self.block.attn.cfg
        normed = x if self.norms_after else apply_norm(self.block.ln1, x)
        q = _heads(normed, attn.W_Q, attn.b_Q if biased[0] else None)
        k = _heads(normed, _kv(attn, "W_K"), _kv(attn, "b_K") if biased[1] else None)
        v = _heads(normed, _kv(attn, "W_V"), _kv(attn, "b_V") if biased[2] else None)
        if attn.q_norm is not None:
            assert attn.k_norm is not None  # they come together
            normed_heads = apply_norm if cfg.use_qk_norm else _apply_norm_over_heads
            q, k = normed_heads(attn.q_norm, q), normed_heads(attn.k_norm, k)
        if cfg.clip_qkv is not None:
            q, k, v = (each.clamp_(-cfg.clip_qkv, cfg.clip_qkv) for each in (q, k, v))
        return q, k, v

    def angles(self, positions: Int[Tensor, "*token"]) -> tuple[Tensor, Tensor] | None:
        """Return cosines and sines of rotary positions, [*token 1 rotary_dim]; None for models without rotary positions."""
        attn = self.block.attn
        if attn.cfg.positional_embedding_type != "rotary":
            return None
        cos, sin = self._angles or (attn.rotary_cos, attn.rotary_sin)
        return cos[positions][..., None, :], sin[positions][..., None, :]

    def reserve(self, last: int) -> None:
        """Extend the rotary tables to position ``last`` if TransformerLens's are shorter."""
        attn = self.block.attn
        if attn.cfg.positional_embedding_type != "rotary" or last < len((self._angles or (attn.rotary_cos,))[0]):
            return
        assert attn.cfg.rotary_dim is not None  # rotary models have one
        size = max(last + 1, min(self.n_ctx, 2 * last))
        sin, cos = attn.calculate_sin_cos_rotary(attn.cfg.rotary_dim, size, base=attn._rotary_base(), dtype=attn.cfg.dtype)
        self._angles = cos.to(attn.rotary_cos.device), sin.to(attn.rotary_sin.device)

    def rotate_(self, x: Float[Tensor, "*token head d_head"], angles: tuple[Tensor, Tensor] | None) -> Tensor:
        """Rotate queries or keys in place."""
        if angles is None:
            return x
        cos, sin = angles
        width = cos.shape[-1]
        if self.block.attn.cfg.rotary_adjacent_pairs:
            one, two = slice(0, width, 2), slice(1, width, 2)
        else:
            one, two = slice(0, width // 2), slice(width // 2, width)
        first = torch.addcmul(x[..., one] * cos[..., one], x[..., two], sin[..., one], value=-1)
        second = torch.addcmul(x[..., two] * cos[..., two], x[..., one], sin[..., two])
        x[..., one], x[..., two] = first, second
        return x

    def attn_out(self, z: Heads) -> Tokens:
        """Compute the attention output that is added to the residual stream."""
        attn = self.block.attn
        weight = rearrange(attn.W_O, "head d_head d_model -> (head d_head) d_model")
        out = _product(rearrange(z, "token head d_head -> token (head d_head)"), weight)
        if self.biased[3]:
            out += attn.b_O
        return self._apply_post_norms(out, "ln1")

    def mlp_out(self, x: Tokens) -> Tokens | None:
        """Compute the MLP output that is added to the residual stream; None for blocks without an MLP."""
        block, mlp = self.block, getattr(self.block, "mlp", None)
        if mlp is None:
            return None
        slices = _evenly(x, MLP_SLICE.get(x.device.type, 512))
        sizes = [len(part) for part in slices]
        out = x.new_empty(sum(sizes), x.shape[1])
        for part, at in zip(slices, out.split(sizes), strict=True):
            self._mlp(mlp, part if self.norms_after else apply_norm(block.ln2, part), at)
        return self._apply_post_norms(out[: len(x)], "ln2")

    def _mlp(self, mlp: nn.Module, normed: Tokens, out: Tokens) -> None:
        if not isinstance(mlp, (GatedMLP, MLP)) or not _is(mlp, GatedMLP, MLP) or mlp.cfg.is_layer_norm_activation():
            out.copy_(mlp(normed[None])[0])
            return
        if isinstance(mlp, GatedMLP):
            inner = mlp.act_fn(_times(normed, mlp.W_gate)).mul_(_times(normed, mlp.W_in))
            inner = inner.add_(mlp.b_in) if self.biased[4] else inner
        else:
            inner = mlp.act_fn(_times(normed, mlp.W_in, mlp.b_in))
        _times(inner, mlp.W_out, mlp.b_out, out=out)

    def _apply_post_norms(self, out: Tokens, name: str) -> Tokens:
        if self.block.cfg.use_normalization_before_and_after:
            out = apply_norm(getattr(self.block, f"{name}_post"), out)
        return apply_norm(getattr(self.block, name), out) if self.norms_after else out


class Blocks:
    """Blocks of a model, each created at first use."""

    def __init__(self, model: HookedTransformer) -> None:
        self.model = model
        self._known: dict[int, Block] = {}

    @contextmanager
    def load(self, layer: int) -> Iterator[Block]:
        """Yield a block, with its weights in memory during the ``with`` statement."""
        with load_block(self.model.blocks[layer]):
            if layer not in self._known:
                self._known[layer] = Block(self.model, layer)
            yield self._known[layer]


def apply_norm(norm: nn.Module, x: Float[Tensor, "*token width"]) -> Float[Tensor, "*token width"]:
    """Apply a norm as TransformerLens does: computed in float32, scaled in the model's dtype."""
    if isinstance(norm, nn.Identity):
        return x
    if not is_norm(norm):
        return norm(x[None])[0]
    dtype, shape = x.dtype, x.shape[-1:]
    wide = x if dtype in (torch.float32, torch.float64) else x.float()
    if isinstance(norm, (RMSNorm, RMSNormPre)):
        out = F.rms_norm(wide, shape, None, norm.eps).to(dtype)
        return out.mul_(norm.w) if isinstance(norm, RMSNorm) else out
    assert isinstance(norm, (LayerNorm, LayerNormPre))
    out = F.layer_norm(wide, shape, None, None, norm.eps).to(dtype)
    return torch.addcmul(norm.b, out, norm.w) if isinstance(norm, LayerNorm) else out


def is_norm(module: nn.Module) -> bool:
    return _is(module, RMSNorm, RMSNormPre, LayerNorm, LayerNormPre)


def _apply_norm_over_heads(norm: nn.Module, heads: Heads) -> Heads:
    """Apply OLMo's norm of queries or keys, which is over all heads together."""
    whole = apply_norm(norm, rearrange(heads, "token head d_head -> token (head d_head)"))
    return rearrange(whole, "token (head d_head) -> token head d_head", head=heads.shape[1])


def _is(module: nn.Module, *classes: type[nn.Module]) -> bool:
    """Return whether a module's forward is that of one of these classes, not of a subclass."""
    return any(isinstance(module, cls) and type(module).forward is cls.forward for cls in classes)


def _kv(attn: nn.Module, name: str) -> Tensor:
    """Return the key or value weights of grouped heads, not repeated per query head."""
    grouped = getattr(attn, "_" + name, None)
    return grouped if grouped is not None else getattr(attn, name)


def _evenly(x: Float[Tensor, "token *one"], size: int = 0) -> Sequence[Float[Tensor, "_ *one"]]:
    """Split tokens into parts of ``size`` (0: only if needed); in half precision on a CPU pad the last one to a multiple of EVEN."""
    if not half_on_cpu(x.device, x.dtype):
        return x.split(size) if size else [x]
    parts = list(x.split(size or MLP_SLICE["cpu"]))
    missing = -len(parts[-1]) % EVEN
    if missing:
        parts[-1] = torch.cat([parts[-1], x.new_zeros(missing, *x.shape[1:])])
    return parts


def _product(x: Float[Tensor, "token inner"], weight: Float[Tensor, "inner outer"]) -> Float[Tensor, "token outer"]:
    parts = [_times(part, weight) for part in _evenly(x)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[: len(x)]


def _times(
    x: Float[Tensor, "token inner"], weight: Float[Tensor, "inner outer"], bias: Float[Tensor, "outer"] | None = None,
    out: Float[Tensor, "token outer"] | None = None,
) -> Float[Tensor, "token outer"]:  # fmt: skip
    """Multiply tokens by a matrix and add a bias; half-precision sums are in float32 and rounded once."""
    if not half_in_float32(x.device, x.dtype):
        return torch.matmul(x, weight, out=out) if bias is None else torch.addmm(bias, x, weight, out=out)
    out = x.new_empty(len(x), weight.shape[1]) if out is None else out
    wide, columns = x.float(), max(1, WIDE_SLICE // len(weight))
    for start in range(0, weight.shape[1], columns):
        at = slice(start, start + columns)
        product = wide @ weight[:, at].float()
        out[:, at] = product if bias is None else product.add_(bias[at])
    return out


def _heads(x: Tokens, weight: Float[Tensor, "head d_model d_head"], bias: Float[Tensor, "head d_head"] | None) -> Heads:
    out = _product(x, rearrange(weight, "head d_model d_head -> d_model (head d_head)"))
    out = rearrange(out, "token (head d_head) -> token head d_head", head=len(weight))
    return out if bias is None else out + bias
