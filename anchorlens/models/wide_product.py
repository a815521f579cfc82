"""Products of float32 activations with a half-precision matrix, by the matrix units of a GPU."""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor


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
