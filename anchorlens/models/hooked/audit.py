"""Check the fields of a Hugging Face configuration: fields without a mapping must have their
default.

Keys that the configuration class does not define are ignored, as in transformers.
"""

import dataclasses
from typing import Any

from transformers import PretrainedConfig

from anchorlens.errors import UnsupportedModelError
from anchorlens.models.hf_model import quantisation

# Fields without effect on a forward pass without gradients, dropout, generation or classification
# heads.
INERT = {
    "transformers_version",
    "architectures",
    "output_hidden_states",
    "return_dict",
    "dtype",
    "chunk_size_feed_forward",
    "id2label",
    "label2id",
    "problem_type",
    "initializer_range",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "pretraining_tp",
    "slow_but_exact",
    "attention_dropout",
    "hidden_dropout",
    "classifier_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "dropout",
    "resid_dropout",
    "embed_dropout",
    "layerdrop",
    "init_std",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
    "reorder_and_upcast_attn",
    "is_decoder",
    "tie_word_embeddings",
    "max_window_layers",
    "use_sliding_window",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
}
# Fields that mapping.py and weights.py map to a HookedTransformer.
DECODER = {
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "attention_bias",
}
GEMMA = DECODER | {
    "hidden_activation",
    "query_pre_attn_scalar",
    "sliding_window",
    "layer_types",
    "attn_logit_softcapping",
    "final_logit_softcapping",
}
GPT = {
    "vocab_size",
    "n_positions",
    "n_embd",
    "n_layer",
    "n_head",
    "n_inner",
    "activation_function",
    "layer_norm_epsilon",
}
NEOX = DECODER - {"num_key_value_heads", "head_dim", "rms_norm_eps", "attention_bias"} | {
    "hidden_act",
    "layer_norm_eps",
}
MAPPED: dict[str, set[str]] = {
    "llama": DECODER | {"hidden_act"},
    "mistral": DECODER | {"hidden_act", "sliding_window"},
    "qwen2": DECODER | {"hidden_act", "sliding_window", "layer_types"},
    "qwen3": DECODER | {"hidden_act", "sliding_window", "layer_types"},
    "mixtral": (
        DECODER | {"hidden_act", "sliding_window"} | {"num_local_experts", "num_experts_per_tok"}
    ),
    # original_max_position_embeddings is read by longrope only, which is not mapped.
    "phi3": DECODER | {"hidden_act", "sliding_window", "original_max_position_embeddings"},
    "apertus": DECODER | {"hidden_act"},
    "olmo": DECODER - {"rms_norm_eps", "attention_bias"} | {"hidden_act", "clip_qkv"},
    "olmo2": DECODER | {"hidden_act"},
    "olmo3": DECODER | {"hidden_act", "sliding_window", "layer_types"},
    "olmoe": (
        DECODER | {"hidden_act", "clip_qkv", "num_experts", "num_experts_per_tok", "norm_topk_prob"}
    ),
    "gpt_oss": (
        DECODER
        | {
            "hidden_act",
            "sliding_window",
            "layer_types",
            "num_local_experts",
            "num_experts_per_tok",
        }
    ),
    "gemma": DECODER | {"hidden_act"},
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "gpt2": GPT | {"scale_attn_weights", "scale_attn_by_inverse_layer_idx"},
    "gptj": GPT | {"rotary_dim"},
    "gpt_neox": NEOX | {"use_parallel_residual", "attention_bias"},
    "phi": NEOX | {"num_key_value_heads"},
    "gpt_neo": {
        "vocab_size",
        "max_position_embeddings",
        "hidden_size",
        "num_layers",
        "num_heads",
        "intermediate_size",
        "attention_types",
        "window_size",
        "activation_function",
        "layer_norm_epsilon",
    },
    "opt": {
        "vocab_size",
        "max_position_embeddings",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "ffn_dim",
        "word_embed_proj_dim",
        "activation_function",
    },
    "bloom": {"vocab_size", "hidden_size", "n_layer", "n_head", "layer_norm_epsilon"},
}
# transformers' names of the activations that TransformerLens computes in the same way.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_fast",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "xielu": "xielu",
}
# Quantised weights that transformers dequantises while loading.
UNPACKED = {"gpt_oss": "mxfp4"}
LAYER_TYPES = {"full_attention": "global", "sliding_attention": "local"}
ROPE_KEYS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "original_max_position_embeddings",
        "truncate",
    },
}


def refuse(model_type: str, what: str) -> UnsupportedModelError:
    """Return the error for a feature of a model that cannot be mapped."""
    return UnsupportedModelError(
        f"This {model_type} model has {what}, which a HookedTransformer cannot reproduce exactly,"
        " so it is not loaded."
    )


def audit_config(config: PretrainedConfig, name: str) -> None:
    """Raise UnsupportedModelError if a field that could change results is not mapped."""
    kind = config.model_type
    if kind not in MAPPED:
        raise UnsupportedModelError(
            f"{name}: models of type {kind!r} are not mapped. Mapped: {', '.join(MAPPED)}. If you"
            " can build a HookedTransformer of it yourself, pass it to load_model."
        )
    method = quantisation(config)
    if method is not None and method != UNPACKED.get(kind):
        raise refuse(
            kind, f"quantised weights ({method}); load the checkpoint that it was made from"
        )
    covered = MAPPED[kind] | INERT
    for field in dataclasses.fields(config):
        if field.name in covered or field.name not in vars(config):
            continue
        value = getattr(config, field.name)
        default = getattr(type(config), field.name, None)
        if value != default and not all(off is None or off is False for off in (value, default)):
            raise refuse(kind, f"{field.name}={value!r}")


def activation(model_type: str, name: str) -> str:
    """Return TransformerLens's name of an activation; raise UnsupportedModelError if it has
    none.
    """
    if name not in ACTIVATIONS:
        raise refuse(model_type, f"the activation {name!r}")
    return ACTIVATIONS[name]


def rope_kind(model_type: str, rope: dict[str, Any]) -> str:
    """Return the type of a rope configuration; raise UnsupportedModelError if it or one of its keys
    is not mapped.
    """
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind not in ROPE_KEYS:
        raise refuse(model_type, f"rope of type {kind!r} (mapped: {', '.join(ROPE_KEYS)})")
    allowed = ROPE_KEYS[kind] | {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    for key in sorted(set(rope) - allowed):
        # transformers ignores keys of other rope types, except for yarn's mscale and others.
        if rope[key] is not None and (
            kind == "yarn" or not any(key in keys for keys in ROPE_KEYS.values())
        ):
            raise refuse(model_type, f"the rope parameter {key}={rope[key]!r}")
    return kind
