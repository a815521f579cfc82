"""What is cut in which row, and the passes that measure it: the working part of a knockout sweep.

Test rows keep their batches in the clean pass and in every knockout, so that a cut that does nothing gives a ΔP of exactly zero.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.analysis.pathways import MATCHED, Measured, flipped
from anchorlens.analysis.probes import LayerProbes
from anchorlens.analysis.truth import TruthRows, truth_reader
from anchorlens.engine.interventions import Slots, window_layers
from anchorlens.engine.knockout import LATER, AttentionKnockout, cut_edges, knockout_hooks, parse_edges, read_states
from anchorlens.engine.reference import measure
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import TokenBatch, TokenRow, pad_rows

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
    def make(cls, rows: TruthRows, config: "KnockoutConfig", *, size: int) -> "CutPlan":
        """Rows of similar length together. ``p_true`` trains nothing: all rows are test rows."""
        test = range(len(rows.rows)) if config.readout == "p_true" else rows.of("test")
        rest = [] if config.readout == "p_true" else rows.of("train", "validation")

        def batched(indices: Sequence[int], length: Callable[[int], int]) -> tuple[tuple[int, ...], ...]:
            order = sorted(indices, key=length)
            return tuple(tuple(order[i : i + size]) for i in range(0, len(order), size))

        cuts = [row_cuts(rows.rows[i], config.edges, config.seed, placebos=config.placebos) for i in test]
        by_row = batched(rest, lambda i: len(rows.rows[i].ids))
        by_test = batched(range(len(test)), lambda j: len(rows.rows[test[j]].ids))
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
        """Rows that go through the model, all passes together."""
        passes = 1 if config.readout == "probe" and not config.window else 1 + len(config.layers)
        cut = sum(len(b) for v in self.variants for b in self.batches if self.members(b, v))
        return sum(map(len, self.other)) + len(self.test) + passes * cut


class CutRun:
    """Measures a plan.

    Args:
        adapter: The model.
        plan: What to measure.
        config: How.
        on_forward: Called after each forward pass with the number of rows.
    """

    def __init__(
        self, adapter: Adapter, plan: CutPlan, config: "KnockoutConfig", *, on_forward: Callable[[int], None]
    ) -> None:
        self.adapter, self.plan, self.config, self.on_forward = adapter, plan, config, on_forward
        self.allowed = range(config.cut_layers[0], config.cut_layers[1] + 1)

    def clean_states(self) -> Float[Tensor, "layer example d_model"]:
        """States at the last exact answer token of every row, at the layers of the curve."""
        states = torch.zeros(len(self.config.layers), len(self.plan.rows.rows), self.adapter.d_model)
        tests = [[self.plan.test[j] for j in batch] for batch in self.plan.batches]
        for batch in (*self.plan.other, *tests):
            states[:, list(batch)] = self._states([self.plan.rows.rows[i] for i in batch], None)
        return states

    def _states(self, rows: Sequence[TokenRow], cut: AttentionKnockout | None) -> Float[Tensor, "layer example d_model"]:
        states = last_answer_states(self.adapter, rows, self.config.site, cut, on_forward=self.on_forward)
        return states[list(self.config.layers)]

    @staticmethod
    def _tokens(rows: Sequence[TokenRow]) -> TokenBatch:
        return pad_rows([row.ids for row in rows])

    def _cut(self, batch: Sequence[int], variant: str, layers: Sequence[int]) -> AttentionKnockout:
        """The variant's edges in the rows of a batch; rows without the variant stay whole."""
        cuts = [self.plan.cuts[j] for j in batch]
        width = max(len(self.plan.rows.rows[self.plan.test[j]].ids) for j in batch)
        edges = cut_edges([c.sources.get(variant, ()) for c in cuts], [c.targets for c in cuts], width)
        return AttentionKnockout(edges, tuple(layers), self.config.mode, self.config.heads)

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
        k = sets["none"].best_layer
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
                place = [batch.index(j) for j in members]
                points, full = self._variant_states(batch, variant, at)
                some = [ids[j] for j in members]
                for name, probes in sets.items():
                    used = [probes.probes[layers[i]] for i in reads]
                    for i, (probe, states) in enumerate(zip(used, points, strict=True)):
                        if states is not None:
                            after[variant, name][i, members] = probe.predict_proba(states[place].numpy(), some)[:, 1]
                    whole[variant, name][members] = probes.probes[k].predict_proba(full[place].numpy(), some)[:, 1]
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

    def _variant_states(
        self, batch: Sequence[int], variant: str, at: int
    ) -> tuple[list[Float[Tensor, "example d_model"] | None], Float[Tensor, "example d_model"]]:
        """States that each point of the curve is read from, and those of the whole cut at k*.

        Cumulative: one pass, because a state at layer k depends on the cuts in layers <= k alone. Windows: a pass for each; None
        where k* lies below the window.
        """
        rows = [self.plan.rows.rows[self.plan.test[j]] for j in batch]
        full = self._states(rows, self._cut(batch, variant, self.allowed))
        if not self.config.window:
            first = self.allowed.start  # below it nothing is cut: those layers are missing, not zero
            return [state if layer >= first else None for layer, state in zip(self.config.layers, full, strict=True)], full[at]
        k = self.config.layers[at]
        points: list[Float[Tensor, "example d_model"] | None] = []
        for layer in self.config.layers:
            cut = self._layers_at(layer)
            reachable = bool(cut) and cut[0] <= k
            points.append(self._states(rows, self._cut(batch, variant, cut))[at] if reachable else None)
            if not reachable:
                self.on_forward(len(batch))
        return points, full[at]

    def with_truth_question(self) -> list[Measured]:
        """P(yes) under every variant: a pass for each point, and one with the whole cut for the split."""
        layers, n = self.config.layers, len(self.plan.test)
        before = np.full((len(layers), n), np.nan)
        measured: list[Measured] = []
        after = {v: np.full((len(layers), n), np.nan) for v in self.plan.variants}
        whole = {v: np.full(n, np.nan) for v in self.plan.variants}

        def read(batch: Sequence[int], cut: AttentionKnockout | None) -> Array:
            rows = [self.plan.rows.rows[self.plan.test[j]] for j in batch]
            hooks = [] if cut is None else knockout_hooks(self.adapter, cut)
            metrics = measure(self.adapter, self._tokens(rows), hooks, truth_reader(self.adapter, rows))
            self.on_forward(len(batch))
            return metrics.p.double().numpy()

        for batch in self.plan.batches:
            before[:, list(batch)] = read(batch, None)
            for variant in self.plan.variants:
                members = self.plan.members(batch, variant)
                if not members:
                    continue
                place = [batch.index(j) for j in members]
                whole[variant][members] = read(batch, self._cut(batch, variant, self.allowed))[place]
                for i, layer in enumerate(layers):
                    cut = self._layers_at(layer)
                    if cut:
                        after[variant][i, members] = read(batch, self._cut(batch, variant, cut))[place]
                    else:
                        self.on_forward(len(batch))
        named = ({(v, ""): after[v] for v in after}, {(v, ""): whole[v] for v in whole})
        self._fill_matched(*named, "")
        for variant in self.plan.variants:
            per_layer = self.config.split == "per_layer"
            flips = flipped(before, after[variant] if per_layer else np.broadcast_to(whole[variant], before.shape))
            measured.append(Measured(variant, before, after[variant], flips))
        return measured


__all__ = ["RANDOM", "CutPlan", "CutRun", "RowCuts", "row_cuts"]
