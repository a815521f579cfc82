"""Reader of any function of the logits.

Which logits a function reads is observed at every call (:mod:`anchorlens.engine.observed_logits`).
Its reads on the unpatched logits only decide which positions a pass keeps, and what is unembedded
for many cells at once. A cell in which it reads another position has no value: :data:`MISSED` is 1
there, and the caller measures it again with :meth:`FunctionReader.everywhere`.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.logits import Logits, Reads, UnreadLogitsError
from anchorlens.engine.observed_logits import observe
from anchorlens.engine.readouts import Metrics
from anchorlens.models.adapter import Adapter
from anchorlens.models.devices import index_on

_Key = TypeVar("_Key", bound=Hashable)

LogitMetric: TypeAlias = Callable[[Tensor], Any]
"""Logits [batch pos d_vocab] -> scalar or [batch], as in TransformerLens."""
ValuesOf: TypeAlias = Callable[[int, Tensor], Float[Tensor, "value"]]
"""Number of a call and its logits [batch pos d_vocab] -> values, float32 on any device."""
Place: TypeAlias = tuple[int, int]
"""Row of the batch and position."""

MISSED = "missed"
"""Name of the metric that is 1 where there is no value, because the function read a position that
was not kept.
"""

# Rows whose logits over the whole vocabulary are held at once where a function reads one position,
# and where it reads several (fewer take a fifth longer); and rows of which some tokens are held.
_ROWS, _ROWS_OF_SEVERAL = 64, 128
_TOKEN_ROWS = 4096
# Most positions whose unpatched logits are kept for the cells that leave them as they are.
_KEPT = 64
# Times that the rows that a function reads are held: as they are read, as they are given, and two
# results of their size.
_COPIES = 4


@dataclass(frozen=True)
class Call:
    """One call of the function in every cell.

    Attributes:
        first: First row of the batch whose logits it gets.
        n_rows: Number of rows.
        length: Number of positions.
        n_values: Number of values that it returns.
    """

    first: int
    n_rows: int
    length: int
    n_values: int

    def place(self, row: int) -> Place:
        """Return the place of a row of the call's logits [batch pos], counted in one number."""
        return self.first + row // self.length, row % self.length

    @property
    def places(self) -> list[Place]:
        """Places of all its rows of logits."""
        return [self.place(row) for row in range(self.n_rows * self.length)]


@dataclass(frozen=True, kw_only=True)
class FunctionReader:
    """Reader of a function of the logits.

    Attributes:
        name: Name of the metric.
        function: Values of a call.
        calls: Calls in every cell, in the order of their rows.
        places: Places whose states are kept.
        full_places: Places whose logits are computed over the whole vocabulary, for many cells at
            once.
        tokens: Tokens that are unembedded for many cells at once, at the places
            ``token_places``.
        token_places: Places at which only ``tokens`` are expected to be read.
        dtype: Dtype of the logits.
        is_plain: Whether the function gets ordinary tensors with all logits.
        unpatched: Place -> logits of the model's own unpatched run; None where they are not known.
            A state that equals that of the first cell, which is the unpatched one in the cone
            engine, has these logits.
        is_first_measured: Whether the first cell is computed all the same, so that a caller can
            compare it with the model's.
    """

    name: str
    function: ValuesOf
    calls: tuple[Call, ...]
    places: tuple[Place, ...]
    full_places: frozenset[Place]
    token_places: frozenset[Place] = frozenset()
    tokens: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    is_plain: bool = False
    unpatched: "Callable[[Place], Tensor | None] | None" = None
    is_first_measured: bool = False
    where = None  # the final residual stream

    @classmethod
    def of_reads(
        cls,
        name: str,
        function: ValuesOf,
        calls: Sequence[Call],
        reads: Sequence[Reads],
        dtype: torch.dtype = torch.float32,
        unpatched: "Callable[[Place], Tensor | None] | None" = None,
    ) -> "FunctionReader":
        """Return the reader of what the calls read on known logits.

        Args:
            name: Name of the metric.
            function: Values of a call.
            calls: Calls in every cell.
            reads: Reads of each call.
            dtype: Dtype of the logits.
            unpatched: Place -> logits of the model's own unpatched run.
        """
        full_places: set[Place] = set()
        token_places: set[Place] = set()
        tokens: set[int] = set()
        places: set[Place] = set()
        for call, own in zip(calls, reads, strict=True):
            # The engines need a read in every row, so all rows of a call have the same positions.
            positions = {row % call.length for row in own}
            for i in range(call.n_rows):
                places.update((call.first + i, position) for position in positions)
            for row, read in own.items():
                if read is None:
                    full_places.add(call.place(row))
                else:
                    token_places.add(call.place(row))
                    tokens |= read
        return cls(
            name=name,
            function=function,
            calls=tuple(calls),
            places=tuple(sorted(places)),
            full_places=frozenset(full_places),
            token_places=frozenset(token_places),
            tokens=tuple(sorted(tokens)),
            dtype=dtype,
            unpatched=unpatched,
        )

    @cached_property
    def _index(self) -> Int[Tensor, "axis read"]:
        return torch.tensor(self.places, dtype=torch.long, device="cpu").reshape(-1, 2).T

    @cached_property
    def number(self) -> dict[Place, int]:
        """Place -> number of its state."""
        return _number(self.places)

    @property
    def row(self) -> Int[Tensor, "read"]:
        """Row of each state that is kept."""
        return self._index[0]

    @property
    def position(self) -> Int[Tensor, "read"]:
        """Position of each state that is kept."""
        return self._index[1]

    @cached_property
    def _expected(self) -> "list[tuple[list[int], list[int]] | None]":
        """Rows and tokens of each call that are unembedded for many cells at once."""
        out: list[tuple[list[int], list[int]] | None] = []
        for call in self.calls:
            rows = [row for row, place in enumerate(call.places) if place in self.token_places]
            out.append((rows, list(self.tokens)) if rows else None)
        return out

    def everywhere(self) -> "FunctionReader":
        """Return the reader that keeps all positions, so that no value is missed."""
        places: list[Place] = []
        for call in self.calls:
            places += call.places
        return replace(self, places=tuple(places))

    @property
    def n_held_rows(self) -> int:
        """Most rows of logits over the whole vocabulary that are held at once, if the function
        makes two results of the size of its logits.
        """
        most = 0
        for call in self.calls:
            n_read = len(self.full_places.intersection(call.places))
            if self.is_plain:
                table = call.n_rows * call.length
                table *= 2 if table > _ROWS_OF_SEVERAL else 1
            else:
                first = n_read if 1 < n_read <= _KEPT else 0
                table = first + 2 * max(_rows_at_once(n_read), n_read) if n_read else 0
            most = max(most, table + _COPIES * n_read)
        return most

    def of_any_states(self) -> "FunctionReader":
        """Return the reader for states of any runs: no value is missed, and the first cell need not
        be the unpatched one.
        """
        return replace(self.everywhere(), unpatched=None)

    def plain(self) -> "FunctionReader":
        """Return the reader that computes all logits of every cell, for the reference engine."""
        return replace(self.of_any_states(), is_plain=True)

    @torch.no_grad()
    def metrics(self, adapter: Adapter, states: Float[Tensor, "*cells read d_model"]) -> Metrics:
        """Compute the values of every cell: the metric ``name`` and :data:`MISSED`, [*cells
        value].
        """
        cells = states.reshape(-1, *states.shape[-2:])
        by_call: list[list[tuple[Tensor, bool]]] = []
        # Call after call, so that the logits of one call alone are held.
        for number, call in enumerate(self.calls):
            table = _Unembedded(self, adapter, cells, call.places)
            by_call.append([self._values(table, cell, number) for cell in range(len(cells))])
        values: list[Tensor] = []
        missed: list[Tensor] = []
        for of_cell in zip(*by_call, strict=True):
            for found, is_missed in of_cell:
                values.append(found)
                missed.append(torch.full(found.shape, float(is_missed), device="cpu"))
        shape = (*states.shape[:-2], -1)
        return Metrics(
            {
                self.name: _copy_to_host(values).reshape(shape),
                MISSED: torch.cat(missed).reshape(shape),
            }
        )

    def _values(
        self, table: "_Unembedded", cell: int, number: int
    ) -> tuple[Float[Tensor, "value"], bool]:
        """Return the values of one call in one cell, and whether it read a position that was not
        kept.
        """
        call = self.calls[number]
        shape = (call.n_rows, call.length, table.width)
        if self.is_plain:
            return self.function(number, table.rows(cell, call.places).reshape(shape)), False
        lost: list[Place] = []

        def find(rows: list[int]) -> list[Place]:
            places = [call.place(row) for row in rows]
            lost.extend(place for place in places if place not in table.number)
            if lost:
                raise UnreadLogitsError(f"Position {lost[0][1]} was not computed.")
            return places

        logits = Logits(
            shape,
            self.dtype,
            table.device,
            rows=lambda rows: table.rows(cell, find(rows)),
            tokens=lambda rows, tokens: table.tokens(cell, find(rows), tokens),
            expected=self._expected[number],
        )
        try:
            found = observe(lambda observed: self.function(number, observed), logits)
        except UnreadLogitsError:
            found = None
        if lost or found is None:  # also where the function caught the error
            return torch.full((call.n_values,), torch.nan, device="cpu"), True
        return found, False


class _Unembedded:
    """Logits of one call in many cells, from the states that are kept.

    What is read in most cells is computed for many cells at once, everything else on request.

    Args:
        reader: The reader.
        adapter: The model.
        cells: States of all places of the reader.
        places: Places of the call.

    Attributes:
        number: Place -> number of its state.
        width: Size of the vocabulary.
        device: Device of the logits.
    """

    def __init__(
        self,
        reader: FunctionReader,
        adapter: Adapter,
        cells: Float[Tensor, "cell read d_model"],
        places: Sequence[Place],
    ) -> None:
        kept = [place for place in places if place in reader.number]
        at = _look_up(reader.number, kept)
        self.number = _number(kept)
        self.width = adapter.shape.d_vocab
        self.device = adapter.read.device
        self._adapter = adapter
        self._cells = cells if at == list(range(cells.shape[1])) else cells[:, at]
        self._dtype = reader.dtype
        self._tokens = _number(reader.tokens)
        full_places: list[Place] = []
        token_places: list[Place] = []
        for place in kept:
            if place in reader.full_places:
                full_places.append(place)
            elif place in reader.token_places:
                token_places.append(place)
        self._full_places = _number(full_places)
        self._token_places = _number(token_places)
        # Cells whose logits are kept: over the whole vocabulary, and of some tokens.
        self._full_cells = range(0)
        self._token_cells = range(0)
        self._full_logits = self._token_logits = cells.new_empty(0)
        # Logits of the first cell, which is the unpatched one in the cone engine.
        self._first: Tensor | None = None
        self._unpatched = reader.unpatched
        self._first_known = 1 if reader.is_first_measured else 0
        # Cells whose states were compared with those of the first cell, and whether each is equal.
        self._compared = range(0)
        self._is_unpatched: list[list[bool]] = []

    def rows(self, cell: int, places: Sequence[Place]) -> Float[Tensor, "row d_vocab"]:
        """Return the logits of places over the whole vocabulary."""
        if self._full_places.keys() >= set(places):
            found = self._full_table(cell)[_look_up(self._full_places, places)]
        else:
            found = self._unembed_rows(self._states(cell, places))
        return self._use_model_logits(found, cell, places, slice(None))

    def tokens(
        self, cell: int, places: Sequence[Place], tokens: Sequence[int]
    ) -> Float[Tensor, "row token"]:
        """Return the logits of some tokens at places."""
        return self._use_model_logits(
            self._tokens_of(cell, places, tokens), cell, places, list(tokens)
        )

    def _use_model_logits(
        self,
        logits: Float[Tensor, "row token"],
        cell: int,
        places: Sequence[Place],
        tokens: "slice | list[int]",
    ) -> Float[Tensor, "row token"]:
        """Return logits in which those of unpatched states are the model's own."""
        if self._unpatched is None or cell < self._first_known:
            return logits
        if cell not in self._compared:
            self._compared = together = range(cell, min(len(self._cells), cell + _ROWS))
            self._is_unpatched = (
                (self._cells[together.start : together.stop] == self._cells[0]).all(-1).tolist()
            )
        is_unpatched = self._is_unpatched[cell - self._compared.start]
        for i, place in enumerate(places):
            known = self._unpatched(place) if is_unpatched[self.number[place]] else None
            if known is not None:
                logits[i] = known[tokens]
        return logits

    def _tokens_of(
        self, cell: int, places: Sequence[Place], tokens: Sequence[int]
    ) -> Float[Tensor, "row token"]:
        if self._token_places.keys() >= set(places) and self._tokens.keys() >= set(tokens):
            at = index_on(self.device, tuple(_look_up(self._token_places, places)))
            columns = index_on(self.device, tuple(_look_up(self._tokens, tokens)))
            return self._token_table(cell)[at[:, None], columns]
        if self._full_places.keys() >= set(places):
            return self._full_table(cell)[_look_up(self._full_places, places)][:, list(tokens)]
        return self._unembed(self._states(cell, places), tokens)

    def _states(self, cell: int, places: Sequence[Place]) -> Float[Tensor, "row d_model"]:
        return self._cells[cell, _look_up(self.number, places)]

    def _unembed(
        self, states: Float[Tensor, "row d_model"], tokens: Sequence[int] | None = None
    ) -> Float[Tensor, "row token"]:
        return self._adapter.read.logits(states, tokens).to(self._dtype)

    def _unembed_rows(self, states: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
        """Return whole rows, computed in parts to bound memory."""
        parts = [self._unembed(part) for part in states.split(_ROWS_OF_SEVERAL)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _next(self, cell: int, places: Collection[Place], most: int) -> range:
        """Return the cells that are unembedded together, from ``cell`` on."""
        return range(cell, min(len(self._cells), cell + max(1, most // len(places))))

    def _token_table(self, cell: int) -> Float[Tensor, "row token"]:
        if cell not in self._token_cells:
            self._token_cells = together = self._next(cell, self._token_places, _TOKEN_ROWS)
            at = _look_up(self.number, self._token_places)
            states = self._cells[together.start : together.stop, at].flatten(0, 1)
            self._token_logits = self._unembed(states, list(self._tokens)).unflatten(
                0, (len(together), len(at))
            )
        return self._token_logits[cell - self._token_cells.start]

    def _full_table(self, cell: int) -> Float[Tensor, "row d_vocab"]:
        if cell not in self._full_cells:
            self._full_cells = together = self._next(
                cell, self._full_places, _rows_at_once(len(self._full_places))
            )
            at = _look_up(self.number, self._full_places)
            states = self._cells[together.start : together.stop, at]
            if self._first is None and 1 < len(at) <= _KEPT:
                self._first = self._unembed(self._cells[0, at])
            if self._first is None:
                logits = self._unembed_rows(states.flatten(0, 1))
                self._full_logits = logits.unflatten(0, states.shape[:2])
            else:
                # Most patches leave most positions as they are, and equal states have equal logits.
                is_new = (states != self._cells[0, at]).any(-1)
                logits = self._first.expand(len(together), -1, -1).clone()
                if is_new.any():
                    logits[is_new] = self._unembed_rows(states[is_new])
                self._full_logits = logits
        return self._full_logits[cell - self._full_cells.start]


def _rows_at_once(n_read: int) -> int:
    """Return the number of rows that are unembedded together, for cells of so many each."""
    return _ROWS if n_read == 1 else _ROWS_OF_SEVERAL


def _copy_to_host(values: Sequence[Float[Tensor, "_"]]) -> Float[Tensor, "value"]:
    """Return values one after the other on the CPU, copied at once from each device."""
    if len({value.device for value in values}) == 1:
        return torch.cat(list(values)).to("cpu")
    return torch.cat([value.to("cpu") for value in values])


def _number(keys: Sequence[_Key]) -> dict[_Key, int]:
    """Return key -> its index."""
    return dict(zip(keys, range(len(keys)), strict=True))


def _look_up(number: Mapping[_Key, int], keys: Iterable[_Key]) -> list[int]:
    return [number[key] for key in keys]
