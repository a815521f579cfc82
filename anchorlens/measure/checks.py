"""Comparison of values of the cone engine with those of full forward passes.

One rule for sweeps, grids and saved runs: a value is right if it is close, or if rounding explains
the difference: in half precision the noise of the model's own values, or a step of the metric while
the engines agree in the logits.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from jaxtyping import Float
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ComparedCell(Generic[T]):
    """Values of one cell from both engines.

    Attributes:
        cell: Name or index of the cell.
        found: Values of the cone engine.
        exact: Values of a full forward pass.
        is_rounding: Function that returns whether rounding explains the difference; None where
            nothing can.
    """

    cell: T
    found: Float[Tensor, "value"]
    exact: Float[Tensor, "value"]
    is_rounding: Callable[[], bool] | None = None


def find_differences(
    cells: Iterable[ComparedCell[T]],
    is_close: Callable[[Float[Tensor, "value"], Float[Tensor, "value"]], bool],
    on_rounding: Callable[[ComparedCell[T]], object] = lambda _: None,
) -> Iterator[ComparedCell[T]]:
    """Yield the cells whose values differ by more than a tolerance and rounding explain; call
    ``on_rounding`` for each cell in which rounding explains it.

    Examples:
        >>> import torch
        >>> one = ComparedCell(cell="a", found=torch.zeros(1), exact=torch.ones(1))
        >>> [each.cell for each in find_differences([one], torch.equal)]
        ['a']
    """
    for one in cells:
        if is_close(one.found, one.exact):
            continue
        if one.is_rounding is not None and one.is_rounding():
            on_rounding(one)
        else:
            yield one
