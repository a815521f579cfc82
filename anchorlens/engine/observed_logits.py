"""Logits that are computed where a metric looks.

A metric is any function of the logits [batch pos d_vocab]. :func:`observe` calls it with an :class:`ObservedLogits`, a tensor
without memory of its own. Indexing and reshaping stay lazy. Any other operation first computes the logits that it was given, and
then runs on an ordinary tensor. So what a metric reads is known at every call, and nothing is inferred from its values.

All views share one buffer, with strides as in an ordinary tensor. A write into a view is therefore seen by every other view, as
in PyTorch. Logits that nobody has computed raise :class:`UnreadLogitsError`: a metric never receives a number that was not
measured.
"""

import math
import numbers
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from anchorlens.errors import AnchorlensError

Columns: TypeAlias = "Sequence[int] | None"
"""Token ids; None for the whole vocabulary."""
Reads: TypeAlias = dict[int, "set[int] | None"]
"""Row of the logits (batch row * positions + position) -> token ids that were read; None for the whole vocabulary."""
RowsOf: TypeAlias = Callable[[list[int]], Float[Tensor, "row d_vocab"]]
TokensOf: TypeAlias = Callable[[list[int], list[int]], Float[Tensor, "row token"]]

# Share of the vocabulary up to which tokens are unembedded one by one.
_FEW = 1 / 8
# Types of the arguments with which a function treats every row alike.
_SETTINGS = (int, float, str, torch.dtype, torch.device, torch.memory_format)


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

    A token that was computed alone keeps its value when its whole row is computed: float64 products of single tokens and float32
    products of rows round differently, and a metric may compare the two.

    Attributes:
        shape: Batch, positions (or any other axes) and vocabulary.
        dtype: Dtype of the values.
        device: Device of the values.
        reads: Requests so far.
    """

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, rows: RowsOf, tokens: TokensOf | None = None
    ) -> None:
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.reads: Reads = {}
        self._compute_rows, self._compute_tokens = rows, tokens
        self._rows: dict[int, Tensor] = {}
        self._tokens: dict[int, dict[int, Tensor]] = {}

    @classmethod
    def of(cls, whole: Float[Tensor, "*batch d_vocab"]) -> "Logits":
        """Return the logits of an ordinary tensor."""
        flat = whole.detach().reshape(-1, whole.shape[-1])

        def tokens_of(rows: list[int], tokens: list[int]) -> Tensor:
            return flat[torch.tensor(rows, device=flat.device)[:, None], torch.tensor(tokens, device=flat.device)]

        return cls(whole.shape, whole.dtype, whole.device, rows=lambda rows: flat[rows], tokens=tokens_of)

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
        is_new = [row not in self._rows and row not in self._tokens for row in rows]
        if all(is_new):
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

    def map(self, function: Callable[[Tensor], Tensor], rows: "_Region", *, by_token: bool) -> "Logits":
        """Return logits that a function of whole rows is applied to; ``by_token``: it treats every entry alone."""
        ids, probe = rows.ids.flatten().tolist(), function(torch.empty(0, self.width, dtype=self.dtype, device=self.device))

        def compute_rows(wanted: list[int]) -> Tensor:
            return function(self.rows([ids[i] for i in wanted]))

        def compute_tokens(wanted: list[int], tokens: list[int]) -> Tensor:
            return function(self.tokens([ids[i] for i in wanted], tokens))

        shape = (*rows.ids.shape, self.width)
        return Logits(shape, probe.dtype, probe.device, rows=compute_rows, tokens=compute_tokens if by_token else None)


@dataclass(frozen=True)
class _Region:
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
    def of(cls, shadow: Tensor, width: int) -> "_Region":
        """Return the region of a view, from its sizes and strides."""
        return cls._of_view(tuple(shadow.shape), shadow.stride(), int(shadow.storage_offset()), width)

    @classmethod
    @lru_cache(maxsize=256)  # the views of a metric are the same in every cell
    def _of_view(cls, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int, width: int) -> "_Region":
        axes = [(n, step) for n, step in zip(sizes, strides, strict=True) if n != 1]
        outer = [(n, step // width) for n, step in axes if step % width == 0]
        inner = [(n, step) for n, step in axes if step % width != 0]
        first, start = divmod(offset, width)
        # One axis of columns at the end of the view, or a last axis of one entry.
        last = bool(sizes) and (sizes[-1] == 1 or strides[-1] % width != 0)
        is_table = last and len(inner) == (sizes[-1] != 1)
        leading = list(zip(sizes[:-1], strides[:-1], strict=True)) if is_table else outer
        steps = [(n, step // width) for n, step in leading] if is_table else outer
        ids = torch.full((), first, device="cpu")
        for n, step in steps:
            ids = ids[..., None] + step * torch.arange(n, device="cpu")
        reach = start + sum((n - 1) * step for n, step in inner)
        if reach >= width:  # the view crosses rows: whole rows from the first to the last that it can reach
            over = torch.arange(reach // width + 1, device="cpu")
            return cls(ids[..., None] + over, None, False)
        if len(inner) == 1:
            ((n, step),) = inner
            columns = range(start, start + n * step, step)
        else:
            columns = [start + sum(at) for at in product(*(range(0, n * step, step) for n, step in inner))]
        return cls(ids, None if len(columns) == width else columns, is_table)


class _Buffer:
    """Memory that all views of one call of a metric share, filled row by row.

    Attributes:
        logits: Logits before anybody writes into them.
        views: References to the views that were made.
    """

    def __init__(self, logits: Logits, views: "list[weakref.ref[Tensor]]") -> None:
        self.logits, self.views = logits, views
        self._full: set[int] = set()
        self._known: dict[int, set[int]] = {}
        self._data: Tensor | None = None
        # Whether somebody wrote into the buffer, or holds an ordinary tensor that shares its memory.
        self.is_written, self.is_shared, self._version = False, False, 0

    @property
    def data(self) -> Tensor:
        """The buffer [row d_vocab], allocated on first use."""
        if self._data is None:
            shape = math.prod(self.logits.shape[:-1]), self.logits.width
            self._data = torch.empty(shape, dtype=self.logits.dtype, device=self.logits.device)
        return self._data

    @property
    def is_pristine(self) -> bool:
        """Whether the buffer holds what the logits were at first, and nobody can change it unseen."""
        return not self.is_written and not self.is_shared

    def fill(self, rows: Iterable[int], columns: Columns) -> None:
        """Compute entries that are missing; what was written stays."""
        missing = [row for row in rows if row not in self._full]
        if columns is not None and len(columns) <= _FEW * self.logits.width:
            self._fill_tokens(missing, list(columns))
        elif missing:
            kept = {row: (list(known), self.data[row, list(known)]) for row in missing if (known := self._known.get(row))}
            self.data[missing] = self.logits.rows(missing)
            for row, (tokens, values) in kept.items():
                self.data[row, tokens] = values
            self._full.update(missing)
        if self._data is not None:
            self._version = self._data._version

    def _fill_tokens(self, rows: list[int], tokens: list[int]) -> None:
        new = [row for row in rows if row not in self._known]
        if new:
            at = torch.tensor(new, device=self.data.device)[:, None]
            self.data[at, torch.tensor(tokens, device=self.data.device)] = self.logits.tokens(new, tokens)
        for row in rows:
            known = self._known.setdefault(row, set(tokens) if row in new else set())
            missing = [token for token in tokens if token not in known]
            if missing:
                self.data[row, missing] = self.logits.tokens([row], missing)[0]
                known.update(missing)

    def overwrite(self, region: _Region, write: Callable[[], object]) -> None:
        """Run a write that replaces every entry of a region, whose values are not needed."""
        write()
        if region.columns is None:
            self._full.update(region.rows)
        else:
            for row in region.rows:
                self._known.setdefault(row, set()).update(region.columns)
        self.is_written, self._version = True, self.data._version

    def check_result(self, result: object) -> None:
        """Note whether an operation wrote into the buffer, or returned something that shares its memory."""
        self.is_written |= self.data._version != self._version
        self._version = self.data._version
        storage = self.data.untyped_storage().data_ptr()
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.is_shared |= leaf.untyped_storage().data_ptr() == storage
            elif leaf is not None and not isinstance(leaf, (str, numbers.Number, np.generic, torch.dtype, torch.device)):
                self.is_shared = True


class ObservedLogits(Tensor):
    """View of logits that are computed when an operation needs them; see the module's description."""

    _buffer: _Buffer
    # A tensor without memory that has the same sizes, strides and offset.
    _shadow: Tensor

    @staticmethod
    def __new__(cls, buffer: _Buffer, shadow: Tensor) -> "ObservedLogits":
        """Make a view of a buffer."""
        made = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            shadow.shape,
            strides=shadow.stride(),
            storage_offset=shadow.storage_offset(),
            dtype=buffer.logits.dtype,
            device=buffer.logits.device,
        )
        made._buffer, made._shadow = buffer, shadow
        buffer.views.append(weakref.ref(made))
        return made

    @classmethod
    def whole(cls, logits: Logits, views: "list[weakref.ref[Tensor]]") -> "ObservedLogits":
        """Return the view of all logits, with memory of its own for what is written."""
        return cls(_Buffer(logits, views), torch.empty(logits.shape, dtype=logits.dtype, device="meta"))

    @property
    def _region(self) -> _Region:
        return _Region.of(self._shadow, self._buffer.logits.width)

    def _memory(self) -> Tensor:
        """Return the ordinary tensor of this view, whether its entries are filled or not."""
        shadow = self._shadow
        return self._buffer.data.as_strided(shadow.shape, shadow.stride(), shadow.storage_offset())

    def _compute(self) -> Tensor:
        """Return the ordinary tensor of this view, with all its entries."""
        region = self._region
        self._buffer.fill(region.rows, region.columns)
        return self._memory()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of PyTorch; Python calls this in place of the operation."""
        options = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in _METADATA:
                return func(*args, **options)
            first = args[0] if args else None
            if isinstance(first, ObservedLogits):
                handler = _HANDLERS.get(func)
                result = NotImplemented if handler is None else handler(func, first, args[1:], options)
                if result is not NotImplemented:
                    return result
            return _run(func, args, options)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation that does not come from Python, such as one of a scripted function."""
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, options: Any) -> Any:
    """Run an operation on ordinary tensors, after computing all entries of the views among its arguments."""
    views = [one for one in tree_leaves((args, options)) if isinstance(one, ObservedLogits)]
    plain_args, plain_options = tree_map_only(ObservedLogits, ObservedLogits._compute, (args, options))
    result = func(*plain_args, **plain_options)
    for view in views:
        view._buffer.check_result(result)
    return result


def _view(func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:
    """Run an operation that returns views, without computing anything; NotImplemented if it copies."""
    others = [one for one in tree_leaves((args, options)) if isinstance(one, ObservedLogits)]
    args, options = tree_map_only(ObservedLogits, lambda one: one._shadow, (args, options)) if others else (args, options)
    storage = logits._shadow.untyped_storage()._cdata
    result = func(logits._shadow, *args, **options)
    leaves = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
    if any(one.untyped_storage()._cdata != storage for one in leaves):
        return NotImplemented
    return tree_map_only(Tensor, lambda one: ObservedLogits(logits._buffer, one), result)


def _get(func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:
    """Index logits: numbers and slices give a view; index tensors compute the rows and tokens that they select."""
    index = args[0] if isinstance(args[0], tuple) else (args[0],)
    if all(_is_basic(one) for one in index):
        return _view(func, logits, (index,), options)
    if any(isinstance(one, (ObservedLogits, list, tuple)) for one in index):
        index = tree_map_only(ObservedLogits, ObservedLogits._compute, index)
    region = logits._region
    found = _select_region(region, index, logits.ndim, logits._buffer.logits.width)
    if found is None:
        return NotImplemented
    logits._buffer.fill(*found)
    result = func(logits._memory(), index)
    logits._buffer.check_result(result)
    return result


def _set(func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:  # noqa: ARG001
    """Write into logits; entries that are replaced need not be computed."""
    index, value = args
    index = index if isinstance(index, tuple) else (index,)
    value = value._compute() if isinstance(value, ObservedLogits) else value
    buffer = logits._buffer
    if not all(_is_basic(one) for one in index):
        return NotImplemented
    region = _Region.of(logits._shadow[index], buffer.logits.width)
    if region.columns is None and not region.is_table:  # it may cover a part of the rows only
        return NotImplemented
    buffer.overwrite(region, lambda: torch.Tensor.__setitem__(logits._memory(), index, value))
    return None


def _gather(func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:
    """Gather tokens along the last axis."""
    given = dict(zip(("dim", "index"), args, strict=False)) | options
    dim, index = given.get("dim"), given.get("index", given.get("indices"))
    region = logits._region
    if not isinstance(dim, int) or not isinstance(index, Tensor) or isinstance(index, ObservedLogits):
        return NotImplemented
    if dim not in (-1, logits.ndim - 1) or not region.is_table or index.ndim != logits.ndim:
        return NotImplemented
    if set(given) - {"dim", "index", "indices"}:
        return NotImplemented
    rows = region.ids[tuple(slice(n) for n in index.shape[:-1])]
    columns = range(logits._buffer.logits.width) if region.columns is None else region.columns
    logits._buffer.fill(rows.unique().tolist(), sorted({columns[i] for i in index.unique().tolist()}))
    result = func(logits._memory(), *args, **options)
    logits._buffer.check_result(result)
    return result


def _index_select(func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:  # noqa: ARG001
    given = dict(zip(("dim", "index"), args, strict=False)) | options
    if set(given) != {"dim", "index"} or not isinstance(given["dim"], int) or given["index"].ndim != 1:
        return NotImplemented
    return _get(torch.Tensor.__getitem__, logits, ((*(slice(None),) * (given["dim"] % logits.ndim), given["index"]),), {})


def _rowwise(func: Any, logits: ObservedLogits, args: Any, options: Any, *, by_token: bool = False) -> Any:
    """Apply a function of rows, or of single entries, when its result is read."""
    buffer, region = logits._buffer, logits._region
    settings = tree_leaves((args, options))
    if not buffer.is_pristine or not region.is_table or region.columns is not None:
        return NotImplemented
    if not all(one is None or isinstance(one, _SETTINGS) for one in settings):
        return NotImplemented
    if not by_token:
        dim = options.get("dim", args[0] if args else None)
        if dim not in (-1, logits.ndim - 1):
            return NotImplemented
        args, options = args[1:], {name: value for name, value in options.items() if name != "dim"}

        def apply(rows: Tensor) -> Tensor:
            return func(rows, -1, *args, **options)
    else:

        def apply(rows: Tensor) -> Tensor:
            return func(rows, *args, **options)

    probe = torch.empty(0, buffer.logits.width, dtype=buffer.logits.dtype, device=buffer.logits.device)
    if apply(probe) is probe:  # a conversion to the dtype or device that the logits have
        return ObservedLogits(buffer, logits._shadow)
    return ObservedLogits.whole(buffer.logits.map(apply, region, by_token=by_token), buffer.views)


def _elementwise(func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:
    return _rowwise(func, logits, args, options, by_token=True)


def _is_basic(one: object) -> bool:
    """Return whether an index selects a view: a number, a slice, None or an ellipsis."""
    is_number = isinstance(one, numbers.Integral) and not isinstance(one, (bool, np.bool_))
    return is_number or one is None or one is Ellipsis or (isinstance(one, slice) and not isinstance(one.start, Tensor))


def _select_region(region: _Region, index: tuple[Any, ...], n_axes: int, width: int) -> "tuple[list[int], Columns] | None":
    """Return the rows and columns that an index with tensors selects; None if they are not simple to tell."""
    if not region.is_table or any(one is None or isinstance(one, (bool, np.bool_)) for one in index):
        return None
    parts = [one if _is_basic(one) else torch.as_tensor(one, device="cpu") for one in index]
    sizes = [one.ndim if isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) else 1 for one in parts]
    if Ellipsis in [one for one in parts if not isinstance(one, Tensor)]:
        at = next(i for i, one in enumerate(parts) if one is Ellipsis)
        hidden = n_axes - sum(sizes) + 1
        parts[at : at + 1] = [slice(None)] * hidden
        sizes[at : at + 1] = [1] * hidden
    leading, used = [], 0
    for one, size in zip(parts, sizes, strict=True):
        if used + size > n_axes - 1:
            break
        leading.append(one)
        used += size
    own = range(width) if region.columns is None else region.columns
    rest = parts[len(leading) :]
    rows = region.ids[tuple(leading)].unique().tolist()
    if not rest:
        return rows, region.columns
    if len(rest) > 1 or used != n_axes - 1:  # one mask over rows and tokens
        return None
    at = rest[0]
    if isinstance(at, Tensor):
        chosen = at.nonzero()[:, 0] if at.dtype in (torch.bool, torch.uint8) else at.flatten()
        return rows, sorted({own[i] for i in chosen.tolist()})
    return rows, own[at] if isinstance(at, slice) else [own[int(at)]]


def _functions(names: str) -> list[Any]:
    """Return the methods and functions of PyTorch with these names."""
    places = (torch.Tensor, torch, torch.nn.functional)
    return [getattr(place, name) for name in names.split() for place in places if hasattr(place, name)]


def _properties(names: str) -> list[Any]:
    """Return the getters of properties of tensors."""
    return [getattr(torch.Tensor, name).__get__ for name in names.split()]


# Operations that need sizes, strides and dtype only.
_METADATA = frozenset(
    _functions(
        "size dim ndimension numel nelement stride is_contiguous storage_offset element_size get_device is_floating_point "
        "is_complex is_signed __len__ __hash__ is_tensor"
    )
    + _properties(
        "shape dtype device ndim layout requires_grad is_leaf grad_fn grad is_cuda is_cpu is_meta is_mps is_sparse is_quantized "
        "is_nested itemsize output_nr"
    )
)
_HANDLERS: dict[Any, Callable[[Any, ObservedLogits, Any, Any], Any]] = {
    **dict.fromkeys(
        _functions(
            "select narrow unbind squeeze unsqueeze transpose permute movedim moveaxis swapaxes swapdims t view view_as reshape "
            "reshape_as flatten unflatten expand expand_as detach contiguous split chunk tensor_split diagonal"
        ),
        _view,
    ),
    **dict.fromkeys(_properties("T mT data"), _view),
    **dict.fromkeys(_functions("gather take_along_dim"), _gather),
    **dict.fromkeys(_functions("index_select"), _index_select),
    **dict.fromkeys(_functions("softmax log_softmax"), _rowwise),
    **dict.fromkeys(
        _functions(
            "float double half bfloat16 to cpu cuda clone neg exp sigmoid add sub mul div __add__ __sub__ __mul__ __truediv__ "
            "__neg__"
        ),
        _elementwise,
    ),
    torch.Tensor.__getitem__: _get,
    torch.Tensor.__setitem__: _set,
}


def resolve(value: Any) -> Any:
    """Return a value in which every view of logits is an ordinary tensor of its own."""
    return tree_map_only(ObservedLogits, lambda one: one._compute().clone(), value)


def observe(metric: Callable[[Tensor], Any], logits: Logits) -> Any:
    """Call a metric with logits that are computed where it looks; ``logits.reads`` has what it read.

    Views that the metric stored somewhere are computed at the end, so that they stay valid.

    Example:
        >>> logits = Logits.of(torch.zeros(1, 3, 5))
        >>> observe(lambda l: l[0, -1, 2] - l[0, -1, 4], logits)
        tensor(0.)
        >>> logits.reads  # row 2 is the last position
        {2: {2, 4}}

    Raises:
        UnreadLogitsError: If the metric reads logits that ``logits`` cannot compute.
    """
    views: list[weakref.ref[Tensor]] = []
    value = resolve(metric(ObservedLogits.whole(logits, views)))
    for stored in [view() for view in views]:
        if isinstance(stored, ObservedLogits):
            stored._compute()
    return value
