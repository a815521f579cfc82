"""Measure `knockout`: cut attention from the exact question tokens and read a truth probe or
P(True) (METHOD 5).

Scope: one model, one data set, one set of edges per call. The clean pass and all knockouts use the
same batches of test rows, so that a cut without effect gives ΔP = 0 exactly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from anchorlens.protocols.probe_sweep.measurement import ProbeMeasurement
from anchorlens.protocols.probe_sweep.placebo_tokens import (
    CONTROLS,
    cut_positions,
    cut_targets,
    cut_variants,
    entity_positions,
)
from anchorlens.protocols.probe_sweep.probe_passes import (
    Cells,
    ProbePass,
    ProbeUnit,
    distinct_tests,
)
from anchorlens.protocols.probe_sweep.variants import (
    ProbeSweepInputs,
    Variant,
    build_labelled_rows,
    items_at,
)
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.questions.tokens import QuestionContext, TokenRow
from anchorlens.statistics.delta import is_flipped
from anchorlens.statistics.pathways import CROSS_FOLD, RANDOM, ProbeChange

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class KnockoutInputs(ProbeSweepInputs):
    """Inputs of a knockout.

    Attributes:
        allowed: First and last layer in which edges may be cut.
    """

    allowed: tuple[int, int] = (0, 0)

    @override
    def record(self, spec: Any) -> dict[str, Any]:
        record = super().record(spec)
        record["config"] = {"anchors": [spec.anchor], "cut_layers": list(self.allowed)}
        without_placebo = 0
        for row_variants in self.variants if spec.placebos else ():
            if row_variants and not any(RANDOM in one.controls for one in row_variants):
                without_placebo += 1
        record["counts"] |= {
            "without_edge": len(self.variants) - self.n_measured,
            "without_placebo": without_placebo,
        }
        return record

    @override
    def empty_message(self, spec: Knockout) -> str:
        at = f" and a probe at layer {self.probe_layer}" if self.probes else ""
        return (
            f"window={spec.window!r}: cuts in layers {self.allowed} reach none of the layers"
            f" {self.layers}{at}."
        )


@dataclass(frozen=True)
class _Outcome:
    """P of some rows under one cut: ``after`` at every layer, [layer row], and ``whole`` with all
    layers cut, [row].
    """

    places: list[int]
    after: Array
    whole: Array

    def select(self, members: list[int]) -> "_Outcome":
        """Return the outcome of some of the rows."""
        places = list(items_at(self.places, members))
        return _Outcome(places, self.after[:, members], self.whole[members])


class KnockoutMeasurement(ProbeMeasurement[Knockout]):
    """Measurement of attention knockouts."""

    spec = Knockout
    analysis = ANALYSIS
    flips = False

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
        starts = [allowed.start]
        for layer in inputs.layers:
            window = self.window(engine, inputs, spec, layer)
            if window:
                starts.append(window.start)
        return starts

    @override
    def work(self, inputs: ProbeSweepInputs, spec: Knockout, passes: Sequence[ProbePass]) -> float:
        lanes = self.lanes(inputs, spec)
        return sum(len(one.rows) * (1 + lanes * len(one.cuts)) for one in passes)

    @override
    def cut_layers(self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout) -> range:
        first, last = spec.cut_layers or (0, engine.adapter.n_layers - 1)
        return range(first, last + 1)

    def window(self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout, layer: int) -> range:
        """Return the layers to cut for the point at ``layer``; empty if ``cut_layers`` excludes
        all.
        """
        allowed = self.cut_layers(engine, inputs, spec)
        around = range(layer + 1)
        if spec.window_size:
            around = window_layers(layer, spec.window_size, engine.adapter.n_layers)
        return range(max(around.start, allowed.start), min(around.stop, allowed.stop))

    @override
    def reachable_layers(
        self, engine: Engine, inputs: ProbeSweepInputs, spec: Knockout
    ) -> Sequence[int]:
        if self.cumulative(spec):
            first = self.cut_layers(engine, inputs, spec).start
            return [layer for layer in inputs.layers if layer >= first]
        last = engine.adapter.n_layers if inputs.probe_layer is None else inputs.probe_layer
        reachable: list[int] = []
        for layer in inputs.layers:
            window = self.window(engine, inputs, spec, layer)
            if window and window.start <= last:
                reachable.append(layer)
        return reachable

    @override
    def prepare(self, context: QuestionContext, spec: Knockout) -> KnockoutInputs:
        truth, dropped = build_labelled_rows(context, spec)
        test = tuple(range(len(truth.rows)) if spec.readout == "p_true" else truth.of("test"))
        variants: list[tuple[Variant, ...]] = []
        uncut: list[Dropped] = []
        for i in test:
            row = truth.rows[i]
            cuts = cut_positions(
                row,
                spec.edges,
                spec.seed,
                placebos=spec.placebos,
                sides=spec.split_placebo_by_side,
                named=entity_positions(row, context.tokenizer),
            )
            variants.append(cut_variants(cuts))
            if not cuts:
                uncut.append(_no_edge(row))
        if len(uncut) == len(test):
            raise InputError(
                f"edges={spec.edges!r} cut nothing in any row: no target token follows the source."
                " Name a source before its target, for example 'exact_question -> later'.",
                argument="edges",
            )
        n_layers = context.adapter.n_layers
        return KnockoutInputs(
            dropped=(*dropped, *uncut),
            trial=truth.rows[0].ids,
            sites=(spec.probe_site,) if spec.readout == "probe" else (),
            layers=spec.layers_of(n_layers),
            truth=truth,
            test=test,
            variants=tuple(variants),
            model_name=context.model_name,
            dataset=context.data.name,
            allowed=spec.cut_layers or (0, n_layers - 1),
        )

    @override
    def passes(self, inputs: ProbeSweepInputs, spec: Knockout, cells: Cells) -> list[ProbePass]:
        """Return one pass over the clean rows, with a cut for each control that is not shared."""
        tests = distinct_tests(cells)
        rows = tuple(map(inputs.row, tests))
        variants = _by_first_control(inputs, cells)
        names: list[str] = []
        cuts: list[tuple[tuple[int, ...], ...]] = []
        for control in CONTROLS:
            own = [variants.get((j, control)) for j in tests]
            if any(own):
                names.append(control)
                cuts.append(tuple(one.positions if one else () for one in own))
        return [
            ProbePass(
                rows=rows,
                cuts=tuple(cuts),
                targets=tuple(cut_targets(row, spec.edges) for row in rows),
                mode=spec.knockout_mode,
                heads=spec.heads,
                names=tuple(names),
            )
        ]

    @override
    def outcomes(
        self,
        engine: Engine,
        inputs: ProbeSweepInputs,
        spec: Knockout,
        unit: ProbeUnit,
        on_work: OnWork,
    ) -> Iterator[tuple[list[TokenRow], ProbeChange]]:
        tests = unit.tests
        (probe_pass,) = self.passes(inputs, spec, unit.cells)
        read = self._read_probes if self.reads_probe(spec) else self._read_p_true
        before, outcomes = read(engine, inputs, spec, unit, probe_pass, on_work)
        at = 0 if inputs.probe_layer is None else unit.layers.index(inputs.probe_layer)
        # Layer at which each point is read: its own layer, or k* for windows.
        reads = list(range(len(unit.layers)))
        if spec.window_size and inputs.probe_layer is not None:
            reads = [at] * len(unit.layers)
        start = {name: values[reads] for name, values in before.items()}

        def flips(name: str, out: _Outcome) -> npt.NDArray[np.bool_]:
            if spec.split == "per_layer":
                return is_flipped(start[name][:, out.places], out.after)
            at_probe_layer = is_flipped(before[name][at, out.places], out.whole)
            return np.broadcast_to(at_probe_layer, out.after.shape)

        def change(
            control: str,
            name: str,
            out: _Outcome,
            q: npt.NDArray[np.bool_],
            donor: str = "",
        ) -> ProbeChange:
            return ProbeChange(
                control=control,
                before=start[name][:, out.places],
                after=out.after,
                q=q,
                donors=(donor,) * len(out.places) if donor else (),
            )

        variants = _by_first_control(inputs, unit.cells)
        for first, outs in zip(probe_pass.names, outcomes, strict=True):
            places = outs["none"].places
            controls = [variants[tests[place], first].controls for place in places]
            rows = items_at(probe_pass.rows, places)
            for control in CONTROLS:
                members = [k for k, own in enumerate(controls) if control in own]
                if members:
                    part = outs["none"].select(members)
                    own_rows = items_at(rows, members)
                    yield list(own_rows), change(control, "none", part, flips("none", part))
            for name, out in outs.items():
                if name.startswith(SHUFFLED):
                    donor = f"draw {name.rpartition('_')[2]}"
                    yield list(rows), change(SHUFFLED, name, out, flips(name, out), donor)
            if "fold_b" in outs:
                q = flips("fold_a", outs["fold_a"])
                yield list(rows), change(CROSS_FOLD, "fold_b", outs["fold_b"], q)

    def _read_probes(
        self,
        engine: Engine,
        inputs: ProbeSweepInputs,
        spec: Knockout,
        unit: ProbeUnit,
        probe_pass: ProbePass,
        on_work: OnWork,
    ) -> tuple[dict[str, Array], list[dict[str, _Outcome]]]:
        """Read truth probes: at every layer for cumulative cuts, at k* for windows.

        Placebo probes read the control ``none`` only.

        Returns:
            Name of probes -> clean P, [layer row]; and for every cut, name of probes -> outcome.
        """
        probe_layer = inputs.probe_layer
        assert probe_layer is not None  # probes were fitted
        ids = probe_pass.groups
        at = unit.layers.index(probe_layer)
        sets = {name: probes.at(unit.layers) for name, probes in inputs.probes.items()}
        clean_only = replace(probe_pass, cuts=()) if spec.window_size else probe_pass
        clean, *cut = self.read(engine, inputs, spec, clean_only, unit.layers, on_work)
        before = {name: probes.predict(clean, ids) for name, probes in sets.items()}
        outcomes: list[dict[str, _Outcome]] = []
        for number, sources in enumerate(probe_pass.cuts):
            places = _rows_with_cut(sources)
            groups = items_at(ids, places)
            points: list[Tensor | None] = []
            if spec.window_size:
                part = _one_cut(probe_pass, number, places)
                points, whole = self._windows(engine, inputs, spec, unit.layers, part, on_work)
                layers = [probe_layer] * len(points)
            else:
                first = self.cut_layers(engine, inputs, spec).start
                states = cut[number][:, places]
                # Layers below the first cut layer are missing, not zero.
                for layer, here in zip(unit.layers, states, strict=True):
                    points.append(here if layer >= first else None)
                whole = states[at]
                layers = list(unit.layers)
            outs: dict[str, _Outcome] = {}
            for name in sets if probe_pass.names[number] == "none" else ("none",):
                probes = sets[name]
                after = np.full((len(points), len(places)), np.nan)
                for i, (layer, states) in enumerate(zip(layers, points, strict=True)):
                    if states is not None:
                        after[i] = expit(probes.log_odds(layer, states.numpy(), groups))
                with_all_cut = expit(probes.log_odds(probe_layer, whole.numpy(), groups))
                outs[name] = _Outcome(places, after, with_all_cut)
            outcomes.append(outs)
        return before, outcomes

    def _windows(
        self,
        engine: Engine,
        inputs: ProbeSweepInputs,
        spec: Knockout,
        layers: Sequence[int],
        one_cut: ProbePass,
        on_work: OnWork,
    ) -> tuple[list[Tensor | None], Tensor]:
        """Return the states at k* with each window cut (None if k* lies below it), and with all
        layers cut.
        """
        probe_layer = inputs.probe_layer
        assert probe_layer is not None  # probes were fitted
        windows = [self.cut_layers(engine, inputs, spec)]
        # Number of each layer's window; None if its cut cannot reach k*.
        numbers: list[int | None] = []
        for layer in layers:
            window = self.window(engine, inputs, spec, layer)
            if window and window.start <= probe_layer:
                numbers.append(len(windows))
                windows.append(window)
            else:
                numbers.append(None)
        work = len(one_cut.rows) * (1 + len(layers))
        states = engine.knockout_states(
            one_cut.batch(),
            where=(spec.probe_site, probe_layer),
            windows=windows,
            on_progress=lambda share: on_work(share * work),
        )
        read = states[0].float().cpu()
        points = [None if number is None else read[number] for number in numbers]
        return points, read[0]

    def _read_p_true(
        self,
        engine: Engine,
        inputs: ProbeSweepInputs,
        spec: Knockout,
        unit: ProbeUnit,
        probe_pass: ProbePass,
        on_work: OnWork,
    ) -> tuple[dict[str, Array], list[dict[str, _Outcome]]]:
        """Read P(yes) under every cut, for each window and with all layers cut; returns as
        :meth:`_read_probes`.
        """
        windows = [range(0), self.cut_layers(engine, inputs, spec)]
        reached: list[int] = []
        for i, layer in enumerate(unit.layers):
            window = self.window(engine, inputs, spec, layer)
            if window:
                reached.append(i)
                windows.append(window)
        n_cut = len(probe_pass.cuts) * (1 + len(unit.layers))
        work = len(probe_pass.rows) * (1 + n_cut)
        states = engine.knockout_states(
            probe_pass.batch(at_end=True),
            where=None,
            windows=windows,
            on_progress=lambda share: on_work(share * work),
        )
        metrics = truth_reader(engine.adapter, probe_pass.rows).metrics(engine.adapter, states)
        p = metrics.p.double().numpy()
        outcomes: list[dict[str, _Outcome]] = []
        for sources, values in zip(probe_pass.cuts, p, strict=True):
            places = _rows_with_cut(sources)
            after = np.full((len(unit.layers), len(places)), np.nan)
            after[reached] = values[2:, places]
            outcomes.append({"none": _Outcome(places, after, values[1, places])})
        clean = np.broadcast_to(p[0, 0], (len(unit.layers), len(probe_pass.rows)))
        return {"none": clean}, outcomes

    @override
    def load_variants(
        self, row: TokenRow, spec: Knockout, stored: StoredInputs
    ) -> tuple[Variant, ...]:
        cuts: dict[str, tuple[int, ...]] = {}
        for name, where in row.positions.items():
            if name.startswith("cut:"):
                cuts[name.removeprefix("cut:")] = where
        return cut_variants(cuts)


def _by_first_control(inputs: ProbeSweepInputs, cells: Cells) -> dict[tuple[int, str], Variant]:
    """Return (test, first control) -> variant; the first control names the cut."""
    variants: dict[tuple[int, str], Variant] = {}
    for j, i in cells:
        variant = inputs.variants[j][i]
        variants[j, variant.controls[0]] = variant
    return variants


def _rows_with_cut(sources: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the numbers of the rows in which a knockout cuts edges."""
    return [place for place, where in enumerate(sources) if where]


def _one_cut(probe_pass: ProbePass, number: int, places: Sequence[int]) -> ProbePass:
    """Return a pass over some rows with one of the cuts."""
    return ProbePass(
        rows=items_at(probe_pass.rows, places),
        cuts=(items_at(probe_pass.cuts[number], places),),
        targets=items_at(probe_pass.targets, places),
        mode=probe_pass.mode,
        heads=probe_pass.heads,
    )


def _no_edge(row: TokenRow) -> Dropped:
    """Return the drop record of a row in which the edges cut nothing."""
    return replace(
        row.example.drop("no_edge", "no target token after the source"), example_id=row.id
    )


MEASUREMENT = KnockoutMeasurement()
