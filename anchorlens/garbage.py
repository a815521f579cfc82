"""Pause the search for cyclic garbage where many objects are made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collection() -> Iterator[None]:
    """Pause the search for cyclic garbage in a block that makes many objects without cycles.

    Python searches all living objects again and again while their number grows: 16 % of the time of
    planning 8,000 questions.

    Example:
        >>> with pause_collection():
        ...     rows = [{"number": i} for i in range(100_000)]
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
