"""Cost of the effects of edges."""

import time
from collections.abc import Sequence

import torch

from anchorlens.engine.cost import rows_bytes, rows_flops
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.graph import LOGITS, MLP, Edge
from anchorlens.engine.edges.row_states import embed_row, run_block
from anchorlens.models.adapter import Adapter, Shape

# Bytes of a float32.
_FLOAT = 4
# Forward and backward pass, in forward passes.
_WITH_BACKWARD = 3
# Passes over single rows of a unit of exact effects: the final stream, target and source, and the
# clean pass of the engine.
_PASSES_OF_EXACT = 4
# Of an attribution: target and source, and the metric before; of each gradient, beside the backward
# pass, whose products are the same.
_PASSES_OF_ATTRIBUTION, _PASSES_OF_GRADIENT = 3, 2
# Of an effect by hooks: before, both contributions, and three passes with the change.
_PASSES_OF_CHECK = 6
# Of a sweep: those that choose the engine, and their checks.
PASSES_OF_SWEEP = 4
# Seconds of a sample beside the passes: its product with the gradient, its row, the sorting of the
# table (measured: 40 microseconds).
SAMPLE_SECONDS = 4e-5
# Seconds of a sweep beside passes and samples: tokens, files, statistics (measured: 0.2 to 0.3).
SWEEP_SECONDS = 0.25
# Runs of a block that are timed.
_TIMED = 6


def edge_flops(
    shape: Shape,
    prompts: EdgePrompts,
    edges: Sequence[Edge],
    *,
    end: int,
    n_gradients: int = 0,
    frozen: bool = False,
) -> float:
    """Return the multiplications and additions for some edges of a pair.

    Args:
        shape: Sizes of the model.
        prompts: Target and source.
        edges: Edges that are measured.
        end: One past the last position that is read.
        n_gradients: Number of forward and backward passes of an attribution; 0 for exact effects.
        frozen: Whether everything behind the receivers is frozen.
    """
    rows = (prompts.target, prompts.source)
    total = sum(rows_flops(shape, 1, len(row)) for row in rows)
    if n_gradients:
        return total + _WITH_BACKWARD * n_gradients * rows_flops(shape, 1, len(prompts.target))
    if not prompts.at:
        return total
    mlp = 2.0 * shape.mlp_products * shape.d_model * shape.d_mlp
    attention = shape.block_flops - mlp
    changed = len([position for position in prompts.at if position < end])
    # The input of a receiver is computed once for each sender and kind.
    for _, kind, _ in {(e.sender, e.receiver.kind, e.receiver.layer) for e in edges}:
        total += changed * (mlp if kind == MLP else 0.0 if kind == LOGITS else attention)
    if not frozen:
        total += sum(_flops_behind(shape, edge, prompts, end, mlp) for edge in edges)
    return total


def single_passes(n_gradients: int = 0) -> int:
    """Return the number of passes over single rows that some edges of a pair take, however few they
    are; ``n_gradients`` as in :func:`edge_flops`.
    """
    if not n_gradients:
        return _PASSES_OF_EXACT
    return _PASSES_OF_ATTRIBUTION + _PASSES_OF_GRADIENT * n_gradients


def check_passes(n_checks: int, n_gradients: int = 0) -> int:
    """Return the number of passes over single rows of spot checks; ``n_gradients`` as in
    :func:`edge_flops`.
    """
    return n_checks * (single_passes(n_gradients) if n_gradients else _PASSES_OF_CHECK)


@torch.no_grad()
def time_single_pass(adapter: Adapter, ids: tuple[int, ...]) -> float:
    """Measure the seconds of a pass over one row, from its first block.

    The products of a few tokens reach a small share of the rate of large ones.
    """
    # On a CPU the time of this thread: other processes do not count.
    clock = time.thread_time if adapter.device.type == "cpu" else time.perf_counter
    x = embed_row(adapter, ids)
    best = float("inf")
    with adapter.blocks().load(0) as block:
        x = x.to(block.device)
        for _ in range(_TIMED):  # the first one warms up
            started = clock()
            run_block(block, x).post.sum().item()
            best = min(best, clock() - started)
    return adapter.n_layers * best


def _flops_behind(shape: Shape, edge: Edge, prompts: EdgePrompts, end: int, mlp: float) -> float:
    """Return the operations for what is behind the receiver of an edge.

    ``mlp``: of a token in an MLP.
    """
    receiver = edge.receiver
    if receiver.kind == LOGITS:
        return 0.0
    tokens = max(0, end - prompts.at[0])
    own = 0.0 if receiver.kind == MLP else tokens * mlp
    return own + tokens * (shape.n_layers - 1 - receiver.layer) * shape.block_flops


def peak_bytes(shape: Shape, prompts: EdgePrompts, edges: Sequence[Edge]) -> int:
    """Return an upper estimate of the memory for the edges of a pair: the changes of all senders
    beside a few full rows.
    """
    senders = len({edge.sender for edge in edges})
    width = max(len(prompts.target), len(prompts.source))
    changes = senders * len(prompts.at) * shape.d_model * _FLOAT
    return rows_bytes(shape, 4, width) + 2 * changes
