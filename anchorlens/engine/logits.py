"""Logits of a run, computed on request and kept.

A reader of these logits (:mod:`anchorlens.engine.observed_logits`) requests whole rows, or some
tokens of rows. Requests are recorded, so that a caller knows what was read.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.errors import AnchorlensError
from anchorlens.models.devices import index_on

Reads: TypeAlias = dict[int, "set[int] | None"]
"""Row of the logits (batch row * positions + position) -> token ids that were read; None for the
whole vocabulary.
"""
RowsOf: TypeAlias = Callable[[list[int]], Float[Tensor, "row d_vocab"]]
TokensOf: TypeAlias = Callable[[list[int], list[int]], Float[Tensor, "row token"]]


def union_of_reads(parts: Iterable[Reads]) -> Reads:
    """Return all reads together."""
    out: Reads = {}
    for reads in parts:
        for row, tokens in reads.items():
            known = out.get(row, set[int]())
            out[row] = None if tokens is None or known is None else known | tokens
    return out


class UnreadLogitsError(AnchorlensError):
    """A metric reads logits that this pass did not compute."""


class Logits:
    """Logits of a run before anybody writes into them, computed on request and kept.

    A token that was computed alone keeps its value when its whole row is computed: float64 products
    of single tokens and float32 products of rows round differently, and a metric may compare the
    two.

    Attributes:
        shape: Batch, positions (or any other axes) and vocabulary.
        dtype: Dtype of the values.
        device: Device of the values.
        reads: Requests so far.
        expected: Rows and tokens that are probably read, and cheap to compute together; None if
            they are not known.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        *,
        rows: RowsOf,
        tokens: TokensOf | None = None,
        expected: "tuple[list[int], list[int]] | None" = None,
    ) -> None:
        self.expected = expected
        self.shape = tuple(shape)
        self.dtype = dtype
        self.device = device
        self.reads: Reads = {}
        self._compute_rows = rows
        self._compute_tokens = tokens
        self._rows: dict[int, Tensor] = {}
        self._tokens: dict[int, dict[int, Tensor]] = {}

    @classmethod
    def of(cls, whole: Float[Tensor, "*batch d_vocab"]) -> "Logits":
        """Return the logits of an ordinary tensor."""
        flat = whole.detach().reshape(-1, whole.shape[-1])

        def tokens_of(rows: list[int], tokens: list[int]) -> Tensor:
            at = index_on(flat.device, tuple(rows))[:, None]
            return flat[at, index_on(flat.device, tuple(tokens))]

        return cls(
            whole.shape, whole.dtype, whole.device, rows=lambda rows: flat[rows], tokens=tokens_of
        )

    @property
    def width(self) -> int:
        """Size of the vocabulary."""
        return self.shape[-1]

    def rows(self, rows: list[int]) -> Float[Tensor, "row d_vocab"]:
        """Return whole rows."""
        self.reads.update(dict.fromkeys(rows))
        missing = [row for row in rows if row not in self._rows]
        if missing:
            for row, values in zip(missing, self._compute_rows(missing), strict=True):
                known = self._tokens.get(row, {})
                if known:
                    values = values.clone()
                    values[list(known)] = torch.stack(list(known.values()))
                self._rows[row] = values
        return torch.stack([self._rows[row] for row in rows])

    def tokens(self, rows: list[int], tokens: list[int]) -> Float[Tensor, "row token"]:
        """Return some tokens of rows, [row token]."""
        if self._compute_tokens is None:
            return self.rows(rows)[:, tokens]
        for row in rows:
            read = self.reads.setdefault(row, set())
            if read is not None:
                read.update(tokens)
        # Rows of which nothing is known are computed together.
        if self._rows.keys().isdisjoint(rows) and self._tokens.keys().isdisjoint(rows):
            found = self._compute_tokens(rows, tokens)
            for row, values in zip(rows, found, strict=True):
                self._tokens[row] = dict(zip(tokens, values, strict=True))
            return found
        return torch.stack([self._tokens_of(row, tokens) for row in rows])

    def _tokens_of(self, row: int, tokens: list[int]) -> Float[Tensor, "token"]:
        if row in self._rows:
            return self._rows[row][tokens]
        assert self._compute_tokens is not None  # the caller has asked
        known = self._tokens.setdefault(row, {})
        missing = [token for token in tokens if token not in known]
        if missing:
            known.update(zip(missing, self._compute_tokens([row], missing)[0], strict=True))
        return torch.stack([known[token] for token in tokens])

    def map(
        self, function: Callable[[Tensor], Tensor], ids: Int[Tensor, "*row"], *, by_token: bool
    ) -> "Logits":
        """Return logits that a function of whole rows is applied to.

        Args:
            function: Logits [row d_vocab] -> values of the same shape.
            ids: Rows of these logits, in the shape of the new ones.
            by_token: Whether the function treats every entry alone.
        """
        row_of = ids.flatten().tolist()
        probe = function(torch.empty(0, self.width, dtype=self.dtype, device=self.device))

        def compute_rows(wanted: list[int]) -> Tensor:
            return function(self.rows([row_of[i] for i in wanted]))

        def compute_tokens(wanted: list[int], tokens: list[int]) -> Tensor:
            return function(self.tokens([row_of[i] for i in wanted], tokens))

        return Logits(
            (*ids.shape, self.width),
            probe.dtype,
            probe.device,
            rows=compute_rows,
            tokens=compute_tokens if by_token else None,
        )
