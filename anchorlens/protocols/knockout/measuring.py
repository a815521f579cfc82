"""What a knockout measures of some test rows: P with the edges cut, under every control.

Test rows keep their batches in the clean pass and in every knockout, so that a cut that does nothing gives a ΔP of exactly zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.engine import Engine
from anchorlens.engine.interventions import CutBatch, window_layers
from anchorlens.engine.knockout import cut_edges
from anchorlens.protocols.costing import halves
from anchorlens.protocols.knockout.cut_tokens import SAME_AS, VARIANTS, RowCuts
from anchorlens.protocols.knockout.spec import Knockout
from anchorlens.protocols.truth_probing import PreparedTruth
from anchorlens.questions.tokens import TokenRow, pad_rows
from anchorlens.statistics.delta import flipped
from anchorlens.statistics.pathways import Measured
from anchorlens.truth.asked import truth_reader
from anchorlens.truth.fitted import SHUFFLED

Array = npt.NDArray[np.float64]
OnWork = Callable[[float], object]


@dataclass(frozen=True)
class PreparedKnockout(PreparedTruth):
    """A knockout that is ready to run.

    Attributes:
        cuts: What is cut in each row that is measured.
        allowed: First and last layer in which edges may be cut.
    """

    cuts: tuple[RowCuts, ...] = ()
    allowed: tuple[int, int] = (0, 0)

    @property
    def cut_layers(self) -> range:
        """Layers in which edges may be cut."""
        return range(self.allowed[0], self.allowed[1] + 1)

    @property
    def variants(self) -> tuple[str, ...]:
        """Variants that any row has, ``none`` first."""
        return tuple(v for v in VARIANTS if any(v in cut.sources for cut in self.cuts))

    def members(self, tests: Sequence[int], variant: str) -> list[int]:
        """The rows in which a variant needs a pass of its own; ``matched`` is often the same cut as ``none``."""
        return [j for j in tests if self.cuts[j].own_pass(variant)]

    def sources(self, test: int, variant: str) -> tuple[int, ...]:
        """What a variant cuts off in a row; nothing where it needs no pass of its own."""
        return self.cuts[test].sources.get(variant, ()) if self.members([test], variant) else ()


@dataclass(frozen=True)
class RowUnit:
    """Test rows that are measured together.

    Attributes:
        tests: Indices into :attr:`PreparedTruth.test`.
        layers: Layers that are measured.
        passes: Rows that the oracle would put through the model for each of them.
    """

    tests: tuple[int, ...]
    layers: tuple[int, ...]
    passes: int = 1

    @property
    def work(self) -> float:
        """See :class:`~anchorlens.protocols.plug.Unit`."""
        return len(self.tests) * self.passes

    def split(self) -> "Sequence[RowUnit]":
        """Halves."""
        if len(self.tests) == 1:
            return ()
        return [RowUnit(tuple(part), self.layers, self.passes) for part in halves(self.tests)]


def measured_rows(engine: Engine, ready: PreparedKnockout, spec: Knockout, unit: RowUnit, on_work: OnWork) -> list[Measured]:
    """P before and after, and the split, under every control; arrays are [layer test]."""
    if spec.readout == "probe":
        return _Probed(engine, ready, spec, unit, on_work).measured()
    return _asked(engine, ready, spec, unit, on_work)


def layers_at(ready: PreparedKnockout, spec: Knockout, n_layers: int, layer: int) -> range:
    """Layers that are cut for the point at ``layer``; none of them where no cut is allowed there."""
    around, allowed = window_layers(layer, spec.window, n_layers) if spec.window else range(layer + 1), ready.cut_layers
    return range(max(around.start, allowed.start), min(around.stop, allowed.stop))


def _batch(
    ready: PreparedKnockout, spec: Knockout, tests: Sequence[int], variants: Sequence[str], *, at_end: bool = False
) -> CutBatch:
    """Rows with the edges of each variant, read at t*, or at their last token."""
    rows = [ready.row(j) for j in tests]
    width = max(len(row.ids) for row in rows)
    targets = [ready.cuts[j].targets for j in tests] if variants else []
    edges = tuple(cut_edges([ready.sources(j, v) for j in tests], targets, width) for v in variants)
    last = [len(row.ids) - 1 if at_end else row.positions["answer"][-1] for row in rows]
    return CutBatch(
        pad_rows([row.ids for row in rows]), torch.arange(len(rows)), torch.tensor(last), edges, spec.mode, spec.heads
    )


def _fill_copies(ready: PreparedKnockout, tests: Sequence[int], tables: Mapping[str, Array]) -> None:
    """Rows in which a variant cuts what one before it cuts needed no second pass; tables are [... test]."""
    for variant in (v for v in VARIANTS if v in tables and v in SAME_AS):
        for place, j in enumerate(tests):
            cuts = ready.cuts[j]
            if variant in cuts.sources and not cuts.own_pass(variant):
                tables[variant][..., place] = tables[SAME_AS[variant]][..., place]


class _Probed:
    """Read by truth probes: cumulative cuts at every layer, windows at k*."""

    def __init__(self, engine: Engine, ready: PreparedKnockout, spec: Knockout, unit: RowUnit, on_work: OnWork) -> None:
        self.engine, self.ready, self.spec, self.on_work = engine, ready, spec, on_work
        self.tests, self.layers = unit.tests, unit.layers
        self.rows: list[TokenRow] = [ready.row(j) for j in unit.tests]
        self.ids = [row.example.question_id for row in self.rows]
        self.sets = {name: probes.at(unit.layers) for name, probes in ready.probes.items()}
        assert ready.k_star is not None  # probes were fitted
        self.k = ready.k_star
        self.at = unit.layers.index(self.k)
        # Where each point is read: at its own layer, or for windows always at k*.
        self.reads = [self.at] * len(self.layers) if spec.window else list(range(len(self.layers)))

    def measured(self) -> list[Measured]:
        """Every control."""
        variants = [v for v in self.ready.variants if v in VARIANTS]
        own = () if self.spec.window else tuple(v for v in variants if self.ready.members(self.tests, v))
        runs = self.engine.cut_states_everywhere(
            _batch(self.ready, self.spec, self.tests, own), site=self.spec.probe_site, layers=self.ready.cut_layers,
            on_share=lambda share: self.on_work(share * len(self.tests) * (1 + len(own))),
        )[:, list(self.layers)]  # fmt: skip
        before = {name: probes.predict(runs[0], self.ids) for name, probes in self.sets.items()}
        cut = dict(zip(own, runs[1:], strict=True))
        n = len(self.tests)
        # The probes of placebos are asked about the measured cut alone.
        read = {name: variants if name == "none" else ["none"] for name in self.sets}
        after = {name: {v: np.full((len(self.layers), n), np.nan) for v in used} for name, used in read.items()}
        whole = {name: {v: np.full(n, np.nan) for v in used} for name, used in read.items()}
        for variant in variants:
            members = self.ready.members(self.tests, variant)
            if not members:
                continue
            places = [self.tests.index(j) for j in members]
            ids = [self.ids[place] for place in places]
            points, full = self._points(members, variant, cut[variant][:, places] if variant in cut else None)
            for name, probes in self.sets.items():
                if variant not in read[name]:
                    continue
                for i, states in enumerate(points):
                    if states is not None:
                        probe = probes.probes[self.layers[self.reads[i]]]
                        after[name][variant][i, places] = probe.predict_proba(states.numpy(), ids)[:, 1]
                whole[name][variant][places] = probes.probes[self.k].predict_proba(full.numpy(), ids)[:, 1]
        for name in self.sets:
            _fill_copies(self.ready, self.tests, after[name])
            _fill_copies(self.ready, self.tests, whole[name])
        return self._controls(variants, before, after, whole)

    def _controls(
        self, variants: Sequence[str], before: Mapping[str, Array], after: Mapping[str, Mapping[str, Array]],
        whole: Mapping[str, Mapping[str, Array]],
    ) -> list[Measured]:  # fmt: skip
        start = {name: values[self.reads] for name, values in before.items()}

        def flips(variant: str, name: str) -> npt.NDArray[np.bool_]:
            if self.spec.split == "per_layer":
                return flipped(start[name], after[name][variant])
            return np.broadcast_to(flipped(before[name][self.at], whole[name][variant]), start[name].shape)

        measured = [Measured(v, start["none"], after["none"][v], flips(v, "none")) for v in variants]
        for name in (name for name in self.sets if name.startswith(SHUFFLED)):
            draw = f"draw {name.rpartition('_')[2]}"
            donors = (draw,) * len(self.tests)
            measured.append(Measured(SHUFFLED, start[name], after[name]["none"], flips("none", name), donors))
        if "fold_b" in self.sets:
            measured.append(Measured("cross_fold", start["fold_b"], after["fold_b"]["none"], flips("none", "fold_a")))
        return measured

    def _points(
        self, members: Sequence[int], variant: str, cut: Float[Tensor, "layer example d_model"] | None
    ) -> "tuple[list[Float[Tensor, 'example d_model'] | None], Float[Tensor, 'example d_model']]":
        """The states that each point of the curve is read from, and those of the whole cut at k*.

        Cumulative: known already, because a state at layer k depends on the cuts in layers <= k alone. Windows: measured here; None
        where k* lies below the window.
        """
        if cut is not None:
            first = self.ready.cut_layers.start
            # Below the first layer nothing is cut: those layers are missing, not zero.
            return [s if layer >= first else None for layer, s in zip(self.layers, cut, strict=True)], cut[self.at]
        cuts = [layers_at(self.ready, self.spec, self.engine.adapter.n_layers, layer) for layer in self.layers]
        reachable = [bool(layers) and layers[0] <= self.k for layers in cuts]
        windows = [self.ready.cut_layers, *(c for c, reaches in zip(cuts, reachable, strict=True) if reaches)]
        full, *read = (
            self.engine.cut_states(
                _batch(self.ready, self.spec, members, [variant]), where=(self.spec.probe_site, self.k), windows=windows,
                on_share=lambda share: self.on_work(share * len(members) * (1 + len(cuts))),
            )[0].float().cpu()
        )  # fmt: skip
        states = iter(read)
        return [next(states) if reaches else None for reaches in reachable], full


def _asked(engine: Engine, ready: PreparedKnockout, spec: Knockout, unit: RowUnit, on_work: OnWork) -> list[Measured]:
    """P(yes) under every variant, at every point and with the whole cut for the split."""
    tests, layers, n = unit.tests, unit.layers, len(unit.tests)
    variants = ready.variants
    before = np.full((len(layers), n), np.nan)
    after = {v: np.full((len(layers), n), np.nan) for v in variants}
    whole = {v: np.full(n, np.nan) for v in variants}
    cuts = [layers_at(ready, spec, engine.adapter.n_layers, layer) for layer in layers]
    windows = [range(0), ready.cut_layers, *(cut for cut in cuts if cut)]
    measured_at = [i for i, cut in enumerate(cuts) if cut]
    own = [v for v in variants if ready.members(tests, v)]
    if own:  # else nothing is cut in these rows
        states = engine.cut_states(
            _batch(ready, spec, tests, own, at_end=True), where=None, windows=windows,
            on_share=lambda share: on_work(share * n * (1 + len(own) * (1 + len(layers)))),
        )  # fmt: skip
        p = truth_reader(engine.adapter, [ready.row(j) for j in tests]).metrics(engine.adapter, states).p.double().numpy()
        before[:] = p[0, 0]
        for variant, values in zip(own, p, strict=True):
            members = ready.members(tests, variant)
            places = [tests.index(j) for j in members]
            whole[variant][places] = values[1, places]
            after[variant][np.ix_(measured_at, places)] = values[2:, places]
    _fill_copies(ready, tests, after)
    _fill_copies(ready, tests, whole)
    measured: list[Measured] = []
    for variant in variants:
        per_layer = spec.split == "per_layer"
        flips = flipped(before, after[variant] if per_layer else np.broadcast_to(whole[variant], before.shape))
        measured.append(Measured(variant, before, after[variant], flips))
    return measured


__all__ = ["PreparedKnockout", "RowUnit", "layers_at", "measured_rows"]
