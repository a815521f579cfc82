"""Metrics of the logits at chosen positions: logit differences, or any function of the logits."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.readouts import Metrics
from anchorlens.errors import ShapeError
from anchorlens.models.adapter import Adapter


@dataclass(frozen=True)
class Metric:
    """A value that is read from the logits at some positions of each input. It need not be a probability.

    Attributes:
        name: Name in samples, curves and figures.
        unit: Its unit: ``logit``, ``nat``, ...
        function: Logits of the reads of one pass, [read d_vocab], -> value of each example, [example].
    """

    name: str
    unit: str
    function: Callable[[Float[Tensor, "read d_vocab"]], Float[Tensor, "example"]]


@dataclass(frozen=True)
class MetricReader:
    """Reads a metric of a batch.

    Attributes:
        metric: The metric.
        row: Row of each read.
        position: Position of each read in its row.
        n_examples: Rows of the batch.
    """

    metric: Metric
    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    n_examples: int

    @property
    def where(self) -> None:
        """The stream that leaves the last block."""
        return

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """Compute the metric of every cell.

        Raises:
            ShapeError: The metric returned another shape than [example].
        """
        cells, n_reads = states.shape[:-2], states.shape[-2]
        values: list[Tensor] = []
        for one in states.reshape(-1, n_reads, states.shape[-1]):
            value = self.metric.function(adapter.read.logits(one).float().cpu())
            if value.shape != (self.n_examples,):
                raise ShapeError(
                    f"metric={self.metric.name!r}: returned shape {tuple(value.shape)} instead of [example] = ({self.n_examples},)."
                )
            values.append(value.float())
        return Metrics({self.metric.name: torch.stack(values).reshape(*cells, self.n_examples)})


def logit_difference(answers: Int[Tensor, "example"], wrong: Int[Tensor, "example"]) -> Metric:
    """Return the metric: logit of the answer minus logit of the wrong answer, at the one position that is read of each example."""

    def function(logits: Float[Tensor, "example d_vocab"]) -> Float[Tensor, "example"]:
        rows = torch.arange(len(logits))
        return logits[rows, answers] - logits[rows, wrong]

    return Metric("logit_diff", "logit", function)
