"""What a result must record about the model that it came from."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from transformer_lens import HookedTransformer
from transformers import PreTrainedTokenizerBase

from anchorlens.models.streaming import Stream, stream_of

CARD = "anchorlens_card"
# The second checksum weighs entries by their place up to this prime, so that swapped entries are noticed too.
PRIME = 65_521
# Numbers of a transposed tensor that are put in order at once.
_PIECE = 2**24
# What was hashed before: a quicker checksum of all of it, and the hash.
_WEIGHTS: WeakKeyDictionary[HookedTransformer, tuple[str, str]] = WeakKeyDictionary()
_TOKENIZERS: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[str, str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class ModelCard:
    """Provenance of a loaded model; a field is None where it cannot be known (a model that somebody else made).

    Attributes:
        name: As the user gave it; for a path its last part.
        source: ``packaged``, ``hub``, ``directory``, ``gguf``, ``huggingface`` (a live model) or ``hooked`` (a live one).
        revision: Commit on the hub, or the release of a packaged model.
        architecture: Hugging Face's class name.
        n_layers: L.
        d_model: Width of the residual stream.
        n_heads: Query heads per layer.
        n_params: Parameters of the language model, tied weights counted once; of a live HookedTransformer all that it holds.
        device: Where the model was put.
        dtype: Type of its parameters.
        weights_sha256: See :func:`weights_sha256`.
        tokenizer_sha256: See :func:`tokenizer_sha256`.
        parity: Largest |Δ log-probability| against Hugging Face at load time, in nats.
        adds_bos: Whether the tokenizer puts BOS before text by itself.
    """

    name: str
    source: str
    revision: str | None
    architecture: str | None
    n_layers: int
    d_model: int
    n_heads: int
    n_params: int
    device: str
    dtype: str
    weights_sha256: str
    tokenizer_sha256: str | None
    parity: float | None
    adds_bos: bool | None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON types, for ``run.json``."""
        return asdict(self)


def make_card(
    model: HookedTransformer,
    name: str,
    source: str,
    revision: str | None = None,
    architecture: str | None = None,
    parity: float | None = None,
    n_params: int | None = None,
) -> ModelCard:
    """The card of a model, its hashes computed."""
    cfg = model.cfg
    tokenizer = model.tokenizer
    return ModelCard(
        name=name,
        source=source,
        revision=revision,
        architecture=architecture,
        n_layers=int(cfg.n_layers),
        d_model=int(cfg.d_model),
        n_heads=int(cfg.n_heads),
        n_params=n_params or sum(parameter.numel() for parameter in model.parameters()),
        device=str(model.embed.W_E.device),
        dtype=str(model.embed.W_E.dtype).removeprefix("torch."),
        weights_sha256=weights_sha256(model),
        tokenizer_sha256=None if tokenizer is None else tokenizer_sha256(tokenizer),
        parity=parity,
        adds_bos=None if tokenizer is None else adds_bos(tokenizer),
    )


def name_of(model: HookedTransformer) -> str:
    """The name on the model's card; its weights are not read."""
    card = getattr(model, CARD, None)
    return card.name if isinstance(card, ModelCard) else str(model.cfg.model_name or "custom")


def card_of(model: HookedTransformer) -> ModelCard:
    """The card that load_model attached, or one of what can be seen of a model that somebody else made.

    Weights that were changed since load_model made the card get a card of their own: without parity and revision, which are
    those of the model that was loaded.

    Args:
        model: A HookedTransformer; its weights are read once.

    Returns:
        Name, sizes, device, type and hashes.
    """
    card = getattr(model, CARD, None)
    if not isinstance(card, ModelCard):
        return make_card(model, name_of(model), "hooked", architecture=model.cfg.original_architecture)
    weights = weights_sha256(model)
    return card if weights == card.weights_sha256 else replace(card, weights_sha256=weights, parity=None, revision=None)


def weights_sha256(model: HookedTransformer) -> str:
    """A hash of all parameters that costs one pass over them, on any device, and notices every single changed number.

    Per parameter, sorted by name, the sha256 takes one line ``name dtype shape s1 s2``. With b_i the bits of its i-th entry
    (row-major) as a signed integer, s1 = Σ b_i and s2 = Σ b_i·(1 + i mod 65521), both modulo 2^64: exact, so the order of
    summation and the device do not matter. Buffers (rotary tables, masks) are no weights and are left out.

    The weights are read at every call, because nothing else tells that they changed (torch's version counters miss what is
    written through ``.data`` or numpy). A model that was hashed before is read in the order of its memory, which for the
    transposed weights of a loaded model is some times faster; where these sums are the same as then, so is the hash.

    Of a streamed model the layers are read one after the other, and again only where size or time of a file has changed.
    """
    stream = stream_of(model)
    read = () if stream is None else (_streamed_lines(stream),)
    here = (named for named in sorted(model.named_parameters()) if not any(named[0] in lines for lines in read))
    parameters = [(name, tensor.detach()) for name, tensor in here]
    if all(tensor.is_contiguous() for _, tensor in parameters):
        return _digest(parameters, *read)
    in_memory = _digest(((f"{name} {tensor.stride()}", _as_it_lies(tensor)) for name, tensor in parameters), *read)
    known = _WEIGHTS.get(model)
    if known is None or known[0] != in_memory:
        known = _WEIGHTS[model] = (in_memory, _digest(parameters, *read))
    return known[1]


def _as_it_lies(tensor: Tensor) -> Tensor:
    """The same numbers with the axes in the order of the memory."""
    return tensor.permute(sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis)))


def _streamed_lines(stream: Stream) -> dict[str, str]:
    """Lines of the layers' parameters; as they were read, while the files stay as they are."""
    stamp = stream.skeleton.files.stamp()
    if stream.known is None or stream.known[0] != stamp:
        lines: dict[str, str] = {}
        for layer, block in enumerate(stream.model.blocks):
            with stream.held(layer):
                lines |= _lines((f"blocks.{layer}.{name}", parameter) for name, parameter in block.named_parameters())
        stream.known = stamp, lines
    return stream.known[1]


def _digest(tensors: Iterable[tuple[str, Tensor]], *read: Mapping[str, str]) -> str:
    """The hash of tensors, and of lines that were made of others before."""
    lines = _lines(tensors)
    for others in read:
        lines |= others
    return hashlib.sha256("".join(line for _, line in sorted(lines.items())).encode()).hexdigest()


def _lines(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """What :func:`weights_sha256` takes of each tensor, by its name."""
    lines: dict[str, str] = {}
    for name, tensor in tensors:
        first, second = _checksums(tensor.detach())
        kind, shape = str(tensor.dtype).removeprefix("torch."), "x".join(map(str, tensor.shape))
        lines[name] = f"{name} {kind} {shape} {first} {second}\n"
    return lines


def _checksums(tensor: Tensor) -> tuple[int, int]:
    """The two sums of :func:`weights_sha256`, from one pass: entries of the same weight are summed first."""
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[tensor.element_size()]
    columns, seen = torch.zeros(min(PRIME, tensor.numel()), dtype=torch.int64), 0
    for piece in _pieces(tensor):
        flat = piece.reshape(-1).view(integers)
        # What is left of the row that the piece before began, whole rows, the beginning of a row.
        head, tail = flat.split([n := min(-seen % PRIME, len(flat)), len(flat) - n])
        at = seen % PRIME
        columns[at : at + len(head)] += head.to(device="cpu", dtype=torch.int64)
        whole = len(tail) // PRIME * PRIME
        if whole:
            columns += _column_sums(tail[:whole].view(-1, PRIME))
        rest = tail[whole:]
        columns[: len(rest)] += rest.to(device="cpu", dtype=torch.int64)
        seen += len(flat)
    weights = torch.arange(1, len(columns) + 1)
    return int(columns.sum()) % 2**64, int((columns * weights).sum()) % 2**64


def _column_sums(rows: Tensor) -> Tensor:
    """int64 on the CPU."""
    if rows.device.type == "cpu":
        # On a busy machine numpy's one thread is quicker than torch's several, which wait for each other.
        return torch.from_numpy(rows.numpy().sum(0, dtype=np.int64))
    return rows.sum(0, dtype=torch.int64).cpu()


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    """A tensor in parts along its first axis, where all of it in row-major order would be a copy that takes memory."""
    if tensor.is_contiguous() or tensor.numel() <= _PIECE:
        return (tensor,)
    return tensor.split(max(1, _PIECE * len(tensor) // tensor.numel()))


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of what decides a tokenizer's ids and chat prompts: its model, special tokens and chat template.

    Truncation and padding are left out: they change with the last call, not with the tokenizer.
    """
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if name != "pad_token"}
    content: dict[str, Any] = {"special": special, "chat_template": tokenizer.chat_template, "adds_bos": adds_bos(tokenizer)}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _json_sha256(content | {"model": {"class": type(tokenizer).__name__, "vocab": tokenizer.get_vocab()}})
    # Sorting a large vocabulary takes ten times as long as writing it out.
    text = backend.to_str()
    written = _json_sha256(content | {"model": text})
    known = _TOKENIZERS.get(tokenizer)
    if known is None or known[0] != written:
        model = json.loads(text)
        model.pop("truncation", None)
        model.pop("padding", None)
        known = _TOKENIZERS[tokenizer] = (written, _json_sha256(content | {"model": model}))
    return known[1]


def _json_sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode("utf8")).hexdigest()


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer puts its BOS token before text by itself."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return False
    ids = tokenizer("a")["input_ids"]
    return bool(len(ids)) and ids[0] == bos
