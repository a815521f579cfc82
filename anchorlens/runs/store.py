"""Read and write run directories; a run is written to a temporary folder and renamed, so it is never incomplete."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow as pa

from anchorlens.errors import RunError
from anchorlens.missing_values import with_nulls, without_nulls
from anchorlens.runs.checksums import write_sums
from anchorlens.runs.schema import SCHEMA_VERSION, answer_first

TABLES = ("examples", "samples", "curves")
# Explicit types, because lists that are empty in every row would be written as null columns.
_LISTS = {"token_ids": pa.list_(pa.int64()), "tokens": pa.list_(pa.string()), "donor_ids": pa.list_(pa.string())}


def to_path(value: "str | os.PathLike[str]", argument: str) -> Path:
    """Return the value of an argument as a Path. Raise RunError if it is no path."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise RunError(f"{argument}={value!r}: must be the path of a run directory.", argument=argument)
    return Path(value)


def check_target(path: "str | os.PathLike[str]", *, overwrite: bool = False) -> Path:
    """Return the run directory. Raise RunError if no run can be written there."""
    target = to_path(path, "out")
    _restore_old(target)
    if target.name in ("", "..") or (target.exists() and target.resolve() in (Path.cwd(), *Path.cwd().parents)):
        raise RunError(f"{target} is the current folder or above it. Choose another path.")
    if target.exists():
        is_run = (target / "run.json").is_file()
        empty = target.is_dir() and not any(target.iterdir())
        if not empty and not is_run:
            raise RunError(f"{target} exists and is not a run. Choose another path.")
        if is_run and not overwrite:
            raise RunError(f"{target} already holds a run. Choose another path, or give overwrite=True.")
    check_place(next((p for p in (target.absolute().parent, *target.absolute().parents) if p.exists()), Path("/")))
    return target


def check_place(folder: Path) -> None:
    """Raise RunError if a folder is not writable; tested by writing, since permission bits are not reliable everywhere."""
    probe = folder / f".anchorlens-{os.getpid()}.tmp"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as why:
        raise RunError(f"{folder} cannot be written. Choose another path.") from why


def _restore_old(target: Path) -> None:
    """Restore the old run if a process was killed between the two renames of :func:`write_run`."""
    if target.exists() or not target.parent.is_dir():
        return
    for old in target.parent.iterdir():
        match = re.fullmatch(rf"\.{re.escape(target.name)}\.(\d+)\.old", old.name)
        if match and not psutil.pid_exists(int(match[1])):
            old.rename(target)
            return


def write_run(
    target: Path, tables: Mapping[str, pd.DataFrame], sweeps: Sequence[Mapping[str, Any]], *, more: Callable[[Path], None],
    pending: Sequence[str] = (), study: Sequence[Mapping[str, Any]] = (),
) -> Path:  # fmt: skip
    """Write a run directory, replacing an existing one; ``more`` writes further files into a directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.parent / f".{target.name}.{os.getpid()}.tmp"
    old = target.parent / f".{target.name}.{os.getpid()}.old"
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
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        work.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        if old.exists() and not target.exists():  # interrupted between the two renames
            old.rename(target)
        shutil.rmtree(work, ignore_errors=True)
    return target


def _write(path: Path, frame: pd.DataFrame) -> None:
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    kinds = {one.name: pa.string() if pa.types.is_null(one.type) else one.type for one in schema} | _LISTS
    schema = pa.schema([one.with_type(kinds[one.name]) for one in schema], schema.metadata)
    frame.to_parquet(path, index=False, schema=schema)


def read_record(path: "str | os.PathLike[str]") -> dict[str, Any]:
    """Read run.json of a run directory."""
    folder = to_path(path, "path")
    file = folder / "run.json"
    if not folder.exists():
        raise RunError(f"{folder} does not exist. Give the path of a run directory that a sweep has written.")
    if not file.is_file():
        raise RunError(f"{folder} is not a run: it has no run.json. Write a run with result.save({str(folder)!r}).")
    try:
        record = json.loads(file.read_text(encoding="utf8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as why:
        raise RunError(f"{file} is damaged ({why}). Make the run again.") from why
    if not isinstance(record, dict):
        raise RunError(f"{file} is damaged (no JSON object). Make the run again.")
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RunError(f"{folder} has schema version {version}, but only {SCHEMA_VERSION} can be read. Make the run again.")
    if not isinstance(record.get("sweeps"), list):
        raise RunError(f"{file} is damaged (no list of sweeps). Make the run again.")
    missing = [f"{name}.parquet" for name in TABLES if not (folder / f"{name}.parquet").is_file()]
    if missing:
        raise RunError(f"{folder} lacks {', '.join(missing)}. Make the run again.")
    return record


def study_of(path: Path) -> list[Any] | None:
    """Return the identity of every sweep of a run's study; None if there is no run or no study in its record."""
    if not (path / "run.json").is_file():
        return None
    return read_record(path).get("study") or None


def read_table(path: "str | os.PathLike[str]", name: str) -> pd.DataFrame:
    """Read a table of a run directory. Raise RunError if its file is damaged."""
    file = Path(path) / f"{name}.parquet"
    try:
        table = pd.read_parquet(file)
    except (pa.ArrowInvalid, OSError) as why:
        raise RunError(f"{file} is damaged ({why}). Make the run again.") from why
    return without_nulls(table)


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
    curves = read_table(path, "curves")
    return with_nulls(curves[answer_first(curves)])
