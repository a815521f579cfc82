"""Columns of the nodes of a circuit: blocks of boxes beside each other, so that few edges cross.

Lengths are pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from anchorlens.engine.edges.graph import EMBED, LOGITS, Edge, Node

BOX_HEIGHT = 15
TAB = 10  # side of the square of a q, k or v
TABS = {"q": -TAB - 1, "k": 0, "v": TAB + 1}
"""Centres of the squares from that of a head."""
_FRAME = 3  # gap between heads and their frame
BETWEEN = 10  # gap of two boxes beside each other
_CLEAR = BOX_HEIGHT + TAB + 8  # rows that are closer must not have boxes at the same x
_EASE = 36  # height in which an edge bends from the vertical to its slope
_CANDIDATES = 41
_SWEEPS = 6
# Costs: two edges cross; an edge runs through a box; two boxes overlap; an edge runs across the
# whole width; the slope of an edge is smaller.
_CROSSING, _THROUGH, _OVERLAP, _LENGTH, _SHALLOW = 1.0, 2.5, 60.0, 4.0, 0.5


class End(NamedTuple):
    """Edge with the numbers of its two blocks, and its places from their centres."""

    edge: Edge
    source: int
    begin: float
    target: int
    arrive: float


@dataclass(kw_only=True)
class BoxBlock:
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


class Arrangement:
    """Centres of blocks that cost little: barycentres of neighbours, improved one block at a time.

    Shapes: ``c`` candidates, ``b`` blocks, ``n`` boxes, ``e`` edges.

    Attributes:
        x: Centres of the blocks.
        begins: Horizontal beginnings of the edges.
        arrives: Horizontal ends of the edges.
    """

    def __init__(self, blocks: Sequence[BoxBlock], ends: Sequence[End], width: float) -> None:
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
        margin = margin_of(span)
        self.low, self.high, self.margin, self.span = low, high, margin, span
        # Heights at which two edges begin and end to run beside each other.
        first = np.maximum(low[:, None], low)
        last = np.minimum(high[:, None], high)
        self.beside = last - first > 1
        first_share = (first - low[:, None]) / span[:, None]
        last_share = (last - low[:, None]) / span[:, None]
        self.at_first = bend(np.clip(first_share, 0, 1), margin[:, None])
        self.at_last = bend(np.clip(last_share, 0, 1), margin[:, None])
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
        self.at_box = bend(np.clip(share, 0, 1), margin[:, None])
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
                across = bend(np.clip(share, 0, 1), self.margin[numbers])
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
        room = (self.widths + self.widths[number]) / 2 + BETWEEN
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
    blocks: Sequence[BoxBlock], ends: Sequence[End], *, of_sources: bool
) -> list[tuple[Any, Any]]:
    """Return the edges that begin, or end, at one box, and their places from left to right."""
    shared: dict[tuple[int, float], list[int]] = {}
    for number, end in enumerate(ends):
        if of_sources:
            shared.setdefault((end.source, end.begin), []).append(number)
        elif end.edge.receiver.kind not in TABS:
            shared.setdefault((end.target, end.arrive), []).append(number)
    out: list[tuple[Any, Any]] = []
    for (block, place), numbers in shared.items():
        if len(numbers) > 1:
            width = blocks[block].widths[blocks[block].offsets.index(place)]
            is_end = blocks[block].nodes[0].kind in (EMBED, LOGITS)
            half = min(width / 2 - 7, (6.0 if is_end else 5.0) * (len(numbers) - 1))
            out.append((np.array(numbers), place + np.linspace(-half, half, len(numbers))))
    return out


def bend(share: Any, margin: Any) -> Any:
    """Return the share of the way across at a share of the way up: vertical at both ends, with a
    constant slope between two margins.
    """
    top = 1 / (1 - margin)
    start = 0.5 * top * share**2 / margin
    end = 1 - 0.5 * top * (1 - share) ** 2 / margin
    middle = top * (share - margin / 2)
    return np.where(share < margin, start, np.where(share > 1 - margin, end, middle))


def margin_of(height: Any) -> Any:
    """Return the share of a height in which an edge bends."""
    return np.minimum(0.499, _EASE / np.maximum(height, 1.0))
