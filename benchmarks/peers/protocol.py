"""How the driver and a worker process talk: one JSON line for a job, one JSON line for what it gave and cost.

A job file holds the cells, and what makes anchorlens's own sweep measure just these:

    {"layers": [0, 1, ...], "places": ["question", "question:null", ...],
     "rows": [{"ids": [...], "donor_ids": [...], "read": position, "token": id,
               "target": {"question": [...], ...}, "source": {"question": [...], ...}, "example": ..., "donor": ...}],
     "sweep": {"dataset": ..., "examples": [...], "arguments": {...}}}

For each place, each row that has it and each layer: the stream that enters the block at ``target`` positions of ``ids`` is
replaced by that of a plain run of ``donor_ids`` at ``source`` positions, slot by slot, and P of ``token`` is read at position
``read``. Rows are ragged. A place is an anchor, or its null (``question:null``), which not every row has.

The answer: ``seconds`` of the clock, ``cpu_seconds`` of all threads, ``p_before`` [row], ``p`` {place: [layer][row that has it]},
``peak_mib``. The time holds everything that a sweep needs once model and questions are in memory, clean runs of bases and donors
too. Nothing heavy is imported here: this file runs in the environment of every peer.
"""

import contextlib
import ctypes
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TextIO

Job = dict[str, Any]

_STATUS = Path("/proc/self/status")
_EVERY_S = 0.005
_MIB = 1024


@dataclass
class Sweep:
    """What one sweep gives.

    Attributes:
        p_before: P of the clean run, [row].
        p: Place -> P of the changed runs, [layer][row that has the place].
    """

    p_before: list[float]
    p: dict[str, list[list[float]]] = field(default_factory=dict)


class Engine(Protocol):
    """A module ``worker_NAME``."""

    LIBRARIES: tuple[str, ...]

    def load(self, directory: Path) -> Any:
        """The model, from a Hugging Face directory; called once."""
        ...

    def run(self, model: Any, job: Job) -> Sweep:
        """One sweep."""
        ...


def serve(engine: Engine, directory: Path, answers: TextIO) -> None:
    """Answer jobs from stdin until it ends; first a line that says that the model is loaded, and the libraries' versions."""
    imported = _anonymous_kib()
    model = engine.load(directory)
    _say(answers, {"ready": True, "versions": {name: metadata.version(name) for name in engine.LIBRARIES}})
    warmed: set[str] = set()
    for line in sys.stdin:
        name = json.loads(line)["job"]
        job: Job = json.loads(Path(name).read_text())
        if name not in warmed:  # first use of these shapes: thread pools, kernels and lazy imports are nobody's sweep time
            engine.run(model, {**job, "layers": job["layers"][:1]})
            warmed.add(name)
        _say(answers, _measure(lambda job=job: engine.run(model, job), imported))


def _measure(sweep: Callable[[], Sweep], imported: int | None) -> dict[str, object]:
    _hand_back_memory()
    with PeakMemory() as memory:
        started, cpu = time.perf_counter(), time.process_time()
        out = sweep()
        cpu_seconds, seconds = time.process_time() - cpu, time.perf_counter() - started
    return {
        "seconds": seconds, "cpu_seconds": cpu_seconds, "p_before": out.p_before, "p": out.p, "peak_mib": memory.peak_mib,
        "with_model_mib": memory.highest_above(imported),
    }  # fmt: skip


def private_stdout() -> TextIO:
    """The real stdout, for answers alone: whatever a library prints, from Python or from C, goes to stderr."""
    kept = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return kept


def _say(answers: TextIO, line: dict[str, object]) -> None:
    answers.write(json.dumps(line) + "\n")
    answers.flush()


def _hand_back_memory() -> None:
    """Freed memory that the allocator still holds would hide what the next sweep takes."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class PeakMemory:
    """Highest resident anonymous memory inside the block, above its value at the start.

    Anonymous: weights that are mapped from a file are in memory once for all processes and come and go as the system likes.

    Attributes:
        peak_mib: MiB; None where the system does not tell.
    """

    def __init__(self) -> None:
        self.peak_mib: float | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._start = self._highest = _anonymous_kib()
        if self._start is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._start is not None and self._highest is not None:
            self._thread.join()
            self.peak_mib = (self._highest - self._start) / _MIB

    def highest_above(self, kib: int | None) -> float | None:
        """MiB of the peak above a value of before."""
        return None if kib is None or self._highest is None else (self._highest - kib) / _MIB

    def _watch(self) -> None:
        while not self._done.wait(_EVERY_S):
            self._highest = max(self._highest or 0, _anonymous_kib() or 0)


def _anonymous_kib() -> int | None:
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return None
