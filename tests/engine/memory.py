"""Resident anonymous memory of this process, for programs that tests run in processes of their own."""

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATUS = Path("/proc/self/status")


def anonymous() -> int:
    """Bytes that this process holds (RssAnon); what the allocator still holds is handed back by :func:`settled`."""
    lines = STATUS.read_text(encoding="utf8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def settled() -> int:
    """The same, when nothing is kept that nobody wants."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return anonymous()


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most, every three milliseconds, above the value at the beginning; in the list when the ``with`` block ends."""
    start = highest = settled()
    done, found = threading.Event(), []

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.003):
            highest = max(highest, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        found.append(highest - start)
