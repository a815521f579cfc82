"""Wrap a Hugging Face model in a TransformerBridge."""

import torch
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from anchorlens.errors import InputError, UnsupportedModelError
from anchorlens.models.hf_model import count_parameters, quantisation
from anchorlens.models.parity import Reference
from anchorlens.models.target import Target, finish

# Quantised weights that transformers dequantises while loading.
_UNPACKED = {"gpt_oss": "mxfp4"}


def check_bridge_config(config: PretrainedConfig, name: str) -> None:
    """Raise UnsupportedModelError if TransformerLens has no bridge for a configuration."""
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if config.model_type == "gemma3":
        architecture = "Gemma3ForConditionalGeneration"
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise UnsupportedModelError(
            f"{name}: TransformerLens has no bridge for"
            f" {architecture or f'models of type {config.model_type!r}'} as a causal language"
            " model. If you can build a TransformerBridge of it yourself, pass it to load_model."
        )
    method = quantisation(config)
    if method is not None and method != _UNPACKED.get(config.model_type):
        raise UnsupportedModelError(
            f"{name}: has quantised weights ({method}). Load the checkpoint that it was made from."
        )


def wrap(hf_model: PreTrainedModel, target: Target) -> TransformerBridge:
    """Wrap a Hugging Face model, whose weights are not copied, and compare both.

    The bridge replaces modules inside ``hf_model``, so the reference is computed first.
    """
    n_params = count_parameters(hf_model)
    architecture = type(hf_model).__name__
    name = target.source.name
    reference = Reference.of(hf_model) if target.check_parity else None
    try:
        hf_model.to(target.device)  # pyright: ignore[reportArgumentType]
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{name} does not fit on {target.device} in"
            f" {str(hf_model.dtype).removeprefix('torch.')}. Pass dtype='bfloat16' or device='cpu'."
        ) from error
    parity = None
    try:
        model = build_bridge_from_module(
            hf_model, architecture, hf_config=hf_model.config, model_name=name
        ).eval()
        if reference is not None:
            with torch.no_grad():
                logits = model(
                    reference.tokens.to(target.device), return_type="logits", use_cache=False
                )
            parity = reference.compare(logits, hf_model.dtype, name, target.tolerance)
    except torch.OutOfMemoryError:
        raise
    except (ValueError, TypeError, AttributeError, RuntimeError, KeyError, AssertionError) as error:
        raise UnsupportedModelError(
            f"{name}: TransformerLens cannot make or run a bridge of this {architecture}"
            f" ({type(error).__name__}: {error})."
            " With transformer-lens 3.9, backend='hooked' may load it."
        ) from error
    return finish(model, target, architecture, parity, n_params)
