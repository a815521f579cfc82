"""Turn an activation as far as a patch turns it, in another direction (``norm_matched``, METHOD 4).

The turned activation has the norm of the donor's, its angle to the clean one and its distance from
it. Only the direction in which it is turned differs.
"""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

# Part of a direction orthogonal to the activation, below which it is parallel.
_PARALLEL = 1e-6


def turn(
    base: Float[Tensor, "*slot width"],
    donor: Float[Tensor, "*slot width"],
    direction: Float[Tensor, "*slot width"],
) -> Float[Tensor, "*slot width"]:
    """Return ``base`` turned towards ``direction``, with the donor's norm and angle to ``base``.

    With u = base / |base| and v the unit vector of the part of ``direction`` that is orthogonal to
    u, the result is (donor . u) u + |donor - (donor . u) u| v. Half precision is too coarse for
    the small angles of neighbouring activations, so the result is float32.

    Args:
        base: Clean activations.
        donor: Donor's activations.
        direction: Directions of any norm.

    Returns:
        Turned activations; the donor's own where ``direction`` is parallel to ``base``.
    """
    dtype = torch.promote_types(base.dtype, torch.float32)
    base = base.to(dtype)
    donor = donor.to(base.device, dtype)
    direction = direction.to(base.device, dtype)
    unit = torch.nn.functional.normalize(base, dim=-1)
    along = einsum(donor, unit, "... width, ... width -> ...")[..., None] * unit
    across = torch.linalg.vector_norm(donor - along, dim=-1, keepdim=True)
    size = torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
    sideways = direction - einsum(direction, unit, "... width, ... width -> ...")[..., None] * unit
    length = torch.linalg.vector_norm(sideways, dim=-1, keepdim=True)
    turned = along + across * sideways / length.clamp(min=torch.finfo(dtype).tiny)
    return torch.where(length > _PARALLEL * size, turned, donor)
