"""Index tensors of a layout on the device of a block.

Blocks may lie on several devices. A pass makes a new index where the next block is on another
device, or where the last block drops tokens that nothing reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from anchorlens.engine.cone_attention import GroupAttention
from anchorlens.engine.cone_layout import Layout, joint_attention
from anchorlens.engine.patches import PatchIndex
from anchorlens.models.devices import on


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
    patches: PatchIndex | None

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> "DeviceIndex":
        """Move the index tensors of a layout to a device."""
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
            patches=None if patches is None else patches.to(device),
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
