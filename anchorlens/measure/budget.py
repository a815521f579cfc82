"""Memory of a sweep: its predicted cost, and batches that fit.

Where one does not fit after all, it is split; freed memory is returned to the system.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from pydantic import ByteSize

from anchorlens.display import warn
from anchorlens.engine.cost import (
    FULL_PASSES,
    GroupSize,
    PassSize,
    estimate_seconds,
    out_of_memory,
    rows_bytes,
    rows_flops,
)
from anchorlens.engine.engine import Engine
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.models.devices import free_memory

# Bytes per row of samples.parquet while rows are collected, and while they are sorted.
_ROW_BYTES = 320
_ORDERED_BYTES = 700

# Rows of one checked cell in a pass: clean, donor, changed.
_CHECK_ROWS = 3
# Share of the work of a sweep that its checked cells take where their number is not given, and
# limits of it.
_CHECK_SHARE = 0.05
_LEAST_CHECKS = 2
_MOST_CHECKS = 64
# Checked cells in one pass, if memory allows; more are not faster.
_CHECKED_AT_ONCE = 8

Item = TypeVar("Item")


def count_check_rows(cells: int, rows: int) -> int:
    """Return the largest number of rows of a pass over checked cells of ``rows`` rows: the changed
    ones, and each clean row and donor once.
    """
    return cells + (_CHECK_ROWS - 1) * min(cells, rows)


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """Predicted cost of a sweep.

    Attributes:
        engine: ``cone`` or ``reference``.
        reason: Reason for the reference engine although ``cone`` was requested; empty otherwise.
        batch_sizes: Number of rows of each batch, in execution order.
        questions: Number of measured rows.
        cells: Number of cells (row, anchor or cut, layer, donor, control).
        flops: Predicted multiplications and additions.
        seconds: Predicted time, from the rate of a matrix product measured while planning.
        peak_bytes: Predicted peak memory beside the model.
        pass_bytes: Predicted peak memory of the largest pass.
        max_memory: Memory limit of the user, in bytes; None without one.
        weight_reads: Number of times that the weights of a streamed model are read; 0 if they are
            in memory.
        weight_bytes: Total bytes of weights that are read.
        n_devices: Number of devices of the model; memory is per device.
        checks: Number of cells that the reference engine measures again.
        memory: Terms of ``peak_bytes`` by name.
    """

    engine: str
    reason: str
    batch_sizes: tuple[int, ...]
    questions: int
    cells: int
    flops: float
    seconds: float
    peak_bytes: int
    pass_bytes: int
    max_memory: int | None
    weight_reads: int = 0
    weight_bytes: int = 0
    n_devices: int = 1
    checks: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the plan for ``run.json``."""
        streamed = (
            {"weight_reads": self.weight_reads, "weight_bytes": self.weight_bytes}
            if self.weight_reads
            else {}
        )
        spread = {"n_devices": self.n_devices} if self.n_devices > 1 else {}
        return {
            "engine": self.engine,
            "reason": self.reason,
            "batches": list(self.batch_sizes),
            "cells": self.cells,
            "gflop": round(self.flops / 1e9, 3),
            "peak_bytes": self.peak_bytes,
            "memory": dict(self.memory),
            "max_memory": self.max_memory,
            **streamed,
            **spread,
        }

    @property
    def memory_text(self) -> str:
        """Describe the memory beside the model, largest term first."""
        terms = sorted(self.memory.items(), key=lambda term: -term[1])
        return ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in terms)

    def __str__(self) -> str:
        why = (
            f" ({self.reason or 'one full pass for each cell'})"
            if self.engine == "reference"
            else ""
        )
        read = (
            f"; weights read {self.weight_reads} times, {self.weight_bytes / 1e9:,.1f} GB"
            if self.weight_reads
            else ""
        )
        where = (
            f"on each of {self.n_devices} devices beside the model"
            if self.n_devices > 1
            else "beside the model"
        )
        return (
            f"{self.questions} rows, {self.cells:,} cells in {len(self.batch_sizes)} batches;"
            f" engine {self.engine}{why}; about {self.flops / 1e9:,.0f} GFLOP,"
            f" {self.seconds:,.{0 if self.seconds > 10 else 1}f} s, at most"
            f" {self.peak_bytes / 1e6:,.0f} MB"
            f" {'with two layers' if self.weight_reads else where}{read}"
        )


@dataclass(frozen=True)
class MemoryBudget:
    """Memory limits of a sweep.

    Attributes:
        engine: Engine of the sweep.
        max_memory: Bytes that the sweep may take beside the model. If None, passes may take half
            of the free memory.
        batch_size: Rows of a pass. If None, as many as fit.
        n_sample_rows: Number of rows of the samples.
        stored_bytes: Bytes of stored states.
        vocab_rows: Rows of logits over the whole vocabulary that a full forward pass of checked
            cells holds at once beside one for each row; if None, eight for each row.
    """

    engine: Engine
    max_memory: int | None
    batch_size: int | None
    n_sample_rows: int
    stored_bytes: int = 0
    vocab_rows: int | None = None

    @property
    def budget(self) -> int:
        """Maximum bytes of a pass: the limit of the user, or half of the free memory, minus stored
        states and tables.
        """
        total = (
            self.max_memory - _ROW_BYTES * self.n_sample_rows
            if self.max_memory
            else free_memory(self.engine.adapter.devices) // 2
        )
        return total - self.stored_bytes - self.engine.adapter.shape.peak_weight_bytes

    def rows(self, width: int, lanes: int = 0) -> int:
        """Return the maximum number of rows of ``width`` tokens in a pass.

        ``lanes``: windows of layers that are cut in parallel.
        """
        if self.batch_size is not None:
            return self.batch_size
        budget = self.budget

        def fit(rows: int) -> bool:
            size = _pass_size(rows, width, lanes)
            return (
                not self.engine.saturates(size, lanes)
                and self.engine.pass_bytes(size, lanes) <= budget
            )

        rows = 1
        step = 1
        while fit(rows + step):  # exponential search, because memory alone may allow very many rows
            rows += step
            step *= 2
        while step > 1:
            step //= 2
            if fit(rows + step):
                rows += step
        return rows

    def terms_of(self, rows: int, width: int, lanes: int = 0) -> dict[str, int]:
        """Return upper estimates of the bytes of a pass by name; arguments as in :meth:`rows`."""
        return self.engine.pass_terms(_pass_size(rows, width, lanes), lanes)

    def peak(self, passes: int) -> int:
        """Return the peak bytes of a sweep.

        ``passes``: bytes of the largest pass.

        Raise InputError if beyond ``max_memory``.
        """
        kept = self.stored_bytes + self.engine.adapter.shape.peak_weight_bytes
        peak = (
            max(passes + _ROW_BYTES * self.n_sample_rows, _ORDERED_BYTES * self.n_sample_rows)
            + kept
        )
        if self.max_memory is not None and peak > self.max_memory:
            raise InputError(
                f"max_memory={ByteSize(self.max_memory).human_readable(decimal=True)}: with the"
                f" smallest batches this sweep needs about {peak / 1e6:.0f} MB beside the model."
                " Give at least that, or measure fewer questions, layers or donors at a time.",
                argument="max_memory",
            )
        return peak

    def _rows_bytes(self, rows: int, width: int) -> int:
        """Return an upper estimate of the memory of a full forward pass of checked cells."""
        vocab_rows = None if self.vocab_rows is None else self.vocab_rows + rows
        return rows_bytes(self.engine.adapter.shape, rows, width, vocab_rows)

    def _other_terms(self, size: int) -> dict[str, int]:
        """Return the terms of a peak beside the passes, ``size`` bytes together."""
        kept = {"stored states": self.stored_bytes}
        kept["streamed layers"] = self.engine.adapter.shape.peak_weight_bytes
        every = {"samples": size - sum(kept.values())} | kept
        return {name: size for name, size in every.items() if size}

    def plan(
        self,
        sizes: Sequence[int],
        *,
        rows: int,
        cells: int,
        flops: float,
        largest_pass: int,
        width: int,
        checks: int | None,
        n_passes: int | None = None,
        more_passes: int = 0,
        terms: Mapping[str, int] | None = None,
        n_pairs: int | None = None,
    ) -> SweepPlan:
        """Predict the cost of a sweep.

        Args:
            sizes: Number of rows of each batch.
            rows: Number of measured rows.
            cells: Number of cells.
            flops: Floating-point operations without spot checks.
            largest_pass: Bytes of the largest pass.
            width: Tokens of the longest row.
            checks: Number of checked cells; if None, as many as take a fixed share of the work.
            n_passes: Number of times that the batches read all weights; if None, one per batch.
            more_passes: Full forward passes beside those of the batches.
            terms: Terms of ``largest_pass`` by name; None if there is one.
            n_pairs: Number of different rows with their donors; if None, ``rows``.
        """
        engine, adapter = self.engine, self.engine.adapter
        if checks is None:
            share = int(_CHECK_SHARE * flops / rows_flops(adapter.shape, _CHECK_ROWS, width))
            checks = min(_MOST_CHECKS, max(_LEAST_CHECKS, share))
        flops += rows_flops(adapter.shape, _CHECK_ROWS * checks, width)
        terms = {"pass": largest_pass} if terms is None else dict(terms)
        if checks:
            # Half of the cells are checked after the first batches, if there are others.
            is_alone = (n_passes or len(sizes)) == 1
            cells_at_once = min(checks if is_alone else checks - checks // 2, _CHECKED_AT_ONCE)
            together = self._rows_bytes(count_check_rows(cells_at_once, n_pairs or rows), width)
            own = max(self._rows_bytes(1, width), min(together, self.budget))
            if own > largest_pass:
                largest_pass = own
                terms = {FULL_PASSES: own}
        peak = self.peak(largest_pass)
        seconds = estimate_seconds(adapter.shape, adapter.device, flops)
        plan = SweepPlan(
            engine=engine.name,
            reason=engine.reason,
            batch_sizes=tuple(sizes),
            questions=rows,
            cells=cells,
            flops=flops,
            seconds=seconds,
            peak_bytes=peak,
            pass_bytes=largest_pass,
            max_memory=self.max_memory,
            n_devices=len(adapter.devices),
            checks=checks,
            memory=terms | self._other_terms(peak - largest_pass),
        )
        streamed = adapter.shape.streamed
        if streamed is None:
            return plan
        cells_per_row = -(-cells // max(1, sum(sizes)))
        n_batches = len(sizes)
        if n_passes is not None and engine.name != ReferenceEngine.name:
            n_batches = n_passes
        reads = more_passes + self._reads(n_batches, cells_per_row, checks, width)
        # Reading weights and computing overlap.
        seconds = max(seconds, reads * streamed.read_bytes / streamed.rate)
        return replace(
            plan, seconds=seconds, weight_reads=reads, weight_bytes=reads * streamed.read_bytes
        )

    def _reads(self, batches: int, cells: int, checks: int, width: int) -> int:
        """Return the number of passes through all layers: batches, common prefix, checked cells and
        their prefixes.

        A batch of the reference engine takes one pass per cell of a row, one for the donors and a
        clean one.
        """
        passes = batches * (cells + 2) if self.engine.name == ReferenceEngine.name else batches + 1
        shape = self.engine.adapter.shape
        at_once = max(
            1, min(_CHECKED_AT_ONCE, self.budget // rows_bytes(shape, _CHECK_ROWS, width))
        )
        return passes + 2 * -(-checks // at_once)


def _pass_size(rows: int, width: int, lanes: int) -> PassSize:
    """Return the size of a pass over rows of equal width; if edges are cut, with three cuts per row
    and window.
    """
    cut = GroupSize(rows * width, rows, width, width)
    return PassSize(
        clean_tokens=rows * width,
        clean_rows=rows,
        clean_keys=width,
        cell_groups=(cut,) * (3 if lanes else 0),
        reads=rows,
    )


def halves(items: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    """Split into two halves; the first may be longer by one."""
    middle = (len(items) + 1) // 2
    return items[:middle], items[middle:]


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


U = TypeVar("U", bound=Unit)


@dataclass(frozen=True)
class UnitGroup(Generic[U]):
    """Units that run through the layers together, so that each weight is read from memory once."""

    parts: tuple[U, ...]

    @property
    def work(self) -> float:
        """Amount of work, in the unit of the progress bar."""
        return sum(part.work for part in self.parts)

    def split(self) -> "tuple[UnitGroup[U], ...]":
        """Split the units in halves, else the only unit; () if that one cannot be split."""
        first, *others = self.parts
        if others:
            return tuple(UnitGroup(tuple(half)) for half in halves(self.parts))
        parts: Any = first.split()  # of the same kind
        return tuple(UnitGroup((part,)) for part in parts)


# Fraction of the allowed memory above which freed pages are returned. Peaks with 57 MB planned in a
# fragmented heap: 37 to 47 MB with 1/5, 43 to 59 MB with 1/3 and 1/8. CPU time is the same.
_FULL = 1 / 5
_STATM = Path("/proc/self/statm")


class Attempt(Generic[U]):
    """Unit that is measured in a ``with`` statement, which ends without an error if memory runs out
    and the unit can be split.

    Attributes:
        parts: Parts to measure instead; () if the unit was measured.
    """

    def __init__(self, unit: U) -> None:
        self._unit = unit
        self.parts: tuple[U, ...] = ()

    def __enter__(self) -> U:
        return self._unit

    def __exit__(self, kind: object, why: BaseException | None, trace: object) -> bool:
        if not isinstance(why, (RuntimeError, MemoryError)) or not out_of_memory(why):
            return False
        parts: Any = self._unit.split()  # of the same kind
        self.parts = tuple(parts)
        return bool(parts)


@dataclass
class OomSplitter:
    """Measures units, in parts if memory runs out, and counts the splits.

    Example:
        >>> for attempt in splitter.attempts(unit):  # doctest: +SKIP
        ...     with attempt as part:
        ...         results.append(measure(part))
    """

    device: torch.device
    splits: int = 0

    def attempts(self, unit: U) -> Iterator[Attempt[U]]:
        """Yield a unit; if memory runs out in its ``with`` statement, its parts in their order."""
        waiting = [unit]
        while waiting:
            attempt = Attempt(waiting.pop(0))
            yield attempt
            # After the statement, so that the memory of the failed pass is freed.
            if attempt.parts:
                waiting[:0] = attempt.parts
                self._note_split()

    def _note_split(self) -> None:
        self.splits += 1
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.splits == 1:
            warn(
                "Memory ran out: batches that do not fit are split. Set max_memory= to plan smaller"
                " batches."
            )


class MallocTrimmer:
    """Returns freed memory of this process to the system when it holds more than planned.

    glibc keeps the pages of freed small blocks: a sweep limited to 64 MB held 140 MB. Has no effect
    outside Linux, with other C libraries, or on accelerators.
    """

    def __init__(self, device: torch.device, allowed: int) -> None:
        self._trim = _malloc_trim() if device.type == "cpu" and _STATM.exists() else None
        held = 0 if self._trim is None else _anonymous()
        self._most = held + int(_FULL * allowed)
        self._full = self._most
        self._step = allowed // 16

    def trim(self) -> None:
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
