"""Cost of the effects of edges."""

from collections.abc import Sequence

from anchorlens.engine.cost import rows_bytes, rows_flops
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.graph import LOGITS, MLP, Edge
from anchorlens.models.shape import Shape

# Bytes of a float32.
_FLOAT = 4
# Forward and backward pass, in forward passes.
_WITH_BACKWARD = 3


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


def _flops_behind(shape: Shape, edge: Edge, prompts: EdgePrompts, end: int, mlp: float) -> float:
    """Return the operations for what is behind the receiver of an edge; ``mlp``: of a token in an
    MLP.
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
