"""How much goes through the model at once, and what it will cost: chosen and predicted before anything runs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import psutil
import torch

from anchorlens.engine.layout import Lanes
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.notices import warn

# Beyond this many tokens a batch gains nothing on a CPU or a GPU that fits it, and a smaller one keeps the progress bar moving.
_MOST_TOKENS = {"cpu": 1024, "cuda": 16384, "mps": 4096}
# The same for a pass of the cone engine, whose tokens are those of all lanes in the top layer.
_MOST_CONE_TOKENS = {"cpu": 2048, "cuda": 131072, "mps": 8192}
# Share of the matrix rate that a pass reaches; measured on two cores with SmolLM2 (docs/benchmarks.md).
_EFFICIENCY = 0.7
# What is held is counted; allocators keep freed blocks beside it, and matrix libraries have buffers of their own.
_SLACK, _BUFFERS = 1.5, 24 * 2**20
# Rows of samples.parquet: while they are collected, and while they are put in order.
_ROW_BYTES, _ORDERED_BYTES = 320, 700

Item = TypeVar("Item")


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def row_bytes(adapter: Adapter, width: int) -> int:
    """Upper estimate of the bytes that one row of ``width`` tokens takes while it passes through a block, plus its read.

    Streams, queries, keys, values and both sides of a gated MLP live at the same time; attention scores and pattern in every head;
    logits of a handful of reads in float32.
    """
    cfg = adapter.model.cfg
    item = torch.finfo(cfg.dtype).bits // 8
    wide = 8 * cfg.d_model + 4 * cfg.n_heads * cfg.d_head + 3 * (cfg.d_mlp or 4 * cfg.d_model)
    attention = 4 * cfg.n_heads * width * width * max(item, 4)
    return width * wide * max(item, 4) + attention + 8 * cfg.d_vocab * 4


def rows_bytes(adapter: Adapter, rows: int, width: int) -> int:
    """Upper estimate of what a whole forward pass of so many rows holds."""
    return rows * row_bytes(adapter, width) + _BUFFERS


def rows_per_batch(adapter: Adapter, width: int, batch_size: int | None, max_memory: int | None = None) -> int:
    """Rows in one batch of whole forward passes.

    Args:
        adapter: The model.
        width: Tokens of the longest row.
        batch_size: The user's choice, taken as it is; None: chosen here from half of the free memory.
        max_memory: Most bytes for a batch.

    Raises:
        InputError: ``batch_size`` is below 1.
    """
    if batch_size is not None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}.")
        return batch_size
    by_memory = (max_memory - _BUFFERS if max_memory else free_memory(adapter.device) // 2) // row_bytes(adapter, width)
    by_tokens = _MOST_TOKENS.get(adapter.device.type, 1024) // max(width, 1)
    return max(1, min(int(by_memory), by_tokens))


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep will do.

    Attributes:
        engine: ``cone`` or ``reference``.
        blocks: ``fused`` or ``plain``; empty for the oracle.
        reason: Why it is not the cone engine with fused blocks, where that was asked for.
        batch_sizes: Rows of each batch, in the order in which they are measured.
        questions: Rows that are measured.
        cells: Anchor (or cut), layer, donor and control, for every row.
        flops: Predicted multiplications and additions.
        peak_bytes: Predicted peak of memory beside the model.
        max_memory: The user's limit.
        adapter: The model.
    """

    engine: str
    blocks: str
    reason: str
    batch_sizes: tuple[int, ...]
    questions: int
    cells: int
    flops: float
    peak_bytes: int
    max_memory: int | None
    adapter: Adapter = field(repr=False, compare=False)

    @property
    def seconds(self) -> float:
        """Predicted time, from the rate of a matrix product that is measured now (some milliseconds)."""
        return predicted_seconds(self.adapter, self.flops)

    def to_dict(self) -> dict[str, object]:
        """What decides the numbers' last digits, for ``run.json``."""
        return {
            "engine": self.engine, "blocks": self.blocks, "reason": self.reason, "batches": list(self.batch_sizes),
            "cells": self.cells, "gflop": round(self.flops / 1e9, 3), "peak_bytes": self.peak_bytes,
            "max_memory": self.max_memory,
        }  # fmt: skip

    def __str__(self) -> str:
        engine = f"{self.engine} ({self.blocks or self.reason or 'one full pass for each cell'})"
        seconds = self.seconds
        return (
            f"{self.questions} rows, {self.cells:,} cells in {len(self.batch_sizes)} batches; engine {engine}; about "
            f"{self.flops / 1e9:,.0f} GFLOP, {seconds:,.{0 if seconds > 10 else 1}f} s, at most {self.peak_bytes / 1e6:,.0f} MB "
            "beside the model"
        )


def peak_of(passes: int, cells: int) -> int:
    """Most bytes of a sweep: its largest pass beside the table that grows, or the table when it is put in order."""
    return max(passes + _ROW_BYTES * cells, _ORDERED_BYTES * cells)


def pass_budget(adapter: Adapter, max_memory: int | None, cells: int) -> int:
    """Bytes that a pass may take beside a table of so many cells."""
    return max_memory - _ROW_BYTES * cells if max_memory else free_memory(adapter.device) // 2


def check_fits(peak: int, max_memory: int | None) -> None:
    """Whether a sweep's smallest peak is within the user's limit.

    Raises:
        InputError: It is not.
    """
    if max_memory is not None and peak > max_memory:
        raise InputError(
            f"max_memory is {max_memory / 1e6:.0f} MB, and with the smallest batches this sweep needs about {peak / 1e6:.0f} MB "
            "beside the model. Give at least that, or measure fewer questions, layers or donors at a time."
        )


@dataclass(frozen=True)
class PassSize:
    """What goes through the model in one pass of the cone engine.

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

    @property
    def lane(self) -> int:
        """Tokens of a lane."""
        return sum(tokens for tokens, *_ in self.packs)


def pass_bytes(adapter: Adapter, size: PassSize, lanes: int) -> int:
    """Upper estimate of what a pass holds at its widest, in the top layer, beside the model itself."""
    cfg = adapter.model.cfg
    item = torch.finfo(cfg.dtype).bits // 8
    heads, kv = cfg.n_heads * cfg.d_head, (cfg.n_key_value_heads or cfg.n_heads) * cfg.d_head
    tokens = size.prefix + size.runs + lanes * size.lane
    widest = max([size.run_rows * size.run_keys, *(lanes * rows * width for _, rows, width, _ in size.packs)])
    scores = max([size.run_rows * size.run_keys**2, *(lanes * rows * width * keys for _, rows, width, keys in size.packs)])
    attention = tokens * (2 * cfg.d_model + 3 * heads + 3 * kv) + widest * (3 * heads + 2 * kv) + 3 * cfg.n_heads * scores
    inner = 3 * min(tokens, 512 if adapter.device.type == "cpu" else 65536) * (cfg.d_mlp or 4 * cfg.d_model)
    mlp = 5 * tokens * cfg.d_model + inner
    prefix = 2 * adapter.n_layers * kv * size.prefix
    read_cells = (1 + lanes * len(size.packs)) * size.reads
    reads = 3 * read_cells * cfg.d_model * max(item, 4) + min(read_cells, 256) * (3 * 4096 + 12 * cfg.d_model) * 4
    if item < 4:  # a slice of the unembedding in float32
        reads += 4096 * cfg.d_model * 4
    return int(_SLACK * (item * (max(attention, mlp) + prefix) + reads)) + _BUFFERS


def cut_rows(adapter: Adapter, width: int, lanes: int, budget: int) -> int:
    """Rows of a pass of the cone engine in which edges are cut: three variants at most, in so many lanes each."""
    rows = max(1, most_tokens(adapter.device) // (width * (1 + 3 * lanes)))
    while rows > 1 and cut_bytes(adapter, rows, width, lanes) > budget:
        rows //= 2
    return rows


def cut_bytes(adapter: Adapter, rows: int, width: int, lanes: int) -> int:
    """Upper estimate of what a pass over so many rows holds, with edges cut in three variants."""
    size = PassSize(rows * width, rows, width, ((rows * width, rows, width, width),) * 3, 0, rows)
    return pass_bytes(adapter, size, lanes)


def pass_flops(adapter: Adapter, size: PassSize, lanes: Lanes) -> float:
    """Multiplications and additions of a pass: matrices, attention between tokens, unembedding of what is read."""
    cfg, layers = adapter.model.cfg, adapter.n_layers
    through = sum(layers - start for start in lanes.start)
    tokens = layers * size.runs + through * size.lane
    heads = cfg.n_heads * cfg.d_head
    attended = layers * size.runs * size.run_keys + through * sum(n * keys for n, _, _, keys in size.packs)
    read = (1 + len(lanes.start) * len(size.packs)) * size.reads
    return block_flops(adapter) * tokens + 4.0 * heads * attended + 2.0 * cfg.d_model * cfg.d_vocab * read


def block_flops(adapter: Adapter) -> float:
    """Multiplications and additions of one token in one block, attention between tokens left out."""
    cfg = adapter.model.cfg
    heads, kv = cfg.n_heads * cfg.d_head, (cfg.n_key_value_heads or cfg.n_heads) * cfg.d_head
    mlp = (3 if cfg.gated_mlp else 2) * cfg.d_model * int(cfg.d_mlp or 4 * cfg.d_model)
    return 2.0 * (2 * cfg.d_model * (heads + kv) + mlp)


def matrix_rate(adapter: Adapter, repeats: int = 5) -> float:
    """Multiplications and additions a second of a product in the model's MLP, measured: the best of a few."""
    cfg, device = adapter.model.cfg, adapter.device
    rows, inner = (512 if device.type == "cpu" else 8192), int(cfg.d_mlp or 4 * cfg.d_model)
    a = torch.ones(rows, cfg.d_model, dtype=cfg.dtype, device=device)
    b = torch.ones(cfg.d_model, inner, dtype=cfg.dtype, device=device)
    best = float("inf")
    for _ in range(repeats + 1):  # the first one warms up, and is never the best
        started = time.perf_counter()
        (a @ b).sum().item()
        best = min(best, time.perf_counter() - started)
    return 2.0 * rows * cfg.d_model * inner / best


def predicted_seconds(adapter: Adapter, flops: float) -> float:
    """How long so much work takes here."""
    return flops / (_EFFICIENCY * matrix_rate(adapter))


def most_tokens(device: torch.device) -> int:
    """Tokens of a pass of the cone engine beyond which nothing is gained."""
    return _MOST_CONE_TOKENS.get(device.type, 2048)


def out_of_memory(why: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    told = isinstance(why, RuntimeError) and "can't allocate memory" in str(why)
    return isinstance(why, (torch.OutOfMemoryError, MemoryError)) or told


def warn_of_split() -> None:
    """Say that memory ran out and that work goes on."""
    warn("Memory ran out: batches that do not fit are split and go on. max_memory= plans for less.")


def halves(items: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    """Both halves; the first is the longer one."""
    middle = (len(items) + 1) // 2
    return items[:middle], items[middle:]


def fitted(items: Sequence[Item], fits: Callable[[Sequence[Item]], bool]) -> list[Sequence[Item]]:
    """Neighbours packed together as long as they fit; an item that does not fit alone stays alone."""
    packed: list[Sequence[Item]] = []
    start = 0
    for stop in range(1, len(items) + 1):
        if stop - start > 1 and not fits(items[start:stop]):
            packed.append(items[start : stop - 1])
            start = stop - 1
    return [*packed, items[start:]] if items else []


__all__ = [
    "PassSize",
    "SweepPlan",
    "block_flops",
    "check_fits",
    "cut_bytes",
    "cut_rows",
    "fitted",
    "free_memory",
    "halves",
    "matrix_rate",
    "most_tokens",
    "out_of_memory",
    "pass_budget",
    "pass_bytes",
    "pass_flops",
    "peak_of",
    "predicted_seconds",
    "row_bytes",
    "rows_bytes",
    "rows_per_batch",
    "warn_of_split",
]
