"""Cost of passes: bytes, floating-point operations, and the matrix rate of this machine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from anchorlens.engine.cone_layout import JointAttention, joint_attention
from anchorlens.errors import InputError
from anchorlens.models.adapter import Shape
from anchorlens.models.blocks import EVEN, MLP_SLICE, MOST_EVEN, ONEDNN_TOKENS, WIDE_SLICE
from anchorlens.models.devices import (
    free_memory,
    half_in_float32,
    half_on_cpu,
    has_half_products,
    is_onednn_faster,
)
from anchorlens.models.read import READ_SLICE

# Tokens of a full forward pass beyond which throughput no longer grows.
MOST_TOKENS = {"cpu": 1024, "cuda": 16384, "mps": 4096}
# Share of the matrix rate that a pass reaches; measured on two cores with SmolLM2
# (docs/benchmarks.md).
_EFFICIENCY = 0.7
# Allocators keep freed blocks, and matrix libraries have their own buffers, beyond the tensors that
# are counted. Measured peaks on a CPU: at most 0.8 of the plan (benchmarks/planned_memory.py), in a
# heap with holes 0.85 (tests/engine/test_memory.py). Not measured on other devices.
_SLACK = {"cpu": 1.25}
_OTHER_SLACK = 1.5
BUFFERS = 24 * 2**20
# On a CPU oneDNN keeps a kernel for each product shape: 5 per number of tokens. Measured size of a
# kernel in half precision: 1 MB at d_model 576, 1 to 2 MB at 1,024, 3 to 5 MB at 3,072, 3 MB at
# 5,120; in float32: 0.6 MB at 576, 1.1 to 1.6 MB at 2,048, 1.2 MB at 4,096, for which half of the
# estimate for half precision is enough.
_PRODUCTS, _KERNEL, _KERNEL_WIDTH = 5, 1e6, 1e3
# Limits of the measurement of the matrix rate, in seconds and operations.
_MEASURED_S, _MEASURED_FLOP = 0.02, 4e9


FULL_PASSES = "full forward passes"
"""Name of a term of memory: passes of the model itself, as of the reference engine."""


class GroupSize(NamedTuple):
    """Size of the cells of one change in one lane.

    Attributes:
        tokens: Number of computed tokens.
        rows: Number of changed rows.
        width: Number of tokens of the longest cone.
        keys: Maximum number of keys of a row.
    """

    tokens: int
    rows: int
    width: int
    keys: int


@dataclass(frozen=True, kw_only=True)
class PassSize:
    """Size of one pass; a *lane* is a changed copy of the rows, one per measured layer or window.

    Attributes:
        clean_tokens: Number of tokens of the clean rows, without the prefix.
        clean_rows: Number of clean rows.
        clean_keys: Maximum number of keys of a clean row.
        cell_groups: Size of each change in a lane.
        prefix: Tokens that all rows share, computed once for many passes.
        reads: Number of states that are read.
        vocab_rows: Rows of logits over the whole vocabulary that a metric function holds at once.
    """

    clean_tokens: int
    clean_rows: int
    clean_keys: int
    cell_groups: tuple[GroupSize, ...] = ()
    prefix: int = 0
    reads: int
    vocab_rows: int = 0

    @classmethod
    def clean(cls, lengths: Sequence[int], reads: int | None = None) -> "PassSize":
        """Make the size of unchanged rows; if ``reads`` is None, one read per row."""
        return cls(
            clean_tokens=sum(lengths),
            clean_rows=len(lengths),
            clean_keys=max(lengths),
            reads=len(lengths) if reads is None else reads,
        )

    @property
    def lane(self) -> int:
        """Number of tokens of a lane."""
        return sum(group.tokens for group in self.cell_groups)


@dataclass(frozen=True, kw_only=True)
class PassMemory:
    """Upper estimate of a cone pass's peak memory on one device beside the weights, in bytes.

    Attributes:
        streams: Residual streams before a block.
        block: Widest step within a block beside them: queries, keys, values and attention scores,
            or the streams after the block and the inside of its MLP.
        logits: Slice of the logits that are read, after the last block.
        prefix: Keys and values of the tokens that all rows begin with.
        states: States that are read.
        kernels: Kernels that oneDNN keeps on a CPU.
        slack: Bytes that allocators hold for a byte of tensors.
    """

    streams: int
    block: int
    logits: int
    prefix: int
    states: int
    kernels: int
    slack: float

    @property
    def reserve(self) -> int:
        """Return what allocators keep beside the tensors, and buffers of libraries."""
        return int((self.slack - 1) * self._tensors) + BUFFERS

    @property
    def total(self) -> int:
        """Return the sum. Streams and block are there while blocks run, the logits after them."""
        return self._tensors + self.kernels + self.reserve

    def terms(self) -> dict[str, int]:
        """Return the terms of :attr:`total` by name, without those that are 0."""
        during = {"residual streams": self.streams, "attention or MLP": self.block}
        if self.logits > self.streams + self.block:
            during = {"logits": self.logits}
        every = during | {
            "common prefix": self.prefix,
            "states that are read": self.states,
            "kernels": self.kernels,
            "reserve of the allocator": self.reserve,
        }
        return {name: size for name, size in every.items() if size}

    @property
    def _tensors(self) -> int:
        return max(self.streams + self.block, self.logits) + self.prefix + self.states


def pass_bytes(shape: Shape, device: torch.device, size: PassSize, lanes: int) -> int:
    """Return an upper estimate of a cone pass's peak memory on one device, without the model, in
    bytes.
    """
    return pass_memory(shape, device, size, lanes).total


def pass_memory(shape: Shape, device: torch.device, size: PassSize, lanes: int) -> PassMemory:
    """Return the terms of :func:`pass_bytes`."""
    tokens = size.prefix + size.clean_tokens + lanes * size.lane
    heads, kv = shape.n_heads * shape.d_head, shape.n_kv_heads * shape.d_head
    # Queries, keys, values and heads' outputs, beside half of the queries and keys while they are
    # rotated, then a group's attention; before it the normed streams, while queries are normed.
    of_heads = tokens * (2 * heads + 2 * kv)
    rotated = tokens * (heads + kv) // 2
    entries = _attention_entries(shape, device, size, lanes)
    is_wide = half_on_cpu(device, shape.dtype)  # attention has float32 copies
    if is_wide:
        entries = 2 * (entries + of_heads)
    beside = rotated + entries if is_wide else max(rotated, entries, tokens * shape.d_model)
    of_attention = of_heads + beside
    # Heads' outputs, the streams after the block, and what a slice of tokens takes.
    of_slice = 3 * (shape.d_mlp or shape.d_model) + 4 * shape.d_model
    sliced = min(tokens, MLP_SLICE.get(device.type, MLP_SLICE["cpu"]))
    of_mlp = tokens * (heads + shape.d_model) + sliced * of_slice
    read_cells = (1 + lanes * len(size.cell_groups)) * size.reads
    rows, columns = READ_SLICE.get(device.type, READ_SLICE["cpu"])
    logits = min(read_cells, rows) * (3 * min(columns, shape.d_vocab) + 12 * shape.d_model) * 4
    if shape.number_bytes < 4:  # a slice of the unembedding in float32
        logits += columns * shape.d_model * 4
    if half_in_float32(device, shape.dtype):
        logits += WIDE_SLICE * 4
    logits += size.vocab_rows * shape.d_vocab * 4
    return PassMemory(
        streams=shape.number_bytes * tokens * shape.d_model,
        block=shape.number_bytes * max(of_attention, of_mlp),
        logits=logits,
        prefix=shape.number_bytes * 2 * shape.max_layers_per_device * kv * size.prefix,
        states=3 * read_cells * shape.d_model * max(shape.number_bytes, 4),
        kernels=kernel_bytes(shape, device, tokens),
        slack=slack(device),
    )


def slack(device: torch.device) -> float:
    """Return the bytes that allocators of a device hold for a byte of tensors."""
    return _SLACK.get(device.type, _OTHER_SLACK)


def _attention_entries(shape: Shape, device: torch.device, size: PassSize, lanes: int) -> int:
    """Return the number of entries that the attention of a pass holds at most, beside queries, keys
    and values of all tokens.
    """
    heads, kv = shape.n_heads * shape.d_head, shape.n_kv_heads * shape.d_head
    limits = joint_attention(device)
    groups = [(rows * width, width, keys) for _, rows, width, keys in size.cell_groups]
    copied = 0
    small = [group for group in groups if _fits_joint_padding(limits, *group)]
    sizes = sorted(padded for padded, _, _ in small)
    if len(small) > 1 and sum(sizes[:2]) <= limits.tokens:
        # Small groups are padded to one width together.
        together = min(limits.tokens, int(limits.padded * sum(sizes)))
        groups += [(together, width, keys + width) for _, width, keys in small]
        copied = min(limits.copied, sum(rows * keys for _, rows, _, keys in size.cell_groups))
    widest = max([size.clean_rows * size.clean_keys, *(lanes * padded for padded, _, _ in groups)])
    scores = max(
        [
            size.clean_rows * size.clean_keys**2,
            *(lanes * padded * keys for padded, _, keys in groups),
        ]
    )
    return widest * (3 * heads + 2 * kv) + 3 * shape.n_heads * scores + 4 * kv * copied


def kernel_bytes(shape: Shape, device: torch.device, tokens: int) -> int:
    """Return an upper estimate of the kernels that oneDNN keeps after passes of up to ``tokens``
    tokens; 0 where it is not used.
    """
    size = _KERNEL + _KERNEL_WIDTH * shape.d_model
    if device.type == "cpu" and shape.dtype is torch.float32 and is_onednn_faster():
        return int(_PRODUCTS * (min(tokens, MLP_SLICE["cpu"]) // ONEDNN_TOKENS) * size / 2)
    if half_on_cpu(device, shape.dtype) and has_half_products(shape.dtype):
        # The model's own passes (trial row, spot checks) need about as many of other sizes.
        return int(2 * _PRODUCTS * (MOST_EVEN // EVEN) * size)
    return 0


def _fits_joint_padding(limits: JointAttention, padded: int, width: int, keys: int) -> bool:
    """Return whether a group of cells is small enough to be padded together with others."""
    return padded < limits.tokens and padded * keys // width <= limits.copied


def pass_flops(shape: Shape, size: PassSize, starts: Sequence[int]) -> float:
    """Return the floating-point operations of a cone pass.

    ``starts``: layer at which each lane starts.
    """
    layers = shape.n_layers
    through = sum(layers - start for start in starts)
    tokens = layers * size.clean_tokens + through * size.lane
    attended_of_lane = sum(n * keys for n, _, _, keys in size.cell_groups)
    attended = layers * size.clean_tokens * size.clean_keys + through * attended_of_lane
    read = (1 + len(starts) * len(size.cell_groups)) * size.reads
    attention = 4.0 * shape.n_heads * shape.d_head * attended
    return shape.block_flops * tokens + attention + 2.0 * shape.d_model * shape.d_vocab * read


def rows_bytes(shape: Shape, rows: int, width: int, vocab_rows: int | None = None) -> int:
    """Return an upper estimate of the memory in bytes of a full forward pass over ``rows`` rows of
    ``width`` tokens.

    ``vocab_rows``: rows of logits over the whole vocabulary that are held at once; if None, eight
    for each row.
    """
    # Streams, queries, keys, values and both sides of a gated MLP; scores and pattern of all heads;
    # logits in float32.
    wide = 8 * shape.d_model + 4 * shape.n_heads * shape.d_head + 3 * (shape.d_mlp or shape.d_model)
    attention = 4 * shape.n_heads * width * width
    logits = 4 * shape.d_vocab * (8 * rows if vocab_rows is None else vocab_rows)
    return rows * (width * wide + attention) * max(shape.number_bytes, 4) + logits + BUFFERS


def rows_flops(shape: Shape, rows: int, width: int) -> float:
    """Return the floating-point operations of a full forward pass over ``rows`` rows of ``width``
    tokens, one read per row.
    """
    return rows * (width * shape.n_layers * shape.block_flops + 2.0 * shape.d_model * shape.d_vocab)


def rows_per_batch(
    shape: Shape,
    devices: Sequence[torch.device],
    width: int,
    batch_size: int | None,
    max_memory: int | None = None,
) -> int:
    """Return the number of rows of a full forward pass: ``batch_size``; if None, as many as fit
    into half of the free memory.
    """
    if batch_size is not None:
        if batch_size < 1:
            raise InputError(
                f"batch_size={batch_size}: too small. Give at least 1.", argument="batch_size"
            )
        return batch_size
    row = rows_bytes(shape, 1, width) - BUFFERS
    by_memory = (
        (max_memory - BUFFERS if max_memory else free_memory(devices) // 2)
        - shape.peak_weight_bytes
    ) // row
    if shape.streamed is not None:
        return max(1, int(by_memory))
    return max(
        1,
        min(int(by_memory), MOST_TOKENS.get(devices[0].type, MOST_TOKENS["cpu"]) // max(width, 1)),
    )


def out_of_memory(why: BaseException) -> bool:
    """Return whether an error means that memory ran out, on any device."""
    is_allocation = isinstance(why, RuntimeError) and "can't allocate memory" in str(why)
    return isinstance(why, (torch.OutOfMemoryError, MemoryError)) or is_allocation


def matrix_rate(shape: Shape, device: torch.device) -> float:
    """Measure the FLOP/s of a matrix product of the MLP's size, the fastest of several runs."""
    inner = shape.d_mlp or 4 * shape.d_model
    # Short products, so that other processes interrupt few of them.
    rows = 256 if device.type == "cpu" else 8192
    dtype = torch.float32 if half_in_float32(device, shape.dtype) else shape.dtype
    a = torch.ones(rows, shape.d_model, dtype=dtype, device=device)
    b = torch.ones(shape.d_model, inner, dtype=dtype, device=device)
    flop = 2.0 * rows * shape.d_model * inner
    best, spent, done = float("inf"), 0.0, 0
    while done < 2 or (
        spent < _MEASURED_S and done * flop < _MEASURED_FLOP
    ):  # the first product warms up
        started = time.perf_counter()
        (a @ b).sum().item()
        seconds = time.perf_counter() - started
        best, spent, done = min(best, seconds), spent + seconds, done + 1
    return flop / best


def estimate_seconds(shape: Shape, device: torch.device, flops: float) -> float:
    """Estimate the seconds that ``flops`` floating-point operations take on a device."""
    return flops / (_EFFICIENCY * matrix_rate(shape, device))
