"""Whether two engines agree in the logits, where a metric that moves in steps does not.

A threshold, a rank or an arg max can jump where logits differ in their last digits. So the logits themselves are compared: a
difference in a patched cell is rounding if it is not much larger than that of the unpatched run, which is the noise floor of this
model, dtype and prompt.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.function_reader import FunctionReader
from anchorlens.engine.patches import SwapBatch
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models.adapter import Adapter, SiteLike

# Largest RMS difference of unpatched logits that counts as rounding, relative to their deviation. Measured with SmolLM2 on six
# prompts: up to 5e-6 in float32, 0.09 in bfloat16.
_NOISE = {torch.float64: 2e-4, torch.float32: 2e-4, torch.float16: 0.03, torch.bfloat16: 0.25}
# A patched cell may differ by this many times the unpatched difference (measured: 1.6 over all positions of a prompt; single
# positions vary more), and by this many units in the last place of its logits.
_TIMES_NOISE, _LAST_PLACES = 6, 8
# Rows whose logits are compared at once, and random states on which a metric is tried.
_ROWS, _DRAWS = 64, 8
_STATE = "state"


@dataclass(frozen=True)
class _StateReader:
    """Reader of final states themselves."""

    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    where = None

    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:  # noqa: ARG002
        """Return the states, [*cells (read d_model)]."""
        return Metrics({_STATE: states.flatten(-2)})


def differs_by_rounding(
    adapter: Adapter,
    batch: SwapBatch,
    reader: FunctionReader,
    *,
    site: SiteLike,
    layer: int,
    window: int = 1,
    before: "Float[Tensor, 'value'] | None" = None,
    after: "Float[Tensor, 'value'] | None" = None,
    is_close: Callable[[Tensor, Tensor], bool],
) -> bool:
    """Return whether values of the cone engine differ from those of a full forward pass by rounding.

    Both engines must agree in the final states and the logits, before and after the only swap of the batch. And the metric must
    give the values on states as near to these as the engines are to each other.

    Args:
        adapter: The model.
        batch: Batch with one swap.
        reader: Reader of the metric.
        site: Patched site.
        layer: Patched layer.
        window: Number of layers that are patched together.
        before: Values that the cone engine gave before the patch; None for none to explain.
        after: Values after the patch; None for none to explain.
        is_close: Whether two lists of values are equal up to a tolerance.
    """
    reader = reader.plain()
    at_states = replace(batch, reader=_StateReader(reader.row, reader.position))
    runs: list[tuple[Tensor, Tensor]] = []
    for engine in (ConeEngine(adapter), ReferenceEngine(adapter)):
        one, (two,) = engine.run_swaps(at_states, site=site, layers=[layer], window=window)
        shape = len(reader.row), -1
        runs.append((one.values[_STATE].reshape(shape), two.values[_STATE].reshape(shape)))
    (own_before, own_after), (exact_before, exact_after) = runs
    noise, deviation, largest = _gap(adapter, own_before, exact_before)
    if not noise <= _NOISE.get(adapter.shape.dtype, _NOISE[torch.float32]) * deviation:
        return False
    floor = _LAST_PLACES * torch.finfo(adapter.shape.dtype).eps * largest
    if not _gap(adapter, own_after, exact_after)[0] <= _TIMES_NOISE * noise + floor:
        return False
    for values, own, exact in ((before, own_before, exact_before), (after, own_after, exact_after)):
        if values is not None and not any(is_close(one, values) for one in _values_near(adapter, reader, own, exact)):
            return False
    return True


def _values_near(
    adapter: Adapter, reader: FunctionReader, own: Float[Tensor, "read d_model"], exact: Float[Tensor, "read d_model"]
) -> Iterator[Float[Tensor, "value"]]:
    """Yield the metric on states between and around those of two engines."""
    difference = exact - own
    generator = torch.Generator("cpu").manual_seed(0)
    for share in (0.0, 1.0, -1.0, 2.0, 0.5):
        yield reader.metrics(adapter, own + share * difference).values[reader.name]
    size = difference.float().pow(2).mean(-1, keepdim=True).sqrt()
    for _ in range(_DRAWS):
        drawn = torch.randn(own.shape, generator=generator, device="cpu").to(own.device)
        yield reader.metrics(adapter, own + (size * drawn).to(own.dtype)).values[reader.name]


@torch.no_grad()
def _gap(adapter: Adapter, one: Float[Tensor, "read d_model"], two: Float[Tensor, "read d_model"]) -> tuple[float, float, float]:
    """Return the RMS difference of the logits of two runs, the RMS deviation of the second from its mean, and its largest logit."""
    squares, deviations, largest = 0.0, 0.0, 0.0
    for own, other in zip(one.split(_ROWS), two.split(_ROWS), strict=True):
        logits, exact = adapter.read.logits(own).double(), adapter.read.logits(other).double()
        if not torch.equal(logits.isfinite(), exact.isfinite()):
            return float("inf"), 0.0, 0.0
        # Padding tokens may have a bias of minus infinity.
        logits, exact = (each.where(each.isfinite(), 0.0) for each in (logits, exact))
        squares += float((logits - exact).pow(2).mean(-1).sum())
        deviations += float(exact.var(-1).sum())
        largest = max(largest, float(exact.abs().max()))
    return (squares / len(one)) ** 0.5, (deviations / len(one)) ** 0.5, largest
