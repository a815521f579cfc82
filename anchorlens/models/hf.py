"""Load Hugging Face checkpoints from local files: configuration, weights and tokenizer.

No network is used.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers import (
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

from anchorlens.display import join_words, short_repr, warn
from anchorlens.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from anchorlens.models.check_config import check_config
from anchorlens.models.config_data import check_counts, check_layers, drop_code_keys
from anchorlens.models.hf_model import quantisation, text_config
from anchorlens.models.library_errors import (
    check_json_file,
    check_regular_files,
    checkpoint_errors,
)

# First bytes of the file that a clone without Git LFS has in place of weights.
_LFS = b"version https://git-lfs"
# Name of a weight of a layer.
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
# Minimum size of the weights for a progress bar.
BAR_BYTES = 1 << 30
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
    "*.tiktoken",
)
# In the order in which transformers looks for them; an index lists the files of a sharded model.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


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


def check_directory(
    directory: Path, name: str, with_tokenizer: bool, backend: str
) -> PretrainedConfig:
    """Return the configuration of a Hugging Face directory after checking its files without reading
    the weights.
    """
    check_regular_files(directory)
    config = load_config(directory)
    check_config(config, name, backend)
    if with_tokenizer:
        check_tokenizer_files(directory)
    files = weight_files(directory)
    if (directory / "adapter_config.json").exists():
        raise CheckpointError(
            f"{directory} holds an adapter (adapter_config.json) beside its weights. Merge it and"
            " save the model (merge_and_unload), or remove the adapter's files."
        )
    for path in files:
        with _weight_errors(directory):
            if path.suffix != ".safetensors":
                _check_torch_file(path)
                continue
            with safe_open(str(path), framework="np"):
                pass  # opening checks the table of tensors against the file's length
    check_counts(config, sum(path.stat().st_size for path in files), directory / "config.json")
    return config


def _check_torch_file(path: Path) -> None:
    """Raise an error of torch if a pickled file holds anything but tensors; their values are not
    read.
    """
    with path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise ValueError("a pointer of Git LFS instead of weights")
    torch.load(  # noqa: TID251 - tensors alone, before transformers reads them in the same way
        path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path)
    )


def load_config(directory: Path) -> PretrainedConfig:
    """Read ``config.json`` of a directory as data: keys that choose code are dropped."""
    file = directory / "config.json"
    with checkpoint_errors(str(file), "Fetch it again."):
        if not file.is_file():
            raise ModelNotFoundError(
                f"{directory} holds no config.json."
                " Give the directory that `save_pretrained` wrote, or a .gguf file."
            )
        check_json_file(file)
        fields = json.loads(file.read_text(encoding="utf8"))
        kind = fields["model_type"]
        classes = fields.get("architectures") or []
        missing = kind not in CONFIG_MAPPING and f"models of type {kind!r}"
        if (
            not missing
            and "auto_map" in fields
            and classes
            and not any(hasattr(transformers, name) for name in classes)
        ):
            missing = f"class {classes[0]!r}"
        if missing:
            raise UnsupportedModelError(
                f"{directory.name}: transformers has no {missing}."
                " The checkpoint's own code is not run."
            )
        check_layers(fields, file)
        config = CONFIG_MAPPING[kind].from_dict(drop_code_keys(fields), name_or_path=str(directory))
        config._attn_implementation = "eager"
        return config


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files of a directory that transformers reads."""
    first = next((directory / name for name in WEIGHT_FILES if (directory / name).is_file()), None)
    if first is None:
        raise CheckpointError(
            f"{directory} is incomplete: it has none of {', '.join(WEIGHT_FILES)}. Fetch it again."
        )
    if first.suffix != ".json":
        return [first]
    with _weight_errors(directory):
        check_json_file(first)
        names = {*json.loads(first.read_text(encoding="utf8"))["weight_map"].values()}
        for name in names:
            _check_inside(name, first)
        files = sorted(directory / name for name in names)
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise CheckpointError(
            f"{directory} is incomplete: it lacks the files {join_words(missing)}. Fetch it again."
        )
    return files


def _check_inside(name: object, index: Path) -> None:
    """Raise CheckpointError if an index names a file outside its directory, or of another kind."""
    suffix = Path(index.name.removesuffix(".index.json")).suffix
    is_inside = False
    if isinstance(name, str):
        paths = (PurePosixPath(name), PureWindowsPath(name))
        is_outside = any(path.anchor or ".." in path.parts for path in paths)
        is_inside = name.endswith(suffix) and not is_outside
    if not is_inside:
        raise CheckpointError(
            f"{index} names {short_repr(name)}, which is no {suffix} file of its directory. Fetch"
            " it again."
        )


def _weight_errors(path: Path) -> AbstractContextManager[None]:
    """Raise errors of reading weights as CheckpointError."""
    return checkpoint_errors(
        f"The weights in {path}",
        "Fetch them again (with `git lfs pull` in a clone of a repository).",
    )


def load_weights(
    directory: Path, config: PretrainedConfig, dtype: torch.dtype, progress: bool
) -> PreTrainedModel:
    """Load the model of a directory on the CPU with eager attention."""
    kind: Any = (
        Gemma3ForConditionalGeneration if config.model_type == "gemma3" else AutoModelForCausalLM
    )
    size = sum(path.stat().st_size for path in weight_files(directory))
    # The checked configuration, so that config.json is not read again.
    options: dict[str, Any] = {"dtype": dtype, "config": config}
    if quantisation(config) == "mxfp4":
        options["quantization_config"] = Mxfp4Config(dequantize=True)
    return _load(kind, directory, directory, progress and size > BAR_BYTES, options)


def load_gguf(
    path: Path, dtype: torch.dtype = torch.float32, progress: bool = False
) -> PreTrainedModel:
    """Load a GGUF file, dequantised by transformers, on the CPU with eager attention."""
    shown = progress and path.stat().st_size > BAR_BYTES
    model = _load(
        AutoModelForCausalLM, path.parent, path, shown, {"dtype": dtype, "gguf_file": path.name}
    )
    # The weights are dequantised now; the mapping refuses quantised configurations.
    vars(model.config).pop("quantization_config", None)
    return model


def _load(
    kind: Any, directory: Path, shown: Path, progress: bool, options: dict[str, Any]
) -> PreTrainedModel:
    options |= {
        "attn_implementation": "eager",
        "local_files_only": True,
        "trust_remote_code": False,
    }
    with _weight_errors(shown), progress_bars(progress):
        model, report = kind.from_pretrained(directory, output_loading_info=True, **options)
    if report["missing_keys"]:
        raise CheckpointError(
            f"{shown} is incomplete: it lacks the weights"
            f" {join_words(sorted(report['missing_keys']))}. Fetch it again."
        )
    _warn_of_unused_layers(model.config, report["unexpected_keys"], shown)
    return model.eval()


def _warn_of_unused_layers(config: PretrainedConfig, unused: Iterable[str], path: Path) -> None:
    """Warn if the weights have more layers than the configuration, which are not loaded."""
    layers = [int(found[1]) for name in unused if (found := _LAYER.search(name))]
    n_layers = getattr(text_config(config), "num_hidden_layers", None)
    if n_layers is not None and layers and max(layers) >= n_layers:
        warn(
            f"{path}: the weights have {max(layers) + 1} layers, but config.json has"
            f" num_hidden_layers={n_layers}. The others are not loaded. Compare config.json with"
            " the original."
        )


def check_tokenizer_files(directory: Path) -> None:
    """Raise CheckpointError if a directory has no tokenizer files; transformers would silently make
    an empty tokenizer.
    """
    if not any(any(directory.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise CheckpointError(f"{directory} holds no tokenizer files. Pass tokenizer=.")


def load_tokenizer(directory: Path, gguf: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a directory, or of its GGUF file ``gguf``, with ``AutoTokenizer``."""
    if gguf is None:
        check_tokenizer_files(directory)
    options: dict[str, Any] = {} if gguf is None else {"gguf_file": gguf}
    with (
        checkpoint_errors(f"The tokenizer in {directory}", "Pass tokenizer=."),
        progress_bars(False),
    ):
        _check_tokenizer_config(directory)
        if gguf is None and (directory / "config.json").is_file():
            options["config"] = _read_model_type(directory)  # else transformers reads all keys
        return AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, **options
        )


def _read_model_type(directory: Path) -> PretrainedConfig:
    """Return the configuration by which transformers selects the class of a tokenizer."""
    check_json_file(directory / "config.json")
    fields = json.loads((directory / "config.json").read_text(encoding="utf8"))
    kind = fields.get("model_type")
    # Its get() would not import the class of a lazy mapping.
    known = CONFIG_MAPPING[kind] if kind in CONFIG_MAPPING else PretrainedConfig  # noqa: SIM401
    return known.from_dict(drop_code_keys(fields))


def _check_tokenizer_config(directory: Path) -> None:
    """Raise CheckpointError if a tokenizer's configuration names an existing file elsewhere, or if
    its largest length is no number.

    Checkpoints often name files of the machine that wrote them, which do not exist here.
    """
    file = directory / "tokenizer_config.json"
    if not file.is_file():
        return
    check_json_file(file)
    fields = json.loads(file.read_text(encoding="utf8"))
    longest = fields.get("model_max_length")
    if longest is not None and not isinstance(longest, int | float):
        raise CheckpointError(
            f"{file}: model_max_length={short_repr(longest)}: must be a number. Remove the entry,"
            " or pass tokenizer=."
        )
    for name, value in fields.items():
        if not name.endswith("_file") or not isinstance(value, str) or "\0" in value:
            continue
        path = directory / value
        if path.exists() and directory.resolve() not in path.resolve().parents:
            raise CheckpointError(
                f"{file}: {name}={short_repr(value)} is outside its directory. Remove the entry, or"
                " pass tokenizer=."
            )
