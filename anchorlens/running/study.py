"""Run studies: several models, data sets and protocols in one run directory, checked before a model is loaded."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from anchorlens.display import short_repr
from anchorlens.errors import EmptySweepError, InputError, did_you_mean
from anchorlens.models.source import check_model, existing_path
from anchorlens.paths import resolve_path
from anchorlens.prompts.dataset import PromptDataset
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.sweep_context import DataSource
from anchorlens.protocols.base import Measurement
from anchorlens.protocols.planning import SweepPlan
from anchorlens.protocols.registry import PROTOCOLS, measurement_of, specification_of
from anchorlens.protocols.specification import Specification, read_toml
from anchorlens.questions.datasets import QAData, load_qa
from anchorlens.questions.prompts import make_prompt
from anchorlens.questions.qa_context import QUESTIONS
from anchorlens.results.sweep import SweepResult
from anchorlens.running.executors import Executor, Loading, LocalExecutor, RayExecutor, executor_of, open_executor, refuse_live
from anchorlens.running.loading import load_run
from anchorlens.running.run_storage import (
    OpenRun,
    check_run_options,
    check_study,
    identity,
    model_name,
    name_in_record,
    open_run,
    pending_of,
)  # fmt: skip
from anchorlens.running.runner import run_sweep
from anchorlens.runs.files import parts_of, shards_in
from anchorlens.runs.final_write import check_target, clear_leftovers
from anchorlens.runs.jobs import Job, parse_job
from anchorlens.runs.provenance import start_time

Step = tuple[Measurement[Any, Any, Any], Any, PromptDataset, Specification]
"""Protocol, model, data set and specification of one sweep."""


@dataclass(frozen=True)
class DatasetSpec:
    """Arguments of :func:`anchorlens.load_qa` for a data set to be loaded later.

    Attributes:
        name: Name of a known data set, or any name with ``path``.
        path: File of questions, or of prompt pairs for protocols on pairs.
        limit: Number of questions to draw. If None, all.
        seed: Random seed of the draw.
        columns: Mapping from field names to column names of the file.
        spans: Source of the spans of subject and property.
        dataset_name: Name of the data set in outputs.
        answers_sep: Separator of several answers in one cell, such as ``";"``.
    """

    name: str | None
    path: str | None = None
    limit: int | None = None
    seed: int = 0
    columns: Mapping[str, str] | None = None
    spans: str = "auto"
    dataset_name: str | None = None
    answers_sep: str | None = None

    def load(self, source: DataSource = QUESTIONS) -> PromptDataset:
        """Load questions or, for another source, prompt pairs. Raise InputError for an argument that pairs do not have."""
        try:
            return load_qa(**vars(self)) if source is QUESTIONS else self._load_pairs()
        except OSError as error:
            raise InputError(f"{error.filename or self.path or self.name}: {error.strerror or error}.", argument="path") from error

    def _load_pairs(self) -> PromptDataset:
        for one in fields(self):
            if (value := getattr(self, one.name)) != one.default and one.name in ("seed", "columns", "spans", "answers_sep"):
                raise InputError(f"{one.name}={short_repr(value)}: is only for questions. Leave it out.", argument=one.name)
        return load_pairs(self.path or self.name or "", name=self.dataset_name or (self.path and self.name), limit=self.limit)


@dataclass(frozen=True)
class Study:
    """Study: every specification on every model and data set.

    Attributes:
        models: Names, paths or live models; stored as a tuple.
        data: Data sets: names, files, :class:`DatasetSpec` or loaded sets; stored as a tuple.
        specifications: Specifications such as ``al.Swap()``; stored as a tuple.
        device: Device of the models. If None, the best one.
        dtype: Number type of the models. If None, that of their files.
        stream: Whether the weights of named models are read layer by layer.
        n_devices: Number of devices over which a named model is spread.
        backend: ``hooked`` or ``bridge``, as in :func:`anchorlens.load_model`. If None, as there.
    """

    models: Any
    data: Any
    specifications: Any
    device: str | None = None
    dtype: str | None = None
    stream: bool = False
    n_devices: int = 1
    backend: str | None = None

    def __post_init__(self) -> None:
        for name, single, what in (
            ("models", (str, os.PathLike), "names, paths or models"),
            ("data", (str, os.PathLike, DatasetSpec, PromptDataset), "names, files, DatasetSpec or QAData"),
            ("specifications", (Specification,), "specifications such as al.Swap()"),
        ):
            given = getattr(self, name)
            listed = [given] if isinstance(given, single) else list(given) if isinstance(given, Sequence) else None
            if not listed or (name != "models" and not all(isinstance(one, single) for one in listed)):
                raise InputError(f"{name}={short_repr(given)}: must be {what}, one or more in a list.", argument=name)
            if name == "data":
                listed = [DatasetSpec(str(one)) if isinstance(one, (str, os.PathLike)) else one for one in listed]
            object.__setattr__(self, name, tuple(listed))
        if not isinstance(self.stream, bool):
            raise InputError(f"stream={short_repr(self.stream)}: not a bool. Give True, or leave it out.", argument="stream")

    @classmethod
    def from_toml(cls, path: "str | os.PathLike[str]") -> "Study":
        """Read a study file: ``models``, options of loading, tables ``[[data]]``, ``[[protocol]]``.

        Raises:
            InputError: If the file cannot be read, or a key or value is invalid.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise InputError(f"path={short_repr(path)} is no path of a file.", argument="path")
        file = Path(os.path.expanduser(path))  # noqa: PTH111 - Path raises for an unknown user
        values = read_toml(file)
        loading = ("device", "n_devices", "dtype", "stream", "backend")
        _check_keys(values, ("models", "data", "protocol", *loading), f"{file}: unknown key")
        data = [_data_request(one, file) for one in _tables(values, "data", file)]
        specifications: list[Specification] = []
        for one in _tables(values, "protocol", file):
            name = one.pop("name", None)
            if not isinstance(name, str):
                raise InputError(f"{file}: a [[protocol]] needs a name. {did_you_mean('', PROTOCOLS)}")
            specifications.append(specification_of(name).of(one))
        return cls(values.get("models", ()), data, specifications, **{name: values[name] for name in loading if name in values})

    @property
    def loading(self) -> Loading:
        """Options for loading the models."""
        return Loading(self.device, self.dtype, self.stream, self.n_devices, self.backend)

    def check(self, *, models: bool = True) -> list[PromptDataset]:
        """Check everything that needs no model, and return the loaded data.

        Args:
            models: Also check that the models exist and can be loaded.

        Raises:
            InputError: If a name, path or argument is invalid.
            DownloadError: If the hub lacks a model or data set, or cannot be reached.
        """
        twice = _repeated([model for model in self.models if isinstance(model, str)])
        if twice is not None:
            raise InputError(f"model={twice!r} is named twice. Name each model once.", argument="model")
        if _repeated([(spec.NAME, spec.identity(), spec.own_code()) for spec in self.specifications]) is not None:
            fix = "Change an argument other than engine, batch_size, max_memory and n_spot_checks, which affect no number."
            raise InputError(f"A specification occurs twice in this study. {fix}", argument="specifications")
        if len({spec.DATA for spec in self.specifications}) > 1:
            raise InputError("specifications=: questions and pairs do not mix. Make a study of each.", argument="specifications")
        for model in self.models if models else ():
            stream = self.stream and isinstance(model, (str, os.PathLike))
            check_model(model, device=self.device, dtype=self.dtype, stream=stream, n_devices=self.n_devices, backend=self.backend)
        source = measurement_of(self.specifications[0].NAME).source
        loaded = [data.load(source) if isinstance(data, DatasetSpec) else data for data in self.data]
        if (again := _repeated([data.name for data in loaded])) is not None:
            raise InputError(f"Two data sets have the name {again!r}. Give different names with dataset_name=.")
        for data in loaded:
            if isinstance(data, QAData):
                for spec in self.specifications:
                    make_prompt(spec.prompt, data.examples, data.pool, spec.seed)
        return loaded


def _repeated(values: Sequence[Any]) -> Any:
    return next((one for i, one in enumerate(values) if one in values[:i]), None)


def _check_keys(table: Mapping[str, Any], known: Sequence[str], problem: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{problem} '{key}'. {did_you_mean(key, known)}")


def _tables(values: Mapping[str, Any], key: str, file: Path) -> list[dict[str, Any]]:
    """Return the tables of a key in a study file; a string stands for a table with that name."""
    given = values.get(key, [])
    tables = [{"name": one} if isinstance(one, str) else one for one in (given if isinstance(given, list) else [given])]
    if (wrong := next((one for one in tables if not isinstance(one, dict)), None)) is not None:
        raise InputError(f"{file}: [[{key}]] takes a table or a name, got {short_repr(wrong)}.")
    return [dict(one) for one in tables]


def _data_request(table: dict[str, Any], file: Path) -> DatasetSpec:
    """Return the data set of a table; paths are relative to the study file."""
    _check_keys(table, [one.name for one in fields(DatasetSpec)], f"{file}: [[data]] has an unknown key")
    for key in ("name", "path"):
        if not isinstance(table.get(key, ""), str):
            raise InputError(f"{file}: [[data]] {key}={short_repr(table[key])} must be text.", argument=key)
    if "path" not in table and (beside := existing_path(str(file.parent / table.get("name", "")))) and beside.is_file():
        table["path"] = table.pop("name")
    if "path" in table:
        table["path"] = str(file.parent / os.path.expanduser(table["path"]))  # noqa: PTH111 - Path raises for an unknown user
    return DatasetSpec(**{"name": None, **table})


@dataclass
class Outcome:
    """Progress of a study.

    Attributes:
        total: Number of sweeps of the study.
        out: The run directory; None if nothing is written.
        job: Job to measure; None for all shards. A job has no results until its shards are merged.
        results: Results of finished sweeps.
        empty: Messages of sweeps without rows.
    """

    total: int
    out: Path | None
    job: Job | None = field(default=None, kw_only=True)
    results: list[SweepResult] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    @property
    def kept(self) -> str:
        """Sentence about finished sweeps and stored shards."""
        if self.out is None:
            return "Nothing was written."
        n, parts = len(self.results), parts_of(self.out)
        shards = shards_in(parts, n + len(self.empty))
        said = [f"{n} of {self.total} sweeps {'is' if n == 1 else 'are'} finished and kept in {self.out}."] if n else []
        if shards:
            of = " of the next sweep" if n else ""
            how = "Continue with resume=True" if self.job is None else f"Continue job {self.job} with the same command"
            said.append(f"{shards} shard{'s' * (shards != 1)}{of} {'is' if shards == 1 else 'are'} kept in {parts}. {how}.")
        return " ".join(said) or "Nothing was written."


def run_study(
    study: Study,
    out: "str | os.PathLike[str] | None" = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    restart: bool = False,
    job: "str | tuple[int, int] | Job | None" = None,
    executor: "str | RayExecutor | None" = None,
    command: Mapping[str, Any] | None = None,
    outcome: Outcome | None = None,
    on_result: Callable[[SweepResult, Outcome], object] = lambda result, outcome: None,  # noqa: ARG005
    on_empty: Callable[[str], object] = lambda said: None,  # noqa: ARG005
) -> Outcome:
    """Measure a study and write every finished sweep to ``out``.

    ``OUT.parts`` holds finished shards until the last sweep is finished. A stopped study continues with the same arguments and
    ``resume=True``; its tables are byte-identical to those of an uninterrupted study.

    Args:
        study: The study to run.
        out: Run directory.
        overwrite: Whether to replace an existing run after the first sweep.
        resume: Whether to continue a stopped run; starts a new run if there is none.
        restart: Whether to discard a stopped run and start again.
        job: ``"2/8"`` or ``(2, 8)``: measure the second of eight parts and store it in ``OUT.parts``; after all jobs,
            ``resume=True`` finishes the run. The outcome of a job has no results.
        executor: ``"ray"`` or a :class:`~anchorlens.RayExecutor`: measure in workers; models must be names or paths.
        command: Command that started the run, for ``anchorlens merge``.
        outcome: Object to fill, for a caller that needs it after an error or an interrupt. If None, a new one.
        on_result: Function called with each finished sweep after it is written.
        on_empty: Function called with the message of each sweep without rows.

    Raises:
        InputError: If a name, path or argument is invalid; before a model is loaded, except for checks that need one.
        EmptySweepError: If no sweep has a row.
        RunError: If ``out`` holds another study, is in use by another process, or cannot be written.
        AnchorlensError: If a sweep fails; finished sweeps are kept.
    """
    if not isinstance(study, Study):
        raise InputError(f"study={short_repr(study)} is no anchorlens.Study. Read one with Study.from_toml(path).", argument="study")
    done = outcome if outcome is not None else Outcome(0, None)
    return run_steps(
        partial(_steps, study), study.models, study.loading, out, overwrite=overwrite, resume=resume, restart=restart,
        job=job, executor=executor, command=command, done=done, on_result=on_result, on_empty=on_empty,
    )  # fmt: skip


def run_steps(
    prepare: Callable[[bool], Sequence[Step]], models: Sequence[Any], loading: Loading, out: Any, *, done: Outcome,
    overwrite: bool, resume: bool, restart: bool, job: Any, executor: Any, command: Mapping[str, Any] | None = None,
    on_result: Callable[[SweepResult, Outcome], object] = lambda result, outcome: None,  # noqa: ARG005
    on_empty: Callable[[str], object] = lambda said: None,  # noqa: ARG005
) -> Outcome:  # fmt: skip
    """Measure sweeps as :func:`run_study` does.

    ``prepare(check_models)`` loads the data and returns the steps; it is called after the other arguments are checked. If the run is
    already finished, ``check_models`` is False.
    """
    this_job, workers = parse_job(job), executor_of(executor)
    check_run_options(out, overwrite=overwrite, resume=resume, restart=restart, job=this_job)
    refuse_live(workers, models)
    done.job = this_job
    if out is None:
        steps = prepare(True)
        with open_executor(workers, loading) as measuring:
            _measure(steps, measuring, done, None, on_result, on_empty)
        return done
    resume = resume or this_job is not None
    target = resolve_path(out, "out")
    clear_leftovers(target)
    check_target(target, overwrite=overwrite or resume or restart or parts_of(target).exists())
    pending = pending_of(target) if resume else None
    steps = prepare(pending != [])
    sweeps = [identity(*step[1:]) for step in steps]
    if pending is not None:
        check_study(target, sweeps)
    if pending == []:
        found = load_run(target)
        done.total, done.out = len(found), target
        for result in found:
            done.results.append(result)
            on_result(result, done)
        return done
    with (
        open_run(target, sweeps, overwrite=overwrite, resume=resume, restart=restart, job=this_job, command=command) as kept,
        open_executor(workers, loading) as measuring,
    ):
        done.out = target
        _measure(steps, measuring, done, kept, on_result, on_empty)
    return done


@dataclass(frozen=True)
class Planning:
    """Cost of one sweep of a study.

    Attributes:
        model: Name of the model.
        dataset: Name of the data set.
        protocol: Name of the protocol.
        plan: Cells, batches, predicted FLOPs, seconds and bytes; None without a measurable row.
        why: Reason why no row can be measured; empty otherwise.
    """

    model: str
    dataset: str
    protocol: str
    plan: SweepPlan | None
    why: str = ""


def plan_study(study: Study) -> Iterator[Planning]:
    """Predict the cost of every sweep of a study; loads the models, measures and writes nothing.

    Args:
        study: The study to plan.

    Yields:
        The cost of each model, data set and specification.

    Raises:
        InputError: If a name, path or argument is invalid.
    """
    here = LocalExecutor(study.loading)
    for protocol, model, data, spec in _steps(study):
        names = (model_name(model), data.name, spec.NAME)
        try:
            station = here.make_runner(protocol, model, data, spec)
            yield Planning(*names, station.plan(station.free).cost)
        except EmptySweepError as error:
            yield Planning(*names, None, str(error))


def _steps(study: Study, check_models: bool = True) -> list[Step]:
    data = study.check(models=check_models)
    return [(measurement_of(spec.NAME), model, one, spec) for model in study.models for one in data for spec in study.specifications]


def _measure(
    steps: Sequence[Step], measuring: Executor, done: Outcome, kept: OpenRun | None,
    on_result: Callable[[SweepResult, Outcome], object], on_empty: Callable[[str], object],
) -> None:  # fmt: skip
    done.total = len(steps)
    started = start_time() if kept is None else kept.journal.started
    names = [f"{spec.NAME}: {name_in_record(model)} on {data.name}" for _, model, data, spec in steps]
    for number, (protocol, model, data, spec) in enumerate(steps):
        where = f"{model_name(model)} on {data.name}"
        make = partial(measuring.make_runner, protocol, model, data, spec.fix_clock(started))
        try:
            result = run_sweep(make, spec, None if kept is None else kept.journal.sweep(number))
        except EmptySweepError as error:
            done.empty.append(str(error))
            if len(steps) > 1:  # a study of one sweep raises the error instead
                on_empty(f"{where}: {error}")
            continue
        if result is None:  # a job, whose shards are stored
            continue
        if any(result.run_id == other.run_id for other in done.results):
            on_empty(f"{where}: {spec.NAME} repeats a finished sweep (run_id {result.run_id}); it is kept once.")
            done.total -= 1
            continue
        if kept is not None:  # written before it counts as finished
            kept.write([*done.results, result], names[number + 1 :])
        done.results.append(result)
        on_result(result, done)
    if not done.results and (done.job is None or len(done.empty) == len(steps)):
        raise EmptySweepError(" ".join(dict.fromkeys(done.empty)))
    if done.empty and done.job is None and kept is not None:
        kept.write(done.results)  # nothing is pending
