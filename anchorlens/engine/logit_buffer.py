"""Memory that the views of a metric's logits share, and the part of it that a view covers.

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
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anchorlens.engine.logits import Logits
from anchorlens.models.devices import index_on

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
