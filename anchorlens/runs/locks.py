"""Locks of a run: ``OUT.parts/lock`` for a process that writes the run, ``OUT.parts/lock-2-of-8``
for a job that measures a part.

Every process that writes, renames or removes files of a run holds its lock; processes that only
read hold none. The operating system releases a lock when its process ends.
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from anchorlens.display import warn
from anchorlens.errors import RunError
from anchorlens.runs.files import LOCK, check_parts, has_removed_parts, parts_of, remove_parts
from anchorlens.runs.jobs import Job
from anchorlens.runs.storage_errors import name_storage_errors

# Seconds to wait, because `status` holds a lock for a moment while it tests it.
_PATIENCE = 1.0
# Seconds that a job waits for others which start at the same time; the first one rehearses the
# final write meanwhile.
_PATIENCE_OF_JOBS = 10.0
# Errors of a file system that has no locks. For ENOSYS filelock uses files as locks, or raises
# NotImplementedError.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class LockedError(RunError):
    """Another process writes the run, or measures a job of it."""


@dataclass(frozen=True)
class RunLock:
    """Lock of a run that this process holds.

    Attributes:
        target: Run directory.
        is_exclusive: Whether the lock keeps other processes out; False on a file system without
            locks.
    """

    target: Path
    is_exclusive: bool


@contextmanager
def lock_run(
    target: Path,
    job: Job | None = None,
    prepare: Callable[[RunLock], object] = lambda lock: None,  # noqa: ARG005
) -> Iterator[RunLock]:
    """Hold the lock of a run, or of one of its jobs.

    Args:
        target: Run directory.
        job: Job to lock. If None, the whole run.
        prepare: Function called while no other process can write the run; for a job this ends when
            its own lock is held.

    Raises:
        LockedError: If another process holds the lock.
        RunError: If ``OUT.parts`` holds other files or cannot be written.
    """
    folder = parts_of(target)
    with name_storage_errors(target, folder):
        check_parts(folder)
    whole = FileLock(folder / LOCK)
    own = whole if job is None else FileLock(folder / f"{LOCK}-{job.name}")
    is_whole = False
    try:
        patience = _PATIENCE if job is None else _PATIENCE_OF_JOBS
        lock = RunLock(target, _acquire(whole, target, str(target), patience))
        if job is None and (jobs := running_jobs(folder)):
            names = ", ".join(map(str, jobs))
            raise LockedError(
                f"Jobs {names} of {target} are running."
                " Wait for them, stop them, or choose another path."
            )
        is_whole = True
        prepare(lock)
        if job is not None:
            _acquire(own, target, f"job {job} of {target}", _PATIENCE)
            is_whole = False
            whole.release()
        yield lock
    finally:
        # Nothing but this lock is left.
        if is_whole and has_removed_parts(folder) and not running_jobs(folder):
            with name_storage_errors(target, folder, "removed"):
                remove_parts(folder)
        own.release()
        whole.release()


def _acquire(lock: FileLock, target: Path, what: str, patience: float) -> bool:
    """Acquire a lock in a folder that a process which ends may remove in between; False if the file
    system has no locks.
    """
    folder = parts_of(target)
    with name_storage_errors(target, folder):
        for tries_left in reversed(range(100)):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=patience)
                return True
            except Timeout as why:
                fix = "Wait for it, stop it, or choose another path or job=."
                raise LockedError(
                    f"Another process is writing {what} and holds {lock.lock_file}. {fix}"
                ) from why
            except NotImplementedError:
                break
            except OSError as why:
                if why.errno in _NO_LOCKS:
                    break
                if not (tries_left and isinstance(why, FileNotFoundError | FileExistsError)):
                    raise
    warn(
        f"{folder} is on a file system without locks: two processes on one run are not noticed."
        " Start only one at a time."
    )
    return False


def running_jobs(folder: Path) -> list[Job]:
    """Return the jobs whose lock is held, in order."""
    jobs: list[Job] = []
    for file in folder.glob(f"{LOCK}-*"):
        match = re.fullmatch(rf"{LOCK}-(\d+)-of-(\d+)", file.name)
        if match:
            jobs.append(Job(int(match[1]), int(match[2])))
    held = [job for job in jobs if is_held(folder / f"{LOCK}-{job.name}")]
    return sorted(held, key=lambda job: (job.n, job.i))


def is_held(file: Path) -> bool:
    """Return whether a process holds a lock; False if the file is absent or cannot be opened."""
    try:
        with FileLock(file, timeout=0) if file.exists() else nullcontext():
            return False
    except OSError as why:
        return isinstance(why, Timeout)
