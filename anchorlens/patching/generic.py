"""Activation patching with any setter: on the cone engine where it can be, else one full forward pass per cell."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from anchorlens.errors import InputError
from anchorlens.models.backend import LensModel, act_name
from anchorlens.patching.cone_grid import find_obstacle, measure_grid
from anchorlens.patching.setters import Cache, PatchSetter, make_df_from_ranges
from anchorlens.warn import warn

Metric = Callable[[Tensor], Tensor]


def generic_activation_patch(
    model: LensModel,
    corrupted_tokens: Tensor,
    clean_cache: Cache,
    patching_metric: Metric,
    patch_setter: PatchSetter,
    activation_name: str,
    index_axis_names: Sequence[str] | None = None,
    index_df: pd.DataFrame | None = None,
    return_index_df: bool = False,
) -> Any:
    """Measure a metric with one activation patched, for every index.

    Args:
        model: HookedTransformer or TransformerBridge.
        corrupted_tokens: Tokens of the run that is patched, [batch pos].
        clean_cache: Activations that are patched in, by hook name.
        patching_metric: Function from logits [batch pos d_vocab] to a scalar tensor.
        patch_setter: Function (corrupted activation, index, clean activation) -> patched activation.
        activation_name: Name of the activation, such as ``resid_pre`` or ``z``.
        index_axis_names: Axes to iterate over, of ``layer``, ``pos``, ``head``, ``head_index``, ``src_pos`` and ``dest_pos``; the
            first is the layer. Give this or ``index_df``.
        index_df: Indices, one per row; the first column is the layer.
        return_index_df: Whether to return the indices as well.

    Returns:
        The metric for each index: one dimension per axis, or with ``index_df`` one entry per row. With ``return_index_df`` also the
        indices.

    Raises:
        InputError: If both or neither of ``index_axis_names`` and ``index_df`` are given.
    """
    if (index_axis_names is None) == (index_df is None):
        raise InputError("index_axis_names, index_df: give exactly one of the two.", argument="index_df")
    shape: list[int] | None = None
    if index_df is None:
        assert index_axis_names is not None
        shape = [_axis_size(model, corrupted_tokens, activation_name, name) for name in index_axis_names]
        index_df = make_df_from_ranges(shape, index_axis_names)
    indices: list[list[int]] = [list(map(int, row)) for row in index_df.itertuples(index=False)]
    reason = find_obstacle(model, corrupted_tokens, patch_setter, activation_name, indices)
    values = None
    measure = partial(_measure_cell, model, corrupted_tokens, clean_cache, patching_metric, patch_setter, activation_name)
    if reason is None:
        values, reason = measure_grid(
            model, corrupted_tokens, clean_cache, patching_metric, patch_setter, activation_name, indices, measure
        )
    if values is None:
        warn(f"{activation_name}: one forward pass per cell is run, because {reason}.")
        values = [measure(index) for index in tqdm(indices)]
    out = torch.tensor(values, device=model.cfg.device)
    out = out if shape is None else out.reshape(shape)
    return (out, index_df) if return_index_df else out


def _measure_cell(
    model: LensModel, tokens: Tensor, cache: Cache, metric: Metric, setter: PatchSetter, name: str, index: Sequence[int]
) -> float:
    """Measure one cell with a hook and a full forward pass."""
    hook_name = act_name(name, index[0])
    clean = cache[hook_name]

    def patch(activation: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return setter(activation.clone(), index, clean)

    return torch.as_tensor(metric(model.run_with_hooks(tokens, fwd_hooks=[(hook_name, patch)]))).item()


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
