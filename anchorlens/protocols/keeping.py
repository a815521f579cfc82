"""What is measured stays: a run directory, the parts beside it until it is finished, and what decides whether a run may go on."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorlens.errors import InputError, RunError
from anchorlens.protocols.plug import SweepProtocol
from anchorlens.protocols.specification import Specification
from anchorlens.questions.datasets import QAData
from anchorlens.results.saving import save_run
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.journal import Journal, as_json, differences, opened, parts_of, refuse
from anchorlens.runs.provenance import data_record
from anchorlens.runs.schema import settings_of
from anchorlens.runs.shares import Share
from anchorlens.runs.store import check_target, read_record, read_table, study_of
from anchorlens.truth.probes import LayerProbes


def identity(model: Any, data: QAData, spec: Specification) -> dict[str, Any]:
    """What is known of a sweep before its model is loaded, as JSON has it; of a local model its folder's name."""
    code = spec.own_code()
    name = model_name(model)
    return as_json(
        {
            "protocol": spec.NAME, "model": Path(name).name if Path(name).exists() else name, "data": data_record(data),
            "config": {**spec.identity(), **({"own_code": code} if code else {})},
        }
    )  # fmt: skip


def model_name(model: Any) -> str:
    """As it was given, or its class."""
    return str(model) if isinstance(model, (str, os.PathLike)) else type(model).__name__


@dataclass
class Kept:
    """Where a run under way is kept.

    Attributes:
        target: The run directory.
        journal: What was measured so far of sweeps that are not finished.
        replace: Whether a run that is there may be replaced.
    """

    target: Path
    journal: Journal
    replace: bool

    def write(self, results: Sequence[SweepResult], pending: Sequence[str] = ()) -> None:
        """The run directory with all that is finished."""
        save_run(results, self.target, overwrite=self.replace, pending=pending, study=self.journal.sweeps)
        self.replace = True  # from now on it is our own


@contextmanager
def keeping(
    out: "str | os.PathLike[str]", sweeps: Sequence[Mapping[str, Any]], *, overwrite: bool, resume: bool, force_new: bool,
    share: Share | None = None, command: Mapping[str, Any] | None = None,
) -> Iterator[Kept]:  # fmt: skip
    """Keep what is measured in the block; the parts go when it ends well, but for those of a share.

    Raises:
        RunError: The place is taken or cannot be written, another process measures there, or something else was measured.
    """
    target = check_target(out, overwrite=True)
    with opened(target, sweeps, resume=resume, force_new=force_new, share=share, command=command) as journal:
        own = (resume or share is not None) and study_of(target) == journal.sweeps
        check_target(target, overwrite=overwrite or own)
        yield Kept(target, journal, overwrite or own)
        if share is None:
            journal.finished()


def finished(out: "str | os.PathLike[str]", sweeps: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run directory holds all of a study.

    Raises:
        RunError: It holds another one.
    """
    target = check_target(out, overwrite=True)
    if parts_of(target).exists() or not (target / "run.json").is_file():
        return False
    was = study_of(target)
    if was is None:
        raise RunError(f"{target} holds a run that was not stopped. Choose another path, or leave resume=True out.")
    refuse(differences({"sweeps": was}, {"sweeps": list(sweeps)}), target)
    return not read_record(target)["pending"]


def check_keeping(out: Any, *, overwrite: bool, resume: bool, force_new: bool, share: Share | None) -> None:
    """What is given has to agree.

    Raises:
        InputError: It does not.
    """
    if share is not None and (overwrite or force_new):
        which = "overwrite" if overwrite else "force_new"
        raise InputError(
            f"{which}=True and shard= contradict each other: a job throws nothing away that another one may need. Choose another "
            "path, or remove what is there."
        )
    if share is not None and out is None:
        raise InputError("shard= needs a run directory, where the shards of all jobs are kept: give out=.")
    if resume and force_new:
        raise InputError("resume=True and force_new=True contradict each other: give one of them.")
    if out is None and (resume or force_new):
        raise InputError("resume=True and force_new=True need a run directory: give out=.")


def load_sweeps(path: "str | os.PathLike[str]", protocol_of: Callable[[str], SweepProtocol[Any, Any]]) -> list[SweepResult]:
    """Read every sweep of a run directory.

    Raises:
        RunError: See :func:`anchorlens.runs.store.read_record`.
    """
    record = read_record(path)
    samples, examples = read_table(path, "samples"), read_table(path, "examples")
    results: list[SweepResult] = []
    for sweep in record["sweeps"]:
        run_id = sweep["run_id"]
        protocol = protocol_of(sweep["config"]["protocol"])
        own = {key: value for key, value in sweep.items() if key not in ("run_id", "verdict")}
        mine = samples[samples["run_id"] == run_id].assign(**settings_of(sweep["config"]))
        result = protocol.result.make(protocol, mine, examples[examples["run_id"] == run_id], own, run_id)
        folder = Path(path) / "probes" / run_id
        if folder.is_dir():
            placebos = {sub.name: LayerProbes.load(sub) for sub in sorted(folder.iterdir()) if sub.is_dir()}
            result = result.with_probes(LayerProbes.load(folder), placebos)
        results.append(result)
    return results


__all__ = ["Kept", "check_keeping", "finished", "identity", "keeping", "load_sweeps", "model_name"]
