"""Small random models of every kind of configuration that TransformerLens has and the cone engine
knows.
"""

from functools import cache

import torch

from anchorlens.models.adapter import Adapter
from anchorlens.models.load import adapt

BASE = {
    "n_layers": 3,
    "d_model": 24,
    "n_heads": 4,
    "d_head": 6,
    "d_mlp": 40,
    "n_ctx": 64,
    "d_vocab": 97,
    "act_fn": "gelu",
    "normalization_type": "LN",
    "init_weights": False,
}
ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 6}
LLAMA = {
    **ROTARY,
    "normalization_type": "RMS",
    "final_rms": True,
    "gated_mlp": True,
    "act_fn": "silu",
}
EXPERTS = {**LLAMA, "num_experts": 4, "experts_per_token": 2}


def near(*types: str, window: int) -> dict[str, object]:
    """Sliding windows in some layers."""
    return {"use_local_attn": True, "attn_types": list(types), "window_size": window}


CONFIGS: dict[str, dict[str, object]] = {
    "gpt2": {},
    "gpt2_by_layer": {"scale_attn_by_inverse_layer_idx": True},
    "gpt2_unscaled": {"use_attn_scale": False},
    "ln_pre": {"normalization_type": "LNPre"},
    "one_head": {"n_heads": 1, "d_vocab": 512},
    # Its log P are about -1000: in float32 they differ by rounding alone.
    "no_norm": {"normalization_type": None, "dtype": torch.float64},
    "llama": {**LLAMA, "n_key_value_heads": 2},
    "rms_pre_one_key_head": {**LLAMA, "normalization_type": "RMSPre", "n_key_value_heads": 1},
    "gptj": {**ROTARY, "rotary_dim": 4, "rotary_adjacent_pairs": True, "parallel_attn_mlp": True},
    "neox": {**ROTARY, "rotary_dim": 2, "parallel_attn_mlp": True},
    "local": near("local", "global", "local", window=5),
    "local_1": near("local", "local", "local", window=1),
    "mistral": {**LLAMA, **near("local", "local", "local", window=3), "n_key_value_heads": 2},
    "gemma2": {
        **LLAMA,
        **near("global", "local", "global", window=4),
        "n_key_value_heads": 2,
        "act_fn": "gelu_pytorch_tanh",
        "use_normalization_before_and_after": True,
        "attn_scores_soft_cap": 3.0,
        "output_logits_soft_cap": 5.0,
    },
    "qk_norm": {
        **LLAMA,
        **near("local", "global", "local", window=6),
        "n_key_value_heads": 2,
        "use_qk_norm": True,
        "rotary_base_local": 500.0,
    },
    "solu_ln": {"act_fn": "solu_ln"},
    "experts": EXPERTS,
    "attn_result": {"use_attn_result": True},
    "split_qkv": {"use_split_qkv_input": True},
    "attn_in": {"use_attn_in": True},
    "hook_mlp_in": {"use_hook_mlp_in": True},
    "parallel_norms_after": {
        "parallel_attn_mlp": True,
        "normalization_type": "RMS",
        "final_rms": True,
        "use_normalization_before_and_after": True,
    },
    "vocab_out": {"d_vocab_out": 50},
    "embedding_norm": {"post_embedding_ln": True},
    "ungrouped": {**LLAMA, "n_key_value_heads": 2, "ungroup_grouped_query_attention": True},
    "relu": {"act_fn": "relu"},
    "float64": {"dtype": torch.float64},
    "split_qkv_experts": {**EXPERTS, "n_key_value_heads": 2, "use_split_qkv_input": True},
    "ungrouped_experts": {
        **EXPERTS,
        "n_key_value_heads": 2,
        "ungroup_grouped_query_attention": True,
    },
    "alibi": {"positional_embedding_type": "alibi", "post_embedding_ln": True},
    "alibi_near_capped": {
        **near("local", "global", "local", window=5),
        "positional_embedding_type": "alibi",
        "n_key_value_heads": 2,
        "attn_scores_soft_cap": 3.0,
    },
    "attn_only": {"attn_only": True, "normalization_type": "LNPre"},
    "sinks": {**LLAMA, "n_key_value_heads": 2, "use_attention_sinks": True},
    "sinks_near": {
        **EXPERTS,
        **near("local", "global", "local", window=4),
        "n_key_value_heads": 2,
        "use_attention_sinks": True,
    },
    "clipped": {**ROTARY, "clip_qkv": 0.5},
    "olmo2": {**LLAMA, "n_key_value_heads": 2, "original_architecture": "Olmo2ForCausalLM"},
    "olmo3": {
        **LLAMA,
        **near("local", "global", "local", window=5),
        "original_architecture": "Olmo3ForCausalLM",
        "use_yarn_rope": True,
        "yarn_factor": 4.0,
        "yarn_original_max_position_embeddings": 16,
        "yarn_global_attn_only": True,
    },
    "olmoe": {**EXPERTS, "original_architecture": "OlmoeForCausalLM", "clip_qkv": 0.8},
}


@cache
def adapter_of(name: str, dtype: torch.dtype = torch.float32) -> Adapter:
    """A model of a configuration, with weights large enough that every part matters."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig  # not in 4.x

    cfg = HookedTransformerConfig(**(BASE | {"dtype": dtype} | CONFIGS[name]))  # type: ignore[arg-type]
    model, generator = HookedTransformer(cfg), torch.Generator().manual_seed(0)
    torch.nn.Module.to(model, cfg.dtype)  # TransformerLens makes experts in float32 always
    with torch.no_grad():
        for what, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            last = what.rpartition(".")[2]
            if last == "w":
                parameter.copy_(1 + 0.3 * noise)
            elif last.strip("_").startswith("b"):
                parameter.copy_(0.3 * noise)
            elif last == "sinks":
                parameter.copy_(1 + noise)
            elif "embed" in what:
                parameter.copy_(0.7 * noise)
            else:
                parameter.copy_(1.3 * noise / parameter.shape[-2] ** 0.5)
    return adapt(model)


def types_of(name: str) -> tuple[torch.dtype, ...]:
    """Types in which a configuration is looked at: in float64 a wrong number cannot hide behind
    rounding.
    """
    own = CONFIGS[name].get("dtype")
    return (torch.float32, torch.float64) if own is None else (own,)  # type: ignore[return-value]
