"""Run one sweep of any protocol: from a model, data and a specification to a result.

A :class:`LocalRunner` measures shards in this process; :func:`run_sweep` selects the shards, stores
them and returns the result.
"""

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from typing_extensions import override

from anchorlens.display import warn
from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.engine import Engine
from anchorlens.errors import EmptySweepError, InputError, RunError
from anchorlens.measure.budget import MallocTrimmer, SweepPlan
from anchorlens.models.card import model_record
from anchorlens.models.devices import fix_free_memory, free_memory
from anchorlens.models.load import adapt, as_lens_model, check_has_numbers
from anchorlens.progress import Progress, progress, waiting
from anchorlens.prompts.sweep_context import SweepContext
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.base import (
    Measurement,
    Plan,
    Recheckable,
    SweepInputs,
    check_layers,
)
from anchorlens.protocols.specification import Specification
from anchorlens.results.sweep import SweepResult
from anchorlens.running.spot_checks import SpotChecker
from anchorlens.runs.journal import Shard, ShardNotes, SweepJournal, differences
from anchorlens.runs.merging import EMPTY
from anchorlens.runs.provenance import command_line, environment

# Before the first counted work: clean runs and the first batch, which takes longest.
_FIRST_PHASE = "clean passes and first batch"
_OTHER_INPUTS = (
    "Shards of this sweep were measured on other inputs than those drawn here, although model, data"
    " and arguments are the same: generated answers differ between machines. Measure all shards on"
    " machines of one kind, or discard the stored shards with restart=True."
)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Plan of a sweep.

    Attributes:
        label: Label of the progress bar.
        unit_name: Unit of the progress bar.
        before: Work before the shards.
        shard_work: Work of each shard.
        cost: Predicted cost.
        environment: Versions, devices and threads of this process.
        prompts_sha256: Hash of the rendered prompts; None if they follow from arguments, data and
            tokenizer.
    """

    label: str
    unit_name: str
    before: float
    shard_work: tuple[float, ...]
    cost: SweepPlan
    environment: Mapping[str, object]
    prompts_sha256: str | None = None

    def record(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        prompts = {} if self.prompts_sha256 is None else {"prompts_sha256": self.prompts_sha256}
        return {**self.cost.to_dict(), "shards": len(self.shard_work), **prompts}


class Runner(ABC):
    """Measures one sweep in this process (:class:`LocalRunner`) or in workers.

    Attributes:
        free: Free bytes on the device of the model; the minimum over several devices.
    """

    free: int

    @property
    @abstractmethod
    def card(self) -> Mapping[str, object]:
        """Record of the model for ``run.json``."""

    @abstractmethod
    def plan(self, free: int) -> Planned:
        """Draw all inputs and plan the shards for ``free`` bytes of memory."""

    @abstractmethod
    def measure_shards(
        self, numbers: Sequence[int], bar: Progress
    ) -> Generator[tuple[int, Shard], None, None]:
        """Yield shards with their numbers as they finish."""

    @abstractmethod
    def finish(self, shards: Sequence[Shard], bar: Progress) -> SweepResult:
        """Return the result of all shards, in order, after spot checks of all batches but the
        first.
        """


def run_sweep(
    runner: Runner, spec: Specification, journal: SweepJournal | None = None
) -> SweepResult | None:
    """Measure a sweep and return its result; None for a job, whose shards are only stored.

    Shards in the journal are not measured again.
    """
    started = time.monotonic()
    with _noting_empty(journal):
        planned = _plan(runner, spec, journal)
        if spec.on_plan is not None:
            spec.on_plan(planned.cost)
        mine: Sequence[int] = range(len(planned.shard_work))
        is_job = False
        if journal is not None:
            _check_journal(journal, runner, planned, spec)
            mine = [number for number in mine if journal.is_mine(number)]
            is_job = journal.job is not None
        kept: dict[int, Shard] = {}
        inputs: set[str] = set()
        work = planned.before + sum(planned.shard_work[number] for number in mine)
        with progress(
            planned.label, work, planned.unit_name, show=spec.progress, since=started
        ) as bar:

            def keep(number: int, shard: Shard) -> None:
                kept[number] = shard._replace(samples=pd.DataFrame()) if is_job else shard
                inputs.add(shard.notes["inputs"])
                if len(inputs) > 1:
                    raise RunError(_OTHER_INPUTS)

            for number in mine:
                stored = None if journal is None else journal.read(number)
                if stored is not None:
                    keep(number, stored)
                    bar.skip(planned.shard_work[number])
            bar.enter(_FIRST_PHASE)
            missing = [number for number in mine if number not in kept]
            with closing(runner.measure_shards(missing, bar)) as shards:
                for number, shard in shards:
                    if journal is not None:
                        shard = journal.write(number, shard.samples, shard.notes)
                    keep(number, shard)
            if is_job:
                return None
            return runner.finish([kept[number] for number in range(len(planned.shard_work))], bar)


@contextmanager
def _noting_empty(journal: SweepJournal | None) -> Iterator[None]:
    """Note in the journal that a sweep has no row."""
    try:
        yield
    except EmptySweepError as why:
        if journal is not None:
            journal.note_once(EMPTY, {"why": str(why)})
        raise


def _plan(runner: Runner, spec: Specification, journal: SweepJournal | None) -> Planned:
    """Plan a sweep for the free memory that its journal notes, else for that of now."""
    free = {"bytes": runner.free}
    if journal is not None:
        # Device and parity are compared as parts of the environment.
        journal.note_and_check("model", _drop_entries(runner.card, "device", "parity"))
        free = journal.note_once("free_memory", free)
    with waiting(f"{type(spec).NAME}: planning", show=spec.progress):
        return runner.plan(free["bytes"])


def _check_journal(
    journal: SweepJournal, runner: Runner, planned: Planned, spec: Specification
) -> None:
    """Find the stored shards of a sweep.

    Raises:
        RunError: If they are those of another plan.
    """
    journal.note_and_check("plan", {**planned.record(), "n_spot_checks": spec.n_spot_checks})
    now = _drop_entries(planned.environment, "command", "code_sha256")
    if changes := "; ".join(differences(journal.note_once("environment", now), now)):
        warn(
            f"This run was started in another environment: {changes}. The last digits of its"
            " shards may differ."
        )
    origin = {
        "weights_sha256": runner.card["weights_sha256"],
        "plan_sha256": _sha256(planned.record()),
        "code_sha256": planned.environment["code_sha256"],
    }
    journal.find_shards(len(planned.shard_work), origin, now)


def _drop_entries(record: Mapping[str, object], *names: str) -> dict[str, object]:
    """Return a record without the entries of these names."""
    return {name: value for name, value in record.items() if name not in names}


@dataclass(frozen=True, kw_only=True)
class _PreparedSweep:
    """A sweep whose inputs are drawn and planned.

    Attributes:
        spec: Specification with all arguments resolved.
        own_code: Argument -> fingerprint of a user function, taken before it is called.
        context: Model and data set.
        inputs: Prepared inputs.
        engine: Engine of the sweep.
        plan: Units of work and their cost.
        heap: Returns freed memory to the system.
    """

    spec: Specification
    own_code: Mapping[str, str]
    context: SweepContext
    inputs: SweepInputs
    engine: Engine
    plan: Plan
    heap: MallocTrimmer


@dataclass(frozen=True, kw_only=True)
class _FittedSweep(_PreparedSweep):
    """A sweep that can be measured: what all shards need is fitted or measured.

    Attributes:
        inputs_sha256: Hash of the inputs.
        fit_splits: Number of units that fitting split for memory.
    """

    inputs_sha256: str
    fit_splits: int


class LocalRunner(Runner):
    """Measures a sweep in this process, shard by shard in any order.

    Args:
        command: Command that started the run, for its record. If None, the command of this process.
    """

    def __init__(
        self,
        protocol: Measurement[Any, Any, Any],
        model: Any,
        data: Any,
        spec: Specification,
        command: str | None = None,
    ) -> None:
        self._protocol = protocol
        self._data = data
        self._spec = spec
        self._command = command or command_line()
        with _tables_on_cpu():
            lens_model = as_lens_model(model, progress=spec.progress)
            check_has_numbers(lens_model)
            self._adapter = adapt(lens_model)
            self.free = free_memory(self._adapter.devices)
        self._sweep: _PreparedSweep | None = None

    @property
    @override
    def card(self) -> Mapping[str, object]:
        return model_record(self._adapter)

    @override
    def plan(self, free: int) -> Planned:
        self.free = free
        protocol = self._protocol
        shape = self._adapter.shape
        self._spec = spec = self._spec.resolve(n_layers=shape.n_layers, n_heads=shape.n_heads)
        with _tables_on_cpu():
            protocol.check_model(spec, self._adapter)
            self._data = data = protocol.source.load(self._data, spec.seed)
        own_code = spec.own_code()
        with self._fix_conditions():
            context = protocol.source.set_up(self._adapter, data, spec)
            inputs = protocol.prepare(context, spec)
            check_layers(protocol.name, inputs.layers, spec.layers_of(shape.n_layers))
            engine = choose_engine(self._adapter, spec.engine, inputs.trial, inputs.sites)
            plan = protocol.plan(engine, inputs, spec)
            self._sweep = _PreparedSweep(
                spec=spec,
                own_code=own_code,
                context=context,
                inputs=inputs,
                engine=engine,
                plan=plan,
                heap=MallocTrimmer(self._adapter.device, plan.cost.peak_bytes),
            )
            return Planned(
                label=f"{protocol.name} {context.model_name} {data.name}",
                unit_name=plan.unit_name,
                before=plan.before,
                shard_work=tuple(map(_work_of, plan.shards)),
                cost=plan.cost,
                environment=environment(self._adapter.devices, self._command),
                prompts_sha256=context.prompts_sha256,
            )

    @override
    def measure_shards(
        self, numbers: Sequence[int], bar: Progress
    ) -> Generator[tuple[int, Shard], None, None]:
        # Shards are independent of each other: any may be measured first, or alone.
        for number in numbers:
            with self._fix_conditions():
                sweep = self._fit(bar)
                sweep.engine.reset(sweep.context.prefix)
                units = sweep.plan.shards[number]
                splitter = sweep.plan.splitter
                splits = splitter.splits
                frames: list[pd.DataFrame] = []
                notes = ShardNotes(inputs=sweep.inputs_sha256, work=_work_of(units))
                measure = partial(
                    self._protocol.measure,
                    sweep.engine,
                    sweep.inputs,
                    sweep.spec,
                    on_work=partial(_on_work, sweep.heap, bar),
                )
                for unit in units:
                    parts: list[pd.DataFrame] = []
                    for attempt in splitter.attempts(unit):
                        with attempt as part:
                            parts.append(measure(part))
                    for part in parts:
                        self._make_spot_checker(sweep).check_finite(part)
                    whole = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
                    frames.append(whole)
                    if number == 0 and len(frames) == 1:
                        self._check_first_batch(sweep, whole, notes, bar)
                frames = [frame for frame in frames if len(frame)]
                samples = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
                notes.splits = splitter.splits - splits
            yield number, Shard(samples, asdict(notes))

    def _check_first_batch(
        self, sweep: _FittedSweep, samples: pd.DataFrame, notes: ShardNotes, bar: Progress
    ) -> None:
        """Check cells of the first batch, before hours are spent on the others."""
        if samples.empty or not isinstance(self._protocol, Recheckable):
            return
        checker = self._make_spot_checker(sweep)
        bar.enter("checks")
        checker.check_first(samples, alone=len(sweep.plan.units) == 1)
        bar.enter("")
        notes.first = len(samples)
        notes.gaps = list(checker.gaps)
        notes.checked = checker.cells
        notes.known = checker.known
        notes.steps = checker.steps

    @override
    def finish(self, shards: Sequence[Shard], bar: Progress) -> SweepResult:
        with self._fix_conditions():
            sweep = self._fit(bar)
            checker = self._make_spot_checker(sweep)
            splits = sweep.fit_splits
            for _, notes in shards:
                splits += notes["splits"]
                checker.gaps += notes["gaps"]
                checker.cells += notes["checked"]
                checker.known += notes["known"]
                checker.steps += notes["steps"]
                if notes["inputs"] != sweep.inputs_sha256:
                    raise RunError(_OTHER_INPUTS)
            frames = [shard.samples for shard in shards if len(shard.samples)]
            if not frames:
                raise InputError(sweep.inputs.empty_message(sweep.spec))
            samples = pd.concat(frames, ignore_index=True)
            first = shards[0].notes["first"]  # rows of the first batch, already checked
            if len(samples) > first and isinstance(self._protocol, Recheckable):
                bar.enter("checks")
                checker.check_rest(samples.iloc[first:].reset_index(drop=True))
                bar.enter("")
            sweep.heap.trim()
            where = environment(self._adapter.devices, self._command)
            return self._protocol.make_result(
                context=sweep.context,
                inputs=sweep.inputs,
                spec=sweep.spec,
                own_code=sweep.own_code,
                samples=samples,
                details={
                    "environment": _join_environments(where, shards),
                    "plan": {**sweep.plan.cost.to_dict(), "split": splits},
                    **checker.record(),
                },
            )

    @contextmanager
    def _fix_conditions(self) -> Iterator[None]:
        """Fix what numbers and passes depend on: index tables on the CPU, the free memory that was
        planned for, and tensors that can have gradients.
        """
        # Attribution needs gradients, which tensors of inference mode cannot have.
        with _tables_on_cpu(), fix_free_memory(self.free), torch.inference_mode(False):
            yield

    def _fit(self, bar: Progress) -> _FittedSweep:
        """Fit what all shards need, once, and return the sweep."""
        sweep = self._sweep
        assert sweep is not None  # a sweep is planned before it is measured
        if isinstance(sweep, _FittedSweep):
            return sweep
        before = sweep.plan.splitter.splits
        on_work = partial(_on_work, sweep.heap, bar)
        inputs = self._protocol.fit(sweep.engine, sweep.inputs, sweep.spec, sweep.plan, on_work)
        fitted = _FittedSweep(
            spec=sweep.spec,
            own_code=sweep.own_code,
            context=sweep.context,
            inputs=inputs,
            engine=sweep.engine,
            plan=sweep.plan,
            heap=sweep.heap,
            inputs_sha256=_digest(inputs.table().inputs),
            fit_splits=sweep.plan.splitter.splits - before,
        )
        self._sweep = fitted
        return fitted

    def _make_spot_checker(self, sweep: _FittedSweep) -> SpotChecker:
        sweep.heap.trim()
        return SpotChecker(
            protocol=self._protocol,
            inputs=sweep.inputs,
            spec=sweep.spec,
            engine=sweep.engine,
            budget=sweep.plan.cost.pass_bytes,
            n_checks=sweep.plan.cost.checks,
        )


def _on_work(heap: MallocTrimmer, bar: Progress, work: float) -> None:
    """Return freed memory and advance the progress bar; its first phase ends with counted work."""
    heap.trim()
    if work:
        if bar.phase == _FIRST_PHASE:
            bar.enter("")
        bar.advance(work)


def _join_environments(own: Mapping[str, object], shards: Sequence[Shard]) -> dict[str, object]:
    """Return the environment of this process, with those of shards that differ from it."""
    others: list[Any] = []
    for _, notes in shards:
        one = notes.get("environment")
        if not one or one.items() <= own.items():
            continue
        if one not in others:
            others.append(one)
    return {**own, "other_environments": others} if others else dict(own)


@contextmanager
def _tables_on_cpu() -> Iterator[None]:
    """Create index tensors on the CPU, whatever the default device is."""
    with torch.device("cpu") if torch.get_default_device().type != "cpu" else nullcontext():
        yield


def _work_of(units: Sequence[Any]) -> float:
    """Return the work of a shard."""
    return sum(unit.work for unit in units)


def _digest(inputs: Mapping[str, Sequence[TokenizedPrompt]]) -> str:
    """Return a hash of the prepared inputs, which detects answers generated differently on another
    machine.
    """
    facts: dict[str, list[Any]] = {}
    for role, rows in inputs.items():
        own = [(row.id, row.ids, dict(row.positions)) for row in rows]
        facts[role] = own
    return _sha256(facts)[:16]


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()
