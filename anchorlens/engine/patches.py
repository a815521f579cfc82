"""Interventions on a forward pass: activation patches, turned activations and cut attention edges,
in one layer or a window of layers, of right-padded rows of token ids. Patches of one pass of the
cone engine are index tensors (:class:`PatchIndex`).
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.engine.readouts import Reader
from anchorlens.errors import InputError
from anchorlens.models.adapter import SiteLike
from anchorlens.models.devices import on
from anchorlens.typing import SlotStreams

# Part of a direction orthogonal to the activation, below which it is parallel.
_PARALLEL = 1e-6


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


def token_rows(tokens: TokenBatch) -> list[tuple[int, ...]]:
    """Return the token ids of each row, without padding."""
    lengths = tokens.mask.sum(1).tolist()
    return [tuple(ids[:n]) for ids, n in zip(tokens.ids.tolist(), lengths, strict=True)]


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


OnProgress: TypeAlias = Callable[[float], object]
"""Progress callback; its argument is the share of the total work that was finished since the last
call.
"""


def no_progress(share: float) -> None:
    """Do nothing: default progress callback."""


@dataclass(frozen=True)
class Slots:
    """Positions in each row of a batch, padded to the same number of slots; the mask is True at
    used slots.
    """

    positions: Int[Tensor, "example slot"]
    mask: Bool[Tensor, "example slot"]


@dataclass(frozen=True, kw_only=True)
class AnchorSwap:
    """Activation patch of one anchor or control in the rows of a batch.

    Attributes:
        anchor: Name of the anchor.
        control: Name of the control; ``none`` for the anchor itself.
        slots: Positions that are patched.
        source: Positions in the donor rows, slot by slot; None if ``streams`` are given.
        streams: Given activations, [layer example slot d_model]; None if they are read from the
            donor rows.
        directions: Row -> direction of each of its slots at every layer. The activation of the
            clean row is turned towards it, as far as the donor's is turned
            (:func:`~anchorlens.engine.patches.turn`). In other rows the donor's activation
            itself is patched in.
        heads: Neighbouring heads of a head site that are patched; None for all of them, and for
            other sites.
        is_change: Whether ``streams`` are added to the clean activations, of ``z`` only, instead of
            replacing them.
    """

    anchor: str
    control: str
    slots: Slots
    source: Slots | None = None
    streams: SlotStreams | None = None
    directions: Mapping[int, Float[Tensor, "layer _ d_model"]] = field(default_factory=dict)
    heads: range | None = None
    is_change: bool = False


@dataclass(frozen=True)
class SwapBatch:
    """Rows that are measured together, with their patches.

    Attributes:
        tokens: Right-padded rows that are patched.
        reader: Reader of the metrics.
        swaps: Patches of every anchor and control; each is measured at every layer.
        donors: Right-padded donor of each row; None if no swap has a ``source``.
    """

    tokens: TokenBatch
    reader: Reader
    swaps: tuple[AnchorSwap, ...]
    donors: TokenBatch | None = None


@dataclass(frozen=True, kw_only=True)
class PatchIndex:
    """Activations that are patched into lanes.

    Attributes:
        lane_token: Token of a lane that is replaced.
        clean_token: Clean token whose stream replaces it; -1 for given streams.
        streams: Given streams at every layer.
        streams_at: Index into ``lane_token`` of each given stream.
        directions: Directions towards which clean tokens are turned instead, at every layer.
        turned: Clean token that is turned towards each direction.
        turned_at: Index into ``lane_token`` of each direction.
        heads: Head of z that is replaced by each given stream; None for other sites.
        is_change: Whether given streams are added to the clean ones instead of replacing them.
        tokens: Distinct tokens of a lane that are patched. Only in z a token may be patched several
            times: in several heads.
        entry: Index into ``tokens`` of each patch in z; for other sites equal to ``lane_token``.
    """

    lane_token: Int[Tensor, "token"]
    clean_token: Int[Tensor, "token"]
    streams: Float[Tensor, "layer given d_model"] | None
    streams_at: Int[Tensor, "given"]
    directions: Float[Tensor, "layer turned d_model"] | None
    turned: Int[Tensor, "turned"]
    turned_at: Int[Tensor, "turned"]
    heads: Int[Tensor, "token"] | None = None
    is_change: bool = False
    tokens: Int[Tensor, "distinct"] = field(init=False)
    entry: Int[Tensor, "token"] = field(init=False)

    def __post_init__(self) -> None:
        tokens = entry = self.lane_token
        if self.heads is not None:
            tokens, entry = self.lane_token.unique(return_inverse=True)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "entry", entry)

    def to(self, device: torch.device) -> "PatchIndex":
        """Return the same patches with their tensors on a device, where the clean token of given
        streams is 0.
        """
        on_device = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                own = value.clamp(min=0) if name == "clean_token" else value
                object.__setattr__(on_device, name, on(device, own))
        return on_device

    def written_heads(
        self,
        layer: int,
        table: Float[Tensor, "lane token head d_head"],
        clean: Tensor | None,
    ) -> Float[Tensor, "lane patch d_head"]:
        """Return the patched heads as they stand in a table, or their changes from ``clean``."""
        at = (slice(None), self.entry, self.heads)
        if clean is None:
            return table[at]
        assert self.streams is not None  # patches of z have them
        given = self.streams[layer].to(table.dtype)
        # A rounded sum is the change that was asked for.
        return torch.where(table[at] == clean[at] + given, given, table[at] - clean[at])

    def within(
        self, new_lane: Int[Tensor, "cell_token"], new_clean: Int[Tensor, "clean_token"]
    ) -> "PatchIndex":
        """Return the patches of a table with fewer tokens; ``new_lane`` and ``new_clean`` have the
        new index of each token, or -1.
        """
        kept = new_lane[self.lane_token] >= 0
        order = kept.cumsum(0) - 1
        given = kept[self.streams_at]
        turned = kept[self.turned_at]
        # Indices instead of masks, for whose number of entries the host would wait.
        streams = self.streams
        if streams is not None:
            streams = streams[:, on(streams.device, given.nonzero()[:, 0])]
        directions = self.directions
        if directions is not None:
            directions = directions[:, on(directions.device, turned.nonzero()[:, 0])]
        return PatchIndex(
            lane_token=new_lane[self.lane_token[kept]],
            clean_token=torch.where(self.clean_token < 0, -1, new_clean[self.clean_token])[kept],
            streams=streams,
            streams_at=order[self.streams_at[given]],
            directions=directions,
            turned=new_clean[self.turned[turned]],
            turned_at=order[self.turned_at[turned]],
            heads=None if self.heads is None else self.heads[kept],
            is_change=self.is_change,
        )


@dataclass(frozen=True, kw_only=True)
class KnockoutBatch:
    """Rows in which attention edges are cut, each variant separately.

    Attributes:
        tokens: Right-padded rows.
        row: Row of each state that is read.
        position: Position of each state in its row.
        edges: For each variant, True where position ``query`` does not attend to position ``key``.
        mode: ``mask`` or ``zero``, see :mod:`anchorlens.engine.knockout`.
        heads: Query heads in which edges are cut; if None, all.
    """

    tokens: TokenBatch
    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    edges: tuple[Bool[Tensor, "example query key"], ...]
    mode: str = "mask"
    heads: tuple[int, ...] | None = None


def check_windows(windows: Sequence[object]) -> None:
    """Raise InputError if a window of layers is not a range of neighbouring layers."""
    for window in windows:
        if not isinstance(window, range) or window.step != 1:
            raise InputError(
                f"layers={window!r}: not a range of neighbouring layers such as range(2, 5). Give"
                " several windows instead.",
                argument="layers",
            )


def window_layers(layer: int, window: int, n_layers: int) -> range:
    """Return the ``window`` layers centred at ``layer`` that are changed together, clipped to the
    model.

    For an even number the longer half lies above ``layer``.

    >>> window_layers(0, 3, 12), window_layers(5, 4, 12)
    (range(0, 2), range(4, 8))
    """
    start = layer - (window - 1) // 2
    return range(max(0, start), min(n_layers, start + window))


def turn(
    base: Float[Tensor, "*slot width"],
    donor: Float[Tensor, "*slot width"],
    direction: Float[Tensor, "*slot width"],
) -> Float[Tensor, "*slot width"]:
    """Return ``base`` turned towards ``direction``, with the donor's norm and angle to ``base``.

    With u = base / |base| and v the unit vector of the part of ``direction`` that is orthogonal to
    u, the result is (donor . u) u + |donor - (donor . u) u| v. Half precision is too coarse for
    the small angles of neighbouring activations, so the result is float32.

    Args:
        base: Clean activations.
        donor: Donor's activations.
        direction: Directions of any norm.

    Returns:
        Turned activations; the donor's own where ``direction`` is parallel to ``base``.
    """
    dtype = torch.promote_types(base.dtype, torch.float32)
    base = base.to(dtype)
    donor = donor.to(base.device, dtype)
    direction = direction.to(base.device, dtype)
    unit = torch.nn.functional.normalize(base, dim=-1)
    along = einsum(donor, unit, "... width, ... width -> ...")[..., None] * unit
    across = torch.linalg.vector_norm(donor - along, dim=-1, keepdim=True)
    size = torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
    sideways = direction - einsum(direction, unit, "... width, ... width -> ...")[..., None] * unit
    length = torch.linalg.vector_norm(sideways, dim=-1, keepdim=True)
    turned = along + across * sideways / length.clamp(min=torch.finfo(dtype).tiny)
    return torch.where(length > _PARALLEL * size, turned, donor)


def by_head(value: Tensor, site: SiteLike) -> Float[Tensor, "example pos head width"]:
    """Return a view of an activation with a head axis: of a pattern [example query head key], of
    sites without heads one head.
    """
    if site == "pattern":
        return rearrange(value, "example head query key -> example query head key")
    if value.ndim == 4:
        return value
    return rearrange(value, "example pos width -> example pos 1 width")
