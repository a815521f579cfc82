"""What a GGUF file must not hold, because transformers would read it as another model than it is."""

from pathlib import Path

from gguf import GGUFReader

from anchorlens.errors import CheckpointError, UnsupportedModelError

# transformers' reader drops these tensors: without them a Llama 3.x model runs with unscaled rope.
DROPPED_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")


def audit_gguf(path: Path) -> None:
    """Read the directory of a GGUF file (no weights) and refuse what would load damaged or quietly wrong.

    Raises:
        CheckpointError: Truncated, or its tables cannot be read.
        UnsupportedModelError: An architecture without a mapping, or rope scaling that transformers leaves out.
    """
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
