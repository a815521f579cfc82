"""Map sliding windows and rotary positions of a Hugging Face configuration to fields of
HookedTransformerConfig.
"""

import math
from typing import Any

from transformers import PretrainedConfig

from anchorlens.models.hooked.audit import LAYER_TYPES, MAPPED, refuse, rope_kind

# Rope types of the full layers of families with a rope per layer type; their sliding layers are not
# scaled.
LAYERED_ROPE = {"gemma3_text": ("default", "linear"), "olmo3": ("default", "yarn")}
# Families that rotate a part of each head.
PARTIAL_ROPE = ("gpt_neox", "phi", "phi3")


def windows(config: PretrainedConfig) -> dict[str, Any]:
    """Return the fields of sliding windows: a query attends to the last ``sliding_window`` keys,
    itself included.
    """
    n_layers = int(config.num_hidden_layers)
    kind = config.model_type
    window = config.sliding_window if "sliding_window" in MAPPED[kind] else None
    if "layer_types" in MAPPED[kind]:
        types = list(config.layer_types or ["full_attention"] * n_layers)
    else:
        types = ["full_attention" if window is None else "sliding_attention"] * n_layers
    for layer_type in types:
        if layer_type not in LAYER_TYPES:
            raise refuse(kind, f"layers of type {layer_type!r}")
    if len(types) != n_layers:
        raise refuse(kind, f"{len(types)} entries in layer_types for {n_layers} layers")
    return attention(kind, [LAYER_TYPES[layer_type] for layer_type in types], window)


def attention(kind: str, attn_types: list[str], window: int | None) -> dict[str, Any]:
    """Return the fields of attention types, where ``attn_types`` has ``global`` or ``local`` per
    layer.
    """
    if "local" not in attn_types:
        return {"use_local_attn": False}
    if window is None:
        raise refuse(kind, "sliding layers without a sliding_window")
    return {"use_local_attn": True, "window_size": int(window), "attn_types": attn_types}


def rotary(config: PretrainedConfig, d_head: int, has_local: bool = False) -> dict[str, Any]:
    """Return the fields of rotary positions: size, base and scaling."""
    fields = {"positional_embedding_type": "rotary", "rotary_adjacent_pairs": False}
    if config.model_type in LAYERED_ROPE:
        return fields | {"rotary_dim": d_head} | _rope_per_layer_type(config)
    rope = dict(config.rope_parameters or {})
    part = float(rope.get("partial_rotary_factor") or 1.0)
    if part != 1.0 and config.model_type not in PARTIAL_ROPE:
        raise refuse(config.model_type, f"partial_rotary_factor={rope['partial_rotary_factor']!r}")
    return (
        fields | {"rotary_dim": int(d_head * part)} | _one_rope(config.model_type, rope, has_local)
    )


def _one_rope(family: str, rope: dict[str, Any], has_local: bool) -> dict[str, Any]:
    kind = rope_kind(family, rope)
    fields: dict[str, Any] = {"rotary_base": float(rope["rope_theta"])}
    if kind == "linear":
        if has_local and float(rope["factor"]) != 1.0:
            raise refuse(family, "linear rope scaling together with sliding layers")
        return fields | {"rotary_scaling_factor": float(rope["factor"])}
    if kind == "llama3":
        return fields | {
            "use_NTK_by_parts_rope": True,
            "NTK_by_parts_factor": float(rope["factor"]),
            "NTK_by_parts_low_freq_factor": float(rope["low_freq_factor"]),
            "NTK_by_parts_high_freq_factor": float(rope["high_freq_factor"]),
            "NTK_original_ctx_len": int(rope["original_max_position_embeddings"]),
        }
    return fields | _yarn(family, rope) if kind == "yarn" else fields


def _yarn(family: str, rope: dict[str, Any]) -> dict[str, Any]:
    """Return YaRN's fields (arXiv 2309.00071); the default attention factor is 0.1 ln(factor) + 1
    (section 3.4).
    """
    if not rope.get("factor"):
        raise refuse(family, "yarn rope without a factor")
    factor = float(rope["factor"])
    attention = rope.get("attention_factor")
    if attention is None:
        attention = 0.1 * math.log(max(factor, 1.0)) + 1.0
    return {
        "use_yarn_rope": True,
        "yarn_factor": factor,
        "yarn_attention_factor": float(attention),
        "yarn_beta_fast": float(rope.get("beta_fast") or 32),
        "yarn_beta_slow": float(rope.get("beta_slow") or 1),
        "yarn_original_max_position_embeddings": int(rope["original_max_position_embeddings"]),
        "yarn_truncate": bool(rope.get("truncate", True)),
    }


def _rope_per_layer_type(config: PretrainedConfig) -> dict[str, Any]:
    """Return the rope fields of Gemma 3 and OLMo 3, which have a rope per layer type."""
    family = config.model_type
    ropes: dict[str, dict[str, Any]] = dict(config.rope_parameters)
    full = ropes["full_attention"]
    sliding = ropes["sliding_attention"]
    for layer_type, rope, allowed in (
        ("full", full, LAYERED_ROPE[family]),
        ("sliding", sliding, ("default",)),
    ):
        kind = rope_kind(family, rope)
        if kind not in allowed:
            raise refuse(family, f"rope of type {kind!r} in {layer_type} layers")
        if float(rope.get("partial_rotary_factor") or 1.0) != 1.0:
            raise refuse(family, f"partial_rotary_factor={rope['partial_rotary_factor']!r}")
    fields = _one_rope(family, full, has_local=False) | {
        "rotary_base_local": float(sliding["rope_theta"])
    }
    return fields | {"yarn_global_attn_only": True} if fields.get("use_yarn_rope") else fields
