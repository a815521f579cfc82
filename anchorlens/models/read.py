"""Logits of rows of the final residual stream: final norm, unembedding and soft cap.

On a GPU the unembedding of half-precision weights is a product of their matrix units, with sums in
float32 (:func:`wide_product`).
"""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.models.devices import without_autocast


def wide_product(
    x: Float[Tensor, "row inner"], weight: Float[Tensor, "inner outer"]
) -> Float[Tensor, "row outer"]:
    """Multiply rows by a matrix, with the result and all sums in the dtype of ``x``.

    A GPU multiplies float32 matrices ten times as slowly as half-precision ones. A half-precision
    weight is therefore not converted: ``x`` is written as a sum of two half-precision numbers, and
    both are multiplied with sums in float32. Two bfloat16 numbers hold 16 binary digits of ``x``,
    two float16 numbers 22.
    """
    if not has_wide_sums(x, weight):
        return x @ weight.to(x.dtype)
    high, low = split_in_two(x, weight.dtype)
    return _with_wide_sums(high, weight) + _with_wide_sums(low, weight)


def split_in_two(
    x: Float[Tensor, "row inner"], dtype: torch.dtype
) -> tuple[Float[Tensor, "row inner"], Float[Tensor, "row inner"]]:
    """Return two tensors of a half-precision dtype whose sum is ``x`` but for rounding."""
    high = x.to(dtype)
    return high, (x - high.to(x.dtype)).to(dtype)


def has_wide_sums(x: Tensor, weight: Tensor) -> bool:
    """Return whether the device multiplies these in half precision with sums in float32; such a
    product has no gradient.
    """
    is_half = weight.dtype in (torch.bfloat16, torch.float16)
    is_plain = not (torch.is_grad_enabled() and x.requires_grad)
    is_float32 = x.dtype is torch.float32
    return is_half and is_plain and is_float32 and _has_product(x.device, weight.dtype)


@cache
def _has_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a device has the product, which only CUDA of some versions does."""
    if device.type != "cuda":
        return False
    one = torch.ones(16, 16, dtype=dtype, device=device)
    try:
        return _with_wide_sums(one, one).dtype is torch.float32
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def _with_wide_sums(
    x: Float[Tensor, "row inner"], weight: Float[Tensor, "inner outer"]
) -> Float[Tensor, "row outer"]:
    return torch.mm(x, weight.detach(), out_dtype=torch.float32)


# Rows and columns of one product with the unembedding: small enough for a CPU's cache, large enough
# for a GPU.
READ_SLICE = {"cpu": (256, 4096), "cuda": (4096, 16384), "mps": (1024, 8192)}


class Scores(NamedTuple):
    """Logits of some tokens in each row, with the scale of the whole vocabulary.

    Attributes:
        logits: Logits of the tokens.
        total: Logsumexp over the vocabulary.
        top: Largest logit of the vocabulary.
    """

    logits: Float[Tensor, "row token"]
    total: Float[Tensor, "row"]
    top: Float[Tensor, "row"]


F = TypeVar("F", bound=Callable[..., Any])


def _without_autocast(method: F) -> F:
    @wraps(method)
    def exact(self: "Read", *args: object, **named: object) -> object:
        with without_autocast(self.device):
            return method(self, *args, **named)

    return cast(F, exact)


class Read:
    """Final norm and unembedding of a model, in float32 or float64 for models of any dtype, without
    autocast.

    Args:
        unembedding: Function that returns the current weight and bias.
        final_norm: Final norm, computed in float32.
        soft_cap: Soft cap of the logits; None for none.
        factor: Factor of the logits, before the soft cap.
    """

    def __init__(
        self,
        unembedding: Callable[
            [], tuple[Float[Tensor, "d_model d_vocab"], Float[Tensor, "d_vocab"] | None]
        ],
        final_norm: Callable[[Float[Tensor, "row d_model"]], Float[Tensor, "row d_model"]],
        soft_cap: float | None = None,
        factor: float = 1.0,
    ) -> None:
        self._unembedding = unembedding
        self._final_norm = final_norm
        self._soft_cap = soft_cap
        self._factor = factor

    @property
    def device(self) -> torch.device:
        """Device of the unembedding, to which streams are moved."""
        return self._unembedding()[0].device

    @_without_autocast
    def logits(
        self, stream: Float[Tensor, "row d_model"], tokens: Sequence[int] | None = None
    ) -> Float[Tensor, "row d_vocab"]:
        """Compute the logits of rows: in float64 for ``tokens``; if None, of the whole
        vocabulary.
        """
        weight, bias = self._unembedding()
        x = self._apply_final_norm(stream)
        if tokens is not None:
            at = list(tokens)
            return self._scale(
                _unembed(x.to(_wide(x)), weight[:, at], None if bias is None else bias[at])
            )
        if weight.dtype == x.dtype:
            return self._scale(_unembed(x, weight, bias))
        # In slices, so that only a part of the unembedding is converted to float32 at once.
        columns = READ_SLICE.get(x.device.type, READ_SLICE["cpu"])[1]
        biases = [None] * len(weight.split(columns, 1)) if bias is None else bias.split(columns)
        parts = zip(weight.split(columns, 1), biases, strict=True)
        return self._scale(torch.cat([_unembed(x, weight, bias) for weight, bias in parts], -1))

    @_without_autocast
    def token_logits(
        self, stream: Float[Tensor, "row d_model"], tokens: Int[Tensor, "row token"]
    ) -> Float[Tensor, "row token"]:
        """Compute the logits of ``tokens`` in each row, in float64 (float32 on Apple's GPUs); no
        other token is unembedded.
        """
        x = self._apply_final_norm(stream)
        rows = READ_SLICE.get(x.device.type, READ_SLICE["cpu"])[0]
        parts = zip(x.split(rows), tokens.to(x.device).split(rows), strict=True)
        return torch.cat([self._of_tokens(part, own) for part, own in parts])

    @_without_autocast
    def scores(
        self, stream: Float[Tensor, "row d_model"], tokens: Int[Tensor, "row token"]
    ) -> Scores:
        """Compute the logits of ``tokens`` in each row, with logsumexp and largest logit over the
        whole vocabulary.

        All are float64 (float32 on Apple's GPUs). A float32 product over d_model has an error of
        3e-6, which would dominate that of P. ``tokens`` and the largest logit of each vocabulary
        slice are therefore computed in float64.
        """
        weight, bias = self._unembedding()
        x = self._apply_final_norm(stream)
        tokens = tokens.to(x.device)
        rows, columns = READ_SLICE.get(x.device.type, READ_SLICE["cpu"])
        parts = x.split(rows)
        picked = torch.cat(
            [self._of_tokens(part, t) for part, t in zip(parts, tokens.split(rows), strict=True)]
        )
        totals = [part.new_full((len(part),), -torch.inf, dtype=_wide(part)) for part in parts]
        tops = [total.clone() for total in totals]
        for start in range(0, weight.shape[1], columns):
            some = slice(start, start + columns)
            # Padding tokens may have a bias of minus infinity.
            low = None if bias is None else bias[some].clamp(min=torch.finfo(bias.dtype).min)
            columns_of = weight[:, some]
            if not has_wide_sums(x, weight):
                columns_of = columns_of.to(x.dtype)  # once for all rows
            for i, part in enumerate(parts):
                logits = self._scale(_unembed(part, columns_of, low))
                top, at = logits.max(-1)
                others = (logits - top[:, None]).exp_().sum(-1) - 1.0
                exact = self._of_tokens(part, start + at[:, None])[:, 0]
                whole = top + torch.log(others.clamp(min=0.0) + (exact - top).exp())
                totals[i] = torch.logaddexp(totals[i], whole)
                tops[i] = torch.maximum(tops[i], exact)
        return Scores(picked, torch.cat(totals), torch.cat(tops))

    def _of_tokens(
        self, x: Float[Tensor, "row d_model"], tokens: Int[Tensor, "row token"]
    ) -> Float[Tensor, "row token"]:
        weight, bias = self._unembedding()
        x = x.to(_wide(x))
        logits = einsum(
            x, weight.T[tokens].to(x.dtype), "row d_model, row token d_model -> row token"
        )
        return self._scale(logits if bias is None else logits + bias[tokens].to(x.dtype))

    def _apply_final_norm(
        self, stream: Float[Tensor, "row d_model"]
    ) -> Float[Tensor, "row d_model"]:
        return self._final_norm(stream.to(self.device))

    def _scale(self, logits: Float[Tensor, "row token"]) -> Float[Tensor, "row token"]:
        """Apply factor and soft cap."""
        if self._factor != 1.0:
            logits = logits * self._factor
        if self._soft_cap is not None:
            logits = self._soft_cap * torch.tanh(logits / self._soft_cap)
        return logits


def _unembed(
    x: Float[Tensor, "row d_model"],
    weight: Float[Tensor, "d_model token"],
    bias: Float[Tensor, "token"] | None,
) -> Float[Tensor, "row token"]:
    logits = wide_product(x, weight)
    return logits if bias is None else logits + bias.to(x.dtype)


def _wide(x: Float[Tensor, "..."]) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64
