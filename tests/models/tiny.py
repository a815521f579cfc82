"""Small random checkpoints with the real features of each family, made offline.

``save_tiny("llama", directory)`` writes a Hugging Face directory (safetensors and a fast
tokenizer). Weights are scaled so that attention and every norm matter: a mapping that is wrong
anywhere moves log-probabilities by whole nats.
"""

from collections.abc import Callable
from copy import deepcopy
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
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Windows in two of three layers.
TWO_SLIDE = ["sliding_attention", "full_attention", "sliding_attention"]

Maker = Callable[..., PretrainedConfig]


def _family(kind: str, sizes: dict[str, object] = SIZES, **own: object) -> Maker:
    """Configurations of one class with these features; keyword arguments change them."""
    return lambda **changes: getattr(transformers, f"{kind}Config")(
        **deepcopy(sizes | own) | changes
    )


# Llama 3: grouped queries, llama3 rope scaling, tied embeddings.
llama = _family("Llama", rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True)
# Head size unlike hidden/heads, linear rope, attention biases, untied embeddings.
llama_untied = _family(
    "Llama",
    head_dim=20,
    rope_parameters=LINEAR_ROPE,
    attention_bias=True,
    tie_word_embeddings=False,
)
# All layers slide.
mistral = _family("Mistral", sliding_window=WINDOW, head_dim=16)
# Query, key and value biases; sliding from layer 1 on.
qwen2 = _family("Qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
# Full attention with YaRN rope.
qwen2_yarn = _family("Qwen2", rope_parameters=YARN_ROPE, tie_word_embeddings=True)
# QK norm, head size unlike hidden/heads.
qwen3 = _family("Qwen3", head_dim=16, tie_word_embeddings=True)
# QK norm, attention biases, sliding from layer 1 on.
qwen3_sliding = _family(
    "Qwen3",
    head_dim=16,
    attention_bias=True,
    use_sliding_window=True,
    sliding_window=WINDOW,
    max_window_layers=1,
)
_GEMMA = {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 24}
# Both soft caps (low enough to bend), alternating windows, an attention scale that is not the head
# size.
gemma2 = _family("Gemma2", **_GEMMA, attn_logit_softcapping=3.0, final_logit_softcapping=5.0)
# QK norm, windows in two of three layers, another rope in each kind of layer, the full one scaled.
_FULL_ROPE = {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0}
_GEMMA3_ROPE = {"full_attention": _FULL_ROPE, "sliding_attention": DEFAULT_ROPE}
gemma3 = _family("Gemma3Text", **_GEMMA, layer_types=TWO_SLIDE, rope_parameters=_GEMMA3_ROPE)


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
    tokens = {
        "image_token_index": 5,
        "boi_token_index": 6,
        "eoi_token_index": 7,
        "mm_tokens_per_image": 4,
    }
    text = gemma3(**changes)
    return transformers.Gemma3Config(text_config=text.to_dict(), vision_config=vision, **tokens)  # type: ignore[arg-type]


GPT_SIZES = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1}
_GPT2 = GPT_SIZES | {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_inner": 80, "n_positions": 64}
# Inner size unlike 4 x width.
gpt2 = _family("GPT2", _GPT2)
# Scores divided by the layer's number, as Stanford's models have it; untied embeddings.
gpt2_by_layer = _family(
    "GPT2", _GPT2, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False
)
_NEOX = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
_HALF_ROPE = {"rope_type": "default", "rope_theta": 5_000.0, "partial_rotary_factor": 0.5}
_WHOLE_ROPE = LINEAR_ROPE | {"partial_rotary_factor": 1.0}
# Parallel blocks, rope in half of each head, another base.
neox = _family("GPTNeoX", _NEOX, rope_parameters=_HALF_ROPE)
# Sequential blocks without attention biases, linear rope over whole heads.
neox_sequential = _family(
    "GPTNeoX", _NEOX, use_parallel_residual=False, attention_bias=False, rope_parameters=_WHOLE_ROPE
)

FAMILIES: dict[str, Maker] = {
    "llama": llama,
    "llama_untied": llama_untied,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen2_yarn": qwen2_yarn,
    "qwen3": qwen3,
    "qwen3_sliding": qwen3_sliding,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma3_multimodal": gemma3_multimodal,
    "gpt2": gpt2,
    "gpt2_by_layer": gpt2_by_layer,
    "neox": neox,
    "neox_sequential": neox_sequential,
}

# Four experts, two a token; all layers slide.
mixtral = _family(
    "Mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW, head_dim=16
)
# Matrices joined in one, rope in half of each head, all layers slide.
phi3 = _family("Phi3", sliding_window=WINDOW, partial_rotary_factor=0.5, pad_token_id=3)
# QK norm, a plain MLP whose activation has weights, llama3 rope, attention biases.
apertus = _family("Apertus", rope_parameters=LLAMA3_ROPE, attention_bias=True)
# Norms without weights; queries, keys and values clipped.
olmo = _family("Olmo", SIZES | {"num_key_value_heads": 4}, clip_qkv=1.0)
# Norms after the blocks' parts, QK norm over all heads at once, grouped queries.
olmo2 = _family("Olmo2")
# As OLMo 2, windows in two of three layers, YaRN in the full one alone.
_OLMO3_ROPE = {"full_attention": YARN_ROPE, "sliding_attention": DEFAULT_ROPE}
olmo3 = _family("Olmo3", sliding_window=WINDOW, layer_types=TWO_SLIDE, rope_parameters=_OLMO3_ROPE)
# Experts whose weights do not sum to 1, QK norm over all heads at once, queries, keys and values
# clipped.
olmoe = _family("Olmoe", num_experts=4, num_experts_per_tok=2, clip_qkv=1.0)
# Attention sinks, experts with biases, every other layer slides, YaRN without rounding.
_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": WINDOW}
gpt_oss = _family(
    "GptOss", **_OSS, rope_parameters=YARN_ROPE | {"truncate": False}, swiglu_limit=7.0
)
# The first Gemma: no norms after the parts, no soft caps.
gemma = _family("Gemma", head_dim=16)
# Parallel blocks, rope of adjacent pairs in a part of each head, a bias of the unembedding.
gptj = _family("GPTJ", _GPT2, rotary_dim=8)
_NEO = {
    "hidden_size": 48,
    "num_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "window_size": WINDOW,
}
# Unscaled scores, the second layer slides.
gpt_neo = _family(
    "GPTNeo", GPT_SIZES | _NEO, num_layers=3, attention_types=[[["global", "local", "global"], 1]]
)
_OPT = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 80,
    "max_position_embeddings": 64,
}
# Learned positions that begin at the third row.
opt = _family("OPT", GPT_SIZES | _OPT, pad_token_id=3)
# Scores fall with the distance (alibi); a norm after the embedding.
bloom = _family("Bloom", GPT_SIZES, hidden_size=48, n_layer=3, n_head=4)
# Parallel blocks under one norm, rope in half of each head.
phi = _family("Phi", SIZES | {"num_key_value_heads": 4})

# Loaded and compared with Hugging Face like the others; in the engine's tests they stand in
# tests/models/test_families.py alone.
FURTHER_FAMILIES: dict[str, Maker] = {
    "mixtral": mixtral,
    "phi3": phi3,
    "apertus": apertus,
    "olmo": olmo,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "olmoe": olmoe,
    "gpt_oss": gpt_oss,
    "gemma": gemma,
    "gptj": gptj,
    "gpt_neo": gpt_neo,
    "opt": opt,
    "bloom": bloom,
    "phi": phi,
}


def random_model(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A Hugging Face model with weights large enough that attention, norms and biases matter."""
    # Building a model draws from torch's global generator; the tests' own state stays as it was.
    with torch.random.fork_rng(devices=[]):
        multimodal = config.model_type == "gemma3"
        kind = (
            transformers.Gemma3ForConditionalGeneration
            if multimodal
            else transformers.AutoModelForCausalLM
        )
        model = (
            kind(config) if multimodal else kind.from_config(config, attn_implementation="eager")
        )
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
    """Write a model and a small byte-level tokenizer (which adds BOS or not) as a Hugging Face
    directory.
    """
    transformers.utils.logging.disable_progress_bar()  # a test that reads stderr may be the first to save
    model.save_pretrained(directory)
    small_tokenizer("byte", bos=bos).save_pretrained(directory)
    return directory


def save_tiny(family: str, directory: Path, seed: int = 0, *, bos: bool = False) -> Path:
    """Write a small random checkpoint of one of ``FAMILIES`` or ``FURTHER_FAMILIES``."""
    return save_model(
        random_model((FAMILIES | FURTHER_FAMILIES)[family](), seed), directory, bos=bos
    )
