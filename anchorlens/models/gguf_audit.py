"""Checks of a GGUF file: that it is complete, and that transformers reads it without loss."""

from pathlib import Path

from gguf import GGUFReader

from anchorlens.errors import CheckpointError, UnsupportedModelError

# Tensors that transformers ignores; without them a Llama 3.x model has unscaled rope.
DROPPED_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")


def check_gguf(path: Path) -> None:
    """Raise an error if a GGUF file is damaged, not mapped, or read incompletely by transformers; weights are not read."""
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise CheckpointError(f"{path} is not a GGUF file, or is truncated ({error}). Download it again.") from error
    end = max((int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors), default=0)
    if not 0 < end <= path.stat().st_size:
        raise CheckpointError(f"{path} is truncated: its tensors need {end} bytes. Download it again.")
    architecture = _field(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path}: GGUF files of architecture {architecture!r} are not mapped. Mapped: {', '.join(ARCHITECTURES)}."
        )
    dropped = [tensor.name for tensor in reader.tensors if tensor.name in DROPPED_TENSORS]
    scaling = _field(reader, f"{architecture}.rope.scaling.type")
    if dropped or scaling != "none":
        raise UnsupportedModelError(
            f"{path} holds {dropped[0] if dropped else f'rope scaling of type {scaling!r}'}, which transformers leaves out when it "
            "reads a GGUF file. Load the original Hugging Face checkpoint instead."
        )


def _field(reader: GGUFReader, name: str) -> str:
    field = reader.get_field(name)
    return "none" if field is None else str(field.contents())
