"""Base class for measuring probe sweeps: clean rows against their variants, read by truth probes
(METHOD 5).

`answer_only`, `patch_tokens` and `knockout` differ in their variants (changed inputs or cut
attention edges) and in the packing of rows into passes. This module has the shared parts: planning,
probes, pathways, samples, spot checks and saved runs.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor
from typing_extensions import override

from anchorlens.constants import FLIP, P
from anchorlens.engine.engine import Engine
from anchorlens.engine.patches import no_progress
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.measure.budget import MemoryBudget
from anchorlens.models.adapter import Adapter
from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.fit_probes import SHUFFLED, fit_placebo_probes, fit_probes, n_draws
from anchorlens.probing.records import probe_record
from anchorlens.probing.text_baseline import text_baselines
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.protocols.base import Measurement, OnWork, Plan
from anchorlens.protocols.probe_sweep.probe_passes import (
    Cells,
    ProbePass,
    ProbePlan,
    ProbeUnit,
    RowBatch,
)
from anchorlens.protocols.probe_sweep.samples import pathway_samples
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification
from anchorlens.protocols.probe_sweep.variants import (
    ProbeSweepInputs,
    Variant,
    by_length,
    items_at,
)
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.questions.tokens import QUESTIONS, QuestionContext, TokenRow
from anchorlens.statistics.delta import is_flipped
from anchorlens.statistics.pathways import CROSS_FOLD, ProbeChange

Array = npt.NDArray[np.float64]
SpecT = TypeVar("SpecT", bound=TruthSpecification)


SpecT = TypeVar("SpecT", bound=TruthSpecification)


class ProbeMeasurement(Measurement[SpecT, ProbeSweepInputs, QuestionContext]):
    """Base class of measurements that compare clean rows with variants of them.

    Attributes:
        training_lanes: Number of parallel knockouts for which a pass over training rows reserves
            memory.
        flips: Whether to measure the metric ``flip``.
        reads_first: Whether pathways of all test rows are read before variants.
    """

    source = QUESTIONS
    training_lanes: ClassVar[int] = 0
    flips: ClassVar[bool] = True
    reads_first: ClassVar[bool] = False

    # -- declared by a protocol
    # ----------------------------------------------------------------------------------------------
    @abstractmethod
    def anchor(self, spec: SpecT) -> str:
        """Return the name of the changed segment, the ``anchor`` column."""

    @abstractmethod
    def passes(self, inputs: ProbeSweepInputs, spec: SpecT, cells: Cells) -> list[ProbePass]:
        """Return the passes for some variants; the first pass with cuts also splits the
        pathways.
        """

    @abstractmethod
    def load_variants(
        self, row: TokenRow, spec: SpecT, stored: StoredInputs
    ) -> tuple[Variant, ...]:
        """Rebuild the variants of a row of a saved sweep."""

    def reads_probe(self, spec: SpecT) -> bool:
        """Return whether truth probes are read."""
        return True

    def split_mode(self, spec: SpecT) -> str:
        """Return the mode of the knockout that splits the pathways."""
        return "mask"

    def placebos(self, spec: SpecT) -> bool:
        """Return whether placebo probes are fitted."""
        return False

    def lanes(self, inputs: ProbeSweepInputs, spec: SpecT) -> int:
        """Return the number of windows of layers that one pass cuts in parallel."""
        return 1

    def starts(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT) -> Sequence[int]:
        """Return the first layer of each window that is cut."""
        return (0,)

    def cut_layers(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT) -> range:
        """Return the layers in which edges may be cut."""
        return range(engine.adapter.n_layers)

    def pack(self, inputs: ProbeSweepInputs, size: int, cut_size: int) -> Sequence[Cells]:
        """Pack variants into units, by default test rows of similar length; ``size`` and
        ``cut_size``: maximum rows of a pass.
        """
        packed: list[Cells] = []
        for batch in _tests_by_length(inputs, cut_size):
            cells: list[tuple[int, int]] = []
            for j in batch:
                cells += [(j, i) for i in range(len(inputs.variants[j]))]
            if cells:
                packed.append(tuple(cells))
        return packed

    # -- measuring
    # ----------------------------------------------------------------------------------------------
    @override
    def check_model(self, spec: SpecT, adapter: Adapter) -> None:
        layers = spec.layers_of(adapter.n_layers)
        if spec.probes is not None and not set(layers) <= set(spec.probes.layers):
            raise InputError(
                f"layers={layers}: the probes have layers {spec.probes.layers}. Give layers= of the"
                " probes.",
                argument="layers",
            )
        adapter.hook_name(spec.probe_site, layers[0])

    @override
    def plan(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT) -> ProbePlan:
        rows = inputs.truth.rows
        width = inputs.max_tokens
        lanes = self.lanes(inputs, spec)
        cells = self._count_cells(inputs, spec)
        fitted: Sequence[int] = ()
        kept = 0
        if self.reads_probe(spec):
            fitted = inputs.truth.of("train", "validation")
            kept = 4 * len(rows) * engine.adapter.n_layers * engine.adapter.d_model
        room = MemoryBudget(
            engine, spec.max_memory, spec.batch_size, cells * (1 + self.flips), kept
        )
        size = room.rows(width)
        cut_size = room.rows(width, lanes)
        training_size = room.rows(width, self.training_lanes)
        training = by_length(fitted, lambda i: len(rows[i].ids), training_size)
        reading = _tests_by_length(inputs, cut_size) if self.reads_first else ()

        first = [_pass_without_variants(inputs.truth, batch) for batch in training]
        first += [self.split_pass(inputs, spec, batch) for batch in reading]
        passes = [*first]
        sizes = [len(one.rows) for one in first]
        units: list[ProbeUnit] = []
        for packed in self.pack(inputs, size, cut_size):
            own = self.passes(inputs, spec, packed)
            units.append(ProbeUnit(packed, inputs.layers, self.work(inputs, spec, own)))
            passes += own
            sizes.append(sum(len(one.rows) for one in own))

        starts = self.starts(engine, inputs, spec)
        flops = sum(engine.pass_flops(one.size, starts if one.cuts else ()) for one in passes)
        memory = [room.terms_of(len(one.rows), width, lanes if one.cuts else 0) for one in passes]
        terms = max(memory, key=lambda one: sum(one.values()))
        cost = room.plan(
            sizes,
            rows=inputs.n_measured,
            cells=cells,
            flops=flops,
            largest_pass=sum(terms.values()),
            width=width,
            checks=spec.n_spot_checks,
            terms=terms,
        )
        return ProbePlan(
            tuple(units),
            cost,
            "row",
            engine.adapter.device,
            before=sum(one.work for one in first),
            training=training,
            reading=reading,
        )

    def _count_cells(self, inputs: ProbeSweepInputs, spec: SpecT) -> int:
        """Return the number of samples of one metric, those of placebo probes included."""
        per_layer = sum(len(inputs.variants[j][i].controls) for j, i in inputs.cells)
        if self.placebos(spec):
            per_layer += (n_draws(spec.n_splits) + 1) * inputs.n_measured
        return per_layer * len(inputs.layers)

    def work(self, inputs: ProbeSweepInputs, spec: SpecT, passes: Sequence[ProbePass]) -> float:
        """Return the number of rows of the reference engine for a unit."""
        return sum(one.work for one in passes)

    @override
    def fit(
        self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT, plan: Plan, on_work: OnWork
    ) -> ProbeSweepInputs:
        texts = text_baselines(inputs.truth, n_resamples=spec.n_resamples, seed=spec.seed)
        inputs = replace(inputs, texts=texts)
        if not self.reads_probe(spec):
            return inputs
        assert isinstance(plan, ProbePlan)  # made by plan()
        truth = inputs.truth
        layers = inputs.layers
        states = torch.zeros(len(layers), len(truth.rows), engine.adapter.d_model)

        for rows in plan.training:
            for attempt in plan.splitter.attempts(RowBatch(rows)):
                with attempt as batch:
                    clean = _pass_without_variants(truth, batch.rows)
                    read, *_ = self.read(engine, inputs, spec, clean, layers, on_work)
                    states[:, list(batch.rows)] = read
        if spec.probes is None:
            used = fit_probes(
                truth,
                layers,
                states,
                site=spec.probe_site,
                model=inputs.model_name,
                dataset=inputs.dataset,
            )
        else:
            used = CrossFittedProbes.of(spec.probes).at(layers)
        others: dict[str, CrossFittedProbes] = {}
        if self.placebos(spec):
            others = fit_placebo_probes(truth, layers, states, used, seed=spec.seed)
        return replace(inputs, probes={"none": used} | others)

    def read(
        self,
        engine: Engine,
        inputs: ProbeSweepInputs,
        spec: SpecT,
        one: ProbePass,
        layers: Sequence[int],
        on_work: OnWork,
    ) -> Tensor:
        """Read the states at the last exact answer token, [1 + cut, layer, row, d_model]; clean
        first.
        """
        return engine.knockout_states_all_layers(
            one.batch(),
            site=spec.probe_site,
            layers=self.cut_layers(engine, inputs, spec),
            on_progress=lambda share: on_work(share * one.work),
        )[:, list(layers)]

    def split_pass(self, inputs: ProbeSweepInputs, spec: SpecT, tests: Sequence[int]) -> ProbePass:
        """Return the pass over clean rows that splits pathways: attention from all later tokens to
        E_Q is cut.
        """
        rows = tuple(map(inputs.row, tests))
        cut = tuple(row.positions["exact_question"] for row in rows)
        return ProbePass(rows=rows, cuts=(cut,), mode=self.split_mode(spec))

    def predict_split(
        self,
        engine: Engine,
        inputs: ProbeSweepInputs,
        spec: SpecT,
        one: ProbePass,
        layers: Sequence[int],
        on_work: OnWork,
    ) -> tuple[Array, npt.NDArray[np.bool_] | None]:
        """Return clean P(hallucination), [layer row], and flips of the prediction at k* under the
        cut, [row]; None without a cut.
        """
        fitted = inputs.probes["none"]
        probes = fitted.at(layers)
        ids = one.groups
        states = self.read(engine, inputs, spec, one, layers, on_work)
        clean = probes.predict(states[0], ids)
        if not one.cuts:
            return clean, None
        cut = probes.predict(states[1], ids)
        at = list(layers).index(fitted.probe_layer)
        return clean, is_flipped(clean[at], cut[at])

    @override
    def measure(
        self,
        engine: Engine,
        inputs: ProbeSweepInputs,
        spec: SpecT,
        unit: ProbeUnit,
        on_work: OnWork,
    ) -> pd.DataFrame:
        frames: list[pd.DataFrame] = []
        for rows, measured in self.outcomes(engine, inputs, spec, unit, on_work):
            samples = pathway_samples(
                self.anchor(spec),
                spec.delta_kind,
                unit.layers,
                rows,
                measured,
                event_is_true=not self.reads_probe(spec),
                flips=self.flips,
            )
            frames.append(samples)
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def outcomes(
        self,
        engine: Engine,
        inputs: ProbeSweepInputs,
        spec: SpecT,
        unit: ProbeUnit,
        on_work: OnWork,
    ) -> Iterator[tuple[list[TokenRow], ProbeChange]]:
        """Yield the rows of each control with P before and after; by default variants are changed
        inputs.
        """
        cells = tuple((j, i) for j, i in unit.cells if i < len(inputs.variants[j]))
        if not cells:
            on_work(unit.work)
            return
        # P by input, so that repeated inputs are measured once; a clean row that is also another
        # row's variant keeps both values.
        split_p: dict[object, Array] = {}
        p: dict[object, Array] = {}
        q: dict[object, np.bool_] = {}
        if inputs.q is not None:
            for j, _ in cells:
                q[self.key(inputs.row(j))] = inputs.q[j]
        for one in self.passes(inputs, spec, cells):
            clean, flips = self.predict_split(engine, inputs, spec, one, unit.layers, on_work)
            values = p if flips is None else split_p
            for i, row in enumerate(one.rows):
                values[self.key(row)] = clean[:, i]
                if flips is not None:
                    q[self.key(row)] = flips[i]
        clean_p = p | split_p
        changed_p = split_p | p
        for control in inputs.controls:
            rows: list[TokenRow] = []
            donors: list[str] = []
            before: list[Array] = []
            after: list[Array] = []
            is_q: list[np.bool_] = []
            for j, i in cells:
                variant = inputs.variants[j][i]
                if control in variant.controls:
                    assert variant.row is not None  # variants are changed inputs
                    row = inputs.row(j)
                    rows.append(row)
                    donors.append(variant.donor_id)
                    before.append(clean_p[self.key(row)])
                    after.append(changed_p[self.key(variant.row)])
                    is_q.append(q[self.key(row)])
            if rows:
                change = ProbeChange(
                    control=control,
                    before=np.stack(before, axis=1),
                    after=np.stack(after, axis=1),
                    q=np.broadcast_to(is_q, (len(before[0]), len(rows))),
                    donors=tuple(donors),
                )
                yield rows, change

    def reachable_layers(
        self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT
    ) -> Sequence[int]:
        """Return the layers at which a change can reach the readout; other cells have no row."""
        return inputs.layers

    def list_cells(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT) -> pd.DataFrame:
        """Return the keys of all samples, which are no values by construction."""
        placebos: list[tuple[str, str]] = []
        for name in inputs.probes:
            if name.startswith(SHUFFLED):
                number = name.rpartition("_")[2]
                placebos.append((SHUFFLED, f"draw {number}"))
        if "fold_b" in inputs.probes:
            placebos.append((CROSS_FOLD, ""))
        keys: list[tuple[str, str, str, str, str]] = []
        for j, i in inputs.cells:
            row = inputs.row(j)
            variant = inputs.variants[j][i]
            own = [(control, variant.donor_id) for control in variant.controls]
            # Placebo probes read the variant of `none`.
            if "none" in variant.controls:
                own += placebos
            for control, donor in own:
                keys.append((row.id, row.group, row.cluster, donor, control))
        names = ["example_id", "question_id", "cluster", "donor_id", "control"]
        frame = pd.DataFrame(keys, columns=names)
        layers = pd.DataFrame({"layer": list(self.reachable_layers(engine, inputs, spec))})
        metrics = pd.DataFrame({"metric": [P, FLIP] if self.flips else [P]})
        frame = frame.merge(layers, how="cross").merge(metrics, how="cross")
        return frame.assign(anchor=self.anchor(spec), draw=0, by_construction=False)

    def key(self, row: TokenRow) -> object:
        """Return a key of the inputs with the same P: token ids and position of the answer."""
        return row.ids, row.positions["answer"][-1]

    # -- measuring again
    # ----------------------------------------------------------------------------------------------
    def remeasure(
        self,
        reference: ReferenceEngine,
        inputs: ProbeSweepInputs,
        spec: SpecT,
        samples: Sequence[Mapping[str, Any]],
    ) -> pd.DataFrame:
        """Measure the variants of samples again, at their layers and at k*, which splits the
        pathways.
        """
        layers: set[int] = set()
        if inputs.probe_layer is not None:
            layers.add(inputs.probe_layer)
        wanted: dict[str, set[tuple[str, str]]] = {}
        for cell in samples:
            layers.add(int(cell["layer"]))
            # Placebo probes read the variant of `none`.
            control = cell["control"] if cell["control"] in inputs.controls else "none"
            wanted.setdefault(cell["example_id"], set()).add((control, cell["donor_id"]))
        cells: list[tuple[int, int]] = []
        for j, i in inputs.cells:
            pairs = wanted.get(inputs.row(j).id, set())
            if _has_sample(inputs.variants[j][i], pairs):
                cells.append((j, i))
        unit = ProbeUnit(tuple(cells), tuple(sorted(layers)))
        return self.measure(reference, inputs, spec, unit, no_progress)

    @override
    def prepare_again(
        self, context: QuestionContext, spec: SpecT, stored: StoredInputs
    ) -> ProbeSweepInputs:
        inputs = self.prepare(context, spec)
        texts = text_baselines(inputs.truth, n_resamples=spec.n_resamples, seed=spec.seed)
        return replace(inputs, probes=stored.probes, texts=texts)

    @override
    def record_again(
        self,
        adapter: Adapter,
        inputs: ProbeSweepInputs,
        spec: SpecT,
        stored: StoredInputs,
        rows: Collection[str],
    ) -> dict[str, Any]:
        return {"probe": probe_record(inputs.probes.get("none"), {})}

    def from_run(self, adapter: Adapter, spec: SpecT, stored: StoredInputs) -> ProbeSweepInputs:
        """Rebuild rows, variants and probes from a run directory, without pathways, which affect no
        P.
        """
        base = stored.of("base")
        return ProbeSweepInputs(
            dropped=(),
            trial=base[0].ids,
            sites=(spec.probe_site,),
            layers=stored.layers,
            truth=TruthRows(base, (("test",) * len(base),), ()),
            test=tuple(range(len(base))),
            variants=tuple(self.load_variants(row, spec, stored) for row in base),
            model_name=stored.result.model,
            dataset=stored.result.dataset,
            probes=stored.probes,
            q=np.zeros(len(base), dtype=np.bool_) if self.reads_first else None,
        )


def _tests_by_length(inputs: ProbeSweepInputs, size: int) -> tuple[tuple[int, ...], ...]:
    """Group all test rows into batches of similar length."""
    return by_length(range(len(inputs.test)), lambda j: len(inputs.row(j).ids), size)


def _pass_without_variants(truth: TruthRows, indices: Sequence[int]) -> ProbePass:
    return ProbePass(rows=items_at(truth.rows, indices))


def _has_sample(variant: Variant, pairs: Collection[tuple[str, str]]) -> bool:
    """Return whether a variant gives one of the samples, as (control, donor); cuts have no
    donor.
    """
    for control, donor in pairs:
        same_donor = variant.row is None or donor == variant.donor_id
        if control in variant.controls and same_donor:
            return True
    return False
