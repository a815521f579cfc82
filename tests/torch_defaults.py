"""Torch's defaults as a user may have set them: numbers must not depend on them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def float64() -> Iterator[None]:
    """New tensors are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# On "meta" a table that forgot where it lies has no values at all.
OTHER_DEFAULTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "float64": float64,
    "meta": lambda: torch.device("meta"),
}
