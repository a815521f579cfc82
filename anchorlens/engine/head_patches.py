"""Patches of queries, keys, values and attention patterns, as patches of the heads' outputs z.

Within a layer a changed query, key, value or pattern acts through z only, and the streams into that layer are those of the clean
run. So z after the patch is computed for all layers in one pass that restores the clean z behind each layer's attention. Patches
that act on different entries of z share a pass. This holds for a patch in one layer, not for windows of layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.landing import code, evidence_dtype, project
from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.reference import by_head, last_stream, swap_hooks, swap_streams
from anchorlens.models.adapter import Adapter, Hook


@dataclass(frozen=True)
class OutputPatches:
    """Patches of the heads' outputs z.

    Attributes:
        batch: Swaps with ``streams`` [layer example slot (head d_head)] of z. A patched key or value changes the query heads of its
            group at all later positions; a patched query or pattern changes its own head and position.
        landed: Evidence of what was written at the site itself (:mod:`anchorlens.engine.landing`), on the CPU; 0 for ``z``.
    """

    batch: SwapBatch
    landed: Float[Tensor, "swap layer"]


def as_output_patches(adapter: Adapter, batch: SwapBatch, site: str) -> OutputPatches:
    """Return the same patches as given activations of ``z``; ``site``: ``z``, ``q``, ``k``, ``v`` or ``pattern``."""
    streams = swap_streams(adapter, batch, site)
    shape = len(batch.swaps), adapter.n_layers
    landed = torch.zeros(shape, dtype=evidence_dtype(adapter.device), device="cpu").to(adapter.device)
    made = [replace(swap, source=None, directions={}, streams=one) for swap, one in zip(batch.swaps, streams, strict=True)]
    if site != "z":
        clean = _outputs(adapter, batch, [])
        found: dict[int, AnchorSwap] = {}
        mixed = adapter.norms_heads_together and site in ("q", "k")
        n_heads = 1 if mixed else adapter.n_heads(site)
        for group in _group_independent(made, by_position=site not in ("k", "v"), n_heads=n_heads):
            z = _outputs(adapter, batch, [(made[i], site) for i in group], clean, landed, group)
            found |= {i: _output_patch(adapter, batch, made[i], site, z, mixed=mixed) for i in group}
        made = [found[i] for i in range(len(made))]
    return OutputPatches(replace(batch, swaps=tuple(made), donors=None), landed.double().cpu())


def _output_patch(
    adapter: Adapter, batch: SwapBatch, swap: AnchorSwap, site: str, z: Float[Tensor, "layer example pos all"], *, mixed: bool
) -> AnchorSwap:
    """Return the patch of z that has the effect of a swap; ``z``: outputs after the swap; ``mixed``: it changes all heads."""
    slots, heads = swap.slots, None if mixed else swap.heads
    if site in ("k", "v"):
        # Queries before the first changed key do not attend to it.
        width = batch.tokens.ids.shape[1]
        first = torch.where(slots.mask, slots.positions, width).amin(1)
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

    ``landed``: evidence of the patches, to which that of ``swaps`` is written; ``numbers``: their numbers.
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
                terms = project(values, values.device) * code(layer, row, position, head, values.device)
                landed[number, layer] += terms.sum().to(landed.device)
        return value

    def read(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        seen.append(value.flatten(2).to(adapter.device, copy=True))
        return value if restored is None else restored[len(seen) - 1].view_as(value).to(value.device)

    layers = range(adapter.n_layers)
    reads: list[Hook] = [(adapter.hook_name("z", layer), read) for layer in layers]
    patches = [
        hook
        for swap, site in swaps
        if swap.streams is not None
        for hook in swap_hooks(adapter, swap.slots, swap.streams, site, layers, swap.heads)
    ]
    notes: list[Hook] = []
    if landed is not None:
        notes = [(adapter.hook_name(swaps[0][1], layer), partial(note, layer=layer)) for layer in layers]
    last_stream(adapter, batch.tokens, [*patches, *notes, *reads])
    return torch.stack(seen)


def _group_independent(swaps: Sequence[AnchorSwap], *, by_position: bool, n_heads: int) -> list[list[int]]:
    """Group swaps so that no two of a group change the same head of a row, or with ``by_position`` the same head and position."""
    groups: list[tuple[set[tuple[int, ...]], list[int]]] = []
    for i, swap in enumerate(swaps):
        row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
        places = zip(row.tolist(), swap.slots.positions[row, slot].tolist() if by_position else [0] * len(row), strict=True)
        heads = range(n_heads) if swap.heads is None or n_heads == 1 else swap.heads
        keys = {(*place, head) for place in set(places) for head in heads}
        free = next((group for group in groups if not group[0] & keys), None)
        if free is None:
            groups.append((set(keys), [i]))
        else:
            free[0].update(keys)
            free[1].append(i)
    return [members for _, members in groups]
