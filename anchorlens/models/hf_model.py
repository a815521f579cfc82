"""Parts of Hugging Face models and configurations."""

from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
)

from anchorlens.models.library_errors import checkpoint_errors


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration of the language model, which is a part of Gemma 3's multimodal
    configuration.
    """
    return config.get_text_config() if config.model_type == "gemma3" else config


def language_model(model: PreTrainedModel) -> Any:
    """Return the module with ``layers`` (``h`` in GPT-2) and, for rotary positions,
    ``rotary_emb``.
    """
    base = model.base_model
    return getattr(base, "language_model", base)


def count_parameters(model: PreTrainedModel) -> int:
    """Return the number of parameters of language model and head, tied weights counted once,
    without a vision tower.
    """
    head = model.get_output_embeddings()
    parameters = [
        *language_model(model).parameters(),
        *(head.parameters() if head is not None else ()),
    ]
    by_id = {id(parameter): parameter for parameter in parameters}
    return sum(parameter.numel() for parameter in by_id.values())


def make_empty_model(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Make a Hugging Face model with parameters on ``meta`` and real buffers."""
    with (
        checkpoint_errors(
            f"The configuration of {config._name_or_path or config.model_type}",
            "Compare its config.json with the original.",
        ),
        torch.random.fork_rng(devices=[]),
        init_empty_weights(include_buffers=False),
    ):
        if config.model_type == "gemma3":
            model: Any = Gemma3ForConditionalGeneration._from_config(
                config, dtype=dtype, attn_implementation="eager"
            )
        else:
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation="eager"
            )
    if text_config(config).tie_word_embeddings:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    return model.eval().requires_grad_(False)


def quantisation(config: PretrainedConfig) -> str | None:
    """Return the quantisation method of a checkpoint; None if its weights are not quantised."""
    options = getattr(config, "quantization_config", None)
    if options is None:
        return None
    if isinstance(options, dict):
        method = options.get("quant_method")
    else:
        method = getattr(options, "quant_method", None)
    return str(getattr(method, "value", method) or "unknown")


# Families with one window for all layers, and no list of layer types.
_ONE_WINDOW = ("mistral", "mixtral", "phi3", "starcoder2")


def layer_window(config: PretrainedConfig, layer: int) -> int | None:
    """Return the number of keys that a query of a layer attends to, itself included; None for all.

    Raises:
        ValueError: If the layer's type is neither full nor sliding attention, or it is unknown
            which layers have a window.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        if window is not None and config.model_type not in _ONE_WINDOW:
            raise ValueError(f"sliding windows of {config.model_type}")
        return window
    if kinds[layer] not in ("full_attention", "sliding_attention"):
        raise ValueError(f"a layer of type {kinds[layer]!r}")
    return window if kinds[layer] == "sliding_attention" else None
