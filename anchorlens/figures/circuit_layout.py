"""Places of the nodes of a circuit: rows by layer, and columns
(:mod:`~anchorlens.figures.circuit_columns`).

Lengths are pixels. The origin is below the embedding at the left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlens.engine.edges.graph import EMBED, HEAD, LOGITS, MLP, Edge, Graph, Node
from anchorlens.figures.circuit_columns import (
    BETWEEN,
    BOX_HEIGHT,
    TAB,
    TABS,
    Arrangement,
    BoxBlock,
    End,
    bend,
    margin_of,
)

GROUP = "group"
"""Kind of a node for a key/value head of which no query head is drawn."""
_BETWEEN_HEADS = -TAB - 3  # of k from the centre of an even number of heads, left of a q
_LETTER, _PAD = 5.7, 8
# Distances of rows, as shares of a unit: of two layers, and of two rows of one layer.
_STEP, _HALF_STEP = 1.0, 0.7
_LEAST_UNIT, _MOST_UNIT = 14.0, 75.0
_LEAST_RISE = 12  # of an edge


@dataclass(frozen=True, kw_only=True)
class Box:
    """Drawn node.

    Attributes:
        node: Sender, the logits, or the key/value head of a group without drawn heads.
        label: Text of the node.
        x: Horizontal centre.
        y: Vertical centre.
        width: Width in pixels.
        layer: Layer; -1 for the embedding.
    """

    node: Node
    label: str
    x: float
    y: float
    width: float
    layer: int


@dataclass(frozen=True, kw_only=True)
class Port:
    """Square of a ``q``, ``k`` or ``v``; ``x`` and ``y`` are its centre."""

    letter: str
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """Path of an edge, from the top of its sender to the port of its receiver."""

    edge: Edge
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Places of everything that is drawn.

    Attributes:
        boxes: Nodes, from the embedding to the logits.
        ports: Inputs of heads that receive an edge.
        frames: Left, right, bottom and top of the frame around the heads of one key/value head.
        lines: Paths of the edges.
        layers: Layer -> height of its lowest row.
        height: Height of the whole drawing.
    """

    boxes: tuple[Box, ...]
    ports: tuple[Port, ...]
    frames: tuple[tuple[float, float, float, float], ...]
    lines: tuple[Line, ...]
    layers: dict[int, float]
    height: float


def place_circuit(graph: Graph, edges: Sequence[Edge], *, width: float, most: float) -> Drawing:
    """Place the nodes of some edges.

    Args:
        graph: Graph of the model.
        edges: Edges to draw.
        width: Width of the drawing.
        most: Height that is not exceeded unless rows would touch.
    """
    blocks, receivers = _make_blocks(graph, edges, width)
    height = _set_heights(blocks, width, most)
    ends: list[End] = []
    place: dict[Node, tuple[int, float]] = {}
    for number, block in enumerate(blocks):
        for node, offset in zip(block.nodes, block.offsets, strict=True):
            place[node] = number, offset
    for edge in edges:
        source, at = place[edge.sender]
        for node in receivers[edge.receiver]:
            target, offset = place[node]
            kind = edge.receiver.kind
            if kind in "kv":  # of the whole block
                offset = 0.0 if len(blocks[target].nodes) % 2 else _BETWEEN_HEADS
            end = End(edge, source, at, target, offset + TABS.get(kind, 0))
            ends.append(end)
    return _draw(graph, blocks, ends, Arrangement(blocks, ends, width), height)


def _label(graph: Graph, node: Node) -> str:
    if node.kind != GROUP:
        return node.name
    rep = graph.n_heads // graph.n_kv_heads
    return f"a{node.layer}.h{node.head * rep}-{node.head * rep + rep - 1}"


def _make_blocks(
    graph: Graph, edges: Sequence[Edge], width: float
) -> tuple[list[BoxBlock], dict[Node, list[Node]]]:
    """Return the blocks by layer, and receiver -> nodes at which its edges end."""
    rep = graph.n_heads // graph.n_kv_heads
    drawn: set[Node] = {edge.sender for edge in edges}
    targets: dict[Node, list[Node]] = {}
    shared: set[Node] = set()
    for receiver in {edge.receiver for edge in edges}:
        if receiver.kind == "q" or (receiver.kind in "kv" and rep == 1):
            targets[receiver] = [Node(HEAD, receiver.layer, receiver.head)]
        elif receiver.kind in "kv":
            shared.add(receiver)
            continue
        else:
            targets[receiver] = [receiver]
        drawn.add(targets[receiver][0])
    for receiver in shared:
        heads = range(receiver.head * rep, (receiver.head + 1) * rep)
        if not any(Node(HEAD, receiver.layer, head) in drawn for head in heads):
            drawn.add(Node(GROUP, receiver.layer, receiver.head))
    groups: dict[Any, list[Node]] = {}
    for node in sorted(drawn, key=lambda one: (one.kind, one.layer, one.head)):
        key: tuple[Any, ...] = node
        if node.kind == HEAD:
            key = (GROUP, node.layer, node.head // rep)
        groups.setdefault(key, []).append(node)
    blocks: list[BoxBlock] = []
    for nodes in groups.values():
        widths = [_LETTER * len(_label(graph, node)) + _PAD for node in nodes]
        if nodes[0].kind in (HEAD, GROUP):
            widths = [max(one, 3 * TAB + 4) for one in widths]
        fit = max(1, int(width // (max(widths) + 4)))
        for start in range(0, len(nodes), fit):
            some = slice(start, start + fit)
            layer = -1 if nodes[0].kind == EMBED else nodes[0].layer
            blocks.append(BoxBlock(nodes=nodes[some], widths=widths[some], layer=layer))
    for receiver in shared:
        key = (GROUP, receiver.layer, receiver.head)
        firsts = [block.nodes[0] for block in blocks]
        targets[receiver] = [first for first in firsts if first in groups[key]]
    for block in blocks:
        kind = block.nodes[0].kind
        if kind in (EMBED, LOGITS):
            n = sum(kind in (edge.sender.kind, edge.receiver.kind) for edge in edges)
            block.widths = [min(0.6 * width, max(60.0, 12.0 * n))]
    return sorted(blocks, key=lambda one: (one.layer, one.nodes[0].kind == MLP)), targets


def _set_heights(blocks: Sequence[BoxBlock], width: float, most: float) -> float:
    """Set the height of every block, and return that of the drawing. Heads that do not fit into a
    row have several.
    """
    rows: list[list[BoxBlock]] = []
    steps: list[float] = []
    used = 0.0
    for block in blocks:
        last = rows[-1][-1] if rows else None
        is_new_layer = last is None or last.layer != block.layer
        is_mlp = block.nodes[0].kind == MLP
        used += block.width + BETWEEN
        if is_new_layer or is_mlp or used > width:
            steps.append(0.0 if last is None else _STEP if is_new_layer else _HALF_STEP)
            rows.append([])
            used = block.width + BETWEEN
        rows[-1].append(block)
    edge = BOX_HEIGHT / 2 + 2
    unit = (most - 2 * edge) / max(1.0, sum(steps))
    unit = min(_MOST_UNIT, max(_LEAST_UNIT, unit))
    y = edge
    for row, step in zip(rows, steps, strict=True):
        y += step * unit
        for block in row:
            block.y = y
    return y + edge


def _draw(
    graph: Graph,
    blocks: Sequence[BoxBlock],
    ends: Sequence[End],
    found: Arrangement,
    height: float,
) -> Drawing:
    """Return everything at its place."""
    boxes: list[Box] = []
    frames: list[tuple[float, float, float, float]] = []
    layers: dict[int, list[float]] = {}
    for block, centre in zip(blocks, found.x, strict=True):
        if block.nodes[0].kind not in (EMBED, LOGITS):
            layers.setdefault(block.layer, []).append(block.y)
        if len(block.nodes) > 1:
            half = block.width / 2 + block.frame
            up = BOX_HEIGHT / 2 + block.frame
            frames.append((centre - half, centre + half, block.y - up, block.y + up))
        for node, width, offset in zip(block.nodes, block.widths, block.offsets, strict=True):
            boxes.append(
                Box(
                    node=node,
                    label=_label(graph, node),
                    x=float(centre + offset),
                    y=block.y,
                    width=width,
                    layer=block.layer,
                )
            )
    ports: dict[tuple[str, int, float], Port] = {}
    lines: list[Line] = []
    for end, begin, arrive in zip(ends, found.begins, found.arrives, strict=True):
        block = blocks[end.target]
        top = block.y - BOX_HEIGHT / 2
        kind = end.edge.receiver.kind
        if kind in TABS:
            top -= block.frame
            port = Port(letter=kind, x=float(found.x[end.target] + end.arrive), y=top - TAB / 2)
            ports[kind, end.target, end.arrive] = port
            top -= TAB
        # Between close rows it begins behind the box of its sender.
        low = min(blocks[end.source].y + BOX_HEIGHT / 2, top - _LEAST_RISE)
        n = int(math.hypot(top - low, arrive - begin) / 6)
        share = np.linspace(0, 1, max(16, min(64, n)))
        xs = begin + (arrive - begin) * bend(share, margin_of(top - low))
        ys = low + (top - low) * share
        lines.append(Line(edge=end.edge, x=tuple(xs.tolist()), y=tuple(ys.tolist())))
    return Drawing(
        boxes=tuple(boxes),
        ports=tuple(ports.values()),
        frames=tuple(frames),
        lines=tuple(lines),
        layers={layer: min(y) for layer, y in layers.items()},
        height=height,
    )
