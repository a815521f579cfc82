"""Grids of patches on the cone engine, for metrics that are functions of the logits."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.choose_engine import describe_failure, find_cone_obstacle
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cost import SLACK, PassSize
from anchorlens.engine.metric_reads import find_reads, find_tokens
from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.reference import by_head
from anchorlens.errors import InputError
from anchorlens.models.adapt import adapt
from anchorlens.models.adapter import HEAD_SITES, SITES, Adapter
from anchorlens.models.backend import LensModel
from anchorlens.models.memory import free_memory
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

Index: TypeAlias = tuple[int, ...]
VectorMetric: TypeAlias = Callable[[Tensor], Float[Tensor, "value"]]
"""Function from logits [batch pos d_vocab] to one or several values, float32 on the CPU."""

# Relative difference of clean and corrupted activations below which a patch is none: rounding of batches of other shapes.
_EQUAL = 1e-5
# Tokens in the top layer of a pass on a CPU and of passes that run together, and rows that are unembedded at once.
_TOKENS, _TOGETHER, _ROWS = 8192, 65_536, 64
# Tolerance of spot checks and of the unpatched metric, relative to the range of the metric and to its value; cells per spot check,
# and the most checks.
_TOLERANCE, _CELLS_PER_CHECK, _CHECKS = (1e-3, 1e-5), 1000, 2
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
class _LogitReader:
    """Reader of a metric of the logits; entries that the metric does not read keep the logits of ``template``.

    ``tokens``: tokens that the metric reads; if None, all.
    """

    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    metric: VectorMetric
    template: Float[Tensor, "batch pos d_vocab"]
    tokens: list[int] | None
    where = None

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """Compute the metric of each cell."""
        cells = states.reshape(-1, *states.shape[-2:])
        values: list[Tensor] = []
        columns = slice(None) if self.tokens is None else torch.tensor(self.tokens)
        for some in cells.split(max(1, _ROWS // len(self.row))):
            logits = adapter.read.logits(some.flatten(0, 1), self.tokens).to(self.template).view(*some.shape[:2], -1)
            for cell in logits:
                if self.tokens is None:
                    self.template[self.row, self.position] = cell
                else:
                    self.template[self.row[:, None], self.position[:, None], columns] = cell
                values.append(self.metric(self.template))
        return Metrics({"value": torch.stack(values).reshape(*states.shape[:-2], -1)})


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
    """

    adapter: Adapter
    site: str
    columns: tuple[str, ...]
    tokens: TokenBatch
    clean: Float[Tensor, "layer batch pos head width"]
    own: Float[Tensor, "layer batch pos head width"]

    @cached_property
    def differs(self) -> Bool[Tensor, "layer pos head width"]:
        """True where clean and corrupted activations differ; of sites without keys at all or no entries of a vector."""
        gap, size = (self.clean - self.own).abs().amax(1), self.own.abs().amax((1, 2, 3, 4))
        gap = gap if "key" in self.columns else gap.amax(-1, keepdim=True)
        return (gap > _EQUAL * size[:, None, None, None]).cpu()

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


def measure_grid(
    model: LensModel,
    tokens: Int[Tensor, "batch pos"],
    cache: Cache,
    metric: VectorMetric,
    setter: PatchSetter,
    site: str,
    indices: Sequence[Sequence[int]],
    measure_cell: Callable[[Sequence[int]], Tensor],
) -> tuple[list[Tensor] | None, str]:
    """Measure cells on the cone engine, and some of them again with a full forward pass.

    The unpatched metric of every pass is compared with that of the model.

    Returns:
        The values of the metric at each index and "", or None and the reason why the numbers cannot be used.

    Raises:
        InputError: If the model has no such site, such as ``resid_mid`` where attention and MLP are parallel.
    """
    adapter = adapt(model)
    if site in SITES and site not in adapter.sites:
        raise InputError(
            f"activation_name={site!r}: the model has none. Give one of {', '.join(adapter.sites)}.", argument="activation_name"
        )
    reason = find_cone_obstacle(adapter, [site])
    if reason is not None:
        return None, reason
    own, template = _run_with_capture(adapter, model, tokens.to(adapter.device), site)
    names = [adapter.hook_name(site, layer) for layer in range(adapter.n_layers)]
    values_of = [by_head(cache[name], site).to(adapter.device) for name in names]
    if any(value.shape[1:] != own.shape[2:] or len(value) not in (1, own.shape[1]) for value in values_of):
        return None, f"the clean cache has other shapes: {tuple(values_of[0].shape)} instead of {tuple(own.shape[1:])}"
    clean = torch.stack([value.expand(own.shape[1:]) for value in values_of])
    batch = TokenBatch(tokens.cpu(), torch.ones_like(tokens, dtype=torch.bool, device="cpu"))
    known = _find_setter(setter)
    assert known is not None  # see find_obstacle
    grid = _Grid(adapter, site, _COLUMNS[known][0], batch, clean, own)
    before, positions = metric(template), find_reads(metric, template)
    last = max(positions, default=-1)
    cells = list(dict.fromkeys(map(tuple, indices)))
    changed = [cell for cell in cells if grid.first(cell[1:]) <= last and grid.is_changed(cell[0], cell[1:])]
    row = torch.arange(len(tokens)).repeat_interleave(len(positions))
    found = find_tokens(metric, template, positions) if changed else None
    reader = _LogitReader(row, torch.tensor(positions, dtype=torch.long).repeat(len(tokens)), metric, template, found)
    values, unpatched = dict.fromkeys(cells, before), list[Tensor]()
    try:
        for alone, measured in _run_passes(ConeEngine(adapter), grid, reader, changed, last + 1):
            unpatched.append(alone)
            values |= {cell: value for cell, value in measured.items() if cell in values}
    except Exception as why:  # noqa: BLE001 - whatever fails here, one forward pass per cell can still measure the grid
        return None, f"a pass failed ({describe_failure(why)})"
    values |= dict.fromkeys(set(cells) - set(changed), before)
    table = torch.stack([before, *values.values()])
    spread = table.amax(0) - table.amin(0)

    def differs(found: Tensor, exact: Tensor) -> bool:
        return not bool(((found - exact).abs() <= _TOLERANCE[0] * spread + _TOLERANCE[1] * exact.abs()).all())

    for found in unpatched:
        if differs(found, before):
            return None, f"the unpatched metric is {_format(before)}, on the cone engine {_format(found)}"
    for cell in _draw_checks(changed or cells):
        exact = measure_cell(cell)
        if differs(values[cell], exact):
            return None, f"a spot check of {cell} gave {_format(exact)}, the cone engine {_format(values[cell])}"
    return [values[tuple(index)] for index in indices], ""


def _run_passes(
    engine: ConeEngine, grid: _Grid, reader: _LogitReader, cells: Sequence[Index], end: int
) -> Iterator[tuple[Tensor, dict[Index, Tensor]]]:
    """Yield the unpatched metric of each pass, and its cells; ``end``: one past the last read position."""
    budget = free_memory(engine.adapter.devices) // 2
    for some in _join(_plan_jobs(engine, grid, reader, cells, end, budget), budget):
        batches = [(SwapBatch(grid.tokens, reader, tuple(map(grid.swap, job.places))), job.layers) for job in some]
        results = engine.run_swap_batches(batches, site=grid.site, window=1)
        for job, (alone, of_places) in zip(some, results, strict=True):
            measured = {
                (layer, *place): value
                for place, one in zip(job.places, of_places, strict=True)
                for layer, value in zip(job.layers, one.values["value"], strict=True)
            }
            yield alone.values["value"], measured


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


def _plan_jobs(
    engine: ConeEngine, grid: _Grid, reader: _LogitReader, cells: Sequence[Index], end: int, budget: int
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
    engine: ConeEngine, grid: _Grid, layers: Sequence[int], lengths: dict[Index, int], reader: _LogitReader, end: int
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


def _draw_checks(indices: Sequence[Index]) -> list[Index]:
    generator = torch.Generator().manual_seed(0)
    n_checks = min(_CHECKS, 1 + len(indices) // _CELLS_PER_CHECK)
    return [indices[int(i)] for i in torch.randperm(len(indices), generator=generator)[:n_checks]]
