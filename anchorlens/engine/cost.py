"""Cost of passes: bytes, operations, and the matrix rate of this machine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from anchorlens.errors import InputError
from anchorlens.models.blocks import EVEN, MLP_SLICE, WIDE_SLICE
from anchorlens.models.devices import half_in_float32, half_on_cpu, has_half_products
from anchorlens.models.memory import free_memory
from anchorlens.models.read import READ_SLICE
from anchorlens.models.shape import Shape

# Tokens of a whole forward pass beyond which nothing is gained; a smaller one keeps the progress bar moving.
MOST_TOKENS = {"cpu": 1024, "cuda": 16384, "mps": 4096}
# Share of the matrix rate that a pass reaches; measured on two cores with SmolLM2 (docs/benchmarks.md).
_EFFICIENCY = 0.7
# What is held is counted; allocators keep freed blocks beside it, and matrix libraries have buffers of their own.
_SLACK, BUFFERS = 1.5, 24 * 2**20
# In half precision on a CPU oneDNN makes a kernel for each shape of a product and keeps it. Blocks take tokens in multiples of
# models.blocks.EVEN, so there are few: of queries, keys, output and two of an MLP. Bytes of one, measured: 1 MB where a model is 576
# wide, 1 to 2 at 1,024, 3 to 5 at 3,072, 3 at 5,120.
_PRODUCTS, _KERNEL, _KERNEL_WIDTH = 5, 1e6, 1e3
# Seconds and multiplications that measuring the matrix rate may take.
_MEASURED_S, _MEASURED_FLOP = 0.02, 4e9


@dataclass(frozen=True)
class PassSize:
    """Size of one batch.

    Attributes:
        runs: Tokens of clean rows.
        run_rows: Clean rows.
        run_keys: Most keys of a clean row.
        packs: For each anchor or control: tokens in a lane, rows, most tokens of a row, most keys.
        prefix: Tokens that all rows share, computed once for many passes.
        reads: Reads of the reader.
    """

    runs: int
    run_rows: int
    run_keys: int
    packs: tuple[tuple[int, int, int, int], ...]
    prefix: int
    reads: int

    @classmethod
    def clean(cls, lengths: Sequence[int], reads: int | None = None) -> "PassSize":
        """Whole rows in which nothing is changed; one read a row where it is left out."""
        return cls(sum(lengths), len(lengths), max(lengths), (), 0, len(lengths) if reads is None else reads)

    @property
    def lane(self) -> int:
        """Tokens of a lane."""
        return sum(tokens for tokens, *_ in self.packs)


def pass_bytes(shape: Shape, device: torch.device, size: PassSize, lanes: int) -> int:
    """Upper estimate of what a pass of the cone engine holds on one device at its widest, in the top layer, beside the model."""
    heads, kv = shape.n_heads * shape.d_head, shape.n_kv_heads * shape.d_head
    tokens = size.prefix + size.runs + lanes * size.lane
    widest = max([size.run_rows * size.run_keys, *(lanes * rows * width for _, rows, width, _ in size.packs)])
    scores = max([size.run_rows * size.run_keys**2, *(lanes * rows * width * keys for _, rows, width, keys in size.packs)])
    attention = widest * (3 * heads + 2 * kv) + 3 * shape.n_heads * scores
    if half_on_cpu(device, shape.dtype):  # it is in float32 there, beside the queries, keys and values that it is given
        attention = 2 * (attention + tokens * (2 * heads + 2 * kv))
    tables = tokens * (2 * shape.d_model + 3 * heads + 3 * kv) + attention
    inner = 3 * min(tokens, MLP_SLICE.get(device.type, 512)) * (shape.d_mlp or shape.d_model)
    mlp = 5 * tokens * shape.d_model + inner
    prefix = 2 * shape.layers_together * kv * size.prefix
    read_cells = (1 + lanes * len(size.packs)) * size.reads
    rows, columns = READ_SLICE.get(device.type, READ_SLICE["cpu"])
    table = min(read_cells, rows) * (3 * min(columns, shape.d_vocab) + 12 * shape.d_model) * 4
    reads = 3 * read_cells * shape.d_model * max(shape.item, 4) + table
    if shape.item < 4:  # a slice of the unembedding in float32
        reads += columns * shape.d_model * 4
    if half_in_float32(device, shape.dtype):
        reads += WIDE_SLICE * 4
    return int(_SLACK * (shape.item * (max(tables, mlp) + prefix) + reads)) + kernel_bytes(shape, device) + BUFFERS


def kernel_bytes(shape: Shape, device: torch.device) -> int:
    """Upper estimate of the kernels that oneDNN keeps; 0 where it is not asked (float32, and any GPU)."""
    if not half_on_cpu(device, shape.dtype) or not has_half_products(shape.dtype):
        return 0
    sizes = max(1, MLP_SLICE["cpu"] // EVEN)
    return int(_PRODUCTS * sizes * (_KERNEL + _KERNEL_WIDTH * shape.d_model))


def pass_flops(shape: Shape, size: PassSize, starts: Sequence[int]) -> float:
    """Return the operations of a pass of the cone engine; ``starts``: layer at which each lane joins."""
    layers = shape.n_layers
    through = sum(layers - start for start in starts)
    tokens = layers * size.runs + through * size.lane
    attended = layers * size.runs * size.run_keys + through * sum(n * keys for n, _, _, keys in size.packs)
    read = (1 + len(starts) * len(size.packs)) * size.reads
    attention = 4.0 * shape.n_heads * shape.d_head * attended
    return shape.block_flops * tokens + attention + 2.0 * shape.d_model * shape.d_vocab * read


def rows_bytes(shape: Shape, rows: int, width: int) -> int:
    """Upper estimate of what a whole forward pass of so many rows of so many tokens holds.

    Streams, queries, keys, values and both sides of a gated MLP live at the same time; attention scores and pattern in every head;
    logits of a handful of reads in float32.
    """
    wide = 8 * shape.d_model + 4 * shape.n_heads * shape.d_head + 3 * (shape.d_mlp or shape.d_model)
    attention = 4 * shape.n_heads * width * width
    return rows * ((width * wide + attention) * max(shape.item, 4) + 8 * shape.d_vocab * 4) + BUFFERS


def rows_flops(shape: Shape, rows: int, width: int) -> float:
    """Multiplications and additions of a whole forward pass of so many rows of so many tokens, one read a row."""
    return rows * (width * shape.n_layers * shape.block_flops + 2.0 * shape.d_model * shape.d_vocab)


def rows_per_batch(
    shape: Shape, devices: Sequence[torch.device], width: int, batch_size: int | None, max_memory: int | None = None
) -> int:
    """Return the rows of one batch of whole forward passes: ``batch_size``, or what fits into half of the free memory."""
    if batch_size is not None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}.")
        return batch_size
    row = rows_bytes(shape, 1, width) - BUFFERS
    by_memory = ((max_memory - BUFFERS if max_memory else free_memory(devices) // 2) - shape.peak_weight_bytes) // row
    if shape.streamed is not None:
        return max(1, int(by_memory))
    return max(1, min(int(by_memory), MOST_TOKENS.get(devices[0].type, MOST_TOKENS["cpu"]) // max(width, 1)))


def out_of_memory(why: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    told = isinstance(why, RuntimeError) and "can't allocate memory" in str(why)
    return isinstance(why, (torch.OutOfMemoryError, MemoryError)) or told


def matrix_rate(shape: Shape, device: torch.device) -> float:
    """Multiplications and additions a second of a product in the model's MLP, measured: the best of a few."""
    inner = shape.d_mlp or 4 * shape.d_model
    # Short enough to end before other work on the machine gets its turn.
    rows = 256 if device.type == "cpu" else 8192
    dtype = torch.float32 if half_in_float32(device, shape.dtype) else shape.dtype
    a = torch.ones(rows, shape.d_model, dtype=dtype, device=device)
    b = torch.ones(shape.d_model, inner, dtype=dtype, device=device)
    flop = 2.0 * rows * shape.d_model * inner
    best, spent, done = float("inf"), 0.0, 0
    while done < 2 or (spent < _MEASURED_S and done * flop < _MEASURED_FLOP):  # the first one warms up
        started = time.perf_counter()
        (a @ b).sum().item()
        taken = time.perf_counter() - started
        best, spent, done = min(best, taken), spent + taken, done + 1
    return flop / best


def estimate_seconds(shape: Shape, device: torch.device, flops: float) -> float:
    """Return the seconds that so many operations take on this machine."""
    return flops / (_EFFICIENCY * matrix_rate(shape, device))
