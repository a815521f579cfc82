"""Index tensors of a layout on the device of a block.

Blocks may lie on several devices. A pass makes a new index where the next block is on another
device, or where the last block drops tokens that nothing reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.cone_attention import GroupAttention
from anchorlens.engine.cone_layout import Layout, PatchIndex, joint_attention
from anchorlens.models.devices import on


@dataclass(frozen=True, kw_only=True)
class DevicePatches:
    """Activations that are patched into lanes, on a device.

    Attributes:
        cell: Token of a lane that each patch replaces.
        clean: Clean token whose stream replaces it; 0 for given streams.
        streams: Given streams at every layer.
        streams_at: Index into ``cell`` of each given stream.
        directions: Directions towards which clean tokens are turned, at every layer.
        moved: Clean token that is turned towards each direction.
        moved_at: Index into ``cell`` of each direction.
        heads: Head of z that each patch replaces; None for other sites.
        tokens: Distinct tokens of a lane that are patched. Only in z a token may be patched several
            times: in several heads.
        entry: Index into ``tokens`` of each patch in z; for other sites equal to ``cell``.
    """

    cell: Int[Tensor, "patch"]
    clean: Int[Tensor, "patch"]
    streams: Float[Tensor, "layer given width"] | None
    streams_at: Int[Tensor, "given"]
    directions: Float[Tensor, "layer moved d_model"] | None
    moved: Int[Tensor, "moved"]
    moved_at: Int[Tensor, "moved"]
    heads: Int[Tensor, "patch"] | None
    tokens: Int[Tensor, "token"]
    entry: Int[Tensor, "patch"]

    @classmethod
    def of(cls, patches: PatchIndex, device: torch.device, site: str) -> "DevicePatches":
        """Move patches of a site to a device."""
        if site == "z":
            tokens, entry = patches.cell.unique(return_inverse=True)
        else:
            tokens = entry = patches.cell
        return cls(
            cell=on(device, patches.cell),
            clean=on(device, patches.clean.clamp(min=0)),
            streams=None if patches.streams is None else on(device, patches.streams),
            streams_at=on(device, patches.streams_at),
            directions=None if patches.directions is None else on(device, patches.directions),
            moved=on(device, patches.moved),
            moved_at=on(device, patches.moved_at),
            heads=None if patches.heads is None else on(device, patches.heads),
            tokens=on(device, tokens),
            entry=on(device, entry),
        )


@dataclass(frozen=True, kw_only=True)
class DeviceIndex:
    """Index tensors of a layout on a device.

    Attributes:
        layout: Index tensors on the CPU.
        device: Device of the block that runs next.
        n_clean: Number of clean tokens.
        n_cell: Number of tokens of one lane.
        positions: Positions of the clean tokens.
        cell_positions: Positions of the tokens of a lane.
        join: Clean token that each token of a lane is copied from when the lane starts.
        patches: Patches; None for knockouts and clean passes.
    """

    layout: Layout
    device: torch.device
    n_clean: int
    n_cell: int
    positions: Int[Tensor, "clean_token"]
    cell_positions: Int[Tensor, "cell_token"]
    join: Int[Tensor, "cell_token"]
    patches: DevicePatches | None

    @classmethod
    def of(cls, layout: Layout, device: torch.device, site: str) -> "DeviceIndex":
        """Move the index tensors of a layout to a device; ``site``: patched site, "" for none."""
        join: list[int] = []
        for cells in layout.cell_groups:
            join += cells.join
        patches = layout.patches
        return cls(
            layout=layout,
            device=device,
            n_clean=len(layout.clean_rows.ids),
            n_cell=layout.n_cell_tokens,
            positions=on(device, layout.clean_rows.positions),
            cell_positions=on(device, torch.tensor(layout.cell_positions, dtype=torch.long)),
            join=on(device, torch.tensor(join, dtype=torch.long)),
            patches=None if patches is None else DevicePatches.of(patches, device, site),
        )

    @cached_property
    def groups(self) -> Sequence[GroupAttention]:
        """Attention groups of the layout, clean rows first."""
        return self.groups_of(self.layout)

    def groups_of(self, queries: Layout) -> list[GroupAttention]:
        """Return attention groups, clean rows first, whose queries are the tokens of ``queries``;
        keys and values are those of all tokens of this layout.
        """
        clean = slice(0, self.n_clean)
        groups = [GroupAttention(queries.clean_rows.attention, self.device, clean)]
        for numbers in queries.attention_ranges(joint_attention(self.device)):
            first = self.layout.cell_groups[numbers.start].first
            stop = self.layout.cell_groups[numbers[-1]].stop
            cut = queries.cuts[numbers.start] if queries.cuts else None
            own = queries.attention(numbers)
            groups.append(GroupAttention(own, self.device, slice(first, stop), cut))
        return groups
