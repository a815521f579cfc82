"""Read and write run directories; a run is written to a temporary folder and renamed, so it is never incomplete."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from anchorlens.errors import RunError
from anchorlens.missing_values import with_nulls
from anchorlens.runs.checksums import SUMS, check_file, listed_files, write_sums
from anchorlens.runs.files import (
    LOCK,
    check_parts,
    flush_folder,
    flush_tree,
    has_removed_parts,
    is_running,
    parts_of,
    process_tag,
    remove_empty,
    remove_parts,
)  # fmt: skip
from anchorlens.runs.locks import LockedError, is_held, lock_run
from anchorlens.runs.schema import SCHEMA_VERSION, answer_first
from anchorlens.runs.validation import LIST_TYPES, RUN, check_form, read_table

TABLES = ("examples", "samples", "curves")


def to_path(value: "str | os.PathLike[str]", argument: str) -> Path:
    """Return the value of an argument as a Path. Raise RunError if it is no path."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise RunError(f"{argument}={value!r}: must be the path of a run directory.", argument=argument)
    return Path(value)


def check_target(path: "str | os.PathLike[str]", *, overwrite: bool = False) -> Path:
    """Return the run directory, with a link followed. Raise RunError if no run can be written there."""
    target = to_path(path, "out")
    if target.is_symlink():
        target = target.resolve()
    restore_run(target)
    if target.name in ("", "..") or (target.exists() and target.resolve() in (Path.cwd(), *Path.cwd().parents)):
        raise RunError(f"{target} is the current folder or above it. Choose another path.")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        if not _is_run(target):
            raise RunError(f"{target} exists and is not a run. Choose another path.")
        if not overwrite:
            raise RunError(f"{target} already holds a run. Choose another path, or give overwrite=True.")
    check_place(next((p for p in (target.absolute().parent, *target.absolute().parents) if p.exists()), Path("/")))
    return target


def _is_run(folder: Path) -> bool:
    """Return whether a folder has the record of a run, of any schema version."""
    try:
        record = json.loads((folder / "run.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and {"schema_version", "sweeps"} <= record.keys()


def check_place(folder: Path) -> None:
    """Raise RunError if a folder is not writable; tested by writing, since permission bits are not reliable everywhere."""
    probe = folder / f".anchorlens-{os.getpid()}.tmp"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as why:
        raise RunError(f"{folder} cannot be written. Choose another path.") from why


def restore_run(target: Path) -> None:
    """Undo what a killed process left of :func:`write_run`: restore the run that it set aside, and remove its unfinished one.

    Parts whose removal was interrupted are removed. Nothing is done while the run is locked: the process that holds the lock may be
    one of another machine.
    """
    if not target.name or not target.parent.is_dir() or is_held(parts_of(target) / LOCK):
        return
    parts = parts_of(target)
    if has_removed_parts(parts):
        check_parts(parts)
        # A job that is about to write its record looks like parts whose removal was interrupted, and holds its lock.
        with suppress(LockedError), lock_run(parts, target, None):
            if has_removed_parts(parts):
                remove_parts(parts)
    for file in sorted(target.parent.iterdir()):
        match = re.fullmatch(rf"\.{re.escape(target.name)}\.(\d+-\d+)\.(old|tmp)", file.name)
        if match is None or is_running(match[1]):
            continue
        try:
            if match[2] == "tmp":
                shutil.rmtree(file, ignore_errors=True)
            elif target.exists():
                _remove_run(file, target)
            else:
                file.rename(target)
        except OSError as why:
            raise RunError(
                f"A killed process left a run in {file}, and it cannot be moved to {target} ({why.strerror}). "
                "Check the permissions of the folder."
            ) from why


def write_run(
    target: Path, tables: Mapping[str, pd.DataFrame], sweeps: Sequence[Mapping[str, Any]], *, more: Callable[[Path], None],
    pending: Sequence[str] = (), study: Sequence[Mapping[str, Any]] = (),
) -> Path:  # fmt: skip
    """Write a run directory, replacing an existing one; ``more`` writes further files into a directory.

    Files of others in the existing directory are moved to the new one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work, old = (target.parent / f".{target.name}.{process_tag()}.{kind}" for kind in ("tmp", "old"))
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir()
        for name, frame in tables.items():
            _write(work / f"{name}.parquet", frame)
        more(work)
        record = {
            "schema_version": SCHEMA_VERSION, "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "pending": list(pending), "study": list(study), "sweeps": list(sweeps),
        }  # fmt: skip
        (work / "run.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
        write_sums(work)
        flush_tree(work)
        if target.exists():
            target.rename(old)
        work.rename(target)
        flush_folder(target.parent)
    except OSError as why:
        kept = "The run that was there and stored shards are kept."
        raise RunError(f"{target} cannot be written ({why.strerror or why}). {kept} Make room, or choose another path.") from why
    finally:
        if old.exists() and not target.exists():  # interrupted between the two renames
            old.rename(target)
        shutil.rmtree(work, ignore_errors=True)
    _remove_run(old, target)
    return target


def _remove_run(old: Path, new: Path) -> None:
    """Remove the files that the SHA256SUMS of a replaced run lists, the list last; move the others to the new run."""
    ours = listed_files(old)
    for file in sorted(old.rglob("*"), key=lambda file: (file.name == SUMS, file)) if old.exists() else ():
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


def _write(path: Path, frame: pd.DataFrame) -> None:
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    kinds = {one.name: pa.string() if pa.types.is_null(one.type) else one.type for one in schema} | LIST_TYPES
    schema = pa.schema([one.with_type(kinds[one.name]) for one in schema], schema.metadata)
    frame.to_parquet(path, index=False, schema=schema)


def read_record(path: "str | os.PathLike[str]") -> dict[str, Any]:
    """Read run.json of a run directory."""
    folder = to_path(path, "path")
    file = folder / "run.json"
    if not folder.exists():
        restore_run(folder)
    if not folder.exists():
        raise RunError(f"{folder} does not exist. Give the path of a run directory that a sweep has written.")
    if not file.is_file():
        raise RunError(f"{folder} is not a run: it has no run.json. Write a run with result.save({str(folder)!r}).")
    check_file(folder, file.name)
    try:
        record = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as why:
        raise RunError(f"{file} is damaged ({why}). Make the run again.") from why
    version = record.get("schema_version") if isinstance(record, dict) else SCHEMA_VERSION
    if version != SCHEMA_VERSION:
        raise RunError(f"{folder} has schema version {version!r}, but only {SCHEMA_VERSION} can be read. Make the run again.")
    check_form(file, record, RUN)
    missing = [f"{name}.parquet" for name in TABLES if not (folder / f"{name}.parquet").is_file()]
    if missing:
        raise RunError(f"{folder} lacks {', '.join(missing)}. Make the run again.")
    return record


def study_of(path: Path) -> list[Any] | None:
    """Return the identity of every sweep of a run's study; None if there is no run or no study in its record."""
    if not (path / "run.json").is_file():
        return None
    return read_record(path).get("study") or None


def load_curves(path: "str | os.PathLike[str]") -> pd.DataFrame:
    """Read the curves of a run directory, with controls.

    Args:
        path: Run directory.

    Returns:
        One row per point, with the columns of ``curves.parquet`` in display order.

    Raises:
        RunError: If the run is missing or damaged, or the schema has another version.
    """
    read_record(path)
    curves = read_table(Path(path), "curves")
    return with_nulls(curves[answer_first(curves)])
