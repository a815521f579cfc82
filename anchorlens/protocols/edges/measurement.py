"""Measure `edges`: exchange what a sender adds to the stream in the input of one receiver."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from typing_extensions import override

from anchorlens.engine.edges.activation_attribution import activation_scores
from anchorlens.engine.edges.attribution import attribution_scores
from anchorlens.engine.edges.edge_cost import (
    PASSES_OF_SWEEP,
    SAMPLE_SECONDS,
    SWEEP_SECONDS,
    check_passes,
    edge_flops,
    peak_bytes,
    single_passes,
    time_single_pass,
)
from anchorlens.engine.edges.exact import edge_values
from anchorlens.engine.edges.graph import Edge
from anchorlens.engine.edges.hooked_edges import ReferenceEdges
from anchorlens.engine.engine import Engine
from anchorlens.engine.hooked_passes import full_reader, measure
from anchorlens.engine.patches import pad_rows
from anchorlens.engine.readouts import Reader
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.measure.budget import MemoryBudget
from anchorlens.measure.patched_pairs import Placement
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.tokenize_pairs import PAIRS, PairContext
from anchorlens.protocols.base import Measurement, OnWork, Plan
from anchorlens.protocols.edges.analysis import ANALYSIS
from anchorlens.protocols.edges.edge_anchors import join_anchor, split_anchor
from anchorlens.protocols.edges.edge_inputs import (
    EdgeInputs,
    check_model_has_edges,
    prepare_edges,
    prompts_of,
    restore_edges,
)
from anchorlens.protocols.edges.spec import ATTRIBUTION, IG_ACTIVATIONS, Edges
from anchorlens.protocols.patch.gradient_estimates import check_weights_have_gradients
from anchorlens.protocols.patch.metric_gradient import stream_metric
from anchorlens.protocols.patch.placements import PatchPair
from anchorlens.protocols.patch.spec import EXACT
from anchorlens.protocols.patching_measurement import key_frame
from anchorlens.protocols.stored_inputs import StoredInputs

# Edges of a unit of work: the clean passes of a unit are a small part of it.
_MOST_EDGES = 512


@dataclass(frozen=True)
class EdgeUnit:
    """Edges of one pair at one place that are measured and stored together."""

    pair: PatchPair
    place: Placement
    edges: tuple[Edge, ...]
    work: float

    def split(self) -> "Sequence[EdgeUnit]":
        """Return two halves; () for a single edge."""
        n = len(self.edges)
        if n == 1:
            return ()
        half = (n + 1) // 2
        units: list[EdgeUnit] = []
        for some in (self.edges[:half], self.edges[half:]):
            work = self.work * len(some) / n
            units.append(replace(self, edges=some, work=work))
        return units


class EdgesMeasurement(Measurement[Edges, EdgeInputs, PairContext]):
    """Measurement of edges."""

    spec, analysis, source = Edges, ANALYSIS, PAIRS

    @override
    def check_model(self, spec: Edges, adapter: Adapter) -> None:
        check_model_has_edges(adapter, spec)
        if spec.method != EXACT:
            check_weights_have_gradients(adapter)

    @override
    def prepare(self, context: PairContext, spec: Edges) -> EdgeInputs:
        return prepare_edges(context, spec)

    @override
    def fit(
        self, engine: Engine, inputs: EdgeInputs, spec: Edges, plan: Plan, on_work: OnWork
    ) -> EdgeInputs:
        """Measure the sources' own runs, which recovered shares and ``kl`` refer to."""
        read = inputs.read_sources(engine.adapter, spec)
        assert isinstance(read, EdgeInputs)
        return read

    @override
    def plan(self, engine: Engine, inputs: EdgeInputs, spec: Edges) -> Plan:
        edges = inputs.edges
        # An attribution's passes are the same for any number of edges.
        size = _MOST_EDGES if spec.method == EXACT else len(edges)
        shape = engine.adapter.shape
        units: list[EdgeUnit] = []
        flops: list[float] = []
        most = 0
        n_gradients = spec.n_gradients(shape.n_layers)
        for pair in inputs.pairs:
            reads = inputs.reading.positions(pair.target, pair.base.id)
            for place in pair.placements:
                prompts = prompts_of(pair, place)
                for start in range(0, len(edges), size):
                    some = edges[start : start + size]
                    flops.append(
                        edge_flops(
                            shape,
                            prompts,
                            some,
                            end=max(reads) + 1,
                            n_gradients=n_gradients,
                            frozen=spec.downstream == "freeze",
                        )
                    )
                    units.append(EdgeUnit(pair, place, some, float(len(some))))
                most = max(most, peak_bytes(shape, prompts, edges))
        cells = len(edges) * sum(len(pair.placements) for pair in inputs.pairs)
        budget = MemoryBudget(engine, spec.max_memory, spec.batch_size, cells)
        cost = budget.plan(
            [1] * len(units),
            rows=len(inputs.own_pairs),
            cells=cells,
            flops=sum(flops),
            largest_pass=most,
            width=inputs.max_tokens,
            checks=spec.n_spot_checks,
        )
        longest = max((pair.target.ids for pair in inputs.pairs), key=len)
        n_passes = PASSES_OF_SWEEP + len(inputs.own_pairs)
        n_passes += len(units) * single_passes(n_gradients)
        n_passes += check_passes(cost.checks, n_gradients)
        seconds = n_passes * time_single_pass(engine.adapter, longest)
        seconds += SWEEP_SECONDS + SAMPLE_SECONDS * cells
        if not n_gradients:  # otherwise all work is in these passes
            seconds += cost.seconds
        cost = replace(cost, seconds=max(cost.seconds, seconds))
        return Plan(tuple(units), cost, "edge", engine.adapter.device)

    @override
    def measure(
        self, engine: Engine, inputs: EdgeInputs, spec: Edges, unit: EdgeUnit, on_work: OnWork
    ) -> pd.DataFrame:
        before, values = self._values(
            engine, inputs, spec, unit, lambda share: on_work(share * unit.work)
        )
        frame = self._rows(inputs, spec, unit)
        after = np.array([values[edge] for edge in unit.edges])
        effect = inputs.reading.factor * (after - before)
        return frame.assign(value_before=before, value_after=after, effect=effect)

    def _values(
        self, engine: Engine, inputs: EdgeInputs, spec: Edges, unit: EdgeUnit, on_work: OnWork
    ) -> tuple[float, dict[Edge, float]]:
        """Return the metric before, and after the change of each edge of a unit; for attribution
        the metric before plus the score.
        """
        pair = unit.pair
        prompts = prompts_of(pair, unit.place)
        reader = self._reader(inputs, pair)
        metric = inputs.reading.name
        if spec.method == EXACT:
            return edge_values(
                engine,
                prompts,
                reader,
                unit.edges,
                metric=metric,
                between=spec.between,
                downstream=spec.downstream,
                on_progress=on_work,
            )
        adapter = engine.adapter
        own = stream_metric(adapter, inputs.reading, pair.target, pair.base.id)
        score = activation_scores if spec.method == IG_ACTIVATIONS else attribution_scores
        steps = 0 if spec.method == ATTRIBUTION else spec.steps
        scores = score(adapter, prompts, own, unit.edges, steps=steps, on_progress=on_work)
        tokens = pad_rows([pair.target.ids])
        with torch.no_grad():
            found = measure(adapter, tokens, (), full_reader(reader)).values[metric]
        before = float(found.flatten()[0])
        return before, {edge: before + score for edge, score in scores.items()}

    def _reader(self, inputs: EdgeInputs, pair: PatchPair) -> Reader:
        return inputs.reading.reader([pair.target], [pair.base.id])

    def _rows(self, inputs: EdgeInputs, spec: Edges, unit: EdgeUnit) -> pd.DataFrame:
        """Return the keys of the samples of a unit, and the columns that follow from the inputs."""
        pair, place = unit.pair, unit.place
        heads = [edge.receiver.head for edge in unit.edges]
        # Without a position whose activations differ, nothing is exchanged.
        n = len(prompts_of(pair, place).at)
        return pd.DataFrame(
            {
                "example_id": pair.base.id,
                "question_id": pair.base.group,
                "cluster": pair.base.cluster,
                "donor_id": pair.donor_id,
                "anchor": [join_anchor(edge.name, place.anchor) for edge in unit.edges],
                "layer": [inputs.layer_of(edge) for edge in unit.edges],
                "position": place.target_positions[0] if spec.by == "position" else None,
                "head": [None if head < 0 else head for head in heads],
                "control": place.control,
                "draw": place.draw,
                "metric": inputs.reading.name,
                "unit": inputs.reading.unit,
                "n_patched": n,
                "by_construction": n == 0,
            }
        )

    def list_cells(
        self,
        engine: Engine,  # noqa: ARG002
        inputs: EdgeInputs,
        spec: Edges,
    ) -> pd.DataFrame:
        """Return the keys of all samples and the columns that follow from the inputs."""
        frames: list[pd.DataFrame] = []
        for pair in inputs.pairs:
            for place in pair.placements:
                unit = EdgeUnit(pair, place, inputs.edges, 0.0)
                frames.append(self._rows(inputs, spec, unit))
        return pd.concat(frames, ignore_index=True)

    def values_beforehand(
        self,
        inputs: EdgeInputs,  # noqa: ARG002
        spec: Edges,  # noqa: ARG002
        samples: pd.DataFrame,
    ) -> npt.NDArray[np.float64]:
        """Return the value after the change where it follows by construction; NaN elsewhere."""
        fixed = samples["by_construction"].to_numpy(dtype=bool)
        return np.where(fixed, samples["value_before"].to_numpy(dtype=float), np.nan)

    def remeasure(
        self,
        reference: ReferenceEngine,
        inputs: EdgeInputs,
        spec: Edges,
        samples: Sequence[Mapping[str, Any]],
    ) -> pd.DataFrame:
        """Measure each edge again by hooks and full forward passes; attribution scores are computed
        again.
        """
        pairs = {(pair.base.id, pair.donor_id): pair for pair in inputs.pairs}
        edges = {edge.name: edge for edge in inputs.edges}
        before, after = np.empty((2, len(samples)))
        for number, cell in enumerate(samples):
            pair = pairs[cell["example_id"], cell["donor_id"]]
            name, where = split_anchor(cell["anchor"])
            wanted = (where, cell["control"], int(cell["draw"]))
            place = next(one for one in pair.placements if one.key == wanted)
            if spec.method != EXACT:
                unit = EdgeUnit(pair, place, (edges[name],), 0.0)
                value, scores = self._values(reference, inputs, spec, unit, lambda _: None)
                before[number], after[number] = value, scores[edges[name]]
                continue
            by_hooks = ReferenceEdges(
                reference.adapter,
                prompts_of(pair, place),
                self._reader(inputs, pair),
                metric=inputs.reading.name,
                between=spec.between,
                downstream=spec.downstream,
            )
            before[number] = by_hooks.before()
            after[number] = by_hooks.value(edges[name])
        frame = key_frame(samples)
        effect = inputs.reading.factor * (after - before)
        return frame.assign(value_before=before, value_after=after, effect=effect)

    @override
    def record_again(
        self,
        adapter: Adapter,
        inputs: EdgeInputs,
        spec: Edges,
        stored: StoredInputs,
        rows: Collection[str],
    ) -> dict[str, Any]:
        return inputs.record_again(adapter, spec, rows)

    def from_run(self, adapter: Adapter, spec: Edges, stored: StoredInputs) -> EdgeInputs:
        """Rebuild the pairs from a run directory."""
        return restore_edges(adapter, spec, stored)


MEASUREMENT = EdgesMeasurement()
