"""Run the batches of a sweep of activation patches: cells in, checked values out.

`PatchRunner.run` builds the tensors of the batches, runs their passes together, compares what was
written with the sources' own runs, and measures pairs again in which a metric function read a
position that was not kept. `PatchRunner.measure_alone` measures single cells with the reference
engine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from anchorlens.display import warn
from anchorlens.engine.agreement import differs_by_rounding
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cost import rows_per_batch
from anchorlens.engine.engine import Engine
from anchorlens.engine.function_reader import MISSED, FunctionReader
from anchorlens.engine.patches import OnProgress, SwapBatch, no_progress
from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.measure.checks import WrittenCells, check_writes
from anchorlens.measure.patch_plan import Batch, SwapSweepPlan, plan_swaps
from anchorlens.measure.patched_pairs import MakeStreams, Pair, build_batch, draw_directions
from anchorlens.models.adapter import SiteLike

Values: TypeAlias = tuple[Metrics, list[Metrics]]
"""Metrics without a patch, [pair], and for each placement with the patch, [layer pair]."""


@dataclass(frozen=True, kw_only=True)
class PatchRunner:
    """Runs patches of one sweep.

    Attributes:
        engine: Engine of the sweep.
        site: Patched site.
        window: Number of layers patched together.
        make_reader: Function that returns the reader of the metric for some pairs.
        make_streams: Function that makes the patched activations; if None, those of the sources.
        metric: Name of the metric.
        compares_writes: Whether what the cone engine writes is compared with full forward passes
            of the sources.
        batch_size: Maximum number of pairs of a pass; None for a choice by memory and throughput.
        max_memory: Memory limit in bytes, or None.
        stored_bytes: Bytes of what the inputs keep of other runs.
    """

    engine: Engine
    site: SiteLike
    window: int
    make_reader: Callable[[Sequence[Pair[Any]]], Reader]
    make_streams: MakeStreams | None
    metric: str
    compares_writes: bool
    batch_size: int | None
    max_memory: int | None
    stored_bytes: int = 0

    def plan(
        self,
        pairs: Sequence[Pair[Any]],
        layers: tuple[int, ...],
        *,
        checks: int | None = 0,
        reader: Reader | None = None,
    ) -> SwapSweepPlan:
        """Plan the batches of pairs at some layers.

        ``checks``: number of spot checks.
        """
        return plan_swaps(
            self.engine,
            pairs,
            self.make_reader(pairs) if reader is None else reader,
            layers,
            site=self.site,
            window=self.window,
            batch_size=self.batch_size,
            max_memory=self.max_memory,
            stored_bytes=self.stored_bytes,
            checks=checks,
            compares_writes=self._is_compared,
        )

    def run(
        self,
        batches: Sequence[Batch],
        on_progress: OnProgress = no_progress,
        *,
        make_reader: Callable[[Sequence[Pair[Any]]], Reader] | None = None,
    ) -> list[Values]:
        """Measure the cells of batches in passes that run together.

        ``make_reader``: function in place of the runner's.

        Raises:
            CheckError: If a patch was not written as it should be.
        """
        # The reference engine patches all positions, which checks that equal ones are equal.
        is_cone = self.engine.name == ConeEngine.name
        patched = [batch.changed_pairs if is_cone else batch.pairs for batch in batches]
        made = self._build_batches(patched, make_reader or self.make_reader)
        built = [(one, batch.layers) for one, batch in zip(made, batches, strict=True)]
        values = self.engine.run_swap_batches(
            built, site=self.site, window=self.window, on_progress=on_progress
        )
        if self._is_compared:
            self._compare_writes(built, values)
        for batch, (before, changed) in zip(batches, values, strict=True):
            if MISSED in before.values:
                self._measure_lost_pairs(batch, before, changed)
        return values

    def measure_alone(
        self, pairs: Sequence[Pair[Any]], layers: Sequence[int]
    ) -> Iterator[tuple[list[int], Metrics, Metrics]]:
        """Measure one cell per pair, at its own layer, with full forward passes.

        Yields:
            Numbers of some pairs, and their metrics without and with the patch.
        """
        reference = ReferenceEngine(self.engine.adapter)
        heads = [pair.placements[0].head for pair in pairs]
        # A patch of a batch has the same heads in all rows.
        for head in dict.fromkeys(heads):
            numbers = [i for i, one in enumerate(heads) if one == head]
            batch = self._build([pairs[i] for i in numbers], self.make_reader)
            before, after = reference.run_cells(
                batch, site=self.site, layers=[layers[i] for i in numbers], window=self.window
            )
            yield numbers, before, after

    def differs_by_rounding(
        self, pair: Pair[Any], layer: int, values: Mapping[str, float], allowed: float
    ) -> bool:
        """Return whether the value of a cell differs from a full forward pass by rounding.

        Args:
            pair: Pair with the placement of the cell alone.
            layer: Layer of the cell.
            values: ``value_before`` and ``value_after`` of the cell.
            allowed: Difference of values that counts as none.
        """
        batch = self._build([pair], self.make_reader)
        reader = batch.reader
        assert isinstance(reader, FunctionReader)  # named metrics do not move in steps

        def is_close(one: Tensor, two: Tensor) -> bool:
            return bool((one - two).abs().max() <= allowed)

        return differs_by_rounding(
            self.engine.adapter,
            batch,
            reader,
            site=self.site,
            layer=layer,
            window=self.window,
            before=torch.tensor([values["value_before"]], device="cpu"),
            after=torch.tensor([values["value_after"]], device="cpu"),
            is_close=is_close,
        )

    @property
    def _is_compared(self) -> bool:
        return self.compares_writes and self.engine.name == ConeEngine.name

    def _build(
        self, pairs: Sequence[Pair[Any]], make_reader: Callable[[Sequence[Pair[Any]]], Reader]
    ) -> SwapBatch:
        (built,) = self._build_batches([pairs], make_reader)
        return built

    def _build_batches(
        self,
        batches: Sequence[Sequence[Pair[Any]]],
        make_reader: Callable[[Sequence[Pair[Any]]], Reader],
    ) -> list[SwapBatch]:
        """Build the tensors of batches; the prompts of their directions run together."""
        most = max(map(len, batches))
        directions = draw_directions(
            self.engine.adapter, self.site, batches, partial(self._rows_of_directions, most)
        )
        built: list[SwapBatch] = []
        for pairs, own in zip(batches, directions, strict=True):
            reader = make_reader(pairs)
            built.append(build_batch(pairs, reader, self.make_streams, own))
        return built

    def _rows_of_directions(self, most: int, width: int) -> int:
        """Return the number of prompts of directions that run at once: as many as the rows of a
        batch, of a streamed model as many as half of the memory holds.
        """
        shape = self.engine.adapter.shape
        devices = self.engine.adapter.devices
        limit = None if self.max_memory is None else self.max_memory // 2
        fitting = rows_per_batch(shape, devices, width, None, limit)
        return fitting if shape.streamed is not None else min(most, fitting)

    def _rows_of_pass(self, width: int) -> int:
        """Return the number of rows of a plain forward pass that fit into memory."""
        shape = self.engine.adapter.shape
        devices = self.engine.adapter.devices
        return rows_per_batch(shape, devices, width, None, self.max_memory)

    def _compare_writes(
        self, built: Sequence[tuple[SwapBatch, Sequence[int]]], values: Sequence[Values]
    ) -> None:
        written: list[WrittenCells] = []
        width = 0
        for (batch, layers), (_, changed) in zip(built, values, strict=True):
            assert batch.donors is not None  # such sweeps have sources
            width = max(width, batch.tokens.ids.shape[1], batch.donors.ids.shape[1])
            written.append(WrittenCells(batch=batch, layers=layers, changed=changed))
        check_writes(
            self.engine.adapter,
            written,
            site=self.site,
            window=self.window,
            n_rows=self._rows_of_pass(width),
        )

    def _measure_lost_pairs(
        self, batch: Batch, before: Metrics, changed: Sequence[Metrics]
    ) -> None:
        """Measure pairs again with all positions, if a metric function read one that was not kept
        in some cell of theirs, and put the values in place.
        """
        of_cells = torch.stack([after.values[MISSED].bool().any(0) for after in changed])
        lost = before.values[MISSED].bool() | of_cells.any(0)
        numbers = lost.nonzero()[:, 0].tolist()
        if not numbers:
            return
        count = int(sum(after.values[MISSED].sum() for after in changed))
        warn(
            f"{self.metric}: in {count} cells the metric read other positions than on the unpatched"
            " logits. The cells of these pairs were measured again with all positions."
            " metric_positions= declares what is computed at once."
        )
        pairs = [batch.pairs[i] for i in numbers]
        plan = self.plan(pairs, batch.layers, reader=self._read_everywhere(pairs))
        column = {pair.key: i for i, pair in enumerate(batch.pairs)}
        row = {layer: i for i, layer in enumerate(batch.layers)}
        names = [place.key for place in batch.pairs[0].placements]
        for group in plan.groups:
            again = self.run(group.parts, make_reader=self._read_everywhere)
            for part, (own_before, own_changed) in zip(group.parts, again, strict=True):
                columns = torch.tensor([column[pair.key] for pair in part.pairs])
                rows = torch.tensor([row[layer] for layer in part.layers])
                before.values[self.metric][columns] = own_before.values[self.metric]
                for place, own in zip(part.pairs[0].placements, own_changed, strict=True):
                    after = changed[names.index(place.key)]
                    after.values[self.metric][rows[:, None], columns] = own.values[self.metric]

    def _read_everywhere(self, pairs: Sequence[Pair[Any]]) -> FunctionReader:
        planned = self.make_reader(pairs)
        assert isinstance(planned, FunctionReader)  # no other reader misses a value
        return planned.everywhere()
