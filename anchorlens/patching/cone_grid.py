"""Grids of patches on the cone engine, for metrics that are functions of the logits.

A cell is not computed only if its value follows from equal numbers: the patch writes what is there already, bit by bit, or it acts
behind every position that the metric reads on the unpatched logits. Some cells are measured first, with full forward passes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.agreement import differs_by_rounding
from anchorlens.engine.choose_engine import describe_failure, find_cone_obstacle
from anchorlens.engine.cone import LANDED, ConeEngine
from anchorlens.engine.cost import SLACK, PassSize, out_of_memory
from anchorlens.engine.expected_evidence import evidence_of_streams
from anchorlens.engine.function_reader import MISSED, Call, FunctionReader
from anchorlens.engine.landing import evidence_rounding, is_same_evidence
from anchorlens.engine.observed_logits import Logits, observe, union_of_reads
from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.reference import by_head
from anchorlens.errors import AnchorlensError, InputError
from anchorlens.models.adapt import adapt
from anchorlens.models.adapter import HEAD_SITES, SITES, Adapter
from anchorlens.models.backend import LensModel
from anchorlens.models.memory import free_memory
from anchorlens.patching.checked_cells import CheckedCell, choose_cells, measure_cells
from anchorlens.patching.setters import (
    Cache,
    PatchSetter,
    layer_head_dest_src_pos_pattern_patch_setter,
    layer_head_pattern_patch_setter,
    layer_head_pos_pattern_patch_setter,
    layer_head_vector_patch_setter,
    layer_pos_head_vector_patch_setter,
    layer_pos_patch_setter,
)
from anchorlens.prompts.batches import TokenBatch
from anchorlens.warn import warn

Index: TypeAlias = tuple[int, ...]
VectorMetric: TypeAlias = Callable[[Tensor], Float[Tensor, "value"]]
"""Function from logits [batch pos d_vocab] to one or several values on the CPU."""

# Tokens in the top layer of a pass on a CPU and of passes that run together.
_TOKENS, _TOGETHER = 8192, 65_536
# Tolerance of checked cells and of the unpatched metric, relative to the range of the metric and to its value.
_TOLERANCE = (1e-3, 1e-5)
# Setter -> columns of its index after the layer, and whether the site is a pattern.
_COLUMNS: dict[PatchSetter, tuple[tuple[str, ...], bool]] = {
    layer_pos_patch_setter: (("pos",), False),
    layer_pos_head_vector_patch_setter: (("pos", "head"), False),
    layer_head_vector_patch_setter: (("head",), False),
    layer_head_pattern_patch_setter: (("head",), True),
    layer_head_pos_pattern_patch_setter: (("head", "pos"), True),
    layer_head_dest_src_pos_pattern_patch_setter: (("head", "pos", "key"), True),
}


def _find_setter(setter: PatchSetter) -> PatchSetter | None:
    """Return the setter of this package that a setter is, also if it is TransformerLens's; None for others."""
    if getattr(setter, "__module__", "") == "transformer_lens.patching":
        name = getattr(setter, "__name__", "")
        return next((one for one in _COLUMNS if getattr(one, "__name__", "") == name), None)
    return setter if setter in _COLUMNS else None


def find_obstacle(
    model: LensModel, tokens: object, setter: PatchSetter, activation_name: str, indices: Sequence[Sequence[int]]
) -> str | None:
    """Return the reason why the cone engine cannot measure these cells; None if it can."""
    name, known = getattr(setter, "__name__", "such setter"), _find_setter(setter)
    if known is None:
        return f"the cone engine has no {name}"
    columns, is_pattern = _COLUMNS[known]
    has_heads = activation_name in HEAD_SITES
    if not has_heads and activation_name not in SITES:
        return f"{activation_name!r} is none of {', '.join((*SITES, *HEAD_SITES))}"
    if is_pattern != (activation_name == "pattern") or ("head" in columns and not has_heads):
        return f"{name} changes no position or head of {activation_name!r}"
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
        return "corrupted_tokens is no tensor of token ids, [batch pos]"
    if getattr(model.tokenizer, "padding_side", "right") != "right":
        return "the tokenizer pads on the left"
    if not indices or any(len(index) != 1 + len(columns) or min(index) < 0 for index in indices):
        return f"an index is not (layer, {', '.join(columns)}) with numbers of at least 0"
    return None


@dataclass(frozen=True)
class _Grid:
    """Activations of both runs at one site, and the patches of a setter.

    Attributes:
        adapter: The model.
        site: Patched site.
        columns: Meaning of an index after its layer: ``pos``, ``head`` or ``key``.
        tokens: Corrupted tokens.
        clean: Clean activations.
        own: Corrupted activations.

    Activations of layers without cells are the corrupted ones in both.
    """

    adapter: Adapter
    site: str
    columns: tuple[str, ...]
    tokens: TokenBatch
    clean: Float[Tensor, "layer batch pos head width"]
    own: Float[Tensor, "layer batch pos head width"]

    @cached_property
    def differs(self) -> Bool[Tensor, "layer pos head width"]:
        """True where a clean activation differs from the corrupted one in some row, in any bit; of vectors in any entry.

        NaN and infinite values count as different. Positions before the first token that differs have equal bits if both runs had
        one batch shape; else they are computed.
        """
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[self.own.element_size()]
        differs = (self.clean.view(bits) != self.own.view(bits)) | ~self.clean.isfinite()
        differs = differs.any(1)
        return (differs if "key" in self.columns else differs.any(-1, keepdim=True)).cpu()

    def at(self, place: Index) -> dict[str, int]:
        """Return position, head and key of a place."""
        return dict(zip(self.columns, place, strict=True))

    def is_changed(self, layer: int, place: Index) -> bool:
        """Return whether a patch changes an activation."""
        part = self.differs[layer]
        for axis, name in enumerate(("pos", "head", "key")):
            if name in self.columns:
                part = part.narrow(axis, self.at(place)[name], 1)
        return bool(part.any())

    def first(self, place: Index) -> int:
        """Return the first changed position: that of the place, or the first at which the runs differ."""
        if "pos" in self.columns:
            return self.at(place)["pos"]
        heads = self.differs[:, :, self.at(place)["head"]]
        return int(heads.any(-1).any(0).int().argmax())

    def swap(self, place: Index) -> AnchorSwap:
        """Return the patch of a place in every layer."""
        at, n_rows = self.at(place), len(self.tokens.ids)
        positions = torch.tensor([at["pos"]]) if "pos" in at else torch.arange(self.first(place), self.tokens.ids.shape[1])
        slots = Slots(positions.expand(n_rows, -1), torch.ones(n_rows, len(positions), dtype=torch.bool))
        streams = self.clean[:, :, positions]
        if "key" in at:
            entry, streams = streams[..., at["head"], at["key"]], self.own[:, :, positions].clone()
            streams[..., at["head"], at["key"]] = entry
        heads = range(at["head"], at["head"] + 1) if "head" in at else None
        return AnchorSwap(str(place), "none", slots, streams=streams.flatten(-2), heads=heads)


@dataclass(frozen=True)
class _Job:
    """Rectangle of cells of one pass.

    Attributes:
        layers: Layers of its cells.
        places: Indices of its cells after the layer.
        n_tokens: Tokens in the top layer.
        n_bytes: Memory of the pass alone.
        stream_bytes: Memory of its streams between blocks.
        is_full: Whether a larger pass has no higher throughput.
    """

    layers: Sequence[int]
    places: Sequence[Index]
    n_tokens: int
    n_bytes: int
    stream_bytes: int
    is_full: bool


@dataclass(frozen=True)
class GridValues:
    """Result of :func:`measure_grid`.

    Attributes:
        values: Values of the metric at each index; None if the cone engine cannot measure them.
        reason: Reason why it cannot; "" if it can.
        known: Values of cells that were measured nevertheless, in the order of TransformerLens' calls.
    """

    values: "list[Tensor] | None"
    reason: str
    known: Mapping[Index, Tensor]


class _NotMeasured(Exception):  # noqa: N818
    """The cone engine cannot measure a grid, for the reason in its message."""


def measure_grid(
    model: LensModel,
    tokens: Int[Tensor, "batch pos"],
    cache: Cache,
    metric: VectorMetric,
    setter: PatchSetter,
    site: str,
    indices: Sequence[Index],
    *,
    state: Callable[[], bool],
    positions: Sequence[int] = (),
) -> GridValues:
    """Measure cells on the cone engine, and some of them with full forward passes.

    Args:
        model: The model.
        tokens: Corrupted tokens.
        cache: Clean activations.
        metric: Values of the metric.
        setter: A setter of this package or of TransformerLens.
        site: Patched site.
        indices: Cells, with the layer first.
        state: Function called after the first call of the metric; returns whether that call left the state of the metric as it was.
        positions: Positions that the metric is declared to read, in addition to those that it is seen to read.

    Raises:
        InputError: If the model has no such site, such as ``resid_mid`` where attention and MLP are parallel, or the cache lacks
            an activation or its batch axis.
    """
    adapter = adapt(model)
    if site in SITES and site not in adapter.sites:
        raise InputError(
            f"activation_name={site!r}: the model has none. Give one of {', '.join(adapter.sites)}.", argument="activation_name"
        )
    known: dict[Index, Tensor] = {}

    def after_first(value: Tensor) -> bool:
        is_stateless = state()
        if not is_stateless:
            known[indices[0]] = value
        return is_stateless

    try:
        reason = find_cone_obstacle(adapter, [site])
        if reason is not None:
            raise _NotMeasured(reason)
        tokens = tokens.to(adapter.device)
        known_setter = _find_setter(setter)
        assert known_setter is not None  # see find_obstacle
        own, template = _run_with_capture(adapter, model, tokens, site)
        clean = _clean_activations(adapter, cache, site, own, {index[0] for index in indices})
        batch = TokenBatch(tokens.cpu(), torch.ones_like(tokens, dtype=torch.bool, device="cpu"))
        grid = _Grid(adapter, site, _COLUMNS[known_setter][0], batch, clean, own)
        return GridValues(_measure(model, tokens, cache, grid, template, metric, setter, indices, after_first, positions), "", {})
    except _NotMeasured as why:
        return GridValues(None, str(why), known)


def _measure(
    model: LensModel,
    tokens: Int[Tensor, "batch pos"],
    cache: Cache,
    grid: _Grid,
    template: Float[Tensor, "batch pos d_vocab"],
    metric: VectorMetric,
    setter: PatchSetter,
    indices: Sequence[Index],
    after_first: Callable[[Tensor], bool],
    positions: Sequence[int],
) -> list[Tensor]:
    """Return the values of the cells, or raise _NotMeasured."""
    adapter, site = grid.adapter, grid.site
    cells = list(dict.fromkeys(indices))
    n_rows, n_pos = tokens.shape
    differing = [cell for cell in cells if grid.is_changed(cell[0], cell[1:])]
    shape = adapter.shape
    one = n_rows * (n_pos * shape.n_layers * shape.block_flops + 2.0 * shape.d_model * shape.d_vocab)
    work = 0.0
    for layer, *place in differing:
        work += n_rows * (n_pos - grid.first(tuple(place))) * (shape.n_layers - layer) * shape.block_flops
    unpatched = Logits.of(template)
    try:
        checked = measure_cells(
            model,
            tokens,
            choose_cells(cells, differing, work, one, tokens.numel()),
            lambda layer: adapter.hook_name(site, layer),
            lambda layer: cache[adapter.hook_name(site, layer)],
            setter,
            metric,
            after_first,
        )
        if not checked:
            raise _NotMeasured("the metric keeps state between its calls, so that their order matters")
        before = observe(metric, unpatched)
    except Exception as why:  # a metric can raise anything; one forward pass per cell calls it as TransformerLens does
        if isinstance(why, (AnchorlensError, _NotMeasured)) or out_of_memory(why):
            raise
        lines = str(why).strip().splitlines() or [""]
        raise _NotMeasured(f"the metric cannot be observed ({type(why).__name__}: {lines[0][:160]})") from why
    # A cell that acts behind all positions that are read on the unpatched logits leaves all of these as they are.
    last = max((row % n_pos for row in unpatched.reads), default=-1)
    changed = [cell for cell in differing if grid.first(cell[1:]) <= last]
    call = Call(0, n_rows, n_pos, len(before))
    reads = union_of_reads([unpatched.reads, *(cell.reads for cell in checked)])
    reads = union_of_reads([reads, *({row * n_pos + p: set[int]()} for row in range(n_rows) for p in positions)])
    reader = FunctionReader.of_reads(
        "value", lambda _, logits: metric(logits), [call], [reads], template.dtype, unpatched=lambda place: template[place]
    )
    reader = replace(reader, is_first_measured=True)
    passes = _Passes(grid, ConeEngine(adapter), before, reader)
    try:
        passes.run(changed)
        lost = passes.missed
        if lost:
            _warn_of_new_reads(site, len(lost), len(cells), reader)
            passes.run(lost, everywhere=True)
    except Exception as why:  # whatever fails here, one forward pass per cell can still measure the grid
        raise _NotMeasured(f"a pass failed ({describe_failure(why)})") from why
    values: dict[Index, Tensor] = {cell: before for cell in cells} | passes.values  # noqa: C420
    passes.check(values, checked)
    values |= {cell.index: cell.value for cell in checked}
    return [values[index] for index in indices]


class _Passes:
    """Passes of the cone engine over cells of a grid.

    Attributes:
        values: Cell -> values of the metric.
        missed: Cells in which the metric read a position that the pass did not keep.
    """

    def __init__(self, grid: _Grid, engine: ConeEngine, before: Float[Tensor, "value"], reader: FunctionReader) -> None:
        self.values: dict[Index, Tensor] = {}
        self.missed: list[Index] = []
        self._grid, self._engine, self._before, self._reader = grid, engine, before, reader
        self._unpatched: list[Tensor] = []

    def run(self, cells: Sequence[Index], *, everywhere: bool = False) -> None:
        """Measure cells; ``everywhere``: with all positions, so that none is missed."""
        reader = self._reader.everywhere() if everywhere else self._reader
        if not cells or not len(reader.position):
            return
        wanted = set(cells)
        end = int(reader.position.max()) + 1
        rounding = evidence_rounding(self._engine.adapter.device)
        budget = free_memory(self._engine.adapter.devices) // 2
        for some in _join(_plan_jobs(self._engine, self._grid, reader, cells, end, budget), budget):
            batches = [(SwapBatch(self._grid.tokens, reader, tuple(map(self._grid.swap, job.places))), job.layers) for job in some]
            results = self._engine.run_swap_batches(batches, site=self._grid.site, window=1)
            for job, (batch, _), (alone, of_places) in zip(some, batches, results, strict=True):
                if not alone.values[MISSED].any():
                    self._unpatched.append(alone.values["value"])
                for place, swap, of_layers in zip(job.places, batch.swaps, of_places, strict=True):
                    found = of_layers.values
                    assert swap.streams is not None  # those of the clean cache
                    adapter, site = self._engine.adapter, self._grid.site
                    expected = evidence_of_streams(adapter, batch, swap, swap.streams, site, job.layers)
                    parts = zip(job.layers, found["value"], found[MISSED], found[LANDED].tolist(), strict=True)
                    for layer, value, missed, (landed,) in parts:
                        cell = (layer, *place)
                        if cell not in wanted:
                            continue
                        total, size = expected.of_window([layer])
                        if not is_same_evidence(landed, total, rounding * size):
                            raise _NotMeasured(f"the patch of {cell} was not written as the setter would write it")
                        if missed.any():
                            self.missed.append(cell)
                        else:
                            self.values[cell] = value

    def check(self, values: Mapping[Index, Tensor], checked: Sequence[CheckedCell]) -> None:
        """Compare the unpatched metric of every pass with the model's, and cells with full forward passes.

        A metric that moves in steps may differ where the logits agree. Where values differ, the logits decide.

        Raises:
            _NotMeasured: If a difference is larger than rounding explains.
        """
        table = torch.stack([self._before, *values.values(), *(cell.value for cell in checked)])
        finite = table.nan_to_num(0.0, 0.0, 0.0)
        spread = finite.amax(0) - finite.amin(0)

        def is_close(found: Tensor, exact: Tensor) -> bool:
            allowed = _TOLERANCE[0] * spread + _TOLERANCE[1] * exact.abs()
            close = ((found - exact).abs() <= allowed) | (found == exact) | (found.isnan() & exact.isnan())
            return bool(close.all())

        for cell in checked:
            found = values[cell.index]
            if not is_close(found, cell.value) and not self._is_rounding(cell.index, is_close, after=found):
                raise _NotMeasured(
                    f"a full forward pass of {cell.index} gave {_format(cell.value)}, the cone engine {_format(found)}"
                )
        for found in self._unpatched:
            if not is_close(found, self._before) and not self._is_rounding(checked[0].index, is_close, before=found):
                raise _NotMeasured(f"the unpatched metric is {_format(self._before)}, on the cone engine {_format(found)}")

    def _is_rounding(self, index: Index, is_close: Callable[[Tensor, Tensor], bool], **values: Tensor) -> bool:
        """Return whether values ``before`` or ``after`` the patch of a cell differ from a full forward pass by rounding."""
        layer, *place = index
        batch = SwapBatch(self._grid.tokens, self._reader, (self._grid.swap(tuple(place)),))
        adapter = self._engine.adapter
        return differs_by_rounding(
            adapter,
            batch,
            self._reader,
            site=self._grid.site,
            layer=layer,
            before=values.get("before"),
            after=values.get("after"),
            is_close=is_close,
        )


@torch.no_grad()
def _run_with_capture(
    adapter: Adapter, model: LensModel, tokens: Int[Tensor, "batch pos"], site: str
) -> tuple[Float[Tensor, "layer batch pos head width"], Float[Tensor, "batch pos d_vocab"]]:
    """Return the activations of the corrupted run at a site, and its logits."""
    seen: list[Tensor] = []

    def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        seen.append(by_head(value, site).to(adapter.device, copy=True))
        return value

    hooks: list[Any] = [(adapter.hook_name(site, layer), keep) for layer in range(adapter.n_layers)]
    logits = model.run_with_hooks(tokens, fwd_hooks=hooks)
    return torch.stack(seen), logits.clone()


def _clean_activations(
    adapter: Adapter, cache: Cache, site: str, own: Float[Tensor, "layer batch pos head width"], layers: Iterable[int]
) -> Float[Tensor, "layer batch pos head width"]:
    """Return the clean activations of some layers, and the corrupted ones of the others.

    Raises:
        InputError: If the cache lacks an activation or its batch axis.
        _NotMeasured: If it has another shape.
    """
    clean = own.clone()
    for layer in sorted(layers):
        name = adapter.hook_name(site, layer)
        try:
            given = cache[name]
        except KeyError:
            raise InputError(
                f"clean_cache: has no {name!r}. Cache it as well: the names_filter of run_with_cache may leave it out.",
                argument="clean_cache",
            ) from None
        if not isinstance(given, Tensor):
            raise _NotMeasured(f"the clean cache holds a {type(given).__name__}")
        if given.ndim != (4 if site in HEAD_SITES else 3):
            raise InputError(
                f"clean_cache: {name} has the shape {tuple(given.shape)}, without a batch axis. Give the cache before "
                "remove_batch_dim.",
                argument="clean_cache",
            )
        value = by_head(given, site)
        if value.shape[1:] != own.shape[2:] or len(value) not in (1, own.shape[1]):
            raise _NotMeasured(f"the clean cache has other shapes: {tuple(value.shape)} instead of {tuple(own.shape[1:])}")
        clean[layer] = value.to(clean).expand(own.shape[1:])
    return clean


def _warn_of_new_reads(site: str, n_missed: int, n_cells: int, reader: FunctionReader) -> None:
    seen = sorted({position for _, position in reader.places})
    warn(
        f"{site}: in {n_missed} of {n_cells} cells the metric read other positions than on the corrupted logits, where it read "
        f"{seen}. These cells were computed again with all positions. positions= declares what is computed at once."
    )


def _plan_jobs(
    engine: ConeEngine, grid: _Grid, reader: FunctionReader, cells: Sequence[Index], end: int, budget: int
) -> Iterator[_Job]:
    for layers, places in _rectangles(cells):
        length = {place: max(1, end - grid.first(place)) for place in places}

        def make(some: list[Index], layers: list[int] = layers, length: dict[Index, int] = length) -> _Job:
            return _make_job(engine, grid, layers, {place: length[place] for place in some}, reader, end)

        yield from _split(make, places, budget)


def _rectangles(cells: Sequence[Index]) -> list[tuple[list[int], list[Index]]]:
    """Cover cells by rectangles (layers, places), largest first; layers with at most half of all places get one of their own."""
    by_layer: dict[int, list[Index]] = {}
    for layer, *place in cells:
        by_layer.setdefault(layer, []).append(tuple(place))
    places = list(dict.fromkeys(tuple(place) for _, *place in cells))
    groups: dict[tuple[Index, ...], list[int]] = {}
    for layer, own in sorted(by_layer.items()):
        groups.setdefault(tuple(own if 2 * len(own) <= len(places) else places), []).append(layer)
    return sorted(((layers, list(group)) for group, layers in groups.items()), key=lambda one: -len(one[0]) * len(one[1]))


def _make_job(
    engine: ConeEngine, grid: _Grid, layers: Sequence[int], lengths: dict[Index, int], reader: FunctionReader, end: int
) -> _Job:
    """Make the job of a rectangle; ``lengths``: place -> number of changed positions; ``end``: one past the last read position."""
    n_rows, n_pos = grid.tokens.ids.shape
    groups = tuple((n_rows * length, n_rows, length, end) for length in lengths.values())
    size, on_cpu = PassSize(n_rows * n_pos, n_rows, n_pos, groups, 0, len(reader.row)), engine.adapter.device.type == "cpu"
    n_tokens, shape = size.clean_tokens + len(layers) * size.lane, engine.adapter.shape
    is_full = n_tokens > _TOKENS if on_cpu else engine.saturates(size, len(layers))
    stream_bytes = int(SLACK * n_tokens * shape.d_model * shape.item)
    return _Job(layers, list(lengths), n_tokens, engine.pass_bytes(size, len(layers)), stream_bytes, is_full)


def _split(make: Callable[[list[Index]], _Job], places: Sequence[Index], budget: int) -> Iterator[_Job]:
    """Split the places of a rectangle into jobs, by memory and by the number of tokens."""
    job: _Job | None = None
    for place in places:
        longer = make([*(job.places if job else ()), place])
        if job and (longer.is_full or longer.n_bytes > budget):
            yield job
            longer = make([place])
        job = longer
    if job:
        yield job


def _join(jobs: Iterable[_Job], budget: int) -> Iterator[list[_Job]]:
    """Join consecutive jobs, which then compute the clean rows and read each weight from memory once."""
    some: list[_Job] = []
    for job in jobs:
        more = [*some, job]
        n_bytes = max(each.n_bytes for each in more) + sum(each.stream_bytes for each in more)
        if some and (sum(each.n_tokens for each in more) > _TOGETHER or n_bytes > budget):
            yield some
            more = [job]
        some = more
    if some:
        yield some


def _format(values: Float[Tensor, "value"]) -> str:
    return " ".join(f"{value:.6g}" for value in values.tolist())
