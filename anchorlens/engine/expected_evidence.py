"""The evidence that patches should leave, from what was asked for
(:mod:`anchorlens.engine.landing`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.cone_plans import SwapPlan
from anchorlens.engine.hooked_passes import by_head, last_stream
from anchorlens.engine.landing import code, project, projection
from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch, token_rows
from anchorlens.engine.turning import turn
from anchorlens.models.adapter import Adapter, Hook, SiteLike
from anchorlens.models.devices import on
from anchorlens.prompts.batches import pad_rows

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
    adapter: Adapter, batch: SwapBatch, site: SiteLike, n_rows: int
) -> list[Evidence]:
    """Return the evidence that the swaps of a batch should leave, from full forward passes of the
    donors.

    Rows that are turned towards directions run with them.

    Args:
        adapter: The model.
        batch: Batch whose swaps have a ``source``.
        site: Patched site.
        n_rows: Maximum number of rows of a forward pass.
    """
    assert batch.donors is not None  # the swaps have a source
    bases = token_rows(batch.tokens)
    donors = token_rows(batch.donors)
    patches = [_Patches(adapter, batch, swap, site) for swap in batch.swaps]
    moves = any(swap.directions for swap in batch.swaps)

    def note(value: Tensor, hook: Any, layer: int, rows: range) -> Tensor:  # noqa: ARG001
        table = by_head(value, site)
        other = table[: len(rows)]
        own = table[len(rows) :]
        terms = _project(other)
        for each in patches:
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
    return _evidence_of(patches)


def _project(
    values: Float[Tensor, "*entry width"],
) -> tuple[Float[Tensor, "*entry"], Float[Tensor, "*entry"]]:
    """Return the projections of activations (:func:`~anchorlens.engine.landing.project`) and their
    squared norms.
    """
    weights = projection(values.shape[-1], values.device)
    return project(values, weights), values.to(weights.dtype).square().sum(-1)


class _Patches:
    """Activations that a swap should write, and their evidence."""

    def __init__(
        self, adapter: Adapter, batch: SwapBatch, swap: AnchorSwap, site: SiteLike
    ) -> None:
        row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
        position = swap.slots.positions[row, slot]
        is_written, is_read = _find_writes(batch, swap, site, row, position)
        self.swap = swap
        self.row = row[is_written]
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
            rows: Numbers of the rows in the batch.
        """
        source = self.swap.source
        assert source is not None  # see evidence_of_sources
        some = ((self.row >= rows.start) & (self.row < rows.stop)).nonzero()[:, 0]
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
        row = self.row[some]
        return row - rows.start, source.positions[row, self.slot[some]], self.heads


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
        cones = SwapPlan(alone, site).geometry.starts(0)
        start = {i: cone.start for i, cone in cones.items()}
    is_written: list[bool] = []
    is_read: list[bool] = []
    for i, p in zip(row.tolist(), position.tolist(), strict=True):
        is_read.append((i, p) in reads)
        in_cone = start.get(i, 0) <= p <= last.get(i, -1)
        is_written.append(is_within_attention or in_cone)
    return torch.tensor(is_written, dtype=torch.bool), torch.tensor(is_read, dtype=torch.bool)
