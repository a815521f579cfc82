"""Resident anonymous memory of this process, for programs that tests run in processes of
their own.
"""

import ctypes
import gc
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

STATUS = Path("/proc/self/status")


def anonymous() -> int:
    """Bytes that this process holds (RssAnon); what the allocator still holds is handed back by
    :func:`settled`.
    """
    lines = STATUS.read_text(encoding="utf8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def settled() -> int:
    """The same, if no unneeded tensors are kept."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return anonymous()


def holes(n_blocks: int) -> list[torch.Tensor]:
    """Every second of so many blocks of 0.25 to 4 MB: as long as they are kept, the heap has holes
    between them.

    A loop over requests of ever other sizes finds other holes each time, and glibc keeps the pages
    that were touched.
    """
    # A block of this size that is freed raises the size up to which glibc takes blocks from the
    # heap.
    torch.empty(31 * 2**20, dtype=torch.uint8)
    rng = random.Random(0)
    blocks = [
        torch.empty(rng.randrange(2**18, 2**22), dtype=torch.uint8).fill_(1)
        for _ in range(n_blocks)
    ]
    return blocks[::2]


def told_by(program: str, *args: str) -> Any:
    """Run a program in a process of its own and return the JSON that it prints."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most, every three milliseconds, above the value at the beginning; in the list when the
    ``with`` block ends.
    """
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
