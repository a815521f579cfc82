"""Turn errors of the operating system at a run directory into one message: what failed, what is
kept, what to do.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anchorlens.errors import RunError
from anchorlens.runs.files import parts_of, shards_in

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
# Errors of renaming a mount point, or a folder onto one.
_MOUNTED = (errno.EBUSY, errno.EXDEV)


@contextmanager
def name_storage_errors(
    target: Path, what: "str | Path" = "", action: str = "written"
) -> Iterator[None]:
    """Raise RunError for an OSError in a ``with`` block; the message names the path and the number
    of stored shards.

    Args:
        target: Run directory.
        what: File, or noun phrase for it, that the block works on. If empty, the run directory.
        action: Participle for what the block does with it.
    """
    try:
        yield
    except OSError as why:
        parts = parts_of(target)
        try:
            shards = shards_in(parts)
            has_run = (target / "run.json").is_file()
        except OSError as second:
            unread = f"What is stored in {target} and {parts} cannot be read ({second.strerror})."
            raise RunError(
                f"{what or target} cannot be {action} ({why.strerror or why}). {unread}"
            ) from why
        kept = [f"{shards} shard{'s' * (shards != 1)} in {parts}"] if shards else []
        kept += [f"the run in {target}"] if has_run else []
        stored = f"Kept: {', '.join(kept)}." if kept else "Nothing is stored there."
        cure = _cure(target, why, shards)
        raise RunError(
            f"{what or target} cannot be {action} ({why.strerror or why}). {stored} {cure}"
        ) from why


def _cure(target: Path, why: OSError, shards: int) -> str:
    if why.errno in _FULL:
        return (
            "Make room, and continue with resume=True." if shards else "Make room, and start again."
        )
    if why.errno in _MOUNTED or os.path.ismount(target):
        return mount_cure(target)
    if why.errno == errno.ENAMETOOLONG:
        return (
            "Give a shorter path: temporary names are up to 80 characters longer than"
            f" {target.name[:40]!r}."
        )
    if why.errno in _FORBIDDEN:
        return "Check the permissions, or choose another path."
    if why.errno == errno.ENOENT:
        return "Choose another path; if another program removed files there, start again."
    return "Check the file system, or choose another path."


def mount_cure(target: Path) -> str:
    """Return the fix for a run directory that is a mount point, which cannot be renamed."""
    return (
        "It is a mount point, or on another file system than its folder: give a folder below it,"
        f" such as {target / 'run'}."
    )
