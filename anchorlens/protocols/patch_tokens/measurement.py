"""Measure `patch_tokens`: replace E_Q by that of another question, keep the answer, read a truth
probe (METHOD 5).

Scope: one model, one data set and one donor rule per call. Not covered: answer probabilities (see a
swap at layer 0), and several segments at once. A clean row and its patched inputs share a pass, so
that rounding is the same.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from anchorlens.engine.cost import rows_per_batch
from anchorlens.engine.engine import Engine
from anchorlens.engine.patches import no_progress
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import EmptySweepError
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.dataset import Dropped
from anchorlens.protocols.base import OnWork, Plan
from anchorlens.protocols.patch_tokens.analysis import ANALYSIS
from anchorlens.protocols.patch_tokens.spec import PatchTokens
from anchorlens.protocols.patch_tokens.token_patches import Patcher
from anchorlens.protocols.probe_sweep.measurement import ProbeMeasurement
from anchorlens.protocols.probe_sweep.probe_passes import (
    Cells,
    ProbePass,
    ProbePlan,
    RowBatch,
    distinct_tests,
)
from anchorlens.protocols.probe_sweep.variants import ProbeSweepInputs, Variant, build_labelled_rows
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.questions.drops import MORE_QUESTIONS
from anchorlens.questions.tokens import QuestionContext, TokenRow, make_rows
from anchorlens.statistics.bands import auc_band
from anchorlens.statistics.clusters import clusters_of_rows
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED
from anchorlens.statistics.resamples import Resamples

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PatchTokensInputs(ProbeSweepInputs):
    """Inputs of token patching.

    Attributes:
        failed: Number of pairs of row and donor that could not be built, by reason.
        clean: P(hallucination) of every test row, [layer test]; None before the probes are fitted.
    """

    failed: dict[str, int] = field(default_factory=dict)
    clean: Array | None = None

    @override
    def record(self, spec: Any) -> dict[str, Any]:
        n_pairs = 0
        n_changed = 0
        n_question = 0
        labels: set[int | None] = set()
        rows: set[str] = set()
        with_control: set[str] = set()
        with_fewer: set[str] = set()
        for j, variants in enumerate(self.variants):
            row = self.row(j)
            for pair in _pairs(variants):
                n_pairs += 1
                n_changed += len(pair[0].positions)
                n_question += len(row.positions["exact_question"])
                labels.add(row.answer.label)
                rows.add(row.id)
                if len(pair) > 1:
                    with_control.add(row.id)
                if any(one.controls == (SIZE_MATCHED,) for one in pair):
                    with_fewer.add(row.id)
        record = super().record(spec)
        record["config"] = {"anchors": ["exact_question"], "readout": "probe"}
        record["counts"] |= {
            "pairs": n_pairs,
            "failed_pairs": self.failed,
            "without_control": len(rows - with_control),
            "fewer_in_control": len(with_fewer),
            "share_of_question_tokens_changed": n_changed / n_question,
        }
        # With both labels the samples give the AUC.
        if self.clean is not None and len(labels) == 1:
            tested = list(map(self.row, range(len(self.test))))
            record["probe"]["test_auc"] = _test_auc(self, tested, self.clean, spec)
        return record


def _test_auc(
    inputs: ProbeSweepInputs, rows: Sequence[TokenRow], clean: Array, spec: PatchTokens
) -> dict[str, Any]:
    """Return the AUC of the clean probe over all test rows at each layer, with its bands;
    ``clean``: [layer row].
    """
    labels = np.array([row.answer.label for row in rows], dtype=np.float64)
    groups = [row.group for row in rows]
    clusters = clusters_of_rows([(row.group, row.cluster) for row in rows])
    draws = Resamples.of(
        groups, clusters=clusters.of(groups), n_resamples=spec.n_resamples, seed=spec.seed
    )
    bands = auc_band(draws.aucs(clean, labels), cross_fitted=len(inputs.probes["none"].splits) > 1)
    ends = (bands.value, bands.low, bands.high, bands.sim_low, bands.sim_high)
    layers: dict[str, list[float | None]] = {}
    for layer, *values in zip(inputs.layers, *ends, strict=True):
        layers[str(layer)] = [None if np.isnan(value) else float(value) for value in values]
    return {"layers": layers, "questions": len(set(groups)), "clusters": draws.weights.shape[1]}


def _pairs(variants: Sequence[Variant]) -> list[tuple[Variant, ...]]:
    """Group the variants of a row by donor."""
    return [tuple(pair) for _, pair in groupby(variants, key=lambda one: one.donor_id)]


class PatchTokensMeasurement(ProbeMeasurement[PatchTokens]):
    """Measurement of token patches."""

    spec = PatchTokens
    analysis = ANALYSIS
    reads_first = True

    @override
    def anchor(self, spec: PatchTokens) -> str:
        return "exact_question"

    @override
    def prepare(self, context: QuestionContext, spec: PatchTokens) -> PatchTokensInputs:
        truth, dropped = build_labelled_rows(context, spec)
        test = tuple(truth.of("test"))
        pool = make_rows(context.pool, context.tokenizer).rows
        patcher = Patcher(
            context.tokenizer,
            pool,
            rule=spec.donors,
            n_donors=spec.n_donors,
            placebos=spec.placebos,
            seed=spec.seed,
        )
        rows: dict[int, TokenRow] = {}
        for j, i in enumerate(test):
            row = truth.rows[i]
            if spec.base == "all" or row.answer.label == 0:
                rows[j] = row
        made = patcher.patches(rows)
        if not made.variants:
            reasons = ", ".join(f"{reason} {n}" for reason, n in made.failed.items())
            reasons = reasons or "no pair could be tried"
            raise EmptySweepError(
                f"No row of {context.data.name} has a donor with as many tokens in subject and"
                f" property ({reasons}). Take more rows (donors come from the whole file), or"
                " donors='random'."
            )
        return PatchTokensInputs(
            dropped=(*dropped, *made.dropped),
            trial=truth.rows[0].ids,
            sites=(spec.probe_site,),
            layers=spec.layers_of(context.adapter.n_layers),
            truth=truth,
            test=test,
            variants=tuple(made.variants.get(j, ()) for j in range(len(test))),
            model_name=context.model_name,
            dataset=context.data.name,
            failed=made.failed,
        )

    @override
    def pack(self, inputs: ProbeSweepInputs, size: int, cut_size: int) -> Sequence[Cells]:
        """Pack pairs of similar length into units of at most ``size`` inputs, in the order of rows
        and donors.
        """
        packed: list[list[tuple[int, int]]] = [[]]
        for j in sorted(range(len(inputs.test)), key=lambda j: len(inputs.row(j).ids)):
            start = 0
            for pair in _pairs(inputs.variants[j]):
                cells = [(j, start + i) for i in range(len(pair))]
                both = (*packed[-1], *cells)
                n_rows = len(distinct_tests(both)) + len(both)
                if packed[-1] and n_rows > size:
                    packed.append([])
                packed[-1] += cells
                start += len(pair)
        return [tuple(cells) for cells in packed if cells]

    @override
    def passes(self, inputs: ProbeSweepInputs, spec: PatchTokens, cells: Cells) -> list[ProbePass]:
        """Return one pass over clean rows and their patched inputs."""
        rows: dict[str, TokenRow] = {}
        for j, i in cells:
            for row in (inputs.row(j), inputs.variants[j][i].row):
                assert row is not None  # every variant is an input
                rows.setdefault(row.id, row)
        return [ProbePass(rows=tuple(rows.values()))]

    @override
    def fit(
        self,
        engine: Engine,
        inputs: ProbeSweepInputs,
        spec: PatchTokens,
        plan: Plan,
        on_work: OnWork,
    ) -> ProbeSweepInputs:
        """Fit the probes, then read pathways and clean predictions of the test rows.

        Raises:
            EmptySweepError: If no true row is predicted true.
        """
        assert isinstance(plan, ProbePlan)  # made by plan()
        fitted = super().fit(engine, inputs, spec, plan, on_work)
        clean = np.full((len(inputs.layers), len(inputs.test)), np.nan)
        q = np.zeros(len(inputs.test), dtype=np.bool_)

        for rows in plan.reading:
            for attempt in plan.splitter.attempts(RowBatch(rows, 2)):
                with attempt as batch:
                    one = self.split_pass(fitted, spec, batch.rows)
                    p, flips = self.predict_split(engine, fitted, spec, one, inputs.layers, on_work)
                    assert flips is not None  # the pass has a cut
                    clean[:, list(batch.rows)] = p
                    q[list(batch.rows)] = flips
        assert fitted.probe_layer is not None  # probes were fitted
        false = clean[inputs.layers.index(fitted.probe_layer)] >= 0.5
        left_out: list[int] = []
        for j, row_variants in enumerate(inputs.variants):
            if row_variants and spec.base != "all" and false[j]:
                left_out.append(j)
        if len(left_out) == inputs.n_measured:
            raise EmptySweepError(
                f"base={spec.base!r}: the probe at k* = {fitted.probe_layer} predicts none of"
                f" {inputs.n_measured} true test rows true. Take {MORE_QUESTIONS}, or base='all'."
            )
        rest = _without(fitted, left_out)
        return replace(rest, q=q, clean=clean)  # pyright: ignore[reportCallIssue]

    @override
    def prepare_again(
        self, context: QuestionContext, spec: PatchTokens, stored: StoredInputs
    ) -> ProbeSweepInputs:
        """Build the inputs again; the rows that the probe predicted false are those of the run."""
        inputs = super().prepare_again(context, spec, stored)
        gone = {row.example_id for row in stored.result.dropped if row.reason == PREDICTED_FALSE}
        left_out: list[int] = []
        for j, variants in enumerate(inputs.variants):
            if variants and inputs.row(j).id in gone:
                left_out.append(j)
        return replace(_without(inputs, left_out), q=np.zeros(len(inputs.test), dtype=np.bool_))

    @override
    def record_again(
        self,
        adapter: Adapter,
        inputs: ProbeSweepInputs,
        spec: PatchTokens,
        stored: StoredInputs,
        rows: Collection[str],
    ) -> dict[str, Any]:
        """Read the clean probe at all test rows again, if its AUC does not follow from the
        samples.
        """
        record = super().record_again(adapter, inputs, spec, stored, rows)
        if "test_auc" in stored.result.record["probe"]:
            reference = ReferenceEngine(adapter)
            everyone = (*stored.of("base"), *stored.of("test"))
            longest = max(len(row.ids) for row in everyone)
            size = rows_per_batch(adapter.shape, adapter.devices, longest, None, None)
            read: list[Array] = []
            for start in range(0, len(everyone), size):
                part = ProbePass(rows=everyone[start : start + size])
                p, _ = self.predict_split(reference, inputs, spec, part, inputs.layers, no_progress)
                read.append(p)
            clean = np.concatenate(read, axis=1)
            record["probe"]["test_auc"] = _test_auc(inputs, everyone, clean, spec)
        return record

    @override
    def load_variants(
        self, row: TokenRow, spec: PatchTokens, stored: StoredInputs
    ) -> tuple[Variant, ...]:
        variants: list[Variant] = []
        for donor in stored.donor_ids[row.id]:
            whole = f"{row.id}~{donor}"
            names = {
                "none": whole,
                RANDOM: f"{whole}~{RANDOM}",
                SIZE_MATCHED: f"{whole}~{SIZE_MATCHED}",
            }
            rows: dict[str, TokenRow] = {}
            for control, name in names.items():
                if ("corrupt", name) in stored.rows:
                    rows[control] = stored.rows["corrupt", name]
            for control, one in rows.items():
                controls = (control,)
                if control == "none" and RANDOM in rows and SIZE_MATCHED not in rows:
                    controls = ("none", SIZE_MATCHED)
                variant = Variant(
                    controls=controls,
                    row=one,
                    positions=one.positions["replaced"],
                    donor=stored.row("donor", donor),
                    donor_id=donor,
                )
                variants.append(variant)
        return tuple(variants)


PREDICTED_FALSE = "predicted_false"


def _without(inputs: ProbeSweepInputs, tests: Sequence[int]) -> ProbeSweepInputs:
    """Return the inputs without the variants of some test rows, which the probe predicts false;
    these rows are dropped.
    """
    variants = list(inputs.variants)
    dropped = list(inputs.dropped)
    for j in tests:
        variants[j] = ()
        dropped.append(_drop_predicted_false(inputs.row(j)))
    return replace(inputs, variants=tuple(variants), dropped=tuple(dropped))


def _drop_predicted_false(row: TokenRow) -> Dropped:
    """Return the drop record of a true row that the probe predicts false."""
    return replace(
        row.example.drop(PREDICTED_FALSE, "the probe at k* predicts it false"), example_id=row.id
    )


MEASUREMENT = PatchTokensMeasurement()
