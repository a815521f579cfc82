"""Tensors of a checkpoint's safetensors files by name, as memory-mapped views."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from anchorlens.models.library_errors import checkpoint_errors

# Size of a memory page in bytes.
_PAGE = 4096


def _read_errors(path: Path) -> AbstractContextManager[None]:
    return checkpoint_errors(
        f"The weights in {path}", "The files of a streamed model must not change."
    )


class WeightFiles:
    """Safetensors files of a checkpoint."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        self._file: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in self.files:
            with _read_errors(path), safe_open(str(path), framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no dictionary
                    self._file[name] = path
                    self.shapes[name] = tuple(opened.get_slice(name).get_shape())

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return tensors by name, as views of their files; raise CheckpointError if a file is
        missing or changed.
        """
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self._file[name], []).append(name)
        tensors: dict[str, Tensor] = {}
        for path, wanted in by_file.items():
            with _read_errors(path), safe_open(str(path), framework="pt") as opened:
                tensors |= {name: opened.get_tensor(name) for name in wanted}
        return tensors

    def stamp(self) -> tuple[tuple[str, int, int], ...]:
        """Return name, size and mtime of every file."""
        with _read_errors(self.files[0].parent):
            stamps: list[tuple[str, int, int]] = []
            for path in self.files:
                stat = path.stat()
                stamps.append((path.name, stat.st_size, stat.st_mtime_ns))
            return tuple(stamps)


def touch(tensor: Tensor) -> Tensor:
    """Load a contiguous tensor into memory by reading a byte of each page."""
    if tensor.numel():
        tensor.detach().reshape(-1).view(torch.uint8)[::_PAGE].max()
    return tensor
