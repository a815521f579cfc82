"""Measure `answer_only`: read a truth probe on the same answer after an empty question (METHOD 5).

Scope: one model and one data set per call. ΔP = 100 * (confidence after - before) in the clean
prediction; negative if the missing question lowers the confidence. The whole question is removed,
not only E_Q, so the answer token has another position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from typing_extensions import override

from anchorlens.protocols.answer_only.analysis import ANALYSIS, ANCHOR
from anchorlens.protocols.answer_only.question_removal import (
    OTHER,
    build_changed_inputs,
    without_question,
)
from anchorlens.protocols.answer_only.spec import AnswerOnly
from anchorlens.protocols.probe_sweep.measurement import ProbeMeasurement
from anchorlens.protocols.probe_sweep.probe_passes import Cells, ProbePass, distinct_tests
from anchorlens.protocols.probe_sweep.variants import ProbeSweepInputs, Variant, build_labelled_rows
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.questions.drops import no_rows_left
from anchorlens.questions.tokens import QuestionContext, TokenRow


@dataclass(frozen=True)
class AnswerOnlyInputs(ProbeSweepInputs):
    """Inputs of an answer-only sweep."""

    @override
    def record(self, spec: Any) -> dict[str, Any]:
        record = super().record(spec)
        record["config"] = {"anchors": [ANCHOR], "readout": "probe"}
        distinct: set[tuple[int, ...]] = set()
        for empty, *_ in self.variants:
            if empty.row is not None:
                distinct.add(empty.row.ids)
        record["counts"]["distinct_answers"] = len(distinct)
        return record


class AnswerOnlyMeasurement(ProbeMeasurement[AnswerOnly]):
    """Measurement of answers without their question."""

    spec = AnswerOnly
    analysis = ANALYSIS
    training_lanes = 1

    @override
    def anchor(self, spec: AnswerOnly) -> str:
        return ANCHOR

    @override
    def split_mode(self, spec: AnswerOnly) -> str:
        return spec.knockout_mode

    @override
    def prepare(self, context: QuestionContext, spec: AnswerOnly) -> AnswerOnlyInputs:
        empty = without_question(context.tokenizer)  # first, because generating answers takes long
        truth, dropped = build_labelled_rows(context, spec)
        variants, left_out = build_changed_inputs(
            truth, context.tokenizer, empty, spec.seed, placebos=spec.placebos
        )
        gone = (*dropped, *left_out)
        if not variants:
            raise no_rows_left(gone, f"in {context.data.name}")
        return AnswerOnlyInputs(
            dropped=gone,
            trial=truth.rows[0].ids,
            sites=(spec.probe_site,),
            layers=spec.layers_of(context.adapter.n_layers),
            truth=truth,
            test=tuple(variants),
            variants=tuple(variants.values()),
            model_name=context.model_name,
            dataset=context.data.name,
        )

    @override
    def pack(self, inputs: ProbeSweepInputs, size: int, cut_size: int) -> Sequence[Cells]:
        """Pack rows with the same answer-only input together, so that its P is identical for all of
        them.
        """
        groups: dict[object, list[int]] = {}
        for j, (empty, *_) in enumerate(inputs.variants):
            assert empty.row is not None  # every variant is an input
            groups.setdefault(self.key(empty.row), []).append(j)

        def longest(tests: list[int]) -> int:
            return max(len(inputs.row(j).ids) for j in tests)

        batches: list[list[int]] = []
        for group in sorted(groups.values(), key=longest):
            for start in range(0, len(group), cut_size):
                part = group[start : start + cut_size]
                if batches and len(batches[-1]) + len(part) <= cut_size:
                    batches[-1] += part
                else:
                    batches.append(part)
        n_variants = len(inputs.variants[0])
        return [tuple(product(batch, range(n_variants))) for batch in batches]

    @override
    def passes(self, inputs: ProbeSweepInputs, spec: AnswerOnly, cells: Cells) -> list[ProbePass]:
        """Return the clean rows with the cut that splits pathways, then the distinct inputs of each
        control.
        """
        passes = [self.split_pass(inputs, spec, distinct_tests(cells))]
        for control in ("none", OTHER):
            distinct: dict[object, TokenRow] = {}
            for j, i in cells:
                variant = inputs.variants[j][i]
                if control in variant.controls and variant.row is not None:
                    distinct[self.key(variant.row)] = variant.row
            if distinct:
                passes.append(ProbePass(rows=tuple(distinct.values())))
        return passes

    @override
    def load_variants(
        self, row: TokenRow, spec: AnswerOnly, stored: StoredInputs
    ) -> tuple[Variant, ...]:
        empty = Variant(controls=("none",), row=stored.row("corrupt", f"{row.id}~"))
        if not spec.placebos:
            return (empty,)
        (donor,) = stored.donor_ids[row.id]
        other = stored.row("corrupt", f"{row.id}~{donor}")
        return (empty, Variant(controls=(OTHER,), row=other, donor_id=donor))


MEASUREMENT = AnswerOnlyMeasurement()
