"""Write, flush and remove the files of runs.

Two rules hold for every run:

- Removal: a folder loses only files of this package, identified by the record in its ``run.json``
  and by their names. Other files in it are kept, and so is the folder.
- Order of writing: the bytes of a file are flushed, then its folder; it is renamed, and the parent
  folder is flushed. Only then the files that it replaces are removed.

Temporary files have the tag of their process in their names, so that a later process can tell who
made them.
"""

import errno
import hashlib
import json
import os
import platform
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from anchorlens.errors import RunError

LOCK = "lock"
# Name of the record of parts that are being removed.
_REMOVED = "removed.json"
# Names in OUT.parts: record, locks, logs, a folder per sweep, and temporary files of record and
# logs.
_PARTS = re.compile(
    r"(run|removed)\.json|lock(-\d+-of-\d+)?|log(-\d+-of-\d+)?\.jsonl|\d{3}"
    r"|\.(run\.json|log(-\d+-of-\d+)?\.jsonl)\..*\.tmp"
)
# Names in the folder of a sweep: notes, shards, damaged shards, and their temporary files.
_SWEEP_PARTS = re.compile(
    r"(model|plan|environment|free_memory|empty)\.json"
    r"|\d{5}-[0-9a-f]{20}\.(parquet|damaged)|\..*\.tmp"
)


# Errors of a file system that has no flush of folders; many FUSE and some network file systems.
_NO_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def parts_of(target: Path) -> Path:
    """Return the folder of partial results of a run, ``OUT.parts``."""
    return target.with_name(f"{target.name}.parts")


def shards_in(folder: Path, first: int = 0) -> int:
    """Return the number of shards in ``OUT.parts``, counted from sweep ``first`` on."""
    sweeps = (one for one in folder.glob("[0-9][0-9][0-9]") if int(one.name) >= first)
    return sum(len(shard_files(one)) for one in sweeps)


def shard_files(folder: Path) -> dict[int, Path]:
    """Return number -> file for the shards of a sweep.

    If two machines wrote one number, the last file by name counts.
    """
    files: dict[int, Path] = {}
    for file in sorted(folder.glob("*.parquet")):
        number, _, _ = file.name.partition("-")
        if number.isdigit():
            files[int(number)] = file
    return files


def check_parts(folder: Path) -> None:
    """Raise RunError unless a path is free or a folder that holds nothing but an unfinished run."""
    # Checked twice, because another process may begin or end its run in between.
    if _problem_of_parts(folder) and (problem := _problem_of_parts(folder)):
        raise RunError(f"{problem}. Choose another path for the run, or move the files away.")


def _problem_of_parts(folder: Path) -> str:
    """Return the reason why a path cannot be used for parts; empty if there is none."""
    if not folder.is_dir():
        is_taken = folder.exists() or folder.is_symlink()
        return f"{folder} exists and holds no parts of a run" if is_taken else ""
    try:
        sweeps = _sweep_folders(folder)
        others = [file.name for file in folder.iterdir() if not _PARTS.fullmatch(file.name)]
        for one in sweeps:
            wrong = [file.name for file in one.iterdir() if not _is_sweep_part(file)]
            others += [f"{one.name}/{name}" for name in wrong]
        if others:
            return (
                f"{folder} exists and holds other files than the parts of a run:"
                f" {', '.join(sorted(others)[:3])}"
            )
        file = next(
            (file for name in ("run.json", _REMOVED) if (file := folder / name).is_file()), None
        )
        if file is None:
            return (
                f"{folder} exists and holds no parts of a run: it has no run.json" if sweeps else ""
            )
        record = json.loads(file.read_bytes())
        if isinstance(record, dict) and {"version", "target", "sweeps"} <= record.keys():
            return ""
    except FileNotFoundError:  # removed in between
        return ""
    except OSError as why:
        return f"{folder} exists and cannot be read ({why.strerror})"
    except (ValueError, RecursionError):
        pass
    return (
        f"{folder} exists, and its run.json is not the record of an unfinished run, or is damaged"
    )


def _sweep_folders(folder: Path) -> list[Path]:
    return sorted(one for one in folder.glob("[0-9][0-9][0-9]") if one.is_dir())


def _is_sweep_part(file: Path) -> bool:
    return bool(_SWEEP_PARTS.fullmatch(file.name)) and not file.is_dir()


def remove_parts(folder: Path, *, keep_locks: bool = False) -> None:
    """Remove the parts of a run; other files are kept. :func:`check_parts` comes first.

    The record is renamed first and removed last, so that the next command sees and completes a
    removal that was interrupted. Locks come after it: then another process may begin here.
    """
    record = folder / _REMOVED
    with suppress(FileNotFoundError):
        (folder / "run.json").replace(record)
    for one in _sweep_folders(folder):
        for file in filter(_is_sweep_part, list(one.iterdir())):
            file.unlink(missing_ok=True)
    remove_empty(*_sweep_folders(folder))
    files = [file for file in folder.glob("*") if _PARTS.fullmatch(file.name) and not file.is_dir()]
    for file in sorted(files, key=lambda file: (file.name.startswith(LOCK), file == record)):
        if not (keep_locks and file.name.startswith(LOCK)):
            file.unlink(missing_ok=True)
    remove_empty(folder)


def has_removed_parts(folder: Path) -> bool:
    """Return whether the removal of parts was interrupted; also true of a folder that is empty or
    has nothing but locks.
    """
    try:
        names = [file.name for file in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return False
    return all(name.startswith(LOCK) for name in names) or (
        _REMOVED in names and "run.json" not in names
    )


def remove_empty(*folders: Path) -> None:
    """Remove those folders that are empty, the last one first."""
    for folder in reversed(folders):
        with suppress(OSError):  # not empty
            folder.rmdir()


def write_whole(file: Path, data: bytes) -> None:
    """Write a file atomically and flush it to disk."""
    with _temporary_file(file, data) as work:
        work.replace(file)
        flush_folder(file.parent)


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
        flush_folder(file.parent)


def flush_tree(folder: Path) -> None:
    """Flush all files of a folder and the folders themselves to disk."""
    for file in sorted(folder.rglob("*"), reverse=True):
        if file.is_dir():
            flush_folder(file)
        else:
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
    flush_folder(folder)


def flush_folder(folder: Path) -> bool:
    """Flush the entries of a folder to disk; return False on a file system or system that has no
    such call.
    """
    if os.name == "nt":
        return False
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as why:
        if why.errno not in _NO_FLUSH:
            raise
        return False
    finally:
        os.close(opened)
    return True


def process_tag() -> str:
    """Return a name of this process that no other process has: its id, its start time and a hash of
    its machine.

    On Linux the time is counted from the start of the machine, so a clock that is set does not
    change it.
    """
    stat = Path("/proc/self/stat")
    start = _start_of(stat) if stat.is_file() else _start_by_clock(os.getpid())
    return f"{os.getpid()}-{start}-{_machine()}"


def is_abandoned(tag: str, *, locked: bool) -> bool:
    """Return whether no process uses the temporary files with this tag any more.

    Args:
        tag: Tag of the process that made the files.
        locked: Whether this process holds the lock of the run. Every process that writes a run
            holds it, so nobody else can be writing. On a file system without locks, only an ended
            process of this machine and PID namespace is known to be gone.
    """
    pid, _, machine = tag.split("-")
    if locked or tag == process_tag():
        return True
    if machine != _machine():
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        start = _start_of(stat) if stat.is_file() else _start_by_clock(int(pid))
    except (psutil.NoSuchProcess, OSError):
        return True
    except psutil.AccessDenied:  # a process of another user
        return False
    return tag != f"{pid}-{start}-{machine}"


def temporary_tag(name: str) -> str:
    """Return the tag in the name of a temporary file or folder; empty if the name has
    another form.
    """
    match = re.search(r"\.(\d+-\d+-[0-9a-f]{12})(-[0-9a-f]+)?\.(tmp|old)$", name)
    return match[1] if match else ""


def _start_of(stat: Path) -> int:
    return int(stat.read_bytes().rpartition(b")")[2].split()[19])  # field 22, in ticks


def _start_by_clock(pid: int) -> int:
    return round(1000 * psutil.Process(pid).create_time())


def _machine() -> str:
    """Return a hash of the running system and of the PID namespace, within which process ids have a
    meaning.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    is_known = boot.is_file() and namespace.is_symlink()
    text = f"{boot.read_text()} {namespace.readlink()}" if is_known else platform.node()
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextmanager
def _temporary_file(file: Path, data: bytes) -> Iterator[Path]:
    """Write a temporary file; its name is unique over processes, machines and threads."""
    work = file.with_name(f".{file.name}.{process_tag()}-{secrets.token_hex(4)}.tmp")
    try:
        with work.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        yield work
    finally:
        work.unlink(missing_ok=True)
