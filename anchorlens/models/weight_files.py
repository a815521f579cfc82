"""The tensors of a checkpoint's safetensors files, by name, as memory-mapped views of their files."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from anchorlens.errors import CheckpointError

# Bytes of a page of memory.
_PAGE = 4096


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"The weights in {path} cannot be read ({type(error).__name__}: {error}). While a model is streamed its files have to "
            "stay as they are."
        ) from error


class Shards:
    """The tensors of a checkpoint's safetensors files."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        self._file: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in self.files:
            with _read_errors(path), safe_open(str(path), framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no dictionary
                    self._file[name], self.shapes[name] = path, tuple(opened.get_slice(name).get_shape())

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Read tensors by name, as views of their files; raises CheckpointError if a file is gone or changed."""
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self._file[name], []).append(name)
        found: dict[str, Tensor] = {}
        for path, wanted in by_file.items():
            with _read_errors(path), safe_open(str(path), framework="pt") as opened:
                found |= {name: opened.get_tensor(name) for name in wanted}
        return found

    def stamp(self) -> tuple[tuple[str, int, int], ...]:
        """Return name, size and time of change of every file."""
        with _read_errors(self.files[0].parent):
            return tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.files)


def touch(tensor: Tensor) -> Tensor:
    """Read a byte of each page of a contiguous tensor, so that it is in memory."""
    if tensor.numel():
        tensor.detach().reshape(-1).view(torch.uint8)[::_PAGE].max()
    return tensor
