"""Hugging Face checkpoints from local files: config, weights and tokenizer, with one clear error each. No network here."""

import contextlib
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
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

from anchorlens.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from anchorlens.models.audit import quantisation
from anchorlens.models.gguf_audit import check_gguf
from anchorlens.models.mapping import check_supported

# A progress bar for the weights is worth its line only where loading them takes a while.
BAR_BYTES = 1 << 30
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json", "*.tiktoken")
# What transformers looks for, in its order; the second and the fourth name the files of a model in several.
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
LFS_POINTER = b"version https://git-lfs"


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


def check_directory(directory: Path, name: str, with_tokenizer: bool) -> PretrainedConfig:
    """All that can be known of a Hugging Face directory before its weights are read.

    Args:
        directory: To look at.
        name: For messages.
        with_tokenizer: Whether its own tokenizer will be wanted.

    Returns:
        Its configuration, which is one that can be loaded.

    Raises:
        ModelNotFoundError, UnsupportedModelError, CheckpointError: See :func:`load_config`, :func:`check_weights`,
            :func:`check_tokenizer_files` and :func:`anchorlens.models.mapping.check_supported`.
    """
    config = load_config(directory)
    check_supported(config, name)
    if with_tokenizer:
        check_tokenizer_files(directory)
    check_weights(directory, config)
    return config


def load_config(directory: Path) -> PretrainedConfig:
    """The configuration in ``config.json``.

    Raises:
        ModelNotFoundError: The directory has none.
        UnsupportedModelError: Its model type is not one that transformers itself has.
        CheckpointError: It cannot be read, or does not say what kind of model it is.
    """
    file = directory / "config.json"
    try:
        if not file.is_file():
            raise ModelNotFoundError(
                f"{directory} holds no config.json, so it is no Hugging Face checkpoint. "
                "Give the directory that `save_pretrained` wrote, or a .gguf file."
            )
        fields = json.loads(file.read_text(encoding="utf8"))
        kind = fields.get("model_type") if isinstance(fields, dict) else None
        if not isinstance(kind, str):
            raise CheckpointError(
                f"{file} has no model_type, so it does not say what kind of model this is. "
                "Give the directory that `save_pretrained` wrote, or restore its config.json."
            )
        if kind not in CONFIG_MAPPING:
            raise UnsupportedModelError(
                f"{directory.name}: transformers itself has no models of type {kind!r}; own code is not run."
            )
        classes = fields.get("architectures") or []
        if "auto_map" in fields and classes and not any(hasattr(transformers, str(name)) for name in classes):
            raise UnsupportedModelError(
                f"{directory.name}: transformers itself has no class {classes[0]!r}, which this checkpoint brings along; own code "
                "is not run."
            )
        # Said outright, so that transformers does not ask on the terminal whether to run the checkpoint's own code.
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ArithmeticError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        raise CheckpointError(f"{file} cannot be read: {' '.join(str(error).split())}. Fetch it again.") from error


def check_weights(directory: Path, config: PretrainedConfig) -> None:
    """Whether a directory has the files of all its weights, and safetensors files all their bytes; reads no weight.

    Raises:
        CheckpointError: A file is missing, cut off, or only the pointer that git-lfs leaves for it.
    """
    for path in weight_files(directory, config):
        try:
            with path.open("rb") as stream:
                pointer = stream.read(len(LFS_POINTER)) == LFS_POINTER
            if not pointer and path.suffix == ".safetensors":
                with safe_open(str(path), framework="np"):
                    pass  # opening compares the table of tensors with the length of the file
        except (OSError, SafetensorError) as error:
            raise _unreadable(str(directory), error) from error
        if pointer:
            raise CheckpointError(f"{path} is only git-lfs's pointer to the weights. Run `git lfs pull` in {directory}.")


def weight_files(directory: Path, config: PretrainedConfig) -> list[Path]:
    """The files that transformers will read."""
    named = getattr(config, "transformers_weights", None)
    if named is not None and not isinstance(named, str):
        raise CheckpointError(f"{directory / 'config.json'} cannot be read: transformers_weights={named!r} is no file name.")
    names = (named,) if named is not None else WEIGHT_FILES
    first = next((directory / name for name in names if (directory / name).is_file()), None)
    if first is None:
        lacks = f"its {names[0]}"
        if named is None:
            shards = any(directory.glob("model-*-of-*.safetensors"))
            lacks = (
                f"{WEIGHT_FILES[1]}, which lists its files" if shards else "weights (model.safetensors or pytorch_model.bin)"
            )
        raise CheckpointError(f"The checkpoint {directory} is incomplete: it lacks {lacks}. Fetch it again.")
    if not first.name.endswith(".index.json"):
        return [first]
    try:
        files = sorted({directory / name for name in json.loads(first.read_text(encoding="utf8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{first} is no index of weights ({type(error).__name__}: {error}). Fetch it again.") from error
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise CheckpointError(
            f"The checkpoint {directory} is incomplete: it lacks {len(missing)} of the {len(files)} files that its index names "
            f"({_some(missing)}). Fetch it again."
        )
    return files


def _some(names: list[str]) -> str:
    """The first few."""
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")


def _unreadable(shown_name: str, error: Exception) -> CheckpointError:
    """The error for weights that cannot be read, in one wording."""
    return CheckpointError(f"The weights in {shown_name} cannot be read ({type(error).__name__}: {error}).")


def load_weights(directory: Path, config: PretrainedConfig, dtype: torch.dtype, progress: bool) -> PreTrainedModel:
    """The model on the CPU with eager attention, every weight of it from the checkpoint.

    Raises:
        CheckpointError: Files are missing, truncated or of other shapes than the configuration says, or weights are missing
            (transformers would fill them with random numbers).
    """
    kind: Any = Gemma3ForConditionalGeneration if config.model_type == "gemma3" else AutoModelForCausalLM
    size = sum(path.stat().st_size for pattern in ("*.safetensors", "*.bin") for path in directory.glob(pattern))
    options: dict[str, Any] = {"dtype": dtype}
    if quantisation(config) == "mxfp4":
        options["quantization_config"] = Mxfp4Config(dequantize=True)
    return _load(kind, directory, str(directory), progress and size > BAR_BYTES, options)


def load_gguf(path: Path, dtype: torch.dtype = torch.float32, progress: bool = False) -> PreTrainedModel:
    """A GGUF file, dequantised by transformers, on the CPU with eager attention.

    Raises:
        CheckpointError: The file is truncated, damaged or lacks weights.
        UnsupportedModelError: It holds what transformers would leave out (see gguf_audit.py).
    """
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
        raise _unreadable(shown_name, error) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(
            f"The checkpoint {shown_name} is incomplete: it lacks {len(missing)} weights ({_some(missing)})."
        )
    return model.eval()


def check_tokenizer_files(directory: Path) -> None:
    """Whether a directory has files of a tokenizer: without them transformers makes an empty one and says nothing.

    Raises:
        CheckpointError: It has none.
    """
    if not any(any(directory.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise CheckpointError(f"{directory} holds no tokenizer files. Pass tokenizer=.")


def load_tokenizer(directory: Path, gguf: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer exactly as ``AutoTokenizer`` gives it.

    Raises:
        CheckpointError: There is none, or it cannot be read.
    """
    if gguf is None:
        check_tokenizer_files(directory)
    options: dict[str, Any] = {} if gguf is None else {"gguf_file": gguf}
    try:
        with weight_bars(False):
            tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        raise CheckpointError(
            f"{directory if gguf is None else directory / gguf} holds no readable tokenizer ({error}). Pass tokenizer=."
        ) from error
    return tokenizer
