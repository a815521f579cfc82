"""Read ``config.json`` as data: keys that choose an implementation, a kernel or code are dropped,
and counts are bounded by the size of the weights.
"""

import re
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from anchorlens.errors import CheckpointError
from anchorlens.models.hf_model import text_config

# Keys by which transformers would choose attention, experts, kernels or code of a repository, and
# those of classifiers: it makes a table of as many labels as a number says.
_CHOOSES_CODE = re.compile(
    r".*implementation.*|.*_kernels|kernel_config|auto_map|custom_\w+|code_revision"
    r"|trust_remote_code|_?use_flash\w*|distributed_config|fusion_config|configuration_files"
    r"|_?num_labels|id2label|label2id"
)
# Most layers of a configuration whose weights are not known yet.
_MOST_LAYERS = 10_000
# Parameters in a byte of weights: two in the smallest format, mxfp4.
_PARAMETERS_PER_BYTE = 2
_COUNTS = (
    "num_hidden_layers",
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "num_local_experts",
    "num_experts",
    "max_position_embeddings",
)


def drop_code_keys(fields: Any) -> Any:
    """Return the values of a configuration without keys that choose code or count labels, at any
    depth.
    """
    if isinstance(fields, dict):
        names = [name for name in fields if not _CHOOSES_CODE.fullmatch(name)]
        return {name: drop_code_keys(fields[name]) for name in names}
    if isinstance(fields, list):
        return [drop_code_keys(value) for value in fields]
    return fields


def check_layers(fields: Any, file: Path) -> None:
    """Raise CheckpointError if a configuration has more layers than any model, at any depth."""
    if not isinstance(fields, dict):
        return
    for name, value in fields.items():
        if isinstance(value, dict):
            check_layers(value, file)
        elif "layer" in name and isinstance(value, int) and value > _MOST_LAYERS:
            raise CheckpointError(
                f"{file}: {name}={value}: no model has so many layers. Compare it with the"
                " original."
            )


def check_counts(config: PretrainedConfig, n_bytes: int, file: Path) -> None:
    """Raise CheckpointError if a configuration needs more parameters than weights of ``n_bytes``
    can hold.
    """
    text = text_config(config)
    counts: dict[str, int] = {}
    for name in _COUNTS:
        value = getattr(text, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            counts[name] = value
            if value < 1:
                raise CheckpointError(
                    f"{file}: {name}={value}: must be at least 1. Compare it with the original."
                )
    most = n_bytes * _PARAMETERS_PER_BYTE
    width = counts.get("hidden_size", 1)
    inner = min(width, counts.get("intermediate_size", width))
    # Each layer has a matrix of hidden_size by intermediate_size at least.
    needed = {
        "num_hidden_layers": counts.get("num_hidden_layers", 1) * width * inner,
        "vocab_size": counts.get("vocab_size", 1) * width,
        "intermediate_size": counts.get("intermediate_size", 1) * width,
    }
    for name, n_parameters in needed.items():
        if n_parameters > most:
            raise CheckpointError(
                f"{file}: {name}={counts.get(name)} needs {n_parameters:,} parameters at"
                f" hidden_size={width}, but the weights have {n_bytes:,} bytes. Compare it with the"
                " original, or fetch the weights again."
            )
