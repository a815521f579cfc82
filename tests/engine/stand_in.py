"""A stand-in for a GPU that computes nothing and keeps account of launches, waits and memory.

What lies on the stand-in has a type and a shape, no values (torch's meta tensors). So it finds what
works on the CPU and fails or crawls on a GPU: a table that was left on the CPU, a copy from memory
that is not pinned, a value that the host waits for. Models of any size fit on it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.function_reader import Call, FunctionReader
from anchorlens.engine.patches import SwapBatch, TokenBatch
from anchorlens.measure.grid_cells import GridCells, plan_passes
from anchorlens.measure.patch_plan import join_passes, joint_bytes
from anchorlens.models import blocks, read
from anchorlens.models.devices import index_on
from anchorlens.models.hooked.blocks import HookedBlock
from anchorlens.models.read import READ_SLICE

GPU = torch.device("cuda:0")
aten = torch.ops.aten
# Operations that only make a tensor, or another view of one.
FREE = frozenset(["_unsafe_view", "new_empty", "empty", "empty_like", "empty_strided"])
COPIES = [aten._to_copy.default, *(getattr(aten.to, name) for name in aten.to.overloads())]


class StandIn(TorchDispatchMode):
    """While it is active, whatever goes to ``cuda`` goes to the stand-in.

    Attributes:
        waits: Events that the host waits for, and ``layer`` at the end of each layer, in order.
        launches: Operations on tensors of the stand-in that compute or copy something.
        by_operation: Operation -> its number among the launches.
        moved: Bytes that all launches read and write.
        live: Bytes of tensors that were made while it was active, some of which may be gone.
        peak: Most bytes of such tensors at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.pinned: dict[int, torch.Tensor] = {}
        self.launches = 0
        self.by_operation: Counter[str] = Counter()
        self.moved = 0
        self.live = self.peak = 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (aten.pin_memory.default, aten._pin_memory.default):
            self.pinned[id(args[0])] = args[0]
            return args[0]
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        there = any(x.is_meta for x in tensors)
        said = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        asked = said.get("device")
        if func in COPIES and asked is not None and there is (asked.type == "cpu"):
            return self.copied(args[0], said)
        if func in COPIES and asked is not None and there:  # it lies there already
            return args[0].to(dtype=said.get("dtype") or args[0].dtype)
        assert not there or all(x.is_meta or not x.ndim for x in tensors), (
            f"{func} gets a table that lies on the CPU"
        )
        if asked is not None and asked.type == "meta":  # the shape of a table that is never made
            return func(*args, **kwargs)
        assert there or asked is None or asked.type == "cpu", (
            f"{func} makes its table on the device"
        )
        name = func.overloadpacket.__name__
        result = func(*args, **kwargs)
        if there and not func.is_view and name not in FREE:
            self.launches += 1
            self.by_operation[name] += 1
            self.moved += _moved(name, [x for x in tensors if x.is_meta], result)
        return self._account(result, args, kwargs)

    def _account(self, result: Any, args: Any, kwargs: Any) -> Any:
        """Add the memory of new results, and forget that of tensors that are gone."""
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        known = {one.untyped_storage()._cdata for one in given if one.is_meta}
        for leaf in tree_leaves(result):
            if not isinstance(leaf, torch.Tensor) or not leaf.is_meta:
                continue
            storage = leaf.untyped_storage()
            before = self._storages.get(storage._cdata)
            if before is not None and before[0].expired():  # its address was used again
                self.live -= self._storages.pop(storage._cdata)[1]
                before = None
            if storage._cdata not in known and before is None:
                self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                self.live += storage.nbytes()
        if self.live > self.peak:  # only then does it matter what is gone
            kept = {key: one for key, one in self._storages.items() if not one[0].expired()}
            self._storages = kept
            self.live = sum(size for _, size in kept.values())
            self.peak = max(self.peak, self.live)
        return result

    def copied(self, x: torch.Tensor, said: dict[str, Any]) -> torch.Tensor:
        """To the stand-in, or from it."""
        dtype = said.get("dtype") or x.dtype
        if x.is_meta:
            self.waits.append("read back")
            return torch.zeros(x.shape, dtype=dtype)
        if id(x) not in self.pinned or not said.get("non_blocking"):
            self.waits.append("copy")
        return self._account(torch.empty(x.shape, dtype=dtype, device="meta"), (), {})

    def layer(self, share: float) -> None:
        """Note the end of a layer; to be given as ``on_progress``."""
        if share:
            self.waits.append("layer")


def _moved(name: str, given: list[torch.Tensor], result: Any) -> int:
    """Return the bytes that an operation reads and writes; indexing reads what it selects."""
    made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if name == "index_put_":  # table, values and perhaps indices
        return 2 * min(x.nbytes for x in given if x.is_floating_point())
    if name in ("index", "index_select", "gather"):
        return 2 * sum(x.nbytes for x in made)
    return sum(x.nbytes for x in [*given, *made])


def _fused_norm(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return a tensor of the norm's size by one operation, as a GPU does; torch divides it here."""
    return x.clone()


@contextmanager
def on_stand_in(cone: ConeEngine) -> Iterator[StandIn]:
    """Move the engine's model to the stand-in, with the slices and kernels of a GPU; torch would
    start CUDA before it dispatches.
    """
    torch.nn.Module.to(cone.adapter.model, "meta")
    cone.adapter.device = GPU
    index_on.cache_clear()  # what lies on the stand-in must not outlive it
    with (
        mock.patch("torch.cuda._lazy_init"),
        mock.patch.object(HookedBlock, "device", GPU),
        mock.patch.object(read, "_has_product", lambda *_: True),
        mock.patch.object(blocks, "has_fused_norms", lambda _: True),
        mock.patch.object(torch.nn.functional, "rms_norm", _fused_norm),
        mock.patch.dict(READ_SLICE, {"meta": READ_SLICE["cuda"]}),
        mock.patch.dict(blocks.MLP_SLICE, {"meta": blocks.MLP_SLICE["cuda"]}),
        StandIn() as stand_in,
    ):
        yield stand_in
    index_on.cache_clear()


class _Grid(GridCells):
    """Grid whose activations all differ; they have no values that could be compared."""

    @property
    def differs(self) -> torch.Tensor:
        shape = self.corrupted.shape
        return torch.ones(shape[0], *shape[2:4], 1, dtype=torch.bool)


def run_grid(
    cone: ConeEngine,
    site: str,
    columns: tuple[str, ...],
    *,
    n_rows: int,
    n_pos: int,
    budget: int,
    n_places: int | None = None,
) -> tuple[StandIn, int, int, float]:
    """Run the passes of a grid of the drop-in on the stand-in, without its checks; the metric is a
    logit difference at the last position.

    ``n_places``: number of places; if None, all.

    Returns:
        The account, the number of cells, the planned bytes of the largest pass, and the planned
        floating-point operations.
    """
    adapter, shape = cone.adapter, cone.adapter.shape
    ids = torch.randint(shape.d_vocab, (n_rows, n_pos), generator=torch.Generator().manual_seed(0))
    axes = {"pos": range(n_pos), "head": range(shape.n_heads)}
    places = list(product(*(axes[column] for column in columns)))[:n_places]
    cells = [(layer, *place) for layer in range(adapter.n_layers) for place in places]
    reader = FunctionReader.of_reads(
        "value",
        lambda _, logits: (logits[:, -1, 1] - logits[:, -1, 2]).mean()[None].float(),
        [Call(0, n_rows, n_pos, 1)],
        [{row * n_pos + n_pos - 1: {1, 2} for row in range(n_rows)}],
        shape.dtype,
    )
    width = (shape.n_heads, shape.d_head) if site == "z" else (1, shape.d_model)
    tokens = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))
    planned, flops = 0, 0.0
    with on_stand_in(cone) as gpu:
        made = torch.empty(adapter.n_layers, n_rows, n_pos, *width, dtype=shape.dtype, device="cpu")
        streams = made.pin_memory().to(GPU, non_blocking=True)
        grid = _Grid(
            adapter=adapter,
            site=site,
            columns=columns,
            tokens=tokens,
            clean=streams,
            corrupted=streams,
        )
        for together in join_passes(plan_passes(cone, grid, reader, cells, budget), budget):
            planned = max(planned, joint_bytes(together))
            flops += sum(one.flops for one in together)
            batches = []
            for one in together:
                swaps = tuple(map(grid.swap, one.content.places))
                batches.append((SwapBatch(tokens, reader, swaps), one.content.layers))
            cone.run_swap_batches(batches, site=site, window=1, on_progress=gpu.layer)
    return gpu, len(cells), planned, flops
