"""Save sweeps as a run directory: tables, probes, figure and record."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from anchorlens.display import short_repr, warn
from anchorlens.errors import InputError, RunError
from anchorlens.figures.choose_figure import main_figure
from anchorlens.figures.export import html_page, write_file
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.final_write import check_target, restore_run
from anchorlens.runs.locks import RunLock, lock_run
from anchorlens.runs.schema import order_columns
from anchorlens.runs.store import write_run


def save_run(
    results: SweepResult | Sequence[SweepResult],
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> Path:
    """Save sweeps as one run directory: run.json, examples, samples, curves and contrasts as
    parquet, figure.html.

    Truth probes are saved in probes/RUN_ID, those of placebos in subfolders.

    Examples:
        >>> import anchorlens as al
        >>> data = al.load_qa("popqa-sample", limit=20)
        >>> sweep = al.swap_sweep("smollm2-135m-instruct", data, layers=(0, 24))  # doctest: +SKIP
        >>> al.save_run(sweep, "runs/swap")  # doctest: +SKIP

    Args:
        results: Sweeps of any number of models, data sets and protocols.
        path: Directory to write; missing parents are created.
        overwrite: Replace an existing run.

    Returns:
        The directory.

    Raises:
        RunError: If ``path`` holds other files, or a run and ``overwrite`` is False; if another
            process writes the run; if there is no sweep, or one twice.
    """
    sweeps = list(results) if isinstance(results, Sequence) else [results]
    others = [one for one in sweeps if not isinstance(one, SweepResult)]
    if others:
        raise RunError(
            f"save_run takes the result of a sweep, or a list of them; got {short_repr(others[0])}."
        )
    target = check_target(path, overwrite=overwrite)
    _check_sweeps(sweeps)
    with lock_run(target, prepare=restore_run) as lock:
        check_target(target, overwrite=overwrite)
        return write_results(sweeps, lock)


def _check_sweeps(sweeps: Sequence[SweepResult]) -> None:
    """Raise RunError unless there is at least one sweep, and each only once."""
    if not sweeps:
        raise RunError("A run needs at least one sweep, and each only once; got none.")
    ids = [sweep.run_id for sweep in sweeps]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice is not None:
        raise RunError(
            f"A run needs at least one sweep, and each only once; run_id {twice} is there"
            f" {ids.count(twice)} times: the same specification on the same model and data."
        )


def write_results(
    sweeps: Sequence[SweepResult],
    lock: RunLock,
    *,
    pending: Sequence[str] = (),
    study: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write sweeps as the run directory whose lock this process holds; :func:`save_run` describes
    it.

    Args:
        sweeps: Sweeps with different run ids.
        lock: Lock of the run. An existing run is replaced.
        pending: Sweeps of the study that are not finished, for the record.
        study: Sweeps of the whole study, for the record; a study can only be resumed if they are
            equal.

    Returns:
        The directory.

    Raises:
        RunError: If a file cannot be written.
    """
    computed = {
        "curves": [sweep.curves(controls=True, all_columns=True) for sweep in sweeps],
        "contrasts": [sweep.contrasts(all_columns=True) for sweep in sweeps],
    }
    contrasts = [frame for frame in computed["contrasts"] if len(frame)]
    frames = {
        "examples": [sweep.examples(all_columns=True) for sweep in sweeps],
        "samples": [sweep.samples(all_columns=True) for sweep in sweeps],
        "curves": computed["curves"],
        **({"contrasts": contrasts} if contrasts else {}),
    }
    tables: dict[str, pd.DataFrame] = {}
    for table, own in frames.items():
        whole = pd.concat(own, ignore_index=True)
        tables[table] = order_columns(table, whole)

    def more(folder: Path) -> None:
        for sweep in sweeps:
            if sweep.probes is not None:
                sweep.probes.save(folder / "probes" / sweep.run_id)
            for name, probes in sweep.placebo_probes.items():
                probes.save(folder / "probes" / sweep.run_id / name)
        try:
            write_file(folder / "figure.html", html_page(main_figure(sweeps)))
        except InputError as why:  # the tables are saved even if the curves cannot share a figure
            warn(f"No figure.html in {lock.target}: {why}")

    entries: list[dict[str, Any]] = []
    for i, sweep in enumerate(sweeps):
        counts = {name: len(own[i]) for name, own in (frames | computed).items()}
        entries.append(
            {
                "run_id": sweep.run_id,
                **sweep.record,
                "verdict": str(sweep.findings),
                "findings": sweep.findings.to_dict(),
                "rows": counts,
            }
        )
    return write_run(lock, tables, entries, more=more, pending=pending, study=study)


__all__ = ["save_run", "write_results"]
