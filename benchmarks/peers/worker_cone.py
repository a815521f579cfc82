"""anchorlens, engine ``cone`` alone."""

from ours import LIBRARIES, engine_alone, load
from protocol import Job, Sweep

from anchorlens.models.adapter import Adapter


def run(model: Adapter, job: Job) -> Sweep:
    return engine_alone(model, job, "cone")


__all__ = ["LIBRARIES", "load", "run"]
