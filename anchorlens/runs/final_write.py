"""Put a run directory in its place by renames, rehearse this before anything is measured, and
repair what a killed process left.

A run is written to ``.NAME.TAG.tmp`` beside its place. A run that is there is renamed to
``.NAME.TAG.old``, the new one takes its name, and then the old one is removed. Each function that
changes files takes the lock of the run; :func:`find_run` and :func:`check_target` only read.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pandas as pd
import pyarrow as pa

from anchorlens.errors import RunError
from anchorlens.paths import resolve_path
from anchorlens.runs.checksums import SUMS, list_files
from anchorlens.runs.files import (
    flush_folder,
    flush_tree,
    has_removed_parts,
    is_abandoned,
    parts_of,
    process_tag,
    remove_empty,
    remove_parts,
    temporary_tag,
)
from anchorlens.runs.locks import LockedError, RunLock, lock_run
from anchorlens.runs.storage_errors import mount_cure, name_storage_errors
from anchorlens.runs.validation import LIST_TYPES

# Only file of the folder that a rehearsal puts in the place of a run.
_REHEARSAL = ".anchorlens-rehearsal.parquet"


def find_run(path: "str | os.PathLike[str]") -> Path:
    """Return the folder that holds a run: its place or, if a process was killed while it replaced
    the run, where that is aside.

    Nothing is changed. If there is no run, return its place.
    """
    target = resolve_path(path, "path")
    with name_storage_errors(target, action="read"):
        for _ in range(9):
            with suppress(FileNotFoundError):  # replaced by another process in between
                return _find_run(target)
        return _find_run(target)


def _find_run(target: Path) -> Path:
    if not _is_free(target):
        return target
    aside = [file for file, _ in _leftovers(target, "old") if _is_run(file)]
    return max(aside, key=lambda file: (file / "run.json").stat().st_mtime_ns, default=target)


def check_target(path: "str | os.PathLike[str]", *, overwrite: bool = False) -> Path:
    """Return the resolved path of a run directory.

    Raise RunError if no run may be written there; nothing is changed.
    """
    target = resolve_path(path, "out")
    with name_storage_errors(target):
        if target in (Path.cwd(), *Path.cwd().parents):
            raise RunError(f"{target} is the current folder or above it. Choose another path.")
        if os.path.ismount(target):
            raise RunError(f"{target} cannot be written. {mount_cure(target)}")
        run = find_run(target)
        if not _is_free(run):
            if not _is_run(run):
                raise RunError(f"{target} exists and is not a run. Choose another path.")
            if not overwrite:
                raise RunError(
                    f"{target} already holds a run. Choose another path, or give overwrite=True."
                )
    return target


def rehearse_write(lock: RunLock) -> None:
    """Make every step of the final write with a small table, and undo them.

    Raises:
        RunError: If a step fails. What was there is there again.
    """
    target = lock.target
    with name_storage_errors(target):
        work, aside = temporary_folders(target)
        try:
            work.mkdir(parents=True)
            write_table(work / _REHEARSAL, pd.DataFrame({"row": [0]}))
            flush_tree(work)
            put_in_place(work, target, aside)
        finally:
            restore_run(lock)
        flush_folder(target.parent)


def temporary_folders(target: Path) -> tuple[Path, Path]:
    """Return the names of this process for the folder that becomes a run, and for the run that it
    replaces.
    """
    tag = process_tag()
    return target.with_name(f".{target.name}.{tag}.tmp"), target.with_name(
        f".{target.name}.{tag}.old"
    )


def write_table(file: Path, frame: pd.DataFrame) -> None:
    """Write a table of a run."""
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    kinds: dict[str, pa.DataType] = {}
    for one in schema:
        is_null = pa.types.is_null(one.type)
        kinds[one.name] = pa.string() if is_null else one.type
    kinds |= LIST_TYPES
    schema = pa.schema([one.with_type(kinds[one.name]) for one in schema], schema.metadata)
    frame.to_parquet(file, index=False, schema=schema)


def put_in_place(work: Path, target: Path, aside: Path) -> None:
    """Rename a folder to its place, and before that the one that is there to ``aside``."""
    if target.exists():
        target.rename(aside)
    work.rename(target)


def restore_run(lock: RunLock) -> None:
    """Undo what a killed process left: complete the removal of parts, remove unfinished folders,
    restore a run that is aside.
    """
    target = lock.target
    parts = parts_of(lock.target)
    with name_storage_errors(target, parts, "removed"):
        if has_removed_parts(parts):
            remove_parts(parts, keep_locks=True)
    with name_storage_errors(target):
        left = _leftovers(target, "tmp")
        unfinished = [file for file, tag in left if is_abandoned(tag, locked=lock.is_exclusive)]
        for file in unfinished:
            shutil.rmtree(file)
        if _is_rehearsal(target):
            shutil.rmtree(target.rename(temporary_folders(target)[0]))
    for file, tag in _leftovers(target, "old"):
        if is_abandoned(tag, locked=lock.is_exclusive):
            restore_aside(file, target)
        elif not target.exists():
            raise RunError(
                f"{target} was moved to {file} by a process of another machine or container. If"
                " that process has ended, rename it back: the file system has no locks, so this"
                " cannot be tested."
            )


def clear_leftovers(target: Path) -> None:
    """Undo or complete what a killed process left; nothing if there is nothing, or a process is
    writing.
    """
    with name_storage_errors(target, action="read"):
        folders = chain(_leftovers(target, "tmp"), _leftovers(target, "old"))
        has_folders = next(folders, None) is not None
        has_leftovers = has_folders or has_removed_parts(parts_of(target))
    if has_leftovers:
        with suppress(LockedError), lock_run(target, prepare=restore_run):
            pass


def restore_aside(aside: Path, target: Path) -> None:
    """Rename a run that is aside to its place; if a run is there, remove the one that it
    replaced.
    """
    # The removal of a run takes its record first and its list last.
    is_half_removed = (aside / SUMS).exists() and not (aside / "run.json").exists()
    if _is_free(target) and not is_half_removed:
        try:
            remove_empty(target)
            aside.rename(target)
        except OSError as why:
            raise RunError(
                f"The run {target} is in {aside} and cannot be moved back ({why.strerror})."
                " Check the permissions of the folder."
            ) from why
    elif _is_free(target) or _is_run(target):
        with name_storage_errors(
            target, f"The new run is in its place; the one that it replaces, {aside},", "removed"
        ):
            _remove_run(aside, target)


def _leftovers(target: Path, ending: str) -> Iterator[tuple[Path, str]]:
    """Yield the folders ``.NAME.TAG.ENDING`` beside a run, and their tags."""
    files = sorted(target.parent.iterdir()) if target.parent.is_dir() else []
    for file in files:
        tag = temporary_tag(file.name)
        if tag and file.name == f".{target.name}.{tag}.{ending}":
            yield file, tag


def _is_free(folder: Path) -> bool:
    """Return whether a path is free for a run: nothing is there, or an empty folder, or that of a
    killed rehearsal.
    """
    return (
        not folder.exists()
        or (folder.is_dir() and not any(folder.iterdir()))
        or _is_rehearsal(folder)
    )


def _is_rehearsal(folder: Path) -> bool:
    return folder.is_dir() and [file.name for file in folder.iterdir()] == [_REHEARSAL]


def _is_run(folder: Path) -> bool:
    """Return whether a folder has the record of a run, of any schema version."""
    try:
        record = json.loads((folder / "run.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and {"schema_version", "sweeps"} <= record.keys()


def _remove_run(old: Path, new: Path) -> None:
    """Remove the files that the SHA256SUMS of a replaced run lists; move the others to the new run.

    The record is removed first, so that nobody reads half of a run. The list is removed last:
    without it, files of this package would be taken for those of others.
    """
    ours = list_files(old)
    for file in sorted(
        old.rglob("*"), key=lambda file: (file == old / SUMS, file != old / "run.json", file)
    ):
        name = file.relative_to(old).as_posix()
        if name in ours and not file.is_dir():
            file.unlink()
        elif not file.is_dir() or file.is_symlink():
            place = new / name
            while place.exists():
                place = place.with_name(f"{place.name}.kept")
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)
    for folder in sorted((one for one in old.rglob("*") if one.is_dir()), reverse=True):
        folder.rmdir()
    remove_empty(old)
