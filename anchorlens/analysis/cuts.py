"""What is cut in which row, and the passes that measure it: the working part of a knockout sweep.

Test rows keep their batches in the clean pass and in every knockout, so that a cut that does nothing gives a ΔP of exactly zero.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.analysis.pathways import MATCHED, Measured, flipped
from anchorlens.analysis.probes import LayerProbes
from anchorlens.analysis.truth import TruthRows, truth_reader
from anchorlens.engine.interventions import CutBatch, Slots, window_layers
from anchorlens.engine.knockout import LATER, AttentionKnockout, cut_edges, parse_edges, read_states
from anchorlens.engine.plan import halves, out_of_memory, warn_of_split
from anchorlens.engine.select import Engine
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import TokenRow, pad_rows

if TYPE_CHECKING:
    from anchorlens.analysis.knockout import KnockoutConfig

Array = npt.NDArray[np.float64]
RANDOM = "random_tokens"


def last_answer_states(
    adapter: Adapter,
    rows: Sequence[TokenRow],
    site: str,
    cut: AttentionKnockout | None = None,
    *,
    batch_size: int | None = None,
    on_forward: Callable[[int], None] = lambda rows: None,  # noqa: ARG005
) -> Float[Tensor, "layer example d_model"]:
    """States of every layer at t*, the last exact answer token, float32 on the CPU.

    Args:
        adapter: The model.
        rows: Inputs.
        site: Where in the block.
        cut: Edges that are cut, for rows that go through in one batch.
        batch_size: Rows in one forward pass, similar lengths together; None: all in one.
        on_forward: Called after each pass with the number of rows.
    """
    if batch_size is not None:
        states = torch.zeros(adapter.n_layers, len(rows), adapter.d_model)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
        for start in range(0, len(order), batch_size):
            some = order[start : start + batch_size]
            states[:, some] = last_answer_states(adapter, [rows[i] for i in some], site, on_forward=on_forward)
        return states
    last = torch.tensor([[row.positions["answer"][-1]] for row in rows])
    where = Slots(last, torch.ones_like(last, dtype=torch.bool))
    return read_states(adapter, pad_rows([row.ids for row in rows]), where, site, cut, on_forward)[:, :, 0]


@dataclass(frozen=True)
class RowCuts:
    """The positions of one row that are cut off, by variant.

    Attributes:
        sources: ``none`` -> the source's positions; ``random_tokens`` -> as many other question tokens; ``matched`` -> as many
            tokens of the source as ``random_tokens`` has. The last two are absent where the question has no other token, and all
            are where the edges cut nothing: the row is not measured.
        targets: Positions that no longer read them; None: every later position outside.
    """

    sources: Mapping[str, tuple[int, ...]]
    targets: tuple[int, ...] | None


def row_cuts(row: TokenRow, edges: str, seed: int, *, placebos: bool) -> RowCuts:
    """What is cut in one row.

    The placebo's tokens are drawn from the question tokens that are neither of the source nor of the target, never position 0. Where
    there are fewer than the source has, ``matched`` holds that many random tokens of the source.
    """
    source, target = parse_edges(edges)
    own = row.positions[source]
    goal = None if target == LATER else row.positions[target]
    readers = set(range(len(row.ids))) - set(own) if goal is None else set(goal)
    if not own or max(readers, default=-1) <= min(own):
        return RowCuts({}, goal)
    sources = {"none": own}
    taken = {0, *own, *(goal or ())}
    question = (*row.positions["question"], *row.positions["question_rest"])
    others = sorted(p for p in question if p not in taken)
    if goal is not None:  # what stands after the last target flows nowhere: cutting it would be no placebo
        others = [p for p in others if p < max(goal)]
        own = tuple(p for p in own if p < max(goal))
    if placebos and others:
        rng = random.Random(f"{seed}:placebo:{row.row_id}:{edges}")
        n = min(len(own), len(others))
        sources[RANDOM] = tuple(sorted(rng.sample(others, n)))
        sources[MATCHED] = own if n == len(own) else tuple(sorted(rng.sample(sorted(own), n)))
    return RowCuts(sources, goal)


@dataclass(frozen=True)
class CutPlan:
    """Rows, batches and cuts of a sweep.

    Attributes:
        rows: All rows; those of split ``test`` are cut.
        test: Indices of the rows that are cut, in the order of all measured arrays.
        cuts: Their cuts, in that order.
        batches: Indices into :attr:`test`.
        other: Batches of the rows that are only read (training, validation), as indices into the rows.
    """

    rows: TruthRows
    test: tuple[int, ...]
    cuts: tuple[RowCuts, ...]
    batches: tuple[tuple[int, ...], ...]
    other: tuple[tuple[int, ...], ...]

    @classmethod
    def make(cls, rows: TruthRows, config: "KnockoutConfig", *, size: int, test_size: int | None = None) -> "CutPlan":
        """Rows of similar length together, ``test_size`` of those that are cut. ``p_true`` trains nothing: all are test rows."""
        test = range(len(rows.rows)) if config.readout == "p_true" else rows.of("test")
        rest = [] if config.readout == "p_true" else rows.of("train", "validation")

        def batched(indices: Sequence[int], length: Callable[[int], int], size: int = size) -> tuple[tuple[int, ...], ...]:
            order = sorted(indices, key=length)
            return tuple(tuple(order[i : i + size]) for i in range(0, len(order), size))

        cuts = [row_cuts(rows.rows[i], config.edges, config.seed, placebos=config.placebos) for i in test]
        by_row = batched(rest, lambda i: len(rows.rows[i].ids))
        by_test = batched(range(len(test)), lambda j: len(rows.rows[test[j]].ids), test_size or size)
        return cls(rows, tuple(test), tuple(cuts), by_test, by_row)

    def members(self, batch: Sequence[int], variant: str) -> list[int]:
        """The rows of a batch in which a variant needs a pass of its own; ``matched`` is often the same cut as ``none``."""
        own = [j for j in batch if variant in self.cuts[j].sources]
        if variant == MATCHED:
            return [j for j in own if self.cuts[j].sources[MATCHED] != self.cuts[j].sources["none"]]
        return own

    @property
    def variants(self) -> tuple[str, ...]:
        """Variants that any row has, ``none`` first."""
        return tuple(v for v in ("none", RANDOM, MATCHED) if any(v in cut.sources for cut in self.cuts))

    def forward_rows(self, config: "KnockoutConfig") -> int:
        """Rows that the oracle puts through the model, all passes together."""
        passes = 1 if config.readout == "probe" and not config.window else 1 + len(config.layers)
        cut = sum(len(b) for v in self.variants for b in self.batches if self.members(b, v))
        return sum(map(len, self.other)) + len(self.test) + passes * cut


class CutRun:
    """Measures a plan.

    Args:
        engine: What measures.
        plan: What to measure.
        config: How.
        on_rows: Called with the number of rows that are done, in those of :meth:`CutPlan.forward_rows`.
    """

    def __init__(self, engine: Engine, plan: CutPlan, config: "KnockoutConfig", *, on_rows: Callable[[float], object]) -> None:
        self.engine, self.plan, self.config, self.on_rows = engine, plan, config, on_rows
        self.adapter = engine.adapter
        self.allowed = range(config.cut_layers[0], config.cut_layers[1] + 1)
        # Cumulative cuts of the test rows, by variant: [layer test d_model].
        self.cut: dict[str, Float[Tensor, "layer test d_model"]] = {}
        self.k_star: int | None = None
        self.splits = 0

    def only(self, tests: Sequence[int], engine: Engine, layers: tuple[int, ...]) -> "CutRun":
        """A run of some test rows, each alone, at some layers."""
        plan = replace(self.plan, batches=tuple((j,) for j in tests), other=())
        return CutRun(engine, plan, replace(self.config, layers=layers), on_rows=lambda _: None)

    def clean_states(self) -> Float[Tensor, "layer example d_model"]:
        """States at the last exact answer token of every row, at the layers of the curve.

        A cumulative knockout is measured in the same passes: the clean and the cut rows share all that stands before the first cut.
        """
        states = torch.zeros(len(self.config.layers), len(self.plan.rows.rows), self.adapter.d_model)
        for batch in self.plan.other:
            self._read(batch, [self.plan.rows.rows[i] for i in batch], (), states, {})
        variants = () if self.config.window else self.plan.variants
        n = len(self.plan.test)
        self.cut = {v: torch.zeros(len(self.config.layers), n, self.adapter.d_model) for v in variants}
        tests = torch.zeros(len(self.config.layers), n, self.adapter.d_model)
        for batch in self.plan.batches:
            mine = tuple(v for v in variants if self.plan.members(batch, v))
            self._read(batch, [self.plan.rows.rows[self.plan.test[j]] for j in batch], mine, tests, self.cut)
        states[:, list(self.plan.test)] = tests
        return states

    def _read(
        self, batch: Sequence[int], rows: Sequence[TokenRow], variants: Sequence[str],
        clean: Float[Tensor, "layer example d_model"], cut: Mapping[str, Float[Tensor, "layer test d_model"]],
    ) -> None:  # fmt: skip
        """States of a batch at every layer, clean and cut in all allowed layers, into the tables."""

        def some(part: Sequence[int]) -> None:
            own = [rows[batch.index(j)] for j in part]
            runs = self.engine.cut_states_everywhere(
                self._batch(own, [[self._sources(j, v) for j in part] for v in variants], part),
                site=self.config.site,
                layers=self.allowed,
                on_share=lambda share: self.on_rows(share * len(part) * (1 + len(variants))),
            )[:, list(self.config.layers)]
            clean[:, list(part)] = runs[0]
            for variant, states in zip(variants, runs[1:], strict=True):
                cut[variant][:, list(part)] = states

        self._in_memory(batch, some)

    def _in_memory(self, batch: Sequence[int], measure: Callable[[Sequence[int]], None]) -> None:
        """Measure a batch; its halves where memory runs out."""
        try:
            return measure(batch)
        except (RuntimeError, MemoryError) as why:
            if not out_of_memory(why) or len(batch) == 1:
                raise
        self.splits += 1
        if self.splits == 1:
            warn_of_split()
        for part in halves(batch):
            self._in_memory(part, measure)
        return None

    def _sources(self, test: int, variant: str) -> tuple[int, ...]:
        """What a variant cuts off in a test row; nothing where it needs no pass of its own."""
        return self.plan.cuts[test].sources.get(variant, ()) if test in self.plan.members([test], variant) else ()

    def _batch(
        self,
        rows: Sequence[TokenRow],
        sources: Sequence[Sequence[tuple[int, ...]]],
        tests: Sequence[int],
        *,
        at_end: bool = False,
    ) -> CutBatch:
        """Rows with the edges of each variant, read at t*, or at their last token."""
        width = max(len(row.ids) for row in rows)
        targets = [self.plan.cuts[j].targets for j in tests] if sources else []
        edges = tuple(cut_edges(cut, targets, width) for cut in sources)
        last = [len(row.ids) - 1 if at_end else row.positions["answer"][-1] for row in rows]
        tokens = pad_rows([row.ids for row in rows])
        return CutBatch(tokens, torch.arange(len(rows)), torch.tensor(last), edges, self.config.mode, self.config.heads)

    def _layers_at(self, layer: int) -> list[int]:
        """Layers that are cut for the point at ``layer``."""
        n = self.adapter.n_layers
        around = window_layers(layer, self.config.window, n) if self.config.window else range(layer + 1)
        return [i for i in around if i in self.allowed]

    def with_probes(self, sets: Mapping[str, LayerProbes], clean: Float[Tensor, "layer example d_model"]) -> list[Measured]:
        """P of every probe set under every variant.

        Args:
            sets: ``none`` (the probes that are read), and ``shuffled_labels``, ``fold_a``, ``fold_b`` for the placebos.
            clean: From :meth:`clean_states`.
        """
        layers, n = self.config.layers, len(self.plan.test)
        k = self.k_star = sets["none"].best_layer
        at = layers.index(k)
        # Where each point is read: at its own layer, or for windows always at k*.
        reads = [at] * len(layers) if self.config.window else list(range(len(layers)))
        ids = [self.plan.rows.question_ids[i] for i in self.plan.test]
        before = {name: probes.predict(clean[:, list(self.plan.test)], ids) for name, probes in sets.items()}
        after = {(v, name): np.full((len(layers), n), np.nan) for v in self.plan.variants for name in sets}
        whole = {(v, name): np.full(n, np.nan) for v in self.plan.variants for name in sets}
        for variant in self.plan.variants:
            for batch in self.plan.batches:
                members = self.plan.members(batch, variant)
                if not members:
                    continue
                some = [ids[j] for j in members]
                for part, points, full in self._points(members, variant, at):
                    some = [ids[j] for j in part]
                    for name, probes in sets.items():
                        used = [probes.probes[layers[i]] for i in reads]
                        for i, (probe, states) in enumerate(zip(used, points, strict=True)):
                            if states is not None:
                                after[variant, name][i, part] = probe.predict_proba(states.numpy(), some)[:, 1]
                        whole[variant, name][part] = probes.probes[k].predict_proba(full.numpy(), some)[:, 1]
        for name in sets:
            self._fill_matched(after, whole, name)
        start = {name: values[reads] for name, values in before.items()}
        flips = {
            (v, name): flipped(start[name], after[v, name])
            if self.config.split == "per_layer"
            else np.broadcast_to(flipped(before[name][at], whole[v, name]), (len(layers), n))
            for v in self.plan.variants
            for name in sets
        }
        measured = [Measured(v, start["none"], after[v, "none"], flips[v, "none"]) for v in self.plan.variants]
        if "shuffled_labels" in sets:
            name = "shuffled_labels"
            measured.append(Measured(name, start[name], after["none", name], flips["none", name]))
        if "fold_b" in sets:
            measured.append(Measured("cross_fold", start["fold_b"], after["none", "fold_b"], flips["none", "fold_a"]))
        return measured

    def _fill_matched(self, after: dict[tuple[str, str], Array], whole: dict[tuple[str, str], Array], name: str) -> None:
        """Rows whose ``matched`` cut is their ``none`` cut needed no second pass."""
        for j, cut in enumerate(self.plan.cuts):
            if MATCHED in cut.sources and cut.sources[MATCHED] == cut.sources["none"]:
                after[MATCHED, name][:, j] = after["none", name][:, j]
                whole[MATCHED, name][j] = whole["none", name][j]

    def _points(
        self, members: Sequence[int], variant: str, at: int
    ) -> "list[tuple[list[int], list[Float[Tensor, 'example d_model'] | None], Float[Tensor, 'example d_model']]]":
        """Rows, the states that each point of the curve is read from, and those of the whole cut at k*.

        Cumulative: known already, because a state at layer k depends on the cuts in layers <= k alone. Windows: measured here; None
        where k* lies below the window.
        """
        k = self.config.layers[at]
        if not self.config.window:
            states, first = self.cut[variant][:, list(members)], self.allowed.start
            # Below the first layer nothing is cut: those layers are missing, not zero.
            points = [s if layer >= first else None for layer, s in zip(self.config.layers, states, strict=True)]
            return [(list(members), points, states[at])]
        cuts = [self._layers_at(layer) for layer in self.config.layers]
        reachable = [bool(cut) and cut[0] <= k for cut in cuts]
        windows = [list(self.allowed), *(cut for cut, reaches in zip(cuts, reachable, strict=True) if reaches)]
        found: list[tuple[list[int], list[Tensor | None], Tensor]] = []

        def some(part: Sequence[int]) -> None:
            rows = [self.plan.rows.rows[self.plan.test[j]] for j in part]
            full, *read = (
                self.engine.cut_states(
                    self._batch(rows, [[self._sources(j, variant) for j in part]], part),
                    where=(self.config.site, k),
                    windows=windows,
                    on_share=lambda share: self.on_rows(share * len(part) * (1 + len(cuts))),
                )[0]
                .float()
                .cpu()
            )
            states = iter(read)
            found.append((list(part), [next(states) if reaches else None for reaches in reachable], full))

        self._in_memory(members, some)
        return found

    def with_truth_question(self) -> list[Measured]:
        """P(yes) under every variant, at every point and with the whole cut for the split."""
        layers, n = self.config.layers, len(self.plan.test)
        before = np.full((len(layers), n), np.nan)
        after = {v: np.full((len(layers), n), np.nan) for v in self.plan.variants}
        whole = {v: np.full(n, np.nan) for v in self.plan.variants}
        cuts = [self._layers_at(layer) for layer in layers]
        windows = [[], list(self.allowed), *(cut for cut in cuts if cut)]
        measured_at = [i for i, cut in enumerate(cuts) if cut]

        def some(part: Sequence[int]) -> None:
            rows = [self.plan.rows.rows[self.plan.test[j]] for j in part]
            variants = [v for v in self.plan.variants if self.plan.members(part, v)]
            if not variants:  # nothing is cut in these rows
                return
            states = self.engine.cut_states(
                self._batch(rows, [[self._sources(j, v) for j in part] for v in variants], part, at_end=True),
                where=None,
                windows=windows,
                on_share=lambda share: self.on_rows(share * len(part) * (1 + len(variants) * (1 + len(layers)))),
            )
            p = truth_reader(self.adapter, rows).metrics(self.adapter, states).p.double().numpy()
            before[:, list(part)] = p[0, 0]
            for variant, values in zip(variants, p, strict=True):
                place = [i for i, j in enumerate(part) if j in self.plan.members(part, variant)]
                members = [part[i] for i in place]
                whole[variant][members] = values[1, place]
                after[variant][np.ix_(measured_at, members)] = values[2:, place]

        for batch in self.plan.batches:
            self._in_memory(batch, some)
        named = ({(v, ""): after[v] for v in after}, {(v, ""): whole[v] for v in whole})
        self._fill_matched(*named, "")
        measured: list[Measured] = []
        for variant in self.plan.variants:
            per_layer = self.config.split == "per_layer"
            flips = flipped(before, after[variant] if per_layer else np.broadcast_to(whole[variant], before.shape))
            measured.append(Measured(variant, before, after[variant], flips))
        return measured


__all__ = ["RANDOM", "CutPlan", "CutRun", "RowCuts", "row_cuts"]
