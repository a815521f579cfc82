"""Token-wise parts of transformer blocks (norms, projections, rotation, MLP), without hooks, for
the cone engine.

Weights are used in place: TransformerLens spends most of a short forward pass on transposing them.
Results are compared with the model's before they are used (:mod:`anchorlens.engine.choose_engine`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.errors import InputError
from anchorlens.models.devices import half_in_float32, half_on_cpu, is_onednn_faster

# Tokens per MLP product: inner activations are the widest of a block. A slice stays in the CPU's
# cache; on a GPU it is large enough for the matrix rate and bounds memory.
MLP_SLICE = {"cpu": 1024, "cuda": 16384, "mps": 8192}
# Tokens in half-precision products on a CPU, a multiple and the maximum: oneDNN makes a kernel for
# every size.
EVEN = 64
MOST_EVEN = 512
# Multiple of tokens in float32 products by oneDNN; products of other sizes are left to torch's
# default.
ONEDNN_TOKENS = 128
# Entries of a weight that are converted to float32 at once on a CPU without half-precision
# products.
WIDE_SLICE = 2**22

Heads = Float[Tensor, "token head d_head"]
Keys = Float[Tensor, "token kv_head d_head"]
Tokens = Float[Tensor, "token d_model"]
Angles = tuple[Tensor, Tensor]
"""Cosines and sines of rotary positions, [*token 1 rotary_dim]."""


class Block(ABC):
    """Token-wise parts of one block.

    Attributes:
        layer: Number of the block.
        device: Device of its weights.
        parallel: Whether attention and MLP both read the stream before the block.
        scale: Divisor of the attention scores.
        soft_cap: Soft cap of the attention scores; None for none.
        window: Number of keys that a query attends to, itself included; None for all.
        sinks: Scores of a key without value, one per head; None for none.
        slopes: ALiBi slopes, one per head; None for other positions.
        adjacent_pairs: Whether rotation pairs neighbouring entries, not the two halves.
    """

    layer: int
    parallel: bool
    soft_cap: float | None
    slopes: Float[Tensor, "head"] | None = None
    adjacent_pairs: bool = False

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def scale(self) -> float: ...

    @property
    @abstractmethod
    def window(self) -> int | None: ...

    @property
    @abstractmethod
    def sinks(self) -> Float[Tensor, "head"] | None: ...

    @abstractmethod
    def attention_input(self, x: Tokens) -> Tokens:
        """Return what attention reads of the residual stream: behind the block's first norm, or
        the stream itself where the norms follow.
        """

    @abstractmethod
    def project(self, x: Tokens) -> tuple[Heads, Keys, Keys]:
        """Compute queries, keys and values before rotation."""

    @abstractmethod
    def angles(self, positions: Int[Tensor, "*token"]) -> Angles | None:
        """Return cosines and sines of rotary positions; None for models without rotary
        positions.
        """

    @abstractmethod
    def reserve(self, last: int) -> None:
        """Extend the rotary tables to position ``last`` if they are shorter."""

    @abstractmethod
    def attn_out(self, z: Heads) -> Tokens:
        """Compute the attention output that is added to the residual stream."""

    @abstractmethod
    def head_shares(self, z: Heads) -> Float[Tensor, "token head d_model"]:
        """Compute what each head adds to the residual stream, in float32; the bias of the output
        belongs to no head.

        Where a norm follows attention, a head's share is its part of the normed output, at the
        norm's scale for the heads together.

        Raises:
            InputError: If the norm behind attention subtracts a mean, so that it has no shares.
        """

    @abstractmethod
    def mlp_out(self, x: Tokens) -> Tokens | None:
        """Compute the MLP output that is added to the residual stream; None for blocks without an
        MLP.
        """

    def finish(self, x: Tokens, z: Heads, out: Tokens) -> None:
        """Write the streams after the block into ``out``, where ``x`` has those before it.

        The work is done in slices of tokens that stay in the cache.
        """
        sizes = _slice_sizes(x)
        for stream, heads, at in zip(x.split(sizes), z.split(sizes), out.split(sizes), strict=True):
            mid = stream + self.attn_out(heads)
            mlp = self.mlp_out(stream if self.parallel else mid)
            _ = at.copy_(mid) if mlp is None else torch.add(mid, mlp, out=at)

    def rotate_(self, x: Float[Tensor, "*token head d_head"], angles: Angles | None) -> Tensor:
        """Rotate queries or keys, in place unless gradients are recorded."""
        if angles is None:
            return x
        if torch.is_grad_enabled() and x.requires_grad:
            return self._turn(x, angles)
        cos, sin = angles
        width = cos.shape[-1]
        if self.adjacent_pairs:
            one = slice(0, width, 2)
            two = slice(1, width, 2)
        else:
            one = slice(0, width // 2)
            two = slice(width // 2, width)
        left = x[..., one]
        right = x[..., two]
        # In place where possible: new tensors of this size take longer than the arithmetic.
        turned = (left * cos[..., one]).addcmul_(right, sin[..., one], value=-1)
        right.mul_(cos[..., two]).addcmul_(left, sin[..., two])
        left.copy_(turned)
        return x

    def _turn(self, x: Float[Tensor, "*token head d_head"], angles: Angles) -> Tensor:
        """Rotate queries or keys into a new tensor, for gradients."""
        cos, sin = angles
        width = cos.shape[-1]
        turned = x[..., :width]
        if self.adjacent_pairs:
            pairs = turned.unflatten(-1, (-1, 2))
            crossed = torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(-2)
        else:
            left, right = turned.chunk(2, -1)
            crossed = torch.cat([-right, left], -1)
        return torch.cat([turned * cos + crossed * sin, x[..., width:]], -1)


class Blocks:
    """Blocks of a model, each made at first use.

    Args:
        make: Layer -> block.
        load: Layer -> context in which the weights of the layer are in memory; if None, they always
            are.
    """

    def __init__(
        self,
        make: Callable[[int], Block],
        load: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._make = make
        self._load = load
        self._known: dict[int, Block] = {}

    @contextmanager
    def load(self, layer: int) -> Iterator[Block]:
        """Yield a block, with its weights in memory during the ``with`` statement."""
        with self._load(layer):
            if layer not in self._known:
                self._known[layer] = self._make(layer)
            yield self._known[layer]


def norm(
    x: Float[Tensor, "*token width"],
    eps: float,
    *,
    centred: bool,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Float[Tensor, "*token width"]:
    """Apply an RMS norm or, if ``centred``, a layer norm: computed in float32, scaled in the dtype
    of ``x``, or in float32 where one kernel does all of it.
    """
    dtype = x.dtype
    shape = x.shape[-1:]
    if has_fused_norms(x) and all(one is None or one.dtype is dtype for one in (weight, bias)):
        if centred:
            return F.layer_norm(x, shape, weight, bias, eps)
        return F.rms_norm(x, shape, weight, eps)
    wide = x if dtype in (torch.float32, torch.float64) else x.float()
    if not centred and torch.is_grad_enabled() and wide.requires_grad:
        mean_square = wide.pow(2).mean(-1, keepdim=True)
        out = (wide * (mean_square + eps).rsqrt()).to(dtype)
        return out if weight is None else out * weight
    if not centred:
        # Faster than F.rms_norm on a CPU, which stores the squares.
        square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(shape[0])
        out = (wide * square.add_(eps).rsqrt_()).to(dtype)
        return out if weight is None else out.mul_(weight)
    out = F.layer_norm(wide, shape, None, None, eps).to(dtype)
    if weight is None:
        return out
    return out * weight if bias is None else torch.addcmul(bias.to(dtype), out, weight.to(dtype))


def has_fused_norms(x: Tensor) -> bool:
    """Return whether norms of a tensor are one kernel each, which computes in float32 and rounds
    once. On a CPU they are slower than their parts.
    """
    return x.is_cuda


def share_norm(
    parts: Float[Tensor, "token head d_model"],
    total: Float[Tensor, "token d_model"],
    apply: Callable[[Tokens], Tokens],
) -> Float[Tensor, "token head d_model"]:
    """Return the shares of parts in the norm of their total, at the scale of the total.

    Args:
        parts: Parts, in float32.
        total: Sum of the parts, with a bias where there is one, in the dtype of the model.
        apply: Function that applies the RMS norm to tokens.

    Raises:
        InputError: If the norm is not a scale of each token times a weight.
    """
    normed = apply(total).float()
    # An RMS norm turns ones into its weight, up to a factor that is part of the scale below.
    weight = apply(torch.ones_like(total[:1])).float()
    weighted = total.float() * weight
    scale = (normed * weighted).sum(-1, keepdim=True)
    scale = scale / (weighted * weighted).sum(-1, keepdim=True).clamp(min=1e-30)
    rounding = 1e-4 if total.dtype in (torch.float32, torch.float64) else 2e-2
    if (normed - scale * weighted).norm() > rounding * normed.norm():
        raise InputError(
            "The norm behind attention subtracts a mean, so heads have no shares of its output."
            " Edges from heads are not defined for this model."
        )
    return parts * weight[:, None] * scale[:, None]


def multiply_gate(
    gate: Float[Tensor, "token d_mlp"], inner: Float[Tensor, "token d_mlp"]
) -> Float[Tensor, "token d_mlp"]:
    """Multiply the inside of an MLP by its gate, in place unless gradients are recorded."""
    return gate * inner if torch.is_grad_enabled() else gate.mul_(inner)


def apply_in_slices(x: Tokens, function: Callable[[Tokens], Tokens]) -> Tokens:
    """Apply a function to slices of tokens that fit into the cache."""
    return _join([function(part) for part in _evenly(x, sliced=True)], len(x))


def over_all_heads(function: Callable[[Tensor], Tensor], heads: Heads) -> Heads:
    """Apply OLMo's norm of queries or keys, which is over all heads together."""
    whole = function(rearrange(heads, "token head d_head -> token (head d_head)"))
    return rearrange(whole, "token (head d_head) -> token head d_head", head=heads.shape[1])


def product(
    x: Float[Tensor, "token inner"], weight: Float[Tensor, "inner outer"]
) -> Float[Tensor, "token outer"]:
    """Multiply tokens by a matrix."""
    return _join([times(part, weight) for part in _evenly(x)], len(x))


def _join(parts: list[Float[Tensor, "_ width"]], n: int) -> Float[Tensor, "_ width"]:
    """Return the first ``n`` tokens of all parts; a single part is not copied."""
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:n]


def times(
    x: Float[Tensor, "token inner"],
    weight: Float[Tensor, "inner outer"],
    bias: Float[Tensor, "outer"] | None = None,
) -> Float[Tensor, "token outer"]:
    """Multiply one slice of tokens by a matrix and add a bias; half-precision sums are in float32
    and rounded once.
    """
    if _is_by_onednn(x) and len(x) and len(x) % ONEDNN_TOKENS == 0:
        return torch.ops.mkldnn._linear_pointwise(x, weight.T, bias, "none", [], "")
    if not half_in_float32(x.device, x.dtype):
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    out = x.new_empty(len(x), weight.shape[1])
    wide = x.float()
    columns = max(1, WIDE_SLICE // len(weight))
    for start in range(0, weight.shape[1], columns):
        at = slice(start, start + columns)
        part = wide @ weight[:, at].float()
        out[:, at] = part if bias is None else part.add_(bias[at])
    return out


def _evenly(
    x: Float[Tensor, "token *one"], *, sliced: bool = False
) -> Sequence[Float[Tensor, "_ *one"]]:
    """Split tokens into slices if ``sliced``, or if products need it.

    On a CPU in half precision the last slice is padded to a multiple of EVEN.
    """
    if not half_on_cpu(x.device, x.dtype):
        return x.split(_slice_sizes(x)) if sliced or _is_by_onednn(x) else [x]
    parts = list(x.split(MOST_EVEN))
    missing = -len(parts[-1]) % EVEN
    if missing:
        parts[-1] = torch.cat([parts[-1], x.new_zeros(missing, *x.shape[1:])])
    return parts


def _slice_sizes(x: Float[Tensor, "token *one"]) -> list[int]:
    """Return slices of MLP_SLICE tokens; the last is divided where oneDNN multiplies multiples of
    ONEDNN_TOKENS.
    """
    size = MLP_SLICE.get(x.device.type, MLP_SLICE["cpu"])
    rest = len(x) % size
    odd = rest % ONEDNN_TOKENS if _is_by_onednn(x) else 0
    return [size] * (len(x) // size) + [one for one in (rest - odd, odd) if one] or [0]


def _is_by_onednn(x: Tensor) -> bool:
    """Return whether products are computed by oneDNN, which has no gradients."""
    return (
        x.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and is_onednn_faster()
    )
