"""Measure `knockout`: cut attention from the exact question tokens and read a truth probe or P(True) (METHOD 5).

Scope: one model, one data set, one set of edges per call. The clean pass and all knockouts use the same batches of test rows, so
that a cut without effect gives ΔP = 0 exactly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from torch import Tensor
from typing_extensions import override

from anchorlens.engine.engine import Engine
from anchorlens.engine.patches import window_layers
from anchorlens.errors import InputError
from anchorlens.probing.fit_probes import SHUFFLED
from anchorlens.probing.p_true import truth_reader
from anchorlens.prompts.dataset import Dropped
from anchorlens.protocols.base import OnWork
from anchorlens.protocols.knockout.analysis import ANALYSIS
from anchorlens.protocols.knockout.spec import Knockout
from anchorlens.protocols.probe_sweep.measurement import Cells, ProbeMeasurement, ProbePass, ProbeUnit
from anchorlens.protocols.probe_sweep.placebo_tokens import CONTROLS, cut_positions, cut_targets, cut_variants, entity_positions
from anchorlens.protocols.probe_sweep.variants import ProbeSweepInputs, Variant, build_labelled_rows
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.questions.build_rows import drop
from anchorlens.questions.qa_context import QuestionContext
from anchorlens.questions.tokens import TokenRow
from anchorlens.statistics.delta import is_flipped
from anchorlens.statistics.pathways import CROSS_FOLD, RANDOM, ProbeChange

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class KnockoutInputs(ProbeSweepInputs):
    """Inputs of a knockout.

    Attributes:
        allowed: First and last layer in which edges may be cut.
    """

    allowed: tuple[int, int] = field(default=(0, 0), kw_only=True)

    @override
    def record(self, spec: Any) -> dict[str, Any]:
        record = super().record(spec)
        record["config"] = {"anchors": [spec.anchor], "cut_layers": list(self.allowed)}
        with_edge = [variants for variants in self.variants if variants]
        without = sum(all(RANDOM not in variant.controls for variant in variants) for variants in with_edge)
        record["counts"] |= {
            "without_edge": len(self.variants) - len(with_edge), "without_placebo": without if spec.placebos else 0,
        }  # fmt: skip
        return record

    @override
    def empty_message(self, spec: Knockout) -> str:
        at = f" and a probe at layer {self.probe_layer}" if self.probes else ""
        return f"window={spec.window!r}: cuts in layers {self.allowed} reach none of the layers {self.layers}{at}."


@dataclass(frozen=True)
class _Outcome:
    """P of some rows under one cut: ``after`` at every layer, [layer row], and ``whole`` with all layers cut, [row]."""

    places: list[int]
    after: Array
    whole: Array


class KnockoutMeasurement(ProbeMeasurement[Knockout]):
    """Measurement of attention knockouts."""

    spec, analysis, flips = Knockout, ANALYSIS, False

    @override
    def anchor(self, spec: Knockout) -> str:
        return spec.anchor

    @override
    def reads_probe(self, spec: Knockout) -> bool:
        return spec.readout == "probe"

    @override
    def placebos(self, spec: Knockout) -> bool:
        return spec.placebos and spec.readout == "probe"

    def cumulative(self, spec: Knockout) -> bool:
        """Return whether one pass with all layers cut gives the whole curve."""
        return spec.readout == "probe" and not spec.window_size

    @override
    def lanes(self, inputs: ProbeSweepInputs, spec: Knockout) -> int:
        return 1 if self.cumulative(spec) else 1 + len(inputs.layers)

    @override
    def starts(self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout) -> Sequence[int]:
        allowed = self.cut_layers(engine, inputs, spec)
        if self.cumulative(spec):
            return (allowed.start,)
        windows = (self.window(engine, inputs, spec, layer) for layer in inputs.layers)
        return (allowed.start, *(layers.start for layers in windows if layers))

    @override
    def work(self, inputs: ProbeSweepInputs, spec: Knockout, passes: Sequence[ProbePass]) -> float:
        return sum(len(one.rows) * (1 + self.lanes(inputs, spec) * len(one.cuts)) for one in passes)

    @override
    def cut_layers(self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout) -> range:
        first, last = spec.cut_layers or (0, engine.adapter.n_layers - 1)
        return range(first, last + 1)

    def window(self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout, layer: int) -> range:
        """Return the layers to cut for the point at ``layer``; empty if ``cut_layers`` excludes all."""
        n_layers, allowed = engine.adapter.n_layers, self.cut_layers(engine, inputs, spec)
        around = window_layers(layer, spec.window_size, n_layers) if spec.window_size else range(layer + 1)
        return range(max(around.start, allowed.start), min(around.stop, allowed.stop))

    @override
    def reachable_layers(self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout) -> Sequence[int]:
        if self.cumulative(spec):
            first = self.cut_layers(engine, inputs, spec).start
            return [layer for layer in inputs.layers if layer >= first]
        last = engine.adapter.n_layers if inputs.probe_layer is None else inputs.probe_layer
        windows = {layer: self.window(engine, inputs, spec, layer) for layer in inputs.layers}
        return [layer for layer, window in windows.items() if window and window.start <= last]

    @override
    def prepare(self, context: QuestionContext, spec: Knockout) -> KnockoutInputs:
        truth, dropped = build_labelled_rows(context, spec)
        test = tuple(range(len(truth.rows)) if spec.readout == "p_true" else truth.of("test"))
        variants = tuple(
            cut_variants(
                cut_positions(
                    truth.rows[i], spec.edges, spec.seed, placebos=spec.placebos, sides=spec.split_placebo_by_side,
                    named=entity_positions(truth.rows[i], context.tokenizer),
                )
            )
            for i in test
        )  # fmt: skip
        if not any(variants):
            raise InputError(
                f"edges={spec.edges!r} cut nothing in any row: no target token follows the source. Name a source before its target, "
                "for example 'exact_question -> later'.",
                argument="edges",
            )
        uncut = tuple(_no_edge(truth.rows[i]) for i, row_variants in zip(test, variants, strict=True) if not row_variants)
        n_layers = context.adapter.n_layers
        return KnockoutInputs(
            (*dropped, *uncut), truth.rows[0].ids, (spec.probe_site,) if spec.readout == "probe" else (), spec.layers_of(n_layers),
            truth, test, variants, context.model_name, context.data.name, allowed=spec.cut_layers or (0, n_layers - 1),
        )  # fmt: skip

    @override
    def passes(self, inputs: ProbeSweepInputs, spec: Knockout, cells: Cells) -> list[ProbePass]:
        """Return one pass over the clean rows, with a cut for each control that is not shared."""
        tests = tuple(dict.fromkeys(j for j, _ in cells))
        rows = tuple(inputs.row(j) for j in tests)
        positions = {(j, inputs.variants[j][i].controls[0]): inputs.variants[j][i].positions for j, i in cells}
        names = tuple(control for control in CONTROLS if any((j, control) in positions for j in tests))
        cuts = tuple(tuple(positions.get((j, control), ()) for j in tests) for control in names)
        return [ProbePass(rows, cuts, tuple(cut_targets(row, spec.edges) for row in rows), spec.knockout_mode, spec.heads, names)]

    @override
    def outcomes(
        self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout, unit: ProbeUnit, on_work: OnWork
    ) -> Iterator[tuple[list[TokenRow], ProbeChange]]:
        tests = unit.tests
        (probe_pass,) = self.passes(inputs, spec, unit.cells)
        read = self._read_probes if self.reads_probe(spec) else self._read_p_true
        before, outcomes = read(engine, inputs, spec, unit, probe_pass, on_work)
        at = 0 if inputs.probe_layer is None else unit.layers.index(inputs.probe_layer)
        # Layer at which each point is read: its own layer, or k* for windows.
        reads = [at] * len(unit.layers) if spec.window_size and inputs.probe_layer is not None else list(range(len(unit.layers)))
        start = {name: values[reads] for name, values in before.items()}

        def flips(name: str, out: _Outcome) -> npt.NDArray[np.bool_]:
            if spec.split == "per_layer":
                return is_flipped(start[name][:, out.places], out.after)
            return np.broadcast_to(is_flipped(before[name][at, out.places], out.whole), out.after.shape)

        def build_arrays(control: str, outs: dict[str, _Outcome], read: str, split: str, donor: str = "") -> ProbeChange:
            donors = (donor,) * len(outs[read].places) if donor else ()
            return ProbeChange(control, start[read][:, outs[read].places], outs[read].after, flips(split, outs[split]), donors)

        shared = {(j, inputs.variants[j][i].controls[0]): inputs.variants[j][i].controls for j, i in unit.cells}
        for first, outs in zip(probe_pass.names, outcomes, strict=True):
            places = outs["none"].places
            for control in CONTROLS:
                members = [k for k, place in enumerate(places) if control in shared[tests[place], first]]
                if members:
                    part = {
                        "none": _Outcome([places[k] for k in members], outs["none"].after[:, members], outs["none"].whole[members])
                    }
                    yield [probe_pass.rows[places[k]] for k in members], build_arrays(control, part, "none", "none")
            rows = [probe_pass.rows[place] for place in places]
            for name in (name for name in outs if name.startswith(SHUFFLED)):
                yield rows, build_arrays(SHUFFLED, outs, name, name, f"draw {name.rpartition('_')[2]}")
            if "fold_b" in outs:
                yield rows, build_arrays(CROSS_FOLD, outs, "fold_b", "fold_a")

    def _read_probes(
        self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout, unit: ProbeUnit, probe_pass: ProbePass, on_work: OnWork
    ) -> tuple[dict[str, Array], list[dict[str, _Outcome]]]:
        """Read truth probes: at every layer for cumulative cuts, at k* for windows. Placebo probes read the control ``none`` only.

        Returns:
            Name of probes -> clean P, [layer row]; and for every cut, name of probes -> outcome.
        """
        assert inputs.probe_layer is not None  # probes were fitted
        ids, at = [row.group for row in probe_pass.rows], unit.layers.index(inputs.probe_layer)
        sets = {name: probes.at(unit.layers) for name, probes in inputs.probes.items()}
        clean_only = replace(probe_pass, cuts=()) if spec.window_size else probe_pass
        clean, *cut = self.read(engine, inputs, spec, clean_only, unit.layers, on_work)
        before = {name: probes.predict(clean, ids) for name, probes in sets.items()}
        outcomes: list[dict[str, _Outcome]] = []
        for number, sources in enumerate(probe_pass.cuts):
            places = [place for place, where in enumerate(sources) if where]
            groups = [ids[place] for place in places]
            if spec.window_size:
                points, whole = self._windows(engine, inputs, spec, unit, probe_pass, number, places, on_work)
                layers = [inputs.probe_layer] * len(points)
            else:
                first = self.cut_layers(engine, inputs, spec).start
                states = cut[number][:, places]
                # Layers below the first cut layer are missing, not zero.
                points: list[Tensor | None] = [s if k >= first else None for k, s in zip(unit.layers, states, strict=True)]
                whole, layers = states[at], list(unit.layers)
            outs: dict[str, _Outcome] = {}
            for name in sets if probe_pass.names[number] == "none" else ("none",):
                probes = sets[name]
                after = np.full((len(points), len(places)), np.nan)
                for i, (layer, states) in enumerate(zip(layers, points, strict=True)):
                    if states is not None:
                        after[i] = expit(probes.log_odds(layer, states.numpy(), groups))
                outs[name] = _Outcome(places, after, expit(probes.log_odds(inputs.probe_layer, whole.numpy(), groups)))
            outcomes.append(outs)
        return before, outcomes

    def _windows(
        self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout, unit: ProbeUnit, probe_pass: ProbePass, number: int,
        places: Sequence[int], on_work: OnWork,
    ) -> tuple[list[Tensor | None], Tensor]:  # fmt: skip
        """Return the states at k* with each window cut (None if k* lies below it), and with all layers cut."""
        assert inputs.probe_layer is not None  # probes were fitted
        cuts = [self.window(engine, inputs, spec, layer) for layer in unit.layers]
        reachable = [bool(layers) and layers[0] <= inputs.probe_layer for layers in cuts]
        windows = [self.cut_layers(engine, inputs, spec), *(c for c, is_read in zip(cuts, reachable, strict=True) if is_read)]
        part = ProbePass(
            tuple(probe_pass.rows[place] for place in places), (tuple(probe_pass.cuts[number][place] for place in places),),
            tuple(probe_pass.targets[place] for place in places), probe_pass.mode, probe_pass.heads,
        )  # fmt: skip
        whole, *read = (
            engine.knockout_states(
                part.batch(), where=(spec.probe_site, inputs.probe_layer), windows=windows,
                on_progress=lambda share: on_work(share * len(places) * (1 + len(cuts))),
            )[0].float().cpu()
        )  # fmt: skip
        states = iter(read)
        return [next(states) if is_read else None for is_read in reachable], whole

    def _read_p_true(
        self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout, unit: ProbeUnit, probe_pass: ProbePass, on_work: OnWork
    ) -> tuple[dict[str, Array], list[dict[str, _Outcome]]]:
        """Read P(yes) under every cut, for each window and with all layers cut; returns as :meth:`_read_probes`."""
        cuts = [self.window(engine, inputs, spec, layer) for layer in unit.layers]
        windows = [range(0), self.cut_layers(engine, inputs, spec), *(cut for cut in cuts if cut)]
        states = engine.knockout_states(
            probe_pass.batch(at_end=True), where=None, windows=windows,
            on_progress=lambda share: on_work(share * len(probe_pass.rows) * (1 + len(probe_pass.cuts) * (1 + len(unit.layers)))),
        )  # fmt: skip
        p = truth_reader(engine.adapter, probe_pass.rows).metrics(engine.adapter, states).p.double().numpy()
        outcomes: list[dict[str, _Outcome]] = []
        for sources, values in zip(probe_pass.cuts, p, strict=True):
            places = [place for place, where in enumerate(sources) if where]
            after = np.full((len(unit.layers), len(places)), np.nan)
            after[[i for i, cut in enumerate(cuts) if cut]] = values[2:, places]
            outcomes.append({"none": _Outcome(places, after, values[1, places])})
        return {"none": np.broadcast_to(p[0, 0], (len(unit.layers), len(probe_pass.rows)))}, outcomes

    @override
    def load_variants(self, row: TokenRow, spec: Knockout, stored: StoredInputs) -> tuple[Variant, ...]:
        cuts = {name.removeprefix("cut:"): where for name, where in row.positions.items() if name.startswith("cut:")}
        return cut_variants(cuts)


def _no_edge(row: TokenRow) -> Dropped:
    """Return the drop record of a row in which the edges cut nothing."""
    return replace(drop(row.example, "no_edge", "no target token after the source"), example_id=row.id)


MEASUREMENT = KnockoutMeasurement()
