"""Locks of a run: a process that measures all holds ``OUT.parts/lock``, one that measures a share ``OUT.parts/lock-2-of-8``.

The system releases a lock when its process ends.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from anchorlens.errors import RunError
from anchorlens.runs.files import LOCK
from anchorlens.runs.jobs import Share

# Seconds: `status`, and jobs that begin, hold a lock for a moment while they look whether it is free.
_PATIENCE = 1.0


@contextmanager
def lock_run(folder: Path, target: Path, share: Share | None) -> Iterator[None]:
    """Hold the lock of a run, or of a share of it."""
    whole = FileLock(folder / LOCK)
    own = whole if share is None else FileLock(folder / f"{LOCK}-{share.name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own.acquire(timeout=_PATIENCE)
    except Timeout as why:
        raise _taken(target if share is None else f"share {share} of {target}", own) from why
    except OSError as why:
        raise RunError(f"{folder} cannot be written ({why.strerror}). Choose another path.") from why
    try:
        if share is None and (jobs := running_jobs(folder)):
            raise RunError(
                f"Jobs {', '.join(map(str, jobs))} of {target} are measuring. Wait for them, stop them, or choose another path."
            )
        if share is not None:
            try:
                whole.acquire(timeout=_PATIENCE)
            except Timeout as why:
                raise _taken(target, whole) from why
            whole.release()
        yield
    finally:
        own.release()


def _taken(what: object, lock: FileLock) -> RunError:
    where = f"it holds {lock.lock_file}. Wait for it, stop it, or choose another path or shard=."
    return RunError(f"Another process is measuring {what}: {where}")


def running_jobs(folder: Path) -> list[Share]:
    names = (re.fullmatch(rf"{LOCK}-(\d+)-of-(\d+)", file.name) for file in folder.glob(f"{LOCK}-*"))
    shares = [Share(int(found[1]), int(found[2])) for found in names if found]
    return sorted(
        (share for share in shares if is_held(folder / f"{LOCK}-{share.name}")), key=lambda share: (share.n, share.i)
    )


def is_held(file: Path) -> bool:
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False
