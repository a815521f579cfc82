"""Read and write the record and the tables of a run directory."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd

from anchorlens.errors import RunError
from anchorlens.runs.checksums import check_file, write_sums
from anchorlens.runs.files import flush_folder, flush_tree
from anchorlens.runs.final_write import (
    find_run,
    put_in_place,
    restore_aside,
    restore_run,
    temporary_folders,
    write_table,
)
from anchorlens.runs.locks import RunLock
from anchorlens.runs.schema import SCHEMA_VERSION, answer_first, with_nulls
from anchorlens.runs.storage_errors import name_storage_errors
from anchorlens.runs.validation import RUN, check_form, read_table

TABLES = ("examples", "samples", "curves")


def write_run(
    lock: RunLock,
    tables: Mapping[str, pd.DataFrame],
    sweeps: Sequence[Mapping[str, Any]],
    *,
    more: Callable[[Path], None],
    pending: Sequence[str] = (),
    study: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write a run directory as a whole or not at all, in place of the run that is there.

    Files of others in the existing directory are moved to the new one.

    Args:
        lock: Lock of the run.
        tables: Tables by name.
        sweeps: Record of each sweep.
        more: Function that writes further files into a directory.
        pending: Sweeps of the study that are not finished.
        study: Identity of every sweep of the study.

    Returns:
        The directory.

    Raises:
        RunError: If a file cannot be written. The run that was there and stored shards are kept.
    """
    target = lock.target
    work, aside = temporary_folders(target)
    restore_run(lock)
    with name_storage_errors(target):
        try:
            work.mkdir(parents=True)
            for name, frame in tables.items():
                write_table(work / f"{name}.parquet", frame)
            more(work)
            record = {
                "schema_version": SCHEMA_VERSION,
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "pending": list(pending),
                "study": list(study),
                "sweeps": _with_limits(sweeps, lock),
            }
            (work / "run.json").write_text(
                json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf8"
            )
            write_sums(work)
            flush_tree(work)
            put_in_place(work, target, aside)
        except BaseException:
            restore_run(lock)
            raise
        flush_folder(target.parent)
    if aside.exists():
        restore_aside(aside, target)
    return target


def _with_limits(sweeps: Sequence[Mapping[str, Any]], lock: RunLock) -> list[Mapping[str, Any]]:
    """Return the records of sweeps; the environment names what the file system lacks."""
    lacks = [] if lock.is_exclusive else ["locks"]
    if os.name != "nt" and not flush_folder(lock.target.parent):
        lacks.append("flush of folders")
    if not lacks:
        return list(sweeps)
    records: list[Mapping[str, Any]] = []
    for sweep in sweeps:
        environment = {**sweep["environment"], "file_system_lacks": lacks}
        records.append({**sweep, "environment": environment})
    return records


@contextmanager
def open_for_reading(path: "str | os.PathLike[str]") -> Iterator[Path]:
    """Return the folder of a run for the reads in a ``with`` block.

    Raise RunError if it was replaced in the meantime.
    """
    folder = find_run(path)
    before = _identity(folder)
    problem = f"{folder} was replaced by another process while it was read. Read it again."
    try:
        yield folder
    except RunError as why:
        if _identity(folder) != before:
            raise RunError(problem) from why
        raise
    if _identity(folder) != before:
        raise RunError(problem)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return device and number of a folder, which differ after it was replaced; None if it is
    missing.
    """
    try:
        stat = folder.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def read_record(path: "str | os.PathLike[str]") -> dict[str, Any]:
    """Read run.json of a run directory."""
    folder = find_run(path)
    file = folder / "run.json"
    if not folder.exists():
        raise RunError(
            f"{folder} does not exist. Give the path of a run directory that a sweep has written."
        )
    if not folder.is_dir():
        raise RunError(f"{folder} is a file. Give the run directory, which contains run.json.")
    if not file.is_file():
        raise RunError(
            f"{folder} is not a run: it has no run.json."
            f" Write a run with result.save({str(folder)!r})."
        )
    check_file(folder, file.name)
    try:
        with name_storage_errors(folder, file, "read"):
            record = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as why:
        raise RunError(f"{file} is damaged ({why}). Make the run again.") from why
    version = record.get("schema_version") if isinstance(record, dict) else SCHEMA_VERSION
    if version != SCHEMA_VERSION:
        raise RunError(
            f"{folder} has schema version {version!r}, but only {SCHEMA_VERSION} can be read."
            " Make the run again."
        )
    check_form(file, record, RUN)
    missing = [f"{name}.parquet" for name in TABLES if not (folder / f"{name}.parquet").is_file()]
    if missing:
        raise RunError(f"{folder} lacks {', '.join(missing)}. Make the run again.")
    return record


def study_of(path: Path) -> list[Any] | None:
    """Return the identity of every sweep of a run's study; None if there is no run or no study in
    its record.
    """
    run = find_run(path)
    if not (run / "run.json").is_file():
        return None
    return read_record(run).get("study") or None


def load_curves(path: "str | os.PathLike[str]") -> pd.DataFrame:
    """Read the curves of a run directory, with controls.

    Args:
        path: Run directory.

    Returns:
        One row per point, with the columns of ``curves.parquet`` in display order.

    Raises:
        RunError: If the run is missing or damaged, or the schema has another version.

    Examples:
        >>> import anchorlens as al
        >>> curves = al.load_curves("runs/swap")  # doctest: +SKIP
        >>> curves.query("control == 'none'")[["anchor", "layer", "effect"]]  # doctest: +SKIP
    """
    with open_for_reading(path) as folder:
        read_record(folder)
        curves = read_table(folder, "curves")
    return with_nulls(curves[answer_first(curves)])
