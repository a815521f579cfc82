"""Models larger than memory: blocks whose weights are read from the checkpoint's files when they run, and dropped afterwards.

Parameters of blocks are on ``meta`` until :func:`held` loads them for a ``with`` block, while a thread reads the next layer;
embeddings, last norm and unembedding are always in memory.
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
from typing_extensions import override

from anchorlens.models.layer_loader import LayerLoader, set_parameter, substitute_parameters
from anchorlens.models.weight_files import touch
from anchorlens.models.weights import cast_tensor, check_names

STREAM = "anchorlens_stream"


@dataclass(frozen=True)
class Streamed:
    """Costs of streaming.

    Attributes:
        read_bytes: Bytes of weights read in every pass through all layers, in the model's type.
        peak_bytes: Maximum bytes of weights in memory at once.
        rate: Bytes read per second so far, preparation included.
    """

    read_bytes: int
    peak_bytes: int
    rate: float


class Stream:
    """Loads the weights of a model's blocks from its files."""

    def __init__(self, loader: LayerLoader, model: HookedTransformer, device: torch.device) -> None:
        self.loader, self.model, self.device = loader, model, device
        self.n_layers = loader.n_layers
        self.resident_bytes = 0
        self._next: tuple[int, Future[tuple[dict[str, Tensor], Any]]] | None = None
        self._loaded: set[int] = set()
        # One thread: the loader is filled with one layer at a time.
        self._thread = ThreadPoolExecutor(1, "anchorlens-stream")
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._bytes, self._seconds = 0, 0.0
        self._layer_bytes = [sum(p.numel() * p.element_size() for p in block.parameters()) for block in model.blocks]
        # Stamp of the files, and checksums of the weights.
        self.known: tuple[object, dict[str, str]] | None = None

    @property
    def sizes(self) -> Streamed:
        # Two layers, a matrix that TransformerLens's MLP transposes, joined experts, ends that are no views of a file.
        rate = self._bytes / self._seconds if self._seconds else float("inf")
        matrix = max(p.numel() * p.element_size() for p in self.model.blocks.parameters())
        held = 2 * max(self._layer_bytes) + matrix + self.loader.joined_bytes + self.resident_bytes
        return Streamed(sum(self._layer_bytes), held, rate)

    @contextmanager
    def load_layer(self, layer: int) -> Iterator[None]:
        """Hold the weights of a layer in a ``with`` block, while the next layer's are read."""
        if layer in self._loaded:  # the block runs as a module meanwhile
            yield
            return
        weights = self._take(layer)
        self._loaded.add(layer)
        try:
            with substitute_parameters(self.model.blocks[layer], weights):
                yield
        finally:
            self._loaded.remove(layer)

    def _take(self, layer: int) -> dict[str, Tensor]:
        number, coming = self._next or (-1, None)
        self._next = None
        if coming is None or number != layer:
            coming = self._thread.submit(self._load, layer)
        weights, ready = coming.result()
        if layer + 1 < self.n_layers:
            self._next = (layer + 1, self._thread.submit(self._load, layer + 1))
        if ready is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(ready)
            for tensor in weights.values():
                if tensor.is_cuda:
                    tensor.record_stream(current)
        return weights

    def _load(self, layer: int) -> tuple[dict[str, Tensor], Any]:
        """Load a layer's weights under TransformerLens's names, with the CUDA event after which they are ready."""
        started = time.perf_counter()
        # A new thread has torch's own defaults.
        side: AbstractContextManager[Any] = nullcontext() if self._side is None else torch.cuda.stream(self._side)
        with torch.no_grad(), torch.device("cpu"), side:
            read = self.loader.join(self.loader.read_layer(layer), self._move)
            state = self.loader.layer_state(read, self.model.cfg)
            block = self.model.blocks[layer]
            wanted = dict(block.named_parameters())
            check_names(wanted.keys() | dict(block.named_buffers()).keys() & state.keys(), state)
            weights = {
                name: _dense(
                    cast_tensor(f"blocks.{layer}.{name}", tensor, wanted[name].shape, self.device, self.model.cfg.dtype)
                )
                if name in wanted
                else tensor
                for name, tensor in state.items()
            }
            ready = None if self._side is None else self._side.record_event()
        self._seconds += time.perf_counter() - started
        self._bytes += self._layer_bytes[layer]
        return weights, ready

    def _move(self, tensor: Tensor) -> Tensor:
        """Move a tensor of the files to the device and type of the model; a view of the file where nothing changes."""
        dtype = self.model.cfg.dtype
        if self.device.type == "cpu":
            return touch(tensor) if tensor.dtype == dtype else tensor.to(dtype)
        if self.device.type == "cuda":  # pinned, so that the copy does not wait
            return tensor.pin_memory().to(self.device, non_blocking=True).to(dtype)
        return tensor.to(self.device).to(dtype)

    def fill_ends(self) -> None:
        """Load the parameters outside the layers."""
        model, dtype = self.model, self.model.cfg.dtype
        raw = self.loader.read_ends()
        with torch.no_grad():
            placed = {name: tensor.to(self.device).to(dtype) for name, tensor in raw.items()}
            state = self.loader.ends_state(placed, model.cfg)
        wanted = {name: p for name, p in model.named_parameters() if not name.startswith("blocks.")}
        check_names(wanted.keys(), state)
        own: dict[int, int] = {}
        for name, parameter in wanted.items():
            tensor = cast_tensor(name, state[name], parameter.shape, self.device, dtype)
            set_parameter(model, name, nn.Parameter(tensor, requires_grad=False))
            own[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        of_files = {tensor.untyped_storage().data_ptr() for tensor in raw.values()}
        self.resident_bytes = sum(n for at, n in own.items() if at not in of_files)


def _dense(tensor: Tensor) -> Tensor:
    """Copy a tensor with gaps in memory, which every product would copy again."""
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor if extent == tensor.numel() else tensor.clone(memory_format=torch.preserve_format)


class StreamedBlock(TransformerBlock):
    """A block that loads its weights while it runs."""

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        with load_block(self):
            return super().forward(*args, **kwargs)


def attach(stream: Stream) -> None:
    """Make the model's blocks streamed ones, by their class: a hook would be taken for the user's own."""
    object.__setattr__(stream.model, STREAM, stream)
    for layer, block in enumerate(stream.model.blocks):
        block.__class__ = StreamedBlock
        object.__setattr__(block, STREAM, lambda layer=layer: stream.load_layer(layer))


def load_block(block: nn.Module) -> AbstractContextManager[None]:
    """Hold the weights of a block in memory in a ``with`` block, if it is streamed."""
    bring: Callable[[], AbstractContextManager[None]] | None = getattr(block, STREAM, None)
    return nullcontext() if bring is None else bring()


def stream_of(model: HookedTransformer) -> Stream | None:
    """Return the stream of a model's weights, None if they are in memory."""
    return getattr(model, STREAM, None)
