"""Patches of queries, keys, values and attention patterns, as patches of the heads' outputs z.

Within a layer a changed query, key, value or pattern acts through z only, and the streams into that
layer are those of the clean run. So z after the patch is computed for all layers in one pass that
restores the clean z behind each layer's attention. Patches that act on different entries of z share
a pass. This holds for a patch in one layer, not for windows of layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.hooked_passes import by_head, last_stream
from anchorlens.engine.landing import code, evidence_dtype, project, projection
from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.reference import swap_hooks, swap_streams
from anchorlens.models.adapter import Adapter, Hook


@dataclass(frozen=True)
class OutputPatches:
    """Patches of the heads' outputs z.

    Attributes:
        batch: Swaps with ``streams`` [layer example slot (head d_head)] of z. A patched key or
            value changes the query heads of its group at all later positions; a patched query or
            pattern changes its own head and position.
        landed: Evidence of what was written at the site itself (:mod:`anchorlens.engine.landing`),
            on the CPU; 0 for ``z``.
    """

    batch: SwapBatch
    landed: Float[Tensor, "swap layer"]


def as_output_patches(adapter: Adapter, batch: SwapBatch, site: str) -> OutputPatches:
    """Return the same patches as given activations of ``z``; ``site``: ``z``, ``q``, ``k``, ``v``
    or ``pattern``.
    """
    streams = swap_streams(adapter, batch, site)
    shape = (len(batch.swaps), adapter.n_layers)
    dtype = evidence_dtype(adapter.device)
    landed = torch.zeros(shape, dtype=dtype, device="cpu").to(adapter.device)
    made: list[AnchorSwap] = []
    for swap, own in zip(batch.swaps, streams, strict=True):
        made.append(replace(swap, source=None, directions={}, streams=own))
    if site != "z":
        clean = _outputs(adapter, batch, [])
        mixed = adapter.norms_heads_together and site in ("q", "k")
        n_heads = 1 if mixed else adapter.n_heads(site)
        groups = _group_independent(made, by_position=site not in ("k", "v"), n_heads=n_heads)
        for group in groups:  # each swap is in one of them
            z = _outputs(adapter, batch, [(made[i], site) for i in group], clean, landed, group)
            for i in group:
                made[i] = _output_patch(adapter, batch, made[i], site, z, mixed=mixed)
    return OutputPatches(replace(batch, swaps=tuple(made), donors=None), landed.double().cpu())


def _output_patch(
    adapter: Adapter,
    batch: SwapBatch,
    swap: AnchorSwap,
    site: str,
    z: Float[Tensor, "layer example pos all"],
    *,
    mixed: bool,
) -> AnchorSwap:
    """Return the patch of z that has the effect of a swap; ``z``: outputs after the swap;
    ``mixed``: it changes all heads.
    """
    slots = swap.slots
    heads = None if mixed else swap.heads
    if site in ("k", "v"):
        # Queries before the first changed key do not attend to it.
        width = batch.tokens.ids.shape[1]
        patched = torch.where(slots.mask, slots.positions, width)
        # A row without patched positions, of which there may be none at all, has none after it.
        first = torch.nn.functional.pad(patched, (0, 1), value=width).amin(1)
        positions = torch.arange(width).expand(len(first), -1)
        slots = Slots(positions, (positions >= first[:, None]) & batch.tokens.mask)
        group = adapter.shape.n_heads // adapter.n_heads(site)
        heads = None if heads is None else range(heads.start * group, heads.stop * group)
    rows = torch.arange(len(slots.positions))[:, None]
    return replace(swap, slots=slots, heads=heads, streams=z[:, rows, slots.positions])


def _outputs(
    adapter: Adapter,
    batch: SwapBatch,
    swaps: Sequence[tuple[AnchorSwap, str]],
    restored: Float[Tensor, "layer example pos all"] | None = None,
    landed: Float[Tensor, "swap layer"] | None = None,
    numbers: Sequence[int] = (),
) -> Float[Tensor, "layer example pos all"]:
    """Compute z of every layer with patches in each layer, of which none reaches the next layer.

    ``landed``: evidence of the patches, to which that of ``swaps`` is written; ``numbers``: their
    numbers.
    """
    seen: list[Tensor] = []

    def note(value: Tensor, hook: Any, layer: int) -> Tensor:  # noqa: ARG001
        assert landed is not None  # else it is not attached
        for number, (swap, site) in zip(numbers, swaps, strict=True):
            row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
            position = swap.slots.positions[row, slot]
            table = by_head(value, site)
            for head in range(table.shape[2]) if swap.heads is None else swap.heads:
                values = table[row, position, head]
                weights = projection(values.shape[-1], values.device)
                terms = project(values, weights) * code(layer, row, position, head, values.device)
                landed[number, layer] += terms.sum().to(landed.device)
        return value

    def read(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        seen.append(value.flatten(2).to(adapter.device, copy=True))
        if restored is None:
            return value
        return restored[len(seen) - 1].view_as(value).to(value.device)

    layers = range(adapter.n_layers)
    reads: list[Hook] = [(adapter.hook_name("z", layer), read) for layer in layers]
    patches: list[Hook] = []
    for swap, site in swaps:
        if swap.streams is not None:
            patches += swap_hooks(adapter, swap.slots, swap.streams, site, layers, swap.heads)
    notes: list[Hook] = []
    if landed is not None:
        for layer in layers:
            name = adapter.hook_name(swaps[0][1], layer)
            notes.append((name, partial(note, layer=layer)))
    last_stream(adapter, batch.tokens, [*patches, *notes, *reads])
    return torch.stack(seen)


def _group_independent(
    swaps: Sequence[AnchorSwap], *, by_position: bool, n_heads: int
) -> list[list[int]]:
    """Group swaps so that no two of a group change the same head of a row, or with ``by_position``
    the same head and position.
    """
    groups: list[tuple[set[tuple[int, ...]], list[int]]] = []
    for i, swap in enumerate(swaps):
        row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
        positions = swap.slots.positions[row, slot].tolist() if by_position else [0] * len(row)
        heads = range(n_heads) if swap.heads is None or n_heads == 1 else swap.heads
        keys: set[tuple[int, ...]] = set()
        for place in set(zip(row.tolist(), positions, strict=True)):
            keys.update((*place, head) for head in heads)
        for changed, members in groups:
            if changed.isdisjoint(keys):
                changed |= keys
                members.append(i)
                break
        else:
            groups.append((keys, [i]))
    return [members for _, members in groups]
