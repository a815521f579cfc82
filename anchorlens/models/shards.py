"""The tensors of a checkpoint's safetensors files, by name: mapped into memory when they are asked for, and not before.

A tensor that comes from here is a view of its file. Its pages belong to the file: the system brings them in when they are touched,
and takes them back when it needs the memory.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from anchorlens.errors import CheckpointError

# Numbers that lie in one page of memory, as bytes; systems with larger pages touch some twice.
_PAGE = 4096


class Shards:
    """Where the tensors of a checkpoint lie.

    Args:
        files: Its safetensors files.

    Attributes:
        shapes: Shape of each tensor, by name.

    Raises:
        CheckpointError: A file cannot be read.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        self._file: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in self.files:
            try:
                with safe_open(str(path), framework="pt") as opened:
                    for name in opened.keys():  # noqa: SIM118 - it is no dictionary
                        self._file[name], self.shapes[name] = path, tuple(opened.get_slice(name).get_shape())
            except (OSError, SafetensorError) as error:
                raise _unreadable(path, error) from error

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Tensors by name, as views of their files.

        Raises:
            CheckpointError: A file is gone, or not what it was.
        """
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self._file[name], []).append(name)
        found: dict[str, Tensor] = {}
        for path, wanted in by_file.items():
            try:
                with safe_open(str(path), framework="pt") as opened:
                    found |= {name: opened.get_tensor(name) for name in wanted}
            except (OSError, SafetensorError) as error:
                raise _unreadable(path, error) from error
        return found

    def stamp(self) -> tuple[tuple[str, int, int], ...]:
        """Name, size and time of the last change of every file: what tells that one was written anew.

        Raises:
            CheckpointError: A file is gone.
        """
        try:
            return tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.files)
        except OSError as error:
            raise _unreadable(self.files[0], error) from error


def touch(tensor: Tensor) -> Tensor:
    """Have a contiguous tensor's pages brought in from its file, by reading a byte of each."""
    if tensor.numel():
        tensor.detach().reshape(-1).view(torch.uint8)[::_PAGE].max()
    return tensor


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"The weights in {path} cannot be read ({type(error).__name__}: {error}). While a model is streamed its files have to stay "
        "as they are."
    )


__all__ = ["Shards", "touch"]
