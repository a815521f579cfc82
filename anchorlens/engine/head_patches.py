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
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.evidence import code, evidence_dtype, project, projection
from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch, by_head
from anchorlens.engine.reference import swap_streams
from anchorlens.models.adapter import Adapter, Hook
from anchorlens.models.devices import index_on, on


@dataclass(frozen=True)
class OutputPatches:
    """Patches of the heads' outputs z.

    Attributes:
        batch: Swaps with ``streams`` [layer example slot (head d_head)] of z, in half precision
            its change by the patch. A patched key or value changes the query heads of its group at
            all later positions; a patched query or pattern changes its own head and position.
        evidence: Evidence of what was written at the site itself
            (:mod:`anchorlens.engine.evidence`), on the CPU; 0 for ``z``.
    """

    batch: SwapBatch
    evidence: Float[Tensor, "swap layer"]


def as_output_patches(adapter: Adapter, batch: SwapBatch, site: str) -> OutputPatches:
    """Return the same patches as given activations of ``z``.

    ``site``: ``z``, ``q``, ``k``, ``v`` or ``pattern``.
    """
    streams = swap_streams(adapter, batch, site)
    shape = (len(batch.swaps), adapter.n_layers)
    dtype = evidence_dtype(adapter.device)
    evidence = torch.zeros(shape, dtype=dtype, device="cpu").to(adapter.device)
    made: list[AnchorSwap] = []
    for swap, own in zip(batch.swaps, streams, strict=True):
        made.append(replace(swap, source=None, directions={}, streams=own))
    if site != "z":
        clean = _outputs(adapter, batch, [])
        mixed = adapter.norms_heads_together and site in ("q", "k")
        n_heads = 1 if mixed else adapter.n_heads(site)
        groups = _group_independent(made, by_position=site not in ("k", "v"), n_heads=n_heads)
        for group in groups:  # each swap is in one of them
            z = _outputs(adapter, batch, [(made[i], site) for i in group], clean, evidence, group)
            # The model's own pass rounds attention in another way than the cone engine, which would
            # count as an effect. The change has no such difference.
            is_change = adapter.shape.is_half
            if is_change:
                z = z - clean
            # Heads at the same positions share their streams.
            of_positions: dict[tuple[int, ...], Tensor] = {}
            rows = torch.arange(z.shape[1])[:, None]
            for i in group:
                own = _output_patch(adapter, batch, made[i], site, mixed=mixed)
                positions = own.slots.positions
                key = (*positions.shape, *positions.flatten().tolist())
                if key not in of_positions:
                    of_positions[key] = z[:, rows, positions]
                made[i] = replace(own, streams=of_positions[key], is_change=is_change)
    return OutputPatches(replace(batch, swaps=tuple(made), donors=None), evidence.double().cpu())


def _output_patch(
    adapter: Adapter,
    batch: SwapBatch,
    swap: AnchorSwap,
    site: str,
    *,
    mixed: bool,
) -> AnchorSwap:
    """Return the patch of z that has the effect of a swap, without its streams.

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
    return replace(swap, slots=slots, heads=heads, streams=None)


def _outputs(
    adapter: Adapter,
    batch: SwapBatch,
    swaps: Sequence[tuple[AnchorSwap, str]],
    restored: Float[Tensor, "layer example pos all"] | None = None,
    evidence: Float[Tensor, "swap layer"] | None = None,
    numbers: Sequence[int] = (),
) -> Float[Tensor, "layer example pos all"]:
    """Compute z of every layer with patches in each layer, of which none reaches the next layer.

    ``evidence``: evidence of the patches, to which that of ``swaps`` is written; ``numbers``: their
    numbers.
    """
    seen: list[Tensor] = []

    def read(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        seen.append(value.flatten(2).to(adapter.device, copy=True))
        if restored is None:
            return value
        return restored[len(seen) - 1].view_as(value).to(value.device)

    layers = range(adapter.n_layers)
    hooks: list[Hook] = []
    if swaps:
        site = swaps[0][1]
        writer = _Writer(adapter, [swap for swap, _ in swaps], site)
        for layer in layers:
            name = adapter.hook_name(site, layer)
            hooks.append((name, partial(writer.write, layer=layer)))
            if evidence is not None:
                note = partial(writer.note, layer=layer, evidence=evidence, numbers=numbers)
                hooks.append((name, note))
    reads: list[Hook] = [(adapter.hook_name("z", layer), read) for layer in layers]
    last_stream(adapter, batch.tokens, [*hooks, *reads])
    return torch.stack(seen)


@dataclass(frozen=True)
class _Written:
    """Activations that the swaps of a pass write, on one device.

    Attributes:
        index: Row, position and head of each.
        swap: Number of its swap among those of the pass.
        values: Activations that are written, at every layer.
        codes: Number of its place in every layer (:mod:`anchorlens.engine.evidence`).
        weights: Weights of the entries of an activation.
    """

    index: tuple[Int[Tensor, "entry"], Int[Tensor, "entry"], Int[Tensor, "entry"]]
    swap: Int[Tensor, "entry"]
    values: Float[Tensor, "layer entry width"]
    codes: Float[Tensor, "layer entry"]
    weights: Float[Tensor, "width"]


class _Writer:
    """Hooks that write all swaps of a pass at their site, and note what was written.

    Args:
        adapter: The model.
        swaps: Swaps with ``streams``, of which no two write the same activation.
        site: Site of all of them.
    """

    def __init__(self, adapter: Adapter, swaps: Sequence[AnchorSwap], site: str) -> None:
        self._adapter = adapter
        self._site = site
        n_heads = adapter.n_heads(site)
        # Swap, row, position and head of each activation, and its values at every layer.
        places: list[Int[Tensor, "4 entry"]] = []
        values: list[Float[Tensor, "layer entry width"]] = []
        for number, swap in enumerate(swaps):
            assert swap.streams is not None  # see the class
            row, slot = torch.nonzero(swap.slots.mask, as_tuple=True)
            position = swap.slots.positions[row, slot]
            heads = range(n_heads) if swap.heads is None else swap.heads
            own = swap.streams.unflatten(-1, (n_heads, -1))[..., heads.start : heads.stop, :]
            at = on(own.device, row), on(own.device, slot)
            values.append(
                rearrange(own[:, at[0], at[1]], "layer patch head w -> layer (head patch) w")
            )
            for head in heads:
                same = torch.tensor([number, head])[:, None].expand(-1, len(row))
                places.append(torch.stack([same[0], row, position, same[1]]))
        self._places = torch.cat(places, 1)
        self._values = torch.cat(values, 1)
        self._on: dict[torch.device, _Written] = {}

    def write(self, value: Tensor, hook: Any, layer: int) -> Tensor:  # noqa: ARG002
        """Return the activations of a layer with those of the swaps."""
        written = self._tables_on(value.device)
        changed = value.clone()
        by_head(changed, self._site)[written.index] = written.values[layer].to(value.dtype)
        return changed

    def note(
        self,
        value: Tensor,
        hook: Any,  # noqa: ARG002
        layer: int,
        evidence: Float[Tensor, "swap layer"],
        numbers: Sequence[int],
    ) -> Tensor:
        """Add the evidence of a layer to that of the swaps, whose numbers in ``evidence`` are
        ``numbers``.
        """
        written = self._tables_on(value.device)
        entries = by_head(value, self._site)[written.index]
        terms = project(entries, written.weights) * written.codes[layer]
        sums = terms.new_zeros(len(numbers)).index_add_(0, written.swap, terms)
        evidence[index_on(evidence.device, tuple(numbers)), layer] += sums.to(evidence.device)
        return value

    def _tables_on(self, device: torch.device) -> _Written:
        """Return the tables on a device; blocks may lie on several."""
        if device not in self._on:
            _, row, position, head = self._places
            layers = torch.arange(self._adapter.n_layers)[:, None]
            there = on(device, self._places)
            self._on[device] = _Written(
                index=(there[1], there[2], there[3]),
                swap=there[0],
                values=self._values.to(device),
                codes=code(layers, row, position, head, device),
                weights=projection(self._values.shape[-1], device),
            )
        return self._on[device]


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
