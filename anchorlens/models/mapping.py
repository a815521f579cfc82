"""A Hugging Face configuration becomes a HookedTransformerConfig.

Every size and constant is given explicitly (head size, rotary size, attention scale, key-value heads), because the defaults of
TransformerLens are right for some members of a family only. What has no exact counterpart is refused by name (audit.py), and
every load is checked against Hugging Face's own log-probabilities (parity.py).
"""

import math
from typing import Any

import torch
from transformer_lens import HookedTransformerConfig
from transformers import PretrainedConfig

from anchorlens.errors import CheckpointError, UnsupportedModelError
from anchorlens.models.audit import LAYER_TYPES, MAPPED, activation, audit_config, refuse, rope_kind

FAMILIES = tuple(MAPPED)
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
}


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The part of a configuration that describes the language model (Gemma 3's multimodal one holds it inside)."""
    return config.get_text_config() if config.model_type == "gemma3" else config


def check_supported(config: PretrainedConfig, registered: str | None, name: str) -> None:
    """Refuse a configuration that neither the mapping nor TransformerLens covers.

    Args:
        config: As ``AutoConfig`` or the live model gives it.
        registered: TransformerLens's official name of the model, if it registers it.
        name: For the message.

    Raises:
        UnsupportedModelError: The family or one of its features is not mapped; names it.
        CheckpointError: Its numbers are those of no model.
    """
    if text_config(config).model_type in FAMILIES:
        try:
            hooked_config(config, "cpu", torch.float32, name)
        except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"The configuration of {name} is not that of a working model ({type(error).__name__}: {error}). "
                "Compare its config.json with the original."
            ) from error
    elif registered is None:
        raise UnsupportedModelError(
            f"{name}: models of type {config.model_type!r} are not mapped. Mapped: {', '.join(FAMILIES)}; other models load "
            "only by a name that TransformerLens registers (`anchorlens models --all`)."
        )


def hooked_config(config: PretrainedConfig, device: str, dtype: torch.dtype, name: str) -> HookedTransformerConfig:
    """The HookedTransformerConfig of a mapped family.

    Args:
        config: As ``AutoConfig`` or the live model gives it.
        device: Where the HookedTransformer will live.
        dtype: Its parameters' type.
        name: Recorded as ``cfg.model_name``.

    Raises:
        UnsupportedModelError: The family or one of its features is not mapped; names it.
    """
    text = text_config(config)
    audit_config(text)
    kind = text.model_type
    if kind == "gpt2":
        fields = _gpt2(text)
    elif kind == "gpt_neox":
        fields = _gpt_neox(text)
    else:
        fields = _decoder(text)
    return HookedTransformerConfig(
        model_name=name,
        original_architecture=ARCHITECTURES[kind],
        device=device,
        dtype=dtype,
        init_weights=False,
        d_vocab=int(text.vocab_size),
        **fields,
    )


def _decoder(config: PretrainedConfig) -> dict[str, Any]:
    """Llama, Mistral, Qwen 2, Qwen 3, Gemma 2 and Gemma 3: RMS norms, rotary positions, gated MLP, grouped queries."""
    kind = config.model_type
    gemma = kind.startswith("gemma")
    n_heads = int(config.num_attention_heads)
    d_head = int(getattr(config, "head_dim", None) or config.hidden_size // n_heads)
    act = config.hidden_activation if gemma else config.hidden_act
    fields: dict[str, Any] = {
        "d_model": int(config.hidden_size),
        "d_head": d_head,
        "n_heads": n_heads,
        "n_key_value_heads": int(config.num_key_value_heads),
        "n_layers": int(config.num_hidden_layers),
        "n_ctx": int(config.max_position_embeddings),
        "d_mlp": int(config.intermediate_size),
        "act_fn": activation(kind, act),
        "gated_mlp": True,
        "normalization_type": "RMS",
        "uses_rms_norm": True,
        "final_rms": True,
        "eps": float(config.rms_norm_eps),
        "use_attn_scale": True,
        "attn_scale": math.sqrt(config.query_pre_attn_scalar if gemma else d_head),
        "use_qk_norm": kind in ("qwen3", "gemma3_text"),
        "positional_embedding_type": "rotary",
        "rotary_dim": d_head,
        "rotary_adjacent_pairs": False,
    }
    if gemma:
        fields["use_normalization_before_and_after"] = True
        fields["attn_scores_soft_cap"] = _soft_cap(config.attn_logit_softcapping)
        fields["output_logits_soft_cap"] = _soft_cap(config.final_logit_softcapping)
    fields |= _windows(config)
    has_local = "local" in (fields.get("attn_types") or [])
    if kind == "gemma3_text":
        return fields | _gemma3_rope(config)
    return fields | _rope(config, dict(config.rope_parameters or {}), has_local)


def _soft_cap(value: float | None) -> float:
    """TransformerLens writes "no soft cap" as -1."""
    return float(value) if value else -1.0


def _windows(config: PretrainedConfig) -> dict[str, Any]:
    """Attention types per layer, and the window: a query sees the last ``sliding_window`` keys, itself included, in both."""
    n_layers = int(config.num_hidden_layers)
    kind = config.model_type
    window = getattr(config, "sliding_window", None) if kind != "llama" else None
    if kind == "mistral":
        types = ["sliding_attention" if window is not None else "full_attention"] * n_layers
    else:
        types = list(getattr(config, "layer_types", None) or ["full_attention"] * n_layers) if kind != "llama" else []
    types = types or ["full_attention"] * n_layers
    for layer_type in types:
        if layer_type not in LAYER_TYPES:
            raise refuse(kind, f"layers of type {layer_type!r}")
    if len(types) != n_layers:
        raise refuse(kind, f"{len(types)} entries in layer_types for {n_layers} layers")
    attn_types = [LAYER_TYPES[layer_type] for layer_type in types]
    if "local" not in attn_types:
        return {"use_local_attn": False}
    if window is None:
        raise refuse(kind, "sliding layers without a sliding_window")
    return {"use_local_attn": True, "window_size": int(window), "attn_types": attn_types}


def _rope(config: PretrainedConfig, rope: dict[str, Any], has_local: bool) -> dict[str, Any]:
    """Rotary base and scaling of a family with one rope for all layers."""
    family = config.model_type
    kind = rope_kind(family, rope)
    if float(rope.get("partial_rotary_factor") or 1.0) != 1.0 and family != "gpt_neox":
        raise refuse(family, f"partial_rotary_factor={rope['partial_rotary_factor']!r}")
    fields: dict[str, Any] = {"rotary_base": float(rope["rope_theta"])}
    if kind == "linear":
        if has_local and float(rope["factor"]) != 1.0:
            raise refuse(family, "linear rope scaling together with sliding layers")
        fields["rotary_scaling_factor"] = float(rope["factor"])
    elif kind == "llama3":
        fields |= {
            "use_NTK_by_parts_rope": True,
            "NTK_by_parts_factor": float(rope["factor"]),
            "NTK_by_parts_low_freq_factor": float(rope["low_freq_factor"]),
            "NTK_by_parts_high_freq_factor": float(rope["high_freq_factor"]),
            "NTK_original_ctx_len": int(rope["original_max_position_embeddings"]),
        }
    elif kind == "yarn":
        fields |= _yarn(family, rope)
    return fields


def _yarn(family: str, rope: dict[str, Any]) -> dict[str, Any]:
    """YaRN (arXiv 2309.00071); without an attention factor it is 0.1 ln(factor) + 1, section 3.4 there."""
    if not rope.get("factor"):
        raise refuse(family, "yarn rope without a factor")
    factor = float(rope["factor"])
    attention = rope.get("attention_factor")
    if attention is None:
        attention = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return {
        "use_yarn_rope": True,
        "yarn_factor": factor,
        "yarn_attention_factor": float(attention),
        "yarn_beta_fast": float(rope.get("beta_fast") or 32),
        "yarn_beta_slow": float(rope.get("beta_slow") or 1),
        "yarn_original_max_position_embeddings": int(rope["original_max_position_embeddings"]),
        "yarn_truncate": bool(rope.get("truncate", True)),
    }


def _gemma3_rope(config: PretrainedConfig) -> dict[str, Any]:
    """Gemma 3 has a rope per layer type; only the full layers' one may be scaled, and only linearly."""
    ropes: dict[str, dict[str, Any]] = dict(config.rope_parameters)
    full, sliding = ropes["full_attention"], ropes["sliding_attention"]
    for layer_type, rope, allowed in (("full", full, ("default", "linear")), ("sliding", sliding, ("default",))):
        kind = rope_kind("gemma3_text", rope)
        if kind not in allowed:
            raise refuse("gemma3_text", f"rope of type {kind!r} in its {layer_type} layers")
        if float(rope.get("partial_rotary_factor") or 1.0) != 1.0:
            raise refuse("gemma3_text", f"partial_rotary_factor={rope['partial_rotary_factor']!r}")
    scaled = rope_kind("gemma3_text", full) == "linear"
    return {
        "rotary_base": float(full["rope_theta"]),
        "rotary_base_local": float(sliding["rope_theta"]),
        "rotary_scaling_factor": float(full["factor"]) if scaled else 1.0,
    }


def _gpt2(config: PretrainedConfig) -> dict[str, Any]:
    """GPT-2: layer norms with biases, learned positions, one fused attention matrix."""
    d_head = config.n_embd // config.n_head
    return {
        "d_model": int(config.n_embd),
        "d_head": int(d_head),
        "n_heads": int(config.n_head),
        "n_layers": int(config.n_layer),
        "n_ctx": int(config.n_positions),
        "d_mlp": int(config.n_inner) if config.n_inner is not None else 4 * int(config.n_embd),
        "act_fn": activation("gpt2", config.activation_function),
        "normalization_type": "LN",
        "eps": float(config.layer_norm_epsilon),
        # Without scaling the scores are divided by 1.
        "use_attn_scale": True,
        "attn_scale": math.sqrt(d_head) if config.scale_attn_weights else 1.0,
        "scale_attn_by_inverse_layer_idx": bool(config.scale_attn_by_inverse_layer_idx),
        "positional_embedding_type": "standard",
    }


def _gpt_neox(config: PretrainedConfig) -> dict[str, Any]:
    """GPT-NeoX: layer norms with biases, rotary positions in a part of each head, parallel or sequential blocks."""
    d_head = int(config.hidden_size // config.num_attention_heads)
    rope = dict(config.rope_parameters or {})
    fields: dict[str, Any] = {
        "d_model": int(config.hidden_size),
        "d_head": d_head,
        "n_heads": int(config.num_attention_heads),
        "n_layers": int(config.num_hidden_layers),
        "n_ctx": int(config.max_position_embeddings),
        "d_mlp": int(config.intermediate_size),
        "act_fn": activation("gpt_neox", config.hidden_act),
        "normalization_type": "LN",
        "eps": float(config.layer_norm_eps),
        "use_attn_scale": True,
        "attn_scale": math.sqrt(d_head),
        "parallel_attn_mlp": bool(config.use_parallel_residual),
        "positional_embedding_type": "rotary",
        "rotary_dim": int(d_head * float(rope.get("partial_rotary_factor") or 1.0)),
        "rotary_adjacent_pairs": False,
    }
    return fields | _rope(config, rope, has_local=False)
