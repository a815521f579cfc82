"""Evidence of patches: one number per cell that says what was written, and where.

The engine adds up ``code(layer, row, position, head) * (value . weights)`` over all activations
that it replaced in a cell, read back where they were written. A caller computes the same sum from
what it asked for. The two agree only if every activation landed at its place: a shifted position,
another head or layer, a dropped patch or an old value all change the sum.
"""

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.models.devices import on


def evidence_rounding(device: torch.device) -> float:
    """Return the largest relative difference of two sums of the same numbers, in the dtype of
    evidence on a device.
    """
    return 1e-9 if evidence_dtype(device) is torch.float64 else 1e-4


def evidence_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of evidence on a device."""
    return torch.float32 if device.type == "mps" else torch.float64


@cache
def _weights(width: int) -> Float[Tensor, "width"]:
    return torch.randn(
        width,
        generator=torch.Generator("cpu").manual_seed(width),
        dtype=torch.float64,
        device="cpu",
    )


def projection(width: int, device: torch.device) -> Float[Tensor, "width"]:
    """Return the fixed random weights with which activations of a width are multiplied."""
    return on(device, _weights(width).to(evidence_dtype(device)))


def project(
    values: Float[Tensor, "*entry width"], weights: Float[Tensor, "width"]
) -> Float[Tensor, "*entry"]:
    """Return the product of activations with fixed random weights (:func:`projection`)."""
    return values.detach().to(weights.dtype) @ weights


def code(
    layer: "Int[Tensor, '*#entry'] | int",
    row: Int[Tensor, "*#entry"],
    position: Int[Tensor, "*#entry"],
    head: "Int[Tensor, '*#entry'] | int",
    device: torch.device,
) -> Float[Tensor, "*#entry"]:
    """Return a number in [1, 2) for each place, from indices on the CPU; places of one model have
    different ones.

    The multipliers are irrational, so that no two sums of small whole numbers differ by a whole
    number.
    """
    layer = torch.as_tensor(layer, dtype=torch.float64, device="cpu")
    head = torch.as_tensor(head, dtype=torch.float64, device="cpu")
    mixed = (
        0.7548776662 * layer
        + 0.5698402910 * row.double()
        + 0.8191725134 * position.double()
        + 0.6180339887 * head
    )
    return on(device, (1.0 + mixed.frac()).to(evidence_dtype(device)))


def is_same_evidence(found: float, expected: float, allowed: float) -> bool:
    """Return whether two sums differ by at most ``allowed``; NaN equals NaN, because a cache may
    hold it.
    """
    if found != found or expected != expected:
        return found != found and expected != expected
    return found == expected or abs(found - expected) <= allowed
