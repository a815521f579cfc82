"""Geometry of a pass: which tokens the cone engine computes, known before any tensor is made.

A *clean row* is computed up to the last position that is read or taken as a source. A *cone* is the
part of a changed row from its first changed to its last read position. :class:`RowGeometry` has the
cones of one row, :class:`PassGeometry` those of the rows of a pass. The plans of the engine
(:mod:`anchorlens.engine.cone_plans`) and the planner of a sweep (:mod:`anchorlens.measure`) take
sizes from here, so that what is predicted is what is run.

A *lane* is a changed copy of the clean rows (:class:`Lanes`). It starts in the first layer of its
window, so lanes are ordered by that layer. Windows of knockouts that begin in the same layer share
their first layers: shorter windows are copied from the lane of the longest one where they end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anchorlens.engine.cost import GroupSize, PassSize
from anchorlens.engine.patches import common_prefix, window_layers
from anchorlens.models.adapter import SiteLike

Ids = tuple[int, ...]

_RESIDUAL = ("resid_pre", "resid_mid", "resid_post")


class Change(NamedTuple):
    """Patch of one row.

    Attributes:
        targets: Patched positions.
        sources: Position in the donor's row for each of them; () if activations are given.
        is_copy: Whether the donor's activation itself is written. False for directions, whose size
            alone depends on the donor, and for given activations.
    """

    targets: Sequence[int]
    sources: Sequence[int] = ()
    is_copy: bool = False


class Cone(NamedTuple):
    """Computed part of a changed row.

    Attributes:
        start: First computed position.
        reads_donor: Whether changed positions before ``start`` equal the donor's clean row, from
            which they are read.
    """

    start: int
    reads_donor: bool


@dataclass(frozen=True, kw_only=True)
class RowGeometry:
    """Reads and cones of one row.

    Attributes:
        ids: Token ids of the row.
        donor: Token ids of its donor; () without one.
        reads: Read positions.
        end: One past the last position that is computed.
        donor_end: One past the last position of the donor that is computed; 0 without one.
        first: First position that is changed, read or taken as a source; None without one.
        cones: Cone of each change; None for a change that no read position can depend on.
    """

    ids: Ids
    donor: Ids = ()
    reads: tuple[int, ...]
    end: int
    donor_end: int = 0
    first: int | None
    cones: tuple[Cone | None, ...]

    @classmethod
    def of_patches(
        cls, ids: Ids, donor: Ids, reads: Sequence[int], changes: Iterable[Change], site: SiteLike
    ) -> "RowGeometry":
        """Return the geometry of a row for patches at a hook site.

        Examples:
            >>> row = RowGeometry.of_patches((5, 6, 7, 8), (), [3], [Change([1])], "mlp_out")
            >>> row.end, row.cones
            (4, (Cone(start=1, reads_donor=False),))
        """
        end = max(reads, default=-1) + 1
        cones: list[Cone | None] = []
        # Heads share their positions, so many changes of a row have the same cone.
        known: dict[tuple[tuple[int, int | None], ...], Cone] = {}
        touched = list(reads)
        donor_end = 0
        for change in changes:
            sources = change.sources or [None] * len(change.targets)
            pairs = [(t, s) for t, s in zip(change.targets, sources, strict=True) if t < end]
            if not pairs:
                cones.append(None)
                continue
            taken = [source for _, source in pairs if source is not None]
            donor_end = max([donor_end, *(source + 1 for source in taken)])
            touched += [target for target, _ in pairs] + taken
            key = tuple((t, s if change.is_copy else None) for t, s in pairs)
            if key not in known:
                known[key] = _cone(ids, donor, key, reads, site)
            cones.append(known[key])
        return cls(
            ids=ids,
            donor=donor,
            reads=tuple(reads),
            end=end,
            donor_end=donor_end,
            first=min(touched, default=None),
            cones=tuple(cones),
        )

    @classmethod
    def of_cuts(cls, ids: Ids, reads: Sequence[int], starts: Iterable[int | None]) -> "RowGeometry":
        """Return the geometry of a row for cut attention edges.

        Args:
            ids: Token ids.
            reads: Read positions; without any, the whole row is computed.
            starts: First position with a cut edge, for each knockout; None for no edge.
        """
        end = max(reads) + 1 if reads else len(ids)
        cones = [None if start is None or start >= end else Cone(start, False) for start in starts]
        touched = [*reads, *(cone.start for cone in cones if cone is not None)]
        return cls(
            ids=ids,
            reads=tuple(reads),
            end=end,
            first=min(touched, default=None),
            cones=tuple(cones),
        )


@dataclass
class _ChangeSize:
    """Tokens and rows of the cones of one change, and the tokens of the longest cone."""

    tokens: int = 0
    rows: int = 0
    width: int = 0

    def add(self, length: int) -> None:
        """Add the cone of a row, of ``length`` tokens."""
        self.tokens += length
        self.rows += 1
        self.width = max(self.width, length)


class PassGeometry:
    """Geometry of the rows of a pass.

    Args:
        rows: First rows; :meth:`add` adds more.
        prefix: Number of tokens that all rows begin with and that are computed elsewhere.
        merge: Whether rows with equal tokens are one clean row.

    Attributes:
        rows: Geometry of each row.
        clean_rows: Token ids of each clean row, donors included, and one past its last computed
            position.
    """

    def __init__(
        self, rows: Iterable[RowGeometry] = (), *, prefix: int = 0, merge: bool = True
    ) -> None:
        self.rows: list[RowGeometry] = []
        self.prefix = prefix
        self.merge = merge
        self.clean_rows: list[tuple[Ids, int]] = []
        self._index: dict[Ids, int] = {}
        self._row_index: list[int] = []
        self._donor_index: list[int | None] = []
        self._sizes: list[_ChangeSize] = []
        self._clean_tokens = 0
        for row in rows:
            self.add(row)

    def add(self, row: RowGeometry) -> None:
        """Add a row, with as many changes as the others."""
        self._row_index.append(self._add_clean_row(row.ids, row.end))
        donor = self._add_clean_row(row.donor, row.donor_end) if row.donor_end else None
        self._donor_index.append(donor)
        if not self.rows:
            self._sizes = [_ChangeSize() for _ in row.cones]
        self.rows.append(row)
        for size, cone in zip(self._sizes, row.cones, strict=True):
            if cone is not None:
                size.add(row.end - cone.start)

    def _add_clean_row(self, ids: Ids, stop: int) -> int:
        """Note that a clean row is computed up to ``stop``, and return its number."""
        number = self._index.get(ids) if self.merge else None
        if number is None:
            number = self._index[ids] = len(self.clean_rows)
            self.clean_rows.append((ids, self.prefix))
        before = self.clean_rows[number][1]
        self.clean_rows[number] = (ids, max(before, stop))
        self._clean_tokens += max(before, stop) - before
        return number

    def clean_row(self, number: int) -> int:
        """Return the number of the clean row of a row."""
        return self._row_index[number]

    def donor_row(self, number: int) -> int:
        """Return the number of the clean row of a row's donor."""
        donor = self._donor_index[number]
        assert donor is not None  # only rows that take activations of their donor have one
        return donor

    def cones_of(self, change: int) -> dict[int, Cone]:
        """Return row -> cone of a change, for the rows that have one."""
        cones = {}
        for number, row in enumerate(self.rows):
            cone = row.cones[change]
            if cone is not None:
                cones[number] = cone
        return cones

    @property
    def ends(self) -> list[int]:
        """One past the last computed position of each row."""
        return [row.end for row in self.rows]

    @property
    def shared(self) -> Ids:
        """Tokens that all clean rows begin with, before the first position that is used."""
        firsts = [row.first for row in self.rows if row.first is not None]
        rows = [ids for ids, _ in self.clean_rows]
        return rows[0][: common_prefix(rows, min(firsts, default=0))]

    def size(self) -> PassSize:
        """Return the size of the pass."""
        keys = max((stop for _, stop in self.clean_rows), default=0)
        groups = []
        for size in self._sizes:
            group = GroupSize(size.tokens, size.rows, size.width, keys)
            if size.rows:
                groups.append(group)
        return PassSize(
            clean_tokens=self._clean_tokens,
            clean_rows=len(self.clean_rows),
            clean_keys=keys,
            cell_groups=tuple(groups),
            prefix=self.prefix,
            reads=sum(len(row.reads) for row in self.rows),
        )


def _cone(
    ids: Ids,
    donor: Ids,
    pairs: Sequence[tuple[int, int | None]],
    reads: Sequence[int],
    site: SiteLike,
) -> Cone:
    start = cone_start(ids, donor, pairs, reads, site)
    return Cone(start, start > min(target for target, _ in pairs))


def cone_start(
    ids: Sequence[int],
    donor: Sequence[int],
    pairs: Sequence[tuple[int, int | None]],
    reads: Sequence[int],
    site: SiteLike,
) -> int:
    """Return the first position of a patched row that has to be computed.

    The start of a patched row can equal the donor's clean run, whose streams are already computed.
    Both are equal as long as each position is patched from the same donor position or lies in the
    common prefix of both rows.

    Args:
        ids: Token ids of the row.
        donor: Token ids of the donor; () without one.
        pairs: Patched position and donor position, or None for another activation.
        reads: Read positions.
        site: Patched site.
    """
    source = dict(pairs)
    first = min(source)
    # Only a patched residual stream equals the donor's; attention and MLP outputs are added to the
    # base's stream.
    if str(site) not in _RESIDUAL:
        return first
    alike = common_prefix([tuple(ids), tuple(donor)], min(len(ids), len(donor)))
    stop = min(max(source) + 1, *(position for position in reads if position >= first))
    if first > alike:
        return first

    def equals_donor(position: int) -> bool:
        return source[position] == position if position in source else position < alike

    start = at = first
    while at < stop and equals_donor(at):
        at += 1
        # The donor's clean row is computed up to the last position that is patched from it.
        if at - 1 in source:
            start = at
    return start


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """Changed copies of the clean rows that run in parallel, ordered by starting layer.

    Attributes:
        start: Layer at which each lane starts.
        first: First changed layer of each lane.
        last: Last changed layer of each lane; below ``first`` for a copy of the first lane that is
            not changed further.
        lane_of: Lane of each window in the caller's list.
        forked: Whether lanes after the first are copies of the first, not of the clean rows.
    """

    start: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    lane_of: tuple[int, ...]
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
        lane_of = [0] * len(windows)
        for lane, i in enumerate(order):
            lane_of[i] = lane
            starts.append(windows[i].start)
            lasts.append(windows[i][-1])
        return cls(
            start=tuple(starts), first=tuple(starts), last=tuple(lasts), lane_of=tuple(lane_of)
        )

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
                lane_of.append(lanes.lane_of[n_full])
                n_full += 1
            else:
                lane_of.append(-1)
        return lanes, lane_of

    @classmethod
    def _fork(cls, windows: Sequence[range], full: Sequence[range]) -> "tuple[Lanes, list[int]]":
        """Make the lanes of :meth:`cuts` for windows that begin in the same layer.

        ``full``: those that are not empty.
        """
        first = full[0].start
        ends = sorted({w[-1] for w in full})
        last = ends.pop()
        lanes = cls(
            start=(first, *(end + 1 for end in ends)),
            # A copy changes nothing more: its first changed layer lies behind its last.
            first=(first, *[1] * len(ends)),
            last=(last, *[0] * len(ends)),
            lane_of=(),
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
