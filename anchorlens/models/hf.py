"""Hugging Face checkpoints from local files: config, weights and tokenizer, with one clear error each. No network here."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from anchorlens.errors import CheckpointError, ModelNotFoundError

# A progress bar for the weights is worth its line only where loading them takes a while.
BAR_BYTES = 1 << 30


@contextmanager
def weight_bars(shown: bool) -> Iterator[None]:
    """transformers' bars while weights are read: left alone if ``shown``, else off; put back as they were afterwards."""
    before = hf_logging.is_progress_bar_enabled()
    if before and not shown:
        hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if before and not shown:
            hf_logging.enable_progress_bar()


def load_config(directory: Path) -> PretrainedConfig:
    """The configuration in ``config.json``.

    Raises:
        ModelNotFoundError: The directory has none.
        CheckpointError: It cannot be read, or it is of a model type that transformers does not know.
    """
    if not (directory / "config.json").is_file():
        raise ModelNotFoundError(
            f"{directory} holds no config.json, so it is no Hugging Face checkpoint. "
            "Give the directory that `save_pretrained` wrote, or a .gguf file."
        )
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{directory / 'config.json'} cannot be read: {error}") from error


def load_weights(directory: Path, config: PretrainedConfig, dtype: torch.dtype, progress: bool) -> PreTrainedModel:
    """The model on the CPU with eager attention, every weight of it from the checkpoint.

    Raises:
        CheckpointError: Files are missing, truncated or of other shapes than the configuration says, or weights are missing
            (transformers would fill them with random numbers).
    """
    kind: Any = Gemma3ForConditionalGeneration if config.model_type == "gemma3" else AutoModelForCausalLM
    size = sum(path.stat().st_size for pattern in ("*.safetensors", "*.bin") for path in directory.glob(pattern))
    return _load(kind, directory, str(directory), progress and size > BAR_BYTES, {"dtype": dtype})


def load_gguf(path: Path, dtype: torch.dtype = torch.float32, progress: bool = False) -> PreTrainedModel:
    """A GGUF file, dequantised by transformers, on the CPU with eager attention.

    Raises:
        CheckpointError: The file is truncated, damaged or lacks weights.
        UnsupportedModelError: It holds what transformers would leave out (see gguf_audit.py).
    """
    from anchorlens.models.checkpoint import check_gguf

    check_gguf(path)
    shown = progress and path.stat().st_size > BAR_BYTES
    model = _load(AutoModelForCausalLM, path.parent, str(path), shown, {"dtype": dtype, "gguf_file": path.name})
    # From here on these are plain numbers: the mapping refuses configurations that say the weights are quantised.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def _load(kind: Any, directory: Path, shown_name: str, progress: bool, options: dict[str, Any]) -> PreTrainedModel:
    """One call of ``from_pretrained``, its many errors made one, and missing weights made an error."""
    try:
        with weight_bars(progress):
            model, report = kind.from_pretrained(
                directory, attn_implementation="eager", local_files_only=True, output_loading_info=True, **options
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"The weights in {shown_name} cannot be read ({type(error).__name__}: {error}).") from error
    missing = sorted(report["missing_keys"])
    if missing:
        some = ", ".join(missing[:4]) + (" ..." if len(missing) > 4 else "")
        raise CheckpointError(f"The checkpoint {shown_name} is incomplete: it lacks {len(missing)} weights ({some}).")
    return model.eval()


def load_tokenizer(directory: Path, gguf: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer exactly as ``AutoTokenizer`` gives it.

    Raises:
        CheckpointError: There is none, or it cannot be read.
    """
    options: dict[str, Any] = {} if gguf is None else {"gguf_file": gguf}
    try:
        with weight_bars(False):
            tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, **options)
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        raise CheckpointError(
            f"{directory if gguf is None else directory / gguf} holds no readable tokenizer ({error}). Pass tokenizer=."
        ) from error
    if len(tokenizer) == 0:
        raise CheckpointError(f"{directory} holds no tokenizer files. Pass tokenizer=.")
    return tokenizer
