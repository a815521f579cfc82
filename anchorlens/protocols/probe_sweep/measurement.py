"""Base class for measuring probe sweeps: clean rows against their variants, read by truth probes (METHOD 5).

`answer_only`, `patch_tokens` and `knockout` differ in their variants (changed inputs or cut attention edges) and in the packing of
rows into passes. This module has the shared parts: planning, probes, pathways, samples, spot checks and saved runs.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor
from typing_extensions import override

from anchorlens.engine.cost import PassSize
from anchorlens.engine.engine import Engine
from anchorlens.engine.knockout import cut_edges
from anchorlens.engine.patches import KnockoutBatch, no_progress
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.fit_probes import SHUFFLED, fit_placebo_probes, fit_probes, n_draws
from anchorlens.probing.records import probe_record
from anchorlens.probing.text_baseline import text_baselines
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.prompts.batches import pad_rows
from anchorlens.protocols.base import Measurement, OnWork, Plan
from anchorlens.protocols.planning import MemoryBudget, halves
from anchorlens.protocols.probe_sweep.samples import pathway_samples
from anchorlens.protocols.probe_sweep.truth_arguments import TruthSpecification
from anchorlens.protocols.probe_sweep.variants import ProbeSweepInputs, Variant, by_length
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.questions.qa_context import QUESTIONS, QuestionContext
from anchorlens.questions.tokens import TokenRow
from anchorlens.runs.schema import FLIP, P
from anchorlens.statistics.delta import is_flipped
from anchorlens.statistics.pathways import CROSS_FOLD, ProbeChange

Array = npt.NDArray[np.float64]
Cells = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ProbePass:
    """Rows of one forward pass.

    Attributes:
        rows: Inputs of the pass.
        cuts: Cut positions of each row, for each knockout; () without a cut.
        targets: Positions of each row that no longer attend to the cut ones; None for all later positions.
        mode: Cut of edges, ``mask`` or ``zero``.
        heads: Query heads in which edges are cut; None for all.
        names: Control of each knockout.
    """

    rows: tuple[TokenRow, ...]
    cuts: tuple[tuple[tuple[int, ...], ...], ...] = ()
    targets: tuple[tuple[int, ...] | None, ...] = ()
    mode: str = "mask"
    heads: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()

    @property
    def work(self) -> float:
        """Number of rows of the reference engine's passes."""
        return len(self.rows) * (1 + len(self.cuts))

    @property
    def size(self) -> PassSize:
        """Size of the pass for the cost model, without unembedding."""
        lengths = [len(row.ids) for row in self.rows]
        packs: list[tuple[int, int, int, int]] = []
        for cut in self.cuts:
            cones = [n - min(where) for n, where in zip(lengths, cut, strict=True) if where]
            if cones:
                packs.append((sum(cones), len(cones), max(cones), max(lengths)))
        return PassSize(sum(lengths), len(lengths), max(lengths), tuple(packs), 0, 0)

    def batch(self, *, at_end: bool = False) -> KnockoutBatch:
        """Return the padded batch, read at the last exact answer token or at the last token."""
        width = max(len(row.ids) for row in self.rows)
        targets = self.targets or (None,) * len(self.rows)
        edges = tuple(cut_edges(cut, targets, width) for cut in self.cuts)
        last = [len(row.ids) - 1 if at_end else row.positions["answer"][-1] for row in self.rows]
        ids = pad_rows([row.ids for row in self.rows])
        return KnockoutBatch(ids, torch.arange(len(self.rows)), torch.tensor(last), edges, self.mode, self.heads)


@dataclass(frozen=True)
class ProbeUnit:
    """Variants measured together with their clean rows, as (test, variant) indices; work in rows of the reference engine."""

    cells: Cells
    layers: tuple[int, ...]
    work: float = 1.0

    @property
    def tests(self) -> tuple[int, ...]:
        """Distinct indices of the test rows."""
        return tuple(dict.fromkeys(j for j, _ in self.cells))

    def split(self) -> "Sequence[ProbeUnit]":
        """Split the variants in halves; () for one variant."""
        if len(self.cells) == 1:
            return ()
        share = self.work / len(self.cells)
        return [replace(self, cells=tuple(part), work=share * len(part)) for part in halves(self.cells)]


@dataclass(frozen=True)
class RowBatch:
    """Rows that are read without variants: for fitting, or for pathways of test rows."""

    rows: tuple[int, ...]
    passes: int = 1

    @property
    def work(self) -> float:
        """Number of rows through the model."""
        return self.passes * len(self.rows)

    def split(self) -> "Sequence[RowBatch]":
        """Split the rows in halves; () for one row."""
        return [replace(self, rows=tuple(part)) for part in halves(self.rows)] if len(self.rows) > 1 else ()


@dataclass(frozen=True)
class ProbePlan(Plan):
    """Plan with batches for fitting probes.

    Attributes:
        training: Batches of training and validation rows, as indices into all rows.
        reading: Batches of test rows whose pathway is read before variants, as indices into the test rows.
    """

    training: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)
    reading: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)


SpecT = TypeVar("SpecT", bound=TruthSpecification)


class ProbeMeasurement(Measurement[SpecT, ProbeSweepInputs, QuestionContext]):
    """Base class of measurements that compare clean rows with variants of them.

    Attributes:
        training_lanes: Number of parallel knockouts for which a pass over training rows reserves memory.
        flips: Whether to measure the metric ``flip``.
        reads_first: Whether pathways of all test rows are read before variants.
    """

    source = QUESTIONS
    training_lanes: ClassVar[int] = 0
    flips: ClassVar[bool] = True
    reads_first: ClassVar[bool] = False

    # -- declared by a protocol ---------------------------------------------------------------------------------------------------
    @abstractmethod
    def anchor(self, spec: SpecT) -> str:
        """Return the name of the changed segment, the ``anchor`` column."""

    @abstractmethod
    def passes(self, inputs: ProbeSweepInputs, spec: SpecT, cells: Cells) -> list[ProbePass]:
        """Return the passes for some variants; the first pass with cuts also splits the pathways."""

    @abstractmethod
    def load_variants(self, row: TokenRow, spec: SpecT, stored: StoredInputs) -> tuple[Variant, ...]:
        """Rebuild the variants of a row of a saved sweep."""

    def reads_probe(self, spec: SpecT) -> bool:  # noqa: ARG002
        """Return whether truth probes are read."""
        return True

    def split_mode(self, spec: SpecT) -> str:  # noqa: ARG002
        """Return the mode of the knockout that splits the pathways."""
        return "mask"

    def placebos(self, spec: SpecT) -> bool:  # noqa: ARG002
        """Return whether placebo probes are fitted."""
        return False

    def lanes(self, inputs: ProbeSweepInputs, spec: SpecT) -> int:  # noqa: ARG002
        """Return the number of windows of layers that one pass cuts in parallel."""
        return 1

    def starts(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT) -> Sequence[int]:  # noqa: ARG002
        """Return the first layer of each window that is cut."""
        return (0,)

    def cut_layers(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT) -> range:  # noqa: ARG002
        """Return the layers in which edges may be cut."""
        return range(engine.adapter.n_layers)

    def pack(self, inputs: ProbeSweepInputs, size: int, cut_size: int) -> Sequence[Cells]:  # noqa: ARG002
        """Pack variants into units, by default test rows of similar length; ``size`` and ``cut_size``: maximum rows of a pass."""
        batches = by_length(range(len(inputs.test)), lambda j: len(inputs.row(j).ids), cut_size)
        packed = (tuple((j, i) for j in batch for i in range(len(inputs.variants[j]))) for batch in batches)
        return [cells for cells in packed if cells]

    # -- measuring ----------------------------------------------------------------------------------------------------------------
    @override
    def check_model(self, spec: SpecT, adapter: Adapter) -> None:
        layers = spec.layers_of(adapter.n_layers)
        if spec.probes is not None and not set(layers) <= set(spec.probes.layers):
            raise InputError(
                f"layers={layers}: the probes have layers {spec.probes.layers}. Give layers= of the probes.", argument="layers"
            )
        adapter.hook_name(spec.probe_site, layers[0])

    @override
    def plan(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT) -> ProbePlan:
        rows, width, lanes = inputs.truth.rows, inputs.max_tokens, self.lanes(inputs, spec)
        n_measured = sum(bool(own) for own in inputs.variants)
        placebos = (n_draws(spec.n_splits) + 1) * n_measured if self.placebos(spec) else 0
        cells = (sum(len(one.controls) for own in inputs.variants for one in own) + placebos) * len(inputs.layers)
        probed = self.reads_probe(spec)
        kept = 4 * len(rows) * engine.adapter.n_layers * engine.adapter.d_model if probed else 0
        room = MemoryBudget(engine, spec.max_memory, spec.batch_size, cells * (1 + self.flips), kept)
        size, cut_size = room.rows(width), room.rows(width, lanes)
        fitted = inputs.truth.of("train", "validation") if probed else []
        training = by_length(fitted, lambda i: len(rows[i].ids), room.rows(width, self.training_lanes))
        reading = by_length(range(len(inputs.test)), lambda j: len(inputs.row(j).ids), cut_size) if self.reads_first else ()
        packed = self.pack(inputs, size, cut_size)
        every = [self.passes(inputs, spec, one) for one in packed]
        units = tuple(ProbeUnit(one, inputs.layers, self.work(inputs, spec, own)) for one, own in zip(packed, every, strict=True))
        first = [ProbePass(tuple(rows[i] for i in batch)) for batch in training]
        first += [self.split_pass(inputs, spec, batch) for batch in reading]
        passes = [*first, *(one for own in every for one in own)]
        starts = self.starts(engine, inputs, spec)
        flops = sum(engine.pass_flops(one.size, starts if one.cuts else ()) for one in passes)
        most = max(room.bytes_of(len(one.rows), width, lanes if one.cuts else 0) for one in passes)
        sizes = [len(one.rows) for one in first] + [sum(len(one.rows) for one in own) for own in every]
        cost = room.plan(sizes, rows=n_measured, cells=cells, flops=flops, most=most, width=width, checks=spec.n_spot_checks)
        before = sum(one.work for one in first)
        return ProbePlan(units, cost, "row", engine.adapter.device, before=before, training=training, reading=reading)

    def work(self, inputs: ProbeSweepInputs, spec: SpecT, passes: Sequence[ProbePass]) -> float:  # noqa: ARG002
        """Return the number of rows of the reference engine for a unit."""
        return sum(one.work for one in passes)

    @override
    def fit(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT, plan: Plan, on_work: OnWork) -> ProbeSweepInputs:
        inputs = replace(inputs, texts=text_baselines(inputs.truth, n_resamples=spec.n_resamples, seed=spec.seed))
        if not self.reads_probe(spec):
            return inputs
        assert isinstance(plan, ProbePlan)  # made by plan()
        truth, layers = inputs.truth, inputs.layers
        states = torch.zeros(len(layers), len(truth.rows), engine.adapter.d_model)

        def read(batch: RowBatch) -> None:
            rows = ProbePass(tuple(truth.rows[i] for i in batch.rows))
            states[:, list(batch.rows)] = self.read(engine, inputs, spec, rows, layers, on_work)[0]

        for batch in plan.training:
            plan.memory.measure_or_split(read, RowBatch(batch))
        names = {"site": spec.probe_site, "model": inputs.model_name, "dataset": inputs.dataset}
        given = None if spec.probes is None else CrossFittedProbes.of(spec.probes).at(layers)
        used = fit_probes(truth, layers, states, **names) if given is None else given
        others = fit_placebo_probes(truth, layers, states, used, seed=spec.seed) if self.placebos(spec) else {}
        return replace(inputs, probes={"none": used} | others)

    def read(
        self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT, one: ProbePass, layers: Sequence[int], on_work: OnWork
    ) -> Tensor:
        """Read the states at the last exact answer token, [1 + cut, layer, row, d_model]; clean first."""
        return engine.knockout_states_all_layers(
            one.batch(), site=spec.probe_site, layers=self.cut_layers(engine, inputs, spec),
            on_progress=lambda share: on_work(share * one.work),
        )[:, list(layers)]  # fmt: skip

    def split_pass(self, inputs: ProbeSweepInputs, spec: SpecT, tests: Sequence[int]) -> ProbePass:
        """Return the pass over clean rows that splits pathways: attention from all later tokens to E_Q is cut."""
        rows = tuple(inputs.row(j) for j in tests)
        return ProbePass(rows, (tuple(row.positions["exact_question"] for row in rows),), mode=self.split_mode(spec))

    def predict_split(
        self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT, one: ProbePass, layers: Sequence[int], on_work: OnWork
    ) -> tuple[Array, npt.NDArray[np.bool_] | None]:
        """Return clean P(hallucination), [layer row], and flips of the prediction at k* under the cut, [row]; None without a cut."""
        probes, ids = inputs.probes["none"].at(layers), [row.group for row in one.rows]
        clean, *cut = (probes.predict(states, ids) for states in self.read(engine, inputs, spec, one, layers, on_work))
        at = list(layers).index(inputs.probes["none"].probe_layer) if cut else 0
        return clean, is_flipped(clean[at], cut[0][at]) if cut else None

    @override
    def measure(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT, unit: ProbeUnit, on_work: OnWork) -> pd.DataFrame:
        frames = [
            pathway_samples(self.anchor(spec), spec.delta_kind, unit.layers, rows, measured,
                            event_is_true=not self.reads_probe(spec), flips=self.flips)
            for rows, measured in self.outcomes(engine, inputs, spec, unit, on_work)
        ]  # fmt: skip
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def outcomes(
        self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT, unit: ProbeUnit, on_work: OnWork
    ) -> Iterator[tuple[list[TokenRow], ProbeChange]]:
        """Yield the rows of each control with P before and after; by default variants are changed inputs."""
        cells = tuple((j, i) for j, i in unit.cells if i < len(inputs.variants[j]))
        if not cells:
            on_work(unit.work)
            return
        # P by input, so that repeated inputs are measured once; a clean row that is also another row's variant keeps both values.
        split_p: dict[object, Array] = {}
        p: dict[object, Array] = {}
        q = {} if inputs.q is None else {self.key(inputs.row(j)): inputs.q[j] for j, _ in cells}
        for one in self.passes(inputs, spec, cells):
            clean, flips = self.predict_split(engine, inputs, spec, one, unit.layers, on_work)
            (p if flips is None else split_p).update({self.key(row): clean[:, i] for i, row in enumerate(one.rows)})
            if flips is not None:
                q |= {self.key(row): flips[i] for i, row in enumerate(one.rows)}
        clean_p, changed_p = p | split_p, split_p | p
        for control in inputs.controls:
            members = [(inputs.row(j), inputs.variants[j][i]) for j, i in cells if control in inputs.variants[j][i].controls]
            if members:
                before = np.stack([clean_p[self.key(row)] for row, _ in members], axis=1)
                after = np.stack([changed_p[self.key(one.row)] for _, one in members if one.row is not None], axis=1)
                flips = np.broadcast_to([q[self.key(row)] for row, _ in members], before.shape)
                yield (
                    [row for row, _ in members],
                    ProbeChange(control, before, after, flips, tuple(one.donor_id for _, one in members)),
                )

    def reachable_layers(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT) -> Sequence[int]:  # noqa: ARG002
        """Return the layers at which a change can reach the readout; other cells have no row."""
        return inputs.layers

    def list_cells(self, engine: Engine, inputs: ProbeSweepInputs, spec: SpecT) -> pd.DataFrame:
        """Return the keys of all samples, which are no values by construction."""
        draws = [name for name in inputs.probes if name.startswith(SHUFFLED)]
        placebos = [(SHUFFLED, f"draw {name.rpartition('_')[2]}") for name in draws]
        placebos += [(CROSS_FOLD, "")] if "fold_b" in inputs.probes else []
        keys: list[tuple[str, str, str, str]] = []
        for j, i in inputs.cells:
            row, variant = inputs.row(j), inputs.variants[j][i]
            own = [(control, variant.donor_id) for control in variant.controls]
            # Placebo probes read the variant of `none`.
            for control, donor in (*own, *(placebos if "none" in variant.controls else ())):
                keys.append((row.id, row.group, donor, control))
        frame = pd.DataFrame(keys, columns=["example_id", "question_id", "donor_id", "control"])
        frame = frame.merge(pd.DataFrame({"layer": list(self.reachable_layers(engine, inputs, spec))}), how="cross")
        frame = frame.merge(pd.DataFrame({"metric": [P, FLIP] if self.flips else [P]}), how="cross")
        return frame.assign(anchor=self.anchor(spec), by_construction=False)

    def key(self, row: TokenRow) -> object:
        """Return a key of the inputs with the same P: token ids and position of the answer."""
        return row.ids, row.positions["answer"][-1]

    # -- measuring again --------------------------------------------------------------------------------------------------------
    def remeasure(
        self, reference: ReferenceEngine, inputs: ProbeSweepInputs, spec: SpecT, samples: Sequence[Mapping[str, Any]]
    ) -> pd.DataFrame:
        """Measure the variants of samples again, at their layers and at k*, which splits the pathways."""
        probe_layer = [] if inputs.probe_layer is None else [inputs.probe_layer]
        layers = tuple(sorted({*(int(cell["layer"]) for cell in samples), *probe_layer}))
        wanted: dict[str, set[tuple[str, str]]] = {}
        for cell in samples:
            # Placebo probes read the variant of `none`.
            control = cell["control"] if cell["control"] in inputs.controls else "none"
            wanted.setdefault(cell["example_id"], set()).add((control, cell["donor_id"]))
        cells = tuple(
            (j, i) for j, i in inputs.cells
            for one, pairs in [(inputs.variants[j][i], wanted.get(inputs.row(j).id, set()))]
            if any(control in one.controls and (one.row is None or donor == one.donor_id) for control, donor in pairs)
        )  # fmt: skip
        return self.measure(reference, inputs, spec, ProbeUnit(cells, layers), no_progress)

    @override
    def prepare_again(self, context: QuestionContext, spec: SpecT, stored: StoredInputs) -> ProbeSweepInputs:
        inputs = self.prepare(context, spec)
        texts = text_baselines(inputs.truth, n_resamples=spec.n_resamples, seed=spec.seed)
        return replace(inputs, probes=stored.probes, texts=texts)

    @override
    def record_again(
        self, adapter: Adapter, inputs: ProbeSweepInputs, spec: SpecT, stored: StoredInputs, rows: Collection[str]
    ) -> dict[str, Any]:
        return {"probe": probe_record(inputs.probes.get("none"), {})}

    def from_run(self, adapter: Adapter, spec: SpecT, stored: StoredInputs) -> ProbeSweepInputs:  # noqa: ARG002
        """Rebuild rows, variants and probes from a run directory, without pathways, which affect no P."""
        base = stored.of("base")
        variants = tuple(self.load_variants(row, spec, stored) for row in base)
        known = np.zeros(len(base), dtype=np.bool_) if self.reads_first else None
        truth, saved = TruthRows(base, (("test",) * len(base),), ()), stored.result
        return ProbeSweepInputs(
            (), base[0].ids, (spec.probe_site,), stored.layers, truth, tuple(range(len(base))), variants, saved.model, saved.dataset,
            stored.probes, known,
        )  # fmt: skip
