"""Load the results of a run directory."""

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from anchorlens.errors import RunError
from anchorlens.loading.consistency import check_study, check_sweep
from anchorlens.protocols.registry import analysis_of
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import TABLE_COLUMNS, without_nulls
from anchorlens.runs.store import open_for_reading, read_record
from anchorlens.runs.validation import TableRows, read_table

_AGAIN = "Make the run again."
# Entries of a sweep in run.json that follow from the tables and the rest of its record.
_BESIDE_RECORD = ("run_id", "verdict", "findings", "rows")


class SweepList(list[SweepResult]):
    """List of the sweeps of a run; its error for an attribute of a sweep names the way to one."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        one = "(sweep,) = al.load_run(path)"
        if len(self) != 1:
            one = "sweep = al.load_run(path)[0], or another index"
        raise AttributeError(
            f"al.load_run returns a list of sweeps (here {len(self)}), which has no attribute"
            f" {name!r}. Write {one}, then sweep.{name}."
        )


def load_run(path: "str | os.PathLike[str]") -> list[SweepResult]:
    """Load all sweeps of a run directory.

    Examples:
        >>> import anchorlens as al
        >>> (sweep,) = al.load_run("runs/swap")  # doctest: +SKIP
        >>> print(sweep.verdict)  # doctest: +SKIP

    Args:
        path: Path of the run directory.

    Returns:
        List of the results as they were measured, in the order of the run. If the run has one
        sweep, ``(sweep,) = load_run(path)`` gives its result.

    Raises:
        RunError: If the run is missing or damaged, or the schema has another version.
    """
    with open_for_reading(path) as folder:
        return _load_results(folder)


def _load_results(folder: Path) -> list[SweepResult]:
    record = read_record(folder)
    check_study(folder, record)
    results = SweepList()
    for sweep, tables in zip(record["sweeps"], _tables_of_sweeps(folder, record), strict=True):
        run_id = sweep["run_id"]
        analysis = analysis_of(sweep["config"]["protocol"])
        check_sweep(folder, sweep, tables)
        stored = {name: rows.frame for name, rows in tables.items()}
        samples = stored.pop("samples")  # their nulls are replaced where the result is made
        stored = {name: without_nulls(frame) for name, frame in stored.items()}
        rest = {key: value for key, value in sweep.items() if key not in _BESIDE_RECORD}
        result = analysis.result.make(analysis, samples, stored.pop("examples"), rest, run_id)
        home = folder / "probes" / run_id
        results.append(result.with_probes(home if home.is_dir() else {}).with_tables(stored))
    return results


def results_of(given: Any) -> Any:
    """Replace paths of run directories by their results; a mapping keeps its labels, and nested
    sequences become one list.

    Raises:
        RunError: If a directory is no run.
    """
    if isinstance(given, str | os.PathLike):
        return load_run(given)
    if isinstance(given, Mapping):
        return {label: results_of(own) for label, own in given.items()}
    if isinstance(given, Sequence):
        found: list[Any] = []
        for part in map(results_of, given):
            found += part if isinstance(part, list) else [part]
        return found
    return given


def _tables_of_sweeps(folder: Path, record: Mapping[str, Any]) -> list[dict[str, TableRows]]:
    """Return the rows of each sweep in every table.

    Raise RunError if a table has other rows than the record counts.
    """
    found: list[dict[str, TableRows]] = [{} for _ in record["sweeps"]]
    for name in TABLE_COLUMNS:
        file = folder / f"{name}.parquet"
        table = (
            read_table(folder, name)
            if file.is_file()
            else pd.DataFrame(columns=list(TABLE_COLUMNS[name]))
        )
        starts = list(
            accumulate((sweep["rows"].get(name, 0) for sweep in record["sweeps"]), initial=0)
        )
        if starts[-1] != len(table):
            raise RunError(
                f"{folder}: {name}.parquet has {len(table)} rows, run.json counts {starts[-1]}."
                f" {_AGAIN}"
            )
        for own, sweep, (start, end) in zip(found, record["sweeps"], pairwise(starts), strict=True):
            own[name] = TableRows(file, table.iloc[start:end].reset_index(drop=True), start)
            if "layer" in table:
                own[name].check(
                    "layer",
                    ~own[name].frame["layer"].isin(sweep["config"]["layers"]),
                    "not measured",
                )
    return found
