"""One driver for every protocol: from a model, questions and a specification to a result.

Tokenizer and prompt, shots, the engine, units, progress, memory that runs out, checked cells and the record are done
here, once; what is measured is the protocol's (:mod:`anchorlens.protocols.plug`). A :class:`Station` measures shards;
:func:`carried_out` says which, keeps them and ends with the result. So a process that measures a share, and a worker elsewhere, do
the same as one that is alone.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from anchorlens.engine.cost import free_memory, memory_seen
from anchorlens.engine.select import choose_engine
from anchorlens.errors import EmptySweepError, InputError, RunError
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import card_of, name_of
from anchorlens.models.load import as_hooked
from anchorlens.notices import warn
from anchorlens.progress import Progress, progress
from anchorlens.protocols.costing import SweepPlan
from anchorlens.protocols.memory import Heap
from anchorlens.protocols.plug import Bench, SweepProtocol
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.trust import Trust
from anchorlens.questions.datasets import QAData, load_qa
from anchorlens.questions.more import questions_of
from anchorlens.questions.prompts import FewShotPrompt, make_prompt
from anchorlens.questions.tokenised import drop
from anchorlens.questions.tokens import RowTokenizer, TokenRow, common_prefix
from anchorlens.results.sweep import SweepResult
from anchorlens.results.tables import examples_frame
from anchorlens.runs.journal import SweepJournal, differences
from anchorlens.runs.merging import EMPTY
from anchorlens.runs.provenance import command_line, data_record, environment, model_record, run_id_of
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES, settings_of

# Inputs that show what all begin with.
_LOOKED_AT = 16

_OTHER_INPUTS = (
    "Shards of this sweep were measured on other inputs than those that are drawn here, though model, data and arguments are the "
    "same: answers that the model wrote differ between machines. Measure all shards on machines of one kind, or throw away what "
    "is there with force_new=True."
)
Shard = tuple[pd.DataFrame, dict[str, Any]]
"""Rows of the samples, and notes for who finishes the sweep."""


@dataclass(frozen=True)
class Planned:
    """What is known of a sweep before its first shard is measured.

    Attributes:
        label: For the progress bar.
        unit_name: What that counts.
        before: Work before the first shard.
        shards: Work of each.
        cost: For the user.
        environment: What the numbers are computed with.
    """

    label: str
    unit_name: str
    before: float
    shards: tuple[float, ...]
    cost: SweepPlan
    environment: Mapping[str, object]


class Measuring(ABC):
    """Who measures a sweep: this process (:class:`Station`), or workers.

    Attributes:
        free: Bytes of memory that are free where the model lies; on the fullest device of several.
    """

    free: int

    @property
    @abstractmethod
    def card(self) -> Mapping[str, object]:
        """The model, as ``run.json`` keeps it."""

    @abstractmethod
    def plan(self, free: int) -> Planned:
        """Draw everything and plan, for so much free memory.

        Raises:
            AnchorlensError: See :func:`run`.
        """

    @abstractmethod
    def measured(self, numbers: Sequence[int], bar: Progress) -> Generator[tuple[int, Shard], None, None]:
        """These shards with their numbers, as they come.

        Raises:
            CheckError: A cell of the first batch came out differently.
        """

    @abstractmethod
    def finish(self, shards: Sequence[Shard], bar: Progress) -> SweepResult:
        """The result of all shards, in their order; cells of all but the first batch are checked.

        Raises:
            InputError: Not one cell could be measured.
            RunError: The shards were measured on other inputs.
        """


def run(
    protocol: SweepProtocol[Any, Any], model: Any, data: Any, spec: Specification, journal: SweepJournal | None = None
) -> SweepResult:
    """Measure every cell of a sweep, in this process.

    Args:
        protocol: What is measured.
        model: A HookedTransformer, or what :func:`anchorlens.load_model` takes.
        data: From :func:`anchorlens.load_qa`, or what it takes as its first argument.
        spec: The protocol's specification.
        journal: Keeps what is measured as soon as it is; what it has is not measured again.

    Raises:
        InputError: The model cannot be measured so, or nothing fits into the memory that was given.
        RunError: The journal is that of another sweep, or cannot be written.
        EmptySweepError: No row is left; the message counts the reasons.
        CheckError: A cell that was measured again by the oracle came out differently.
    """
    result = carried_out(lambda: Station(protocol, model, data, spec), spec, journal)
    assert result is not None  # only a share has none
    return result


def carried_out(
    measuring: Callable[[], Measuring], spec: Specification, journal: SweepJournal | None = None
) -> SweepResult | None:
    """Measure a sweep, or the journal's share of it.

    Args:
        measuring: Makes who measures it.
        spec: The protocol's specification.
        journal: See :func:`run`.

    Returns:
        The result; None where the journal is that of a share: its shards are kept, and who has all of them finishes.

    Raises:
        AnchorlensError: See :func:`run`.
    """
    try:
        return _carried_out(measuring(), spec, journal)
    except EmptySweepError as why:
        if journal is not None:
            journal.kept(EMPTY, {"why": str(why)})
        raise


def _carried_out(measuring: Measuring, spec: Specification, journal: SweepJournal | None) -> SweepResult | None:
    free = {"bytes": measuring.free}
    if journal is not None:
        # Where it lies and how exactly it was mapped there is the environment's.
        journal.begun("model", {name: value for name, value in measuring.card.items() if name not in ("device", "parity")})
        free = journal.kept("free_memory", free)
    planned = measuring.plan(free["bytes"])
    if spec.on_plan is not None:
        spec.on_plan(planned.cost)
    n, mine, share = len(planned.shards), range(len(planned.shards)), False
    if journal is not None:
        journal.begun("plan", {**planned.cost.to_dict(), "check_cells": spec.check_cells, "shards": n})
        _same_machine(journal, planned)
        journal.find(n)
        mine, share = [number for number in mine if journal.mine(number)], journal.share is not None
    kept: dict[int, Shard] = {}
    inputs: set[str] = set()
    work = planned.before + sum(planned.shards[number] for number in mine)
    with progress(planned.label, work, planned.unit_name, show=spec.progress) as bar:

        def keep(number: int, shard: Shard) -> None:
            kept[number] = (pd.DataFrame(), shard[1]) if share else shard
            inputs.add(shard[1]["inputs"])
            if len(inputs) > 1:
                raise RunError(_OTHER_INPUTS)

        for number in mine:
            found = None if journal is None else journal.read(number)
            if found is not None:
                keep(number, found)
                bar.skip(planned.shards[number])
        with closing(measuring.measured([number for number in mine if number not in kept], bar)) as arriving:
            for number, shard in arriving:
                keep(number, shard if journal is None else journal.write(number, *shard))
        return None if share else measuring.finish([kept[number] for number in range(n)], bar)


def _same_machine(journal: SweepJournal, planned: Planned) -> None:
    """Warn where shards that are there were measured with something that decides the last digits."""
    now = {name: value for name, value in planned.environment.items() if name != "command"}
    found = differences(journal.kept("environment", now), now)
    if found:
        warn(
            f"This run was begun elsewhere: {'; '.join(found)}. Its numbers may differ in their last digits from shard to shard."
        )


def set_up(adapter: Adapter, data: QAData, spec: Specification, *, asking: bool) -> Bench:
    """Tokenizer, prompt and rows."""
    hf = adapter.model.tokenizer
    if hf is None:
        raise InputError(
            "This HookedTransformer has no tokenizer. Set model.tokenizer, or load it with anchorlens.load_model."
        )
    prompt = make_prompt(spec.prompt, data.examples, data.pool, spec.seed)
    tokenizer = RowTokenizer(hf, prompt, add_bos=spec.add_bos, max_length=adapter.shape.n_ctx, ask=asking)
    shots = prompt.shot_ids if isinstance(prompt, FewShotPrompt) else frozenset()
    examples, pool = (tuple(e for e in rows if e.question_id not in shots) for rows in (data.examples, data.pool))
    used = tuple(drop(e, "used_as_shot") for e in data.examples if e.question_id in shots)
    name = name_of(adapter.model)
    return Bench(adapter, name, data, examples, pool, tokenizer, (*data.dropped, *used), spec.progress)


class Station(Measuring):
    """A sweep that is measured in this process: set up, planned, then shard by shard in any order.

    Args:
        protocol: What is measured.
        model: A HookedTransformer, or what :func:`anchorlens.load_model` takes.
        data: From :func:`anchorlens.load_qa`, or what it takes as its first argument.
        spec: The protocol's specification.
        command: What began the run, for its record; this process's where it is None.
    """

    def __init__(
        self, protocol: SweepProtocol[Any, Any], model: Any, data: Any, spec: Specification, command: str | None = None
    ) -> None:
        self._protocol, self._data, self._spec, self._command = protocol, data, spec, command or command_line()
        with _tables_on_cpu():
            self._adapter = Adapter(as_hooked(model))
            self.free = free_memory(self._adapter.devices)

    @property
    def card(self) -> Mapping[str, object]:
        """See :class:`Measuring`."""
        return model_record(card_of(self._adapter.model))

    def plan(self, free: int) -> Planned:
        """See :class:`Measuring`."""
        self.free, protocol, spec = free, self._protocol, self._spec
        with _tables_on_cpu():
            protocol.fit_to(spec, self._adapter)
            self._data = qa = self._data if isinstance(self._data, QAData) else load_qa(self._data, seed=spec.seed)
        with self._as_planned():
            self._bench = set_up(self._adapter, qa, spec, asking=protocol.asking(spec))
            self._ready = protocol.prepare(self._bench, spec)
            self._engine = choose_engine(self._adapter, spec.engine, self._ready.trial, self._ready.sites)
            self._plan = plan = protocol.plan(self._engine, self._ready, spec)
            self._beginning, self._fitted = _beginning(self._bench), False
            self._heap = Heap(self._adapter.device, plan.cost.peak_bytes)
            label = f"{protocol.name} {self._bench.model_name} {qa.name}"
            work = tuple(sum(unit.work for unit in units) for units in plan.shards)
            return Planned(
                label, plan.unit_name, plan.before, work, plan.cost, environment(self._adapter.devices, self._command)
            )

    def measured(self, numbers: Sequence[int], bar: Progress) -> Generator[tuple[int, Shard], None, None]:
        """These shards, one after the other."""
        for number in numbers:
            yield number, self.shard(number, bar)

    def shard(self, number: int, bar: Progress) -> Shard:
        """Measure a shard. The sweep's first batch is checked right after it.

        Nothing of earlier shards is used, so that it comes out the same wherever and whenever it is measured.

        Raises:
            CheckError: A cell of the first batch came out differently.
        """
        with self._as_planned():
            self._fit(bar)
            units, memory = self._plan.shards[number], self._plan.memory
            splits, frames = memory.splits, []
            notes: dict[str, Any] = {"first": 0, "gaps": [], "checked": 0, "inputs": self._inputs}
            self._engine.begin(self._beginning)
            for unit in units:
                frames.append(self._unit(unit, bar))
                if number == 0 and len(frames) == 1 and not frames[0].empty:
                    trust = self._trust()
                    bar.enter("checks")
                    trust.first(frames[0], alone=len(self._plan.units) == 1)
                    bar.enter("")
                    notes |= {"first": len(frames[0]), "gaps": list(trust.gaps), "checked": trust.cells}
            frames = [frame for frame in frames if len(frame)]
            whole = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
            return whole, notes | {"splits": memory.splits - splits, "work": sum(unit.work for unit in units)}

    def finish(self, shards: Sequence[Shard], bar: Progress) -> SweepResult:
        """See :class:`Measuring`."""
        with self._as_planned():
            self._fit(bar)
            protocol, plan, trust = self._protocol, self._plan, self._trust()
            splits = self._fit_splits
            for _, notes in shards:
                splits += notes["splits"]
                trust.known(notes["gaps"], notes["checked"])
                if notes["inputs"] != self._inputs:
                    raise RunError(_OTHER_INPUTS)
            frames = [frame for frame, _ in shards if len(frame)]
            if not frames:
                raise InputError(protocol.nothing(self._ready, self._spec))
            samples = pd.concat(frames, ignore_index=True)
            first = shards[0][1]["first"]  # rows of the first batch, which was checked at once
            if len(samples) > first:
                bar.enter("checks")
                trust.rest(samples.iloc[first:].reset_index(drop=True))
                bar.enter("")
            self._heap.look()
            how = {"plan": {**plan.cost.to_dict(), "split": splits}, **trust.record()}
            where = environment(self._adapter.devices, self._command)
            return _result(protocol, self._bench, self._ready, self._spec, samples, {"environment": where, **how})

    @contextmanager
    def _as_planned(self) -> Iterator[None]:
        with _tables_on_cpu(), memory_seen(self.free), questions_of(self._data):
            yield

    def _fit(self, bar: Progress) -> None:
        """What is learnt before the first shard, once."""
        if not self._fitted:
            before = self._plan.memory.splits
            self._ready = self._protocol.fit(self._engine, self._ready, self._spec, self._plan, self._told(bar))
            self._fit_splits = self._plan.memory.splits - before
            self._inputs = _digest(self._protocol.inputs(self._ready)["inputs"])
            self._fitted = True

    def _told(self, bar: Progress) -> Callable[[float], None]:
        """Moves the bar, and keeps to the memory that was planned: some times a layer in the cone, cell by cell in the oracle."""

        def told(work: float) -> None:
            self._heap.look()
            if work:
                bar.advance(work)

        return told

    def _trust(self) -> Trust:
        self._heap.look()
        return Trust(self._protocol, self._ready, self._spec, self._engine, self._plan.cost.pass_bytes)

    def _unit(self, unit: Any, bar: Progress) -> pd.DataFrame:
        told = self._told(bar)

        def measured(one: Any) -> pd.DataFrame:
            return self._protocol.measure(self._engine, self._ready, self._spec, one, told)

        parts = self._plan.memory.measured(measured, unit)
        return pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]


@contextmanager
def _tables_on_cpu() -> Iterator[None]:
    """Tables of indices belong on the CPU, whatever the user's default device is."""
    with torch.device("cpu") if torch.get_default_device().type != "cpu" else nullcontext():
        yield


def _beginning(bench: Bench) -> tuple[int, ...]:
    """Tokens that inputs begin with, as a few of them show: what stands before the question."""
    some = [bench.tokenizer.prompt_ids(example.question) for example in bench.examples[:_LOOKED_AT]]
    return some[0][: common_prefix(some, len(some[0]))] if len(some) > 1 else ()


def _digest(inputs: Mapping[str, Sequence[TokenRow]]) -> str:
    """Tells one preparation from another: answers that a model writes may differ between machines, and donors with them."""
    rows = {role: [(row.row_id, row.ids, row.positions) for row in rows] for role, rows in inputs.items()}
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=list).encode()).hexdigest()[:16]


def _result(
    protocol: SweepProtocol[Any, Any],
    bench: Bench,
    ready: Any,
    spec: Specification,
    samples: pd.DataFrame,
    how: dict[str, Any],
) -> SweepResult:
    own = protocol.record(ready, spec)
    prompt, code = bench.tokenizer.prompt.name, spec.own_code()
    config = {
        "protocol": protocol.name, **spec.identity(), "layers": list(spec.layers_of(bench.adapter.n_layers)), "prompt": prompt,
        "add_bos": bench.tokenizer.add_bos,
        **own.pop("config", {}), **({"own_code": code} if code else {}),
    }  # fmt: skip
    card, data = model_record(card_of(bench.adapter.model)), data_record(bench.data)
    run_id = run_id_of(config, card, data)
    counts = own.pop("counts", {}) | {"dropped": dict(Counter(d.reason for d in ready.dropped).most_common())}
    record = {"config": config, "model": card, "data": data, **how, "counts": counts, **own}
    keys = {
        "run_id": run_id,
        "model": bench.model_name,
        "dataset": bench.data.name,
        "protocol": protocol.name,
        "seed": spec.seed,
    }
    same: dict[str, Any] = {**keys, **settings_of(config), **protocol.keys(spec)}
    whole = samples.assign(**same).reindex(columns=list(SAMPLE_COLUMNS)).astype(SLOT_TYPES)
    examples = examples_frame(
        run_id, bench.data.name, prompt, dropped=ready.dropped, token_text=bench.tokenizer.token_text, **protocol.inputs(ready)
    )
    examples["pair_text"] = examples["example_id"].map(dict(protocol.text_scores(ready))).astype("float64")
    return protocol.result.make(protocol, whole, examples, record, run_id).with_probes(*protocol.probes(ready))


__all__ = ["Measuring", "Planned", "Shard", "Station", "carried_out", "run", "set_up"]
