"""How large a model is and whether it fits, from its configuration alone: before anything is downloaded or loaded."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, try_to_load_from_cache

from anchorlens.engine.cost import free_memory
from anchorlens.errors import InputError
from anchorlens.models.checkpoint import PACKAGED, packaged_directory
from anchorlens.models.devices import FLOAT32_LIMIT, own_dtype, parse_dtype, pick_device
from anchorlens.models.hf import load_config
from anchorlens.models.hub import fetch_config
from anchorlens.models.mapping import check_supported, text_config
from anchorlens.models.names import registered_name
from anchorlens.models.skeleton import without_weights
from anchorlens.models.source import check_model, existing
from anchorlens.models.weights import count_parameters

# What a model takes beside its weights, and what a sweep needs at least, as a share of them.
_BESIDE = 1.2
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class ModelSize:
    """How large a model is, and where it would go.

    Attributes:
        name: As it was given.
        n_params: Parameters of the language model, tied weights once.
        n_layers: Its layers.
        dtype: Type in which it would run.
        weight_bytes: Bytes of its weights in that type; a tied unembedding stands there a second time.
        layer_bytes: Bytes of one layer.
        download_bytes: Bytes that still have to be downloaded; 0 where the files are at hand.
        free_disk: Bytes that are free where they would go.
        device: Where it would run.
        free_memory: Bytes that are free there; on the fullest device of several.
        n_devices: Devices that it would be spread over.
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
        """Bytes of weights on each device: its layers, the embedding on the first, last norm and unembedding on the last."""
        layers = [sum(i * self.n_devices // self.n_layers == k for i in range(self.n_layers)) for k in range(self.n_devices)]
        held = [n * self.layer_bytes for n in layers]
        ends = self.weight_bytes - sum(held)
        held[0] += ends // 2
        held[-1] += ends - ends // 2
        return tuple(held)

    @property
    def fits(self) -> bool:
        """Whether it can be loaded as a whole, with room to work; else it has to be streamed (``load_model(..., stream=True)``)."""
        return _BESIDE * max(self.device_bytes) < self.free_memory

    def __str__(self) -> str:
        load = "at hand" if not self.download_bytes else f"{_gb(self.download_bytes)} to download, {_gb(self.free_disk)} free"
        several = f"each of {self.n_devices} devices from {self.device} on ({_gb(max(self.device_bytes))} of it at most)"
        on = self.device if self.n_devices == 1 else several
        where = f"{_gb(self.free_memory)} free on {on}: {'fits' if self.fits else 'layers are streamed'}"
        return (
            f"{self.name}: {self.n_params / 1e9:.2f} billion parameters, {self.n_layers} layers, {_gb(self.weight_bytes)} in "
            f"{str(self.dtype).removeprefix('torch.')}; {where}; files {load}"
        )


def model_size(
    name_or_path: "str | os.PathLike[str]", device: "str | torch.device | None" = None, dtype: "str | torch.dtype | None" = None,
    *, n_devices: int = 1, revision: str | None = None, token: str | None = None,
) -> ModelSize:  # fmt: skip
    """The size of a model, from its configuration alone; of a model on the hub only ``config.json`` is fetched.

    Args:
        name_or_path: A name on the hub, a packaged model or a Hugging Face directory.
        device: As for :func:`anchorlens.load_model`.
        dtype: As for :func:`anchorlens.load_model`.
        n_devices: As for :func:`anchorlens.load_model`.
        revision: Branch, tag or commit on the hub.
        token: Access token for the hub.

    Raises:
        AnchorlensError: See :func:`anchorlens.load_model`; no weights are needed.
    """
    kind = check_model(name_or_path, device=device, dtype=dtype, revision=revision, n_devices=n_devices, token=token)
    if kind in ("gguf", "live"):
        raise InputError("model_size reads a configuration: give a name on the hub, a packaged model or a directory.")
    name = os.fspath(name_or_path)
    folder, at_hand, home = _files(kind, name, revision, token)
    config = load_config(folder)
    check_supported(config, name)
    where = pick_device(device)
    first = torch.device(where)
    all_of_them = [first] if n_devices == 1 else [torch.device("cuda", (first.index or 0) + k) for k in range(n_devices)]
    stored = own_dtype(config)
    model = without_weights(config, stored)
    n_params = count_parameters(model)
    run = _run_dtype(dtype, where, stored, n_params)
    inner: Any = text_config(config)
    embedded = int(inner.vocab_size) * int(inner.hidden_size)
    n_layers = int(inner.num_hidden_layers)
    ends = embedded * (1 if inner.tie_word_embeddings else 2)
    weights = n_params + (embedded if inner.tie_word_embeddings else 0)
    return ModelSize(
        name, n_params, n_layers, run, weights * run.itemsize, (n_params - ends) // n_layers * run.itemsize,
        0 if at_hand else n_params * stored.itemsize, shutil.disk_usage(home).free, where, free_memory(all_of_them),
        n_devices,
    )  # fmt: skip


def _files(kind: str, name: str, revision: str | None, token: str | None) -> tuple[Path, bool, Path]:
    """Where the configuration lies, whether the weights are at hand, and a folder of the disk that they go to."""
    if kind == "packaged":
        folder = packaged_directory(PACKAGED[name])
        return folder, True, folder
    path = existing(name)
    if path is not None:
        return path, True, path
    repo = registered_name(name) or name
    config = fetch_config(repo, revision, token)
    there = any(isinstance(try_to_load_from_cache(repo, file, revision=revision), str) for file in _WEIGHTS)
    home = next(one for one in (Path(constants.HF_HUB_CACHE), *Path(constants.HF_HUB_CACHE).parents) if one.exists())
    return config.parent, there, home


def _run_dtype(dtype: "str | torch.dtype | None", device: str, stored: torch.dtype, n_params: int) -> torch.dtype:
    """See :func:`anchorlens.models.devices.pick_dtype`, which counts parameters by the files."""
    if dtype == "auto":
        return stored
    if dtype is not None:
        return parse_dtype(dtype)
    return torch.float32 if device == "cpu" or n_params < FLOAT32_LIMIT else stored


def _gb(n: float) -> str:
    return f"{n / 1e9:.1f} GB"


__all__ = ["ModelSize", "model_size"]
