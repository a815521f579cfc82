"""A run on disk: a directory of tables, a figure and a record of how they came to be (DESIGN, "A run directory").

Everything is written into a temporary directory beside the target, which is then renamed: a run is there as a whole or not at all.
Nothing here knows what a table means: results say what they consist of, and what they are is found by their protocol's name.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow as pa

from anchorlens.errors import RunError
from anchorlens.runs.checksums import write_sums
from anchorlens.runs.schema import READABLE, SCHEMA_VERSION, answer_first, of_today

TABLES = ("examples", "samples", "curves")
# Lists that are empty in every row would otherwise be written as null columns.
_LISTS = {"token_ids": pa.list_(pa.int64()), "tokens": pa.list_(pa.string()), "donor_ids": pa.list_(pa.string())}


def check_target(path: "str | os.PathLike[str]", *, overwrite: bool = False) -> Path:
    """The directory that a run may be written to.

    Call it before long work starts, so that hours are not lost to a name that is taken.

    Raises:
        RunError: Something else stands there, or a run that may not be replaced, or the place cannot be written.
    """
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise RunError(f"A run is written to a directory: give its path, got {path!r}.")
    target = Path(path)
    _brought_back(target)
    if target.name in ("", "..") or (target.exists() and target.resolve() in (Path.cwd(), *Path.cwd().parents)):
        raise RunError(f"{target} is the folder you stand in, or above it. Choose another path.")
    if target.exists():
        is_run = (target / "run.json").is_file()
        empty = target.is_dir() and not any(target.iterdir())
        if not empty and not is_run:
            raise RunError(f"{target} is there and is not a run. Choose another path.")
        if is_run and not overwrite:
            raise RunError(f"{target} holds a run already. Choose another path, or give overwrite=True.")
    check_place(next((p for p in (target.absolute().parent, *target.absolute().parents) if p.exists()), Path("/")))
    return target


def check_place(folder: Path) -> None:
    """A folder in which something can be written.

    Raises:
        RunError: Nothing can.
    """
    if not folder.is_dir() or not _writable(folder):
        raise RunError(f"{folder} cannot be written. Choose another path.")


def _brought_back(target: Path) -> None:
    """A process that was killed between the two renames of :func:`write_run` left the run that was there beside its place."""
    if target.exists() or not target.parent.is_dir():
        return
    for old in target.parent.glob(f".{target.name}.*.old"):
        pid = old.name.removesuffix(".old").rpartition(".")[2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            old.rename(target)
            return


def _writable(folder: Path) -> bool:
    """Tried, not asked: some file systems allow nothing to anybody, whatever the permissions say."""
    probe = folder / f".anchorlens-{os.getpid()}.tmp"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def write_run(
    target: Path,
    tables: Mapping[str, pd.DataFrame],
    sweeps: Sequence[Mapping[str, Any]],
    *,
    more: Callable[[Path], None],
    pending: Sequence[str] = (),
    study: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write a run directory in place of what is there.

    Args:
        target: The directory; its parents are made.
        tables: Name -> frame; each becomes ``NAME.parquet``.
        sweeps: Entries of ``run.json``.
        more: Writes further files (a figure, probes) into the directory that it is given.
        pending: What is still to be measured and will be added, for ``run.json``.
        study: What is measured altogether, for ``run.json``.

    Returns:
        The directory.
    """
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
            "schema_version": SCHEMA_VERSION,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "pending": list(pending),
            "study": list(study),
            "sweeps": list(sweeps),
        }
        (work / "run.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
        write_sums(work)
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        work.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        if old.exists() and not target.exists():  # stopped between the two renames: what was there before comes back
            old.rename(target)
        shutil.rmtree(work, ignore_errors=True)
    return target


def _write(path: Path, frame: pd.DataFrame) -> None:
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    for name, kind in _LISTS.items():
        if name in frame.columns:
            schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
    for i, column in enumerate(schema):
        if pa.types.is_null(column.type):
            schema = schema.set(i, pa.field(column.name, pa.string()))
    frame.to_parquet(path, index=False, schema=schema)


def read_record(path: "str | os.PathLike[str]") -> dict[str, Any]:
    """run.json of a run directory.

    Raises:
        RunError: There is none, it cannot be read, a table is missing, or another version of the schema wrote it.
    """
    if not isinstance(path, str | os.PathLike):
        raise RunError(f"A run is read from a directory: give its path, got {path!r}.")
    folder = Path(path)
    file = folder / "run.json"
    if not file.is_file():
        raise RunError(f"{folder} is not a run: it has no run.json. A sweep's save({str(folder)!r}) makes one.")
    try:
        record = json.loads(file.read_text(encoding="utf8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as why:
        raise RunError(f"{file} is damaged ({why}). Make the run again.") from why
    found = record.get("schema_version")
    if found not in READABLE:
        known = ", ".join(map(str, READABLE))
        raise RunError(f"{folder} has schema version {found}; this anchorlens reads {known}. Make the run again.")
    missing = [f"{name}.parquet" for name in TABLES if not (folder / f"{name}.parquet").is_file()]
    if missing:
        raise RunError(f"{folder} lacks {', '.join(missing)}. Make the run again.")
    return record


def study_of(path: Path) -> list[Any] | None:
    """What a run directory was to hold altogether; None where there is none, or where nothing says it."""
    if not (path / "run.json").is_file():
        return None
    return read_record(path).get("study") or None


def read_table(path: "str | os.PathLike[str]", name: str) -> pd.DataFrame:
    """One table of a run directory, with the columns of this version.

    Raises:
        RunError: The file is damaged.
    """
    file = Path(path) / f"{name}.parquet"
    try:
        frame = pd.read_parquet(file)
    except (pa.ArrowInvalid, OSError) as why:
        raise RunError(f"{file} is damaged ({why}). Make the run again.") from why
    return of_today(frame) if name in ("samples", "curves") else frame


def load_curves(path: "str | os.PathLike[str]") -> pd.DataFrame:
    """All curves of a run directory, controls too, without computing anything again.

    Args:
        path: The run directory.

    Returns:
        One row a point: the columns of ``curves.parquet``, in the order for reading: what was found first, what is the same in every
        row last.

    Raises:
        RunError: There is no run, it cannot be read, a table is missing, or another version of the schema wrote it.
    """
    read_record(path)
    curves = read_table(path, "curves")
    return curves[answer_first(curves)]


__all__ = ["check_place", "check_target", "load_curves", "read_record", "read_table", "study_of", "write_run"]
