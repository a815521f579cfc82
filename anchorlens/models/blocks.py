"""The transformer blocks of a HookedTransformer as functions of single tokens, without hooks.

The cone engine runs tokens of many rows and many changed copies together, and keeps attention between them in its own hands. It
needs the parts of a block that look at one token alone: norms, projections, rotation, MLP. :class:`FusedBlocks` reads
TransformerLens's own weights in place: nothing is copied and nothing transposed, which is what most of a TransformerLens forward
pass of a short row is spent on (its gated MLP makes three contiguous transposes of its weights in each call).
:class:`PlainBlocks` calls TransformerLens's modules for the same parts, for norms and MLPs of any other kind.

What is done here is what :class:`transformer_lens.components.TransformerBlock` does where :func:`unsupported_reason` is None; the
engine compares both on real tokens before it trusts this one (:mod:`anchorlens.engine.select`).
"""

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedTransformer
from transformer_lens.components.layer_norm import LayerNorm
from transformer_lens.components.layer_norm_pre import LayerNormPre
from transformer_lens.components.mlps.gated_mlp import GatedMLP
from transformer_lens.components.mlps.mlp import MLP
from transformer_lens.components.rms_norm import RMSNorm
from transformer_lens.components.rms_norm_pre import RMSNormPre

# Tokens that go through an MLP at once: its inner activations are the widest of a block, and a slice stays in the cache.
_MLP_SLICE = {"cpu": 512, "cuda": 65536, "mps": 8192}

Heads = Float[Tensor, "token head d_head"]
Keys = Float[Tensor, "token kv_head d_head"]
Tokens = Float[Tensor, "token d_model"]


def unsupported_reason(model: HookedTransformer) -> str | None:
    """What about this model's attention or streams the cone engine does not know; None where there is nothing."""
    cfg = model.cfg
    for wrong, what in (
        (cfg.positional_embedding_type not in ("rotary", "standard"), f"{cfg.positional_embedding_type} positions"),
        (cfg.attention_dir != "causal", f"{cfg.attention_dir} attention"),
        (bool(cfg.attn_only), "blocks without an MLP"),
        (bool(getattr(cfg, "load_in_4bit", False)), "4-bit weights"),
        (bool(getattr(cfg, "use_attention_sinks", False)), "attention sinks"),
        (getattr(cfg, "clip_qkv", None) is not None, "clipped queries and keys"),
        (bool(getattr(cfg, "use_logn_attn", False)), "log-n attention"),
        (bool(getattr(cfg, "use_dynamic_ntk_rope", False)), "dynamic rotary scaling"),
        (str(cfg.original_architecture).startswith("Olmo"), "norms after the blocks' parts"),
    ):
        if wrong:
            return f"{what} ({cfg.original_architecture or cfg.model_name})"
    return None


def fused_reason(model: HookedTransformer) -> str | None:
    """Why :class:`FusedBlocks` cannot stand for this model's modules; None where it can."""
    for block in model.blocks:
        if not isinstance(block.mlp, (GatedMLP, MLP)) or block.mlp.cfg.is_layer_norm_activation():
            return f"an MLP of type {type(block.mlp).__name__}"
        norms = [getattr(block, name) for name in ("ln1", "ln2", "ln1_post", "ln2_post") if hasattr(block, name)]
        for norm in norms:
            if not isinstance(norm, (nn.Identity, RMSNorm, RMSNormPre, LayerNorm, LayerNormPre)):
                return f"a norm of type {type(norm).__name__}"
    return None


def hooked_reason(model: HookedTransformer) -> str | None:
    """Which hook of the user's own is attached; None where there is none.

    The functions here run no module, so a hook would silently not fire.
    """
    for name, module in model.named_modules():
        lists = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if any(getattr(module, each, None) for each in lists) or "forward" in vars(module):
            return f"a hook is attached to {name or 'the model'}"
    return None


class FusedBlocks:
    """Token-wise parts of every block, straight from the weights.

    Args:
        model: A model for which :func:`unsupported_reason` and :func:`fused_reason` are None.
    """

    name = "fused"

    def __init__(self, model: HookedTransformer) -> None:
        self.model, cfg = model, model.cfg
        self.n_layers, self.d_model = int(cfg.n_layers), int(cfg.d_model)
        self.n_heads, self.d_head = int(cfg.n_heads), int(cfg.d_head)
        self.n_kv_heads = int(cfg.n_key_value_heads or cfg.n_heads)
        self.parallel = bool(cfg.parallel_attn_mlp)
        self.rotary = cfg.positional_embedding_type == "rotary"
        cap = cfg.attn_scores_soft_cap
        self.soft_cap = float(cap) if cap is not None and cap > 0 else None
        self.slice = _MLP_SLICE.get(model.embed.W_E.device.type, 512)
        # Llama's and Gemma's biases are zero in TransformerLens: adding them would be a pass over memory for nothing.
        self.biased = [
            tuple(bool(bias.any()) for bias in (b.attn.b_Q, _kv(b.attn, "b_K"), _kv(b.attn, "b_V"), b.attn.b_O))
            for b in model.blocks
        ]

    def window(self, layer: int) -> int | None:
        """How many keys a query of this layer sees, itself included; None: all before it."""
        attn = self.model.blocks[layer].attn
        size = attn.cfg.window_size
        return size if attn.attn_type == "local" else None

    def scale(self, layer: int) -> float:
        """What attention scores of this layer are divided by."""
        return float(self.model.blocks[layer].attn.attn_scale)

    def embed(self, ids: Int[Tensor, "token"], positions: Int[Tensor, "token"]) -> Tokens:
        """What enters block 0."""
        x = self.model.embed(ids[None])[0]
        return x if self.rotary else x + self.model.pos_embed.W_pos[positions]

    def project(self, layer: int, x: Tokens) -> tuple[Heads, Keys, Keys]:
        """Queries, keys and values before rotation, norms of queries and keys included."""
        block = self.model.blocks[layer]
        attn, normed = block.attn, _norm(block.ln1, x)
        biased = self.biased[layer]
        q = _heads(normed, attn.W_Q, attn.b_Q if biased[0] else None)
        k = _heads(normed, _kv(attn, "W_K"), _kv(attn, "b_K") if biased[1] else None)
        v = _heads(normed, _kv(attn, "W_V"), _kv(attn, "b_V") if biased[2] else None)
        if attn.q_norm is not None:
            assert attn.k_norm is not None  # they come together
            q, k = _norm(attn.q_norm, q), _norm(attn.k_norm, k)
        return q, k, v

    def angles(self, layer: int, positions: Int[Tensor, "*token"]) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines of rotary positions, [*token 1 rotary_dim]; None for models without."""
        if not self.rotary:
            return None
        attn = self.model.blocks[layer].attn
        return attn.rotary_cos[positions][..., None, :], attn.rotary_sin[positions][..., None, :]

    def reserve(self, last: int) -> None:
        """Make the rotary tables long enough for position ``last``."""
        for block in self.model.blocks if self.rotary else ():
            if last >= len(block.attn.rotary_cos):
                block.attn._extend_rotary_embeddings(max(last + 1, min(self.model.cfg.n_ctx, 2 * last)))

    def rotate_(self, x: Float[Tensor, "*token head d_head"], angles: tuple[Tensor, Tensor] | None) -> Tensor:
        """Put queries or keys at their positions, in place."""
        if angles is None:
            return x
        cos, sin = angles
        width = cos.shape[-1]
        if self.model.cfg.rotary_adjacent_pairs:
            one, two = slice(0, width, 2), slice(1, width, 2)
        else:
            one, two = slice(0, width // 2), slice(width // 2, width)
        first = torch.addcmul(x[..., one] * cos[..., one], x[..., two], sin[..., one], value=-1)
        second = torch.addcmul(x[..., two] * cos[..., two], x[..., one], sin[..., two])
        x[..., one], x[..., two] = first, second
        return x

    def attn_out(self, layer: int, z: Heads) -> Tokens:
        """What attention adds to the stream."""
        block = self.model.blocks[layer]
        out = einsum(z, block.attn.W_O, "token head d_head, head d_head d_model -> token d_model")
        if self.biased[layer][3]:
            out += block.attn.b_O
        return _norm(block.ln1_post, out) if self.model.cfg.use_normalization_before_and_after else out

    def mlp_out(self, layer: int, x: Tokens) -> Tokens:
        """What the MLP adds to the stream."""
        block = self.model.blocks[layer]
        mlp, out = block.mlp, torch.empty_like(x)
        for start in range(0, len(x), self.slice):
            normed = _norm(block.ln2, x[start : start + self.slice])
            if isinstance(mlp, GatedMLP):
                inner = mlp.act_fn(normed @ mlp.W_gate).mul_(normed @ mlp.W_in)
                inner = inner.add_(mlp.b_in)
            else:
                assert isinstance(mlp, MLP)
                inner = mlp.act_fn(torch.addmm(mlp.b_in, normed, mlp.W_in))
            torch.addmm(mlp.b_out, inner, mlp.W_out, out=out[start : start + self.slice])
        return _norm(block.ln2_post, out) if self.model.cfg.use_normalization_before_and_after else out


class PlainBlocks(FusedBlocks):
    """The same parts by TransformerLens's own modules: slower, for norms and MLPs of any kind."""

    name = "plain"

    def project(self, layer: int, x: Tokens) -> tuple[Heads, Keys, Keys]:
        """See :meth:`FusedBlocks.project`."""
        block = self.model.blocks[layer]
        normed = block.ln1(x[None])
        q, k, v = block.attn.calculate_qkv_matrices(normed, normed, normed)
        return q[0], k[0], v[0]

    def attn_out(self, layer: int, z: Heads) -> Tokens:
        """See :meth:`FusedBlocks.attn_out`."""
        block = self.model.blocks[layer]
        out = einsum(z, block.attn.W_O, "token head d_head, head d_head d_model -> token d_model") + block.attn.b_O
        return block.ln1_post(out[None])[0] if self.model.cfg.use_normalization_before_and_after else out

    def mlp_out(self, layer: int, x: Tokens) -> Tokens:
        """See :meth:`FusedBlocks.mlp_out`."""
        block = self.model.blocks[layer]
        return torch.cat([block.apply_mlp(block.ln2(part[None]))[0] for part in x.split(self.slice)])


def _kv(attn: nn.Module, name: str) -> Tensor:
    """Key and value weights, of grouped heads without the repetition that the property of this name makes."""
    own = getattr(attn, "_" + name, None)
    return own if own is not None else getattr(attn, name)


def _heads(x: Tokens, weight: Float[Tensor, "head d_model d_head"], bias: Float[Tensor, "head d_head"] | None) -> Heads:
    out = einsum(x, weight, "token d_model, head d_model d_head -> token head d_head")
    return out if bias is None else out + bias


def _norm(norm: nn.Module, x: Float[Tensor, "*token width"]) -> Float[Tensor, "*token width"]:
    """TransformerLens's norms: computed in float32, scaled in the model's own type."""
    if isinstance(norm, nn.Identity):
        return x
    assert isinstance(norm, (RMSNorm, RMSNormPre, LayerNorm, LayerNormPre))
    dtype, shape = x.dtype, x.shape[-1:]
    wide = x if dtype in (torch.float32, torch.float64) else x.float()
    if isinstance(norm, (RMSNorm, RMSNormPre)):
        out = F.rms_norm(wide, shape, None, norm.eps).to(dtype)
        return out.mul_(norm.w) if isinstance(norm, RMSNorm) else out
    out = F.layer_norm(wide, shape, None, None, norm.eps).to(dtype)
    return torch.addcmul(norm.b, out, norm.w) if isinstance(norm, LayerNorm) else out


__all__ = ["FusedBlocks", "PlainBlocks", "fused_reason", "hooked_reason", "unsupported_reason"]
