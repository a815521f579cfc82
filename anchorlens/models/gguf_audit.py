"""Checks of a GGUF file: that it is complete, and that transformers reads it without loss."""

import struct
from pathlib import Path
from typing import BinaryIO

from gguf import GGUFReader

from anchorlens.errors import CheckpointError, UnsupportedModelError
from anchorlens.models.library_errors import checkpoint_errors

# Tensors that transformers ignores; without them a Llama 3.x model has unscaled rope.
DROPPED_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")
# Type of a value -> its bytes; texts and lists have a length of their own.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT_TYPE = 8
_LIST_TYPE = 9
# Fewest bytes of an entry of the header: of a key with a value, and of a tensor.
_KEY_BYTES = 8 + 4 + 1
_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


def check_gguf(path: Path) -> None:
    """Raise an error if a GGUF file is damaged, not mapped, or read incompletely by transformers;
    weights are not read.
    """
    subject = f"{path} is not a GGUF file, or is truncated, and"
    with checkpoint_errors(subject, "Download it again."):
        _check_header(path)
        reader = GGUFReader(path)
        end = max(
            (int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors), default=0
        )
    if not 0 < end <= path.stat().st_size:
        raise CheckpointError(
            f"{path} is truncated: its tensors need {end} bytes. Download it again."
        )
    architecture = _field(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path}: GGUF files of architecture {architecture!r} are not mapped. Mapped:"
            f" {', '.join(ARCHITECTURES)}."
        )
    dropped = [tensor.name for tensor in reader.tensors if tensor.name in DROPPED_TENSORS]
    scaling = _field(reader, f"{architecture}.rope.scaling.type")
    if dropped or scaling != "none":
        raise UnsupportedModelError(
            f"{path} holds {dropped[0] if dropped else f'rope scaling of type {scaling!r}'}, which"
            " transformers leaves out when it reads a GGUF file."
            " Load the original Hugging Face checkpoint instead."
        )


def _check_header(path: Path) -> None:
    """Raise ValueError if the header of a GGUF file counts more entries than its bytes can hold, or
    has lists inside lists: the reader would go through all of them.
    """
    with path.open("rb") as file:
        left = path.stat().st_size
        magic, version, n_tensors, n_keys = struct.unpack("<4sIQQ", _take(file, 24))
        if magic != b"GGUF" or version > 0xFFFF:
            return  # the reader says so, and reads the other order of bytes
        if n_keys * _KEY_BYTES + n_tensors * _TENSOR_BYTES > left:
            raise ValueError(f"{n_keys} keys and {n_tensors} tensors in {left} bytes")
        for _ in range(n_keys):
            _skip_text(file, left)
            _skip_value(file, _number(file, 4), left)


def _skip_value(file: BinaryIO, kind: int, left: int) -> None:
    if kind == _TEXT_TYPE:
        _skip_text(file, left)
        return
    if kind != _LIST_TYPE:
        _take(file, _VALUE_BYTES[kind])
        return
    inner = _number(file, 4)
    count = _number(file, 8)
    if inner == _LIST_TYPE:
        raise ValueError("a list of lists")
    if inner == _TEXT_TYPE:
        if count * 8 > left:
            raise ValueError(f"a list of {count} texts in {left} bytes")
        for _ in range(count):
            _skip_text(file, left)
        return
    n_bytes = count * _VALUE_BYTES[inner]
    if n_bytes > left:
        raise ValueError(f"a list of {count} values in {left} bytes")
    file.seek(n_bytes, 1)


def _skip_text(file: BinaryIO, left: int) -> None:
    n_bytes = _number(file, 8)
    if n_bytes > left:
        raise ValueError(f"a text of {n_bytes} bytes in {left} bytes")
    file.seek(n_bytes, 1)


def _number(file: BinaryIO, n_bytes: int) -> int:
    return int.from_bytes(_take(file, n_bytes), "little")


def _take(file: BinaryIO, n_bytes: int) -> bytes:
    found = file.read(n_bytes)
    if len(found) < n_bytes:
        raise ValueError("it ends inside its header")
    return found


def _field(reader: GGUFReader, name: str) -> str:
    field = reader.get_field(name)
    return "none" if field is None else str(field.contents())
