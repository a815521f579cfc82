"""Load the results of a run directory."""

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from anchorlens.errors import InputError, RunError
from anchorlens.protocols.registry import analysis_of, specification_of
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import TABLE_COLUMNS, settings_of
from anchorlens.runs.store import open_for_reading, read_record
from anchorlens.runs.validation import read_table

_AGAIN = "Make the run again."


def load_run(path: "str | os.PathLike[str]") -> list[SweepResult]:
    """Load all sweeps of a run directory.

    Args:
        path: Path of the run directory.

    Returns:
        List of the results as they were measured, in the order of the run. If the run has one sweep, ``(sweep,) = load_run(path)``
        gives its result.

    Raises:
        RunError: If the run is missing or damaged, or the schema has another version.
    """
    with open_for_reading(path) as folder:
        return _load_results(folder)


def _load_results(folder: Path) -> list[SweepResult]:
    record = read_record(folder)
    results: list[SweepResult] = []
    for sweep, stored in zip(record["sweeps"], _tables_of_sweeps(folder, record), strict=True):
        run_id, analysis = sweep["run_id"], analysis_of(sweep["config"]["protocol"])
        _check_names(folder, sweep, stored)
        rows = stored.pop("samples").assign(**settings_of(sweep["config"]))
        rest = {key: value for key, value in sweep.items() if key not in ("run_id", "verdict", "findings", "rows")}
        result = analysis.result.make(analysis, rows, stored.pop("examples"), rest, run_id)
        home = folder / "probes" / run_id
        results.append(result.with_probes(home if home.is_dir() else {}).with_tables(stored))
    return results


def results_of(given: Any) -> Any:
    """Replace paths of run directories by their results; a mapping keeps its labels, and nested sequences become one list.

    Raises:
        RunError: If a directory is no run.
    """
    if isinstance(given, str | os.PathLike):
        return load_run(given)
    if isinstance(given, Mapping):
        return {label: results_of(own) for label, own in given.items()}
    if isinstance(given, Sequence):
        return [one for part in map(results_of, given) for one in (part if isinstance(part, list) else [part])]
    return given


def _check_names(folder: Path, sweep: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> None:
    """Raise RunError if the arguments of a sweep are invalid, or if its tables name what was not measured."""
    own = {"own_code", *sweep["config"].get("own_code", {})}  # functions are not stored
    config = {name: one for name, one in sweep["config"].items() if name not in own and not str(one).startswith("callable:")}
    try:
        specification_of(config["protocol"]).from_config(config)
    except InputError as why:
        raise RunError(f"{folder / 'run.json'} is damaged: config: {why} {_AGAIN}") from why
    samples, examples = tables["samples"], tables["examples"]
    measured = {name: set(samples[name].unique()) for name in ("metric", "control", "anchor")}
    measured["example_id"] = set(examples.loc[examples["role"] == "base", "example_id"])
    for table, names in (("samples", ["example_id"]), ("curves", ["metric", "control", "anchor"])):
        for name in names:
            if other := set(tables[table][name].unique()) - measured[name]:
                raise RunError(f"{folder}: {table}.parquet has {name}={min(map(str, other))!r}, which was not measured. {_AGAIN}")


def _tables_of_sweeps(folder: Path, record: Mapping[str, Any]) -> list[dict[str, pd.DataFrame]]:
    """Return the rows of each sweep in every table. Raise RunError if a table has other rows than the record counts."""
    found: list[dict[str, pd.DataFrame]] = [{} for _ in record["sweeps"]]
    for name in TABLE_COLUMNS:
        there = (folder / f"{name}.parquet").is_file()
        table = read_table(folder, name) if there else pd.DataFrame(columns=list(TABLE_COLUMNS[name]))
        starts = list(accumulate((sweep["rows"].get(name, 0) for sweep in record["sweeps"]), initial=0))
        if starts[-1] != len(table):
            raise RunError(f"{folder}: {name}.parquet has {len(table)} rows, run.json counts {starts[-1]}. {_AGAIN}")
        for own, sweep, (start, end) in zip(found, record["sweeps"], pairwise(starts), strict=True):
            own[name] = table.iloc[start:end].reset_index(drop=True)
            if "layer" in table and not own[name]["layer"].isin(sweep["config"]["layers"]).all():
                raise RunError(f"{folder}: {name}.parquet has layers that were not measured. {_AGAIN}")
    return found
