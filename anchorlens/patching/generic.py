"""Activation patching with any setter: on the cone engine where it can be, else one full forward pass per cell."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from anchorlens.errors import InputError, ShapeError
from anchorlens.models.backend import LensModel, act_name, patching_result_class
from anchorlens.patching.cone_grid import find_obstacle, measure_grid
from anchorlens.patching.setters import Cache, PatchSetter, make_df_from_ranges
from anchorlens.warn import warn

Metric: TypeAlias = Callable[[Tensor], Tensor]
"""Function from logits [batch pos d_vocab] to a scalar tensor, or with ``reduce`` ``mean`` or ``none`` to [batch]."""

_REDUCE = ("scalar", "mean", "none")


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
) -> Any:
    """Measure a metric with one activation patched, for every index.

    Args:
        model: HookedTransformer or TransformerBridge.
        corrupted_tokens: Tokens of the run that is patched, [batch pos].
        clean_cache: Activations that are patched in, by hook name.
        patching_metric: Function from logits [batch pos d_vocab] to a scalar tensor, or name -> function.
        patch_setter: Function (corrupted activation, index, clean activation) -> patched activation.
        activation_name: Name of the activation, such as ``resid_pre`` or ``z``.
        index_axis_names: Axes to iterate over, of ``layer``, ``pos``, ``head``, ``head_index``, ``src_pos`` and ``dest_pos``; the
            first is the layer. Give this or ``index_df``.
        index_df: Indices, one per row; the first column is the layer.
        return_index_df: Whether to return the indices as well.
        reduce: As in TransformerLens 4: ``scalar``, or for metrics that return [batch] ``mean`` or ``none``.
        baseline: As in TransformerLens 4: whether to measure the corrupted run as well.

    Returns:
        The metric for each index: one dimension per axis, or with ``index_df`` one entry per row. With ``return_index_df`` also the
        indices. With several metrics, ``reduce="none"`` or ``baseline`` TransformerLens 4's ``PatchingResult``.

    Raises:
        InputError: If an argument is unknown or contradicts another, or a ``PatchingResult`` is needed with TransformerLens 3.9.
        ShapeError: If a metric returns another shape than ``reduce`` asks for.
    """
    if (index_axis_names is None) == (index_df is None):
        raise InputError("index_axis_names, index_df: give exactly one of the two.", argument="index_df")
    metrics = dict(patching_metric) if isinstance(patching_metric, Mapping) else {"metric": patching_metric}
    has_metrics = isinstance(patching_metric, Mapping)
    result_class = _check_result(metrics, reduce, needed=has_metrics or reduce == "none" or baseline, frame=return_index_df)
    shape: list[int] | None = None
    if index_df is None:
        assert index_axis_names is not None
        shape = [_axis_size(model, corrupted_tokens, activation_name, name) for name in index_axis_names]
        index_df = make_df_from_ranges(shape, index_axis_names)
    indices: list[list[int]] = [list(map(int, row)) for row in index_df.itertuples(index=False)]
    n_examples = None if reduce == "scalar" else len(corrupted_tokens)
    metric = partial(_evaluate, metrics, n_examples)
    measure = partial(_measure_cell, model, corrupted_tokens, clean_cache, metric, patch_setter, activation_name)
    values, reason = None, find_obstacle(model, corrupted_tokens, patch_setter, activation_name, indices)
    if reason is None:
        values, reason = measure_grid(model, corrupted_tokens, clean_cache, metric, patch_setter, activation_name, indices, measure)
    if values is None:
        warn(f"{activation_name}: one forward pass per cell is run, because {reason}.")
        values = [measure(index) for index in tqdm(indices)]
    pattern = "cell (metric example) -> metric cell example"
    out = rearrange(torch.stack(values), pattern, metric=len(metrics)).reshape(len(metrics), *(shape or [len(indices)]), -1)
    first = (
        rearrange(metric(model(corrupted_tokens)), "(metric example) -> metric example", metric=len(metrics)) if baseline else None
    )
    if reduce != "none":  # one value per cell, or the mean over examples
        out, first = out.mean(-1), None if first is None else first.mean(-1)
    out = out.to(model.cfg.device)
    if result_class is not None:
        return result_class(
            values=out if has_metrics else out[0], axis_names=list(index_axis_names or ()), index_df=index_df,
            metric_names=list(metrics), reduced=reduce != "none", has_metric_axis=has_metrics,
            baseline=first if first is None or has_metrics else first[0],
        )  # fmt: skip
    return (out[0], index_df) if return_index_df else out[0]


def _check_result(metrics: Mapping[str, Metric], reduce: str, *, needed: bool, frame: bool) -> Any:
    """Return TransformerLens 4's class of results if it is needed, else None; raise InputError if that is impossible."""
    if reduce not in _REDUCE:
        raise InputError(f"reduce={reduce!r}: unknown. Give one of {', '.join(_REDUCE)}.", argument="reduce")
    if not metrics:
        raise InputError("patching_metric: an empty mapping. Give at least one metric.", argument="patching_metric")
    if needed and frame:
        raise InputError("return_index_df: the result has index_df itself. Leave it out.", argument="return_index_df")
    if needed and patching_result_class() is None:
        raise InputError(
            "reduce='none', baseline=True and several metrics return a PatchingResult, which TransformerLens 3.9 does not have. "
            "Install transformer-lens 4, or use anchorlens.patch_sweep.",
            argument="reduce",
        )
    return patching_result_class() if needed else None


def _evaluate(metrics: Mapping[str, Metric], n_examples: int | None, logits: Tensor) -> Float[Tensor, "value"]:
    """Return the values of all metrics, of ``n_examples`` examples each; if None, of a scalar each."""
    out: list[Tensor] = []
    for name, metric in metrics.items():
        value = torch.as_tensor(metric(logits))
        if value.numel() != (n_examples or 1) or (n_examples is not None and value.ndim != 1):
            wanted = "a scalar" if n_examples is None else f"[batch] = ({n_examples},)"
            raise ShapeError(f"patching_metric {name!r}: returned shape {tuple(value.shape)}. Return {wanted}.")
        out.append(value.reshape(-1))
    return torch.cat(out).float().cpu()


def _measure_cell(
    model: LensModel,
    tokens: Tensor,
    cache: Cache,
    metric: Callable[[Tensor], Float[Tensor, "value"]],
    setter: PatchSetter,
    name: str,
    index: Sequence[int],
) -> Float[Tensor, "value"]:
    """Measure one cell with a hook and a full forward pass."""
    hook_name = act_name(name, index[0])
    clean = cache[hook_name]

    def patch(activation: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        # Written in place as in TransformerLens: on bridges resid_mid is also read by the sum after the MLP.
        return setter(activation.clone() if activation.requires_grad else activation, index, clean)

    return metric(model.run_with_hooks(tokens, fwd_hooks=[(hook_name, patch)])).detach()


def _axis_size(model: LensModel, tokens: Tensor, activation_name: str, axis: str) -> int:
    cfg: Any = model.cfg
    kv = getattr(cfg, "n_key_value_heads", None)
    n_heads = int(kv) if activation_name in ("k", "v") and kv is not None else int(cfg.n_heads)
    n_pos = int(tokens.shape[-1])
    sizes = {
        "layer": int(cfg.n_layers), "pos": n_pos, "src_pos": n_pos, "dest_pos": n_pos, "head": n_heads, "head_index": n_heads,
    }  # fmt: skip
    if axis not in sizes:
        raise InputError(f"index_axis_names={axis!r}: unknown. Known: {', '.join(sizes)}.", argument="index_axis_names")
    return sizes[axis]
