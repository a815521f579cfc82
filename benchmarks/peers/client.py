"""The driver's side of a worker process; :mod:`protocol` is the worker's side."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from peers.environments import (
    ROOT,
    Environment,
    clean_environment,
    peer_environment,
    project_environment,
)

NAMES = {
    "sweep": "anchorlens swap_sweep",
    "cone": "anchorlens, engine alone",
    "careful": "TransformerLens, careful",
    "batched": "the same, in one batch",
    "transformer_lens": "generic_activation_patch",
    "oracle": "anchorlens, reference engine",
    "hf": "Hugging Face hooks",
    "nnsight": "nnsight",
    "pyvene": "pyvene",
}
ENGINES = tuple(NAMES)
MAIN = ENGINES[:5]
"""Engines that take part in every case."""
_SCRIPT = Path(__file__).with_name("worker.py")


class WorkerError(Exception):
    """A worker died; the message is its last line of output."""


def environment_of(engine: str) -> Environment:
    """Return the environment of an engine."""
    return (
        peer_environment(engine) if engine in ("nnsight", "pyvene") else project_environment(engine)
    )


class Worker:
    """One engine with a loaded model, in its own process; it computes only while a job is measured.

    Args:
        engine: A name of :data:`ENGINES`.
        environment: Environment of the process.
        directory: Folder of the model.

    Attributes:
        versions: Versions of the libraries that it uses.

    Raises:
        WorkerError: If it does not start.
    """

    def __init__(self, engine: str, environment: Environment, directory: Path) -> None:
        self.engine = engine
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - open as long as the process
        # Threads that spin while waiting would take cores from the worker that computes.
        waiting = {
            "OMP_WAIT_POLICY": "PASSIVE",
            "GOMP_SPINCOUNT": "0",
            "TQDM_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        own = dict(os.environ) if engine not in ("nnsight", "pyvene") else clean_environment()
        self._process = subprocess.Popen(
            [environment.python, str(_SCRIPT), engine, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**own, **waiting},
        )
        self.versions: dict[str, str] = self._answer()["versions"]

    def measure(self, job: Path) -> dict[str, Any]:
        """Return seconds, P and memory of one sweep, as reported by the worker.

        Raises:
            WorkerError: If the worker died.
        """
        assert self._process.stdin is not None  # a pipe
        try:
            self._process.stdin.write(json.dumps({"job": str(job)}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the error message is in the log
        return self._answer()

    def close(self) -> None:
        """End the process by closing its input."""
        assert self._process.stdin is not None  # a pipe
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # a pipe
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._log.seek(0)
        words = [text.strip() for text in self._log.read().splitlines() if text.strip()]
        raise WorkerError(
            (words[-1] if words else f"exit code {self._process.returncode}").replace(
                str(ROOT), "."
            )
        )
