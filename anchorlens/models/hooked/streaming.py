"""Models larger than memory: blocks read their weights from the checkpoint's files when they run,
and drop them afterwards.

Parameters of blocks are on ``meta`` until :func:`load_block` loads them during a ``with``
statement, while a thread reads the next layer. Embeddings, final norm and unembedding are always in
memory.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens import HookedTransformer
from transformer_lens.components.transformer_block import TransformerBlock
from typing_extensions import override

from anchorlens.models.adapter import STREAM, StreamingCost
from anchorlens.models.hooked.layer_loader import LayerLoader, set_parameter, substitute_parameters
from anchorlens.models.hooked.weight_files import touch
from anchorlens.models.hooked.weights import cast_tensor, check_names


class Stream:
    """Loader of the weights of a model's blocks from its files."""

    def __init__(self, loader: LayerLoader, model: HookedTransformer, device: torch.device) -> None:
        self.loader = loader
        self.model = model
        self.device = device
        self.n_layers = loader.n_layers
        self.resident_bytes = 0
        self._next: tuple[int, Future[tuple[dict[str, Tensor], Any]]] | None = None
        self._loaded: set[int] = set()
        # One thread, because the loader converts one layer at a time.
        self._thread = ThreadPoolExecutor(1, "anchorlens-stream")
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._bytes = 0
        self._seconds = 0.0
        self._layer_bytes = [_bytes_of_block(block) for block in model.blocks]
        # (stamp of the files, checksums of the weights).
        self.known: tuple[object, dict[str, str]] | None = None

    @property
    def sizes(self) -> StreamingCost:
        """Costs of streaming, with the rate measured so far."""
        # Two layers, a matrix that TransformerLens's MLP transposes, concatenated experts, and ends
        # that are not views of a file.
        rate = self._bytes / self._seconds if self._seconds else float("inf")
        matrix = max(p.numel() * p.element_size() for p in self.model.blocks.parameters())
        peak = 2 * max(self._layer_bytes) + matrix + self.loader.joined_bytes + self.resident_bytes
        return StreamingCost(sum(self._layer_bytes), peak, rate)

    @contextmanager
    def load_layer(self, layer: int) -> Iterator[None]:
        """Load the weights of a layer during a ``with`` statement, while the next layer is read."""
        if layer in self._loaded:  # loaded by an outer ``with`` statement
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
        """Return a layer's weights under TransformerLens's names, and the CUDA event after which
        they are ready.
        """
        started = time.perf_counter()
        # A new thread has torch's defaults.
        side: AbstractContextManager[Any] = (
            nullcontext() if self._side is None else torch.cuda.stream(self._side)
        )
        with torch.no_grad(), torch.device("cpu"), side:
            read = self.loader.join(self.loader.read_layer(layer), self._move)
            state = self.loader.layer_state(read, self.model.cfg)
            block = self.model.blocks[layer]
            wanted = dict(block.named_parameters())
            check_names(wanted.keys() | dict(block.named_buffers()).keys() & state.keys(), state)
            weights = dict(state)
            for name, parameter in wanted.items():
                tensor = cast_tensor(
                    f"blocks.{layer}.{name}",
                    state[name],
                    parameter.shape,
                    self.device,
                    self.model.cfg.dtype,
                )
                weights[name] = _dense(tensor)
            ready = None if self._side is None else self._side.record_event()
        self._seconds += time.perf_counter() - started
        self._bytes += self._layer_bytes[layer]
        return weights, ready

    def _move(self, tensor: Tensor) -> Tensor:
        """Move a tensor of the files to the model's device and dtype; unchanged tensors stay views
        of the file.
        """
        dtype = self.model.cfg.dtype
        if self.device.type == "cpu":
            return touch(tensor) if tensor.dtype == dtype else tensor.to(dtype)
        if self.device.type == "cuda":  # pinned, for an asynchronous copy
            return tensor.pin_memory().to(self.device, non_blocking=True).to(dtype)
        return tensor.to(self.device).to(dtype)

    def fill_ends(self) -> None:
        """Load the parameters outside the layers."""
        model = self.model
        dtype = self.model.cfg.dtype
        raw = self.loader.read_ends()
        with torch.no_grad():
            moved = {name: tensor.to(self.device).to(dtype) for name, tensor in raw.items()}
            state = self.loader.ends_state(moved, model.cfg)
        wanted = {name: p for name, p in model.named_parameters() if not name.startswith("blocks.")}
        check_names(wanted.keys(), state)
        storages: dict[int, int] = {}
        for name, parameter in wanted.items():
            tensor = cast_tensor(name, state[name], parameter.shape, self.device, dtype)
            set_parameter(model, name, nn.Parameter(tensor, requires_grad=False))
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        of_files = {tensor.untyped_storage().data_ptr() for tensor in raw.values()}
        self.resident_bytes = sum(n for at, n in storages.items() if at not in of_files)


def _bytes_of_block(block: nn.Module) -> int:
    """Return the size of a block's parameters in bytes."""
    return sum(p.numel() * p.element_size() for p in block.parameters())


def _dense(tensor: Tensor) -> Tensor:
    """Return a tensor without gaps in memory, because every product would copy it again."""
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor if extent == tensor.numel() else tensor.clone(memory_format=torch.preserve_format)


class StreamedBlock(TransformerBlock):
    """Block that loads its weights while it runs."""

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        with load_block(self):
            return super().forward(*args, **kwargs)


def attach(stream: Stream) -> None:
    """Make the model's blocks streamed by changing their class, because a hook would look like the
    user's.
    """
    object.__setattr__(stream.model, STREAM, stream)
    for layer, block in enumerate(stream.model.blocks):
        block.__class__ = StreamedBlock
        object.__setattr__(block, STREAM, partial(stream.load_layer, layer))


def load_block(block: nn.Module) -> AbstractContextManager[None]:
    """Load the weights of a block during a ``with`` statement; no-op unless it is streamed."""
    load: Callable[[], AbstractContextManager[None]] | None = getattr(block, STREAM, None)
    return nullcontext() if load is None else load()
