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
        "eos_token_id", "pretraining_tp", "attention_dropout", "hidden_dropout", "classifier_dropout", "resid_pdrop",
        "embd_pdrop", "attn_pdrop", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
        "summary_first_dropout", "reorder_and_upcast_attn", "is_decoder", "tie_word_embeddings", "max_window_layers",
        "use_sliding_window",
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
}  # fmt: skip
# transformers' names of the activations that TransformerLens computes in the same way.
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu_fast",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh", "relu": "relu",
}  # fmt: skip
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


def audit_config(config: PretrainedConfig) -> None:
    """Refuse every field of the configuration that could change numbers and is not mapped.

    Args:
        config: A text configuration of one of the mapped families.

    Raises:
        UnsupportedModelError: Names the family if it is not mapped, else the first field that is not.
    """
    kind = config.model_type
    if kind not in MAPPED:
        families = ", ".join(sorted(MAPPED))
        raise UnsupportedModelError(
            f"Models of type {kind!r} are not mapped. Mapped: {families}. If TransformerLens knows the model, load it "
            "with HookedTransformer and hand the live model to load_model."
        )
    quantised = getattr(config, "quantization_config", None)
    if quantised is not None:
        method = (
            quantised.get("quant_method") if isinstance(quantised, dict) else getattr(quantised, "quant_method", "unknown")
        )
        raise refuse(kind, f"quantised weights ({method}); load the checkpoint that it was made from")
    covered = MAPPED[kind] | INERT
    for field in dataclasses.fields(config):
        if field.name in covered or field.name not in vars(config):
            continue
        value = getattr(config, field.name)
        default = _default(field)
        if value != default and not (_nothing(value) and _nothing(default)):
            raise refuse(kind, f"{field.name}={value!r}")


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
