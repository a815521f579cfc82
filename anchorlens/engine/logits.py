"""Logits of a run, computed on request and kept, and the memory that views of them share.

A reader of these logits (:mod:`anchorlens.engine.observed_logits`) requests whole rows, or some
tokens of rows. Requests are recorded, so that a caller knows what was read.

A view is described by its sizes, strides and offset, as in an ordinary tensor. A row of the memory
is one row of the logits, so whole axes of a view select rows or columns. A view that crosses rows
covers all rows that it can reach.
"""

import math
import numbers
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_leaves

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


Columns: TypeAlias = "Sequence[int] | None"
"""Token ids; None for the whole vocabulary."""

# Share of the vocabulary up to which tokens are unembedded one by one.
_FEW = 1 / 8


@dataclass(frozen=True)
class LogitRegion:
    """Part of the buffer that a view covers.

    Attributes:
        ids: Row of each entry of the axes that select rows.
        columns: Columns of these rows; None for all.
        is_table: Whether the last axis of the view, and it alone, selects columns.
    """

    ids: Int[Tensor, "*row"]
    columns: Columns
    is_table: bool

    @property
    def rows(self) -> list[int]:
        """Distinct rows, ascending."""
        return self.ids.unique().tolist()

    @classmethod
    def of(cls, shadow: Tensor, width: int) -> "LogitRegion":
        """Return the region of a view, from its sizes and strides."""
        return cls._of_view(
            tuple(shadow.shape), shadow.stride(), int(shadow.storage_offset()), width
        )

    @classmethod
    @lru_cache(maxsize=256)  # the views of a metric are the same in every cell
    def _of_view(
        cls, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int, width: int
    ) -> "LogitRegion":
        outer: list[tuple[int, int]] = []  # sizes and steps in rows
        inner: list[tuple[int, int]] = []  # sizes and steps in columns
        for n, step in zip(sizes, strides, strict=True):
            if n == 1:
                continue
            if step % width == 0:
                outer.append((n, step // width))
            else:
                inner.append((n, step))
        first, start = divmod(offset, width)
        # One axis of columns at the end of the view, or a last axis of one entry.
        last = bool(sizes) and (sizes[-1] == 1 or strides[-1] % width != 0)
        is_table = last and len(inner) == (sizes[-1] != 1)
        if is_table:
            outer = [(n, step // width) for n, step in zip(sizes[:-1], strides[:-1], strict=True)]
        ids = torch.full((), first, device="cpu")
        for n, step in outer:
            ids = ids[..., None] + step * torch.arange(n, device="cpu")
        reach = start + sum((n - 1) * step for n, step in inner)
        if reach >= width:
            # The view crosses rows: whole rows from the first to the last that it can reach.
            over = torch.arange(reach // width + 1, device="cpu")
            return cls(ids[..., None] + over, None, False)
        steps = [range(0, n * step, step) for n, step in inner]
        if len(steps) == 1:
            columns = range(start, start + steps[0].stop, steps[0].step)
        else:
            columns = [start + sum(at) for at in product(*steps)]
        return cls(ids, None if len(columns) == width else columns, is_table)


class LogitBuffer:
    """Memory that all views of one call of a metric share, filled row by row.

    Attributes:
        logits: Logits before anybody writes into them.
        views: References to the views that were made.
    """

    def __init__(self, logits: Logits, views: "list[weakref.ref[Tensor]]") -> None:
        self.logits = logits
        self.views = views
        self._full: set[int] = set()
        self._known: dict[int, set[int]] = {}
        self._data: Tensor | None = None
        # Whether a metric wrote into the buffer.
        self.is_written = False
        # Whether a metric holds an ordinary tensor that shares the buffer's memory.
        self.is_shared = False
        # PyTorch's number of writes into the buffer, as far as they are noted.
        self._version = 0

    @property
    def data(self) -> Tensor:
        """The buffer [row d_vocab], allocated on first use."""
        if self._data is None:
            shape = (math.prod(self.logits.shape[:-1]), self.logits.width)
            self._data = torch.empty(shape, dtype=self.logits.dtype, device=self.logits.device)
        return self._data

    @property
    def is_pristine(self) -> bool:
        """Whether the buffer holds what the logits were at first, and nobody can change it
        unseen.
        """
        return not self.is_written and not self.is_shared

    def fill(self, rows: Iterable[int], columns: Columns) -> None:
        """Compute entries that are missing; what was written stays."""
        missing = [row for row in rows if row not in self._full]
        if columns is not None and len(columns) <= _FEW * self.logits.width:
            self._fill_tokens(missing, list(columns))
        elif missing:
            self._fill_rows(missing)
        if self._data is not None:
            self._version = self._data._version

    def _fill_rows(self, rows: list[int]) -> None:
        # Tokens that are there already may have been overwritten.
        kept: list[tuple[int, list[int], Tensor]] = []
        for row in rows:
            tokens = list(self._known.get(row, ()))
            if tokens:
                kept.append((row, tokens, self.data[row, tokens]))
        self.data[rows] = self.logits.rows(rows)
        for row, tokens, values in kept:
            self.data[row, tokens] = values
        self._full.update(rows)

    def _fill_tokens(self, rows: list[int], tokens: list[int]) -> None:
        new = [row for row in rows if row not in self._known]
        if new and not self._known and not self._full and self._is_expected(new, tokens):
            # One copy for all that a metric will read, instead of one for each of its reads.
            assert self.logits.expected is not None  # else nothing is expected
            new, tokens = self.logits.expected
        if new:
            at = index_on(self.data.device, tuple(new))[:, None]
            columns = index_on(self.data.device, tuple(tokens))
            self.data[at, columns] = self.logits.tokens(new, tokens)
            for row in new:
                self._known[row] = set(tokens)
        for row in rows:
            known = self._known.setdefault(row, set())
            missing = [token for token in tokens if token not in known]
            if missing:
                self.data[row, missing] = self.logits.tokens([row], missing)[0]
                known.update(missing)

    def _is_expected(self, rows: list[int], tokens: list[int]) -> bool:
        """Return whether the logits expected that these entries are read."""
        expected = self.logits.expected
        if expected is None:
            return False
        return set(expected[0]).issuperset(rows) and set(expected[1]).issuperset(tokens)

    def overwrite(self, region: LogitRegion, write: Callable[[], object]) -> None:
        """Run a write that replaces every entry of a region, whose values are not needed."""
        write()
        if region.columns is None:
            self._full.update(region.rows)
        else:
            for row in region.rows:
                self._known.setdefault(row, set()).update(region.columns)
        self.is_written = True
        self._version = self.data._version

    def check_result(self, result: object) -> None:
        """Note whether an operation wrote into the buffer, or returned something that shares its
        memory.
        """
        self.is_written |= self.data._version != self._version
        self._version = self.data._version
        storage = self.data.untyped_storage().data_ptr()
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.is_shared |= leaf.untyped_storage().data_ptr() == storage
            elif leaf is not None and not isinstance(
                leaf, (str, numbers.Number, np.generic, torch.dtype, torch.device)
            ):
                self.is_shared = True
