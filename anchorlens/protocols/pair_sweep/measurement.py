"""Base class for measuring activation patches (`patch` and `swap`)."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from typing_extensions import override

from anchorlens.constants import HEAD_SITES
from anchorlens.engine.agreement import differs_by_rounding
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cost import rows_per_batch
from anchorlens.engine.engine import Engine
from anchorlens.engine.function_reader import MISSED, FunctionReader
from anchorlens.engine.patches import OnProgress, SwapBatch, no_progress
from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.base import ContextT, InputsT, Measurement, OnWork, Plan, SpecT
from anchorlens.protocols.pair_sweep.batching import Batch, plan_swaps
from anchorlens.protocols.pair_sweep.donor_pairs import MakeStreams, Pair, Placement, build_batch
from anchorlens.protocols.pair_sweep.write_check import check_writes
from anchorlens.runs.schema import CELL, P
from anchorlens.warn import warn

Array = npt.NDArray[np.float64]


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
    def effect(self, inputs: InputsT, spec: SpecT, pairs: Sequence[Pair[Any]], before: Array, after: Array) -> Array:
        """Compute the effect on the metric, [..., pair]."""

    def metric(self, inputs: InputsT, spec: SpecT) -> str:  # noqa: ARG002
        """Return the name of the metric."""
        return P

    def window(self, spec: SpecT) -> int:  # noqa: ARG002
        """Return the number of layers patched together."""
        return 1

    def checks_writes(self, spec: SpecT) -> bool:  # noqa: ARG002
        """Return whether what the cone engine writes is compared with full forward passes of the sources."""
        return False

    def make_streams(self, inputs: InputsT, spec: SpecT) -> MakeStreams | None:  # noqa: ARG002
        """Return the function that makes the streams of a batch; None for those of the sources."""
        return None

    def is_reachable(self, inputs: InputsT, spec: SpecT, place: Placement, layer: int) -> bool:  # noqa: ARG002
        """Return whether a patch can reach the readout; other cells have no row."""
        return True

    @abstractmethod
    def columns(self, inputs: InputsT, spec: SpecT, unit: Batch, place: Placement) -> dict[str, Any]:
        """Return columns of ``samples.parquet`` that follow from the inputs alone, [layer pair] or broadcast to it."""

    def more_values(self, before: Metrics, after: Metrics) -> dict[str, Any]:  # noqa: ARG002
        """Return further measured columns of ``samples.parquet``, [layer pair] or broadcast to it."""
        return {}

    @override
    def plan(self, engine: Engine, inputs: InputsT, spec: Any) -> Plan:
        pairs = self.pairs(inputs)
        reader = self.reader(engine.adapter, inputs, pairs)
        cost = plan_swaps(
            engine, pairs, reader, inputs.layers, site=spec.site, window=self.window(spec), batch_size=spec.batch_size,
            max_memory=spec.max_memory, checks=spec.n_spot_checks,
            compares_writes=engine.name == ConeEngine.name and self.checks_writes(spec),
        )  # fmt: skip
        return Plan(cost.batches, cost, "cell", engine.adapter.device)

    def _batch(self, engine: Engine, inputs: InputsT, spec: Any, pairs: Sequence[Pair[Any]], reader: Reader) -> SwapBatch:
        adapter = engine.adapter
        width = adapter.shape.d_head * adapter.n_heads(spec.site) if spec.site in HEAD_SITES else adapter.d_model
        return build_batch(pairs, reader, self.make_streams(inputs, spec), width, adapter.shape.d_head)

    @override
    def measure(self, engine: Engine, inputs: InputsT, spec: Any, unit: Batch, on_work: OnWork) -> pd.DataFrame:
        pairs, layers, metric = unit.pairs, np.asarray(unit.layers), self.metric(inputs, spec)
        batch = self._batch(engine, inputs, spec, pairs, self.reader(engine.adapter, inputs, pairs))
        before, changed = self._run(engine, spec, batch, unit.layers, lambda share: on_work(share * unit.work))
        if MISSED in before.values:
            before, changed = self._complete_values(engine, inputs, spec, unit, before, changed)
        shape = len(layers), len(pairs)
        start = np.broadcast_to(_values(before, metric), shape)
        frames: list[pd.DataFrame] = []
        for place, after in zip(pairs[0].placements, changed, strict=True):
            end = _values(after, metric)
            values = {
                "value_before": start, "value_after": end, "effect": self.effect(inputs, spec, pairs, start, end),
                **self.more_values(before, after),
            }  # fmt: skip
            frames.append(self._rows(inputs, spec, unit, place, values))
        return pd.concat(frames, ignore_index=True)

    def _rows(self, inputs: InputsT, spec: Any, unit: Batch, place: Placement, values: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows of one placement of a batch with measured values, [layer pair] or broadcast to it."""
        pairs, layers = unit.pairs, np.asarray(unit.layers)
        columns = {
            "example_id": [pair.base.id for pair in pairs], "question_id": [pair.base.group for pair in pairs],
            "donor_id": [pair.donor_id for pair in pairs], "anchor": place.anchor, "layer": layers[:, None],
            "control": place.control, "metric": self.metric(inputs, spec), **values, **self.columns(inputs, spec, unit, place),
        }  # fmt: skip
        reachable = np.repeat([self.is_reachable(inputs, spec, place, layer) for layer in unit.layers], len(pairs))
        shape = len(layers), len(pairs)
        whole = {name: np.broadcast_to(np.asarray(value), shape).ravel() for name, value in columns.items()}
        return pd.DataFrame(whole)[reachable]

    def list_cells(self, engine: Engine, inputs: InputsT, spec: Any) -> pd.DataFrame:  # noqa: ARG002
        """Return the keys of all samples and the columns that follow from the inputs."""
        alike: dict[tuple[tuple[str, str], ...], list[Pair[Any]]] = {}
        for pair in self.pairs(inputs):
            alike.setdefault(tuple((place.anchor, place.control) for place in pair.placements), []).append(pair)
        frames = [
            self._rows(inputs, spec, Batch(tuple(pairs), tuple(inputs.layers)), place, {})
            for pairs in alike.values()
            for place in pairs[0].placements
        ]
        return pd.concat(frames, ignore_index=True)

    def _run(
        self, engine: Engine, spec: Any, batch: SwapBatch, layers: Sequence[int], on_progress: OnProgress = no_progress
    ) -> tuple[Metrics, list[Metrics]]:
        """Run the patches of a batch, and check what was written if the specification asks for it."""
        window = self.window(spec)
        before, changed = engine.run_swaps(batch, site=spec.site, layers=layers, window=window, on_progress=on_progress)
        if self.checks_writes(spec) and engine.name == ConeEngine.name:
            assert batch.donors is not None  # such sweeps have sources
            adapter = engine.adapter
            width = max(batch.tokens.ids.shape[1], batch.donors.ids.shape[1])
            n_rows = rows_per_batch(adapter.shape, adapter.devices, width, None, spec.max_memory)
            check_writes(adapter, batch, changed, site=spec.site, layers=layers, window=window, n_rows=n_rows)
        return before, changed

    def _complete_values(
        self, engine: Engine, inputs: InputsT, spec: Any, unit: Batch, before: Metrics, changed: Sequence[Metrics]
    ) -> tuple[Metrics, list[Metrics]]:
        """Measure pairs again with all positions, if a metric function read one that was not kept in some cell of theirs."""
        lost = before.values[MISSED].bool() | torch.stack([after.values[MISSED].bool().any(0) for after in changed]).any(0)
        numbers = lost.nonzero()[:, 0].tolist()
        if not numbers:
            return before, list(changed)
        metric, adapter = self.metric(inputs, spec), engine.adapter
        count = int(sum(after.values[MISSED].sum() for after in changed))
        warn(
            f"{metric}: in {count} cells the metric read other positions than on the unpatched logits. The cells of these pairs "
            "were measured again with all positions. metric_positions= declares what is computed at once."
        )

        def reader(pairs: Sequence[Pair[Any]]) -> FunctionReader:
            planned = self.reader(adapter, inputs, pairs)
            assert isinstance(planned, FunctionReader)  # no other reader misses a value
            return planned.everywhere()

        pairs = [unit.pairs[i] for i in numbers]
        window = self.window(spec)
        plan = plan_swaps(
            engine, pairs, reader(pairs), unit.layers, site=spec.site, window=window, batch_size=spec.batch_size,
            max_memory=spec.max_memory, checks=0,
        )  # fmt: skip
        column = {(pair.base.id, pair.donor_id): i for i, pair in enumerate(unit.pairs)}
        place_of = {(place.anchor, place.control): i for i, place in enumerate(unit.pairs[0].placements)}
        for some in plan.batches:
            batch = self._batch(engine, inputs, spec, some.pairs, reader(some.pairs))
            own_before, own_changed = self._run(engine, spec, batch, some.layers)
            columns = torch.tensor([column[pair.base.id, pair.donor_id] for pair in some.pairs])
            rows = torch.tensor([unit.layers.index(layer) for layer in some.layers])
            before.values[metric][columns] = own_before.values[metric]
            for place, own in zip(some.pairs[0].placements, own_changed, strict=True):
                values = changed[place_of[place.anchor, place.control]].values[metric]
                values[rows[:, None], columns] = own.values[metric]
        return before, list(changed)

    def differs_by_rounding(self, adapter: Adapter, inputs: InputsT, spec: Any, cell: Mapping[str, Any], allowed: float) -> bool:
        """Return whether a cell's values of a metric function differ from a full forward pass by rounding.

        ``allowed``: difference of values that counts as none.
        """
        (pair,) = self._pairs_of(inputs, [cell])
        reader = self.reader(adapter, inputs, [pair])
        assert isinstance(reader, FunctionReader)  # named metrics do not move in steps
        batch = self._batch(ReferenceEngine(adapter), inputs, spec, [pair], reader)
        before, after = (torch.tensor([float(cell[name])], device="cpu") for name in ("value_before", "value_after"))
        return differs_by_rounding(
            adapter, batch, reader, site=spec.site, layer=int(cell["layer"]), window=self.window(spec), before=before, after=after,
            is_close=lambda one, two: bool((one - two).abs().max() <= allowed),
        )  # fmt: skip

    def _pairs_of(self, inputs: InputsT, samples: Sequence[Mapping[str, Any]]) -> list[Pair[Any]]:
        """Return the pair of each cell, with the placement of the cell alone."""
        by_key = {(pair.base.id, pair.donor_id): pair for pair in self.pairs(inputs)}
        chosen: list[Pair[Any]] = []
        for cell in samples:
            pair = by_key[cell["example_id"], cell["donor_id"]]
            place = next(p for p in pair.placements if (p.anchor, p.control) == (cell["anchor"], cell["control"]))
            chosen.append(replace(pair, placements=(place,)))
        return chosen

    def remeasure(
        self, reference: ReferenceEngine, inputs: InputsT, spec: Any, samples: Sequence[Mapping[str, Any]]
    ) -> pd.DataFrame:
        """Measure each cell as a row of one batch, patched at its own layer."""
        chosen = self._pairs_of(inputs, samples)
        before, after = np.empty((2, len(chosen)))
        more: dict[str, Array] = {}
        heads = [pair.placements[0].head for pair in chosen]
        for head in dict.fromkeys(heads):  # a patch of a batch has the same heads in all rows
            rows = [i for i, one in enumerate(heads) if one == head]
            some = [chosen[i] for i in rows]
            batch = self._batch(reference, inputs, spec, some, self.reader(reference.adapter, inputs, some))
            layers = [int(samples[i]["layer"]) for i in rows]
            metrics = reference.run_cells(batch, site=spec.site, layers=layers, window=self.window(spec))
            before[rows], after[rows] = (_values(one, self.metric(inputs, spec)) for one in metrics)
            for name, values in self.more_values(*metrics).items():
                more.setdefault(name, np.full(len(chosen), np.nan))[rows] = values
        frame = pd.DataFrame([{name: cell[name] for name in CELL} for cell in samples])
        effect = self.effect(inputs, spec, chosen, before, after)
        return frame.assign(value_before=before, value_after=after, effect=effect, **more)


def _values(metrics: Metrics, name: str) -> Array:
    return metrics.values[name].double().numpy()
