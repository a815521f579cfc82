"""The evidence that patches should leave, from what was asked for (:mod:`anchorlens.engine.landing`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.cone_plans import SwapPlan
from anchorlens.engine.landing import code, evidence_dtype, project
from anchorlens.engine.patches import AnchorSwap, SwapBatch, token_rows
from anchorlens.engine.reference import by_head, last_stream, move
from anchorlens.models.adapter import Adapter, Hook, SiteLike
from anchorlens.prompts.batches import pad_rows
from anchorlens.typing import SlotStreams

# Sites before the keys and values of their block: all patches are written, whatever is read.
_WITHIN_ATTENTION = ("q", "k", "v", "pattern")


@dataclass(frozen=True)
class Evidence:
    """Evidence of a swap at each layer.

    Attributes:
        total: Sum over the activations that are written, each multiplied by its code.
        size: Root of the sum of their squared norms. Independent relative errors of the activations change ``total`` by about the
            same share of it.
    """

    total: Float[Tensor, "layer"]
    size: Float[Tensor, "layer"]

    def of_window(self, layers: Sequence[int]) -> tuple[float, float]:
        """Return total and size of layers that are patched together."""
        some = list(layers)
        return float(self.total[some].sum()), float(self.size[some].norm())


def evidence_of_streams(adapter: Adapter, batch: SwapBatch, swap: AnchorSwap, streams: SlotStreams, site: SiteLike) -> Evidence:
    """Return the evidence that a swap with given activations should leave.

    Args:
        adapter: The model.
        batch: The batch.
        swap: A swap of the batch.
        streams: Activations that it patches in, [layer example slot d_model], of head sites (head d_head).
        site: Patched site.
    """
    patches = _Patches(adapter, batch, swap, site)
    for layer, activations in enumerate(streams):
        patches.add(layer, activations[patches.row, patches.slot].unflatten(-1, (patches.n_heads, -1))[:, patches.heads])
    return patches.evidence()


@torch.no_grad()
def evidence_of_sources(adapter: Adapter, batch: SwapBatch, site: SiteLike, n_rows: int) -> list[Evidence]:
    """Return the evidence that the swaps of a batch should leave, from full forward passes of rows and donors.

    Args:
        adapter: The model.
        batch: Batch whose swaps have a ``source``.
        site: Patched site.
        n_rows: Maximum number of rows of a forward pass.
    """
    assert batch.donors is not None  # the swaps have a source
    bases, donors = token_rows(batch.tokens), token_rows(batch.donors)
    patches = [_Patches(adapter, batch, swap, site) for swap in batch.swaps]

    def note(value: Tensor, hook: Any, layer: int, rows: range) -> Tensor:  # noqa: ARG001
        own, other = by_head(value, site).chunk(2)
        for each in patches:
            each.add_sources(layer, own, other, rows)
        return value

    step = max(1, n_rows // 2)
    for start in range(0, len(bases), step):
        rows = range(start, min(start + step, len(bases)))
        together = pad_rows([*bases[start : rows.stop], *donors[start : rows.stop]])
        hooks: list[Hook] = [
            (adapter.hook_name(site, layer), partial(note, layer=layer, rows=rows)) for layer in range(adapter.n_layers)
        ]
        last_stream(adapter, together, hooks)
    return [each.evidence() for each in patches]


class _Patches:
    """Activations that a swap should write, and their evidence."""

    def __init__(self, adapter: Adapter, batch: SwapBatch, swap: AnchorSwap, site: SiteLike) -> None:
        row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
        position = swap.slots.positions[row, slot]
        is_written, is_read = _find_writes(batch, swap, site, row, position)
        self.swap, self.row, self.slot, self.position = swap, row[is_written], slot[is_written], position[is_written]
        self.is_read = is_read[is_written]
        # Behind the last keys and values, only the positions that are read are computed.
        self.only_reads_at = None if str(site) in ("resid_pre", *_WITHIN_ATTENTION) else adapter.n_layers - 1
        self.n_heads, self.dtype = adapter.n_heads(site), adapter.shape.dtype
        self.heads = slice(0, self.n_heads) if swap.heads is None else slice(swap.heads.start, swap.heads.stop)
        self.total = torch.zeros(adapter.n_layers, dtype=torch.float64, device="cpu")
        self.square = torch.zeros(adapter.n_layers, dtype=torch.float64, device="cpu")

    def add(self, layer: int, values: Float[Tensor, "patch head width"], some: Int[Tensor, "patch"] | None = None) -> None:
        """Add activations that are written in a layer; ``some``: their indices among all, if they are not all."""
        some = torch.arange(len(self.row)) if some is None else some
        if layer == self.only_reads_at:
            values, some = values[self.is_read[some].to(values.device)], some[self.is_read[some]]
        head = torch.arange(self.n_heads)[self.heads]
        # The engine writes them in the dtype of the model.
        values = values.to(self.dtype)
        codes = code(layer, self.row[some, None], self.position[some, None], head, values.device)
        self.total[layer] += float((project(values, values.device) * codes).sum())
        self.square[layer] += float(values.to(evidence_dtype(values.device)).square().sum())

    def add_sources(
        self, layer: int, own: Float[Tensor, "row own head width"], other: Float[Tensor, "row own head width"], rows: range
    ) -> None:
        """Add the activations that come from donors; ``own``, ``other``: activations of some rows and of their donors."""
        source = self.swap.source
        assert source is not None  # see evidence_of_sources
        some = ((self.row >= rows.start) & (self.row < rows.stop)).nonzero()[:, 0]
        row, slot = self.row[some], self.slot[some]
        values = other[row - rows.start, source.positions[row, slot], self.heads]
        for n, (i, k, position) in enumerate(zip(row.tolist(), slot.tolist(), self.position[some].tolist(), strict=True)):
            if i in self.swap.directions:
                base = own[i - rows.start, position, self.heads]
                direction = self.swap.directions[i][k]
                values[n] = move(base.flatten(), values[n].flatten(), direction).view_as(base).to(values.dtype)
        self.add(layer, values, some)

    def evidence(self) -> Evidence:
        """Return the evidence of what was added."""
        return Evidence(self.total, self.square.sqrt())


def _find_writes(
    batch: SwapBatch, swap: AnchorSwap, site: SiteLike, row: Int[Tensor, "patch"], position: Int[Tensor, "patch"]
) -> tuple[Bool[Tensor, "patch"], Bool[Tensor, "patch"]]:
    """Return which patches are written below the last layer, and which are at positions that are read.

    A patch behind the last read position has no effect. One before the start of the cone equals the source's own run, from which
    the engine takes its keys and values.
    """
    reads = set(zip(batch.reader.row.tolist(), batch.reader.position.tolist(), strict=True))
    places = list(zip(row.tolist(), position.tolist(), strict=True))
    is_read = torch.tensor([place in reads for place in places], dtype=torch.bool)
    if str(site) in _WITHIN_ATTENTION:
        return torch.ones_like(is_read), is_read
    last: dict[int, int] = {}
    for i, read in reads:
        last[i] = max(last.get(i, -1), read)
    start: dict[int, int] = {}
    if swap.source is not None:
        (cones,) = SwapPlan(SwapBatch(batch.tokens, batch.reader, (swap,), batch.donors), site).cones
        start = {i: first for i, (first, _) in cones.items()}
    is_written = [start.get(i, 0) <= p <= last.get(i, -1) for i, p in places]
    return torch.tensor(is_written, dtype=torch.bool), is_read
