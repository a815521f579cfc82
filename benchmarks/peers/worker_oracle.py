"""The reference engine of anchorlens alone."""

from alone import engine_alone, load
from ours import LIBRARIES
from protocol import Job, Sweep

from anchorlens.models.adapter import Adapter


def run(model: Adapter, job: Job) -> Sweep:
    return engine_alone(model, job, "reference")


__all__ = ["LIBRARIES", "load", "run"]
