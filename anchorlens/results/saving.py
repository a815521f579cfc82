"""Save sweeps as a run directory: tables, probes, figure and record; load their probes."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pandas as pd

from anchorlens.display import short_repr
from anchorlens.errors import InputError, RunError
from anchorlens.figures.export import html_page, write_file
from anchorlens.results.analysis import main_figure
from anchorlens.results.findings import Findings
from anchorlens.runs.checksums import check_file
from anchorlens.runs.final_write import check_target, restore_run
from anchorlens.runs.locks import RunLock, lock_run
from anchorlens.runs.schema import order_columns
from anchorlens.runs.store import write_run
from anchorlens.warn import warn

if TYPE_CHECKING:
    import anchorlens.probing.cross_fitting


@runtime_checkable
class SavableResult(Protocol):
    """Interface of a result that :func:`save_run` writes."""

    @property
    def run_id(self) -> str: ...
    @property
    def record(self) -> dict[str, Any]: ...
    @property
    def probes(self) -> "anchorlens.probing.cross_fitting.CrossFittedProbes | None": ...
    @property
    def placebo_probes(self) -> "Mapping[str, anchorlens.probing.cross_fitting.CrossFittedProbes]": ...
    @property
    def findings(self) -> Findings: ...
    def samples(self, *, all_columns: bool = ...) -> pd.DataFrame: ...
    def examples(self, *, all_columns: bool = ...) -> pd.DataFrame: ...
    def contrasts(self, *, all_columns: bool = ...) -> pd.DataFrame: ...
    def curves(self, *, controls: bool = ..., all_columns: bool = ...) -> pd.DataFrame: ...


def save_run(
    results: "SavableResult | Sequence[SavableResult]", path: "str | os.PathLike[str]", *, overwrite: bool = False
) -> Path:  # fmt: skip
    """Save sweeps as one run directory: run.json, examples, samples, curves and contrasts as parquet, figure.html.

    Truth probes are saved in probes/RUN_ID, those of placebos in subfolders.

    Args:
        results: Sweeps of any number of models, data sets and protocols.
        path: Directory to write; missing parents are created.
        overwrite: Replace an existing run.

    Returns:
        The directory.

    Raises:
        RunError: If ``path`` holds other files, or a run and ``overwrite`` is False; if another process writes the run; if there is
            no sweep, or one twice.
    """
    sweeps = list(results) if isinstance(results, Sequence) else [results]
    others = [one for one in sweeps if not hasattr(one, "run_id")]
    if others:
        raise RunError(f"save_run takes the result of a sweep, or a list of them; got {short_repr(others[0])}.")
    target = check_target(path, overwrite=overwrite)
    _check_sweeps(sweeps)
    with lock_run(target, prepare=restore_run) as lock:
        check_target(target, overwrite=overwrite)
        return write_results(sweeps, lock)


def _check_sweeps(sweeps: "Sequence[SavableResult]") -> None:
    """Raise RunError unless there is at least one sweep, and each only once."""
    if not sweeps:
        raise RunError("A run needs at least one sweep, and each only once; got none.")
    ids = [sweep.run_id for sweep in sweeps]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice is not None:
        raise RunError(
            f"A run needs at least one sweep, and each only once; run_id {twice} is there {ids.count(twice)} times: the same "
            "specification on the same model and data."
        )


def write_results(
    sweeps: "Sequence[SavableResult]", lock: RunLock, *, pending: Sequence[str] = (), study: Sequence[Mapping[str, Any]] = ()
) -> Path:
    """Write sweeps as the run directory whose lock this process holds; :func:`save_run` describes it.

    Args:
        sweeps: Sweeps with different run ids.
        lock: Lock of the run. An existing run is replaced.
        pending: Sweeps of the study that are not finished, for the record.
        study: Sweeps of the whole study, for the record; a study can only be resumed if they are equal.

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
    tables = {name: order_columns(name, pd.concat(own, ignore_index=True)) for name, own in frames.items()}

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

    entries = [
        {
            "run_id": sweep.run_id, **sweep.record, "verdict": str(sweep.findings), "findings": sweep.findings.to_dict(),
            "rows": {name: len(own[i]) for name, own in (frames | computed).items()},
        }
        for i, sweep in enumerate(sweeps)
    ]  # fmt: skip
    return write_run(lock, tables, entries, more=more, pending=pending, study=study)


def load_probes(folder: Path) -> "dict[str, anchorlens.probing.cross_fitting.CrossFittedProbes]":
    """Load the probes of a saved sweep, ``RUN/probes/RUN_ID``, by control: ``none`` for the readout, else the name of a placebo.

    Raises:
        RunError: If a file is damaged or missing.
    """
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        check_file(folder.parents[1], file.relative_to(folder.parents[1]).as_posix())
    from safetensors import SafetensorError

    from anchorlens.probing.cross_fitting import CrossFittedProbes

    homes = {"none": folder, **{sub.name: sub for sub in sorted(folder.iterdir()) if sub.is_dir()}}
    try:
        return {name: CrossFittedProbes.load(home) for name, home in homes.items()}
    except (SafetensorError, OSError, LookupError, ValueError) as why:
        raise RunError(f"The probes in {folder} cannot be read ({why}). Make the run again.") from why


__all__ = ["load_probes", "save_run"]
