"""Hugging Face checkpoints from local files: config, weights and tokenizer, with one clear error each. No network here."""

import contextlib
import io
import json
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
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as hf_logging

from anchorlens.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError

# A progress bar for the weights is worth its line only where loading them takes a while.
BAR_BYTES = 1 << 30
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json", "*.tiktoken")


@contextmanager
def weight_bars(shown: bool) -> Iterator[None]:
    """transformers' bars while weights are read: left alone if ``shown``, else off; put back as they were afterwards."""
    before = hf_logging.is_progress_bar_enabled()
    if shown:
        yield
        return
    hf_logging.disable_progress_bar()
    try:
        # The bar of the GGUF reader asks no setting; it writes to sys.stderr. Log lines keep their own handle on it.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if before:
            hf_logging.enable_progress_bar()


def load_config(directory: Path) -> PretrainedConfig:
    """The configuration in ``config.json``.

    Raises:
        ModelNotFoundError: The directory has none.
        UnsupportedModelError: Its model type is not one that transformers itself has.
        CheckpointError: It cannot be read.
    """
    if not (directory / "config.json").is_file():
        raise ModelNotFoundError(
            f"{directory} holds no config.json, so it is no Hugging Face checkpoint. "
            "Give the directory that `save_pretrained` wrote, or a .gguf file."
        )
    try:
        kind = json.loads((directory / "config.json").read_text(encoding="utf8")).get("model_type")
        if kind not in CONFIG_MAPPING:
            raise UnsupportedModelError(
                f"{directory.name}: transformers itself has no models of type {kind!r}; own code is not run."
            )
        # Said outright, so that transformers does not ask on the terminal whether to run the checkpoint's own code.
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
    vars(model.config).pop("quantization_config", None)
    return model


def _load(kind: Any, directory: Path, shown_name: str, progress: bool, options: dict[str, Any]) -> PreTrainedModel:
    """One call of ``from_pretrained``, its many errors made one, and missing weights made an error."""
    try:
        with weight_bars(progress):
            model, report = kind.from_pretrained(
                directory,
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
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
    # Without these files transformers makes an empty tokenizer of the model's family, and says nothing.
    if gguf is None and not any(any(directory.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise CheckpointError(f"{directory} holds no tokenizer files. Pass tokenizer=.")
    options: dict[str, Any] = {} if gguf is None else {"gguf_file": gguf}
    try:
        with weight_bars(False):
            tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        raise CheckpointError(
            f"{directory if gguf is None else directory / gguf} holds no readable tokenizer ({error}). Pass tokenizer=."
        ) from error
    return tokenizer
