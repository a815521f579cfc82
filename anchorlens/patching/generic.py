"""Activation patching with any setter: on the cone engine where it can be, else one full forward
pass per cell.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Lock, RLock
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from anchorlens.constants import HEAD_SITES, SITES
from anchorlens.display import short_repr, warn
from anchorlens.engine.observed_logits import resolve
from anchorlens.errors import InputError, ShapeError, did_you_mean
from anchorlens.measure.grid import GridRequest, measure_grid
from anchorlens.measure.grid_cells import Cache, NotMeasured
from anchorlens.measure.metric_state import is_same_state, state_of
from anchorlens.models.adapter import LensModel, act_name, patching_result_class, unwrap_model
from anchorlens.models.load import check_has_numbers
from anchorlens.patching.setters import (
    PatchSetter,
    columns_of,
    find_obstacle,
    make_df_from_ranges,
)

Metric: TypeAlias = Callable[[Tensor], Tensor]
"""Function from logits [batch pos d_vocab] to a scalar tensor, or with ``reduce`` ``mean`` or
``none`` to [batch].
"""

_REDUCE = ("scalar", "mean", "none")
_AXES = ("layer", "pos", "src_pos", "dest_pos", "head", "head_index")


def generic_activation_patch(
    model: LensModel,
    corrupted_tokens: Tensor,
    clean_cache: Cache,
    patching_metric: Metric | Mapping[str, Metric],
    patch_setter: PatchSetter,
    activation_name: str,
    index_axis_names: Sequence[str] | None = None,
    index_df: pd.DataFrame | None = None,
    return_index_df: bool = False,
    *,
    reduce: str = "scalar",
    baseline: bool = False,
    positions: Sequence[int] | None = None,
) -> Any:
    """Measure a metric with one activation patched, for every index.

    Args:
        model: HookedTransformer or TransformerBridge.
        corrupted_tokens: Tokens of the run that is patched, [batch pos].
        clean_cache: Activations that are patched in, by hook name.
        patching_metric: Function from logits [batch pos d_vocab] to a scalar tensor, or name ->
            function.
        patch_setter: Function (corrupted activation, index, clean activation) -> patched
            activation.
        activation_name: Name of the activation, such as ``resid_pre`` or ``z``.
        index_axis_names: Axes to iterate over, of ``layer``, ``pos``, ``head``, ``head_index``,
            ``src_pos`` and ``dest_pos``; the first is the layer. Give this or ``index_df``.
        index_df: Indices, one per row; the first column is the layer.
        return_index_df: Whether to return the indices as well.
        reduce: As in TransformerLens 4: ``scalar``, or for metrics that return [batch] ``mean`` or
            ``none``.
        baseline: As in TransformerLens 4: whether to measure the corrupted run as well.
        positions: Positions that the metric may read, such as ``[-1]`` or ``range(4, 9)``, negative
            from the end. They are computed at once. If None, those that it reads on the corrupted
            logits and in the checked cells. In either case, a cell in which it reads another
            position is computed again with all positions.

    Returns:
        The metric for each index: one dimension per axis, or with ``index_df`` one entry per row.
        With ``return_index_df`` also the indices. With several metrics, ``reduce="none"`` or
        ``baseline`` TransformerLens 4's ``PatchingResult``.

    Raises:
        InputError: If an argument is unknown or contradicts another, or a ``PatchingResult`` is
            needed with TransformerLens 3.9.
        ShapeError: If a metric returns another shape than ``reduce`` asks for.
    """
    model = check_call(model, corrupted_tokens, clean_cache)
    if (index_axis_names is None) == (index_df is None):
        raise InputError(
            "index_axis_names, index_df: give exactly one of the two.", argument="index_df"
        )
    metrics = _named_metrics(patching_metric)
    has_metrics = isinstance(patching_metric, Mapping)
    result_class = _check_result(
        metrics, reduce, needed=has_metrics or reduce == "none" or baseline, frame=return_index_df
    )
    shape: list[int] | None = None
    if index_df is None:
        assert index_axis_names is not None
        size_of = partial(_axis_size, model, corrupted_tokens, activation_name)
        shape = [size_of(name) for name in index_axis_names]
        index_df = make_df_from_ranges(shape, index_axis_names)
    indices = _indices_of(model, corrupted_tokens, activation_name, index_df)
    n_examples = None if reduce == "scalar" else len(corrupted_tokens)
    metric = make_vector_metric(metrics, n_examples)
    with hold_model(model):
        values = measure_cells(
            model=model,
            tokens=corrupted_tokens,
            cache=clean_cache,
            metrics=metrics,
            metric=metric,
            setter=patch_setter,
            name=activation_name,
            indices=indices,
            positions=positions,
        )
        before = metric(model(corrupted_tokens)).detach().to("cpu") if baseline else None
    shape_values = partial(
        _shape_values, n_metrics=len(metrics), n_examples=n_examples, reduce=reduce
    )
    out = shape_values(values, axes=shape or [len(indices)]).to(model.cfg.device)
    if result_class is not None:
        first = None if before is None else shape_values([before], axes=[])
        return result_class(
            values=out if has_metrics else out[0],
            axis_names=list(index_axis_names or ()),
            index_df=index_df,
            metric_names=list(metrics),
            reduced=reduce != "none",
            has_metric_axis=has_metrics,
            baseline=first if first is None or has_metrics else first[0],
        )
    return (out[0], index_df) if return_index_df else out[0]


def _named_metrics(patching_metric: Metric | Mapping[str, Metric]) -> dict[str, Metric]:
    """Return metrics by name; raise InputError if one is no function."""
    if isinstance(patching_metric, Mapping):
        metrics = dict(patching_metric)
    else:
        metrics = {"metric": patching_metric}
    for name, one in metrics.items():
        if not callable(one):
            raise InputError(
                f"patching_metric: {name!r} is {short_repr(one)}. Give a function from logits"
                " [batch pos d_vocab] to a scalar tensor.",
                argument="patching_metric",
            )
    return metrics


def _shape_values(
    values: Sequence[Float[Tensor, "value"]],
    *,
    axes: Sequence[int],
    n_metrics: int,
    n_examples: int | None,
    reduce: str,
) -> Float[Tensor, "metric *axis"]:
    """Return the values of some runs with the axes [metric *axes], and an axis of examples with
    ``reduce="none"``.

    A run has the values of all metrics, of ``n_examples`` examples each; if None, a scalar each.
    """
    n_values = n_metrics * (n_examples or 1)
    table = torch.stack(list(values)) if values else torch.empty(0, n_values, device="cpu")
    pattern = "run (metric example) -> metric run example"
    by_run = rearrange(table, pattern, metric=n_metrics)
    shaped = by_run.reshape(n_metrics, *axes, n_examples or 1)
    if reduce == "none":
        return shaped
    return shaped.mean(-1)  # one value per run, or the mean over examples


def check_call(model: LensModel, corrupted_tokens: object, *caches: object) -> LensModel:
    """Return the model to which hooks are attached.

    Raises:
        InputError: If the model has no numbers, the tokens are no tensor, or the cache is one or
            None.
    """
    model = unwrap_model(model)
    check_has_numbers(model)
    if not isinstance(corrupted_tokens, Tensor):
        raise InputError(
            f"corrupted_tokens: {type(corrupted_tokens).__name__}. Give a tensor of token ids"
            " [batch pos], such as model.to_tokens(prompt).",
            argument="corrupted_tokens",
        )
    for cache in caches:
        if cache is not None and not isinstance(cache, Tensor | str):
            continue
        raise InputError(
            f"clean_cache: {type(cache).__name__}. Give activations by hook name, such as the"
            " second value of model.run_with_cache(clean_tokens).",
            argument="clean_cache",
        )
    return model


def make_vector_metric(
    metrics: Mapping[str, Metric], n_examples: int | None
) -> Callable[[Tensor], Float[Tensor, "value"]]:
    """Return the function from logits to the values of all metrics, of ``n_examples`` examples
    each; if None, of a scalar each.

    Metrics are called with the default device of the caller.
    """
    device = torch.get_default_device()

    def metric(logits: Tensor) -> Float[Tensor, "value"]:
        with torch.device(device) if device.type != "cpu" else nullcontext():
            return _evaluate(metrics, n_examples, logits)

    return metric


def _check_result(metrics: Mapping[str, Metric], reduce: str, *, needed: bool, frame: bool) -> Any:
    """Return TransformerLens 4's class of results if it is needed, else None; raise InputError if
    that is impossible.
    """
    if reduce not in _REDUCE:
        raise InputError(
            f"reduce={reduce!r}: unknown. Give one of {', '.join(_REDUCE)}.", argument="reduce"
        )
    if not metrics:
        raise InputError(
            "patching_metric: an empty mapping. Give at least one metric.",
            argument="patching_metric",
        )
    if needed and frame:
        raise InputError(
            "return_index_df: the result has index_df itself. Leave it out.",
            argument="return_index_df",
        )
    if needed and patching_result_class() is None:
        raise InputError(
            "reduce='none', baseline=True and several metrics return a PatchingResult, which"
            " TransformerLens 3.9 does not have. Install transformer-lens 4, or use"
            " anchorlens.patch_sweep.",
            argument="reduce",
        )
    return patching_result_class() if needed else None


def measure_cells(
    *,
    model: LensModel,
    tokens: Tensor,
    cache: Cache,
    metrics: Mapping[str, Metric],
    metric: Callable[[Tensor], Float[Tensor, "value"]],
    setter: PatchSetter,
    name: str,
    indices: Sequence[tuple[int, ...]],
    positions: Sequence[int] | None = None,
    label: str | None = None,
    is_silent: bool = False,
) -> list[Float[Tensor, "value"]]:
    """Return the values at each index: from the cone engine, else from one full forward pass per
    cell.

    Args:
        model: The model.
        tokens: Corrupted tokens.
        cache: Activations that are patched in.
        metrics: Metrics by name.
        metric: Function from logits to the values of all metrics.
        setter: Function (corrupted activation, index, clean activation) -> patched activation.
        name: Name of the patched activation.
        indices: Cells, with the layer first.
        positions: Positions that the metrics are declared to read.
        label: Label of the progress bar.
        is_silent: Whether no progress bar is shown.
    """
    if not indices:
        return []
    reason = find_obstacle(model, tokens, setter, name, indices)
    declared = _check_positions(positions, tokens)
    known: Mapping[tuple[int, ...], Tensor] = {}
    if reason is None:
        state = state_of(*metrics.values())

        def has_same_state() -> bool:
            return is_same_state(state, state_of(*metrics.values()))

        request = GridRequest(
            model=model,
            tokens=tokens,
            cache=cache,
            metric=metric,
            setter=setter,
            site=name,
            columns=columns_of(setter),
            cells=indices,
            has_same_state=has_same_state,
            positions=declared,
        )
        try:
            return measure_grid(request)
        except NotMeasured as why:
            reason = str(why)
            known = why.known
    _check_cache(cache, name, setter, indices)
    warn(f"{name}: one forward pass per cell is run, because {reason}.")
    values: list[Tensor] = []
    for index in tqdm(indices, desc=label, disable=is_silent):
        # A metric that keeps state is not called again for the first cell.
        if not values and index in known:
            values.append(known[index])
            continue
        value = _measure_cell(
            index,
            model=model,
            tokens=tokens,
            cache=cache,
            metric=metric,
            setter=setter,
            name=name,
        )
        values.append(value)
    return values


def _check_cache(
    cache: Cache, name: str, setter: PatchSetter, indices: Sequence[tuple[int, ...]]
) -> None:
    """Raise InputError if the cache lacks an activation or a position that is patched in."""
    by_position = columns_of(setter)[:1] == ("pos",)
    for layer in dict.fromkeys(index[0] for index in indices):
        hook_name = act_name(name, layer)
        try:
            clean = cache[hook_name]
        except KeyError as why:
            near = did_you_mean(name, (*SITES, *HEAD_SITES))
            raise InputError(
                f"activation_name={name!r}: clean_cache has no {hook_name!r}. {near}".rstrip(),
                argument="activation_name",
            ) from why
        if not by_position:
            continue
        of_layer = [index[1] for index in indices if index[0] == layer and len(index) > 1]
        last = max(of_layer, default=-1)
        if last >= clean.shape[1]:
            raise InputError(
                f"clean_cache: {hook_name!r} has {clean.shape[1]} positions, and position {last} is"
                " patched. Give prompts of one length, or the positions of both in index_df=.",
                argument="clean_cache",
            )


def _indices_of(
    model: LensModel, tokens: Tensor, name: str, frame: pd.DataFrame
) -> list[tuple[int, ...]]:
    """Return the rows of a frame of indices; negative positions and heads count from the end.

    Raises:
        InputError: If an index lies outside the model or the prompt.
    """
    if frame.isna().any(axis=None):
        raise InputError(
            "index_df: a cell is missing. Give a whole number in every cell.", argument="index_df"
        )
    indices = [tuple(map(int, row)) for row in frame.itertuples(index=False)]
    n_layers = int(model.cfg.n_layers)
    n_pos = int(tokens.shape[-1])
    for index in indices:
        if not index or not 0 <= index[0] < n_layers:
            raise InputError(
                f"index_df: {index} has no layer from 0 to {n_layers - 1} first.",
                argument="index_df",
            )
    columns = list(map(str, frame.columns))
    size_of = partial(_axis_size, model, tokens, name)
    sizes = [size_of(column) if column in _AXES else None for column in columns]
    counted: list[tuple[int, ...]] = []
    for index in indices:
        numbers = [index[0]]
        for value, size, column in zip(index[1:], sizes[1:], columns[1:], strict=True):
            if size is not None and not -size <= value < size:
                raise InputError(
                    f"index_df: {column}={value} is outside: there are {size}, and the prompt has"
                    f" {n_pos} positions.",
                    argument="index_df",
                )
            numbers.append(value if size is None else value % size)
        counted.append(tuple(numbers))
    return counted


def _check_positions(positions: Sequence[int] | None, tokens: Tensor) -> list[int]:
    """Return declared positions, counted from the start; raise InputError if one lies outside the
    prompt.
    """
    n = int(tokens.shape[-1])
    if isinstance(positions, str) or not isinstance(positions, Iterable | None):
        raise InputError(
            f"positions={short_repr(positions)}: must be a list of whole numbers, such as [-1].",
            argument="positions",
        )
    given = [int(position) for position in positions or ()]
    if wrong := [position for position in given if not -n <= position < n]:
        raise InputError(
            f"positions={given}: the prompt has {n} tokens, so {wrong[0]} is outside. Give"
            f" positions from {-n} to {n - 1}.",
            argument="positions",
        )
    return sorted({position % n for position in given})


_locks: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()
_making_a_lock = Lock()


@contextmanager
def hold_model(model: object) -> Iterator[None]:
    """Keep other threads from patching the model, whose hooks would meet, and make index tables on
    the CPU; one thread may do so several times.
    """
    with _making_a_lock:
        lock = _locks.setdefault(model, RLock())
    is_cpu = torch.get_default_device().type == "cpu"
    with lock, nullcontext() if is_cpu else torch.device("cpu"):
        yield


def _evaluate(
    metrics: Mapping[str, Metric], n_examples: int | None, logits: Tensor
) -> Float[Tensor, "value"]:
    """Return the values of all metrics, of ``n_examples`` examples each; if None, of a scalar each.
    They stay on the device of the metrics, so that those of many cells are copied at once.
    """
    out: list[Tensor] = []
    for name, metric in metrics.items():
        found = resolve(metric(logits))
        wanted = "a scalar" if n_examples is None else f"[batch] = ({n_examples},)"
        try:
            value = found if isinstance(found, Tensor) else torch.as_tensor(found, device="cpu")
        except (TypeError, ValueError, RuntimeError) as why:
            raise ShapeError(
                f"patching_metric {name!r}: returned {short_repr(found)}. Return {wanted}."
            ) from why
        if value.numel() != (n_examples or 1) or (n_examples is not None and value.ndim != 1):
            raise ShapeError(
                f"patching_metric {name!r}: returned shape {tuple(value.shape)}. Return {wanted}."
            )
        out.append(value.reshape(-1).to(torch.get_default_dtype()))
    devices = {value.device for value in out}
    return torch.cat(out if len(devices) == 1 else [value.to("cpu") for value in out])


def _measure_cell(
    index: Sequence[int],
    *,
    model: LensModel,
    tokens: Tensor,
    cache: Cache,
    metric: Callable[[Tensor], Float[Tensor, "value"]],
    setter: PatchSetter,
    name: str,
) -> Float[Tensor, "value"]:
    """Measure one cell with a hook and a full forward pass."""
    hook_name = act_name(name, index[0])
    clean = cache[hook_name]

    def patch(activation: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        # Written in place as in TransformerLens: on bridges resid_mid is also read by the sum after
        # the MLP.
        return setter(activation.clone() if activation.requires_grad else activation, index, clean)

    return metric(model.run_with_hooks(tokens, fwd_hooks=[(hook_name, patch)])).detach().to("cpu")


def _axis_size(model: LensModel, tokens: Tensor, activation_name: str, axis: str) -> int:
    cfg: Any = model.cfg
    kv = getattr(cfg, "n_key_value_heads", None)
    n_heads = int(kv) if activation_name in ("k", "v") and kv is not None else int(cfg.n_heads)
    n_pos = int(tokens.shape[-1])
    sizes = {
        "layer": int(cfg.n_layers),
        "pos": n_pos,
        "src_pos": n_pos,
        "dest_pos": n_pos,
        "head": n_heads,
        "head_index": n_heads,
    }
    if axis not in sizes:
        raise InputError(
            f"index_axis_names={axis!r}: unknown. Known: {', '.join(_AXES)}.",
            argument="index_axis_names",
        )
    return sizes[axis]
