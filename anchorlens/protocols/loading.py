"""A run directory becomes results again, each with its protocol."""

import os

from anchorlens.protocols.keeping import load_sweeps
from anchorlens.protocols.registry import protocol_of
from anchorlens.results.sweep import SweepResult


def load_run(path: "str | os.PathLike[str]") -> list[SweepResult]:
    """Read every sweep of a run directory.

    Args:
        path: The directory.

    Returns:
        The results as they were measured, in the order of the run; a directory of one sweep gives a list of one.

    Raises:
        RunError: There is no run, it cannot be read, a table is missing, or another version of the schema wrote it.
    """
    return load_sweeps(path, protocol_of)


__all__ = ["load_run"]
