"""Who measures a run: one process all of it, or several a share each.

``OUT.parts/lock`` is held by who opens the run, and kept by a process that measures all of it. A job that measures a share keeps
``lock-2-of-8`` instead. The system lets go of a lock when its process ends, in whatever way.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from anchorlens.errors import RunError
from anchorlens.runs.shares import Share

LOCK = "lock"
# Who asks for a run's status holds its locks for a moment, and jobs that begin together open the run one after the other.
_PATIENCE = 1.0
_PATIENCE_OF_JOBS = 10.0


@contextmanager
def opening(folder: Path, target: Path, share: Share | None) -> Iterator[FileLock]:
    """The run is this process's alone while it looks at what is there; released at the end of the block unless it is kept.

    Raises:
        RunError: Another process measures all of it, jobs measure shares of it while all is asked for, or it cannot be written.
    """
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_PATIENCE if share is None else _PATIENCE_OF_JOBS)
    except Timeout as why:
        raise RunError(
            f"Another process is measuring {target}: it holds {folder / LOCK}. Wait for it, stop it, or choose another path."
        ) from why
    except OSError as why:
        raise RunError(f"{folder} cannot be written ({why.strerror}). Choose another path.") from why
    try:
        if share is None and (jobs := alive(folder)):
            raise RunError(
                f"{'Job' if len(jobs) == 1 else 'Jobs'} {', '.join(map(str, jobs))} of {target} "
                f"{'is' if len(jobs) == 1 else 'are'} measuring. Wait for them, stop them, or choose another path."
            )
        yield lock
    finally:
        lock.release()


def taken(folder: Path, target: Path, share: Share) -> FileLock:
    """The lock of a share, held.

    Raises:
        RunError: Another process measures it.
    """
    lock = FileLock(folder / f"{LOCK}-{share.name}")
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout as why:
        raise RunError(
            f"Another process is job {share} of {target}: it holds {lock.lock_file}. Wait for it, stop it, or give another shard=."
        ) from why
    return lock


def alive(folder: Path, besides: Share | None = None) -> list[Share]:
    """The jobs that measure now, but for one."""
    names = (re.fullmatch(rf"{LOCK}-(\d+)-of-(\d+)", file.name) for file in folder.glob(f"{LOCK}-*"))
    shares = sorted((int(found[2]), int(found[1])) for found in names if found)
    return [share for n, i in shares if (share := Share(i, n)) != besides and held(folder / f"{LOCK}-{share.name}")]


def held(file: Path) -> bool:
    """Whether a process holds a lock now."""
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


__all__ = ["LOCK", "alive", "held", "opening", "taken"]
