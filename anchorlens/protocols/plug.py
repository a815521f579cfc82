"""The plug: what a protocol has to say so that everything else works for it.

A protocol is a specification and ``prepare / plan / measure / curves / contrasts / words``. The driver
(:mod:`anchorlens.protocols.driver`) does the rest, once for all: tokenizer and prompt, shots, units, progress, memory that runs out,
checked cells and the noise floor, record.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import pandas as pd
import torch

from anchorlens.engine.engine import Engine
from anchorlens.engine.interventions import untold
from anchorlens.engine.reference import Oracle
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.protocols.costing import SweepPlan
from anchorlens.protocols.memory import Memory, Unit
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.written import Written
from anchorlens.questions.datasets import QAData
from anchorlens.questions.example import Dropped, Example
from anchorlens.questions.tokens import RowTokenizer
from anchorlens.results.sweep import SweepResult


@dataclass(frozen=True)
class Bench:
    """What every protocol starts from.

    Attributes:
        adapter: The model.
        model_name: Its name.
        data: The question set.
        examples: Rows that may be measured: those of the data that are no shots.
        pool: Rows of the whole file that are no shots, where donors come from.
        tokenizer: Makes inputs with the sweep's prompt.
        dropped: Rows that left so far.
        progress: Whether progress is shown.
    """

    adapter: Adapter
    model_name: str
    data: QAData
    examples: tuple[Example, ...]
    pool: tuple[Example, ...]
    tokenizer: RowTokenizer
    dropped: tuple[Dropped, ...]
    progress: bool


@dataclass(frozen=True)
class Prepared:
    """What every preparation has; protocols add their own.

    Attributes:
        dropped: All rows that were left out.
        trial: Token ids of a row, on which the engine shows that it gives the model's numbers.
        sites: Where activations are changed and read.
        layers: Layers that are measured.
    """

    dropped: tuple[Dropped, ...]
    trial: tuple[int, ...]
    sites: tuple[SiteLike, ...]
    layers: tuple[int, ...]


# Work of a shard, and how many there are at most.
_SHARD_FLOP, _MOST_SHARDS = 1e12, 1000


@dataclass(frozen=True)
class Plan:
    """Units in the order in which they are measured, and what they cost.

    Attributes:
        units: They.
        cost: For the user, before anything is measured.
        unit_name: What the progress bar counts.
        device: Where the model lies.
        before: Work of :meth:`SweepProtocol.fit`.
    """

    units: tuple[Any, ...]
    cost: SweepPlan
    unit_name: str
    device: torch.device
    before: float = 0.0

    @property
    def work(self) -> float:
        """All of it."""
        return self.before + sum(unit.work for unit in self.units)

    @cached_property
    def shards(self) -> tuple[tuple[Any, ...], ...]:
        """Units that are kept together: neighbours, each shard with some seconds of work, and no more shards than a folder likes."""
        least = max(_SHARD_FLOP, self.cost.flops / _MOST_SHARDS)
        whole = sum(unit.work for unit in self.units) or 1.0
        shards: list[list[Any]] = [[]]
        held = 0.0
        for unit in self.units:
            if held >= least:
                shards.append([])
                held = 0.0
            shards[-1].append(unit)
            held += self.cost.flops * unit.work / whole
        return tuple(map(tuple, shards))

    @cached_property
    def memory(self) -> Memory:
        """Splits what does not fit while this is carried out, from :meth:`SweepProtocol.fit` on: one count and one warning."""
        return Memory(self.device)


SpecT = TypeVar("SpecT", bound=Specification)
ReadyT = TypeVar("ReadyT", bound=Prepared)
OnWork = Callable[[float], object]


class SweepProtocol(ABC, Generic[SpecT, ReadyT]):
    """One protocol.

    Attributes:
        name: In outputs and on the command line.
        title: The same for people.
        spec: Its specification.
        result: What it gives.
        asks: Whether the model is asked after the answer whether it is right; see :meth:`asking`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    spec: type[SpecT]
    result: type[SweepResult] = SweepResult

    def asking(self, spec: SpecT) -> bool:
        """Whether inputs end with the question whether the answer is right."""
        return getattr(spec, "readout", "") == "p_true"

    # -- measuring ------------------------------------------------------------------------------------------------------------
    @abstractmethod
    def fit_to(self, spec: SpecT, adapter: Adapter) -> None:
        """Whether this model can be measured so; looked at before anything else.

        Raises:
            InputError: It has no such layer, head or site.
        """

    @abstractmethod
    def prepare(self, bench: Bench, spec: SpecT) -> ReadyT:
        """What is changed, where, with what, and who reads it. Everything random is drawn here."""

    @abstractmethod
    def plan(self, engine: Engine, ready: ReadyT, spec: SpecT) -> Plan:
        """Units that fit into memory, and what they cost."""

    def fit(self, engine: Engine, ready: ReadyT, spec: SpecT, plan: Plan, on_work: OnWork) -> ReadyT:  # noqa: ARG002
        """What must be learnt before the first unit (truth probes, from rows that are not measured)."""
        return ready

    @abstractmethod
    def measure(self, engine: Engine, ready: ReadyT, spec: SpecT, unit: Any, on_work: OnWork) -> pd.DataFrame:
        """The rows of ``samples.parquet`` of one unit, without the columns that are the same for the whole sweep."""

    def nothing(self, ready: ReadyT, spec: SpecT) -> str:  # noqa: ARG002
        """What is said where not one cell could be measured."""
        return "Nothing that is changed reaches what is read."

    # -- trust ----------------------------------------------------------------------------------------------------------------
    @abstractmethod
    def longest(self, ready: ReadyT) -> int:
        """Tokens of the longest row that is measured."""

    @abstractmethod
    def cells(self, ready: ReadyT, samples: Sequence[Mapping[str, Any]]) -> tuple[ReadyT, Any]:
        """The smallest unit that holds these rows of the samples, and the preparation without what they do not need."""

    def measured_again(self, oracle: Oracle, ready: ReadyT, spec: SpecT, samples: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
        """These rows of the samples, and whatever comes with them, measured by the oracle."""
        fewer, unit = self.cells(ready, samples)
        return self.measure(oracle, fewer, spec, unit, untold)

    @abstractmethod
    def restored(self, adapter: Adapter, spec: SpecT, written: Written) -> ReadyT:
        """The preparation of a sweep that was read from its files, as far as :meth:`measured_again` needs it.

        Raises:
            RunError: The files do not hold what is needed.
        """

    # -- record ---------------------------------------------------------------------------------------------------------------
    @abstractmethod
    def keys(self, spec: SpecT) -> dict[str, object]:
        """Columns of the samples that are the same for the whole sweep: anchor, site, window, ..."""

    @abstractmethod
    def record(self, ready: ReadyT, spec: SpecT) -> dict[str, Any]:
        """``config`` (what was resolved), ``counts`` and ``probe`` for run.json."""

    @abstractmethod
    def inputs(self, ready: ReadyT) -> dict[str, Any]:
        """What :func:`~anchorlens.results.tables.examples_frame` takes: inputs by role, donors and positions."""

    def probes(self, ready: ReadyT) -> tuple[Any, Mapping[str, Any]]:  # noqa: ARG002
        """The probes that were read, and those of placebos by name."""
        return None, {}

    def text_scores(self, ready: ReadyT) -> Mapping[str, float]:  # noqa: ARG002
        """Row id -> P(false) that question and answer as text give it: column ``pair_text`` of ``examples.parquet``."""
        return {}

    # -- what is made of it ---------------------------------------------------------------------------------------------------
    @abstractmethod
    def curves(self, result: Any) -> pd.DataFrame:
        """Columns of ``curves.parquet``."""

    @abstractmethod
    def contrasts(self, result: Any) -> pd.DataFrame:
        """Columns of ``effects.parquet``; no row where nothing is compared."""

    @abstractmethod
    def summary(self, result: Any) -> pd.DataFrame:
        """A few numbers."""

    @abstractmethod
    def words(self, result: Any) -> str:
        """What was found."""

    @abstractmethod
    def settings(self, result: Any) -> str:
        """What was done, for a repr."""

    def table(self, results: Sequence[Any]) -> tuple[str, pd.DataFrame]:
        """Title and rows of the table that a terminal shows of several sweeps."""
        return self.title, pd.concat([self.summary(result) for result in results], ignore_index=True)


__all__ = ["Bench", "OnWork", "Plan", "Prepared", "SweepProtocol", "Unit"]
