"""Verify a run directory: its files and provenance without torch, then random cells by :mod:`anchorlens.running.remeasure`."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from anchorlens.display import as_whole, described, listed
from anchorlens.errors import InputError
from anchorlens.questions.datasets import QAData, load_qa
from anchorlens.runs.checksums import SUMS, find_changed_files
from anchorlens.runs.provenance import code_sha256, versions
from anchorlens.runs.schema import answer_first
from anchorlens.runs.store import read_record

MATCH, MISMATCH, DIFFERS, NOT_CHECKED = "match", "mismatch", "differs", "not checked"
# Files whose bytes decide nothing that is read below.
_NOT_READ = ("figure.html", SUMS)
_SAMPLE = "sample:"


@dataclass(frozen=True)
class Check:
    """One check of a run.

    Attributes:
        what: ``files``, ``weights``, ``tokenizer``, ``data``, ``code`` or ``cells``, and of what.
        status: ``match``, ``mismatch``, ``not checked``, or ``differs`` (another version of the code, which may give the same
            numbers).
        detail: Explanation of the status.
    """

    what: str
    status: str
    detail: str


@dataclass(frozen=True)
class Verification:
    """The checks of a run; frozen.

    Attributes:
        path: Run directory.
        checks: Checks in the order in which they were made.
    """

    path: Path
    checks: tuple[Check, ...]
    _cells: pd.DataFrame = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether there is no mismatch; what was not checked does not count."""
        return all(check.status != MISMATCH for check in self.checks)

    def table(self) -> pd.DataFrame:
        """Return one row per check."""
        return pd.DataFrame([vars(check) for check in self.checks])

    def cells(self) -> pd.DataFrame:
        """Return the cells that were measured again.

        Returns:
            The columns of ``samples.parquet``, ``value_before_again``, ``value_after_again``, ``effect_again``, and ``max_abs_diff``: the
            largest difference of the three, in points. Empty if none was measured.
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
    callables: Mapping[str, Callable[..., Any]] | None = None,
    show_progress: bool = True,
) -> Verification:
    """Check a run directory: its files, what it was measured with, and random cells, measured again by the reference engine.

    If files of the run were changed, nothing else is checked.

    Args:
        path: Run directory.
        cells: Number of cells that are measured again, of all sweeps together. If 0, only a model that is given is loaded.
        seed: Random seed of the draw.
        model: The model, or models by the name that the run has for them, as :func:`anchorlens.load_model` takes them. If None,
            they are loaded by their names; a model from a directory or of your own has to be given.
        data: The question set, or question sets by name, to compare their hashes. The embedded samples need not be given.
        device: Device of the models.
        stream: Read the weights of models that are loaded here layer by layer, for those larger than memory (docs/streaming.md).
        n_devices: Number of devices that a model is spread over.
        callables: Functions of your own that the run was made with, by argument: ``{"readout": ..., "site": ...}``.
        show_progress: Show a progress bar.

    Returns:
        The checks. A difference is no error.

    Raises:
        RunError: If it is no run.
        InputError: If an argument is wrong, or the model has to be given.
    """
    if (count := as_whole(cells)) is None or count < 0:
        raise InputError(f"cells takes a whole number from 0 on; got {described(cells)}.")
    folder, none = Path(path), pd.DataFrame()
    changed, others = find_changed_files(folder)
    text = "; ".join(changed) or "every byte is as it was written"
    more = f"; no part of the run: {listed(others, 5)}" if others else ""
    checks = [Check("files", MISMATCH if changed else MATCH, text + more)]
    if any(line.split()[0] not in _NOT_READ for line in changed):
        return Verification(folder, (*checks, Check("cells", NOT_CHECKED, "files of the run were changed")), none)
    sweeps = read_record(folder)["sweeps"]
    checks += [_check_code(sweeps), *_check_data(sweeps, data)]
    if count == 0 and model is None:
        names = dict.fromkeys(sweep["model"]["name"] for sweep in sweeps)
        checks += [Check(f"weights: {name}", NOT_CHECKED, "no cell is measured and no model is given") for name in names]
        return Verification(folder, tuple(checks), none)
    from anchorlens.running.remeasure import remeasure_cells  # imports torch

    how: dict[str, Any] = {"device": device, "n_devices": n_devices, "stream": stream}
    found, frame = remeasure_cells(folder, count, seed, model, how, callables or {}, show_progress=show_progress)
    checks += [Check(*one) for one in found]
    return Verification(folder, tuple(checks), frame)


def _check_code(sweeps: list[dict[str, Any]]) -> Check:
    """Compare versions; another one is no mismatch, but may explain a difference."""
    now = {"code_sha256": code_sha256(), **versions()}
    thens = [{"code_sha256": sweep["environment"]["code_sha256"], **sweep["environment"]["versions"]} for sweep in sweeps]
    found = [
        f"{name} {str(then.get(name))[:12]} then, {value[:12]} now"
        for then in thens for name, value in now.items() if then.get(name) != value
    ]  # fmt: skip
    text = "; ".join(dict.fromkeys(found))
    return Check("code", DIFFERS if text else MATCH, text or f"anchorlens {now['anchorlens']}, and the same packages")


def _check_data(sweeps: list[dict[str, Any]], given: "QAData | Mapping[str, QAData] | None") -> list[Check]:
    found: list[Check] = []
    for name, record in {sweep["data"]["name"]: sweep["data"] for sweep in sweeps}.items():
        qa = given.get(name) if isinstance(given, Mapping) else given
        if qa is None and str(record["source"]).startswith(_SAMPLE):
            qa = load_qa(name)
        if qa is None:
            text = f"{record['source']} is not at hand (give data=); the cells need only what the run directory holds"
        else:
            text = f"other rows: {record['sha256'][:12]} then, {qa.sha256[:12]} now"
        same = qa is not None and qa.sha256 == record["sha256"]
        outcome = NOT_CHECKED if qa is None else MATCH if same else MISMATCH
        found.append(Check(f"data: {name}", outcome, "the rows that were measured" if same else text))
    return found
