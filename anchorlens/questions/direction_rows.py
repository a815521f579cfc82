"""Rows whose difference gives a direction of the null ``norm_matched`` (METHOD 4)."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import ge

from anchorlens.questions.donors import SEGMENTS
from anchorlens.questions.example import normalise
from anchorlens.questions.tokens import TokenRow

# Rows of the pool that are looked at for one direction.
_MOST_TRIED = 500
# Larger pools are not copied for a draw.
_MOST_COPIED = 512


@dataclass(frozen=True, kw_only=True)
class DirectionPicker:
    """Selects pairs of other rows at the same role and offset as a patched anchor.

    Attributes:
        pool: Rows of the data set.
        anchors: Anchors of the sweep; a row fits if all of them can be paired.
        align: ``equal`` or ``last``, as for donors.
        seed: Random seed of the draws.
    """

    pool: tuple[TokenRow, ...]
    anchors: tuple[str, ...]
    align: str
    seed: int
    # Draw -> row -> earlier rows that it serves in this draw.
    _uses: dict[int, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter), init=False, repr=False, compare=False
    )
    # Draw -> all uses of rows in it.
    _n_uses: Counter[int] = field(default_factory=Counter, init=False, repr=False, compare=False)
    # Row -> its answers and the numbers of tokens of its segments.
    _profiles: dict[str, "_Profile"] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def pick(self, base: TokenRow, donor: TokenRow, draw: int) -> tuple[TokenRow, TokenRow] | None:
        """Draw two rows that share no answer with base and donor, those that serve the fewest
        earlier draws; None if the pool has fewer than two.

        In a large pool the search ends at two rows that serve no more of them than rows do on
        average.
        """
        rng = random.Random(f"{self.seed}:directions:{base.id}:{donor.id}:{draw}")
        own = self._profile(base)
        known = own.answers | self._profile(donor).answers
        questions = {base.group, donor.group}
        few = 0
        if len(self.pool) > _MOST_TRIED:
            n_uses = sum(self._n_uses[number] for number in range(draw + 1))
            few = n_uses // len(self.pool)
        few_uses: list[TokenRow] = []
        used: list[TokenRow] = []
        candidates = self._candidates(own)
        for number in _numbers(rng, len(candidates)):
            row = candidates[number]
            other = self._profile(row)
            if row.group in questions or known & other.answers or not self._fits(own, other):
                continue
            (used if self._count_uses(row, draw) > few else few_uses).append(row)
            questions.add(row.group)
            if len(few_uses) == 2:
                break
        used.sort(key=lambda row: self._count_uses(row, draw))
        chosen = [*few_uses, *used][:2]
        if len(chosen) < 2:
            return None
        self._uses[draw].update(row.id for row in chosen)
        self._n_uses[draw] += len(chosen)
        return chosen[0], chosen[1]

    def _candidates(self, base: "_Profile") -> Sequence[TokenRow]:
        if len(self.pool) <= _MOST_COPIED or self.align != "equal":
            return self.pool
        return self._by_lengths.get(base.lengths, [])

    @cached_property
    def _by_lengths(self) -> dict[tuple[int, ...], list[TokenRow]]:
        found: dict[tuple[int, ...], list[TokenRow]] = defaultdict(list)
        for row in self.pool:
            found[self._profile(row).lengths].append(row)
        return dict(found)

    def _count_uses(self, row: TokenRow, draw: int) -> int:
        """Count the uses in this draw and earlier ones, so that further draws change none."""
        return sum(self._uses[number].get(row.id, 0) for number in range(draw + 1))

    def _fits(self, base: "_Profile", row: "_Profile") -> bool:
        if self.align == "equal":
            return row.lengths == base.lengths
        return all(map(ge, row.lengths, base.lengths))

    def _profile(self, row: TokenRow) -> "_Profile":
        if row.id not in self._profiles:
            answers = frozenset(map(normalise, row.example.answers))
            anchors = sorted({"exact_question", *self.anchors})
            segments: list[str] = []
            for anchor in anchors:
                segments += SEGMENTS.get(anchor, (anchor,))
            lengths = tuple(len(row.positions[name]) for name in segments)
            self._profiles[row.id] = _Profile(answers=answers, lengths=lengths)
        return self._profiles[row.id]


@dataclass(frozen=True, kw_only=True)
class _Profile:
    answers: frozenset[str]
    lengths: tuple[int, ...]


def _numbers(rng: random.Random, n: int) -> Iterator[int]:
    """Yield different random numbers below ``n``, at most ``_MOST_TRIED``."""
    n_drawn = min(_MOST_TRIED, n)
    if n <= _MOST_COPIED:
        numbers = list(range(n))
        for last in range(n - 1, n - 1 - n_drawn, -1):
            at = rng.randrange(last + 1)
            yield numbers[at]
            numbers[at] = numbers[last]
        return
    drawn: set[int] = set()
    while len(drawn) < n_drawn:
        number = rng.randrange(n)
        if number not in drawn:
            drawn.add(number)
            yield number


def positions_towards(
    row: TokenRow, target: TokenRow, anchor: str, positions: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the positions of a row that correspond to patched positions of an anchor, paired from
    the last token of each segment; None if a segment is too short.
    """
    wanted = set(positions)
    found: list[int] = []
    for segment in SEGMENTS.get(anchor, (anchor,)):
        n = len(wanted.intersection(target.positions[segment]))
        own = row.positions[segment]
        if len(own) < n:
            return None
        found += own[len(own) - n :]
    return tuple(found) if len(found) == len(positions) else None
