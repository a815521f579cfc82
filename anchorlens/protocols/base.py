"""The interfaces of a protocol: `Measurement`, `Recheckable` and `Analysis`.

A protocol is a folder with three modules. `spec.py` has the specification. `measurement.py` has a
`Measurement`: intervention and readout. `analysis.py` has an `Analysis`: curves, contrasts and
findings from the samples, without a model and without torch. A measurement that is also
`Recheckable` is spot-checked during the sweep and can be verified from its run directory. All
protocols share the record of the run and its tables (:meth:`Measurement.make_result`), and
progress, memory, shards, spot checks, files and command line (`running/`).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from anchorlens.constants import POINTS
from anchorlens.engine.engine import Engine
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.measure.budget import OomSplitter, SweepPlan, Unit
from anchorlens.measure.patch_plan import SHARD_FLOPS
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.models.card import model_record
from anchorlens.prompts.dataset import Dropped
from anchorlens.prompts.sweep_context import DataSource, SweepContext
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.results.analysis import Analysis
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.provenance import run_id_of
from anchorlens.runs.schema import (
    SAMPLE_COLUMNS,
    SLOT_TYPES,
    InputTable,
    examples_frame,
    settings_of,
)

# Largest number of shards of a sweep.
_MOST_SHARDS = 1000


@dataclass(frozen=True)
class SweepInputs(ABC):
    """Base class of the prepared inputs of a sweep.

    Attributes:
        dropped: Dropped rows, with reasons.
        trial: Token ids of one row, for the comparison of the engine with the model's forward pass.
        sites: Hook sites that are changed or read.
        layers: Measured layers.
    """

    dropped: tuple[Dropped, ...]
    trial: tuple[int, ...]
    sites: tuple[SiteLike, ...]
    layers: tuple[int, ...]

    @property
    @abstractmethod
    def max_tokens(self) -> int:
        """Length of the longest measured row, in tokens."""

    @abstractmethod
    def table(self) -> InputTable:
        """Return the rows of ``examples.parquet``."""

    @abstractmethod
    def record(self, spec: Any) -> dict[str, Any]:
        """Return ``config`` (resolved arguments, of which results need ``anchors``), ``counts`` and
        ``probe`` for ``run.json``.
        """

    @property
    def all_probes(self) -> Mapping[str, Any]:
        """Name -> fitted probes: ``none`` for the probes that are read, other names for
        placebos.
        """
        return {}

    def empty_message(self, spec: Any) -> str:
        """Return the error message for a sweep in which no cell can be measured."""
        return "No cell can be measured: no change reaches the readout."


@dataclass(frozen=True)
class Plan:
    """Units of work of a sweep, and their cost.

    Attributes:
        units: Units in execution order.
        cost: Predicted cost, passed to ``on_plan`` before measuring.
        unit_name: Unit of the progress bar.
        device: Device of the model.
        before: Work of :meth:`Measurement.fit`, before the first unit, on the scale of
            ``unit.work``.
    """

    units: tuple[Any, ...]
    cost: SweepPlan
    unit_name: str
    device: torch.device
    before: float = field(default=0.0, kw_only=True)

    @property
    def work(self) -> float:
        """Total work, fitting included."""
        return self.before + sum(unit.work for unit in self.units)

    @cached_property
    def shards(self) -> tuple[tuple[Any, ...], ...]:
        """Groups of consecutive units that are stored together, of about 1e12 FLOPs or more; at
        most about 1,000 groups.
        """
        least = max(SHARD_FLOPS, self.cost.flops / _MOST_SHARDS)
        total = sum(unit.work for unit in self.units) or 1.0
        shards: list[list[Any]] = [[]]
        held = 0.0
        for unit in self.units:
            if held >= least:
                shards.append([])
                held = 0.0
            shards[-1].append(unit)
            held += self.cost.flops * unit.work / total
        return tuple(map(tuple, shards))

    @cached_property
    def splitter(self) -> OomSplitter:
        """Splitter of units that run out of memory; counts the splits of the sweep."""
        return OomSplitter(self.device)


SpecT = TypeVar("SpecT", bound=Specification)
InputsT = TypeVar("InputsT", bound=SweepInputs)
ContextT = TypeVar("ContextT", bound=SweepContext)
OnWork = Callable[[float], object]


class Measurement(ABC, Generic[SpecT, InputsT, ContextT]):
    """Base class of the measurement of a protocol.

    Attributes:
        spec: Specification class of the protocol.
        analysis: Analysis of the protocol.
        source: Loader of the protocol's data.
    """

    spec: type[SpecT]
    analysis: ClassVar[Analysis]
    source: ClassVar[DataSource]

    @property
    def name(self) -> str:
        """Name of the protocol."""
        return self.analysis.name

    @abstractmethod
    def check_model(self, spec: SpecT, adapter: Adapter) -> None:
        """Raise InputError if the model lacks a required layer, head or site.

        Raises:
            InputError: If the model cannot be measured with this specification.
        """

    @abstractmethod
    def prepare(self, context: ContextT, spec: SpecT) -> InputsT:
        """Build the inputs: rows, interventions and readouts. All random draws happen here."""

    @abstractmethod
    def plan(self, engine: Engine, inputs: InputsT, spec: SpecT) -> Plan:
        """Pack the work into units that fit into memory and predict their cost."""

    def fit(
        self, engine: Engine, inputs: InputsT, spec: SpecT, plan: Plan, on_work: OnWork
    ) -> InputsT:
        """Fit truth probes before the first unit, on rows that are not measured."""
        return inputs

    @abstractmethod
    def measure(
        self, engine: Engine, inputs: InputsT, spec: SpecT, unit: Any, on_work: OnWork
    ) -> pd.DataFrame:
        """Measure one unit and return its rows of ``samples.parquet``, without constant columns."""

    def prepare_again(self, context: ContextT, spec: SpecT, stored: StoredInputs) -> InputsT:
        """Build the inputs of a saved sweep from its data set, with its stored probes in place of
        fitted ones.
        """
        return self.prepare(context, spec)

    def record_again(
        self,
        adapter: Adapter,
        inputs: InputsT,
        spec: SpecT,
        stored: StoredInputs,
        rows: Collection[str],
    ) -> dict[str, Any]:
        """Compute entries of the record of a saved sweep again.

        ``rows``: ids of the rows that may be measured for it.
        """
        return {}

    def make_result(
        self,
        *,
        context: ContextT,
        inputs: InputsT,
        spec: SpecT,
        own_code: Mapping[str, str],
        samples: pd.DataFrame,
        details: Mapping[str, Any],
    ) -> SweepResult:
        """Make the result of a sweep from its samples: the record of ``run.json`` and the tables.

        Args:
            context: Model and data set.
            inputs: Inputs of the measurement.
            spec: Specification with all arguments resolved.
            own_code: Argument -> fingerprint of a user function.
            samples: Measured rows of all shards.
            details: Entries of ``run.json`` on the measurement: environment, plan, checks and
                noise.
        """
        parts = inputs.record(spec)
        config = _config_of(self.name, context, spec, parts.pop("config", {}))
        if own_code:
            config["own_code"] = dict(own_code)
        card = model_record(context.adapter)
        data = context.data.record()
        run_id = run_id_of(config, card, data)
        reasons = Counter(row.reason for row in inputs.dropped)
        counts = parts.pop("counts", {}) | {"dropped": dict(reasons.most_common())}
        record = {
            "config": config,
            "model": card,
            "data": data,
            **details,
            "counts": counts,
            **parts,
        }
        if context.clock is not None:
            record["clock"] = context.clock
        same: dict[str, Any] = {
            "run_id": run_id,
            "model": context.model_name,
            "dataset": context.data.name,
            "protocol": self.name,
            "seed": spec.seed,
            **settings_of(config),
            **spec.constant_columns(),
        }
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
        result = self.analysis.result.make(self.analysis, whole, examples, record, run_id)
        return result.with_probes(inputs.all_probes)


def _config_of(
    name: str,
    context: SweepContext,
    spec: Specification,
    of_inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the entry ``config`` of ``run.json``: the arguments, as the sweep resolved them.

    ``of_inputs``: arguments that the inputs resolve.
    """
    resolved = {
        "layers": list(spec.layers_of(context.adapter.n_layers)),
        "prompt": context.prompt,
        "add_bos": context.add_bos,
    }
    if context.prompts_sha256 is not None:
        resolved["prompts_sha256"] = context.prompts_sha256
    return {
        "protocol": name,
        **spec.identity(),
        **resolved,
        **of_inputs,
    }


@runtime_checkable
class Recheckable(Protocol):
    """Interface of a measurement whose cells can be measured again by the reference engine."""

    def remeasure(
        self,
        reference: ReferenceEngine,
        inputs: Any,
        spec: Any,
        samples: Sequence[Mapping[str, Any]],
    ) -> pd.DataFrame:
        """Measure rows of the samples again; the result may contain further rows."""
        ...

    def list_cells(self, engine: Engine, inputs: Any, spec: Any) -> pd.DataFrame:
        """Return one row per sample of the sweep without its values: its key, and columns that
        follow from the inputs alone.
        """
        ...

    def from_run(self, adapter: Adapter, spec: Any, stored: StoredInputs) -> Any:
        """Rebuild the inputs that :meth:`remeasure` needs from a saved sweep.

        Raises:
            RunError: If the run directory lacks an input.
        """
        ...


@runtime_checkable
class StepMetrics(Protocol):
    """Interface of a measurement whose metric may be any function of the logits, also one that
    moves in steps.
    """

    def differs_by_rounding(
        self, adapter: Adapter, inputs: Any, spec: Any, cell: Mapping[str, Any], allowed: float
    ) -> bool:
        """Return whether a cell's values differ from a full forward pass by rounding; differences
        up to ``allowed`` are none.
        """
        ...


@runtime_checkable
class KnownCells(Protocol):
    """Interface of a measurement in which the values of some cells follow by construction."""

    def values_beforehand(
        self, inputs: Any, spec: Any, samples: pd.DataFrame
    ) -> npt.NDArray[np.float64]:
        """Return the value after the intervention where it is known beforehand; NaN elsewhere."""
        ...


__all__ = [
    "KnownCells",
    "Measurement",
    "OnWork",
    "Plan",
    "Recheckable",
    "StepMetrics",
    "SweepContext",
    "SweepInputs",
    "Unit",
]


def check_layers(name: str, measured: Sequence[int], recorded: Sequence[int]) -> None:
    """Raise RuntimeError if a protocol measures layers that its arguments do not name."""
    if not set(measured) <= set(recorded):
        raise RuntimeError(
            f"{name}: the inputs have the layers {list(measured)}, the arguments"
            f" {list(recorded)}. Let prepare take them from spec.layers_of(n_layers)."
        )
