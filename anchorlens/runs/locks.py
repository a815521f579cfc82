"""Locks of a run: a process that measures all holds ``OUT.parts/lock``, one that measures a job ``OUT.parts/lock-2-of-8``.

The system releases a lock when its process ends.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from anchorlens.errors import RunError
from anchorlens.runs.files import LOCK
from anchorlens.runs.jobs import Job

# Seconds: `status`, and jobs that begin, hold a lock for a moment while they look whether it is free.
_PATIENCE = 1.0


@contextmanager
def lock_run(folder: Path, target: Path, job: Job | None) -> Iterator[None]:
    """Hold the lock of a run, or of a job of it."""
    whole = FileLock(folder / LOCK)
    own = whole if job is None else FileLock(folder / f"{LOCK}-{job.name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own.acquire(timeout=_PATIENCE)
    except Timeout as why:
        raise _lock_error(target if job is None else f"job {job} of {target}", own) from why
    except OSError as why:
        raise RunError(f"{folder} cannot be written ({why.strerror}). Choose another path.") from why
    try:
        if job is None and (jobs := running_jobs(folder)):
            raise RunError(
                f"Jobs {', '.join(map(str, jobs))} of {target} are measuring. Wait for them, stop them, or choose another path."
            )
        if job is not None:
            try:
                whole.acquire(timeout=_PATIENCE)
            except Timeout as why:
                raise _lock_error(target, whole) from why
            whole.release()
        yield
    finally:
        own.release()


def _lock_error(what: object, lock: FileLock) -> RunError:
    where = f"it holds {lock.lock_file}. Wait for it, stop it, or choose another path or job=."
    return RunError(f"Another process is measuring {what}: {where}")


def running_jobs(folder: Path) -> list[Job]:
    names = (re.fullmatch(rf"{LOCK}-(\d+)-of-(\d+)", file.name) for file in folder.glob(f"{LOCK}-*"))
    jobs = [Job(int(found[1]), int(found[2])) for found in names if found]
    return sorted((job for job in jobs if is_held(folder / f"{LOCK}-{job.name}")), key=lambda job: (job.n, job.i))


def is_held(file: Path) -> bool:
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False
