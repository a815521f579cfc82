"""Verify a run directory: files and provenance without torch, then random cells with :mod:`anchorlens.running.remeasure`."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from anchorlens.display import as_int, join_words, short_repr
from anchorlens.errors import AnchorlensError, InputError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.protocols.registry import specification_of
from anchorlens.questions.datasets import QAData, load_qa
from anchorlens.runs.checksums import SUMS, find_changed_files
from anchorlens.runs.final_write import find_run
from anchorlens.runs.provenance import code_sha256, versions
from anchorlens.runs.schema import answer_first
from anchorlens.runs.store import read_record

MATCH, MISMATCH, DIFFERS, NOT_CHECKED = "match", "mismatch", "differs", "not checked"
# Files that the checks below do not read.
_NOT_READ = ("figure.html",)
_SAMPLE = "sample:"


@dataclass(frozen=True)
class Check:
    """One check of a run.

    Attributes:
        what: ``files``, ``code``, ``weights: NAME``, ``tokenizer: NAME``, ``data: NAME`` or ``cells: SWEEP``.
        status: ``match``, ``mismatch``, ``not checked``, or ``differs`` (another code version, possibly with the same numbers).
        detail: Explanation of the status.
    """

    what: str
    status: str
    detail: str

    @property
    def needs_data(self) -> bool:
        """Whether a data set has to be given for this check."""
        return self.what.startswith("data: ") and self.status == NOT_CHECKED


@dataclass(frozen=True)
class Verification:
    """Checks of a run; frozen.

    Attributes:
        path: Run directory.
        checks: Checks in execution order.
    """

    path: Path
    checks: tuple[Check, ...]
    _cells: pd.DataFrame = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether no check is a mismatch; unchecked parts do not count."""
        return all(check.status != MISMATCH for check in self.checks)

    def table(self) -> pd.DataFrame:
        """Return one row per check."""
        return pd.DataFrame([vars(check) for check in self.checks])

    def cells(self) -> pd.DataFrame:
        """Return the cells measured again.

        Returns:
            Columns of ``samples.parquet``, ``value_before_again``, ``value_after_again``, ``effect_again``, ``max_abs_diff``: the
            largest difference, in the ``unit`` of the effect. Empty if no cell was measured.
        """
        return self._cells[answer_first(self._cells)].copy()

    def __repr__(self) -> str:
        lines = "\n".join(f"  {one.what}: {one.status}; {one.detail}" for one in self.checks)
        return f"Verification of {self.path}: {MATCH if self.ok else MISMATCH}\n{lines}"


def verify_run(
    path: "str | os.PathLike[str]",
    *,
    cells: int = 20,
    seed: int = 0,
    model: Any = None,
    data: "QAData | Mapping[str, QAData] | None" = None,
    device: str | None = None,
    stream: bool = False,
    n_devices: int = 1,
    backend: str | None = None,
    callables: Mapping[str, Callable[..., Any]] | None = None,
    show_progress: bool = True,
) -> Verification:
    """Check the files and provenance of a run, and measure random cells again with the reference engine.

    If files of the run have changed, no further check is made.

    Args:
        path: Run directory.
        cells: Number of cells to measure again, over all sweeps. If 0, only a given model is loaded.
        seed: Random seed of the draw.
        model: The model, or models by the name that the run has for them, as :func:`anchorlens.load_model` takes them. If None,
            they are loaded by their names; a model from a directory or of your own has to be given.
        data: The question set, or question sets by name, to compare their hashes. The embedded samples need not be given, nor a
            file that is in the current folder or beside the run.
        device: Device of the models.
        stream: Whether to read the weights of models layer by layer (docs/streaming.md).
        n_devices: Number of devices over which a model is spread.
        backend: ``hooked`` or ``bridge``. If None, that of the run, where this version of TransformerLens has it.
        callables: User functions that the run was made with, by argument: ``{"readout": ..., "site": ...}``.
        show_progress: Whether to show a progress bar.

    Returns:
        The checks; a mismatch raises no error.

    Raises:
        RunError: If ``path`` is no run.
        InputError: If an argument is invalid, or a model must be given.
    """
    if (count := as_int(cells)) is None or count < 0:
        raise InputError(f"cells={short_repr(cells)} must be a whole number of at least 0.", argument="cells")
    folder, none = find_run(path), pd.DataFrame()
    changed, others = find_changes(folder)
    text = "; ".join(changed) or "all bytes match SHA256SUMS"
    more = f"; not part of the run: {join_words(others, 5)}" if others else ""
    checks = [Check("files", MISMATCH if changed else MATCH, text + more)]
    if find_damage(changed):
        return Verification(folder, (*checks, Check("cells", NOT_CHECKED, "files of the run have changed")), none)
    sweeps = read_record(folder)["sweeps"]
    checks += [_check_code(sweeps), *_check_data(folder, sweeps, data)]
    if count == 0 and model is None:
        names = dict.fromkeys(sweep["model"]["name"] for sweep in sweeps)
        checks += [Check(f"weights: {name}", NOT_CHECKED, "cells=0 and no model given") for name in names]
        return Verification(folder, tuple(checks), none)
    from anchorlens.running.remeasure import remeasure_cells  # imports torch

    how: dict[str, Any] = {"device": device, "n_devices": n_devices, "stream": stream, "backend": backend}
    found, frame = remeasure_cells(folder, count, seed, model, how, callables or {}, show_progress=show_progress)
    checks += [Check(*one) for one in found]
    return Verification(folder, tuple(checks), frame)


def find_changes(folder: Path) -> tuple[list[str], list[str]]:
    """Return the result of :func:`find_changed_files`. Raise RunError if a folder has neither a record nor checksums."""
    if not (folder / SUMS).is_file() and not (folder / "run.json").is_file():
        read_record(folder)
    return find_changed_files(folder)


def find_damage(changed: Sequence[str]) -> list[str]:
    """Return the lines of :func:`find_changed_files` that concern files which are read."""
    return [line for line in changed if line.split()[0] not in _NOT_READ]


def _check_code(sweeps: list[dict[str, Any]]) -> Check:
    """Compare versions; a difference is no mismatch, but may explain one."""
    now = {"code_sha256": code_sha256(), **versions()}
    thens = [{"code_sha256": sweep["environment"]["code_sha256"], **sweep["environment"]["versions"]} for sweep in sweeps]
    found = [
        f"{name} {str(then.get(name))[:12]} then, {value[:12]} now"
        for then in thens for name, value in now.items() if then.get(name) != value
    ]  # fmt: skip
    text = "; ".join(dict.fromkeys(found))
    return Check("code", DIFFERS if text else MATCH, text or f"anchorlens {now['anchorlens']} and the same packages")


def _check_data(folder: Path, sweeps: list[dict[str, Any]], given: "QAData | Mapping[str, QAData] | None") -> list[Check]:
    found: list[Check] = []
    for name, sweep in {sweep["data"]["name"]: sweep for sweep in sweeps}.items():
        record = sweep["data"]
        here: Any = given.get(name) if isinstance(given, Mapping) else given
        if here is None and str(record["source"]).startswith(_SAMPLE):
            here = load_recorded_data(sweep)
        if here is None:
            here = _same_file(folder, sweep)
        if here is None:
            text = f"{record['source']} is not here: give the data set to compare its rows. The cells need only the run directory"
        else:
            text = f"other rows: {record['sha256'][:12]} then, {here.sha256[:12]} now"
        same = here is not None and here.sha256 == record["sha256"]
        outcome = NOT_CHECKED if here is None else MATCH if same else MISMATCH
        found.append(Check(f"data: {name}", outcome, "the measured rows" if same else text))
    return found


def load_recorded_data(
    sweep: Mapping[str, Any], path: "str | os.PathLike[str] | None" = None, columns: Mapping[str, str] | None = None
) -> Any:
    """Load a file, or the recorded sample, as the data set of a sweep was loaded; ``columns`` replaces the recorded ones."""
    record = sweep["data"]
    sample = str(record["source"]).removeprefix(_SAMPLE)
    if specification_of(sweep["config"]["protocol"]).DATA == "pairs":
        return load_pairs(path or sample, name=record["name"], limit=record["limit"])
    if path is None:
        return load_qa(record["name"])
    return load_qa(record["name"], path=path, **{**record.get("reading", {}), **({"columns": columns} if columns else {})})


def _same_file(folder: Path, sweep: Mapping[str, Any]) -> Any:
    """Load the recorded file in the current folder or beside the run; None if no file of this name has the same rows."""
    kind, _, file = str(sweep["data"]["source"]).partition(":")
    for path in (Path(file), folder.absolute().parent / file) if kind == "file" else ():
        try:
            if path.is_file() and (data := load_recorded_data(sweep, path)).sha256 == sweep["data"]["sha256"]:
                return data
        except AnchorlensError:  # another file of that name
            continue
    return None
