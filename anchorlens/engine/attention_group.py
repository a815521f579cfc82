"""Index tensors of rows whose attention is computed together, padded to one width.

A row has its own tokens, from a first to a last position. The keys before them are those of the
prefix and of the clean row up to its first token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AttentionGroup:
    """Rows whose attention is computed together, padded to one width.

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
