"""Which configuration fields the mapping reads, which change no number, and refusing all the others by name.

A field of a Hugging Face configuration class that stands in neither list may keep its default; any other value is refused. So a
field that a later transformers release adds cannot be overlooked: it either has no effect or stops the load. Keys that the
class does not define are not looked at, because the modelling code of transformers does not read them either.
"""

import dataclasses
from typing import Any

from transformers import PretrainedConfig

from anchorlens.errors import UnsupportedModelError

# In a forward pass without gradients, dropout, generation or classification heads these change no number.
INERT = frozenset(
    {
        "transformers_version", "architectures", "output_hidden_states", "return_dict", "dtype", "chunk_size_feed_forward",
        "id2label", "label2id", "problem_type", "initializer_range", "use_cache", "pad_token_id", "bos_token_id",
        "eos_token_id", "pretraining_tp", "slow_but_exact", "attention_dropout", "hidden_dropout", "classifier_dropout",
        "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "resid_dropout", "embed_dropout", "layerdrop", "init_std",
        "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
        "reorder_and_upcast_attn", "is_decoder", "tie_word_embeddings", "max_window_layers", "use_sliding_window",
        "output_router_logits", "router_aux_loss_coef", "router_jitter_noise",
    }
)  # fmt: skip
# Sizes and switches that mapping.py turns into fields of the HookedTransformerConfig (or into tensors: biases, tied weights).
DECODER = frozenset(
    {
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "attention_bias",
    }
)  # fmt: skip
GEMMA = DECODER | {
    "hidden_activation", "query_pre_attn_scalar", "sliding_window", "layer_types", "attn_logit_softcapping",
    "final_logit_softcapping",
}  # fmt: skip
MAPPED: dict[str, frozenset[str]] = {
    "llama": DECODER | {"hidden_act"},
    "mistral": DECODER | {"hidden_act", "sliding_window"},
    "qwen2": DECODER | {"hidden_act", "sliding_window", "layer_types"},
    "qwen3": DECODER | {"hidden_act", "sliding_window", "layer_types"},
    "mixtral": DECODER | {"hidden_act", "sliding_window"} | {"num_local_experts", "num_experts_per_tok"},
    # original_max_position_embeddings is read by longrope alone, which is not mapped.
    "phi3": DECODER | {"hidden_act", "sliding_window", "original_max_position_embeddings"},
    "apertus": DECODER | {"hidden_act"},
    "olmo": DECODER - {"rms_norm_eps", "attention_bias"} | {"hidden_act", "clip_qkv"},
    "olmo2": DECODER | {"hidden_act"},
    "olmo3": DECODER | {"hidden_act", "sliding_window", "layer_types"},
    "olmoe": DECODER | {"hidden_act", "clip_qkv", "num_experts", "num_experts_per_tok", "norm_topk_prob"},
    "gpt_oss": DECODER | {"hidden_act", "sliding_window", "layer_types", "num_local_experts", "num_experts_per_tok"},
    "gemma": DECODER | {"hidden_act"},
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "gpt2": frozenset(
        {
            "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function", "layer_norm_epsilon",
            "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
        }
    ),
    "gpt_neox": frozenset(
        {
            "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "hidden_act", "intermediate_size",
            "max_position_embeddings", "layer_norm_eps", "use_parallel_residual", "rope_parameters", "attention_bias",
        }
    ),
    "gptj": frozenset(
        {
            "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "rotary_dim", "activation_function",
            "layer_norm_epsilon",
        }
    ),
    "gpt_neo": frozenset(
        {
            "vocab_size", "max_position_embeddings", "hidden_size", "num_layers", "num_heads", "intermediate_size",
            "attention_types", "window_size", "activation_function", "layer_norm_epsilon",
        }
    ),
    "opt": frozenset(
        {
            "vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim",
            "word_embed_proj_dim", "activation_function",
        }
    ),
    "bloom": frozenset({"vocab_size", "hidden_size", "n_layer", "n_head", "layer_norm_epsilon"}),
    "phi": frozenset(
        {
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "hidden_act", "max_position_embeddings", "layer_norm_eps", "rope_parameters",
        }
    ),
}  # fmt: skip
# transformers' names of the activations that TransformerLens computes in the same way.
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu_fast",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh", "relu": "relu", "xielu": "xielu",
}  # fmt: skip
# Quantised weights that transformers turns into plain numbers while it reads them (the published gpt-oss has no others).
UNPACKED = {"gpt_oss": "mxfp4"}
LAYER_TYPES = {"full_attention": "global", "sliding_attention": "local"}
ROPE_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {"factor", "beta_fast", "beta_slow", "attention_factor", "original_max_position_embeddings", "truncate"}
    ),
}


def refuse(model_type: str, what: str) -> UnsupportedModelError:
    """The error for a feature without a mapping, in one wording."""
    return UnsupportedModelError(
        f"This {model_type} model has {what}, which has no exact counterpart in HookedTransformer, so it is not loaded."
    )


def unmapped(model_type: str, name: str) -> UnsupportedModelError:
    """The error for a family without a mapping."""
    return UnsupportedModelError(
        f"{name}: models of type {model_type!r} are not mapped. Mapped: {', '.join(MAPPED)}. If you can build a HookedTransformer "
        "of it yourself, hand that to load_model."
    )


def audit_config(config: PretrainedConfig, name: str) -> None:
    """Refuse every field of the configuration that could change numbers and is not mapped.

    Args:
        config: A text configuration of one of the mapped families.
        name: For the message.

    Raises:
        UnsupportedModelError: Names the family if it is not mapped, else the first field that is not.
    """
    kind = config.model_type
    if kind not in MAPPED:
        raise unmapped(kind, name)
    method = quantisation(config)
    if method is not None and method != UNPACKED.get(kind):
        raise refuse(kind, f"quantised weights ({method}); load the checkpoint that it was made from")
    covered = MAPPED[kind] | INERT
    for field in dataclasses.fields(config):
        if field.name in covered or field.name not in vars(config):
            continue
        value = getattr(config, field.name)
        default = _default(field)
        if value != default and not (_nothing(value) and _nothing(default)):
            raise refuse(kind, f"{field.name}={value!r}")


def quantisation(config: PretrainedConfig) -> str | None:
    """The method by which a checkpoint's weights are quantised, None for plain numbers."""
    how = getattr(config, "quantization_config", None)
    if how is None:
        return None
    method = how.get("quant_method") if isinstance(how, dict) else getattr(how, "quant_method", None)
    return str(getattr(method, "value", method) or "unknown")


def _default(field: "dataclasses.Field[Any]") -> object:
    """A field's default value, None where it has none."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _nothing(value: object) -> bool:
    """Whether a switch is off, however that is written."""
    return value is None or value is False


def activation(model_type: str, name: str) -> str:
    """TransformerLens's name of an activation.

    Raises:
        UnsupportedModelError: It has none.
    """
    if name not in ACTIVATIONS:
        raise refuse(model_type, f"the activation {name!r}")
    return ACTIVATIONS[name]


def rope_kind(model_type: str, rope: dict[str, Any]) -> str:
    """The kind of a rope dictionary, after checking that every key of it is mapped.

    Raises:
        UnsupportedModelError: An unknown kind, or a key that its kind does not have here.
    """
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind not in ROPE_KEYS:
        raise refuse(model_type, f"rope of type {kind!r} (mapped: {', '.join(ROPE_KEYS)})")
    allowed = ROPE_KEYS[kind] | {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    for key in sorted(set(rope) - allowed):
        # A left-over key of another kind is not read by transformers; mscale and its like are.
        if rope[key] is not None and (kind == "yarn" or not any(key in keys for keys in ROPE_KEYS.values())):
            raise refuse(model_type, f"the rope parameter {key}={rope[key]!r}")
    return kind
