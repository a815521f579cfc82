"""Replacement of ``transformer_lens.patching`` with the same names, signatures and results, on the cone engine where possible.

``from anchorlens import patching`` is the only line to change. The cone engine computes only what a patch can reach:

- all functions and setters of TransformerLens run on the cone engine;
- any other setter, and every call that the cone engine cannot serve, runs one full forward pass per cell, as in TransformerLens; a
  warning gives the reason.

The metric may be any function of the logits: what it reads is observed at every call. Values that are patched in come from the given
``clean_cache``, also where it was edited by hand. No gradient flows through the result.

Example:
    >>> from anchorlens import patching
    >>> _, cache = model.run_with_cache(clean)  # doctest: +SKIP
    >>> accuracy = lambda logits: (logits[:, -1].argmax(-1) == answer).float().mean()  # doctest: +SKIP
    >>> patching.get_act_patch_resid_pre(model, corrupted, cache, accuracy)  # [layer pos]  # doctest: +SKIP
"""

from anchorlens.patching.functions import (
    get_act_patch_attn_head_all_pos_every,
    get_act_patch_attn_head_by_pos_every,
    get_act_patch_attn_head_k_all_pos,
    get_act_patch_attn_head_k_by_pos,
    get_act_patch_attn_head_out_all_pos,
    get_act_patch_attn_head_out_by_pos,
    get_act_patch_attn_head_pattern_all_pos,
    get_act_patch_attn_head_pattern_by_pos,
    get_act_patch_attn_head_pattern_dest_src_pos,
    get_act_patch_attn_head_q_all_pos,
    get_act_patch_attn_head_q_by_pos,
    get_act_patch_attn_head_v_all_pos,
    get_act_patch_attn_head_v_by_pos,
    get_act_patch_attn_out,
    get_act_patch_block_every,
    get_act_patch_mlp_out,
    get_act_patch_resid_mid,
    get_act_patch_resid_pre,
)
from anchorlens.patching.generic import generic_activation_patch
from anchorlens.patching.setters import (
    layer_head_dest_src_pos_pattern_patch_setter,
    layer_head_pattern_patch_setter,
    layer_head_pos_pattern_patch_setter,
    layer_head_vector_patch_setter,
    layer_pos_head_vector_patch_setter,
    layer_pos_patch_setter,
    make_df_from_ranges,
)

__all__ = [
    "generic_activation_patch",
    "get_act_patch_attn_head_all_pos_every",
    "get_act_patch_attn_head_by_pos_every",
    "get_act_patch_attn_head_k_all_pos",
    "get_act_patch_attn_head_k_by_pos",
    "get_act_patch_attn_head_out_all_pos",
    "get_act_patch_attn_head_out_by_pos",
    "get_act_patch_attn_head_pattern_all_pos",
    "get_act_patch_attn_head_pattern_by_pos",
    "get_act_patch_attn_head_pattern_dest_src_pos",
    "get_act_patch_attn_head_q_all_pos",
    "get_act_patch_attn_head_q_by_pos",
    "get_act_patch_attn_head_v_all_pos",
    "get_act_patch_attn_head_v_by_pos",
    "get_act_patch_attn_out",
    "get_act_patch_block_every",
    "get_act_patch_mlp_out",
    "get_act_patch_resid_mid",
    "get_act_patch_resid_pre",
    "layer_head_dest_src_pos_pattern_patch_setter",
    "layer_head_pattern_patch_setter",
    "layer_head_pos_pattern_patch_setter",
    "layer_head_vector_patch_setter",
    "layer_pos_head_vector_patch_setter",
    "layer_pos_patch_setter",
    "make_df_from_ranges",
]
