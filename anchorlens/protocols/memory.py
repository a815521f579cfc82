"""Units that do not fit into memory are split and measured in parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch

from anchorlens.engine.cost import out_of_memory
from anchorlens.notices import warn


@runtime_checkable
class Unit(Protocol):
    """Rows that are measured and stored as one."""

    @property
    def work(self) -> float:
        """How much it is, in the unit of the progress bar."""
        ...

    def split(self) -> "Sequence[Unit]":
        """Smaller units in its place, where memory runs out; () where it cannot be split."""
        ...


U = TypeVar("U", bound=Unit)
T = TypeVar("T")


@dataclass
class Memory:
    """Counts how often memory ran out.

    Attributes:
        device: Where the model lies.
        splits: Units that had to be split.
    """

    device: torch.device
    splits: int = 0

    def measured(self, measure: Callable[[U], T], unit: U) -> list[T]:
        """What a unit gives; what its parts give where it does not fit.

        Raises:
            RuntimeError, MemoryError: It cannot be split further, or the failure is another one.
        """
        try:
            return [measure(unit)]
        except (RuntimeError, MemoryError) as why:
            parts = unit.split()
            if not out_of_memory(why) or not parts:
                raise
        # Outside the handler, so that the failed pass is let go of before its parts begin.
        self.splits += 1
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.splits == 1:
            warn("Memory ran out: batches that do not fit are split and go on. max_memory= plans for less.")
        return [one for part in parts for one in self.measured(measure, part)]  # pyright: ignore[reportArgumentType]


__all__ = ["Memory", "Unit"]
