"""anchorlens, ``swap_sweep`` with its defaults."""

from ours import LIBRARIES, default_sweep, load
from protocol import Job, Sweep

from anchorlens.models.adapter import Adapter


def run(model: Adapter, job: Job) -> Sweep:
    return default_sweep(model.model, job)


__all__ = ["LIBRARIES", "load", "run"]
