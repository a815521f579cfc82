"""Check that the activations of a sweep were written where they should be."""

from collections.abc import Sequence

import torch

from anchorlens.engine.cone import LANDED
from anchorlens.engine.expected_evidence import evidence_of_sources
from anchorlens.engine.landing import is_same_evidence
from anchorlens.engine.patches import SwapBatch, window_layers
from anchorlens.engine.readouts import Metrics
from anchorlens.errors import CheckError
from anchorlens.models.adapter import Adapter, SiteLike

# Allowed difference of the evidence, relative to the size of the activations. Measured with SmolLM2 over sites and places: up to
# 3e-5 in float32, 0.34 in bfloat16 (half of the cells below 0.014). A patch at another place changes it by about 1.4 in each layer.
_ALLOWED = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.15, torch.bfloat16: 1.0}


def check_writes(
    adapter: Adapter,
    batch: SwapBatch,
    changed: Sequence[Metrics],
    *,
    site: SiteLike,
    layers: Sequence[int],
    window: int,
    n_rows: int,
) -> None:
    """Compare what the cone engine wrote in each cell with the activations of a full forward pass of the sources.

    Args:
        adapter: The model.
        batch: Batch whose swaps have a ``source``.
        changed: Metrics of each swap, with :data:`~anchorlens.engine.cone.LANDED` [layer 1].
        site: Patched site.
        layers: Layers of the cells.
        window: Number of layers patched together.
        n_rows: Maximum number of rows of a forward pass.

    Raises:
        CheckError: If a patch is missing, or other activations, or other places, were written.
    """
    allowed = _ALLOWED[adapter.shape.dtype]
    for swap, after, expected in zip(batch.swaps, changed, evidence_of_sources(adapter, batch, site, n_rows), strict=True):
        for layer, (landed,) in zip(layers, after.values[LANDED].tolist(), strict=True):
            total, size = expected.of_window(window_layers(layer, window, adapter.n_layers))
            if not is_same_evidence(landed, total, allowed * size):
                off = abs(landed - total) / size if size else float("inf")
                raise CheckError(
                    f"engine='cone': the patch of {swap.anchor} in layer {layer} was not written as it should be: its activations "
                    f"differ by {off:.2g} of their size (allowed: {allowed:g}). The sweep was stopped. Use engine='reference', and "
                    "please report the model."
                )
