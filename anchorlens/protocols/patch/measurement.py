"""Measure `patch`: patch activations of one prompt of a pair into the other, at every layer and
place.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from typing_extensions import override

from anchorlens.engine.engine import Engine
from anchorlens.engine.readouts import Reader
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.measure.patch_plan import Batch
from anchorlens.measure.patched_pairs import Placement
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.tokenize_pairs import PAIRS, PairContext
from anchorlens.protocols.base import OnWork, Plan
from anchorlens.protocols.patch.analysis import ANALYSIS
from anchorlens.protocols.patch.gradient_estimates import (
    AttributionRunner,
    attribute_cells,
    check_model_has_gradients,
    plan_attribution,
    warn_of_flat_metric,
)
from anchorlens.protocols.patch.patch_inputs import PatchInputs, prepare_patch, restore_patch
from anchorlens.protocols.patch.placements import SOURCE, PatchPair, values_by_construction
from anchorlens.protocols.patch.spec import EXACT, Patch
from anchorlens.protocols.patching_measurement import (
    Array,
    BatchRunner,
    PatchingMeasurement,
    key_frame,
)
from anchorlens.protocols.stored_inputs import StoredInputs


class PatchMeasurement(PatchingMeasurement[Patch, PatchInputs, PairContext]):
    """Measurement of activation patches."""

    spec, analysis, source = Patch, ANALYSIS, PAIRS

    @override
    def check_model(self, spec: Patch, adapter: Adapter) -> None:
        adapter.hook_name(spec.site, spec.layers_of(adapter.n_layers)[0])
        if spec.method != EXACT:
            check_model_has_gradients(adapter)

    @override
    def prepare(self, context: PairContext, spec: Patch) -> PatchInputs:
        inputs = prepare_patch(context, spec)
        if spec.method != EXACT:
            warn_of_flat_metric(inputs.reading.metric, spec.direction, "method='exact'")
        return inputs

    @override
    def plan(self, engine: Engine, inputs: PatchInputs, spec: Patch) -> Plan:
        if spec.method == EXACT:
            return super().plan(engine, inputs, spec)
        return plan_attribution(engine, inputs, spec)

    @override
    def batch_runner(self, engine: Engine, inputs: PatchInputs, spec: Patch) -> BatchRunner:
        if spec.method == EXACT:
            return self.runner(engine, inputs, spec)
        return AttributionRunner(engine.adapter, inputs, spec)

    @override
    def remeasure(
        self,
        reference: ReferenceEngine,
        inputs: PatchInputs,
        spec: Patch,
        samples: Sequence[Mapping[str, Any]],
    ) -> pd.DataFrame:
        """Measure each cell again by full forward passes; estimates are computed again."""
        if spec.method == EXACT:
            return super().remeasure(reference, inputs, spec, samples)
        pairs = self._pairs_of(inputs, samples)
        batches: list[Batch] = []
        for pair, cell in zip(pairs, samples, strict=True):
            batches.append(Batch((pair,), (int(cell["layer"]),)))
        before, after = map(np.asarray, attribute_cells(reference.adapter, inputs, spec, batches))
        frame = key_frame(samples)
        effect = self.effect(inputs, spec, pairs, before, after)
        return frame.assign(value_before=before, value_after=after, effect=effect)

    @override
    def fit(
        self, engine: Engine, inputs: PatchInputs, spec: Patch, plan: Plan, on_work: OnWork
    ) -> PatchInputs:
        """Measure the sources' own runs, which recovered shares and ``kl`` refer to."""
        return inputs.read_sources(engine.adapter, spec)

    @override
    def pairs(self, inputs: PatchInputs) -> tuple[PatchPair, ...]:
        return inputs.pairs

    @override
    def metric(self, inputs: PatchInputs, spec: Patch) -> str:
        return inputs.reading.name

    @override
    def window(self, spec: Patch) -> int:
        return spec.window

    @override
    def bytes_of_inputs(self, inputs: PatchInputs) -> int:
        return inputs.reading.stored_bytes

    @override
    def compares_writes(self, spec: Patch) -> bool:
        return spec.n_spot_checks != 0

    @override
    def reader(self, adapter: Adapter, inputs: PatchInputs, pairs: Sequence[PatchPair]) -> Reader:
        return inputs.reading.reader(
            [pair.target for pair in pairs], [pair.base.id for pair in pairs]
        )

    @override
    def effect(
        self,
        inputs: PatchInputs,
        spec: Patch,
        pairs: Sequence[PatchPair],
        before: Array,
        after: Array,
    ) -> Array:
        return inputs.reading.factor * (after - before)

    @override
    def columns(
        self, inputs: PatchInputs, spec: Patch, batch: Batch, place: Placement
    ) -> dict[str, Any]:
        reading = inputs.reading
        own: list[Placement] = []
        fixed: list[dict[int, str]] = []
        for pair in batch.pairs:
            one = inputs.places[pair.base.id, pair.donor_id, place.anchor, place.control]
            own.append(one)
            fixed.append(_layers_by_construction(inputs, spec, pair, one, batch.layers))
        by_construction: list[list[bool]] = []
        for layer in batch.layers:
            is_fixed = [layer in layers for layers in fixed]
            by_construction.append(is_fixed)
        return {
            "position": place.target_positions[0]
            if spec.by in ("position", "head_position")
            else None,
            "head": place.head,
            "unit": reading.unit,
            "n_patched": [len(one.target_positions) for one in own],
            "by_construction": by_construction,
        }

    def values_beforehand(self, inputs: PatchInputs, spec: Patch, samples: pd.DataFrame) -> Array:
        """Return the value after the patch where it follows by construction; NaN elsewhere."""
        pairs = {(pair.base.id, pair.donor_id): pair for pair in inputs.pairs}
        values = np.full(len(samples), np.nan)
        fixed = samples.assign(number=np.arange(len(samples)))[
            samples["by_construction"].to_numpy(dtype=bool)
        ]
        for key, cells in fixed.groupby(
            ["example_id", "donor_id", "anchor", "control"], sort=False
        ):
            pair, place = pairs[key[:2]], inputs.places[key]
            known = _layers_by_construction(inputs, spec, pair, place, inputs.layers)
            assert pair.source is not None  # every pair has two prompts
            is_alike = inputs.reading.is_named or len(pair.target.ids) == len(pair.source.ids)
            for number, layer, before in cells[["number", "layer", "value_before"]].itertuples(
                index=False
            ):
                if known[layer] == SOURCE:
                    # A function of all logits has another shape of logits where the prompts have
                    # other lengths.
                    values[number] = (
                        (inputs.source_values or {})[pair.base.id] if is_alike else np.nan
                    )
                else:
                    values[number] = before
        return values

    @override
    def record_again(
        self,
        adapter: Adapter,
        inputs: PatchInputs,
        spec: Patch,
        stored: StoredInputs,
        rows: Collection[str],
    ) -> dict[str, Any]:
        return inputs.record_again(adapter, spec, rows)

    def from_run(self, adapter: Adapter, spec: Patch, stored: StoredInputs) -> PatchInputs:
        """Rebuild the pairs from a run directory."""
        return restore_patch(adapter, spec, stored)


def _layers_by_construction(
    inputs: PatchInputs, spec: Patch, pair: PatchPair, place: Placement, layers: Sequence[int]
) -> dict[int, str]:
    reads = inputs.reading.positions(pair.target, pair.base.id)
    fixed = values_by_construction(spec, pair, place, layers, inputs.n_layers, reads)
    if spec.method == EXACT:
        return fixed
    # An estimate of a patch that results in the source's run need not have its value.
    return {layer: value for layer, value in fixed.items() if value != SOURCE}


MEASUREMENT = PatchMeasurement()
