"""Right-padded batches of token ids, and common prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from anchorlens.errors import InputError


@dataclass(frozen=True)
class TokenBatch:
    """Right-padded token ids; the mask is True at tokens, False at padding."""

    ids: Int[Tensor, "example pos"]
    mask: Bool[Tensor, "example pos"]

    def to(self, device: torch.device) -> "TokenBatch":
        """Return the batch on another device."""
        return replace(self, ids=self.ids.to(device), mask=self.mask.to(device))


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int = 0) -> TokenBatch:
    """Right-pad rows of token ids into one batch on the CPU; ``pad_id`` changes no results, because
    padding is masked.
    """
    if not rows:
        raise InputError("rows=[]: empty. Give at least one row.")
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long, device="cpu")
    mask = torch.zeros((len(rows), width), dtype=torch.bool, device="cpu")
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row, dtype=torch.long, device="cpu")
        mask[i, : len(row)] = True
    return TokenBatch(ids=ids, mask=mask)


def common_prefix(rows: Sequence[Sequence[int]], longest: int) -> int:
    """Return the number of tokens that all rows begin with, at most ``longest``."""
    if not rows:
        return 0
    n = max(0, min(longest, *map(len, rows)))
    for row in rows[1:]:
        shared = 0
        while shared < n and row[shared] == rows[0][shared]:
            shared += 1
        n = shared
    return n
