"""Statistics as donors: mean stream, zeros and noise (METHOD 4)."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anchorlens.constants import draw_label
from anchorlens.engine.hooked_passes import capture
from anchorlens.engine.patches import Slots, TokenBatch, pad_rows
from anchorlens.measure.patched_pairs import Pair, Placement, make_generator
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.questions.donors import SEGMENTS
from anchorlens.questions.tokens import TokenRow
from anchorlens.typing import SlotStreams

REFERENCE_ROWS = 64


def reference_rows(pool: Sequence[TokenRow], seed: int) -> tuple[TokenRow, ...]:
    """Draw the rows for means and spreads: at most 64 of the whole file."""
    n = min(REFERENCE_ROWS, len(pool))
    return tuple(random.Random(f"{seed}:reference").sample(list(pool), n))


def _roles_of(anchor: str) -> tuple[str, ...]:
    """Return the roles whose positions form an anchor."""
    return tuple(SEGMENTS.get(anchor, (anchor,)))


class StreamStatistics:
    """Means and spreads of clean streams over reference rows, computed on first use; ``seed`` draws
    the noise.
    """

    def __init__(
        self,
        adapter: Adapter,
        reference: Sequence[TokenRow],
        site: SiteLike,
        seed: int,
        *,
        batch_size: int = 16,
    ) -> None:
        self.adapter = adapter
        self.reference = tuple(reference)
        self.site = site
        self.seed = seed
        self.batch_size = batch_size

    @cached_property
    def mean(self) -> dict[str, Float[Tensor, "layer offset d_model"]]:
        """Role -> mean stream at each offset."""
        roles = [role for role in self.reference[0].positions if role not in SEGMENTS]
        sums: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}
        for mask, streams in self._clean(*[partial(_positions_of, role) for role in roles]):
            for role, here, stream in zip(roles, mask, streams, strict=True):
                _accumulate(sums, role, (stream * here[None, :, :, None]).sum(1))
                _accumulate(counts, role, here.sum(0).float()[None, :, None])
        return {role: sums[role] / counts[role].clamp(min=1) for role in sums}

    @cached_property
    def std(self) -> Float[Tensor, "layer"]:
        """Standard deviation of the stream at every layer, over reference rows, prompt positions
        (except 0) and dimensions.
        """
        zeros = torch.zeros(self.adapter.n_layers, dtype=torch.float32, device="cpu")
        first = zeros
        second = zeros
        n = 0
        for (mask,), (stream,) in self._clean(lambda row: range(1, row.prompt_length)):
            inner = stream[:, mask]
            first = first + inner.sum((1, 2))
            second = second + inner.pow(2).sum((1, 2))
            n += inner.shape[1] * inner.shape[2]
        return (second / n - (first / n).pow(2)).sqrt()

    @cached_property
    def embedding_std(self) -> float:
        """Standard deviation of the token embeddings of the reference rows."""
        ids = list(chain.from_iterable(row.ids for row in self.reference))
        return float(self.adapter.embedding[ids].detach().float().std())

    def _clean(
        self, *wanted: Callable[[TokenRow], Sequence[int]]
    ) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yield masks and clean streams of batches of reference rows, at one or more sets of
        positions.
        """
        for start in range(0, len(self.reference), self.batch_size):
            rows = self.reference[start : start + self.batch_size]
            slots: list[Slots] = []
            for where in wanted:
                table = pad_rows([list(where(row)) for row in rows])
                slots.append(Slots(table.ids, table.mask))
            tokens = pad_rows([row.ids for row in rows])
            streams = capture(self.adapter, tokens, self.site, slots)
            yield [one.mask for one in slots], [stream.float().cpu() for stream in streams]

    def covers(self, row: TokenRow, anchors: Sequence[str]) -> bool:
        """Return whether the mean covers every offset of the row's anchors."""
        for role in chain.from_iterable(map(_roles_of, anchors)):
            if len(row.positions[role]) > self.mean[role].shape[1]:
                return False
        return True

    def batch_streams(
        self, rule: str, pairs: Sequence[Pair[TokenRow]], tokens: TokenBatch, slots: Sequence[Slots]
    ) -> list[SlotStreams]:
        """Return the streams for the slots of every anchor of a batch."""
        clean: Sequence[SlotStreams | None] = [None] * len(slots)
        if rule == "noise":
            clean = capture(self.adapter, tokens, self.site, slots)
        out: list[SlotStreams] = []
        for i, (table, streams) in enumerate(zip(slots, clean, strict=True)):
            places = [(pair.target, pair.placements[i]) for pair in pairs]
            out.append(self.streams(rule, places, table.mask, streams))
        return out

    def streams(
        self,
        rule: str,
        places: Sequence[tuple[TokenRow, Placement]],
        mask: Bool[Tensor, "example slot"],
        clean: SlotStreams | None,
    ) -> SlotStreams:
        """Return the streams for the slots of one anchor.

        ``mean``: mean stream of the same role and offset. ``zero``: zeros. ``noise``: the row's
        stream (``clean``) plus Gaussian noise with the standard deviation of the stream at that
        layer; at layer 0 of ``resid_pre`` three times that of the embeddings (Meng et al. 2022).
        All layers of a slot share one noise vector, so that layers are comparable.
        """
        n_layers = self.adapter.n_layers
        d_model = self.adapter.d_model
        out = torch.zeros(n_layers, *mask.shape, d_model, dtype=torch.float32, device="cpu")
        if rule == "zero":
            return out
        for i, (row, place) in enumerate(places):
            n = int(mask[i].sum())
            if rule == "mean":
                parts: list[Tensor] = []
                for role in _roles_of(place.anchor):
                    length = len(row.positions[role])
                    parts.append(self.mean[role][:, :length])
                out[:, i, :n] = torch.cat(parts, 1)[:, :n]
            else:
                assert clean is not None  # the caller captured it for this rule
                scale = self.std.clone()
                if self.site == "resid_pre":
                    scale[0] = 3 * self.embedding_std
                noise = torch.randn(
                    n,
                    d_model,
                    generator=self._generator(row, place),
                    dtype=torch.float32,
                    device="cpu",
                )
                out[:, i, :n] = clean[:, i, :n].float().cpu() + scale[:, None, None] * noise
        return out

    def _generator(self, row: TokenRow, place: Placement) -> torch.Generator:
        # Random directions take the norm of the swap's own noise.
        control = "none" if place.direction_label else place.control
        return make_generator(f"{self.seed}:noise:{row.id}:{draw_label(place.anchor)}:{control}")


def _positions_of(role: str, row: TokenRow) -> Sequence[int]:
    return row.positions[role]


def _accumulate(
    into: dict[str, Tensor], role: str, value: Float[Tensor, "layer offset last"]
) -> None:
    """Add a table to a sum; tables may differ in their number of offsets."""
    old = into.get(role)
    if old is None:
        into[role] = value
        return
    width = max(old.shape[1], value.shape[1])
    pad = torch.nn.functional.pad
    into[role] = pad(old, (0, 0, 0, width - old.shape[1])) + pad(
        value, (0, 0, 0, width - value.shape[1])
    )
