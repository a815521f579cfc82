"""Blocks whose weights are read from the checkpoint's files when they run, and dropped afterwards: models larger than memory.

A streamed model is a HookedTransformer like any other. What belongs to no layer is there all the time (embedding and unembedding
as views of their files, where the type allows it); the parameters of its blocks are on ``meta`` until :func:`held` brings them, for
the length of a ``with`` block. A forward pass does so block by block; the cone engine once a layer, for all that goes through it.
While a layer computes, a thread brings the next one.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens import HookedTransformer
from transformer_lens.components.transformer_block import TransformerBlock

from anchorlens.models.shards import touch
from anchorlens.models.skeleton import Skeleton, filled
from anchorlens.models.weights import check_names, fitted

STREAM = "anchorlens_stream"


@dataclass(frozen=True)
class Streamed:
    """What streaming takes, as plain numbers.

    Attributes:
        read_bytes: Bytes of weights that are read in every pass through all layers, in the model's type.
        held_bytes: Most bytes of weights in memory at once: two layers, a matrix that TransformerLens's MLP transposes, the
            parts of experts that are joined, and embeddings where they are no views of a file.
        rate: Bytes a second at which they were read so far, preparation included.
    """

    read_bytes: int
    held_bytes: int
    rate: float


@dataclass(frozen=True)
class _Brought:
    """A layer's weights, ready on the device when ``ready`` has come."""

    weights: dict[str, Tensor]
    ready: Any = None

    def taken(self, device: torch.device) -> dict[str, Tensor]:
        """For the current stream of the device, which waits for them, and which their memory belongs to from here on."""
        if self.ready is not None:
            current = torch.cuda.current_stream(device)
            current.wait_event(self.ready)
            for tensor in self.weights.values():
                if tensor.is_cuda:
                    tensor.record_stream(current)
        return self.weights


class Stream:
    """The weights of a model's blocks on their way from its files.

    Args:
        skeleton: Reads and converts them.
        model: Its blocks' parameters are on ``meta``.
        device: Where they are wanted.
    """

    def __init__(self, skeleton: Skeleton, model: HookedTransformer, device: torch.device) -> None:
        self.skeleton, self.model, self.device = skeleton, model, device
        self.n_layers = skeleton.n_layers
        self.resident_bytes = 0
        self._next: tuple[int, Future[_Brought]] | None = None
        self._held: dict[int, int] = {}
        # One thread: the skeleton is filled with one layer at a time.
        self._thread = ThreadPoolExecutor(1, "anchorlens-stream")
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._bytes, self._seconds = 0, 0.0
        self._layer_bytes = [sum(p.numel() * p.element_size() for p in block.parameters()) for block in model.blocks]
        # Sums of weights that were read, with the stamp of the files that they stood in.
        self.known: tuple[object, dict[str, str]] | None = None

    @property
    def sizes(self) -> Streamed:
        """What it takes."""
        rate = self._bytes / self._seconds if self._seconds else float("inf")
        matrix = max(p.numel() * p.element_size() for p in self.model.blocks.parameters())
        held = 2 * max(self._layer_bytes) + matrix + self.skeleton.joined_bytes + self.resident_bytes
        return Streamed(sum(self._layer_bytes), held, rate)

    @contextmanager
    def held(self, layer: int) -> Iterator[None]:
        """The weights of a layer are there in a ``with`` block, while the next layer's are brought.

        Raises:
            CheckpointError: They cannot be read any more.
        """
        if self._held.get(layer):  # a block that is held runs as a module
            yield
            return
        weights = self._take(layer)
        self._held[layer] = 1
        try:
            with filled(self.model.blocks[layer], weights):
                yield
        finally:
            self._held[layer] = 0

    def _take(self, layer: int) -> dict[str, Tensor]:
        number, coming = self._next or (-1, None)
        self._next = None
        if coming is None or number != layer:
            coming = self._thread.submit(self._bring, layer)
        brought = coming.result()
        if layer + 1 < self.n_layers:
            self._next = (layer + 1, self._thread.submit(self._bring, layer + 1))
        return brought.taken(self.device)

    def _bring(self, layer: int) -> _Brought:
        """A layer's weights under TransformerLens's names, on the device and in the model's type."""
        started = time.perf_counter()
        # What a thread starts with is torch's own: gradients, no default device of the user's, and no side stream.
        side: AbstractContextManager[Any] = nullcontext() if self._side is None else torch.cuda.stream(self._side)
        with torch.no_grad(), torch.device("cpu"), side:
            read = self.skeleton.joined(self.skeleton.read_layer(layer), self._placed)
            state = self.skeleton.layer_state(read, self.model.cfg, self.device)
            block = self.model.blocks[layer]
            wanted = dict(block.named_parameters())
            check_names(wanted.keys() | dict(block.named_buffers()).keys() & state.keys(), state)
            weights = {
                name: _dense(fitted(f"blocks.{layer}.{name}", tensor, wanted[name].shape, self.device, self.model.cfg.dtype))
                if name in wanted
                else tensor
                for name, tensor in state.items()
            }
            ready = None if self._side is None else self._side.record_event()
        self._seconds += time.perf_counter() - started
        self._bytes += self._layer_bytes[layer]
        return _Brought(weights, ready)

    def _placed(self, tensor: Tensor) -> Tensor:
        """A tensor of the files on the device, in the model's type; a view of the file where that is what it is already."""
        dtype = self.model.cfg.dtype
        if self.device.type == "cpu":
            return touch(tensor) if tensor.dtype == dtype else tensor.to(dtype)
        if self.device.type == "cuda":  # pinned, so that the copy does not wait
            return tensor.pin_memory().to(self.device, non_blocking=True).to(dtype)
        return tensor.to(self.device).to(dtype)

    def fill_ends(self) -> None:
        """Give the model all that belongs to no layer; once, when it is made."""
        model, dtype = self.model, self.model.cfg.dtype
        raw = self.skeleton.read_ends()
        with torch.no_grad():
            placed = {name: tensor.to(self.device).to(dtype) for name, tensor in raw.items()}
            state = self.skeleton.ends_state(placed, model.cfg, self.device)
        wanted = {name: p for name, p in model.named_parameters() if not name.startswith("blocks.")}
        check_names(wanted.keys(), state)
        own: dict[int, int] = {}
        for name, parameter in wanted.items():
            tensor = fitted(name, state[name], parameter.shape, self.device, dtype)
            owner, _, leaf = name.rpartition(".")
            model.get_submodule(owner)._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
            own[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        of_files = {tensor.untyped_storage().data_ptr() for tensor in raw.values()}
        self.resident_bytes = sum(n for at, n in own.items() if at not in of_files)


def _dense(tensor: Tensor) -> Tensor:
    """A tensor that lies in one piece, in the order of its axes; a copy of one with gaps, which every product would copy again."""
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor if extent == tensor.numel() else tensor.clone(memory_format=torch.preserve_format)


class StreamedBlock(TransformerBlock):
    """A block that holds its weights while it runs. Hooks, names and parts are those of any block."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """See :class:`transformer_lens.components.TransformerBlock`."""
        with held(self):
            return super().forward(*args, **kwargs)


def attach(stream: Stream) -> None:
    """Make the model's blocks streamed ones.

    Their class is what changes: a hook or a wrapped forward would be taken for the user's own, which the cone engine has to refuse.
    """
    object.__setattr__(stream.model, STREAM, stream)
    for layer, block in enumerate(stream.model.blocks):
        block.__class__ = StreamedBlock
        object.__setattr__(block, STREAM, lambda layer=layer: stream.held(layer))


def held(block: nn.Module) -> AbstractContextManager[None]:
    """The weights of a block are there in a ``with`` block; those of one that is not streamed always are."""
    bring: Callable[[], AbstractContextManager[None]] | None = getattr(block, STREAM, None)
    return nullcontext() if bring is None else bring()


def stream_of(model: HookedTransformer) -> Stream | None:
    """Where a model's weights come from; None where they are in memory."""
    return getattr(model, STREAM, None)


__all__ = ["Stream", "Streamed", "StreamedBlock", "attach", "held", "stream_of"]
