"""Evidence of patches: one number per cell that says what was written, and where.

The engine adds up ``code(layer, row, position, head) * (value . weights)`` over all activations
that it replaced in a cell, read back where they were written (:class:`WrittenEvidence`). The same
sum is computed from what was asked for (:func:`evidence_of_streams`, :func:`evidence_of_sources`).
The two agree only if every activation landed at its place: a shifted position, another head or
layer, a dropped patch or an old value all change the sum.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.cone_attention import DeviceIndex
from anchorlens.engine.cone_layout import Layout
from anchorlens.engine.cone_plans import SwapPlan
from anchorlens.engine.geometry import Ids
from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import (
    AnchorSwap,
    Slots,
    SwapBatch,
    by_head,
    pad_rows,
    token_rows,
    turn,
)
from anchorlens.models.adapter import Adapter, Hook, SiteLike
from anchorlens.models.devices import on


def evidence_rounding(device: torch.device) -> float:
    """Return the largest relative difference of two sums of the same numbers, in the dtype of
    evidence on a device.
    """
    return 1e-9 if evidence_dtype(device) is torch.float64 else 1e-4


def evidence_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of evidence on a device."""
    return torch.float32 if device.type == "mps" else torch.float64


@cache
def _weights(width: int) -> Float[Tensor, "width"]:
    return torch.randn(
        width,
        generator=torch.Generator("cpu").manual_seed(width),
        dtype=torch.float64,
        device="cpu",
    )


def projection(width: int, device: torch.device) -> Float[Tensor, "width"]:
    """Return the fixed random weights with which activations of a width are multiplied."""
    return on(device, _weights(width).to(evidence_dtype(device)))


def project(
    values: Float[Tensor, "*entry width"], weights: Float[Tensor, "width"]
) -> Float[Tensor, "*entry"]:
    """Return the product of activations with fixed random weights (:func:`projection`)."""
    return values.detach().to(weights.dtype) @ weights


def code(
    layer: "Int[Tensor, '*#entry'] | int",
    row: Int[Tensor, "*#entry"],
    position: Int[Tensor, "*#entry"],
    head: "Int[Tensor, '*#entry'] | int",
    device: torch.device,
) -> Float[Tensor, "*#entry"]:
    """Return a number in [1, 2) for each place, from indices on the CPU; places of one model have
    different ones.

    The multipliers are irrational, so that no two sums of small whole numbers differ by a whole
    number.
    """
    layer = torch.as_tensor(layer, dtype=torch.float64, device="cpu")
    head = torch.as_tensor(head, dtype=torch.float64, device="cpu")
    mixed = (
        0.7548776662 * layer
        + 0.5698402910 * row.double()
        + 0.8191725134 * position.double()
        + 0.6180339887 * head
    )
    return on(device, (1.0 + mixed.frac()).to(evidence_dtype(device)))


def is_same_evidence(found: float, expected: float, allowed: float) -> bool:
    """Return whether two sums differ by at most ``allowed``; NaN equals NaN, because a cache may
    hold it.
    """
    if found != found or expected != expected:
        return found != found and expected != expected
    return found == expected or abs(found - expected) <= allowed


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """Tables with which written activations become evidence.

    Attributes:
        index: Index for which they were made.
        group: Cell group of each patch.
        codes: Number of the place of each patch in every layer, on the device.
        weights: Weights of the entries of an activation, on the device.
    """

    index: DeviceIndex
    group: Int[Tensor, "patch"]
    codes: Float[Tensor, "layer patch"]
    weights: Float[Tensor, "width"]


class WrittenEvidence:
    """Evidence of the patches of a pass.

    Args:
        n_layers: Number of layers of the model.
    """

    def __init__(self, n_layers: int) -> None:
        self._n_layers = n_layers
        self._tables: _Tables | None = None
        # Cell group of each patch, first lane, and the terms on the device, of each write.
        self._terms: list[tuple[Tensor, int, Float[Tensor, "lane patch"]]] = []

    def add(
        self,
        index: DeviceIndex,
        layer: int,
        first_lane: int,
        values: Float[Tensor, "lane patch width"],
    ) -> None:
        """Add activations that were written in a layer, from lane ``first_lane`` on."""
        tables = self._tables
        if tables is None or tables.index is not index:
            tables = self._tables = _make_tables(index, self._n_layers, values.shape[-1])
        terms = project(values, tables.weights) * tables.codes[layer]
        self._terms.append((tables.group, first_lane, terms))

    def table(self, n_groups: int, n_lanes: int) -> Float[Tensor, "cell_group lane"]:
        """Return the evidence of each cell group in each lane on the CPU, copied at once."""
        out = torch.zeros(n_groups, n_lanes, dtype=torch.float64, device="cpu")
        if not self._terms:
            return out
        device = self._terms[-1][2].device
        flat = torch.cat([terms.to(device).flatten() for _, _, terms in self._terms])
        parts = flat.cpu().double().split([terms.numel() for _, _, terms in self._terms])
        for (group, first, terms), part in zip(self._terms, parts, strict=True):
            own = part.view_as(terms)
            out[:, first : first + len(own)].index_add_(0, group, own.T)
        return out


def _make_tables(index: DeviceIndex, n_layers: int, width: int) -> _Tables:
    """Make the tables of an index.

    ``width``: entries of an activation.
    """
    patches = index.layout.patches
    assert patches is not None  # the caller has written some
    group, row, position = _places_of_cells(index.layout)
    at = patches.lane_token
    heads = 0 if patches.heads is None else patches.heads
    layers = torch.arange(n_layers)[:, None]
    return _Tables(
        index=index,
        group=group[at],
        codes=code(layers, row[at], position[at], heads, index.device),
        weights=projection(width, index.device),
    )


def _places_of_cells(
    layout: Layout,
) -> tuple[Int[Tensor, "token"], Int[Tensor, "token"], Int[Tensor, "token"]]:
    """Return cell group, row and position of each token of a lane."""
    groups: list[int] = []
    rows: list[int] = []
    positions: list[int] = []
    for number, cells in enumerate(layout.cell_groups):
        for token, position in zip(cells.queries, cells.positions, strict=True):
            groups.append(number)
            rows.append(cells.rows[bisect_right(cells.offsets, token) - 1])
            positions.append(position)
    return torch.tensor(groups), torch.tensor(rows), torch.tensor(positions)


# Sites before the keys and values of their block: all patches are written, whatever is read.
_WITHIN_ATTENTION = ("q", "k", "v", "pattern")


@dataclass(frozen=True)
class Evidence:
    """Evidence of a swap at each layer.

    Attributes:
        total: Sum over the activations that are written, each multiplied by its code.
        size: Root of the sum of their squared norms. Independent relative errors of the activations
            change ``total`` by about the same share of it.
    """

    total: Float[Tensor, "layer"]
    size: Float[Tensor, "layer"]

    def of_window(self, layers: Sequence[int]) -> tuple[float, float]:
        """Return total and size of layers that are patched together."""
        some = list(layers)
        return float(self.total[some].sum()), float(self.size[some].norm())


def evidence_of_streams(
    adapter: Adapter,
    batch: SwapBatch,
    swaps: Sequence[AnchorSwap],
    site: SiteLike,
    layers: Sequence[int] | None = None,
) -> list[Evidence]:
    """Return the evidence that swaps with given activations should leave.

    Args:
        adapter: The model.
        batch: The batch.
        swaps: Swaps of the batch, with ``streams`` [layer example slot d_model], of head sites
            (head d_head).
        site: Patched site.
        layers: Layers whose evidence is needed; that of the others is 0. If None, all.
    """
    layers = list(range(adapter.n_layers) if layers is None else layers)
    found: list[_Patches] = []
    for swap in swaps:
        assert swap.streams is not None  # given activations
        patches = _Patches(adapter, batch, swap, site)
        by_head = swap.streams.unflatten(-1, (patches.n_heads, -1))[..., patches.heads, :]
        values = _select(by_head, layers, patches).to(adapter.shape.dtype)
        patches.add(layers, *_project(values))
        found.append(patches)
    return _evidence_of(found)


def _select(
    streams: Float[Tensor, "layer example slot head width"],
    layers: Sequence[int],
    patches: "_Patches",
) -> Float[Tensor, "some patch head width"]:
    """Return the activations of patches in some layers; no copy where all are patched."""
    n_layers, n_rows, n_slots = streams.shape[:3]
    if list(layers) != list(range(n_layers)):
        streams = streams[on(streams.device, torch.tensor(layers, dtype=torch.long))]
    flat = patches.row * n_slots + patches.slot
    streams = streams.flatten(1, 2)
    if torch.equal(flat, torch.arange(n_rows * n_slots)):
        return streams
    return streams[:, on(streams.device, flat)]


@torch.no_grad()
def evidence_of_sources(
    adapter: Adapter, batches: Sequence[SwapBatch], site: SiteLike, n_rows: int
) -> list[list[Evidence]]:
    """Return the evidence that each swap of each batch should leave, from full forward passes of
    the donors.

    Each donor runs once. Rows that are turned towards directions run with them.

    Args:
        adapter: The model.
        batches: Batches whose swaps have a ``source``.
        site: Patched site.
        n_rows: Maximum number of rows of a forward pass.
    """
    moves = any(swap.directions for batch in batches for swap in batch.swaps)
    numbers: dict[tuple[Ids, Ids], int] = {}
    patches: list[list[_Patches]] = []
    for batch in batches:
        assert batch.donors is not None  # the swaps have a source
        number: list[int] = []
        for base, donor in zip(token_rows(batch.tokens), token_rows(batch.donors), strict=True):
            key = (donor, base if moves else ())
            number.append(numbers.setdefault(key, len(numbers)))
        at = torch.tensor(number, dtype=torch.long)
        patches.append([_Patches(adapter, batch, swap, site, at) for swap in batch.swaps])
    donors = [donor for donor, _ in numbers]
    bases = [base for _, base in numbers]
    every = list(chain.from_iterable(patches))

    def note(value: Tensor, hook: Any, layer: int, rows: range) -> Tensor:  # noqa: ARG001
        table = by_head(value, site)
        other = table[: len(rows)]
        own = table[len(rows) :]
        terms = _project(other)
        for each in every:
            each.add_sources(layer, other, own, terms, rows)
        return value

    step = max(1, n_rows // 2 if moves else n_rows)
    for start in range(0, len(donors), step):
        rows = range(start, min(start + step, len(donors)))
        own = bases[start : rows.stop] if moves else []
        hooks: list[Hook] = []
        for layer in range(adapter.n_layers):
            hook = partial(note, layer=layer, rows=rows)
            hooks.append((adapter.hook_name(site, layer), hook))
        last_stream(adapter, pad_rows([*donors[start : rows.stop], *own]), hooks)
    found = iter(_evidence_of(every))
    return [[next(found) for _ in own] for own in patches]


def _project(
    values: Float[Tensor, "*entry width"],
) -> tuple[Float[Tensor, "*entry"], Float[Tensor, "*entry"]]:
    """Return the projections of activations (:func:`~anchorlens.engine.evidence.project`) and their
    squared norms.
    """
    weights = projection(values.shape[-1], values.device)
    return project(values, weights), values.to(weights.dtype).square().sum(-1)


class _Patches:
    """Activations that a swap should write, and their evidence.

    ``number``: number of each row of the batch among the donors that run.
    """

    def __init__(
        self,
        adapter: Adapter,
        batch: SwapBatch,
        swap: AnchorSwap,
        site: SiteLike,
        number: Int[Tensor, "example"] | None = None,
    ) -> None:
        row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
        position = swap.slots.positions[row, slot]
        is_written, is_read = _find_writes(batch, swap, site, row, position)
        self.swap = swap
        self.row = row[is_written]
        # Number of the row of each patch among all donors that run.
        self.number = self.row if number is None else number[self.row]
        self.slot = slot[is_written]
        self.position = position[is_written]
        self.is_read = is_read[is_written]
        # Behind the last keys and values, only the positions that are read are computed.
        self.only_reads_at = (
            None if str(site) in ("resid_pre", *_WITHIN_ATTENTION) else adapter.n_layers - 1
        )
        self.n_heads = adapter.n_heads(site)
        self.n_layers = adapter.n_layers
        heads = range(self.n_heads) if swap.heads is None else swap.heads
        self.heads = slice(heads.start, heads.stop)
        # Layers, and their sums on the device.
        self.parts: list[tuple[Sequence[int], Tensor, Tensor]] = []

    def add(
        self,
        layers: Sequence[int],
        terms: Float[Tensor, "some patch head"],
        squares: Float[Tensor, "some patch head"],
        some: Int[Tensor, "patch"] | None = None,
    ) -> None:
        """Add activations that are written in some layers.

        ``terms``, ``squares``: their projections and squared norms; ``some``: their indices among
        all, if they are not all.
        """
        some = torch.arange(len(self.row)) if some is None else some
        device = terms.device
        if self.only_reads_at is not None and self.only_reads_at in layers:
            is_written = torch.ones(len(layers), len(some), 1, dtype=torch.bool)
            is_written[list(layers).index(self.only_reads_at)] = self.is_read[some, None]
            kept = on(device, is_written)
            zero = terms.new_zeros(())  # a product with 0 would keep NaN
            terms = torch.where(kept, terms, zero)
            squares = torch.where(kept, squares, zero)
        head = torch.arange(self.n_heads)[self.heads]
        layer = torch.tensor(layers)[:, None, None]
        codes = code(layer, self.row[some, None], self.position[some, None], head, device)
        self.parts.append((layers, (terms * codes).sum((1, 2)), squares.sum((1, 2))))

    def add_sources(
        self,
        layer: int,
        other: Float[Tensor, "donor pos head width"],
        own: Float[Tensor, "moved pos head width"],
        terms: tuple[Float[Tensor, "donor pos head"], Float[Tensor, "donor pos head"]],
        rows: range,
    ) -> None:
        """Add the activations that come from donors.

        Args:
            layer: Layer of the activations.
            other: Activations of the donors of some rows.
            own: Activations of the rows themselves; empty if no row is turned.
            terms: Projections and squared norms of ``other``.
            rows: Numbers of these donors.
        """
        source = self.swap.source
        assert source is not None  # see evidence_of_sources
        some = ((self.number >= rows.start) & (self.number < rows.stop)).nonzero()[:, 0]
        if not len(some):
            return
        moves = [row in self.swap.directions for row in self.row[some].tolist()]
        is_moved = torch.tensor(moves, dtype=torch.bool)
        whole = some[~is_moved]
        moved = some[is_moved]
        if len(whole):
            at = self._places(source, whole, rows)
            self.add([layer], terms[0][at][None], terms[1][at][None], whole)
        if len(moved):
            at = self._places(source, moved, rows)
            base = own[at[0], self.position[moved], self.heads]
            directions: list[Tensor] = []
            for row, slot in zip(self.row[moved].tolist(), self.slot[moved].tolist(), strict=True):
                directions.append(self.swap.directions[row][layer, slot])
            values = turn(base.flatten(1), other[at].flatten(1), torch.stack(directions))
            self.add([layer], *_project(values.view_as(base)[None].to(base.dtype)), moved)

    def _places(
        self, source: Slots, some: Int[Tensor, "patch"], rows: range
    ) -> tuple[Int[Tensor, "patch"], Int[Tensor, "patch"], slice]:
        """Return the index of the donors' activations of some patches, among those of ``rows``."""
        source_position = source.positions[self.row[some], self.slot[some]]
        return self.number[some] - rows.start, source_position, self.heads


def _evidence_of(patches: Sequence[_Patches]) -> list[Evidence]:
    """Return the evidence of what was added to each, copied from the device at once."""
    parts = [(number, *part) for number, one in enumerate(patches) for part in one.parts]
    out: list[Evidence] = []
    for one in patches:
        zero = torch.zeros(one.n_layers, dtype=torch.float64, device="cpu")
        out.append(Evidence(zero, zero.clone()))
    if parts:
        device = parts[0][2].device
        sums = [torch.stack([totals, squares]) for _, _, totals, squares in parts]
        together = torch.cat([one.to(device) for one in sums], 1).cpu().double()
        sizes = [len(layers) for _, layers, _, _ in parts]
        for (number, layers, *_), own in zip(parts, together.split(sizes, 1), strict=True):
            out[number].total.index_add_(0, torch.tensor(layers), own[0])
            out[number].size.index_add_(0, torch.tensor(layers), own[1])
    return [Evidence(one.total, one.size.sqrt()) for one in out]


def _find_writes(
    batch: SwapBatch,
    swap: AnchorSwap,
    site: SiteLike,
    row: Int[Tensor, "patch"],
    position: Int[Tensor, "patch"],
) -> tuple[Bool[Tensor, "patch"], Bool[Tensor, "patch"]]:
    """Return which patches are written below the last layer, and which are at positions that are
    read.

    A patch behind the last read position has no effect. One before the start of the cone equals the
    source's own run, from which the engine takes its keys and values.
    """
    reads = set(zip(batch.reader.row.tolist(), batch.reader.position.tolist(), strict=True))
    last: dict[int, int] = {}
    for i, read in reads:
        last[i] = max(last.get(i, -1), read)
    start: dict[int, int] = {}
    is_within_attention = str(site) in _WITHIN_ATTENTION
    if swap.source is not None and not is_within_attention:
        alone = SwapBatch(batch.tokens, batch.reader, (swap,), batch.donors)
        cones = SwapPlan(alone, site).geometry.cones_of(0)
        start = {i: cone.start for i, cone in cones.items()}
    is_written: list[bool] = []
    is_read: list[bool] = []
    for i, p in zip(row.tolist(), position.tolist(), strict=True):
        is_read.append((i, p) in reads)
        in_cone = start.get(i, 0) <= p <= last.get(i, -1)
        is_written.append(is_within_attention or in_cone)
    return torch.tensor(is_written, dtype=torch.bool), torch.tensor(is_read, dtype=torch.bool)
