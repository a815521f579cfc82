"""The named patching functions: each measures one kind of activation for every layer and position
or head.

All take ``(model, corrupted_tokens, clean_cache, patching_metric)``, see
:func:`anchorlens.patching.generic.generic_activation_patch`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad

from anchorlens.measure.grid_cells import Cache
from anchorlens.models.adapter import LensModel
from anchorlens.patching.generic import Metric, generic_activation_patch
from anchorlens.patching.setters import (
    PatchSetter,
    layer_head_dest_src_pos_pattern_patch_setter,
    layer_head_pattern_patch_setter,
    layer_head_pos_pattern_patch_setter,
    layer_head_vector_patch_setter,
    layer_pos_head_vector_patch_setter,
    layer_pos_patch_setter,
    make_df_from_ranges,
)

_DOC = """Patch ``{activation}`` of the clean run into the corrupted run, one cell at a time.

Args:
    model: HookedTransformer or TransformerBridge.
    corrupted_tokens: Tokens of the run that is patched, [batch pos].
    clean_cache: Activations that are patched in, by hook name.
    patching_metric: Function from logits [batch pos d_vocab] to a scalar tensor, or name ->
        function.

Other arguments are those of :func:`~anchorlens.patching.generic.generic_activation_patch`.

Returns:
    The metric in every cell, [{axes}].

Examples:
    >>> grid = patching.get_act_patch_{name}(  # doctest: +SKIP
    ...     model, corrupted_tokens, clean_cache, metric
    ... )
"""


# No return type, so that type checkers show the signature of the function.
def _function(name: str, activation: str, setter: PatchSetter, axes: tuple[str, ...]):
    """Make the function ``get_act_patch_<name>``, which patches one kind of activation."""

    def function(
        model: LensModel,
        corrupted_tokens: Tensor,
        clean_cache: Cache,
        patching_metric: Metric | Mapping[str, Metric],
        *,
        index_axis_names: Sequence[str] | None = axes,
        index_df: pd.DataFrame | None = None,
        return_index_df: bool = False,
        reduce: str = "scalar",
        baseline: bool = False,
        positions: Sequence[int] | None = None,
    ) -> Any:
        return generic_activation_patch(
            model,
            corrupted_tokens,
            clean_cache,
            patching_metric,
            patch_setter=setter,
            activation_name=activation,
            index_axis_names=index_axis_names,
            index_df=index_df,
            return_index_df=return_index_df,
            reduce=reduce,
            baseline=baseline,
            positions=positions,
        )

    function.__name__ = f"get_act_patch_{name}"
    function.__qualname__ = function.__name__
    function.__doc__ = _DOC.format(activation=activation, axes=" ".join(axes), name=name)
    return function


_BY_POS = layer_pos_patch_setter
_HEAD_BY_POS = layer_pos_head_vector_patch_setter
_HEAD = layer_head_vector_patch_setter
_PATTERN = layer_head_pattern_patch_setter
_PATTERN_BY_POS = layer_head_pos_pattern_patch_setter
_PATTERN_ENTRY = layer_head_dest_src_pos_pattern_patch_setter
_HEAD_KINDS = ("out", "q", "k", "v", "pattern")
_BLOCK_KINDS = ("resid_pre", "attn_out", "mlp_out")
get_act_patch_resid_pre = _function("resid_pre", "resid_pre", _BY_POS, ("layer", "pos"))
get_act_patch_resid_mid = _function("resid_mid", "resid_mid", _BY_POS, ("layer", "pos"))
get_act_patch_attn_out = _function("attn_out", "attn_out", _BY_POS, ("layer", "pos"))
get_act_patch_mlp_out = _function("mlp_out", "mlp_out", _BY_POS, ("layer", "pos"))
get_act_patch_attn_head_out_by_pos = _function(
    "attn_head_out_by_pos", "z", _HEAD_BY_POS, ("layer", "pos", "head")
)
get_act_patch_attn_head_q_by_pos = _function(
    "attn_head_q_by_pos", "q", _HEAD_BY_POS, ("layer", "pos", "head")
)
get_act_patch_attn_head_k_by_pos = _function(
    "attn_head_k_by_pos", "k", _HEAD_BY_POS, ("layer", "pos", "head")
)
get_act_patch_attn_head_v_by_pos = _function(
    "attn_head_v_by_pos", "v", _HEAD_BY_POS, ("layer", "pos", "head")
)
get_act_patch_attn_head_pattern_by_pos = _function(
    "attn_head_pattern_by_pos", "pattern", _PATTERN_BY_POS, ("layer", "head_index", "dest_pos")
)
get_act_patch_attn_head_pattern_dest_src_pos = _function(
    "attn_head_pattern_dest_src_pos",
    "pattern",
    _PATTERN_ENTRY,
    ("layer", "head_index", "dest_pos", "src_pos"),
)
get_act_patch_attn_head_out_all_pos = _function(
    "attn_head_out_all_pos", "z", _HEAD, ("layer", "head")
)
get_act_patch_attn_head_q_all_pos = _function("attn_head_q_all_pos", "q", _HEAD, ("layer", "head"))
get_act_patch_attn_head_k_all_pos = _function("attn_head_k_all_pos", "k", _HEAD, ("layer", "head"))
get_act_patch_attn_head_v_all_pos = _function("attn_head_v_all_pos", "v", _HEAD, ("layer", "head"))
get_act_patch_attn_head_pattern_all_pos = _function(
    "attn_head_pattern_all_pos", "pattern", _PATTERN, ("layer", "head_index")
)


def get_act_patch_attn_head_all_pos_every(
    model: LensModel,
    corrupted_tokens: Tensor,
    clean_cache: Cache,
    metric: Metric | Mapping[str, Metric],
    *,
    reduce: str = "scalar",
    baseline: bool = False,
    positions: Sequence[int] | None = None,
) -> Any:
    """Patch outputs, queries, keys, values and patterns of every head at all positions, in this
    order: [kind layer head].

    Keys and values of grouped queries have fewer heads; the missing ones are 0. ``reduce``,
    ``baseline`` and ``positions``: see
    :func:`anchorlens.patching.generic.generic_activation_patch`.
    """
    functions = (
        get_act_patch_attn_head_out_all_pos,
        get_act_patch_attn_head_q_all_pos,
        get_act_patch_attn_head_k_all_pos,
        get_act_patch_attn_head_v_all_pos,
        get_act_patch_attn_head_pattern_all_pos,
    )
    options = {"reduce": reduce, "baseline": baseline, "positions": positions}
    return _stack(
        functions,
        _HEAD_KINDS,
        (model, corrupted_tokens, clean_cache, metric),
        ("layer", "head"),
        options,
    )


def get_act_patch_attn_head_by_pos_every(
    model: LensModel,
    corrupted_tokens: Tensor,
    clean_cache: Cache,
    metric: Metric | Mapping[str, Metric],
    *,
    reduce: str = "scalar",
    baseline: bool = False,
    positions: Sequence[int] | None = None,
) -> Any:
    """Patch outputs, queries, keys, values and patterns of every head by position, in this order:
    [kind layer pos head].

    A pattern's position is that of the query. Keys and values of grouped queries have fewer heads;
    the missing ones are 0. ``reduce``, ``baseline`` and ``positions``: see
    :func:`anchorlens.patching.generic.generic_activation_patch`.
    """
    functions = (
        get_act_patch_attn_head_out_by_pos,
        get_act_patch_attn_head_q_by_pos,
        get_act_patch_attn_head_k_by_pos,
        get_act_patch_attn_head_v_by_pos,
        get_act_patch_attn_head_pattern_by_pos,
    )
    options = {"reduce": reduce, "baseline": baseline, "positions": positions}
    return _stack(
        functions,
        _HEAD_KINDS,
        (model, corrupted_tokens, clean_cache, metric),
        ("layer", "pos", "head"),
        options,
    )


def get_act_patch_block_every(
    model: LensModel,
    corrupted_tokens: Tensor,
    clean_cache: Cache,
    metric: Metric | Mapping[str, Metric],
    *,
    reduce: str = "scalar",
    baseline: bool = False,
    positions: Sequence[int] | None = None,
) -> Any:
    """Patch the stream before each block, the attention output and the MLP output by position, in
    this order: [kind layer pos].

    ``reduce``, ``baseline`` and ``positions``: see
    :func:`anchorlens.patching.generic.generic_activation_patch`.
    """
    functions = (get_act_patch_resid_pre, get_act_patch_attn_out, get_act_patch_mlp_out)
    options = {"reduce": reduce, "baseline": baseline, "positions": positions}
    return _stack(
        functions,
        _BLOCK_KINDS,
        (model, corrupted_tokens, clean_cache, metric),
        ("layer", "pos"),
        options,
    )


def _stack(
    functions: Sequence[Callable[..., Any]],
    kinds: Sequence[str],
    arguments: tuple[Any, ...],
    axes: tuple[str, ...],
    options: Mapping[str, Any],
) -> Any:
    """Return the results of several functions with the axes [kind *axes]; the heads of each are
    padded with 0 to the same number.
    """
    parts = [function(*arguments, **options) for function in functions]
    is_tensor = isinstance(parts[0], Tensor)
    before = (
        0 if is_tensor or not parts[0].has_metric_axis else 1
    )  # number of axes before the layer
    values: list[Tensor] = [part if is_tensor else part.values for part in parts]
    if axes == ("layer", "pos", "head"):  # the pattern has the axes [layer head query]
        values[-1] = values[-1].swapaxes(before + 1, before + 2)
    if axes[-1] == "head":
        at = before + len(axes) - 1
        width = values[0].shape[at]
        widened: list[Tensor] = []
        for each in values:
            missing = width - each.shape[at]
            wide = pad(each.movedim(at, -1), (0, missing))
            widened.append(wide.movedim(-1, at))
        values = widened
    stacked = torch.stack(values, before)
    if is_tensor:
        return stacked
    sizes = stacked.shape[before : before + 1 + len(axes)]
    names = ["patch_type", *axes]
    frame = make_df_from_ranges(list(sizes), names)
    return replace(
        parts[0], values=stacked, axis_names=names, index_df=frame, patch_type_names=list(kinds)
    )
