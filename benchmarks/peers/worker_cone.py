"""anchorlens, engine ``cone``."""

from ours import LIBRARIES, load, sweep_job
from protocol import Job, Sweep

from anchorlens.models.adapter import Adapter


def run(model: Adapter, job: Job) -> Sweep:
    return sweep_job(model, job, "cone")


__all__ = ["LIBRARIES", "load", "run"]
