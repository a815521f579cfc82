"""Write and remove the files of unfinished runs."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = "lock"
# Names in OUT.parts: record, locks, logs, a folder per sweep, and temporary files of the record.
_PARTS = re.compile(r"run\.json|lock(-\d+-of-\d+)?|log(-\d+-of-\d+)?\.jsonl|\d{3}|\.run\.json\..*\.tmp")


def parts_of(target: Path) -> Path:
    """Return the folder of partial results of a run, ``OUT.parts``."""
    return target.with_name(f"{target.name}.parts")


def holds_only_parts(folder: Path) -> bool:
    """Return whether a path is free, or a folder that holds only files of an unfinished run."""
    try:
        return all(_PARTS.fullmatch(file.name) for file in folder.iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False


def remove_parts(folder: Path, *, keep_locks: bool = False) -> None:
    """Remove the parts of a run; files with other names are kept, and so is a folder that holds any."""
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.is_dir() and _PARTS.fullmatch(file.name):
            shutil.rmtree(file, ignore_errors=True)
        elif _PARTS.fullmatch(file.name) and not (keep_locks and file.name.startswith(LOCK)):
            file.unlink(missing_ok=True)
    if not keep_locks:
        with suppress(OSError):  # not empty
            folder.rmdir()


def write_whole(file: Path, data: bytes) -> None:
    """Write a file atomically and flush it to disk."""
    with _temporary_file(file, data) as work:
        work.replace(file)


def write_first(file: Path, data: bytes) -> None:
    """Write a file atomically unless it exists; of several processes, the first one wins."""
    with _temporary_file(file, data) as work:
        try:
            file.hardlink_to(work)
        except FileExistsError:
            return
        except OSError:  # a file system without links
            if not file.exists():
                work.replace(file)


@contextmanager
def _temporary_file(file: Path, data: bytes) -> Iterator[Path]:
    """Write a temporary file with a name that is unique over processes and machines."""
    work = file.with_name(f".{file.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with work.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        yield work
    finally:
        work.unlink(missing_ok=True)
