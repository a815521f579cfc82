"""The named patching functions: each measures one kind of activation for every layer and position or head.

All take ``(model, corrupted_tokens, clean_cache, patching_metric)``, see
:func:`anchorlens.patching.generic.generic_activation_patch`.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from anchorlens.models.backend import LensModel
from anchorlens.patching.generic import Metric, generic_activation_patch
from anchorlens.patching.setters import (
    Cache,
    PatchSetter,
    layer_head_dest_src_pos_pattern_patch_setter,
    layer_head_pattern_patch_setter,
    layer_head_pos_pattern_patch_setter,
    layer_head_vector_patch_setter,
    layer_pos_head_vector_patch_setter,
    layer_pos_patch_setter,
)


def _function(name: str, setter: PatchSetter, *axes: str) -> "partial[Tensor]":
    made = partial(generic_activation_patch, patch_setter=setter, activation_name=name, index_axis_names=axes)
    made.__doc__ = f"Patch ``{name}`` of the clean run into the corrupted run; the result has the axes [{' '.join(axes)}]."
    return made


_BY_POS, _HEAD_BY_POS = layer_pos_patch_setter, layer_pos_head_vector_patch_setter
_HEAD, _PATTERN = layer_head_vector_patch_setter, layer_head_pattern_patch_setter
get_act_patch_resid_pre = _function("resid_pre", _BY_POS, "layer", "pos")
get_act_patch_resid_mid = _function("resid_mid", _BY_POS, "layer", "pos")
get_act_patch_attn_out = _function("attn_out", _BY_POS, "layer", "pos")
get_act_patch_mlp_out = _function("mlp_out", _BY_POS, "layer", "pos")
get_act_patch_attn_head_out_by_pos = _function("z", _HEAD_BY_POS, "layer", "pos", "head")
get_act_patch_attn_head_q_by_pos = _function("q", _HEAD_BY_POS, "layer", "pos", "head")
get_act_patch_attn_head_k_by_pos = _function("k", _HEAD_BY_POS, "layer", "pos", "head")
get_act_patch_attn_head_v_by_pos = _function("v", _HEAD_BY_POS, "layer", "pos", "head")
get_act_patch_attn_head_pattern_by_pos = _function("pattern", layer_head_pos_pattern_patch_setter, "layer", "head_index", "dest_pos")
get_act_patch_attn_head_pattern_dest_src_pos = _function(
    "pattern", layer_head_dest_src_pos_pattern_patch_setter, "layer", "head_index", "dest_pos", "src_pos"
)
get_act_patch_attn_head_out_all_pos = _function("z", _HEAD, "layer", "head")
get_act_patch_attn_head_q_all_pos = _function("q", _HEAD, "layer", "head")
get_act_patch_attn_head_k_all_pos = _function("k", _HEAD, "layer", "head")
get_act_patch_attn_head_v_all_pos = _function("v", _HEAD, "layer", "head")
get_act_patch_attn_head_pattern_all_pos = _function("pattern", _PATTERN, "layer", "head_index")


def get_act_patch_attn_head_all_pos_every(
    model: LensModel, corrupted_tokens: Tensor, clean_cache: Cache, metric: Metric
) -> Float[Tensor, "kind layer head"]:
    """Patch outputs, queries, keys, values and patterns of every head at all positions, in this order.

    Keys and values of grouped queries have fewer heads; the missing ones are 0.
    """
    functions = (
        get_act_patch_attn_head_out_all_pos, get_act_patch_attn_head_q_all_pos, get_act_patch_attn_head_k_all_pos,
        get_act_patch_attn_head_v_all_pos, get_act_patch_attn_head_pattern_all_pos,
    )  # fmt: skip
    return _stack([function(model, corrupted_tokens, clean_cache, metric) for function in functions])


def get_act_patch_attn_head_by_pos_every(
    model: LensModel, corrupted_tokens: Tensor, clean_cache: Cache, metric: Metric
) -> Float[Tensor, "kind layer pos head"]:
    """Patch outputs, queries, keys, values and patterns of every head by position, in this order.

    A pattern's position is that of the query. Keys and values of grouped queries have fewer heads; the missing ones are 0.
    """
    functions: Sequence[Callable[..., Tensor]] = (
        get_act_patch_attn_head_out_by_pos, get_act_patch_attn_head_q_by_pos, get_act_patch_attn_head_k_by_pos,
        get_act_patch_attn_head_v_by_pos,
    )  # fmt: skip
    parts = [function(model, corrupted_tokens, clean_cache, metric) for function in functions]
    pattern = get_act_patch_attn_head_pattern_by_pos(model, corrupted_tokens, clean_cache, metric)
    return _stack([*parts, rearrange(pattern, "layer head pos -> layer pos head")])


def get_act_patch_block_every(
    model: LensModel, corrupted_tokens: Tensor, clean_cache: Cache, metric: Metric
) -> Float[Tensor, "kind layer pos"]:
    """Patch the stream before each block, the attention output and the MLP output by position, in this order."""
    functions = (get_act_patch_resid_pre, get_act_patch_attn_out, get_act_patch_mlp_out)
    return torch.stack([function(model, corrupted_tokens, clean_cache, metric) for function in functions])


def _stack(parts: Sequence[Tensor]) -> Tensor:
    width = parts[0].shape[-1]
    return torch.stack([pad(part, (0, width - part.shape[-1])) for part in parts])
