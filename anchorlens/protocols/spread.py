"""Sweeps that workers measure: shards over processes that have a model each; this one keeps what comes.

Every worker draws and plans the sweep by itself, from the same model, data, specification and free memory, and that comes out the
same. Shards go to whoever is free, and the last steps (checked cells, record) are a worker's too, so that no model is needed here.
"""

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from anchorlens.errors import InputError, RunError
from anchorlens.kinds import described
from anchorlens.notices import warn
from anchorlens.progress import Progress
from anchorlens.protocols.driver import Measuring, Planned, Shard
from anchorlens.protocols.hands import Hands, Here, Loading
from anchorlens.protocols.plug import SweepProtocol
from anchorlens.protocols.specification import Specification
from anchorlens.questions.datasets import QAData
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.journal import differences
from anchorlens.runs.provenance import command_line
from anchorlens.runs.workers import Call, Crew, RayExecutor, crew, fetched


@dataclass(frozen=True)
class Task:
    """A sweep, as a worker is told of it with every call: one that took another's place knows nothing yet.

    Attributes:
        number: Of the sweep in its run.
        protocol: What is measured.
        model: Name or path.
        data: The question set, where Ray keeps it.
        spec: The protocol's specification.
        own_code: Its fingerprints.
        free: Bytes of memory to plan for; None: not known yet.
        plan: What the others have planned; None: not known yet.
    """

    number: int
    protocol: SweepProtocol[Any, Any]
    model: Any
    data: Any
    spec: Specification
    own_code: Mapping[str, str]
    free: int | None = None
    plan: Mapping[str, Any] | None = None


class Hand:
    """What a worker holds: a model, and the sweep that it is at.

    Args:
        loading: How models are loaded.
        command: What began the run.
        gpus: That it may use.
    """

    def __init__(self, loading: Loading, command: str, gpus: float) -> None:
        unseen = loading.device is None and not gpus and torch.cuda.is_available()
        self._here, self._model = Here(replace(loading, device="cpu") if unseen else loading, command), None
        self._task: Task | None = None
        self._station: Any = None
        self._planned: Planned | None = None

    def open(self, task: Task) -> tuple[Mapping[str, object], int]:
        """The model's card, and bytes of memory that are free where it lies."""
        station = self._opened(task)
        return station.card, station.free

    def plan(self, task: Task) -> Planned:
        """Draw and plan.

        Raises:
            RunError: The others have planned something else.
        """
        station, planned = self._opened(task), self._planned
        if planned is None:
            assert task.free is not None  # known before anybody plans
            self._planned = planned = station.plan(task.free)
        if task.plan is not None:
            _same(task.plan, _decides(planned))
        return planned

    def shard(self, task: Task, number: int) -> Shard:
        """Measure one."""
        self.plan(task)
        return self._station.shard(number, _silent())

    def finish(self, task: Task, shards: Sequence[Shard]) -> SweepResult:
        """The result."""
        self.plan(task)
        return self._station.finish(shards, _silent())

    def _opened(self, task: Task) -> Any:
        if self._task is None or self._task.number != task.number:
            if task.spec.own_code() != task.own_code:
                raise InputError(
                    "A function of your own (readout, donors, site, prompt) reaches the workers as another one: give it from a file "
                    "that they can import, under the same version of Python."
                )
            if task.model != self._model:
                self._model, self._station = task.model, None  # let go of before the next one needs the memory
            self._station, self._planned = self._here.station(task.protocol, self._model, fetched(task.data), task.spec), None
            self._task = task
        return self._station


def _silent() -> Progress:
    """The driver shows it."""
    return Progress("", 1.0, "", show=False)


def _decides(planned: Planned) -> dict[str, Any]:
    return {**planned.cost.to_dict(), "shards": len(planned.shards)}


def _same(was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if found := differences({"plan": was}, {"plan": now}):
        raise RunError(
            f"Workers plan the same sweep differently: {'; '.join(found)}. Use machines of one kind, or give batch_size=."
        )


class Spread(Measuring):
    """A sweep that workers measure.

    Args:
        workers: They.
        task: The sweep.
    """

    def __init__(self, workers: Crew, task: Task) -> None:
        self._crew, self._task = workers, task
        found = workers.everywhere("loading the model", "open", task)
        self._card: Mapping[str, object] = found[0][0]
        for card, _ in found[1:]:
            if apart := differences({"model": _plain(self._card)}, {"model": _plain(card)}):
                raise RunError(f"Workers have different models: {'; '.join(apart)}. Give all of them the same files.")
        self.free = min(free // n for (_, free), n in zip(found, _sharing(workers, str(self._card["device"])), strict=True))

    @property
    def card(self) -> Mapping[str, object]:
        """See :class:`Measuring`."""
        return self._card

    def plan(self, free: int) -> Planned:
        """See :class:`Measuring`."""
        self._task = replace(self._task, free=free)
        first, *others = self._crew.everywhere("preparing the sweep", "plan", self._task)
        for other in others:
            _same(_decides(first), _decides(other))
            if apart := differences(dict(first.environment), dict(other.environment)):
                warn(f"Workers differ: {'; '.join(apart)}. Numbers may differ in their last digits from shard to shard.")
        self._task, self._planned = replace(self._task, plan=_decides(first)), first
        return first

    def measured(self, numbers: Sequence[int], bar: Progress) -> Generator[tuple[int, Shard], None, None]:
        """These shards, as they come."""
        calls = [Call(number, f"shard {number}", "shard", (self._task, number)) for number in numbers]
        for i, (number, shard) in enumerate(self._crew.done(calls)):
            bar.advance(self._planned.shards[number] + (self._planned.before if i == 0 else 0.0))
            yield number, shard

    def finish(self, shards: Sequence[Shard], bar: Progress) -> SweepResult:
        """See :class:`Measuring`."""
        bar.enter("checks")
        result = self._crew.once("finishing the sweep", "finish", self._task, shards)
        bar.enter("")
        return result


def _sharing(workers: Crew, device: str) -> list[int]:
    """How many workers each one shares its memory with, itself among them."""
    nodes = [place.node for place in workers.places]
    if device.startswith("cuda") and workers.gpus:
        return [max(1, int(1 / workers.gpus))] * len(nodes)
    return [nodes.count(node) for node in nodes]


def _plain(card: Mapping[str, object]) -> dict[str, object]:
    """A model wherever it lies."""
    return {name: value for name, value in card.items() if name not in ("device", "parity")}


class Workers(Hands):
    """Workers measure; each loads a model once and keeps it for the sweeps that need it.

    Args:
        made: They.
    """

    def __init__(self, made: Crew) -> None:
        self._crew, self._number = made, 0
        self._data: dict[int, tuple[QAData, Any]] = {}

    def station(self, protocol: SweepProtocol[Any, Any], model: Any, data: QAData, spec: Specification) -> Spread:
        """See :class:`Hands`."""
        if id(data) not in self._data:
            self._data[id(data)] = data, self._crew.sent(data)
        quiet = spec.changed(progress=False, on_plan=None)
        task = Task(self._number, protocol, model, self._data[id(data)][1], quiet, quiet.own_code())
        self._number += 1
        return Spread(self._crew, task)


def refuse_live(executor: RayExecutor | None, models: Sequence[Any]) -> None:
    """Workers load models by themselves.

    Raises:
        InputError: One of them is a live model.
    """
    live = next((model for model in models if not isinstance(model, (str, os.PathLike))), None)
    if executor is not None and live is not None:
        raise InputError(
            f"With executor='ray' each worker loads the model: give its name or path instead of {described(live)}."
        )


@contextmanager
def at_work(executor: RayExecutor | None, loading: Loading | None = None) -> Iterator[Hands]:
    """Who measures in a ``with`` block: this process, or workers where there is an executor.

    Raises:
        InputError: There is no such cluster, or no room for so many workers.
    """
    loading = loading or Loading()
    if executor is None:
        yield Here(loading)
        return
    if executor.gpus_per_worker is None and loading.n_devices > 1:  # a worker sees no more than it is given
        executor = replace(executor, gpus_per_worker=float(loading.n_devices))
    with crew(executor, partial(Hand, loading, command_line()), loading.device) as made:
        yield Workers(made)


__all__ = ["Hand", "Spread", "Workers", "at_work", "refuse_live"]
