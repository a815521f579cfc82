"""Run storage: the run directory, partial results, and checks before a run is continued."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorlens.errors import InputError, RunError
from anchorlens.models.adapter import unwrap_model
from anchorlens.models.source import name_in_results
from anchorlens.progress import waiting
from anchorlens.prompts.dataset import PromptDataset
from anchorlens.protocols.specification import Specification
from anchorlens.results.sweep import SweepResult
from anchorlens.running.saving import write_results
from anchorlens.runs.files import parts_of, remove_parts
from anchorlens.runs.final_write import check_target, find_run, rehearse_write, restore_run
from anchorlens.runs.jobs import Job
from anchorlens.runs.journal import Journal, as_json, differences, open_journal, refuse
from anchorlens.runs.locks import RunLock, running_jobs
from anchorlens.runs.storage_errors import name_storage_errors
from anchorlens.runs.store import read_record, study_of


def identity(model: Any, data: PromptDataset, spec: Specification) -> dict[str, Any]:
    """Return protocol, model, data and arguments of a sweep as JSON values; a local model is named
    by its folder.
    """
    code = spec.own_code()
    config = {**spec.identity(), **({"own_code": code} if code else {})}
    return as_json(
        {
            "protocol": spec.NAME,
            "model": name_in_record(model),
            "data": data.record(),
            "config": config,
        }
    )


def model_name(model: Any) -> str:
    """Return the name or path of a model as it was given, or the name of a live model in
    results.
    """
    return str(model) if isinstance(model, (str, os.PathLike)) else name_in_results(model)


def name_in_record(model: Any) -> str:
    """Return the name by which a request for a model is stored: of a local model the name of its
    folder, which has a meaning on other machines; of a live model its class.
    """
    if not isinstance(model, (str, os.PathLike)):
        return type(unwrap_model(model)).__name__
    name = str(model)
    return Path(name).name if Path(name).exists() else name


@dataclass
class OpenRun:
    """Storage of an unfinished run: its directory, its journal, and whether an existing run may be
    replaced.
    """

    target: Path
    journal: Journal
    replace: bool

    def write(
        self, results: Sequence[SweepResult], pending: Sequence[str] = (), *, show_progress: bool
    ) -> None:
        """Write the finished sweeps to the run directory."""
        check_target(self.target, overwrite=self.replace)
        with waiting(f"writing {self.target.name}", show=show_progress):
            write_results(results, self.journal.lock, pending=pending, study=self.journal.sweeps)
        self.replace = True  # the existing run is now this one


@contextmanager
def open_run(
    out: "str | os.PathLike[str]",
    sweeps: Sequence[Mapping[str, Any]],
    *,
    overwrite: bool,
    resume: bool,
    restart: bool,
    job: Job | None = None,
    command: Mapping[str, Any] | None = None,
) -> Iterator[OpenRun]:
    """Open the storage of a run, and rehearse its final write.

    At the end of the block the parts are removed, except for a job or after an error.
    """
    target = check_target(out, overwrite=True)
    continues = resume or job is not None

    def may_replace() -> bool:
        return overwrite or (continues and study_of(target) == as_json(sweeps))

    def prepare(lock: RunLock) -> None:
        if job is not None and running_jobs(parts_of(target)):
            return  # the first of them has rehearsed it
        restore_run(lock)
        if restart:
            check_target(target, overwrite=may_replace())  # before parts are discarded
        if may_replace() or not (target / "run.json").exists():
            check_target(target, overwrite=True)
            rehearse_write(lock)

    with open_journal(
        target, sweeps, resume=resume, restart=restart, job=job, command=command, prepare=prepare
    ) as journal:
        replace = may_replace()
        check_target(target, overwrite=replace)
        yield OpenRun(target, journal, replace)
        if job is None:
            with name_storage_errors(target, f"{target} is written; {journal.folder}", "removed"):
                remove_parts(journal.folder, keep_locks=True)


def pending_of(target: Path) -> list[str] | None:
    """Return the sweeps that a run directory still lacks; None if there is no run, or if unfinished
    parts lie beside it.
    """
    run = find_run(target)
    if (parts_of(target) / "run.json").is_file() or not (run / "run.json").is_file():
        return None
    return read_record(run)["pending"]


def check_study(target: Path, sweeps: Sequence[Mapping[str, Any]]) -> None:
    """Raise RunError if a run directory was not written by a study of these sweeps."""
    was = study_of(target)
    if was is None:
        raise RunError(
            f"{target} holds a run that was not stopped. Choose another path, or leave resume=True"
            " out."
        )
    refuse(differences({"sweeps": was}, {"sweeps": list(sweeps)}), target)


def check_run_options(
    out: Any, *, overwrite: bool, resume: bool, restart: bool, job: Job | None
) -> None:
    """Raise InputError if options of a run contradict each other."""
    if job is not None and (overwrite or restart):
        which = "overwrite" if overwrite else "restart"
        problem = (
            f"{which}=True and job= contradict each other: other jobs may need the stored shards."
            " Choose another path."
        )
        raise InputError(problem, argument=which)
    if job is not None and out is None:
        raise InputError(
            "job= needs a run directory for the shards of all jobs. Give out=.", argument="out"
        )
    if resume and restart:
        raise InputError(
            "resume=True and restart=True contradict each other. Give one of them.",
            argument="restart",
        )
    if out is None and (resume or restart):
        raise InputError(
            "resume=True and restart=True need a run directory. Give out=.", argument="out"
        )
