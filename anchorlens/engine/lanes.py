"""Lanes of the cone engine: changed copies of the clean rows, and the layers that each changes.

A lane starts in the first layer of its window, so lanes are ordered by that layer. Windows of
knockouts that begin in the same layer share their first layers: shorter windows are copied from the
lane of the longest one where they end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anchorlens.engine.patches import window_layers


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """Changed copies of the clean rows that run in parallel, ordered by starting layer.

    Attributes:
        start: Layer at which each lane starts.
        first: First changed layer of each lane.
        last: Last changed layer of each lane; below ``first`` for a copy of the first lane that is
            not changed further.
        order: Index of each lane in the caller's list.
        forked: Whether lanes after the first are copies of the first, not of the clean rows.
    """

    start: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    order: tuple[int, ...]
    forked: bool = False

    @classmethod
    def windows(cls, layers: Sequence[int], window: int, n_layers: int) -> "Lanes":
        """Make one lane for the window around each layer."""
        return cls.of([window_layers(layer, window, n_layers) for layer in layers])

    @classmethod
    def of(cls, windows: Sequence[range]) -> "Lanes":
        """Make one lane for each window of layers; no window may be empty."""
        order = sorted(range(len(windows)), key=lambda i: (windows[i].start, windows[i].stop))
        starts: list[int] = []
        lasts: list[int] = []
        for i in order:
            starts.append(windows[i].start)
            lasts.append(windows[i][-1])
        return cls(start=tuple(starts), first=tuple(starts), last=tuple(lasts), order=tuple(order))

    @classmethod
    def cuts(cls, windows: Sequence[range]) -> "tuple[Lanes, list[int]]":
        """Make lanes for windows that may be empty or equal.

        If all windows begin in the same layer, the first lane has the longest window. A shorter
        window that ends at layer b gives the same activations up to b. Its lane starts at layer b +
        1 as a copy of the first lane.

        Returns:
            The lanes, and the lane of each window; -1 for an empty window, which is the clean pass.
        """
        full = [w for w in windows if w]
        if len({w.start for w in full}) == 1:
            return cls._fork(windows, full)
        lanes = cls.of(full)
        lane_of: list[int] = []
        n_full = 0
        for w in windows:
            if w:
                lane_of.append(lanes.order.index(n_full))
                n_full += 1
            else:
                lane_of.append(-1)
        return lanes, lane_of

    @classmethod
    def _fork(cls, windows: Sequence[range], full: Sequence[range]) -> "tuple[Lanes, list[int]]":
        """Make the lanes of :meth:`cuts` for windows that begin in the same layer; ``full``: those
        that are not empty.
        """
        first = full[0].start
        ends = sorted({w[-1] for w in full})
        last = ends.pop()
        lanes = cls(
            start=(first, *(end + 1 for end in ends)),
            # A copy changes nothing more: its first changed layer lies behind its last.
            first=(first, *[1] * len(ends)),
            last=(last, *[0] * len(ends)),
            order=(),
            forked=True,
        )
        lane_of: list[int] = []
        for w in windows:
            if not w:
                lane_of.append(-1)
            elif w[-1] == last:
                lane_of.append(0)
            else:
                lane_of.append(1 + ends.index(w[-1]))
        return lanes, lane_of

    def count_lanes(self, layer: int) -> int:
        """Return the number of lanes that start at or before ``layer``."""
        return sum(start <= layer for start in self.start)

    def active_ranges(self, layer: int) -> list[tuple[int, int]]:
        """Return the ranges (first, stop) of neighbouring lanes that are changed in ``layer``."""
        ranges: list[tuple[int, int]] = []
        for j in range(len(self.start)):
            if not self.first[j] <= layer <= self.last[j]:
                continue
            if ranges and ranges[-1][1] == j:
                ranges[-1] = (ranges[-1][0], j + 1)
            else:
                ranges.append((j, j + 1))
        return ranges
