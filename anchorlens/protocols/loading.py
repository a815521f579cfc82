"""A run directory becomes results again, each with its protocol."""

import os

from anchorlens.protocols.keeping import load_sweeps
from anchorlens.protocols.registry import protocol_of
from anchorlens.results.sweep import SweepResult


def load_run(path: "str | os.PathLike[str]") -> list[SweepResult]:
    """Read every sweep of a run directory.

    Raises:
        RunError: See :func:`anchorlens.runs.store.read_record`.
    """
    return load_sweeps(path, protocol_of)


__all__ = ["load_run"]
