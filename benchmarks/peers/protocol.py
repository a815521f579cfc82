"""Protocol of driver and worker process: one JSON line per job, and one JSON line with its results
and cost.

A job file has the cells, and the arguments with which ``swap_sweep`` measures the same cells:

    {"layers": [0, 1, ...], "places": ["exact_question", "exact_question:null", ...],
     "rows": [{"ids": [...], "donor_ids": [...], "read": position, "token": id,
               "target": {"exact_question": [...], ...}, "source": {"exact_question": [...], ...},
               "example": ..., "donor": ...}],
     "sweep": {"dataset": ..., "examples": [...], "arguments": {...}}}

A place is an anchor, or its null (``exact_question:null``), which not every row has. For each
place, row and layer, ``resid_pre`` at the ``target`` positions of ``ids`` is replaced by that at
the ``source`` positions of ``donor_ids``, from a clean run. P of ``token`` is read at position
``read``. Rows are ragged.

The answer has ``seconds`` (wall clock), ``cpu_seconds`` of all threads, ``p_before`` [row], ``p``
{place: [layer][row that has it]} and ``peak_mib``. The time includes everything after loading model
and questions, also clean runs of bases and donors. This file has no heavy imports, because it runs
in the environment of every peer.
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
    """Results of one sweep.

    Attributes:
        p_before: P of the clean run, [row].
        p: Place -> P of the changed runs, [layer][row that has the place].
    """

    p_before: list[float]
    p: dict[str, list[list[float]]] = field(default_factory=dict)


class Engine(Protocol):
    """Interface of a module ``worker_NAME``."""

    LIBRARIES: tuple[str, ...]

    def load(self, directory: Path) -> Any:
        """Load the model from a Hugging Face directory; called once."""
        ...

    def run(self, model: Any, job: Job) -> Sweep:
        """Run one sweep."""
        ...


def serve(engine: Engine, directory: Path, answers: TextIO) -> None:
    """Write a line with the libraries' versions once the model is loaded, then answer jobs from
    stdin until it ends.
    """
    imported = _anonymous_kib()
    model = engine.load(directory)
    _say(
        answers,
        {"ready": True, "versions": {name: metadata.version(name) for name in engine.LIBRARIES}},
    )
    warmed: set[str] = set()
    for line in sys.stdin:
        name = json.loads(line)["job"]
        job: Job = json.loads(Path(name).read_text())
        if name not in warmed:  # warm-up: thread pools, kernels and lazy imports are not timed
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
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "p_before": out.p_before,
        "p": out.p,
        "peak_mib": memory.peak_mib,
        "with_model_mib": memory.highest_above(imported),
    }


def private_stdout() -> TextIO:
    """Return the real stdout for answers; output of libraries, from Python or C, is redirected to
    stderr.
    """
    kept = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return kept


def _say(answers: TextIO, line: dict[str, object]) -> None:
    answers.write(json.dumps(line) + "\n")
    answers.flush()


def _hand_back_memory() -> None:
    """Return freed memory to the system, because memory that the allocator keeps would hide the use
    of the next sweep.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class PeakMemory:
    """Highest resident anonymous memory inside the block, above its value at the start.

    Weights that are mapped from a file do not count: all processes share them, and the system may
    release them.

    Attributes:
        peak_mib: Peak in MiB; None if the system does not report it.
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
        """Return the peak in MiB above an earlier value in KiB."""
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
