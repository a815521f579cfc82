"""Map a Hugging Face configuration to a HookedTransformerConfig.

Every size and constant is set explicitly, because TransformerLens's defaults fit only some models
of a family.
"""

import math
from typing import Any

import torch
from transformer_lens import HookedTransformerConfig
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from anchorlens.errors import CheckpointError
from anchorlens.models.hf_model import text_config
from anchorlens.models.hooked.audit import MAPPED, activation, audit_config, refuse
from anchorlens.models.hooked.positions import attention, rotary, windows

ARCHITECTURES = {kind: MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind] for kind in MAPPED}
# Bloom's positions have no limit; this is its training length.
BLOOM_CONTEXT = 2048


def check_hooked_config(config: PretrainedConfig, name: str) -> None:
    """Raise UnsupportedModelError or CheckpointError if a configuration cannot be mapped."""
    try:
        make_hooked_config(config, "cpu", torch.float32, name)
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"The configuration of {name} is invalid ({type(error).__name__}: {error})."
            " Compare its config.json with the original."
        ) from error


def make_hooked_config(
    config: PretrainedConfig, device: str, dtype: torch.dtype, name: str, n_devices: int = 1
) -> HookedTransformerConfig:
    """Make the HookedTransformerConfig of a mapped family."""
    text = text_config(config)
    audit_config(text, name)
    kind = text.model_type
    return HookedTransformerConfig(
        model_name=name,
        original_architecture=ARCHITECTURES[kind],
        device=device,
        n_devices=n_devices,
        dtype=dtype,
        init_weights=False,
        d_vocab=int(text.vocab_size),
        **_FAMILIES.get(kind, _map_decoder)(text),
    )


def _map_decoder(config: PretrainedConfig) -> dict[str, Any]:
    """Map Llama and its successors: norms without biases, rotary positions, gated MLP or experts,
    grouped queries.
    """
    kind = config.model_type
    n_heads = int(config.num_attention_heads)
    n_kv = int(config.num_key_value_heads)
    d_head = int(getattr(config, "head_dim", None) or config.hidden_size // n_heads)
    later_gemma = kind in ("gemma2", "gemma3_text")
    fields: dict[str, Any] = {
        "d_model": int(config.hidden_size),
        "d_head": d_head,
        "n_heads": n_heads,
        "n_key_value_heads": n_kv,
        "n_layers": int(config.num_hidden_layers),
        "n_ctx": int(config.max_position_embeddings),
        "d_mlp": int(config.intermediate_size),
        "act_fn": activation(kind, config.hidden_activation if later_gemma else config.hidden_act),
        "gated_mlp": kind != "apertus",
        "use_attn_scale": True,
        "attn_scale": math.sqrt(config.query_pre_attn_scalar if later_gemma else d_head),
        "use_qk_norm": kind in ("qwen3", "gemma3_text", "apertus"),
        "use_attention_sinks": kind == "gpt_oss",
        "clip_qkv": config.clip_qkv if "clip_qkv" in MAPPED[kind] else None,
    }
    if kind == "olmo":
        # OLMo's norms have no weights, and TransformerLens's converter does not support grouped
        # queries.
        if n_kv != n_heads:
            raise refuse(kind, f"num_key_value_heads={n_kv} for {n_heads} heads")
        fields |= {"normalization_type": "LN", "eps": 1e-5, "n_key_value_heads": None}
    else:
        fields |= {
            "normalization_type": "RMS",
            "uses_rms_norm": True,
            "final_rms": True,
            "eps": float(config.rms_norm_eps),
        }
    if later_gemma:
        fields["use_normalization_before_and_after"] = True
        fields["attn_scores_soft_cap"] = _soft_cap(config.attn_logit_softcapping)
        fields["output_logits_soft_cap"] = _soft_cap(config.final_logit_softcapping)
    if "num_experts_per_tok" in MAPPED[kind]:
        fields["num_experts"] = int(config.num_experts)
        fields["experts_per_token"] = int(config.num_experts_per_tok)
        # Mixtral always divides by the sum of the chosen experts' weights; gpt-oss applies a
        # softmax to them.
        fields["norm_topk_prob"] = config.norm_topk_prob if kind == "olmoe" else True
    fields |= windows(config)
    return fields | rotary(config, d_head, has_local="local" in (fields.get("attn_types") or []))


def _soft_cap(value: float | None) -> float:
    """Return a soft cap; TransformerLens writes "no soft cap" as -1."""
    return float(value) if value else -1.0


def _map_layer_norms(
    config: PretrainedConfig, act: str, eps: float, d_mlp: int | None, n_ctx: int
) -> dict[str, Any]:
    """Map GPT-2 and its like: layer norms with biases, ungrouped queries, a plain MLP (by default
    four times as wide).
    """
    d_model = int(config.hidden_size)
    n_heads = int(config.num_attention_heads)
    return {
        "d_model": d_model,
        "d_head": d_model // n_heads,
        "n_heads": n_heads,
        "n_layers": int(config.num_hidden_layers),
        "n_ctx": int(n_ctx),
        "d_mlp": 4 * d_model if d_mlp is None else int(d_mlp),
        "act_fn": activation(config.model_type, act),
        "normalization_type": "LN",
        "eps": float(eps),
        "use_attn_scale": True,
        "attn_scale": math.sqrt(d_model // n_heads),
        "positional_embedding_type": "standard",
    }


def _map_gpt2(config: PretrainedConfig) -> dict[str, Any]:
    fields = _map_layer_norms(
        config,
        config.activation_function,
        config.layer_norm_epsilon,
        config.n_inner,
        config.n_positions,
    )
    scale = fields["attn_scale"] if config.scale_attn_weights else 1.0
    return fields | {
        "attn_scale": scale,
        "scale_attn_by_inverse_layer_idx": bool(config.scale_attn_by_inverse_layer_idx),
    }


def _map_gpt_neox(config: PretrainedConfig) -> dict[str, Any]:
    """Map GPT-NeoX and Phi: rotary positions in a part of each head, parallel (or in GPT-NeoX
    sequential) blocks.
    """
    if config.model_type == "phi" and config.num_key_value_heads != config.num_attention_heads:
        raise refuse(
            "phi",
            f"num_key_value_heads={config.num_key_value_heads}"
            f" for {config.num_attention_heads} heads",
        )
    fields = _map_layer_norms(
        config,
        config.hidden_act,
        config.layer_norm_eps,
        config.intermediate_size,
        config.max_position_embeddings,
    )
    parallel = config.model_type == "phi" or bool(config.use_parallel_residual)
    return fields | {"parallel_attn_mlp": parallel} | rotary(config, fields["d_head"])


def _map_gptj(config: PretrainedConfig) -> dict[str, Any]:
    if not config.rotary_dim:
        raise refuse("gptj", f"rotary_dim={config.rotary_dim!r}")
    fields = _map_layer_norms(
        config,
        config.activation_function,
        config.layer_norm_epsilon,
        config.n_inner,
        config.n_positions,
    )
    rope = {
        "positional_embedding_type": "rotary",
        "rotary_dim": int(config.rotary_dim),
        "rotary_adjacent_pairs": True,
    }
    return fields | {"parallel_attn_mlp": True} | rope


def _map_gpt_neo(config: PretrainedConfig) -> dict[str, Any]:
    fields = _map_layer_norms(
        config,
        config.activation_function,
        config.layer_norm_epsilon,
        config.intermediate_size,
        config.max_position_embeddings,
    )
    return (
        fields
        | {"attn_scale": 1.0}
        | attention("gpt_neo", list(config.attention_layers), config.window_size)
    )


def _map_opt(config: PretrainedConfig) -> dict[str, Any]:
    if config.word_embed_proj_dim != config.hidden_size:
        raise refuse("opt", f"word_embed_proj_dim={config.word_embed_proj_dim}")
    # The epsilon is torch's default.
    return _map_layer_norms(
        config, config.activation_function, 1e-5, config.ffn_dim, config.max_position_embeddings
    )


def _map_bloom(config: PretrainedConfig) -> dict[str, Any]:
    n_ctx = getattr(config, "seq_length", None) or BLOOM_CONTEXT
    # Bloom's GELU is the tanh approximation, which TransformerLens calls gelu_fast.
    fields = _map_layer_norms(config, "gelu_fast", config.layer_norm_epsilon, None, n_ctx)
    return fields | {"positional_embedding_type": "alibi", "post_embedding_ln": True}


_FAMILIES = {
    "gpt2": _map_gpt2,
    "gpt_neox": _map_gpt_neox,
    "gptj": _map_gptj,
    "gpt_neo": _map_gpt_neo,
    "opt": _map_opt,
    "bloom": _map_bloom,
    "phi": _map_gpt_neox,
}
