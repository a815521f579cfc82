"""Measure every sweep of a study into one run directory, or predict the cost of each."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from anchorlens.display import short_repr
from anchorlens.errors import EmptySweepError, InputError
from anchorlens.loading.load_run import load_run
from anchorlens.measure.budget import SweepPlan
from anchorlens.models.source import name_in_results
from anchorlens.paths import resolve_path
from anchorlens.prompts.dataset import PromptDataset
from anchorlens.protocols.base import Measurement
from anchorlens.protocols.registry import measurement_of
from anchorlens.protocols.specification import Specification
from anchorlens.results.sweep import SweepResult
from anchorlens.running.executors import (
    Executor,
    Loading,
    LocalExecutor,
    RayExecutor,
    executor_of,
    open_executor,
    refuse_live,
)
from anchorlens.running.run_storage import (
    OpenRun,
    check_run_options,
    check_study,
    identity,
    model_name,
    open_run,
    pending_of,
)
from anchorlens.running.runner import run_sweep
from anchorlens.running.study import Study
from anchorlens.runs.files import parts_of, shards_in
from anchorlens.runs.final_write import check_target, clear_leftovers
from anchorlens.runs.jobs import Job, parse_job
from anchorlens.runs.provenance import start_time

Step = tuple[Measurement[Any, Any, Any], Any, PromptDataset, Specification]
"""Protocol, model, data set and specification of one sweep."""


def ignore_result(result: SweepResult, outcome: "Outcome") -> None:
    """Do nothing: default callback for a finished sweep."""


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
        n = len(self.results)
        parts = parts_of(self.out)
        shards = shards_in(parts, n + len(self.empty))
        said = (
            [
                f"{n} of {self.total} sweeps {'is' if n == 1 else 'are'} finished and kept in"
                f" {self.out}."
            ]
            if n
            else []
        )
        if shards:
            of = " of the next sweep" if n else ""
            how = (
                "Continue with resume=True"
                if self.job is None
                else f"Continue job {self.job} with the same command"
            )
            said.append(
                f"{shards} shard{'s' * (shards != 1)}{of} {'is' if shards == 1 else 'are'} kept in"
                f" {parts}. {how}."
            )
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
    on_result: Callable[[SweepResult, Outcome], object] = ignore_result,
    on_empty: Callable[[str], object] = lambda said: None,  # noqa: ARG005
) -> Outcome:
    """Measure a study and write every finished sweep to ``out``.

    ``OUT.parts`` holds finished shards until the last sweep is finished. A stopped study continues
    with the same arguments and ``resume=True``; its tables are byte-identical to those of an
    uninterrupted study.

    Examples:
        >>> import anchorlens as al
        >>> study = al.Study("smollm2-135m-instruct", "popqa-sample", al.Swap(layers=(0, 24)))
        >>> done = al.run_study(study, "runs/study", resume=True)  # doctest: +SKIP
        >>> for sweep in done.results:  # doctest: +SKIP
        ...     print(sweep.verdict)

    Args:
        study: The study to run.
        out: Run directory.
        overwrite: Whether to replace an existing run after the first sweep.
        resume: Whether to continue a stopped run; starts a new run if there is none.
        restart: Whether to discard a stopped run and start again.
        job: ``"2/8"`` or ``(2, 8)``: measure the second of eight parts and store it in
            ``OUT.parts``; after all jobs, ``resume=True`` finishes the run. The outcome of a job
            has no results.
        executor: ``"ray"`` or a :class:`~anchorlens.RayExecutor`: measure in workers; models must
            be names or paths.
        command: Command that started the run, for ``anchorlens merge``.
        outcome: Object to fill, for a caller that needs it after an error or an interrupt. If None,
            a new one.
        on_result: Function called with each finished sweep after it is written.
        on_empty: Function called with the message of each sweep without rows.

    Raises:
        InputError: If a name, path or argument is invalid; before a model is loaded, except for
            checks that need one.
        EmptySweepError: If no sweep has a row.
        RunError: If ``out`` holds another study, is in use by another process, or cannot be
            written.
        AnchorlensError: If a sweep fails; finished sweeps are kept.
    """
    if not isinstance(study, Study):
        raise InputError(
            f"study={short_repr(study)} is no anchorlens.Study. Read one with"
            " Study.from_toml(path).",
            argument="study",
        )
    done = outcome if outcome is not None else Outcome(0, None)
    return run_steps(
        partial(_steps, study),
        study.models,
        study.loading,
        out,
        overwrite=overwrite,
        resume=resume,
        restart=restart,
        job=job,
        executor=executor,
        command=command,
        done=done,
        on_result=on_result,
        on_empty=on_empty,
    )


def run_steps(
    prepare: Callable[[bool], Sequence[Step]],
    models: Sequence[Any],
    loading: Loading,
    out: Any,
    *,
    done: Outcome,
    overwrite: bool,
    resume: bool,
    restart: bool,
    job: Any,
    executor: Any,
    command: Mapping[str, Any] | None = None,
    on_result: Callable[[SweepResult, Outcome], object] = ignore_result,
    on_empty: Callable[[str], object] = lambda said: None,  # noqa: ARG005
) -> Outcome:
    """Measure sweeps as :func:`run_study` does.

    ``prepare(check_models)`` loads the data and returns the steps; it is called after the other
    arguments are checked. If the run is already finished, ``check_models`` is False.
    """
    this_job = parse_job(job)
    workers = executor_of(executor)
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
        done.total = len(found)
        done.out = target
        for result in found:
            done.results.append(result)
            on_result(result, done)
        return done
    with (
        open_run(
            target,
            sweeps,
            overwrite=overwrite,
            resume=resume,
            restart=restart,
            job=this_job,
            command=command,
        ) as kept,
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

    Examples:
        >>> import anchorlens as al
        >>> study = al.Study("smollm2-135m-instruct", "popqa-sample", al.Swap(layers=(0, 24)))
        >>> for planned in al.plan_study(study):  # doctest: +SKIP
        ...     print(planned.protocol, planned.plan)

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
    steps: list[Step] = []
    for model, one, spec in product(study.models, data, study.single_specifications):
        steps.append((measurement_of(spec.NAME), model, one, spec))
    return steps


def _name_of_step(step: Step) -> str:
    """Return the name of a sweep in the list of those that are pending."""
    _, model, data, spec = step
    return f"{spec.NAME}: {name_in_results(model)} on {data.name}"


def _measure(
    steps: Sequence[Step],
    measuring: Executor,
    done: Outcome,
    kept: OpenRun | None,
    on_result: Callable[[SweepResult, Outcome], object],
    on_empty: Callable[[str], object],
) -> None:
    done.total = len(steps)
    started = start_time() if kept is None else kept.journal.started
    names = list(map(_name_of_step, steps))
    for number, (protocol, model, data, spec) in enumerate(steps):
        where = f"{model_name(model)} on {data.name}"
        journal = None if kept is None else kept.journal.sweep(number)
        runner = measuring.make_runner(protocol, model, data, spec.fix_clock(started))
        try:
            result = run_sweep(runner, spec, journal)
        except EmptySweepError as error:
            done.empty.append(str(error))
            if len(steps) > 1:  # a study of one sweep raises the error instead
                on_empty(f"{where}: {error}")
            continue
        if result is None:  # a job, whose shards are stored
            continue
        if any(result.run_id == other.run_id for other in done.results):
            on_empty(
                f"{where}: {spec.NAME} repeats a finished sweep (run_id {result.run_id}); it is"
                " kept once."
            )
            done.total -= 1
            continue
        if kept is not None:  # written before it counts as finished
            pending = names[number + 1 :]
            kept.write([*done.results, result], pending, show_progress=spec.progress)
        done.results.append(result)
        on_result(result, done)
    if not done.results and (done.job is None or len(done.empty) == len(steps)):
        raise EmptySweepError(" ".join(dict.fromkeys(done.empty)))
    if done.empty and done.job is None and kept is not None:
        is_shown = any(spec.progress for *_, spec in steps)
        kept.write(done.results, show_progress=is_shown)  # nothing is pending
