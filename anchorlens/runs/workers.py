"""Workers in processes of their own, on this machine or on others, with Ray: the extra ``[ray]``."""

from dataclasses import dataclass
from typing import Any

from anchorlens.errors import InputError
from anchorlens.kinds import described


@dataclass(frozen=True)
class RayExecutor:
    """Workers that Ray runs, each with a model of its own.

    Attributes:
        workers: How many; None: as many as there is room for.
        address: Of a Ray cluster that runs (``"auto"`` finds one); None starts one on this machine, which ends with the run.
        gpus_per_worker: A part of one, one or several; None: one where there is any and no other device is asked for.
    """

    workers: int | None = None
    address: str | None = None
    gpus_per_worker: float | None = None


def executor_of(given: Any) -> RayExecutor | None:
    """``"ray"`` or an executor; None where this process measures.

    Raises:
        InputError: It is neither.
    """
    if given is None or isinstance(given, RayExecutor):
        return given
    if given == "ray":
        return RayExecutor()
    raise InputError(f"executor takes 'ray' or an al.RayExecutor, got {described(given)}.")


__all__ = ["RayExecutor", "executor_of"]
