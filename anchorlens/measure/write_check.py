"""Check that the activations of a sweep were written where they should be."""

from collections.abc import Sequence

import torch

from anchorlens.engine.cone import LANDED
from anchorlens.engine.expected_evidence import Evidence, evidence_of_sources
from anchorlens.engine.landing import is_same_evidence
from anchorlens.engine.patches import SwapBatch, window_layers
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.rounding_noise import N_DRAWS, TIMES_NOISE, is_half, round_anew
from anchorlens.errors import CheckError
from anchorlens.models.adapter import Adapter, SiteLike

# Allowed difference of the evidence, relative to the size of the activations. Measured with SmolLM2
# over sites and places: up to 3e-5 in float32, 0.34 in bfloat16 (half of the cells below 0.014). A
# patch at another place changes it by about 1.4 in each layer. Beyond it, the noise of the sources'
# own activations is measured in half precision.
_ALLOWED = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.01, torch.bfloat16: 0.05}


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
    """Compare what the cone engine wrote in each cell with the activations of a full forward pass
    of the sources.

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
    expected = evidence_of_sources(adapter, batch, site, n_rows)
    windows = [window_layers(layer, window, adapter.n_layers) for layer in layers]
    noise: dict[int, list[list[float]]] = {}
    for number, (swap, after) in enumerate(zip(batch.swaps, changed, strict=True)):
        for at, (layer, (landed,)) in enumerate(
            zip(layers, after.values[LANDED].tolist(), strict=True)
        ):
            total, size = expected[number].of_window(windows[at])
            if is_same_evidence(landed, total, allowed * size):
                continue
            more = 0.0
            for n_draws in N_DRAWS if is_half(adapter) else ():
                if n_draws not in noise:
                    noise[n_draws] = _measure_noise(
                        adapter,
                        batch,
                        expected,
                        site=site,
                        windows=windows,
                        n_rows=n_rows,
                        n_draws=n_draws,
                    )
                more = TIMES_NOISE * noise[n_draws][number][at]
                if is_same_evidence(landed, total, (allowed + more) * size):
                    break
            else:
                off = abs(landed - total) / size if size else float("inf")
                raise CheckError(
                    f"engine='cone': the patch of {swap.anchor} in layer {layer} was not written as"
                    f" it should be: its activations differ by {off:.2g} of their size (allowed:"
                    f" {allowed + more:.2g}). The sweep was stopped. Use engine='reference', and"
                    " please report the model."
                )


def _measure_noise(
    adapter: Adapter,
    batch: SwapBatch,
    expected: Sequence[Evidence],
    *,
    site: SiteLike,
    windows: Sequence[range],
    n_rows: int,
    n_draws: int,
) -> list[list[float]]:
    """Return the noise of the evidence of each swap in each window, relative to its size: its own
    change when the model rounds in another way, or the mean of its layer if that is larger.
    """
    squares = torch.zeros(len(expected), len(windows), dtype=torch.float64, device="cpu")
    for seed in range(n_draws):
        again = evidence_of_sources(round_anew(adapter, seed), batch, site, n_rows)
        for i, (one, other) in enumerate(zip(expected, again, strict=True)):
            for j, window in enumerate(windows):
                total, size = one.of_window(window)
                change = (other.of_window(window)[0] - total) / size if size else 0.0
                squares[i, j] += change**2 / n_draws
    squares = squares.nan_to_num(0.0, 0.0, 0.0)
    return torch.maximum(squares, squares.mean(0, keepdim=True)).sqrt().tolist()
