"""A run on disk: a directory of tables, a figure and a record of how they came to be (DESIGN, "A run directory").

Everything is written into a temporary directory beside the target, which is then renamed: a run is there as a whole or not at all.
"""

import json
import os
import shutil
import warnings
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from anchorlens.analysis.probes import LayerProbes
from anchorlens.errors import InputError, RunError
from anchorlens.results.knockout import KnockoutResult
from anchorlens.results.sweep import SweepResult, curves_frame

# 2: curves have the probe's AUC, examples the roles train and validation. 3: curves have the noise floor.
SCHEMA_VERSION = 3
_READABLE = (2, 3)
EFFECTS = "effects.parquet"
TABLES = ("examples.parquet", "samples.parquet", "curves.parquet")


def check_target(path: "str | Path", *, overwrite: bool = False) -> Path:
    """The directory that a run may be written to.

    Call it before long work starts, so that hours are not lost to a name that is taken.

    Raises:
        RunError: Something else stands there, or a run that may not be replaced, or the place cannot be written.
    """
    target = Path(path)
    if target.exists():
        is_run = (target / "run.json").is_file()
        empty = target.is_dir() and not any(target.iterdir())
        if not empty and not is_run:
            raise RunError(f"{target} is there and is not a run. Choose another --out.")
        if is_run and not overwrite:
            raise RunError(f"{target} holds a run already. Choose another --out, or say --overwrite.")
    parent = next((p for p in (target.absolute().parent, *target.absolute().parents) if p.exists()), Path("/"))
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise RunError(f"{parent} cannot be written. Choose another --out.")
    return target


def save_run(results: Sequence[SweepResult], path: "str | Path", *, overwrite: bool = False) -> Path:
    """Write sweeps as one run directory: run.json, examples, samples and curves as parquet, figure.html.

    Knockout sweeps add effects.parquet; sweeps read by probes add these in probes/RUN_ID, those of placebos in folders below.

    Args:
        results: Sweeps of any number of models and data sets.
        path: The directory; its parents are made.
        overwrite: Replace a run that is there.

    Returns:
        The directory.

    Raises:
        RunError: See :func:`check_target`; or there is no sweep, or two of the same.
    """
    from anchorlens.figures.curves import plot_curves
    from anchorlens.figures.page import save_html

    target = check_target(path, overwrite=overwrite)
    if not results or len({r.run_id for r in results}) != len(results):
        raise RunError(f"A run needs at least one sweep, and each only once; got {[r.run_id for r in results]}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.parent / f".{target.name}.{os.getpid()}.tmp"
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir()
        curves = pd.concat([r.curves(controls=True) for r in results], ignore_index=True)
        _write(work / "examples.parquet", pd.concat([r.examples() for r in results], ignore_index=True), _EXAMPLES)
        _write(work / "samples.parquet", pd.concat([r.samples() for r in results], ignore_index=True), None)
        _write(work / "curves.parquet", curves, None)
        knockouts = [r for r in results if isinstance(r, KnockoutResult)]
        if knockouts:
            _write(work / EFFECTS, pd.concat([r.effects() for r in knockouts], ignore_index=True), None)
        for result in results:
            folder = work / "probes" / result.run_id
            if result.probes is not None:
                result.probes.save(folder)
            for name, probes in result.placebo_probes.items() if isinstance(result, KnockoutResult) else ():
                probes.save(folder / name)
        try:
            save_html(plot_curves(curves), work / "figure.html")
        except InputError as why:  # curves that cannot share a figure are no reason to lose them
            warnings.warn(f"No figure.html in {target}: {why}", stacklevel=2)
        sweeps = [{"run_id": r.run_id, **r.record, **_verdict(r)} for r in results]
        record = {
            "schema_version": SCHEMA_VERSION,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "sweeps": sweeps,
        }
        (work / "run.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
        old = target.parent / f".{target.name}.{os.getpid()}.old"
        if target.exists():
            target.rename(old)
        work.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _verdict(result: SweepResult) -> dict[str, str]:
    return {"verdict": result.verdict} if isinstance(result, KnockoutResult) else {}


# Lists that are empty in every row would otherwise be written as null columns.
_EXAMPLES = {"token_ids": pa.list_(pa.int64()), "donor_ids": pa.list_(pa.string())}


def _write(path: Path, frame: pd.DataFrame, types: "dict[str, pa.DataType] | None") -> None:
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    for name, kind in (types or {}).items():
        schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
    for i, column in enumerate(schema):
        if pa.types.is_null(column.type):
            schema = schema.set(i, pa.field(column.name, pa.string()))
    frame.to_parquet(path, index=False, schema=schema)


def read_record(path: "str | Path") -> dict[str, Any]:
    """run.json of a run directory.

    Raises:
        RunError: There is none, it cannot be read, a table is missing, or another version of the schema wrote it.
    """
    folder = Path(path)
    file = folder / "run.json"
    if not file.is_file():
        raise RunError(f"{folder} is not a run: it has no run.json. `anchorlens run --out {folder}` makes one.")
    try:
        record = json.loads(file.read_text(encoding="utf8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as why:
        raise RunError(f"{file} is damaged ({why}). Make the run again.") from why
    found = record.get("schema_version")
    if found not in _READABLE:
        known = " and ".join(map(str, _READABLE))
        raise RunError(f"{folder} has schema version {found}; this anchorlens reads {known}. Make the run again.")
    missing = [name for name in TABLES if not (folder / name).is_file()]
    if missing:
        raise RunError(f"{folder} lacks {', '.join(missing)}. Make the run again.")
    return record


def load_run(path: "str | Path") -> list[SweepResult]:
    """Read every sweep of a run directory.

    Raises:
        RunError: See :func:`read_record`.
    """
    record = read_record(path)
    samples, examples = (pd.read_parquet(Path(path) / name) for name in ("samples.parquet", "examples.parquet"))
    results: list[SweepResult] = []
    for sweep in record["sweeps"]:
        run_id, knockout = sweep["run_id"], sweep["config"]["protocol"] == "knockout"
        own = {key: value for key, value in sweep.items() if key not in ("run_id", "verdict")}
        kind = KnockoutResult if knockout else SweepResult
        result = kind.make(samples[samples["run_id"] == run_id], examples[examples["run_id"] == run_id], own, run_id)
        folder = Path(path) / "probes" / run_id
        if folder.is_dir():
            probes = LayerProbes.load(folder)
            if isinstance(result, KnockoutResult):
                placebos = {sub.name: LayerProbes.load(sub) for sub in sorted(folder.iterdir()) if sub.is_dir()}
                result = result.with_probes(probes, placebos)
            else:
                result = result.with_probes(probes)
        results.append(result)
    return results


def load_curves(path: "str | Path") -> pd.DataFrame:
    """All curves of a run directory, controls too, without computing anything again.

    Raises:
        RunError: See :func:`read_record`.
    """
    read_record(path)
    return pd.read_parquet(Path(path) / "curves.parquet")


__all__ = ["check_target", "curves_frame", "load_curves", "load_run", "read_record", "save_run"]
