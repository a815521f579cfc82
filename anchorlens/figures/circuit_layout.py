"""Places of the nodes of a circuit: rows by layer, and columns with few crossings of edges.

Lengths are pixels. The origin is below the embedding at the left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from anchorlens.engine.edges.graph import EMBED, HEAD, LOGITS, MLP, Edge, Graph, Node

GROUP = "group"
"""Kind of a node for a key/value head of which no query head is drawn."""
BOX_HEIGHT = 15
TAB = 10  # side of the square of a q, k or v
_TABS = {"q": -TAB - 1, "k": 0, "v": TAB + 1}  # centres from that of a head
_BETWEEN_HEADS = -TAB - 3  # of k from the centre of an even number of heads, left of a q
_FRAME = 3  # gap between heads and their frame
_LETTER, _PAD = 5.7, 8
_BETWEEN = 10  # gap of two boxes beside each other
_CLEAR = BOX_HEIGHT + TAB + 8  # rows that are closer must not have boxes at the same x
# Distances of rows, as shares of a unit: of two layers, and of two rows of one layer.
_STEP, _HALF_STEP = 1.0, 0.7
_LEAST_UNIT, _MOST_UNIT = 14.0, 75.0
_LEAST_RISE = 12  # of an edge
_EASE = 36  # height in which an edge bends from the vertical to its slope
_CANDIDATES = 41
_SWEEPS = 6
# Costs: two edges cross; an edge runs through a box; two boxes overlap; an edge runs across the
# whole width; the slope of an edge is smaller.
_CROSSING, _THROUGH, _OVERLAP, _LENGTH, _SHALLOW = 1.0, 2.5, 60.0, 4.0, 0.5


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


class _End(NamedTuple):
    """Edge with the numbers of its two blocks, and its places from their centres."""

    edge: Edge
    source: int
    begin: float
    target: int
    arrive: float


@dataclass(kw_only=True)
class _Block:
    """Boxes that move together: one node, or heads that share a key/value head."""

    nodes: list[Node]
    widths: list[float]
    layer: int
    y: float = 0.0

    @property
    def width(self) -> float:
        return sum(self.widths) + 4 * (len(self.widths) - 1)

    @property
    def frame(self) -> int:
        """Gap between the boxes and their frame; 0 for one box, which has none."""
        return _FRAME if len(self.nodes) > 1 else 0

    @property
    def offsets(self) -> list[float]:
        """Centres of the boxes from the centre of the block."""
        out: list[float] = []
        left = -self.width / 2
        for width in self.widths:
            out.append(left + width / 2)
            left += width + 4
        return out


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
    ends: list[_End] = []
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
            end = _End(edge, source, at, target, offset + _TABS.get(kind, 0))
            ends.append(end)
    return _draw(graph, blocks, ends, _Arrangement(blocks, ends, width), height)


def _label(graph: Graph, node: Node) -> str:
    if node.kind != GROUP:
        return node.name
    rep = graph.n_heads // graph.n_kv_heads
    return f"a{node.layer}.h{node.head * rep}-{node.head * rep + rep - 1}"


def _make_blocks(
    graph: Graph, edges: Sequence[Edge], width: float
) -> tuple[list[_Block], dict[Node, list[Node]]]:
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
    blocks: list[_Block] = []
    for nodes in groups.values():
        widths = [_LETTER * len(_label(graph, node)) + _PAD for node in nodes]
        if nodes[0].kind in (HEAD, GROUP):
            widths = [max(one, 3 * TAB + 4) for one in widths]
        fit = max(1, int(width // (max(widths) + 4)))
        for start in range(0, len(nodes), fit):
            some = slice(start, start + fit)
            layer = -1 if nodes[0].kind == EMBED else nodes[0].layer
            blocks.append(_Block(nodes=nodes[some], widths=widths[some], layer=layer))
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


def _set_heights(blocks: Sequence[_Block], width: float, most: float) -> float:
    """Set the height of every block, and return that of the drawing. Heads that do not fit into a
    row have several.
    """
    rows: list[list[_Block]] = []
    steps: list[float] = []
    used = 0.0
    for block in blocks:
        last = rows[-1][-1] if rows else None
        is_new_layer = last is None or last.layer != block.layer
        is_mlp = block.nodes[0].kind == MLP
        used += block.width + _BETWEEN
        if is_new_layer or is_mlp or used > width:
            steps.append(0.0 if last is None else _STEP if is_new_layer else _HALF_STEP)
            rows.append([])
            used = block.width + _BETWEEN
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


def _bend(share: Any, margin: Any) -> Any:
    """Return the share of the way across at a share of the way up: vertical at both ends, with a
    constant slope between two margins.
    """
    top = 1 / (1 - margin)
    start = 0.5 * top * share**2 / margin
    end = 1 - 0.5 * top * (1 - share) ** 2 / margin
    middle = top * (share - margin / 2)
    return np.where(share < margin, start, np.where(share > 1 - margin, end, middle))


def _margin(height: Any) -> Any:
    return np.minimum(0.499, _EASE / np.maximum(height, 1.0))


class _Arrangement:
    """Centres of blocks that cost little: barycentres of neighbours, improved one block at a time.

    Shapes: ``c`` candidates, ``b`` blocks, ``n`` boxes, ``e`` edges.

    Attributes:
        x: Centres of the blocks.
        begins: Horizontal beginnings of the edges.
        arrives: Horizontal ends of the edges.
    """

    def __init__(self, blocks: Sequence[_Block], ends: Sequence[_End], width: float) -> None:
        self.blocks = blocks
        self.ends = ends
        self.width = width
        self.source = np.array([end.source for end in ends])
        self.target = np.array([end.target for end in ends])
        self.fans = _fans(blocks, ends, of_sources=True), _fans(blocks, ends, of_sources=False)
        self.middle = np.array([end.begin for end in ends]), np.array([end.arrive for end in ends])
        self.shift = self.middle
        self.y = np.array([block.y for block in blocks])
        self.widths = np.array([block.width for block in blocks])
        low, high = self.y[self.source], self.y[self.target]
        span = np.maximum(high - low, 1.0)
        margin = _margin(span)
        self.low, self.high, self.margin, self.span = low, high, margin, span
        # Heights at which two edges begin and end to run beside each other.
        first = np.maximum(low[:, None], low)
        last = np.minimum(high[:, None], high)
        self.beside = last - first > 1
        first_share = (first - low[:, None]) / span[:, None]
        last_share = (last - low[:, None]) / span[:, None]
        self.at_first = _bend(np.clip(first_share, 0, 1), margin[:, None])
        self.at_last = _bend(np.clip(last_share, 0, 1), margin[:, None])
        owner: list[int] = []
        inner: list[float] = []
        own_width: list[float] = []
        for number, block in enumerate(blocks):
            owner += [number] * len(block.nodes)
            inner += block.offsets
            own_width += block.widths
        self.owner, self.inner = np.array(owner), np.array(inner)
        self.reach = np.array(own_width) / 2 + 7
        # Three heights of a box with its ports: an edge of a small slope may meet one only.
        heights = np.array([BOX_HEIGHT / 2, 0.0, -BOX_HEIGHT / 2 - TAB])
        y = (self.y[self.owner][:, None] + heights).ravel()
        self.owner = np.repeat(self.owner, len(heights))
        self.inner = np.repeat(self.inner, len(heights))
        self.reach = np.repeat(self.reach, len(heights))
        share = (y - low[:, None]) / span[:, None]
        self.passes = (share > 0) & (share < 1)
        self.passes &= self.owner != self.source[:, None]
        self.passes &= self.owner != self.target[:, None]
        self.at_box = _bend(np.clip(share, 0, 1), margin[:, None])
        self.near = np.abs(self.y[:, None] - self.y) < _CLEAR
        np.fill_diagonal(self.near, False)
        starts = (self._barycentres(), self._spread())
        found = min((self._improve(start) for start in starts), key=lambda one: one[2])
        x, self.shift = found[:2]
        left, right = (x - self.widths / 2).min(), (x + self.widths / 2).max()
        self.x = x + (width - left - right) / 2
        self.begins = self.x[self.source] + self.shift[0]
        self.arrives = self.x[self.target] + self.shift[1]

    def _bounds(self, number: int) -> tuple[float, float]:
        half = min(self.widths[number] / 2 + 2, self.width / 2)
        return half, self.width - half

    def _spread(self) -> Any:
        """Return centres that are far from each other in neighbouring rows."""
        x = (0.5 + 0.61803398875 * np.arange(len(self.blocks))) % 1.0 * self.width
        for number in range(len(self.blocks)):
            x[number] = np.clip(x[number], *self._bounds(number))
        return x

    def _barycentres(self) -> Any:
        """Return centres in the order of the mean place of their neighbours in other rows."""
        x = self._spread()
        for _ in range(4):
            for y in np.unique(self.y):
                row = np.flatnonzero(self.y == y)
                means: list[float] = []
                for number in row:
                    others = [*self.target[self.source == number]]
                    others += [*self.source[self.target == number]]
                    means.append(float(np.mean(x[others])))
                for place, index in enumerate(np.argsort(means, kind="stable").tolist()):
                    even = (place + 1) / (len(row) + 1) * self.width
                    mixed = means[index] if len(row) == 1 else even
                    x[row[index]] = np.clip(mixed, *self._bounds(int(row[index])))
        return x

    def _improve(self, x: Any) -> tuple[Any, Any, float]:
        """Return centres after moving one block at a time to its best place, where edges begin and
        end on their boxes, and the cost.
        """
        x = x.copy()
        self.shift = self.middle
        best = x, self.shift, float("inf")
        for _ in range(_SWEEPS):
            self.shift = self._fan_out(x)
            for number in range(len(x)):
                places = np.append(np.linspace(*self._bounds(number), _CANDIDATES), x[number])
                tried = np.repeat(x[None], len(places), axis=0)
                tried[:, number] = places
                x[number] = places[np.argmin(self._cost(tried, number))]
            self.shift = self._fan_out(x)
            total = sum(float(self._cost(x[None], number)[0]) for number in range(len(x)))
            if total > best[2] - 1e-6:
                break
            best = x.copy(), self.shift, total
        return best

    def _fan_out(self, x: Any) -> tuple[Any, Any]:
        """Return where edges begin and end, from the centres of their blocks: edges of one box
        beside each other, in the order that they have at the height of the nearest other end; at a
        q, k or v in one point.
        """
        begins, arrives = (side.copy() for side in self.middle)
        start, end = x[self.source] + self.shift[0], x[self.target] + self.shift[1]
        for fans, is_source in zip(self.fans, (True, False), strict=True):
            for numbers, places in fans:
                y = self.high[numbers].min() if is_source else self.low[numbers].max()
                low, high = self.low[numbers], self.high[numbers]
                share = (y - low) / np.maximum(high - low, 1.0)
                across = _bend(np.clip(share, 0, 1), self.margin[numbers])
                at = start[numbers] + (end[numbers] - start[numbers]) * across
                side = begins if is_source else arrives
                side[numbers[np.argsort(at, kind="stable")]] = places
        return begins, arrives

    def _cost(self, x: Any, number: int) -> Any:
        """Return the part of the cost that depends on the place of one block.

        Args:
            x: Centres, of shape ``[c b]``.
            number: Number of the block that moves.
        """
        start, across = self._ends(x)
        own = np.flatnonzero((self.source == number) | (self.target == number))
        some, way = start[:, own, None], across[:, own, None]
        differences: list[Any] = []
        for at in (self.at_first, self.at_last):
            other = start[:, None] + across[:, None] * at[:, own].T
            differences.append(some + way * at[own] - other)
        crosses = (differences[0] * differences[1] < -1.0) & self.beside[own]
        cost = _CROSSING * crosses.sum((1, 2))
        boxes = x[:, self.owner] + self.inner
        away = np.abs(some + way * self.at_box[own] - boxes[:, None])
        cost = cost + self._through(away, self.reach, self.passes[own])
        mine = np.flatnonzero(self.owner == number)
        away = np.abs(
            start[..., None] + across[..., None] * self.at_box[:, mine] - boxes[:, None, mine]
        )
        cost = cost + self._through(away, self.reach[mine], self.passes[:, mine])
        room = (self.widths + self.widths[number]) / 2 + _BETWEEN
        overlap = np.maximum(0, room - np.abs(x - x[:, [number]])) * self.near[number]
        cost = cost + _OVERLAP * ((overlap > 0) + overlap / room).sum(1)
        length = np.abs(way)
        slope = length / (self.span[own, None] + _EASE)
        cost = cost + _SHALLOW * np.maximum(0, slope - 1.5).sum((1, 2))
        return cost + _LENGTH * (length / self.width).sum((1, 2))

    @staticmethod
    def _through(away: Any, reach: Any, passes: Any) -> Any:
        depth = np.clip(1 - away / reach, 0, 1) * passes
        return _THROUGH * ((depth > 0) * 0.5 + depth).sum((1, 2))

    def _ends(self, x: Any) -> tuple[Any, Any]:
        """Return the beginnings of edges and their lengths to the right, of shape ``[c e]``."""
        begins = x[:, self.source] + self.shift[0]
        return begins, x[:, self.target] + self.shift[1] - begins


def _fans(
    blocks: Sequence[_Block], ends: Sequence[_End], *, of_sources: bool
) -> list[tuple[Any, Any]]:
    """Return the edges that begin, or end, at one box, and their places from left to right."""
    shared: dict[tuple[int, float], list[int]] = {}
    for number, end in enumerate(ends):
        if of_sources:
            shared.setdefault((end.source, end.begin), []).append(number)
        elif end.edge.receiver.kind not in _TABS:
            shared.setdefault((end.target, end.arrive), []).append(number)
    out: list[tuple[Any, Any]] = []
    for (block, place), numbers in shared.items():
        if len(numbers) > 1:
            width = blocks[block].widths[blocks[block].offsets.index(place)]
            is_end = blocks[block].nodes[0].kind in (EMBED, LOGITS)
            half = min(width / 2 - 7, (6.0 if is_end else 5.0) * (len(numbers) - 1))
            out.append((np.array(numbers), place + np.linspace(-half, half, len(numbers))))
    return out


def _draw(
    graph: Graph,
    blocks: Sequence[_Block],
    ends: Sequence[_End],
    found: _Arrangement,
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
        if kind in _TABS:
            top -= block.frame
            port = Port(letter=kind, x=float(found.x[end.target] + end.arrive), y=top - TAB / 2)
            ports[kind, end.target, end.arrive] = port
            top -= TAB
        # Between close rows it begins behind the box of its sender.
        low = min(blocks[end.source].y + BOX_HEIGHT / 2, top - _LEAST_RISE)
        n = int(math.hypot(top - low, arrive - begin) / 6)
        share = np.linspace(0, 1, max(16, min(64, n)))
        xs = begin + (arrive - begin) * _bend(share, _margin(top - low))
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
