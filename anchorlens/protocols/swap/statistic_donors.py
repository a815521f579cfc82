"""Donor rules that are no row: the mean stream, zero, and noise (METHOD 4)."""

import hashlib
import random
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anchorlens.engine.interventions import Slots
from anchorlens.engine.reference import capture
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.questions.donors import SEGMENTS
from anchorlens.questions.tokens import TokenRow, pad_rows
from anchorlens.typing import SlotStreams

REFERENCE_ROWS = 64


@runtime_checkable
class Place(Protocol):
    """What the streams are for: an anchor, its control, and as many sources as slots."""

    @property
    def anchor(self) -> str: ...
    @property
    def control(self) -> str: ...
    @property
    def source(self) -> tuple[int, ...]: ...


class StreamStatistics:
    """Means and spreads of clean streams over reference rows.

    Args:
        adapter: The model.
        pool: Rows of the whole file; at most 64 of them, drawn by seed, are the reference.
        site: Where in the block.
        seed: Draws reference rows and noise.

    Attributes:
        reference: The rows that were used.
        mean: Role -> mean stream by offset, [layer offset d_model].
        std: Standard deviation of the stream at every layer, over reference rows, prompt positions (but the first) and
            dimensions, [layer].
        embedding_std: Standard deviation of the reference rows' token embeddings.
    """

    def __init__(self, adapter: Adapter, pool: Sequence[TokenRow], site: SiteLike, seed: int, *, batch_size: int) -> None:
        rng = random.Random(f"{seed}:reference")
        self.reference = tuple(rng.sample(list(pool), min(REFERENCE_ROWS, len(pool))))
        self.seed, self.n_layers, self.d_model = seed, adapter.n_layers, adapter.d_model
        self.at_embedding = site == "resid_pre"
        sums: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}
        first, second, n = torch.zeros(adapter.n_layers), torch.zeros(adapter.n_layers), 0
        for start in range(0, len(self.reference), batch_size):
            rows = self.reference[start : start + batch_size]
            prompts = pad_rows([[*range(row.prompt_length)] for row in rows])
            roles = [role for role in rows[0].positions if role not in SEGMENTS]
            tables = [pad_rows([list(row.positions[role]) for row in rows]) for role in roles]
            wanted = [Slots(t.ids, t.mask) for t in (prompts, *tables)]
            whole, *parts = [t.float().cpu() for t in capture(adapter, pad_rows([row.ids for row in rows]), site, wanted)]
            inner = whole[:, prompts.mask & (prompts.ids > 0)]
            first, second = first + inner.sum((1, 2)), second + inner.pow(2).sum((1, 2))
            n += inner.shape[1] * inner.shape[2]
            for role, table, part in zip(roles, tables, parts, strict=True):
                total = (part * table.mask[None, :, :, None]).sum(1)
                _accumulate(sums, role, total)
                _accumulate(counts, role, table.mask.sum(0).float()[None, :, None])
        self.mean = {role: sums[role] / counts[role].clamp(min=1) for role in sums}
        self.std = (second / n - (first / n).pow(2)).sqrt()
        ids = torch.tensor([i for row in self.reference for i in row.ids], device=adapter.device)
        self.embedding_std = float(adapter.model.embed.W_E[ids].detach().float().std())

    def covers(self, row: TokenRow, anchors: Sequence[str]) -> bool:
        """Whether the mean knows every offset of the row's anchors."""
        roles = [role for anchor in anchors for role in SEGMENTS.get(anchor, (anchor,))]
        return all(len(row.positions[role]) <= self.mean[role].shape[1] for role in roles)

    def streams(
        self,
        rule: str,
        places: Sequence[tuple[TokenRow, Place]],
        mask: Bool[Tensor, "example slot"],
        clean: SlotStreams | None,
    ) -> SlotStreams:
        """What is put at the slots.

        ``mean``: the mean stream of the same role and offset. ``zero``: zeros. ``noise``: the row's own stream (``clean``) plus
        Gaussian noise with the stream's standard deviation at that layer; at layer 0 of ``resid_pre`` three times the embeddings'
        (Meng et al. 2022). One noise vector serves all layers of a row's slot, so that a curve shows layers and not draws.
        """
        out = torch.zeros(self.n_layers, *mask.shape, self.d_model)
        if rule == "zero":
            return out
        for i, (row, place) in enumerate(places):
            n = int(mask[i].sum())
            if rule == "mean":
                whole = torch.cat(
                    [self.mean[r][:, : len(row.positions[r])] for r in SEGMENTS.get(place.anchor, (place.anchor,))], 1
                )
                out[:, i, :n] = whole[:, :n]
            else:
                assert clean is not None  # the caller captured it for this rule
                scale = self.std.clone()
                if self.at_embedding:
                    scale[0] = 3 * self.embedding_std
                noise = torch.randn(n, self.d_model, generator=self._generator(row, place))
                out[:, i, :n] = clean[:, i, :n].float().cpu() + scale[:, None, None] * noise
        return out

    def _generator(self, row: TokenRow, place: Place) -> torch.Generator:
        label = f"{self.seed}:noise:{row.row_id}:{place.anchor}:{place.control}".encode()
        return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(label).digest()[:7], "big"))


def _accumulate(into: dict[str, Tensor], role: str, value: Float[Tensor, "layer offset last"]) -> None:
    """Add tables that may differ in their number of offsets."""
    old = into.get(role)
    if old is None:
        into[role] = value
        return
    width = max(old.shape[1], value.shape[1])
    pad = torch.nn.functional.pad
    into[role] = pad(old, (0, 0, 0, width - old.shape[1])) + pad(value, (0, 0, 0, width - value.shape[1]))
