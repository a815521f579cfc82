"""Load Hugging Face checkpoints from local files: configuration, weights and tokenizer. No network is used."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
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
from transformers.utils.quantization_config import Mxfp4Config

from anchorlens.display import join_words
from anchorlens.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from anchorlens.models.check_config import check_config
from anchorlens.models.hf_model import quantisation

# Minimum size of the weights for a progress bar.
BAR_BYTES = 1 << 30
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json", "*.tiktoken")
# In the order in which transformers looks for them; an index lists the files of a sharded model.
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


@contextmanager
def progress_bars(shown: bool) -> Iterator[None]:
    """Show or hide transformers' progress bars during a ``with`` statement."""
    before = hf_logging.is_progress_bar_enabled()
    if not shown:
        hf_logging.disable_progress_bar()
    try:
        # The bar of the GGUF reader cannot be switched off; it writes to sys.stderr.
        with nullcontext() if shown else redirect_stderr(io.StringIO()):
            yield
    finally:
        if before:
            hf_logging.enable_progress_bar()


def check_directory(directory: Path, name: str, with_tokenizer: bool, backend: str) -> PretrainedConfig:
    """Return the configuration of a Hugging Face directory after checking its files without reading the weights."""
    config = load_config(directory)
    check_config(config, name, backend)
    if with_tokenizer:
        check_tokenizer_files(directory)
    for path in weight_files(directory):
        if path.suffix == ".safetensors":
            with _weight_errors(directory), safe_open(str(path), framework="np"):
                pass  # opening checks the table of tensors against the file's length
    return config


def load_config(directory: Path) -> PretrainedConfig:
    """Read ``config.json`` of a directory."""
    file = directory / "config.json"
    try:
        if not file.is_file():
            raise ModelNotFoundError(
                f"{directory} holds no config.json. Give the directory that `save_pretrained` wrote, or a .gguf file."
            )
        fields = json.loads(file.read_text(encoding="utf8"))
        kind, classes = fields["model_type"], fields.get("architectures") or []
        missing = kind not in CONFIG_MAPPING and f"models of type {kind!r}"
        if not missing and "auto_map" in fields and classes and not any(hasattr(transformers, name) for name in classes):
            missing = f"class {classes[0]!r}"
        if missing:
            raise UnsupportedModelError(f"{directory.name}: transformers has no {missing}. The checkpoint's own code is not run.")
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ArithmeticError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"{file} cannot be read ({reason}). Fetch it again.") from error


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files of a directory that transformers reads."""
    first = next((directory / name for name in WEIGHT_FILES if (directory / name).is_file()), None)
    if first is None:
        raise CheckpointError(f"{directory} is incomplete: it has none of {', '.join(WEIGHT_FILES)}. Fetch it again.")
    if first.suffix != ".json":
        return [first]
    with _weight_errors(directory):
        files = sorted({directory / name for name in json.loads(first.read_text(encoding="utf8"))["weight_map"].values()})
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise CheckpointError(f"{directory} is incomplete: it lacks the files {join_words(missing)}. Fetch it again.")
    return files


@contextmanager
def _weight_errors(path: Path) -> Iterator[None]:
    """Raise errors of reading weights as CheckpointError."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"The weights in {path} cannot be read ({type(error).__name__}: {error}). Fetch them again (with `git lfs pull` in a "
            "clone of a repository)."
        ) from error


def load_weights(directory: Path, config: PretrainedConfig, dtype: torch.dtype, progress: bool) -> PreTrainedModel:
    """Load the model of a directory on the CPU with eager attention."""
    kind: Any = Gemma3ForConditionalGeneration if config.model_type == "gemma3" else AutoModelForCausalLM
    size = sum(path.stat().st_size for path in weight_files(directory))
    options: dict[str, Any] = {"dtype": dtype}
    if quantisation(config) == "mxfp4":
        options["quantization_config"] = Mxfp4Config(dequantize=True)
    return _load(kind, directory, directory, progress and size > BAR_BYTES, options)


def load_gguf(path: Path, dtype: torch.dtype = torch.float32, progress: bool = False) -> PreTrainedModel:
    """Load a GGUF file, dequantised by transformers, on the CPU with eager attention."""
    shown = progress and path.stat().st_size > BAR_BYTES
    model = _load(AutoModelForCausalLM, path.parent, path, shown, {"dtype": dtype, "gguf_file": path.name})
    # The weights are dequantised now; the mapping refuses quantised configurations.
    vars(model.config).pop("quantization_config", None)
    return model


def _load(kind: Any, directory: Path, shown: Path, progress: bool, options: dict[str, Any]) -> PreTrainedModel:
    options |= {"attn_implementation": "eager", "local_files_only": True, "trust_remote_code": False}
    with _weight_errors(shown), progress_bars(progress):
        model, report = kind.from_pretrained(directory, output_loading_info=True, **options)
    if report["missing_keys"]:
        raise CheckpointError(
            f"{shown} is incomplete: it lacks the weights {join_words(sorted(report['missing_keys']))}. Fetch it again."
        )
    return model.eval()


def check_tokenizer_files(directory: Path) -> None:
    """Raise CheckpointError if a directory has no tokenizer files; transformers would silently make an empty tokenizer."""
    if not any(any(directory.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise CheckpointError(f"{directory} holds no tokenizer files. Pass tokenizer=.")


def load_tokenizer(directory: Path, gguf: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a directory, or of its GGUF file ``gguf``, with ``AutoTokenizer``."""
    if gguf is None:
        check_tokenizer_files(directory)
    options: dict[str, Any] = {} if gguf is None else {"gguf_file": gguf}
    try:
        with progress_bars(False):
            return AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        raise CheckpointError(f"The tokenizer in {directory} cannot be read ({error}). Pass tokenizer=.") from error
