"""Metrics of the logits at chosen positions: a logit difference, or any function of the logits."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.readouts import Metrics
from anchorlens.errors import ShapeError
from anchorlens.models.adapter import Adapter

UNITS = {"logit_diff": "logit"}
"""Metric -> unit of its values."""


@dataclass(frozen=True)
class Metric:
    """Value computed from the logits at some positions of each example; not necessarily a probability.

    Attributes:
        name: Name in samples, curves and figures.
        unit: Unit of the value: ``logit``, ``nat``, ...
        function: Logits of all reads of one pass, [read d_vocab] -> value of each example, [example].
    """

    name: str
    unit: str
    function: Callable[[Float[Tensor, "read d_vocab"]], Float[Tensor, "example"]]


@dataclass(frozen=True)
class MetricReader:
    """Reader of a metric of the logits of a batch.

    Attributes:
        metric: Metric to compute.
        row: Row of each read.
        position: Position of each read in its row.
        n_examples: Number of rows of the batch.
    """

    metric: Metric
    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    n_examples: int

    @property
    def where(self) -> None:
        """Return None: the states are those of the final residual stream."""
        return

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """Compute the metric of every cell.

        Raises:
            ShapeError: If the metric's function returns another shape than [example].
        """
        cells, n_reads = states.shape[:-2], states.shape[-2]
        values: list[Tensor] = []
        for cell in states.reshape(-1, n_reads, states.shape[-1]):
            value = self.metric.function(adapter.read.logits(cell).float().cpu())
            if value.shape != (self.n_examples,):
                raise ShapeError(
                    f"metric={self.metric.name!r}: returned shape {tuple(value.shape)} instead of [example] = ({self.n_examples},)."
                )
            values.append(value.float())
        return Metrics({self.metric.name: torch.stack(values).reshape(*cells, self.n_examples)})


def logit_difference(answers: Int[Tensor, "example"], wrong: Int[Tensor, "example"]) -> Metric:
    """Return the metric "logit of the answer minus logit of the wrong answer", read at one position of each example."""

    def function(logits: Float[Tensor, "example d_vocab"]) -> Float[Tensor, "example"]:
        rows = torch.arange(len(logits))
        return logits[rows, answers] - logits[rows, wrong]

    return Metric("logit_diff", UNITS["logit_diff"], function)
