"""Select the edges of a circuit from their scores."""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from anchorlens.engine.edges.graph import ATTENTION_INPUTS, EMBED, HEAD, LOGITS, Edge, Graph, Node

Array = npt.NDArray[np.float64]


def rank(scores: Mapping[Edge, float], *, absolute: bool = True) -> list[Edge]:
    """Sort edges by score, the largest first; equal scores keep their order."""
    return sorted(scores, key=lambda edge: -(abs(scores[edge]) if absolute else scores[edge]))


def grow_from_logits(
    graph: Graph, scores: Mapping[Edge, float], n: int, *, absolute: bool = True
) -> list[Edge]:
    """Select ``n`` edges from the logits down: of the edges into nodes that are selected already,
    the largest score first (the greedy rule of EAP-IG, Hanna et al. 2024).
    """
    ranked = rank(scores, absolute=absolute)
    into: dict[Node, list[int]] = {}
    for number, edge in enumerate(ranked):
        for node in _nodes_of(graph, edge.receiver):
            into.setdefault(node, []).append(number)
    waiting = list(into.get(Node(LOGITS, graph.n_layers), []))  # sorted, so a heap
    reached: set[Node] = set()
    chosen: dict[Edge, None] = {}
    while waiting and len(chosen) < n:
        edge = ranked[heapq.heappop(waiting)]
        chosen[edge] = None  # a key of several heads is reached from each of them
        if edge.sender not in reached:
            reached.add(edge.sender)
            for number in into.get(edge.sender, []):
                heapq.heappush(waiting, number)
    return list(chosen)


def connect(graph: Graph, edges: Collection[Edge]) -> list[Edge]:
    """Remove edges until every sender is reached from the embedding and every receiver reaches the
    logits; edges keep their order.

    A run of the circuit does not change: an edge of a node that nothing reaches carries the ablated
    contribution in any case.
    """
    kept = list(edges)
    while True:
        senders = {edge.sender for edge in kept}
        fed: set[Node] = set()
        for edge in kept:
            fed.update(_nodes_of(graph, edge.receiver))
        left: list[Edge] = []
        for edge in kept:
            if edge.sender.kind != EMBED and edge.sender not in fed:
                continue
            receiver = edge.receiver
            if receiver.kind == LOGITS or not senders.isdisjoint(_nodes_of(graph, receiver)):
                left.append(edge)
        if len(left) == len(kept):
            return left
        kept = left


def select_often(values: Array, draws: Iterable[Array], n: int, *, absolute: bool = True) -> Array:
    """Return in what share of resamples each edge is among the ``n`` with the largest mean, [edge].

    Args:
        values: Scores, [pair edge].
        draws: Weights of the pairs in each resample, [pair].
        n: Number of edges.
        absolute: Whether the size of the mean counts.
    """
    chosen = np.zeros(values.shape[1])
    total = 0
    for weights in draws:
        means = weights @ values / weights.sum()
        sizes = np.abs(means) if absolute else means
        if n < len(sizes):
            chosen[np.argpartition(-sizes, n - 1)[:n]] += 1
        else:
            chosen += 1
        total += 1
    return chosen / total


def mean_overlap(stability: Array, n: int) -> float:
    """Return the mean share of edges that the selections of two resamples have in common, relative
    to ``n``.

    Two selections share sum(p^2) edges on average, where p is an edge's stability.
    """
    return float((stability**2).sum() / max(1, n))


def _nodes_of(graph: Graph, receiver: Node) -> Sequence[Node]:
    """Return the nodes that a receiver belongs to: of a key or value, every head of its group."""
    if receiver.kind not in ATTENTION_INPUTS:
        return (receiver,)
    if receiver.kind == "q":
        return (Node(HEAD, receiver.layer, receiver.head),)
    rep = graph.n_heads // graph.n_kv_heads
    first = receiver.head * rep
    return tuple(Node(HEAD, receiver.layer, head) for head in range(first, first + rep))
