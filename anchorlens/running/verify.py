"""Verify a run directory: files, provenance and results without torch, then inputs and random cells
with the model.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from anchorlens.constants import ALL_CELLS
from anchorlens.display import as_int, escape_hidden, join_words, short_repr
from anchorlens.errors import AnchorlensError, InputError, RunError
from anchorlens.loading.load_run import load_run
from anchorlens.progress import progress, waiting
from anchorlens.prompts.dataset import PromptDataset
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.protocols.registry import specification_of
from anchorlens.questions.datasets import load_qa
from anchorlens.results.sweep import SweepResult
from anchorlens.running.recompute import compare_figure, compare_results
from anchorlens.runs.checksums import SUMS, find_changed_files
from anchorlens.runs.provenance import code_sha256, versions
from anchorlens.runs.schema import answer_first
from anchorlens.runs.store import open_for_reading, read_record

MATCH = "match"
MISMATCH = "mismatch"
DIFFERS = "differs"
NOT_CHECKED = "not checked"
# Files that the checks below do not read.
_NOT_READ = ("figure.html",)
_SAMPLE = "sample:"


@dataclass(frozen=True)
class Check:
    """One check of a run.

    Attributes:
        what: ``files``, ``code``, ``data: NAME``, ``tables: SWEEP``, ``figure``, ``weights: NAME``,
            ``tokenizer: NAME``, ``inputs: SWEEP`` or ``cells: SWEEP``.
        status: ``match``, ``mismatch``, ``not checked``, or ``differs`` (another code version,
            possibly with the same numbers).
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

    Examples:
        >>> import anchorlens as al
        >>> checked = al.verify_run("runs/swap", cells=0)  # doctest: +SKIP
        >>> checked.table()[["what", "status"]]  # doctest: +SKIP

    Attributes:
        path: Run directory.
        checks: Checks in execution order.
        limits: Sentences on changes that these checks do not detect.
    """

    path: Path
    checks: tuple[Check, ...]
    limits: tuple[str, ...]
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
            Columns of ``samples.parquet``, ``value_before_again``, ``value_after_again``,
            ``effect_again``, ``max_abs_diff``: the largest difference, in the ``unit`` of the
            effect. Empty if no cell was measured.
        """
        return self._cells[answer_first(self._cells)].copy()

    def __repr__(self) -> str:
        lines = [f"  {one.what}: {one.status}; {one.detail}" for one in self.checks]
        head = f"Verification of {self.path}: {MATCH if self.ok else MISMATCH}"
        return escape_hidden("\n".join([head, *lines, *self.limits]))


def verify_run(
    path: "str | os.PathLike[str]",
    *,
    cells: int | str = 20,
    seed: int = 0,
    model: Any = None,
    data: "PromptDataset | Mapping[str, PromptDataset] | None" = None,
    device: str | None = None,
    stream: bool = False,
    n_devices: int = 1,
    backend: str | None = None,
    callables: Mapping[str, Callable[..., Any]] | None = None,
    show_progress: bool = True,
) -> Verification:
    """Check the files and provenance of a run, recompute its results from its samples, and measure
    random cells again.

    If files of the run have changed, or its tables and record contradict each other, no further
    check is made. The reference engine measures the cells.

    Examples:
        >>> import anchorlens as al
        >>> checked = al.verify_run("runs/swap", cells=8)  # doctest: +SKIP
        >>> checked.ok  # doctest: +SKIP
        True
        >>> checked.cells().head()  # doctest: +SKIP

    Args:
        path: Run directory.
        cells: Number of cells to measure again, over all sweeps, or ``all``. If 0, only a given
            model is loaded.
        seed: Random seed of the draw.
        model: The model, or models by the name that the run has for them, as
            :func:`anchorlens.load_model` takes them. If None, they are loaded by their names; a
            model from a directory or of your own has to be given.
        data: The data set, or data sets by name, to compare their hashes. The embedded samples need
            not be given, nor a file that is in the current folder or beside the run.
        device: Device of the models.
        stream: Whether to read the weights of models layer by layer (docs/scaling.md).
        n_devices: Number of devices over which a model is spread.
        backend: ``hooked`` or ``bridge``. If None, that of the run, where this version of
            TransformerLens has it.
        callables: User functions that the run was made with, by argument: ``{"readout": ...,
            "site": ...}``.
        show_progress: Whether to show a progress bar.

    Returns:
        The checks; a mismatch raises no error.

    Raises:
        RunError: If ``path`` is no run, or another process replaces it in the meantime.
        InputError: If an argument is invalid, or a model must be given.
    """
    count = None if cells == ALL_CELLS else as_int(cells)
    if cells != ALL_CELLS and (count is None or count < 0):
        raise InputError(
            f"cells={short_repr(cells)} must be a whole number of at least 0, or {ALL_CELLS!r}.",
            argument="cells",
        )
    none = pd.DataFrame()
    with ExitStack() as display, open_for_reading(path) as folder:
        label = f"verify {folder.name}: checking files and tables"
        display.enter_context(waiting(label, show=show_progress))
        changed, others = find_changes(folder)
        text = "; ".join(changed) or "all bytes match SHA256SUMS"
        more = f"; not part of the run: {join_words(others, 5)}" if others else ""
        checks = [Check("files", MISMATCH if changed else MATCH, text + more)]
        if find_damage(changed):
            return Verification(
                folder,
                (*checks, Check("cells", NOT_CHECKED, "files of the run have changed")),
                (),
                none,
            )
        record = read_record(folder)
        sweeps = record["sweeps"]
        data_checks, sets = _check_data(folder, sweeps, data)
        checks += [_check_code(sweeps), *data_checks]
        try:
            results = load_run(folder)
        except RunError as why:
            rest = Check("cells", NOT_CHECKED, "tables and record of the run contradict each other")
            return Verification(
                folder, (*checks, Check("tables", MISMATCH, str(why)), rest), (), none
            )
        checks += _check_results(folder, sweeps, results)
        if count == 0 and model is None:
            names = dict.fromkeys(sweep["model"]["name"] for sweep in sweeps)
            why_not = "cells=0 and no model given"
            checks += [Check(f"weights: {name}", NOT_CHECKED, why_not) for name in names]
            return Verification(folder, tuple(checks), (_NO_CELL,), none)
        from anchorlens.running.remeasure import count_cells, remeasure_cells  # imports torch

        how: dict[str, Any] = {
            "device": device,
            "n_devices": n_devices,
            "stream": stream,
            "backend": backend,
            "progress": show_progress,
        }
        display.close()  # model and cells have displays of their own
        total = count_cells(results)
        drawn = total if count is None else min(count, total)
        with progress(
            f"verify {folder.name}", max(1, drawn), "cell", show=show_progress and drawn > 0
        ) as bar:
            found, frame = remeasure_cells(
                results,
                sets,
                n_cells=count,
                seed=seed,
                model=model,
                loading=how,
                callables=callables or {},
                bar=bar,
            )
        checks += [Check(*one) for one in found]
        return Verification(folder, tuple(checks), _limits(drawn, total), frame)


_NO_CELL = (
    "Not detected: values of the samples that the model does not give, because no cell was measured"
    " again."
)


def _limits(drawn: int, total: int) -> tuple[str, ...]:
    """Return what stays undetected if some of the cells are measured again."""
    if drawn == total:
        return ()
    if not drawn:
        return (_NO_CELL,)
    share = f"{100 * drawn / total:.2g} %"
    return (
        (
            f"{drawn} of {total} cells ({share}) were drawn. Not detected: another value of a cell"
            " that was not drawn, if effect, curves, contrasts and findings were changed to agree"
            " with it. cells='all' measures every cell again."
        ),
    )


def _check_results(
    folder: Path, sweeps: Sequence[Mapping[str, Any]], results: Sequence[SweepResult]
) -> list[Check]:
    """Recompute curves, contrasts, findings and the figure from the samples, and compare them with
    the stored ones.
    """
    checks: list[Check] = []
    starts = {"curves": 0, "contrasts": 0}
    fresh = [result.with_tables({}) for result in results]
    for sweep, stored, again in zip(sweeps, results, fresh, strict=True):
        what = f"tables: {stored.protocol.name} {stored.model} {stored.dataset}"
        try:
            problems = compare_results(sweep, stored, again, starts)
        except RunError as why:
            problems = [str(why)]
        checks.append(
            Check(what, MISMATCH, "; ".join(problems)) if problems else Check(what, MATCH, _DERIVED)
        )
        starts = {name: start + sweep["rows"].get(name, 0) for name, start in starts.items()}
    if any(check.status == MISMATCH for check in checks):
        return [*checks, Check("figure", NOT_CHECKED, "its tables differ")]
    versions_then = {sweep["environment"]["versions"].get("plotly") for sweep in sweeps}
    if versions_then != {versions()["plotly"]}:
        return [*checks, Check("figure", NOT_CHECKED, "another version of plotly wrote it")]
    problem = compare_figure(folder, fresh)
    return [
        *checks,
        Check("figure", MISMATCH if problem else MATCH, problem or "drawn again from the samples"),
    ]


_DERIVED = "curves, contrasts and findings recomputed from the samples"


def find_changes(folder: Path) -> tuple[list[str], list[str]]:
    """Return the result of :func:`find_changed_files`.

    Raise RunError if a folder has neither a record nor checksums.
    """
    if not (folder / SUMS).is_file() and not (folder / "run.json").is_file():
        read_record(folder)
    return find_changed_files(folder)


def find_damage(changed: Sequence[str]) -> list[str]:
    """Return the lines of :func:`find_changed_files` that concern files which are read."""
    return [line for line in changed if line.split()[0] not in _NOT_READ]


def _check_code(sweeps: list[dict[str, Any]]) -> Check:
    """Compare versions; a difference is no mismatch, but may explain one."""
    now = {"code_sha256": code_sha256(), **versions()}
    found: list[str] = []
    for sweep in sweeps:
        environment = sweep["environment"]
        stored = {"code_sha256": environment["code_sha256"], **environment["versions"]}
        for name, value in now.items():
            then = stored.get(name)
            if then != value:
                found.append(f"{name} {str(then)[:12]} then, {value[:12]} now")
    text = "; ".join(dict.fromkeys(found))
    return Check(
        "code",
        DIFFERS if text else MATCH,
        text or f"anchorlens {now['anchorlens']} and the same packages",
    )


def _check_data(
    folder: Path,
    sweeps: list[dict[str, Any]],
    given: "PromptDataset | Mapping[str, PromptDataset] | None",
) -> tuple[list[Check], dict[str, Any]]:
    """Compare the hashes of the data sets, and return the checks and the data sets that match, by
    name.
    """
    found: list[Check] = []
    sets: dict[str, Any] = {}
    for name, sweep in {sweep["data"]["name"]: sweep for sweep in sweeps}.items():
        record = sweep["data"]
        here: Any = given.get(name) if isinstance(given, Mapping) else given
        if here is None and str(record["source"]).startswith(_SAMPLE):
            here = load_recorded_data(sweep)
        if here is None:
            here = _same_file(folder, sweep)
        if here is None:
            text = (
                f"{record['source']} is not here: give the data set to compare its rows. The cells"
                " need only the run directory"
            )
        else:
            text = f"other rows: {record['sha256'][:12]} then, {here.sha256[:12]} now"
        same = here is not None and here.sha256 == record["sha256"]
        outcome = NOT_CHECKED if here is None else MATCH if same else MISMATCH
        found.append(Check(f"data: {name}", outcome, "the measured rows" if same else text))
        if same:
            sets[name] = here
    return found, sets


def load_recorded_data(
    sweep: Mapping[str, Any],
    path: "str | os.PathLike[str] | None" = None,
    columns: Mapping[str, str] | None = None,
) -> Any:
    """Load a file, or the recorded sample, as the data set of a sweep was loaded; ``columns``
    replaces the recorded ones.
    """
    record = sweep["data"]
    sample = str(record["source"]).removeprefix(_SAMPLE)
    if specification_of(sweep["config"]["protocol"]).DATA == "pairs":
        given = _reading_arguments(
            record, ("columns", "answer_space", "numbers", "answers_sep"), columns
        )
        named = {"dataset_name": record["name"], "limit": record["limit"]}
        return load_pairs(path or sample, **named, **given)
    drawn: dict[str, Any] = {"limit": record["limit"], "seed": record["seed"]}
    if " " not in record["spans"]:  # else a function of the user, by name and hash
        drawn["spans"] = record["spans"]
    if path is None:
        return load_qa(record["name"], **drawn)
    reading = _reading_arguments(record, ("columns", "answers_sep"), columns)
    return load_qa(record["name"], path=path, **reading, **drawn)


def _reading_arguments(
    record: Mapping[str, Any], names: Sequence[str], columns: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return the recorded arguments of a loader; ``columns`` replaces the recorded ones."""
    recorded = record.get("reading", {})
    given = {name: recorded[name] for name in names if name in recorded}
    return {**given, "columns": columns} if columns else given


def _same_file(folder: Path, sweep: Mapping[str, Any]) -> Any:
    """Load the recorded file in the current folder or beside the run; None if no file of this name
    has the same rows.
    """
    kind, _, file = str(sweep["data"]["source"]).partition(":")
    for path in (Path(file), folder.absolute().parent / file) if kind == "file" else ():
        try:
            if (
                path.is_file()
                and (data := load_recorded_data(sweep, path)).sha256 == sweep["data"]["sha256"]
            ):
                return data
        except AnchorlensError:  # another file of that name
            continue
    return None
