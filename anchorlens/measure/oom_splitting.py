"""Keep a sweep within its planned memory: split units that do not fit, and return freed memory to
the system.
"""

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
    """Interface of rows that are measured and stored together."""

    @property
    def work(self) -> float:
        """Amount of work, in the unit of the progress bar."""
        ...

    def split(self) -> "Sequence[Unit]":
        """Return smaller units for use after out of memory; () if the unit cannot be split."""
        ...


# Fraction of the allowed memory above which freed pages are returned. Peaks with 57 MB planned in a
# fragmented heap: 37 to 47 MB with 1/5, 43 to 59 MB with 1/3 and 1/8. CPU time is the same.
_FULL = 1 / 5
_STATM = Path("/proc/self/statm")

U = TypeVar("U", bound=Unit)
T = TypeVar("T")


@dataclass
class OomSplitter:
    """Measures units, in parts if memory runs out, and counts the splits."""

    device: torch.device
    splits: int = 0

    def measure_or_split(self, measure: Callable[[U], T], unit: U) -> list[T]:
        """Return the result of a unit, or the results of its parts if memory runs out."""
        try:
            return [measure(unit)]
        except (RuntimeError, MemoryError) as why:
            parts = unit.split()
            if not out_of_memory(why) or not parts:
                raise
        # Outside the handler, so that the memory of the failed pass is freed before its parts
        # start.
        self.splits += 1
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.splits == 1:
            warn(
                "Memory ran out: batches that do not fit are split. Set max_memory= to plan smaller"
                " batches."
            )
        results: list[T] = []
        for part in parts:
            results += self.measure_or_split(measure, part)  # pyright: ignore[reportArgumentType]
        return results


class MallocTrimmer:
    """Returns freed memory of this process to the system when it holds more than planned.

    glibc keeps the pages of freed small blocks: a sweep limited to 64 MB held 140 MB. Has no effect
    outside Linux, with other C libraries, or on accelerators.
    """

    def __init__(self, device: torch.device, allowed: int) -> None:
        self._trim = _malloc_trim() if device.type == "cpu" and _STATM.exists() else None
        self._most = self._full = (0 if self._trim is None else _anonymous()) + int(_FULL * allowed)
        self._step = allowed // 16

    def look(self) -> None:
        """Return freed memory to the system if the process holds too much; takes microseconds, so
        call it often.
        """
        if self._trim is None or _anonymous() < self._full:
            return
        self._trim(0)
        # Memory in use cannot be returned, so the threshold is raised above it.
        self._full = max(self._most, _anonymous() + self._step)


def _anonymous() -> int:
    """Return the resident bytes of this process that are not mapped files."""
    _, resident, shared, *_ = _STATM.read_text(encoding="ascii").split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return ``malloc_trim`` of glibc; None without it."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
