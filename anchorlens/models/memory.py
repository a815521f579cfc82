"""Free memory of the devices that hold a model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import psutil
import torch

_fixed: ContextVar[int | None] = ContextVar("free memory", default=None)


@contextmanager
def fix_free_memory(free: int) -> Iterator[None]:
    """Fix the result of :func:`free_memory` during a ``with`` statement, because rounding depends
    on batch sizes.
    """
    token = _fixed.set(free)
    try:
        yield
    finally:
        _fixed.reset(token)


def free_memory(devices: Sequence[torch.device]) -> int:
    """Return the free bytes of the fullest of these devices, or the value of
    :func:`fix_free_memory`.
    """
    fixed = _fixed.get()
    return min(map(_free, devices)) if fixed is None else fixed


def _free(device: torch.device) -> int:
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    free, total = torch.cuda.mem_get_info(device)
    used = torch.cuda.memory_allocated(device)
    # PyTorch keeps blocks that were freed, and may be limited to a share of the card.
    kept = torch.cuda.memory_reserved(device) - used
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total
    return int(min(free + kept, allowed - used))
