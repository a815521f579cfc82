"""Interface of an engine."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.cost import PassSize
from anchorlens.engine.patches import KnockoutBatch, OnProgress, SwapBatch, no_progress
from anchorlens.engine.readouts import Metrics
from anchorlens.models.adapter import Adapter, SiteLike


@runtime_checkable
class Engine(Protocol):
    """Measures batches of one model and estimates their cost; ``reason`` says why it is the oracle where the cone was asked for."""

    name: str
    reason: str
    adapter: Adapter

    def reset(self, shared: Sequence[int] = ()) -> None:
        """Let go of what earlier batches left: from here on, the same batches give the same bits, whatever came before."""
        ...

    def run_swaps(
        self, batch: SwapBatch, *, site: SiteLike, layers: Sequence[int], window: int, on_progress: OnProgress = no_progress
    ) -> tuple[Metrics, list[Metrics]]:
        """Measure every cell of a batch.

        Returns:
            Metrics of the clean pass ([example]), and for each swap those of the changed passes ([layer example]).
        """
        ...

    def knockout_states(
        self,
        batch: KnockoutBatch,
        *,
        where: tuple[SiteLike, int] | None,
        windows: Sequence[range],
        on_progress: OnProgress = no_progress,
    ) -> Float[Tensor, "variant window read d_model"]:
        """States at one place for every variant and every window of layers in which it is cut."""
        ...

    def knockout_states_all_layers(
        self, batch: KnockoutBatch, *, site: SiteLike, layers: range, on_progress: OnProgress = no_progress
    ) -> Float[Tensor, "run layer read d_model"]:
        """States at every layer: of the clean run, then of every variant cut in all of ``layers``; float32 on the CPU."""
        ...

    def pass_bytes(self, size: PassSize, lanes: int) -> int:
        """Upper estimate of what a batch holds beside the model, with so many layers or windows measured."""
        ...

    def pass_flops(self, size: PassSize, starts: Sequence[int]) -> float:
        """Multiplications and additions of a batch whose cells are changed from these layers on."""
        ...

    def saturates(self, size: PassSize, lanes: int) -> bool:
        """Whether a batch is so large that more rows gain nothing; never, where weights are read in every pass."""
        ...
