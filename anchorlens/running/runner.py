"""Run one sweep of any protocol: from a model, data and a specification to a result.

A :class:`LocalRunner` measures shards in this process; :func:`run_sweep` selects the shards, stores
them and returns the result.
"""

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from typing_extensions import override

from anchorlens.constants import POINTS
from anchorlens.display import warn
from anchorlens.engine.choose_engine import choose_engine
from anchorlens.errors import EmptySweepError, InputError, RunError
from anchorlens.measure.budget import MallocTrimmer, SweepPlan
from anchorlens.models.adapter import Adapter, hook_fingerprints
from anchorlens.models.card import model_card
from anchorlens.models.devices import fix_free_memory, free_memory
from anchorlens.models.load import adapt, as_lens_model, check_has_numbers
from anchorlens.progress import Progress, progress, waiting
from anchorlens.prompts.sweep_context import SweepContext
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.protocols.base import (
    Measurement,
    Recheckable,
    SweepInputs,
    check_layers,
)
from anchorlens.protocols.specification import Specification
from anchorlens.results.sweep import SweepResult
from anchorlens.running.spot_checks import SpotChecker
from anchorlens.runs.journal import Shard, ShardNotes, SweepJournal, differences
from anchorlens.runs.merging import EMPTY
from anchorlens.runs.provenance import command_line, environment, model_record, run_id_of
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES, examples_frame, settings_of

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
        shards: Work of each shard.
        cost: Predicted cost.
        environment: Versions, devices and threads of this process.
        prompts_sha256: Hash of the rendered prompts; None if they follow from arguments, data and
            tokenizer.
    """

    label: str
    unit_name: str
    before: float
    shards: tuple[float, ...]
    cost: SweepPlan
    environment: Mapping[str, object]
    prompts_sha256: str | None = None

    def record(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        prompts = {} if self.prompts_sha256 is None else {"prompts_sha256": self.prompts_sha256}
        return {**self.cost.to_dict(), "shards": len(self.shards), **prompts}


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
        mine: Sequence[int] = range(len(planned.shards))
        is_job = False
        if journal is not None:
            _check_journal(journal, runner, planned, spec)
            mine = [number for number in mine if journal.is_mine(number)]
            is_job = journal.job is not None
        kept: dict[int, Shard] = {}
        inputs: set[str] = set()
        work = planned.before + sum(planned.shards[number] for number in mine)
        with progress(
            planned.label, work, planned.unit_name, show=spec.progress, since=started
        ) as bar:

            def keep(number: int, shard: Shard) -> None:
                kept[number] = (pd.DataFrame(), shard[1]) if is_job else shard
                inputs.add(shard[1]["inputs"])
                if len(inputs) > 1:
                    raise RunError(_OTHER_INPUTS)

            for number in mine:
                stored = None if journal is None else journal.read(number)
                if stored is not None:
                    keep(number, stored)
                    bar.skip(planned.shards[number])
            bar.enter(_FIRST_PHASE)
            missing = [number for number in mine if number not in kept]
            with closing(runner.measure_shards(missing, bar)) as shards:
                for number, shard in shards:
                    keep(number, shard if journal is None else journal.write(number, *shard))
            if is_job:
                return None
            return runner.finish([kept[number] for number in range(len(planned.shards))], bar)


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
    journal.find_shards(len(planned.shards), origin, now)


def _drop_entries(record: Mapping[str, object], *names: str) -> dict[str, object]:
    """Return a record without the entries of these names."""
    return {name: value for name, value in record.items() if name not in names}


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

    @property
    @override
    def card(self) -> Mapping[str, object]:
        return _record_of_model(self._adapter)

    @override
    def plan(self, free: int) -> Planned:
        self.free = free
        protocol = self._protocol
        shape = self._adapter.shape
        self._spec = spec = self._spec.resolve(n_layers=shape.n_layers, n_heads=shape.n_heads)
        with _tables_on_cpu():
            protocol.check_model(spec, self._adapter)
            self._data = data = protocol.source.load(self._data, spec.seed)
        with self._within_plan():
            self._context = protocol.source.set_up(self._adapter, data, spec)
            self._ready = protocol.prepare(self._context, spec)
            check_layers(protocol.name, self._ready.layers, spec.layers_of(shape.n_layers))
            self._engine = choose_engine(
                self._adapter, spec.engine, self._ready.trial, self._ready.sites
            )
            self._plan = plan = protocol.plan(self._engine, self._ready, spec)
            self._fitted = False
            self._heap = MallocTrimmer(self._adapter.device, plan.cost.peak_bytes)
            label = f"{protocol.name} {self._context.model_name} {data.name}"
            work = tuple(map(_work_of, plan.shards))
            where = environment(self._adapter.devices, self._command)
            return Planned(
                label=label,
                unit_name=plan.unit_name,
                before=plan.before,
                shards=work,
                cost=plan.cost,
                environment=where,
                prompts_sha256=self._context.prompts_sha256,
            )

    @override
    def measure_shards(
        self, numbers: Sequence[int], bar: Progress
    ) -> Generator[tuple[int, Shard], None, None]:
        measure = partial(self._protocol.measure, on_work=partial(self._on_work, bar))
        # Shards are independent of each other: any may be measured first, or alone.
        for number in numbers:
            with self._within_plan():
                self._fit(bar)
                self._engine.reset(self._context.prefix)
                units = self._plan.shards[number]
                memory = self._plan.memory
                splits = memory.splits
                frames: list[pd.DataFrame] = []
                notes = ShardNotes(inputs=self._inputs, work=sum(unit.work for unit in units))
                of_unit = partial(measure, self._engine, self._ready, self._spec)
                for unit in units:
                    parts = memory.measure_or_split(of_unit, unit)
                    for part in parts:
                        self._spot_checker().check_finite(part)
                    whole = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
                    frames.append(whole)
                    if number == 0 and len(frames) == 1:
                        self._check_first_batch(whole, notes, bar)
                frames = [frame for frame in frames if len(frame)]
                samples = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
                notes.splits = memory.splits - splits
            yield number, (samples, asdict(notes))

    def _check_first_batch(self, samples: pd.DataFrame, notes: ShardNotes, bar: Progress) -> None:
        """Check cells of the first batch, before hours are spent on the others."""
        if samples.empty or not isinstance(self._protocol, Recheckable):
            return
        checker = self._spot_checker()
        bar.enter("checks")
        checker.check_first(samples, alone=len(self._plan.units) == 1)
        bar.enter("")
        notes.first = len(samples)
        notes.gaps = list(checker.gaps)
        notes.checked = checker.cells
        notes.known = checker.known
        notes.steps = checker.steps

    @override
    def finish(self, shards: Sequence[Shard], bar: Progress) -> SweepResult:
        with self._within_plan():
            self._fit(bar)
            protocol = self._protocol
            plan = self._plan
            checker = self._spot_checker()
            splits = self._fit_splits
            for _, notes in shards:
                splits += notes["splits"]
                checker.gaps += notes["gaps"]
                checker.cells += notes["checked"]
                checker.known += notes["known"]
                checker.steps += notes["steps"]
                if notes["inputs"] != self._inputs:
                    raise RunError(_OTHER_INPUTS)
            frames = [frame for frame, _ in shards if len(frame)]
            if not frames:
                raise InputError(self._ready.empty_message(self._spec))
            samples = pd.concat(frames, ignore_index=True)
            first = shards[0][1]["first"]  # rows of the first batch, already checked
            if len(samples) > first and isinstance(protocol, Recheckable):
                bar.enter("checks")
                checker.check_rest(samples.iloc[first:].reset_index(drop=True))
                bar.enter("")
            self._heap.trim()
            details = {"plan": {**plan.cost.to_dict(), "split": splits}, **checker.record()}
            where = environment(self._adapter.devices, self._command)
            others: list[Any] = []
            for _, notes in shards:
                one = notes.get("environment")
                if not one or one.items() <= where.items():
                    continue
                if one not in others:
                    others.append(one)
            where |= {"other_environments": others} if others else {}
            return _result(
                protocol,
                self._context,
                self._ready,
                self._spec,
                samples,
                {"environment": where, **details},
            )

    @contextmanager
    def _within_plan(self) -> Iterator[None]:
        # Attribution needs gradients, which tensors of inference mode cannot have.
        with _tables_on_cpu(), fix_free_memory(self.free), torch.inference_mode(False):
            yield

    def _fit(self, bar: Progress) -> None:
        if not self._fitted:
            before = self._plan.memory.splits
            on_work = partial(self._on_work, bar)
            self._ready = self._protocol.fit(
                self._engine, self._ready, self._spec, self._plan, on_work
            )
            self._fit_splits = self._plan.memory.splits - before
            self._inputs = _digest(self._ready.table().inputs)
            self._fitted = True

    def _on_work(self, bar: Progress, work: float) -> None:
        self._heap.trim()
        if work:
            if bar.phase == _FIRST_PHASE:
                bar.enter("")
            bar.advance(work)

    def _spot_checker(self) -> SpotChecker:
        self._heap.trim()
        return SpotChecker(
            protocol=self._protocol,
            ready=self._ready,
            spec=self._spec,
            engine=self._engine,
            budget=self._plan.cost.pass_bytes,
            n_checks=self._plan.cost.checks,
        )


@contextmanager
def _tables_on_cpu() -> Iterator[None]:
    """Create index tensors on the CPU, whatever the default device is."""
    with torch.device("cpu") if torch.get_default_device().type != "cpu" else nullcontext():
        yield


def _record_of_model(adapter: Adapter) -> dict[str, object]:
    """Return the record of a model with the fingerprints of hooks that a user attached."""
    hooks = hook_fingerprints(adapter)
    return model_record(model_card(adapter.model)) | ({"hooks": hooks} if hooks else {})


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


def _result(
    protocol: Measurement[Any, Any, Any],
    context: SweepContext,
    inputs: SweepInputs,
    spec: Specification,
    samples: pd.DataFrame,
    details: dict[str, Any],
) -> SweepResult:
    parts = inputs.record(spec)
    code = spec.own_code()
    resolved = {
        "layers": list(spec.layers_of(context.adapter.n_layers)),
        "prompt": context.prompt,
        "add_bos": context.add_bos,
    }
    if context.prompts_sha256 is not None:
        resolved["prompts_sha256"] = context.prompts_sha256
    config = {
        "protocol": protocol.name,
        **spec.identity(),
        **resolved,
        **parts.pop("config", {}),
        **({"own_code": code} if code else {}),
    }
    card = _record_of_model(context.adapter)
    data = context.data.record()
    run_id = run_id_of(config, card, data)
    counts = parts.pop("counts", {}) | {
        "dropped": dict(Counter(d.reason for d in inputs.dropped).most_common())
    }
    record = {"config": config, "model": card, "data": data, **details, "counts": counts, **parts}
    if context.clock is not None:
        record["clock"] = context.clock
    keys = {
        "run_id": run_id,
        "model": context.model_name,
        "dataset": context.data.name,
        "protocol": protocol.name,
        "seed": spec.seed,
    }
    same: dict[str, Any] = {**keys, **settings_of(config), **spec.constant_columns()}
    if "unit" not in samples:
        same["unit"] = POINTS
    whole = samples.assign(**same).reindex(columns=list(SAMPLE_COLUMNS)).astype(SLOT_TYPES)
    examples = examples_frame(
        run_id,
        context.data.name,
        context.prompt,
        inputs.table(),
        inputs.dropped,
        context.token_text,
    )
    result = protocol.analysis.result.make(protocol.analysis, whole, examples, record, run_id)
    return result.with_probes(inputs.all_probes)
