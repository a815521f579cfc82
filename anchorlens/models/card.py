"""Model cards: name, sizes and origin of a model, with hashes of weights and tokenizer."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import gcd
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from anchorlens.errors import InputError
from anchorlens.models.adapter import (
    Adapter,
    LensModel,
    hook_fingerprints,
    is_bridge,
    is_hooked,
    stream_of,
    unwrap_model,
)
from anchorlens.models.live_names import name_of_lens_model

CARD = "anchorlens_card"
# Text whose tokens are compared to see whether a tokenizer changed.
_PROBE = "The capital of France is Paris, in 1789. <b>I'm</b> naïve\n\t42"
# Modulus of the index weights in the second sum, which detects swapped entries.
PRIME = 65_521
# Maximum number of entries that are summed at once.
PIECE = 2**24
# Size of an entry in bytes -> integers of that size.
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
# Entries of a parameter that are looked at to see whether it changed, unless it has fewer.
SAMPLE = 4096


class _Hashed(NamedTuple):
    """Hashes of a model's weights.

    Attributes:
        stamp: Traces that every write leaves (:func:`_stamp`).
        quick: Hash of the weights in memory order.
        sha256: Result of :func:`weights_sha256`.
    """

    stamp: object
    quick: str
    sha256: str


_hashes: WeakKeyDictionary[nn.Module, _Hashed] = WeakKeyDictionary()
# Tokenizer -> what changes with it (:func:`_tokenizer_stamp`), and its hash.
_tokenizers: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[object, str]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Provenance of a loaded model; unknown fields are None.

    Examples:
        >>> import anchorlens as al
        >>> card = al.model_card(al.load_model("smollm2-135m-instruct"))  # doctest: +SKIP
        >>> card.backend, card.dtype  # doctest: +SKIP
        ('hooked', 'float32')

    Attributes:
        name: Name as given, or as a live model states it; the last part of a path.
        source: ``packaged``, ``hub``, ``directory``, ``gguf``, or a live model: ``huggingface``,
            ``hooked`` or ``bridge``.
        revision: Commit on the hub, or release of a packaged model.
        architecture: Class name in Hugging Face transformers.
        n_layers: Number of layers L.
        d_model: Width of the residual stream.
        n_heads: Number of query heads per layer.
        n_params: Number of parameters of the language model, tied weights counted once; of a live
            TransformerLens model all.
        device: Device of the embedding.
        dtype: Data type of the parameters.
        weights_sha256: Hash of the weights (:func:`weights_sha256`).
        tokenizer_sha256: Hash of the tokenizer (:func:`tokenizer_sha256`).
        parity: Maximum |Δ log-probability| against Hugging Face at load time, in nats.
        adds_bos: Whether the tokenizer adds BOS by default.
        backend: ``hooked`` or ``bridge``.
        weights_processed: Whether norms are folded into the weights or weights are centred, which
            changes inner states.
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
    backend: str
    weights_processed: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-compatible dictionary, for ``run.json``."""
        return asdict(self)


def make_card(
    model: LensModel,
    name: str,
    source: str,
    revision: str | None = None,
    architecture: str | None = None,
    parity: float | None = None,
    n_params: int | None = None,
) -> ModelCard:
    """Make the card of a model and compute its hashes."""
    cfg = model.cfg
    tokenizer = model.tokenizer
    embedding = next(model.parameters())
    return ModelCard(
        name=name,
        source=source,
        revision=revision,
        architecture=architecture,
        n_layers=int(cfg.n_layers),
        d_model=int(cfg.d_model),
        n_heads=int(cfg.n_heads),
        n_params=n_params or sum(parameter.numel() for parameter in model.parameters()),
        device=str(embedding.device),
        dtype=str(embedding.dtype).removeprefix("torch."),
        weights_sha256=weights_sha256(model),
        tokenizer_sha256=None if tokenizer is None else tokenizer_sha256(tokenizer),
        parity=parity,
        adds_bos=None if tokenizer is None else adds_bos(tokenizer),
        backend=backend_of(model),
        weights_processed=_has_processed_weights(model),
    )


def backend_of(model: LensModel) -> str:
    """Return ``hooked`` or ``bridge``."""
    return "hooked" if is_hooked(model) else "bridge"


def architecture_of(model: LensModel) -> str | None:
    """Return the class name of a model in Hugging Face transformers; None if unknown."""
    return (
        type(model.original_model).__name__ if is_bridge(model) else model.cfg.original_architecture
    )


def _has_processed_weights(model: LensModel) -> bool:
    if is_bridge(model):
        return bool(getattr(model, "_weights_processed", False))
    return str(model.cfg.normalization_type).endswith("Pre")


def name_of(model: LensModel) -> str:
    """Return the model's name without reading its weights."""
    card = getattr(model, CARD, None)
    return card.name if isinstance(card, ModelCard) else name_of_lens_model(model)


def model_card(model: LensModel) -> ModelCard:
    """Return the card that :func:`anchorlens.load_model` attached, or a new card for another
    TransformerLens model.

    Args:
        model: HookedTransformer or TransformerBridge; its weights are read once.

    Returns:
        Card with the current hash of the weights. If they have changed since loading, parity and
        revision are None.

    Examples:
        >>> import anchorlens as al
        >>> al.model_card(al.load_model("smollm2-135m-instruct")).n_layers  # doctest: +SKIP
        30
    """
    model = unwrap_model(model)
    card = getattr(model, CARD, None)
    if not isinstance(card, ModelCard):
        return make_card(
            model, name_of(model), backend_of(model), architecture=architecture_of(model)
        )
    weights = weights_sha256(model)
    processed = _has_processed_weights(model)
    if (weights, processed) == (card.weights_sha256, card.weights_processed):
        return card
    return replace(
        card, weights_sha256=weights, weights_processed=processed, parity=None, revision=None
    )


def model_record(adapter: Adapter) -> dict[str, Any]:
    """Return the record of a model for ``run.json``: its card, and the fingerprints of hooks that a
    user attached.
    """
    record = model_card(adapter.model).to_dict()
    hooks = hook_fingerprints(adapter)
    return record | {"hooks": hooks} if hooks else record


def weights_sha256(model: LensModel) -> str:
    """Compute a hash of all parameters in one pass over them, on any device.

    The sha256 is over one line ``name dtype shape s1 s2`` per parameter, sorted by name. With b_i
    the bits of the i-th entry (row-major) as a signed integer, s1 = Σ b_i and s2 = Σ b_i·(1 + i mod
    65521), both modulo 2^64. Buffers are left out.

    A model that was hashed before is read again only if a parameter may have changed: if torch
    counted a write, if the memory is another one, or if one of :data:`SAMPLE` or more entries
    differs. These lie in every row and column, so that an ablation through ``.data`` is seen; a
    write of single entries through ``.data`` may not be. It is then read in memory order, which is
    several times faster. Layers of a streamed model are read again only if the size or mtime of a
    file has changed.
    """
    stream = stream_of(model)
    streamed = {} if stream is None else _lines_of_stream(stream)
    parameters: dict[str, Tensor] = {}
    for name, tensor in model.named_parameters():
        if name in streamed:
            continue
        parameters[name] = tensor.detach()
    stamp = (_stamp(parameters), _digest(streamed))
    known = _hashes.get(model)
    if known is not None and known.stamp == stamp:
        return known.sha256
    quick = _digest(
        _lines({f"{name} {t.stride()}": _in_memory_order(t) for name, t in parameters.items()})
        | streamed
    )
    if known is not None and known.quick == quick:
        sha256 = known.sha256
    else:
        sha256 = _digest(_lines(parameters) | streamed)
    _hashes[model] = _Hashed(stamp, quick, sha256)
    return sha256


def _stamp(parameters: Mapping[str, Tensor]) -> tuple[object, ...]:
    """Return what changes when parameters are written: places in memory, torch's counts of writes,
    and sums over samples of the entries, which are copied from the device at once.
    """
    places: list[object] = []
    sums: list[Tensor] = []
    for name, tensor in parameters.items():
        version = None if tensor.is_inference() else tensor._version
        kind = (tensor.dtype, tuple(tensor.shape), tensor.stride())
        places.append((name, tensor.data_ptr(), version, *kind))
        sums.append(_sum_of_sample(tensor))
    if not sums:
        return tuple(places)
    together = torch.stack([one.to(sums[0].device) for one in sums])
    return (*places, *together.tolist())


def _sum_of_sample(tensor: Tensor) -> Int[Tensor, ""]:
    """Return the weighted sum of the bits of entries that lie in every row and column."""
    entries = _in_memory_order(tensor)
    if not entries.is_contiguous():
        entries = entries.contiguous()
    entries = entries.view(-1)
    step = max(1, len(entries) // max(SAMPLE, 4 * max(tensor.shape, default=1)))
    # Without a common divisor, the steps go through all columns.
    while step > 1 and any(gcd(step, size) > 1 for size in tensor.shape):
        step -= 1
    bits = entries[::step].view(_INTEGERS[tensor.element_size()]).long()
    weights = torch.arange(1, len(bits) + 1, device=bits.device)
    return (bits * weights).sum()


def _in_memory_order(tensor: Tensor) -> Tensor:
    return tensor.permute(sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis)))


def _lines_of_stream(stream: Any) -> dict[str, str]:
    """Return the lines of the layers' parameters; cached lines if the files are unchanged."""
    stamp = stream.loader.files.stamp()
    if stream.known is None or stream.known[0] != stamp:
        lines: dict[str, str] = {}
        for layer, block in enumerate(stream.model.blocks):
            with stream.load_layer(layer):
                lines |= _lines_of_block(layer, block)
        stream.known = stamp, lines
    return stream.known[1]


def _digest(lines: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(line for _, line in sorted(lines.items())).encode()).hexdigest()


def _lines_of_block(layer: int, block: Any) -> dict[str, str]:
    """Return the lines of a layer's parameters."""
    named = block.named_parameters()
    return _lines({f"blocks.{layer}.{name}": parameter for name, parameter in named})


def _lines(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return name -> line of :func:`weights_sha256` for each tensor."""
    lines: dict[str, str] = {}
    for name, tensor in tensors.items():
        first, second = _checksums(tensor.detach())
        kind = str(tensor.dtype).removeprefix("torch.")
        shape = "x".join(map(str, tensor.shape))
        lines[name] = f"{name} {kind} {shape} {first} {second}\n"
    return lines


def _checksums(tensor: Tensor) -> tuple[int, int]:
    """Compute the two sums of :func:`weights_sha256` in one pass; entries with equal index weight
    are summed first.
    """
    integers = _INTEGERS[tensor.element_size()]
    device = tensor.device
    columns = torch.zeros(PRIME, dtype=torch.int64, device=device)
    seen = 0
    rows = torch.atleast_1d(tensor)
    for piece in rows.split(max(1, PIECE * len(rows) // max(1, rows.numel()))):
        entries = piece.reshape(-1).view(integers)
        while len(entries):
            # Rest of a row of PRIME entries, then whole rows, then the start of a row.
            start = seen % PRIME
            n = len(entries) // PRIME * PRIME if start == 0 else 0
            n = n or min(PRIME - start, len(entries))
            width = min(n, PRIME)
            columns[start : start + width] += _column_sums(entries[:n].view(-1, width))
            entries = entries[n:]
            seen += n
    weights = torch.arange(1, PRIME + 1, device=device)
    sums = torch.stack([columns.sum(), (columns * weights).sum()])
    first, second = sums.tolist()  # the only copy from a GPU
    return first % 2**64, second % 2**64


def _column_sums(rows: Tensor) -> Tensor:
    """Sum over the first axis, as int64."""
    if rows.device.type == "cpu":  # numpy's single thread is faster than torch on a busy machine
        return torch.from_numpy(rows.numpy().sum(0, dtype=np.int64))
    return rows.sum(0, dtype=torch.int64)


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Compute a hash of a tokenizer's model, special tokens and chat template; truncation and
    padding are left out.

    A tokenizer that was hashed before is read again only if its sizes, special tokens, template,
    steps before and behind its model, or the tokens of a text have changed.
    """
    stamp = _tokenizer_stamp(tokenizer)
    known = _tokenizers.get(tokenizer)
    if known is None or known[0] != stamp:
        known = _tokenizers[tokenizer] = (stamp, _hash_tokenizer(tokenizer))
    return known[1]


def _tokenizer_stamp(tokenizer: PreTrainedTokenizerBase) -> object:
    """Return what changes with a tokenizer and takes no time to read."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts: list[object] = []
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(backend, name, None)
        parts.append(None if part is None else part.__getstate__())
    return (
        id(backend),
        len(tokenizer),
        str(sorted(tokenizer.special_tokens_map.items(), key=str)),
        str(tokenizer.chat_template),
        tuple(tokenizer(_PROBE)["input_ids"]),
        tuple(parts),
    )


def _hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    special.pop("pad_token", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        model: dict[str, Any] = {"class": type(tokenizer).__name__, "vocab": tokenizer.get_vocab()}
    else:
        model = json.loads(backend.to_str())
        for name in ("truncation", "padding"):
            model.pop(name, None)
    content = {
        "special": special,
        "chat_template": tokenizer.chat_template,
        "adds_bos": adds_bos(tokenizer),
        "model": model,
    }
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, default=str).encode("utf8")
    ).hexdigest()


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the tokenizer adds its BOS token by default."""
    bos = tokenizer.bos_token_id
    return bos is not None and list(tokenizer("a")["input_ids"][:1]) == [bos]


def resolve_add_bos(tokenizer: PreTrainedTokenizerBase, add_bos: bool | None) -> bool:
    """Return whether BOS is added; if None, as the tokenizer does.

    Raise InputError if the tokenizer has no BOS.
    """
    if add_bos and tokenizer.bos_token_id is None:
        raise InputError(
            "add_bos=True: the tokenizer has no BOS token. Leave add_bos out.", argument="add_bos"
        )
    return adds_bos(tokenizer) if add_bos is None else add_bos


def with_bos(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], add_bos: bool) -> list[int]:
    """Return token ids that begin with BOS if ``add_bos``; a BOS that is there already is not
    repeated.
    """
    bos = tokenizer.bos_token_id
    if add_bos and list(ids[:1]) != [bos]:
        return [bos, *ids]  # pyright: ignore[reportReturnType]
    return list(ids)
