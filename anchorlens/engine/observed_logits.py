"""Logits that are computed where a metric looks.

A metric is any function of the logits [batch pos d_vocab]. :func:`observe` calls it with an
:class:`ObservedLogits`, a tensor without memory of its own. Indexing and reshaping stay lazy. Any
other operation first computes the logits that it was given, and then runs on an ordinary tensor. So
what a metric reads is known at every call, and nothing is inferred from its values.

All views share one buffer, with strides as in an ordinary tensor. A write into a view is therefore
seen by every other view, as in PyTorch. Logits that nobody has computed raise
:class:`~anchorlens.engine.logits.UnreadLogitsError`: a metric never receives a number that was not
measured.
"""

import numbers
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from anchorlens.engine.logits import Columns, LogitBuffer, LogitRegion, Logits

# Types of the arguments with which a function treats every row alike.
_SETTINGS = (int, float, str, torch.dtype, torch.device, torch.memory_format)
# Arguments that contain no others.
_LEAVES = (Tensor, int, float, bool, type(None), torch.dtype)


class ObservedLogits(Tensor):
    """View of logits that are computed when an operation needs them; see the module's
    description.
    """

    _buffer: LogitBuffer
    # A tensor without memory that has the same sizes, strides and offset.
    _shadow: Tensor

    @staticmethod
    def __new__(cls, buffer: LogitBuffer, shadow: Tensor) -> "ObservedLogits":
        """Make a view of a buffer."""
        made = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            shadow.shape,
            strides=shadow.stride(),
            storage_offset=shadow.storage_offset(),
            dtype=buffer.logits.dtype,
            device=buffer.logits.device,
        )
        made._buffer = buffer
        made._shadow = shadow
        buffer.views.append(weakref.ref(made))
        return made

    @classmethod
    def whole(cls, logits: Logits, views: "list[weakref.ref[Tensor]]") -> "ObservedLogits":
        """Return the view of all logits, with memory of its own for what is written."""
        shadow = torch.empty(logits.shape, dtype=logits.dtype, device="meta")
        return cls(LogitBuffer(logits, views), shadow)

    @property
    def _region(self) -> LogitRegion:
        return LogitRegion.of(self._shadow, self._buffer.logits.width)

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
                result = (
                    NotImplemented if handler is None else handler(func, first, args[1:], options)
                )
                if result is not NotImplemented:
                    return result
            return _run(func, args, options)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation that does not come from Python, such as one of a scripted function."""
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, options: Any) -> Any:
    """Run an operation on ordinary tensors, after computing all entries of the views among its
    arguments.
    """
    # Most operations have only tensors and numbers, and a search of nested structures takes longer
    # than the operation.
    if not options and all(isinstance(one, _LEAVES) for one in args):
        views = [one for one in args if isinstance(one, ObservedLogits)]
        plain_args = [one._compute() if isinstance(one, ObservedLogits) else one for one in args]
        plain_options = options
    else:
        views = _views_in((args, options))
        plain_args, plain_options = tree_map_only(
            ObservedLogits, ObservedLogits._compute, (args, options)
        )
    result = func(*plain_args, **plain_options)
    for view in views:
        view._buffer.check_result(result)
    return result


def _views_in(value: Any) -> list[ObservedLogits]:
    """Return the views of logits in a nested structure."""
    return [one for one in tree_leaves(value) if isinstance(one, ObservedLogits)]


def _view(func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:
    """Run an operation that returns views, without computing anything; NotImplemented if it
    copies.
    """
    is_index = func is torch.Tensor.__getitem__  # numbers and slices, see _get
    if not is_index and _views_in((args, options)):  # such as the other tensor of view_as
        args, options = tree_map_only(ObservedLogits, lambda one: one._shadow, (args, options))
    storage = logits._shadow.untyped_storage()._cdata
    result = func(logits._shadow, *args, **options)
    for leaf in [result] if isinstance(result, Tensor) else tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata != storage:
            return NotImplemented
    if isinstance(result, Tensor):
        return ObservedLogits(logits._buffer, result)
    return tree_map_only(Tensor, lambda one: ObservedLogits(logits._buffer, one), result)


def _get(func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:
    """Index logits: numbers and slices give a view; index tensors compute the rows and tokens that
    they select.
    """
    index = args[0] if isinstance(args[0], tuple) else (args[0],)
    if all(map(_is_basic, index)):
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


def _set(_func: Any, logits: ObservedLogits, args: Any, _options: Any) -> Any:
    """Write into logits; entries that are replaced need not be computed."""
    index, value = args
    index = index if isinstance(index, tuple) else (index,)
    value = value._compute() if isinstance(value, ObservedLogits) else value
    buffer = logits._buffer
    if not all(map(_is_basic, index)):
        return NotImplemented
    region = LogitRegion.of(logits._shadow[index], buffer.logits.width)
    if region.columns is None and not region.is_table:  # it may cover a part of the rows only
        return NotImplemented
    buffer.overwrite(region, lambda: torch.Tensor.__setitem__(logits._memory(), index, value))
    return None


def _gather(func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:
    """Gather tokens along the last axis."""
    given = dict(zip(("dim", "index"), args, strict=False)) | options
    dim = given.get("dim")
    index = given.get("index", given.get("indices"))
    region = logits._region
    if not isinstance(index, Tensor) or isinstance(index, ObservedLogits):
        return NotImplemented
    if (
        not isinstance(dim, int)
        or dim not in (-1, logits.ndim - 1)
        or not region.is_table
        or index.ndim != logits.ndim
    ):
        return NotImplemented
    if set(given) - {"dim", "index", "indices"}:
        return NotImplemented
    rows = region.ids[tuple(slice(n) for n in index.shape[:-1])]
    columns = range(logits._buffer.logits.width) if region.columns is None else region.columns
    tokens = {columns[i] for i in index.unique().tolist()}
    logits._buffer.fill(rows.unique().tolist(), sorted(tokens))
    result = func(logits._memory(), *args, **options)
    logits._buffer.check_result(result)
    return result


def _index_select(_func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:
    given = dict(zip(("dim", "index"), args, strict=False)) | options
    if set(given) != {"dim", "index"}:
        return NotImplemented
    dim = given["dim"]
    if not isinstance(dim, int) or given["index"].ndim != 1:
        return NotImplemented
    before = (slice(None),) * (dim % logits.ndim)
    return _get(torch.Tensor.__getitem__, logits, ((*before, given["index"]),), {})


def _rowwise(
    func: Any, logits: ObservedLogits, args: Any, options: Any, *, by_token: bool = False
) -> Any:
    """Apply a function of rows, or of single entries, when its result is read."""
    buffer = logits._buffer
    region = logits._region
    settings = tree_leaves((args, options))
    if not buffer.is_pristine or not region.is_table or region.columns is not None:
        return NotImplemented
    if not all(one is None or isinstance(one, _SETTINGS) for one in settings):
        return NotImplemented
    if not by_token:
        dim = options.get("dim", args[0] if args else None)
        if dim not in (-1, logits.ndim - 1):
            return NotImplemented
        args = args[1:]
        options = dict(options)
        options.pop("dim", None)

        def apply(rows: Tensor) -> Tensor:
            return func(rows, -1, *args, **options)

    else:

        def apply(rows: Tensor) -> Tensor:
            return func(rows, *args, **options)

    probe = torch.empty(
        0, buffer.logits.width, dtype=buffer.logits.dtype, device=buffer.logits.device
    )
    if apply(probe) is probe:  # a conversion to the dtype or device that the logits have
        return ObservedLogits(buffer, logits._shadow)
    return ObservedLogits.whole(
        buffer.logits.map(apply, region.ids, by_token=by_token), buffer.views
    )


def _elementwise(func: Any, logits: ObservedLogits, args: Any, options: Any) -> Any:
    return _rowwise(func, logits, args, options, by_token=True)


def _is_basic(one: object) -> bool:
    """Return whether an index selects a view: a number, a slice, None or an ellipsis."""
    is_number = isinstance(one, numbers.Integral) and not isinstance(one, (bool, np.bool_))
    return (
        is_number
        or one is None
        or one is Ellipsis
        or (isinstance(one, slice) and not isinstance(one.start, Tensor))
    )


def _select_region(
    region: LogitRegion, index: tuple[Any, ...], n_axes: int, width: int
) -> "tuple[list[int], Columns] | None":
    """Return the rows and columns that an index with tensors selects; None if they are not simple
    to tell.
    """
    if not region.is_table:
        return None
    for one in index:
        if one is None or isinstance(one, (bool, np.bool_)):
            return None
    parts = _expand_index(index, n_axes)
    n_leading = 0
    used = 0  # axes that the leading parts select from
    for part in parts:
        size = _count_axes(part)
        if used + size > n_axes - 1:
            break
        n_leading += 1
        used += size
    rows = region.ids[tuple(parts[:n_leading])].unique().tolist()
    rest = parts[n_leading:]
    if not rest:
        return rows, region.columns
    if len(rest) > 1 or used != n_axes - 1:  # one mask over rows and tokens
        return None
    own = range(width) if region.columns is None else region.columns
    return rows, _select_columns(own, rest[0])


def _expand_index(index: tuple[Any, ...], n_axes: int) -> list[Any]:
    """Return the parts of an index, with tensors on the CPU and slices in place of an ellipsis."""
    parts: list[Any] = []
    ellipsis: int | None = None
    used = 0
    for one in index:
        part = one if _is_basic(one) else torch.as_tensor(one, device="cpu")
        if part is Ellipsis:
            ellipsis = len(parts) if ellipsis is None else ellipsis
        used += _count_axes(part)
        parts.append(part)
    if ellipsis is not None:
        parts[ellipsis : ellipsis + 1] = [slice(None)] * (n_axes - used + 1)
    return parts


def _count_axes(part: Any) -> int:
    """Return the number of axes that a part of an index selects from."""
    return part.ndim if _is_mask(part) else 1


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)


def _select_columns(own: Sequence[int], at: Any) -> Columns:
    """Return the columns of ``own`` that the last part of an index selects."""
    if isinstance(at, Tensor):
        chosen = at.nonzero()[:, 0] if _is_mask(at) else at.flatten()
        return sorted({own[i] for i in chosen.tolist()})
    return own[at] if isinstance(at, slice) else [own[int(at)]]


def _functions(names: str) -> list[Any]:
    """Return the methods and functions of PyTorch with these names."""
    found: list[Any] = []
    for name in names.split():
        for place in (torch.Tensor, torch, torch.nn.functional):
            function = getattr(place, name, None)
            if function is not None:
                found.append(function)
    return found


def _properties(names: str) -> list[Any]:
    """Return the getters of properties of tensors."""
    return [getattr(torch.Tensor, name).__get__ for name in names.split()]


# Operations that need sizes, strides and dtype only.
_METADATA = frozenset(
    _functions(
        "size dim ndimension numel nelement stride is_contiguous storage_offset element_size"
        " get_device is_floating_point is_complex is_signed __len__ __hash__ is_tensor"
    )
    + _properties(
        "shape dtype device ndim layout requires_grad is_leaf grad_fn grad is_cuda is_cpu is_meta"
        " is_mps is_sparse is_quantized is_nested itemsize output_nr"
    )
)
_HANDLERS: dict[Any, Callable[[Any, ObservedLogits, Any, Any], Any]] = {
    **dict.fromkeys(
        _functions(
            "select narrow unbind squeeze unsqueeze transpose permute movedim moveaxis swapaxes"
            " swapdims t view view_as reshape reshape_as flatten unflatten expand expand_as detach"
            " contiguous split chunk tensor_split diagonal"
        ),
        _view,
    ),
    **dict.fromkeys(_properties("T mT data"), _view),
    **dict.fromkeys(_functions("gather take_along_dim"), _gather),
    **dict.fromkeys(_functions("index_select"), _index_select),
    **dict.fromkeys(_functions("softmax log_softmax"), _rowwise),
    **dict.fromkeys(
        _functions(
            "float double half bfloat16 to cpu cuda clone neg exp sigmoid add sub mul div __add__"
            " __sub__ __mul__ __truediv__ __neg__"
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
    """Call a metric with logits that are computed where it looks; ``logits.reads`` has what it
    read.

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
