"""Base class for measuring activation patches (`patch` and `swap`)."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import override

from anchorlens.constants import P
from anchorlens.engine.engine import Engine
from anchorlens.engine.patches import OnProgress
from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.measure.budget import UnitGroup
from anchorlens.measure.patch_plan import Batch
from anchorlens.measure.patch_runner import PatchRunner, Values
from anchorlens.measure.patched_pairs import MakeStreams, Pair, Placement, group_by_places
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.base import ContextT, InputsT, Measurement, OnWork, Plan, SpecT
from anchorlens.runs.schema import CELL

Array = npt.NDArray[np.float64]


@runtime_checkable
class BatchRunner(Protocol):
    """Measures batches: :class:`~anchorlens.measure.patch_runner.PatchRunner`, or estimates."""

    def run(self, batches: Sequence[Batch], on_progress: OnProgress) -> list[Values]:
        """Return the metrics of each batch, without and with its patches."""
        ...


class PatchingMeasurement(Measurement[SpecT, InputsT, ContextT]):
    """Base class of measurements that patch activations of one input into another.

    The specification must have the arguments ``site`` and ``max_memory``.
    """

    @abstractmethod
    def pairs(self, inputs: InputsT) -> tuple[Pair[Any], ...]:
        """Return all pairs of the sweep."""

    @abstractmethod
    def reader(self, adapter: Adapter, inputs: InputsT, pairs: Sequence[Pair[Any]]) -> Reader:
        """Return the reader of the metric of some pairs."""

    @abstractmethod
    def effect(
        self, inputs: InputsT, spec: SpecT, pairs: Sequence[Pair[Any]], before: Array, after: Array
    ) -> Array:
        """Compute the effect on the metric, [..., pair]."""

    def metric(self, inputs: InputsT, spec: SpecT) -> str:
        """Return the name of the metric."""
        return P

    def window(self, spec: SpecT) -> int:
        """Return the number of layers patched together."""
        return 1

    def compares_writes(self, spec: SpecT) -> bool:
        """Return whether what the cone engine writes is compared with full forward passes of the
        sources.
        """
        return False

    def make_streams(self, inputs: InputsT, spec: SpecT) -> MakeStreams | None:
        """Return the function that makes the streams of a batch; None for those of the sources."""
        return None

    def bytes_of_inputs(self, inputs: InputsT) -> int:
        """Return the memory of what the inputs keep of other runs, in bytes."""
        return 0

    def is_reachable(self, inputs: InputsT, spec: SpecT, place: Placement, layer: int) -> bool:
        """Return whether a patch can reach the readout; other cells have no row."""
        return True

    @abstractmethod
    def columns(
        self, inputs: InputsT, spec: SpecT, batch: Batch, place: Placement
    ) -> dict[str, Any]:
        """Return columns of ``samples.parquet`` that follow from the inputs alone, [layer pair] or
        broadcast to it.
        """

    def more_values(self, before: Metrics, after: Metrics) -> dict[str, Any]:
        """Return further measured columns of ``samples.parquet``, [layer pair] or broadcast
        to it.
        """
        return {}

    def runner(self, engine: Engine, inputs: InputsT, spec: Any) -> PatchRunner:
        """Return the runner of the sweep's patches."""
        return PatchRunner(
            engine=engine,
            site=spec.site,
            window=self.window(spec),
            make_reader=partial(self.reader, engine.adapter, inputs),
            make_streams=self.make_streams(inputs, spec),
            metric=self.metric(inputs, spec),
            compares_writes=self.compares_writes(spec),
            batch_size=spec.batch_size,
            max_memory=spec.max_memory,
            stored_bytes=self.bytes_of_inputs(inputs),
        )

    def batch_runner(self, engine: Engine, inputs: InputsT, spec: Any) -> BatchRunner:
        """Return what measures the batches of the sweep: its patches, or estimates of them."""
        return self.runner(engine, inputs, spec)

    @override
    def plan(self, engine: Engine, inputs: InputsT, spec: Any) -> Plan:
        cost = self.runner(engine, inputs, spec).plan(
            self.pairs(inputs), inputs.layers, checks=spec.n_spot_checks
        )
        return Plan(cost.groups, cost, "cell", engine.adapter.device)

    @override
    def measure(
        self, engine: Engine, inputs: InputsT, spec: Any, unit: UnitGroup[Batch], on_work: OnWork
    ) -> pd.DataFrame:
        runner = self.batch_runner(engine, inputs, spec)
        values = runner.run(unit.parts, lambda share: on_work(share * unit.work))
        frames: list[pd.DataFrame] = []
        for batch, (before, changed) in zip(unit.parts, values, strict=True):
            frames += self._tables(inputs, spec, batch, before, changed)
        return pd.concat(frames, ignore_index=True)

    def _tables(
        self, inputs: InputsT, spec: Any, batch: Batch, before: Metrics, changed: Sequence[Metrics]
    ) -> Iterator[pd.DataFrame]:
        """Yield the rows of each placement of a measured batch."""
        metric = self.metric(inputs, spec)
        start = np.broadcast_to(_values(before, metric), (len(batch.layers), len(batch.pairs)))
        for place, after in zip(batch.pairs[0].placements, changed, strict=True):
            end = _values(after, metric)
            values = {
                "value_before": start,
                "value_after": end,
                "effect": self.effect(inputs, spec, batch.pairs, start, end),
                **self.more_values(before, after),
            }
            yield self._rows(inputs, spec, batch, place, values)

    def _rows(
        self, inputs: InputsT, spec: Any, batch: Batch, place: Placement, values: Mapping[str, Any]
    ) -> pd.DataFrame:
        """Return the rows of one placement of a batch with measured values, [layer pair] or
        broadcast to it.
        """
        pairs = batch.pairs
        layers = np.asarray(batch.layers)
        columns = {
            "example_id": [pair.base.id for pair in pairs],
            "question_id": [pair.base.group for pair in pairs],
            "cluster": [pair.base.cluster for pair in pairs],
            "donor_id": [pair.donor_id for pair in pairs],
            "anchor": place.anchor,
            "layer": layers[:, None],
            "control": place.control,
            "draw": place.draw,
            "metric": self.metric(inputs, spec),
            **values,
            **self.columns(inputs, spec, batch, place),
        }
        reachable = np.repeat(
            [self.is_reachable(inputs, spec, place, layer) for layer in batch.layers], len(pairs)
        )
        shape = len(layers), len(pairs)
        whole: dict[str, npt.NDArray[Any]] = {}
        for name, value in columns.items():
            cells = np.broadcast_to(np.asarray(value), shape)
            whole[name] = cells.ravel()
        return pd.DataFrame(whole)[reachable]

    def list_cells(self, engine: Engine, inputs: InputsT, spec: Any) -> pd.DataFrame:
        """Return the keys of all samples and the columns that follow from the inputs."""
        frames: list[pd.DataFrame] = []
        for pairs in group_by_places(self.pairs(inputs)):
            batch = Batch(tuple(pairs), tuple(inputs.layers))
            for place in pairs[0].placements:
                rows = self._rows(inputs, spec, batch, place, {})
                frames.append(rows)
        return pd.concat(frames, ignore_index=True)

    def differs_by_rounding(
        self, adapter: Adapter, inputs: InputsT, spec: Any, cell: Mapping[str, Any], allowed: float
    ) -> bool:
        """Return whether a cell's values of a metric function differ from a full forward pass by
        rounding; differences up to ``allowed`` are none.
        """
        (pair,) = self._pairs_of(inputs, [cell])
        values = {name: float(cell[name]) for name in ("value_before", "value_after")}
        runner = self.runner(ReferenceEngine(adapter), inputs, spec)
        return runner.differs_by_rounding(pair, int(cell["layer"]), values, allowed)

    def _pairs_of(self, inputs: InputsT, samples: Sequence[Mapping[str, Any]]) -> list[Pair[Any]]:
        """Return the pair of each cell, with the placement of the cell alone."""
        by_key = {pair.key: pair for pair in self.pairs(inputs)}
        chosen: list[Pair[Any]] = []
        for cell in samples:
            pair = by_key[cell["example_id"], cell["donor_id"]]
            wanted = (cell["anchor"], cell["control"], int(cell["draw"]))
            place = next(p for p in pair.placements if p.key == wanted)
            chosen.append(replace(pair, placements=(place,)))
        return chosen

    def remeasure(
        self,
        reference: ReferenceEngine,
        inputs: InputsT,
        spec: Any,
        samples: Sequence[Mapping[str, Any]],
    ) -> pd.DataFrame:
        """Measure each cell as a row of one batch, patched at its own layer."""
        chosen = self._pairs_of(inputs, samples)
        layers = [int(cell["layer"]) for cell in samples]
        metric = self.metric(inputs, spec)
        before, after = np.empty((2, len(chosen)))
        more: dict[str, Array] = {}
        runner = self.runner(reference, inputs, spec)
        for numbers, clean, patched in runner.measure_alone(chosen, layers):
            before[numbers] = _values(clean, metric)
            after[numbers] = _values(patched, metric)
            for name, values in self.more_values(clean, patched).items():
                more.setdefault(name, np.full(len(chosen), np.nan))[numbers] = values
        frame = key_frame(samples)
        effect = self.effect(inputs, spec, chosen, before, after)
        return frame.assign(value_before=before, value_after=after, effect=effect, **more)


def key_frame(samples: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the columns that identify the cells of some samples."""
    keys: list[dict[str, Any]] = []
    for cell in samples:
        own = {name: cell[name] for name in CELL}
        keys.append(own)
    return pd.DataFrame(keys)


def _values(metrics: Metrics, name: str) -> Array:
    return metrics.values[name].double().numpy()
