"""Whether a GGUF file is whole, and what it must not hold because transformers would read it as another model than it is."""

import struct
from pathlib import Path

from anchorlens.errors import CheckpointError, UnsupportedModelError

GGUF_MAGIC = b"GGUF"
VERSIONS = (2, 3)
# transformers' reader drops these tensors: without them a Llama 3.x model runs with unscaled rope.
DROPPED_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")


def check_gguf(path: Path) -> None:
    """Read the beginning and the directory of a GGUF file (no weights) and refuse what would load damaged or quietly wrong.

    Raises:
        CheckpointError: Not a GGUF file, cut off, or its tables cannot be read.
        UnsupportedModelError: An architecture without a mapping, or rope scaling that transformers leaves out.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}).") from error
    if head[:4] != GGUF_MAGIC or len(head) < 8:
        raise CheckpointError(f"{path} is not a GGUF file: it does not begin with the letters GGUF. Download it again.")
    version = struct.unpack("<I", head[4:8])[0]
    if version not in VERSIONS:
        raise CheckpointError(f"{path} is a GGUF file of version {version}; versions 2 and 3 can be read.")
    _audit(path)


def _audit(path: Path) -> None:
    """What a GGUF file's own tables say about its length, architecture and rope."""
    # Read in here: most models are no GGUF files.
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged or truncated ({error}). Download it again.") from error
    size = path.stat().st_size
    end = max((int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors), default=0)
    if end == 0 or end > size:
        raise CheckpointError(f"{path} is truncated: it has {size} bytes, its tensors need {end}. Download it again.")
    field = reader.get_field("general.architecture")
    architecture = str(field.contents()) if field is not None else "unknown"
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModelError(
            f"{path} holds the architecture {architecture!r}; GGUF files of these are mapped: {known}."
        )
    dropped = [tensor.name for tensor in reader.tensors if tensor.name in DROPPED_TENSORS]
    scaling = reader.get_field(f"{architecture}.rope.scaling.type")
    kind = str(scaling.contents()) if scaling is not None else "none"
    if dropped or kind != "none":
        what = dropped[0] if dropped else f"rope scaling of type {kind!r}"
        raise UnsupportedModelError(
            f"{path} holds {what}, which transformers leaves out when it reads a GGUF file: the model would run with the wrong "
            "rope. Load the original Hugging Face checkpoint instead."
        )
