"""Index tensors of a pass: rows whose attention is computed together, and activations that are
patched into lanes.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anchorlens.models.devices import on


@dataclass(frozen=True, kw_only=True)
class AttentionGroup:
    """Rows whose attention is computed together, padded to one width.

    A row has its own tokens, from a first to a last position. The keys before them are those of the
    prefix and of the clean row up to its first token.

    Attributes:
        keys: Token of the group at each padded key slot; unused slots hold the row's first token.
        queries: Token of the group at each padded query slot.
        query_slots: Padded query slot of each query token, in token order.
        base: Clean token of each key between the prefix and the row's first token; no columns for
            clean rows.
        query_positions: Positions of the padded queries in their rows.
        key_positions: Positions of all keys: prefix, base, then the group's tokens.
        is_key: True at key slots that hold a key.
    """

    keys: Int[Tensor, "row own"]
    queries: Int[Tensor, "row query"]
    query_slots: Int[Tensor, "found"]
    base: Int[Tensor, "row base"]
    query_positions: Int[Tensor, "row query"]
    key_positions: Int[Tensor, "row key"]
    is_key: Bool[Tensor, "row key"]

    @classmethod
    def make(
        cls,
        starts: Sequence[int],
        ends: Sequence[int],
        *,
        prefix: int,
        base: Sequence[int] | None,
        tokens: Int[Tensor, "found"] | None = None,
    ) -> "AttentionGroup":
        """Make a group of rows that cover positions ``starts`` to ``ends``, behind a prefix of
        ``prefix`` tokens.

        ``base``: clean token at position ``prefix`` before each row, None for clean rows;
        ``tokens``: queries, None for all.
        """
        begin = torch.tensor(starts)
        stop = torch.tensor(ends)
        lengths = stop - begin
        first = lengths.cumsum(0) - lengths  # token at the start of each row
        steps = torch.arange(int(lengths.max()))
        # Key slots behind the end of a row hold its first token.
        keys = first[:, None] + steps * (steps < lengths[:, None])
        tokens = torch.arange(int(lengths.sum())) if tokens is None else tokens
        # Each query gets the next free slot of its row.
        row = torch.bucketize(tokens, first, right=True) - 1
        count = row.bincount(minlength=len(first))
        slot = torch.arange(len(tokens)) - (count.cumsum(0) - count)[row]
        queries = first[:, None].repeat(1, int(count.max()))
        queries[row, slot] = tokens
        # Clean keys between the prefix and each row, padded to the row that begins last.
        between = torch.arange(0 if base is None else int(begin.max()) - prefix)
        before = torch.minimum(between, (begin - prefix - 1).clamp(min=0)[:, None])
        shared = torch.arange(prefix + len(between)).expand(len(first), -1)
        later = begin[:, None] + steps
        return cls(
            keys=keys,
            queries=queries,
            query_slots=row * queries.shape[1] + slot,
            base=torch.tensor(base or starts)[:, None] + before,
            query_positions=queries - first[:, None] + begin[:, None],
            key_positions=torch.cat([shared, later], 1),
            is_key=torch.cat([shared < begin[:, None], later < stop[:, None]], 1),
        )

    def attention_mask(self, window: int | None) -> Bool[Tensor, "row query key"] | None:
        """Return True where a query attends to a key; None if it is True everywhere."""
        keys = self.key_positions[:, None, :]
        queries = self.query_positions[:, :, None]
        out = self.is_key[:, None, :] & (keys <= queries)
        if window is not None:
            out &= keys > queries - window
        return None if bool(out.all()) else out


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
