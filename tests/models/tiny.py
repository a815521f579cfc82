"""Small random checkpoints with the real features of each family, made offline.

``save_tiny("llama", directory)`` writes a Hugging Face directory (safetensors and a fast tokenizer). Weights are scaled so that
attention and every norm matter: a mapping that is wrong anywhere moves log-probabilities by whole nats.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from tests.tokenizers_small import small_tokenizer

VOCAB = 420
WINDOW = 8
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}


def _decoder(kind: str, changes: dict[str, object]) -> PretrainedConfig:
    return getattr(transformers, kind)(**(SIZES | changes))


def llama(**changes: object) -> PretrainedConfig:
    """Llama 3: grouped queries, llama3 rope scaling, tied embeddings."""
    return _decoder("LlamaConfig", {"rope_parameters": dict(LLAMA3_ROPE), "tie_word_embeddings": True} | changes)


def llama_untied(**changes: object) -> PretrainedConfig:
    """Head size unlike hidden/heads, linear rope, attention biases, untied embeddings."""
    base = {"head_dim": 20, "rope_parameters": dict(LINEAR_ROPE), "attention_bias": True, "tie_word_embeddings": False}
    return _decoder("LlamaConfig", base | changes)


def mistral(**changes: object) -> PretrainedConfig:
    """All layers slide."""
    return _decoder("MistralConfig", {"sliding_window": WINDOW, "head_dim": 16} | changes)


def qwen2(**changes: object) -> PretrainedConfig:
    """Query, key and value biases; sliding from layer 1 on."""
    return _decoder("Qwen2Config", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1} | changes)


def qwen2_yarn(**changes: object) -> PretrainedConfig:
    """Full attention with YaRN rope."""
    return _decoder("Qwen2Config", {"rope_parameters": dict(YARN_ROPE), "tie_word_embeddings": True} | changes)


def qwen3(**changes: object) -> PretrainedConfig:
    """QK norm, head size unlike hidden/heads."""
    return _decoder("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True} | changes)


def qwen3_sliding(**changes: object) -> PretrainedConfig:
    """QK norm, attention biases, sliding from layer 1 on."""
    base = {
        "head_dim": 16,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
    }
    return _decoder("Qwen3Config", base | changes)


def gemma2(**changes: object) -> PretrainedConfig:
    """Both soft caps (low enough to bend), alternating windows, an attention scale that is not the head size."""
    base = {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
    }
    return _decoder("Gemma2Config", base | changes)


def gemma3(**changes: object) -> PretrainedConfig:
    """QK norm, windows in two of three layers, another rope in each kind of layer, the full one scaled."""
    base = {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    }
    return _decoder("Gemma3TextConfig", base | changes)


def gemma3_multimodal(**changes: object) -> PretrainedConfig:
    """Gemma 3 with a vision tower around the language model."""
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    tokens = {"image_token_index": 5, "boi_token_index": 6, "eoi_token_index": 7, "mm_tokens_per_image": 4}
    text = gemma3(**changes)
    return transformers.Gemma3Config(text_config=text.to_dict(), vision_config=vision, **tokens)  # type: ignore[arg-type]


def gpt2(**changes: object) -> PretrainedConfig:
    """Inner size unlike 4 x width."""
    sizes = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_inner": 80, "n_positions": 64}
    return transformers.GPT2Config(**(sizes | {"bos_token_id": 0, "eos_token_id": 1} | changes))  # type: ignore[arg-type]


def gpt2_by_layer(**changes: object) -> PretrainedConfig:
    """Scores divided by the layer's number, as Stanford's models have it; untied embeddings."""
    return gpt2(**({"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False} | changes))


def neox(**changes: object) -> PretrainedConfig:
    """Parallel blocks, rope in half of each head, another base."""
    sizes = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
    rope = {"rope_type": "default", "rope_theta": 5_000.0, "partial_rotary_factor": 0.5}
    return transformers.GPTNeoXConfig(**(sizes | {"rope_parameters": rope} | changes))  # type: ignore[arg-type]


def neox_sequential(**changes: object) -> PretrainedConfig:
    """Sequential blocks without attention biases, linear rope over whole heads."""
    rope = {**LINEAR_ROPE, "partial_rotary_factor": 1.0}
    return neox(**({"use_parallel_residual": False, "attention_bias": False, "rope_parameters": rope} | changes))


FAMILIES: dict[str, Callable[..., PretrainedConfig]] = {
    maker.__name__: maker
    for maker in (
        llama,
        llama_untied,
        mistral,
        qwen2,
        qwen2_yarn,
        qwen3,
        qwen3_sliding,
        gemma2,
        gemma3,
        gemma3_multimodal,
        gpt2,
        gpt2_by_layer,
        neox,
        neox_sequential,
    )
}


def moe(kind: str, experts: str, changes: dict[str, object]) -> PretrainedConfig:
    """Four experts, two a token."""
    return _decoder(kind, {experts: 4, "num_experts_per_tok": 2} | changes)


def mixtral(**changes: object) -> PretrainedConfig:
    """Experts, all layers slide."""
    return moe("MixtralConfig", "num_local_experts", {"sliding_window": WINDOW, "head_dim": 16} | changes)


def phi3(**changes: object) -> PretrainedConfig:
    """Matrices joined in one, rope in half of each head, all layers slide."""
    return _decoder("Phi3Config", {"sliding_window": WINDOW, "partial_rotary_factor": 0.5, "pad_token_id": 3} | changes)


def apertus(**changes: object) -> PretrainedConfig:
    """QK norm, a plain MLP whose activation has weights, llama3 rope, attention biases."""
    return _decoder("ApertusConfig", {"rope_parameters": dict(LLAMA3_ROPE), "attention_bias": True} | changes)


def olmo(**changes: object) -> PretrainedConfig:
    """Norms without weights; queries, keys and values clipped."""
    return _decoder("OlmoConfig", {"num_key_value_heads": 4, "clip_qkv": 1.0} | changes)


def olmo2(**changes: object) -> PretrainedConfig:
    """Norms after the blocks' parts, QK norm over all heads at once, grouped queries."""
    return _decoder("Olmo2Config", changes)


def olmo3(**changes: object) -> PretrainedConfig:
    """As OLMo 2, windows in two of three layers, YaRN in the full one alone."""
    base = {
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": dict(YARN_ROPE),
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    }
    return _decoder("Olmo3Config", base | changes)


def olmoe(**changes: object) -> PretrainedConfig:
    """Experts whose weights do not sum to 1, QK norm over all heads at once, queries, keys and values clipped."""
    return moe("OlmoeConfig", "num_experts", {"clip_qkv": 1.0} | changes)


def gpt_oss(**changes: object) -> PretrainedConfig:
    """Attention sinks, experts with biases, every other layer slides, YaRN without rounding."""
    rope = {**YARN_ROPE, "truncate": False}
    base = {"head_dim": 16, "sliding_window": WINDOW, "rope_parameters": rope, "swiglu_limit": 7.0}
    return moe("GptOssConfig", "num_local_experts", base | changes)


def gemma(**changes: object) -> PretrainedConfig:
    """The first Gemma: no norms after the parts, no soft caps."""
    return _decoder("GemmaConfig", {"head_dim": 16} | changes)


GPT_SIZES = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1}


def gptj(**changes: object) -> PretrainedConfig:
    """Parallel blocks, rope of adjacent pairs in a part of each head, a bias of the unembedding."""
    sizes = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64, "rotary_dim": 8, "n_inner": 80}
    return transformers.GPTJConfig(**(GPT_SIZES | sizes | changes))  # type: ignore[arg-type]


def gpt_neo(**changes: object) -> PretrainedConfig:
    """Unscaled scores, the second layer slides."""
    sizes = {"hidden_size": 48, "num_layers": 3, "num_heads": 4, "intermediate_size": 80, "max_position_embeddings": 64}
    types = {"attention_types": [[["global", "local", "global"], 1]], "window_size": WINDOW}
    return transformers.GPTNeoConfig(**(GPT_SIZES | sizes | types | changes))  # type: ignore[arg-type]


def opt(**changes: object) -> PretrainedConfig:
    """Learned positions that begin at the third row."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 80, "max_position_embeddings": 64}
    return transformers.OPTConfig(**(GPT_SIZES | sizes | {"pad_token_id": 3} | changes))  # type: ignore[arg-type]


def bloom(**changes: object) -> PretrainedConfig:
    """Scores fall with the distance (alibi); a norm after the embedding."""
    sizes = {"hidden_size": 48, "n_layer": 3, "n_head": 4}
    return transformers.BloomConfig(**(GPT_SIZES | sizes | changes))  # type: ignore[arg-type]


def phi(**changes: object) -> PretrainedConfig:
    """Parallel blocks under one norm, rope in half of each head."""
    return _decoder("PhiConfig", {"num_key_value_heads": 4} | changes)


FURTHER_FAMILIES: dict[str, Callable[..., PretrainedConfig]] = {
    maker.__name__: maker
    for maker in (
        mixtral, phi3, apertus, olmo, olmo2, olmo3, olmoe, gpt_oss, gemma, gptj, gpt_neo, opt, bloom, phi
    )
}  # fmt: skip
"""Loaded and compared with Hugging Face like the others; in the engine's tests they stand in tests/models/test_families.py alone."""


def random_model(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A Hugging Face model with weights large enough that attention, norms and biases matter."""
    # Building a model draws from torch's global generator; the tests' own state stays as it was.
    with torch.random.fork_rng(devices=[]):
        multimodal = config.model_type == "gemma3"
        kind = transformers.Gemma3ForConditionalGeneration if multimodal else transformers.AutoModelForCausalLM
        model = kind(config) if multimodal else kind.from_config(config, attn_implementation="eager")
    model.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(seed)
    gemma = config.model_type.startswith("gemma")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                # Gemma's norms add 1 to their weight; biases are around 0 everywhere.
                centre = 0.0 if gemma or name.endswith("bias") else 1.0
                parameter.copy_(centre + 0.3 * noise)
            elif "embed" in name or "wte" in name or "wpe" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(1.5 * noise / parameter.shape[-1] ** 0.5)
    return model.eval()


def save_model(model: PreTrainedModel, directory: Path, *, bos: bool = False) -> Path:
    """Write a model and a small byte-level tokenizer (which adds BOS or not) as a Hugging Face directory."""
    model.save_pretrained(directory)
    small_tokenizer("byte", bos=bos).save_pretrained(directory)
    return directory


def save_tiny(family: str, directory: Path, seed: int = 0, *, bos: bool = False) -> Path:
    """Write a small random checkpoint of one of ``FAMILIES`` or ``FURTHER_FAMILIES``."""
    return save_model(random_model((FAMILIES | FURTHER_FAMILIES)[family](), seed), directory, bos=bos)
