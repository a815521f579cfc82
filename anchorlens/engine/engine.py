"""Interface of an engine."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.cost import PassSize
from anchorlens.engine.patches import KnockoutBatch, OnProgress, SwapBatch, no_progress
from anchorlens.engine.readouts import Metrics
from anchorlens.models.adapter import Adapter, ReadSite, SiteLike


@runtime_checkable
class Engine(Protocol):
    """Interface of an engine, which measures batches of one model; ``reason``: reason to replace
    the cone engine, else "".
    """

    name: str
    reason: str
    adapter: Adapter

    def reset(self, shared: Sequence[int] = ()) -> None:
        """Clear the caches, so that equal batches give equal bits.

        ``shared``: tokens that all later rows begin with.
        """
        ...

    def run_swaps(
        self,
        batch: SwapBatch,
        *,
        site: SiteLike,
        layers: Sequence[int],
        window: int,
        on_progress: OnProgress = no_progress,
    ) -> tuple[Metrics, list[Metrics]]:
        """Measure every cell of a batch.

        Returns:
            Metrics of the clean pass, [example], and for each swap those of the patched passes,
            [layer example].
        """
        ...

    def run_swap_batches(
        self,
        batches: Sequence[tuple[SwapBatch, Sequence[int]]],
        *,
        site: SiteLike,
        window: int,
        on_progress: OnProgress = no_progress,
    ) -> list[tuple[Metrics, list[Metrics]]]:
        """Measure several batches, each at its layers, through the layers together where the engine
        can.

        All batches are read at the same site and layer. Returns the result of :meth:`run_swaps` of
        each batch.
        """
        ...

    def knockout_states(
        self,
        batch: KnockoutBatch,
        *,
        where: ReadSite | None,
        windows: Sequence[range],
        on_progress: OnProgress = no_progress,
    ) -> Float[Tensor, "variant window read d_model"]:
        """Return the states at site and layer ``where`` (None: final residual stream) for every
        variant and window of layers.
        """
        ...

    def knockout_states_all_layers(
        self,
        batch: KnockoutBatch,
        *,
        site: SiteLike,
        layers: range,
        on_progress: OnProgress = no_progress,
    ) -> Float[Tensor, "run layer read d_model"]:
        """Return the states at every layer: clean, then with each variant cut in all of ``layers``;
        float32 on the CPU.
        """
        ...

    def pass_bytes(self, size: PassSize, lanes: int) -> int:
        """Return an upper estimate of a batch's memory in bytes, without the model.

        ``lanes``: number of layers or windows.
        """
        ...

    def pass_terms(self, size: PassSize, lanes: int) -> dict[str, int]:
        """Return the terms of :meth:`pass_bytes` by name."""
        ...

    def pass_flops(self, size: PassSize, starts: Sequence[int]) -> float:
        """Return the floating-point operations of a batch.

        ``starts``: first changed layer of each window.
        """
        ...

    def saturates(self, size: PassSize, lanes: int) -> bool:
        """Return whether more rows would not speed up a batch; always False if weights are
        streamed.
        """
        ...
