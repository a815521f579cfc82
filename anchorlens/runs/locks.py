"""Locks of a run: ``OUT.parts/lock`` for a process that measures all shards, ``OUT.parts/lock-2-of-8`` for a job.

The operating system releases a lock when its process ends.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

from anchorlens.errors import RunError
from anchorlens.runs.files import LOCK
from anchorlens.runs.jobs import Job

# Seconds to wait, because `status` and starting jobs hold a lock for a moment while they test it.
_PATIENCE = 1.0


class LockedError(RunError):
    """Another process measures the run, or a job of it."""


@contextmanager
def lock_run(folder: Path, target: Path, job: Job | None) -> Iterator[None]:
    """Hold the lock of a run, or of one of its jobs. Raise LockedError if another process holds it."""
    whole = FileLock(folder / LOCK)
    lock = whole if job is None else FileLock(folder / f"{LOCK}-{job.name}")
    try:
        _acquire(whole, folder, str(target))
        if job is None and (jobs := running_jobs(folder)):
            names = ", ".join(map(str, jobs))
            raise LockedError(f"Jobs {names} of {target} are running. Wait for them, stop them, or choose another path.")
        if job is not None:  # taken while no process can hold, or clean up, the whole run
            _acquire(lock, folder, f"job {job} of {target}")
            whole.release()
        yield
    finally:
        lock.release()
        whole.release()


def _acquire(lock: FileLock, folder: Path, what: str) -> None:
    """Acquire a lock in a folder that a process which ends may remove in between."""
    for tries_left in reversed(range(100)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=_PATIENCE)
            return
        except Timeout as why:
            fix = "Wait for it, stop it, or choose another path or job=."
            raise LockedError(f"Another process is measuring {what} and holds {lock.lock_file}. {fix}") from why
        except OSError as why:
            if not (tries_left and isinstance(why, FileNotFoundError | FileExistsError)):
                raise RunError(f"{folder} cannot be written ({why.strerror}). Choose another path.") from why


def running_jobs(folder: Path) -> list[Job]:
    """Return the jobs whose lock is held, in order."""
    matches = (re.fullmatch(rf"{LOCK}-(\d+)-of-(\d+)", file.name) for file in folder.glob(f"{LOCK}-*"))
    jobs = [Job(int(match[1]), int(match[2])) for match in matches if match]
    return sorted((job for job in jobs if is_held(folder / f"{LOCK}-{job.name}")), key=lambda job: (job.n, job.i))


def is_held(file: Path) -> bool:
    """Return whether a process holds a lock; False if the file is absent or cannot be opened."""
    try:
        with FileLock(file, timeout=0) if file.exists() else nullcontext():
            return False
    except OSError as why:
        return isinstance(why, Timeout)
