"""Functions ``get_act_patch_*``: patch clean activations into a corrupted run, cell by cell.

Names, signatures and results are those of ``transformer_lens.patching``; the import is the only
line to change:

- ``get_act_patch_resid_pre``, ``..._resid_mid``, ``..._attn_out``, ``..._mlp_out``: streams and
  outputs of a layer, [layer pos];
- ``get_act_patch_attn_head_out_by_pos``, ``..._q_by_pos``, ``..._k_by_pos``, ``..._v_by_pos``:
  single heads, [layer pos head]; ``..._all_pos``: [layer head];
- ``get_act_patch_attn_head_pattern_by_pos``, ``..._pattern_dest_src_pos``,
  ``..._pattern_all_pos``: attention patterns of single heads;
- ``get_act_patch_direct_path``: what one head writes into the queries, keys or values of each later
  head, [layer head]; ``..._all_sources``: of each head, [layer head to_layer to_head];
- ``get_act_patch_block_every``, ``get_act_patch_attn_head_all_pos_every``,
  ``get_act_patch_attn_head_by_pos_every``: several of these, stacked;
- ``generic_activation_patch``: any setter and table of indices.

Examples:
    >>> import anchorlens as al
    >>> from anchorlens import patching
    >>> model = al.load_model("smollm2-135m-instruct")  # doctest: +SKIP
    >>> clean = model.to_tokens("The capital of France is")  # doctest: +SKIP
    >>> corrupted = model.to_tokens("The capital of Italy is")  # doctest: +SKIP
    >>> answer = model.to_single_token(" Paris")  # doctest: +SKIP
    >>> _, cache = model.run_with_cache(clean)  # doctest: +SKIP
    >>> def logprob(logits):  # doctest: +SKIP
    ...     return logits[0, -1].log_softmax(-1)[answer]
    >>> grid = patching.get_act_patch_resid_pre(  # doctest: +SKIP
    ...     model, corrupted, cache, logprob
    ... )  # [layer pos]

The metric may be any function of the logits: what it reads is observed at every call. All functions
and setters run on the cone engine, which computes only what a patch can reach; any other setter,
and every call that the cone engine cannot serve, runs one full forward pass per cell, as in
TransformerLens, and a warning gives the reason. Values that are patched in come from the given
``clean_cache``, also where it was edited by hand. No gradient flows through the result.
"""

from anchorlens.patching.direct_path import (
    get_act_patch_direct_path,
    get_act_patch_direct_path_all_sources,
)
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
    "get_act_patch_direct_path",
    "get_act_patch_direct_path_all_sources",
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
