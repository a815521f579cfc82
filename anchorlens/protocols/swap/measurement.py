"""Measure `swap`: activation patching of residual streams, layer by layer (METHOD 4).

Scope: one model, one data set, one site, one readout per call.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from typing_extensions import override

from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.errors import InputError
from anchorlens.measure.patch_plan import Batch
from anchorlens.measure.patched_pairs import MakeStreams, Placement
from anchorlens.models.adapter import Adapter
from anchorlens.probing.records import probe_record
from anchorlens.protocols.patching_measurement import Array, PatchingMeasurement
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.protocols.swap.analysis import ANALYSIS
from anchorlens.protocols.swap.inputs import SwapInputs, prepare_swap, restore_swap
from anchorlens.protocols.swap.pairing import QAPair, pre_answer_token_differs
from anchorlens.protocols.swap.spec import Swap
from anchorlens.questions.tokens import QUESTIONS, QuestionContext
from anchorlens.statistics.delta import delta_p


class SwapMeasurement(PatchingMeasurement[Swap, SwapInputs, QuestionContext]):
    """Measurement of activation swaps."""

    spec, analysis, source = Swap, ANALYSIS, QUESTIONS

    @override
    def check_model(self, spec: Swap, adapter: Adapter) -> None:
        adapter.hook_name(spec.site, spec.layers_of(adapter.n_layers)[0])
        if spec.probes is not None and max(spec.probes.layers) >= adapter.n_layers:
            raise InputError(
                f"probes=: read layers {spec.probes.layers}, but the model has {adapter.n_layers}."
                " Give probes of this model.",
                argument="probes",
            )

    @override
    def prepare(self, context: QuestionContext, spec: Swap) -> SwapInputs:
        return prepare_swap(context, spec)

    @override
    def pairs(self, inputs: SwapInputs) -> tuple[QAPair, ...]:
        return inputs.pairs

    @override
    def reader(self, adapter: Adapter, inputs: SwapInputs, pairs: Sequence[QAPair]) -> Reader:
        return inputs.reading.reader(adapter, pairs)

    @override
    def window(self, spec: Swap) -> int:
        return spec.window

    @override
    def make_streams(self, inputs: SwapInputs, spec: Swap) -> MakeStreams | None:
        return (
            None
            if inputs.statistics is None
            else partial(inputs.statistics.batch_streams, spec.donors)
        )

    @override
    def effect(
        self, inputs: SwapInputs, spec: Swap, pairs: Sequence[QAPair], before: Array, after: Array
    ) -> Array:
        if spec.kind == "probability":
            return 100.0 * (after - before)
        return delta_p(
            before,
            after,
            np.array([inputs.reading.event(p.base) for p in pairs], dtype=np.float64),
            spec.kind,
        )

    @override
    def is_reachable(self, inputs: SwapInputs, spec: Swap, place: Placement, layer: int) -> bool:
        return inputs.reading.reaches(spec, place.anchor, place.control, layer)

    @override
    def columns(
        self, inputs: SwapInputs, spec: Swap, batch: Batch, place: Placement
    ) -> dict[str, Any]:
        pairs, anchor, control = batch.pairs, place.anchor, place.control
        nulls = spec.null_controls if control == "none" else (control,)
        slots: dict[str, Any] = {}
        for name, counted in (("n_patched", ("none",)), ("n_null_patched", nulls)):
            counts = [p.count_positions(anchor, *counted) for p in pairs]
            slots[name] = pd.array(counts, dtype="Int64")
        reading = inputs.reading
        by_construction: list[list[bool]] = []
        for k in batch.layers:
            is_fixed = [reading.is_by_construction(spec, p, anchor, control, k) for p in pairs]
            by_construction.append(is_fixed)
        return slots | {
            "pre_answer_token_differs": pd.array(
                [pre_answer_token_differs(p) for p in pairs], dtype="boolean"
            ),
            "by_construction": by_construction,
        }

    @override
    def more_values(self, before: Metrics, after: Metrics) -> dict[str, Any]:
        of_donor: dict[str, Any] = {}
        for when, metrics in (("before", before), ("after", after)):
            for name, values in metrics.of_donor.items():
                of_donor[f"{name}_{when}"] = values.double().numpy()
        return {
            **of_donor,
            "logp_before": before.log_p.double().numpy(),
            "logp_after": after.log_p.double().numpy(),
            "logit_diff_before": before.logit_diff.double().numpy(),
            "logit_diff_after": after.logit_diff.double().numpy(),
        }

    @override
    def prepare_again(
        self, context: QuestionContext, spec: Swap, stored: StoredInputs
    ) -> SwapInputs:
        probes = stored.probes.get("none")
        return prepare_swap(context, spec if probes is None else spec.replace(probes=probes))

    @override
    def record_again(
        self,
        adapter: Adapter,
        inputs: SwapInputs,
        spec: Swap,
        stored: StoredInputs,
        rows: Collection[str],
    ) -> dict[str, Any]:
        probes = inputs.reading.probes
        return {} if probes is None else {"probe": probe_record(probes, {})}

    def from_run(self, adapter: Adapter, spec: Swap, stored: StoredInputs) -> SwapInputs:
        """Rebuild pairs, reading and statistics from a run directory."""
        return restore_swap(adapter, spec, stored)


MEASUREMENT = SwapMeasurement()
