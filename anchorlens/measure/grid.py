"""Grids of patches on the cone engine, for metrics that are functions of the logits.

A cell is not computed only if its value follows from equal numbers: the patch writes what is there
already, bit by bit, or it acts behind every position that the metric reads on the unpatched logits.
Some cells are measured first, with full forward passes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.constants import SITES
from anchorlens.display import warn
from anchorlens.engine.agreement import differs_by_rounding
from anchorlens.engine.choose_engine import describe_failure
from anchorlens.engine.cone import EVIDENCE, ConeEngine, find_cone_obstacle
from anchorlens.engine.cost import out_of_memory
from anchorlens.engine.evidence import evidence_of_streams, evidence_rounding, is_same_evidence
from anchorlens.engine.function_reader import MISSED, Call, FunctionReader
from anchorlens.engine.logits import Logits, Reads, union_of_reads
from anchorlens.engine.observed_logits import observe
from anchorlens.engine.patches import SwapBatch, TokenBatch
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.rounding_noise import TIMES_NOISE
from anchorlens.errors import AnchorlensError, InputError
from anchorlens.measure.budget import OomSplitter, UnitGroup
from anchorlens.measure.checks import (
    DIFFERS,
    ROUNDING,
    CheckedCell,
    CheckedRun,
    ComparedCell,
    choose_cells,
    count_together,
)
from anchorlens.measure.grid_cells import (
    Cache,
    GridCells,
    Index,
    NotMeasured,
    Rectangle,
    clean_activations,
    plan_passes,
    run_with_capture,
)
from anchorlens.measure.patch_plan import join_passes
from anchorlens.models.adapter import LensModel
from anchorlens.models.devices import free_memory
from anchorlens.models.load import adapt

VectorMetric: TypeAlias = Callable[[Tensor], Float[Tensor, "value"]]
"""Function from logits [batch pos d_vocab] to one or several values on the CPU."""

# Tolerance of checked cells and of the unpatched metric, relative to the range of the metric and to
# its value.
_TOLERANCE = (1e-3, 1e-5)
# Share of the range up to which the noise of the values explains a difference. Beyond it the logits
# decide: one flip of an accuracy is as large as its range.
_MOST_NOISE = 0.25


@dataclass(frozen=True, kw_only=True)
class GridRequest:
    """Cells of a grid, and what is measured in them.

    Attributes:
        model: The model.
        tokens: Corrupted tokens.
        cache: Clean activations.
        metric: Values of the metric, on any device.
        setter: Function (corrupted activation, index, clean activation) -> patched activation.
        site: Patched site.
        columns: Meaning of an index after the layer: ``pos``, ``head`` or ``key``.
        cells: Cells, with the layer first.
        has_same_state: Function called after the first call of the metric; returns whether that
            call left the state of the metric as it was.
        positions: Positions that the metric is declared to read, in addition to those that it is
            seen to read.
    """

    model: LensModel
    tokens: Int[Tensor, "batch pos"]
    cache: Cache
    metric: VectorMetric
    setter: Callable[[Tensor, Sequence[int], Tensor], Tensor]
    site: str
    columns: tuple[str, ...]
    cells: Sequence[Index]
    has_same_state: Callable[[], bool]
    positions: Sequence[int] = ()


def measure_grid(request: GridRequest) -> list[Tensor]:
    """Return the values of the metric in all cells, measured on the cone engine, and in some with
    full forward passes.

    Raises:
        NotMeasured: If the cone engine cannot measure them.
        InputError: If the model has no such site, such as ``resid_mid`` where attention and MLP are
            parallel, or the cache lacks an activation or its batch axis.
    """
    request, grid, logits = _read_activations(request)
    cells = list(dict.fromkeys(request.cells))
    n_rows, n_pos = request.tokens.shape
    differing = [cell for cell in cells if grid.is_changed(cell)]
    observed = Logits.of(logits)
    checked, before = _measure_first(request, grid, cells, differing, observed)
    # A cell that acts behind all positions that are read on the unpatched logits leaves all of
    # these as they are.
    call = Call(first=0, n_rows=n_rows, length=n_pos, n_values=len(before))
    last = max((call.place(row)[1] for row in observed.reads), default=-1)
    changed = [cell for cell in differing if grid.first(cell[1:]) <= last]
    declared: Reads = {}
    for row in range(n_rows):
        for position in request.positions:
            declared[_flat_position(row, position, n_pos)] = set()
    reads = union_of_reads([observed.reads, *(cell.reads for cell in checked), declared])
    reader = FunctionReader.of_reads(
        "value",
        lambda _, patched: request.metric(patched),
        [call],
        [reads],
        logits.dtype,
        unpatched=lambda place: logits[place],
    )
    noise = None
    if grid.adapter.shape.is_half:
        noise = _make_checked_run(request, grid).noise(
            grid.adapter, _on_host(request.metric), before, checked
        )
    passes = _GridPasses(grid, before, replace(reader, is_first_measured=True), noise)
    try:
        passes.run(changed)
        lost = passes.missed
        if lost:
            _warn_of_new_reads(grid.site, len(lost), len(cells), reader)
            passes.run(lost, everywhere=True)
    # Whatever fails here, one forward pass per cell can still measure the grid.
    except Exception as why:
        raise NotMeasured(f"a pass failed ({describe_failure(why)})") from why
    values: dict[Index, Tensor] = dict.fromkeys(cells, before)
    values |= passes.values
    passes.check(values, checked)
    values |= {cell.index: cell.value for cell in checked}
    if noise is not None:
        _warn_of_noise(grid, noise, before, values, passes.n_steps)
    return [values[index] for index in request.cells]


def _flat_position(row: int, position: int, n_pos: int) -> int:
    """Return the row of [(batch pos) d_vocab] that holds a position, as reads are counted."""
    return row * n_pos + position


def _read_activations(
    request: GridRequest,
) -> tuple[GridRequest, GridCells, Float[Tensor, "batch pos d_vocab"]]:
    """Return the request with its tokens on the device of the model, its cells with the
    activations of both runs, and the logits of the corrupted run.
    """
    adapter = adapt(request.model)
    site = request.site
    if site in SITES and site not in adapter.sites:
        raise InputError(
            f"activation_name={site!r}: the model has none. Give one of"
            f" {', '.join(adapter.sites)}.",
            argument="activation_name",
        )
    reason = find_cone_obstacle(adapter, [site])
    if reason is not None:
        raise NotMeasured(reason)
    tokens = request.tokens.to(adapter.device)
    corrupted, logits = run_with_capture(adapter, request.model, tokens, site)
    layers = {cell[0] for cell in request.cells}
    is_token = torch.ones_like(tokens, dtype=torch.bool, device="cpu")
    grid = GridCells(
        adapter=adapter,
        site=site,
        columns=request.columns,
        tokens=TokenBatch(tokens.cpu(), is_token),
        clean=clean_activations(adapter, request.cache, site, corrupted, layers),
        corrupted=corrupted,
    )
    return replace(request, tokens=tokens), grid, logits


def _measure_first(
    request: GridRequest,
    grid: GridCells,
    cells: Sequence[Index],
    differing: Sequence[Index],
    observed: Logits,
) -> tuple[list[CheckedCell], Float[Tensor, "value"]]:
    """Measure some cells with full forward passes, and the metric of the unpatched logits."""
    adapter = grid.adapter
    shape = adapter.shape
    n_rows, n_pos = request.tokens.shape
    pass_flops = n_pos * shape.n_layers * shape.block_flops + 2.0 * shape.d_model * shape.d_vocab
    grid_flops = 0.0
    for layer, *place in differing:
        n_tokens = n_rows * (n_pos - grid.first(tuple(place)))
        grid_flops += n_tokens * (shape.n_layers - layer) * shape.block_flops
    chosen = choose_cells(
        cells,
        differing,
        grid_flops=grid_flops,
        pass_flops=n_rows * pass_flops,
        n_tokens=request.tokens.numel(),
    )

    known: dict[Index, Tensor] = {}

    def after_first(value: Tensor) -> bool:
        known[chosen[0]] = value
        return request.has_same_state()

    try:
        metric = _on_host(request.metric)
        checked = _make_checked_run(request, grid).measure(chosen, metric, after_first)
        if not checked:
            reason = "the metric keeps state between its calls, so that their order matters"
            raise NotMeasured(reason, known)
        return checked, observe(metric, observed)
    # A metric can raise anything; one forward pass per cell calls it as TransformerLens does.
    except Exception as why:
        if isinstance(why, (AnchorlensError, NotMeasured)) or out_of_memory(why):
            raise
        lines = str(why).strip().splitlines() or [""]
        raise NotMeasured(
            f"the metric cannot be observed ({type(why).__name__}: {lines[0][:160]})"
        ) from why


def _on_host(metric: VectorMetric) -> VectorMetric:
    """Return a metric whose values are on the CPU."""
    return lambda logits: metric(logits).to("cpu")


def _make_checked_run(request: GridRequest, grid: GridCells) -> CheckedRun:
    """Return full forward passes with the patches of a grid."""
    adapter = grid.adapter
    budget = free_memory(adapter.devices) // 2
    return CheckedRun(
        model=request.model,
        tokens=request.tokens,
        hook_name=lambda layer: adapter.hook_name(grid.site, layer),
        clean=lambda layer: request.cache[adapter.hook_name(grid.site, layer)],
        setter=request.setter,
        together=count_together(adapter.shape, budget, *request.tokens.shape),
    )


class _GridPasses:
    """Passes of the cone engine over cells of a grid.

    Args:
        grid: The cells.
        before: Values of the metric without a patch.
        reader: Reader of the metric.
        noise: Noise floor of the metric in half precision; None in float32.

    Attributes:
        values: Cell -> values of the metric.
        missed: Cells in which the metric read a position that the pass did not keep.
        n_steps: Number of checked cells in which the metric moved by a step that rounding explains.
    """

    def __init__(
        self,
        grid: GridCells,
        before: Float[Tensor, "value"],
        reader: FunctionReader,
        noise: "Float[Tensor, 'value'] | None",
    ) -> None:
        self.values: dict[Index, Tensor] = {}
        self.missed: list[Index] = []
        self.n_steps = 0
        self._noise = noise
        self._grid = grid
        self._engine = ConeEngine(grid.adapter)
        self._before = before
        self._reader = reader
        self._values_unpatched: list[Tensor] = []

    def run(self, cells: Sequence[Index], *, everywhere: bool = False) -> None:
        """Measure cells.

        ``everywhere``: with all positions, so that none is missed.
        """
        reader = self._reader.everywhere() if everywhere else self._reader
        if not cells or not len(reader.position):
            return
        grid = self._grid
        wanted = set(cells)
        budget = free_memory(grid.adapter.devices) // 2
        passes = plan_passes(self._engine, grid, reader, cells, budget)
        splitter = OomSplitter(grid.adapter.device)
        for together in join_passes(passes, budget):
            rectangles = UnitGroup(tuple(one.content for one in together))
            for attempt in splitter.attempts(rectangles):
                with attempt as some:
                    batches = self._batches_of(some.parts, reader)
                    results = self._engine.run_swap_batches(batches, site=grid.site, window=1)
                    for rectangle, (batch, _), result in zip(
                        some.parts, batches, results, strict=True
                    ):
                        self._take(rectangle, batch, result, wanted)

    def _batches_of(
        self, rectangles: Sequence[Rectangle], reader: FunctionReader
    ) -> list[tuple[SwapBatch, Sequence[int]]]:
        """Return the batches, with their layers, of passes that run through the layers together."""
        grid = self._grid
        batches: list[tuple[SwapBatch, Sequence[int]]] = []
        for rectangle in rectangles:
            swaps = tuple(map(grid.swap, rectangle.places))
            batches.append((SwapBatch(grid.tokens, reader, swaps), rectangle.layers))
        return batches

    def _take(
        self,
        rectangle: Rectangle,
        batch: SwapBatch,
        result: tuple[Metrics, list[Metrics]],
        wanted: set[Index],
    ) -> None:
        """Take the values of a pass, if what it wrote is right."""
        alone, of_places = result
        if not alone.values[MISSED].any():
            self._values_unpatched.append(alone.values["value"])
        self._check_evidence(rectangle, batch, of_places, wanted)
        for place, of_layers in zip(rectangle.places, of_places, strict=True):
            found = of_layers.values
            for number, layer in enumerate(rectangle.layers):
                cell = (layer, *place)
                if cell not in wanted:
                    continue
                if found[MISSED][number].any():
                    self.missed.append(cell)
                else:
                    self.values[cell] = found["value"][number]

    def _check_evidence(
        self,
        rectangle: Rectangle,
        batch: SwapBatch,
        of_places: Sequence[Metrics],
        wanted: set[Index],
    ) -> None:
        """Raise NotMeasured unless each patch was written as the setter would write it."""
        adapter = self._grid.adapter
        rounding = evidence_rounding(adapter.device)
        expected = evidence_of_streams(
            adapter, batch, batch.swaps, self._grid.site, rectangle.layers
        )
        for place, of_layers, evidence in zip(rectangle.places, of_places, expected, strict=True):
            landed = of_layers.values[EVIDENCE].tolist()
            for layer, (found,) in zip(rectangle.layers, landed, strict=True):
                cell = (layer, *place)
                total, size = evidence.of_window([layer])
                if cell in wanted and not is_same_evidence(found, total, rounding * size):
                    raise NotMeasured(
                        f"the patch of {cell} was not written as the setter would write it"
                    )

    def check(self, values: Mapping[Index, Tensor], checked: Sequence[CheckedCell]) -> None:
        """Compare the unpatched metric of every pass with the model's, and cells with full forward
        passes.

        Raises:
            NotMeasured: If a difference is larger than rounding explains.
        """
        table = torch.stack([self._before, *values.values(), *(cell.value for cell in checked)])
        finite = table.nan_to_num(0.0, 0.0, 0.0)
        spread = finite.amax(0) - finite.amin(0)

        noise = torch.zeros_like(spread) if self._noise is None else self._noise
        least = torch.maximum(
            _TOLERANCE[0] * spread, (TIMES_NOISE * noise).minimum(_MOST_NOISE * spread)
        )

        def is_close(found: Tensor, exact: Tensor) -> bool:
            allowed = least + _TOLERANCE[1] * exact.abs()
            is_within = (found - exact).abs() <= allowed
            is_equal = (found == exact) | (found.isnan() & exact.isnan())
            return bool((is_within | is_equal).all())

        for one in self._cells_to_compare(values, checked, is_close):
            outcome = one.classify(is_close)
            if outcome == ROUNDING and one.cell is not None:
                self.n_steps += 1
            if outcome != DIFFERS:
                continue
            exact, found = _format(one.exact), _format(one.found)
            if one.cell is None:
                raise NotMeasured(f"the unpatched metric is {exact}, on the cone engine {found}")
            raise NotMeasured(
                f"a full forward pass of {one.cell} gave {exact}, the cone engine {found}"
            )

    def _cells_to_compare(
        self,
        values: Mapping[Index, Tensor],
        checked: Sequence[CheckedCell],
        is_close: Callable[[Tensor, Tensor], bool],
    ) -> Iterator[ComparedCell[Index | None]]:
        """Yield the checked cells, then the unpatched metric of each pass, as cell None."""

        def rounding(
            cell: Index, before: Tensor | None = None, after: Tensor | None = None
        ) -> Callable[[], bool]:
            layer, *place = cell
            batch = SwapBatch(self._grid.tokens, self._reader, (self._grid.swap(tuple(place)),))
            return lambda: differs_by_rounding(
                self._grid.adapter,
                batch,
                self._reader,
                site=self._grid.site,
                layer=layer,
                before=before,
                after=after,
                is_close=is_close,
            )

        for cell in checked:
            found = values[cell.index]
            yield ComparedCell(
                cell=cell.index,
                found=found,
                exact=cell.value,
                is_rounding=rounding(cell.index, after=found),
            )
        for found in self._values_unpatched:
            yield ComparedCell(
                cell=None,
                found=found,
                exact=self._before,
                is_rounding=rounding(checked[0].index, before=found),
            )


def _warn_of_new_reads(site: str, n_missed: int, n_cells: int, reader: FunctionReader) -> None:
    seen = sorted({position for _, position in reader.places})
    warn(
        f"{site}: in {n_missed} of {n_cells} cells the metric read other positions than on the"
        f" corrupted logits, where it read {seen}. These cells were computed again with all"
        " positions. positions= declares what is computed at once."
    )


def _warn_of_noise(
    grid: GridCells,
    noise: Float[Tensor, "value"],
    before: Float[Tensor, "value"],
    values: Mapping[Index, Float[Tensor, "value"]],
    n_steps: int,
) -> None:
    """Warn if no cell of a grid in half precision stands out of the noise floor, or if a checked
    one moved by a step of the metric.
    """
    dtype = str(grid.adapter.shape.dtype).removeprefix("torch.")
    effects = (torch.stack(list(values.values())) - before).abs().nan_to_num(torch.inf)
    largest = effects.amax(0)
    if bool((largest <= noise).all() and largest.any()):
        warn(
            f"{grid.site}: all effects are within the noise floor of {dtype}: the largest is"
            f" {_format(largest)}, and values move by {_format(noise)} when the model rounds in"
            " another way. Use dtype='float32'."
        )
    elif n_steps:
        warn(
            f"{grid.site}: {n_steps} checked cells differ by a step of the metric within the noise"
            f" floor of {dtype}. Other cells may do so too. Use dtype='float32', or a metric that"
            " does not move in steps."
        )


def _format(values: Float[Tensor, "value"]) -> str:
    return " ".join(f"{value:.6g}" for value in values.tolist())
