"""Whether two engines agree in the logits, where a metric that moves in steps does not.

A threshold, a rank or an arg max can jump where logits differ in their last digits. So the logits
themselves are compared. In float32 a difference in a patched cell is rounding if it is not much
larger than that of the unpatched run. In half precision both are compared with the noise of the
model's own logits in the same cell (:mod:`anchorlens.engine.rounding_noise`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.engine import Engine
from anchorlens.engine.function_reader import FunctionReader
from anchorlens.engine.patches import SwapBatch
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.engine.rounding_noise import N_DRAWS, TIMES_NOISE, round_anew
from anchorlens.models.adapter import Adapter, SiteLike

# Largest RMS difference of unpatched logits that counts as rounding in float32 and float64,
# relative to their deviation. Measured with SmolLM2 on six prompts: up to 5e-6.
_NOISE = 2e-4
# In float32 a patched cell may differ by this many times the unpatched difference (measured: 1.6
# over all positions of a prompt; single positions vary more). In any dtype by this many units in
# the last place of its logits.
_TIMES_UNPATCHED_GAP = 6
_LAST_PLACES = 8
# Rows whose logits are compared at once, and random states on which a metric is tried.
_ROWS = 64
_DRAWS = 8
_STATE = "state"


@dataclass(frozen=True)
class _StateReader:
    """Reader of final states themselves."""

    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    where = None

    def metrics(
        self,
        adapter: Adapter,  # noqa: ARG002
        states: Float[Tensor, "*cells read d_model"],
    ) -> Metrics:
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
    """Return whether values of the cone engine differ from those of a full forward pass by
    rounding.

    Both engines must agree in the final states and the logits, before and after the only swap of
    the batch. And each value must lie among those of the metric on states as near to these as the
    engines are to each other.

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
    shape = (len(reader.row), -1)

    def run(engine: Engine) -> tuple[Tensor, Tensor]:
        one, (two,) = engine.run_swaps(at_states, site=site, layers=[layer], window=window)
        return one.values[_STATE].reshape(shape), two.values[_STATE].reshape(shape)

    own = run(ConeEngine(adapter))
    exact = run(ReferenceEngine(adapter))
    noisy: list[tuple[Tensor, Tensor]] = []
    if not adapter.shape.is_half:
        if not _do_logits_agree(adapter, own, exact):
            return False
    else:
        for n_draws in N_DRAWS:
            seeds = range(len(noisy), n_draws)
            noisy += [run(ReferenceEngine(round_anew(adapter, seed))) for seed in seeds]
            if _is_within_noise(adapter, own, exact, noisy):
                break
        else:
            return False
    for number, values in enumerate((before, after)):
        if values is None:
            continue
        more = [one[number] for one in noisy]
        near = torch.stack(
            list(_values_near(adapter, reader, own[number], exact[number], more)), -1
        )
        # NaN and infinite values are compared by themselves.
        between = values.clamp(near.amin(-1), near.amax(-1)).where(values.isfinite(), values)
        if not (is_close(values, between) or any(is_close(one, values) for one in near.unbind(-1))):
            return False
    return True


def _do_logits_agree(
    adapter: Adapter, own: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]
) -> bool:
    """Return whether the logits of two engines agree up to rounding in float32.

    ``own``, ``exact``: final states of the cone and the reference engine before and after a patch,
    [read d_model].
    """
    before, deviation, _ = _gap(adapter, own[0], exact[0])
    after, _, largest = _gap(adapter, own[1], exact[1])
    if not before <= _NOISE * deviation:
        return False
    return after <= _TIMES_UNPATCHED_GAP * before + _last_places(adapter, largest)


def _is_within_noise(
    adapter: Adapter,
    own: tuple[Tensor, Tensor],
    exact: tuple[Tensor, Tensor],
    noisy: Sequence[tuple[Tensor, Tensor]],
) -> bool:
    """Return whether the logits of two engines differ by no more than those of the model with other
    rounding.

    ``noisy``: final states of the reference engine with other rounding; ``own`` and ``exact`` as in
    :func:`_do_logits_agree`.
    """
    for number in (0, 1):
        gap, _, largest = _gap(adapter, own[number], exact[number])
        draws = [_gap(adapter, one[number], exact[number])[0] for one in noisy]
        noise = (sum(draw * draw for draw in draws) / len(draws)) ** 0.5
        if not gap <= TIMES_NOISE * noise + _last_places(adapter, largest):
            return False
    return True


def _last_places(adapter: Adapter, largest: float) -> float:
    return _LAST_PLACES * torch.finfo(adapter.shape.dtype).eps * largest


def _values_near(
    adapter: Adapter,
    reader: FunctionReader,
    own: Float[Tensor, "read d_model"],
    exact: Float[Tensor, "read d_model"],
    more: Sequence[Float[Tensor, "read d_model"]],
) -> Iterator[Float[Tensor, "value"]]:
    """Yield the metric on states between and around those of two engines, and on ``more``."""
    for states in more:
        yield reader.metrics(adapter, states).values[reader.name]
    difference = exact - own
    generator = torch.Generator("cpu").manual_seed(0)
    for share in (0.0, 1.0, -1.0, 2.0, 0.5):
        yield reader.metrics(adapter, own + share * difference).values[reader.name]
    size = difference.float().pow(2).mean(-1, keepdim=True).sqrt()
    for _ in range(_DRAWS):
        drawn = torch.randn(own.shape, generator=generator, device="cpu").to(own.device)
        yield reader.metrics(adapter, own + (size * drawn).to(own.dtype)).values[reader.name]


@torch.no_grad()
def _gap(
    adapter: Adapter, one: Float[Tensor, "read d_model"], two: Float[Tensor, "read d_model"]
) -> tuple[float, float, float]:
    """Return the RMS difference of the logits of two runs, the RMS deviation of the second from its
    mean, and its largest logit.
    """
    squares = 0.0
    deviations = 0.0
    largest = 0.0
    for own, other in zip(one.split(_ROWS), two.split(_ROWS), strict=True):
        logits = adapter.read.logits(own).double()
        exact = adapter.read.logits(other).double()
        if not torch.equal(logits.isfinite(), exact.isfinite()):
            return float("inf"), 0.0, 0.0
        # Padding tokens may have a bias of minus infinity.
        logits = logits.where(logits.isfinite(), 0.0)
        exact = exact.where(exact.isfinite(), 0.0)
        squares += float((logits - exact).pow(2).mean(-1).sum())
        deviations += float(exact.var(-1).sum())
        largest = max(largest, float(exact.abs().max()))
    return (squares / len(one)) ** 0.5, (deviations / len(one)) ** 0.5, largest
