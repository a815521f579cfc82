"""Small models on each backend that the installed version of TransformerLens has."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module

from anchorlens.models.adapter import HAS_HOOKED, Adapter
from anchorlens.models.load import adapt, load_model
from tests.models.tiny import FAMILIES, FURTHER_FAMILIES, VOCAB, random_model
from tests.tokenizers_small import small_tokenizer

TINY = FAMILIES | FURTHER_FAMILIES
needs_hooked = pytest.mark.skipif(
    not HAS_HOOKED, reason="transformer-lens 4.x has no HookedTransformer"
)
BACKENDS = [pytest.param("hooked", marks=needs_hooked), "bridge"]

# Families of which both backends run in the cone engine.
CONE = (
    "gpt2",
    "gpt2_by_layer",
    "neox",
    "llama",
    "mistral",
    "qwen2",
    "qwen3_sliding",
    "phi3",
    "gemma2",
    "gemma3",
    "olmo2",
)
NO_BRIDGE = ("neox_sequential",)
"""TransformerLens makes no bridge of them."""

_SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 4}
_ATTENTION = {
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_LFM2_LAYERS = ["conv", "full_attention", "conv", "full_attention"]
_LFM2 = {
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "layer_types": _LFM2_LAYERS,
}
_FALCON = {
    "mamba_d_ssm": 32,
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
}
RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "SSMMixerBridge": ("Mamba", {"state_size": 8}),
    "GatedDeltaNetBridge": ("Qwen3Next", _ATTENTION | _DELTA),
    "SSM2MixerBridge": ("FalconH1", _ATTENTION | _FALCON),
    "": ("Lfm2", _LFM2),
}
"""Class that the cone engine names -> configuration; the second and the last have layers with
attention as well.
"""


def tokenizer() -> transformers.PreTrainedTokenizerBase:
    return small_tokenizer("byte", bos=False)


@cache
def hugging_face(family: str) -> transformers.PreTrainedModel:
    return random_model(TINY[family]())


@cache
def adapter_of(family: str, backend: str) -> Adapter:
    return adapt(
        load_model(hugging_face(family), device="cpu", tokenizer=tokenizer(), backend=backend)
    )


def live_bridge(hf: transformers.PreTrainedModel) -> TransformerBridge:
    """Make a bridge as a user does, of a copy of the model."""
    inside = copy.deepcopy(hf)
    return build_bridge_from_module(
        inside, type(inside).__name__, hf_config=inside.config, model_name="live"
    )


def recurrent(part: str) -> tuple[transformers.PreTrainedModel, Adapter]:
    """Return a Hugging Face model with recurrent layers, and the adapter of its bridge."""
    kind, own = RECURRENT[part]
    config = getattr(transformers, f"{kind}Config")(**_SIZES | own, bos_token_id=0, eos_token_id=1)
    hf = random_model(config)
    return hf, adapt(load_model(live_bridge(hf), tokenizer=tokenizer()))


def continue_greedily(hf: transformers.PreTrainedModel, prompt: list[int], n: int) -> list[int]:
    """Continue a prompt without a cache."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(n):
            ids.append(
                int(hf(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
            )
    return ids[len(prompt) :]
