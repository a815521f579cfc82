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

_DOC_EVERY = """Patch {activations}, in this
order: [kind {axes}].

{notes}``reduce``, ``baseline`` and ``positions``: see
:func:`anchorlens.patching.generic.generic_activation_patch`.
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
_FEWER_HEADS = "Keys and values of grouped queries have fewer heads; the missing ones are 0."
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


# No return type, for the same reason.
def _function_every(
    name: str,
    functions: Mapping[str, Callable[..., Any]],
    axes: tuple[str, ...],
    *,
    activations: str,
    notes: str = "",
):
    """Make the function ``get_act_patch_<name>_every``, which stacks the results of several.

    Args:
        name: Name of the function.
        functions: Kind of activation -> the function that patches it.
        axes: Axes of the result behind the kind.
        activations: Patched activations, for the docstring.
        notes: Further sentences of the docstring.
    """

    def function(
        model: LensModel,
        corrupted_tokens: Tensor,
        clean_cache: Cache,
        metric: Metric | Mapping[str, Metric],
        *,
        reduce: str = "scalar",
        baseline: bool = False,
        positions: Sequence[int] | None = None,
    ) -> Any:
        parts: list[Any] = []
        for patch_kind in functions.values():
            part = patch_kind(
                model,
                corrupted_tokens,
                clean_cache,
                metric,
                reduce=reduce,
                baseline=baseline,
                positions=positions,
            )
            parts.append(part)
        return _stack(parts, list(functions), axes)

    function.__name__ = f"get_act_patch_{name}_every"
    function.__qualname__ = function.__name__
    function.__doc__ = _DOC_EVERY.format(activations=activations, axes=" ".join(axes), notes=notes)
    return function


get_act_patch_attn_head_all_pos_every = _function_every(
    "attn_head_all_pos",
    {
        "out": get_act_patch_attn_head_out_all_pos,
        "q": get_act_patch_attn_head_q_all_pos,
        "k": get_act_patch_attn_head_k_all_pos,
        "v": get_act_patch_attn_head_v_all_pos,
        "pattern": get_act_patch_attn_head_pattern_all_pos,
    },
    ("layer", "head"),
    activations="outputs, queries, keys, values and patterns of every head at all positions",
    notes=f"{_FEWER_HEADS} ",
)
get_act_patch_attn_head_by_pos_every = _function_every(
    "attn_head_by_pos",
    {
        "out": get_act_patch_attn_head_out_by_pos,
        "q": get_act_patch_attn_head_q_by_pos,
        "k": get_act_patch_attn_head_k_by_pos,
        "v": get_act_patch_attn_head_v_by_pos,
        "pattern": get_act_patch_attn_head_pattern_by_pos,
    },
    ("layer", "pos", "head"),
    activations="outputs, queries, keys, values and patterns of every head by position",
    notes=f"A pattern's position is that of the query. {_FEWER_HEADS} ",
)
get_act_patch_block_every = _function_every(
    "block",
    {
        "resid_pre": get_act_patch_resid_pre,
        "attn_out": get_act_patch_attn_out,
        "mlp_out": get_act_patch_mlp_out,
    },
    ("layer", "pos"),
    activations="the stream before each block, the attention output and the MLP output by position",
)


def _stack(parts: Sequence[Any], kinds: Sequence[str], axes: tuple[str, ...]) -> Any:
    """Stack the results of several functions to the axes [kind *axes]; the heads of each are
    padded with 0 to the same number.
    """
    is_tensor = isinstance(parts[0], Tensor)
    # A result of several metrics has their axis before the layer.
    n_leading_axes = 0 if is_tensor or not parts[0].has_metric_axis else 1
    values: list[Tensor] = [part if is_tensor else part.values for part in parts]
    if axes == ("layer", "pos", "head"):  # the pattern has the axes [layer head query]
        values[-1] = values[-1].swapaxes(n_leading_axes + 1, n_leading_axes + 2)
    if axes[-1] == "head":
        at = n_leading_axes + len(axes) - 1
        width = values[0].shape[at]
        widened: list[Tensor] = []
        for each in values:
            missing = width - each.shape[at]
            wide = pad(each.movedim(at, -1), (0, missing))
            widened.append(wide.movedim(-1, at))
        values = widened
    stacked = torch.stack(values, n_leading_axes)
    if is_tensor:
        return stacked
    sizes = stacked.shape[n_leading_axes : n_leading_axes + 1 + len(axes)]
    names = ["patch_type", *axes]
    frame = make_df_from_ranges(list(sizes), names)
    return replace(
        parts[0], values=stacked, axis_names=names, index_df=frame, patch_type_names=list(kinds)
    )
