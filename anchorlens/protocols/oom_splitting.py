"""A sweep keeps to the memory that was planned: what does not fit is split, and what is freed is handed back."""

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch

from anchorlens.engine.cost import out_of_memory
from anchorlens.warn import warn


@runtime_checkable
class Unit(Protocol):
    """Rows that are measured and stored as one."""

    @property
    def work(self) -> float:
        """Amount of work, in the unit of the progress bar."""
        ...

    def split(self) -> "Sequence[Unit]":
        """Smaller units in its place, where memory runs out; () where it cannot be split."""
        ...


# Share of the allowed memory from which on freed pages are returned; the rest is for allocations before the next look. Measured with
# 57 MB planned, in a heap with holes: peaks of 37 to 47 MB; with 1/3 and an eighth 43 to 51, once 59. CPU time is the same.
_FULL = 1 / 5
_STATM = Path("/proc/self/statm")

U = TypeVar("U", bound=Unit)
T = TypeVar("T")


@dataclass
class OomSplitter:
    """Measures units, in parts where memory runs out, and counts the splits."""

    device: torch.device
    splits: int = 0

    def measure_or_split(self, measure: Callable[[U], T], unit: U) -> list[T]:
        """Return the results of a unit, or of its parts if it does not fit into memory."""
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
        return [one for part in parts for one in self.measure_or_split(measure, part)]  # pyright: ignore[reportArgumentType]


class MallocTrimmer:
    """Hands freed memory of this process back to the system where it would hold more than was planned.

    glibc keeps the pages of freed small blocks, so that a sweep limited to 64 MB was measured to hold 140. Does nothing on other
    systems than Linux, with other C libraries, and on devices with memory of their own.
    """

    def __init__(self, device: torch.device, allowed: int) -> None:
        self._trim = _malloc_trim() if device.type == "cpu" and _STATM.exists() else None
        self._most = self._full = (0 if self._trim is None else _anonymous()) + int(_FULL * allowed)
        self._step = allowed // 16

    def look(self) -> None:
        """Hand back what is free, if the process has come to hold too much; to be called often (it takes microseconds)."""
        if self._trim is None or _anonymous() < self._full:
            return
        self._trim(0)
        # What is in use is not looked for again with every call.
        self._full = max(self._most, _anonymous() + self._step)


def _anonymous() -> int:
    """Bytes of this process that are no file's."""
    _, resident, shared, *_ = _STATM.read_text(encoding="ascii").split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's; None where there is none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
