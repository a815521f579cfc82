"""Token positions of rows that are paired, and of the nulls; donor rows of a base row; and rows
whose difference gives a direction of the null ``norm_matched`` (METHOD 4).
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import ge
from typing import Any, TypeAlias

from anchorlens.constants import ALIGNMENTS, ANSWER_ANCHORS, DONOR_RULES, draw_label
from anchorlens.display import as_int, short_repr, shorten
from anchorlens.engine.patches import common_prefix
from anchorlens.errors import DonorError, did_you_mean
from anchorlens.fingerprint import call_user_function, callable_name, takes
from anchorlens.questions.example import Example, normalise, pool_answers
from anchorlens.questions.tokens import TokenRow, first_difference

DonorLike: TypeAlias = str | Callable[[Example, Sequence[Example]], Iterable[Example]]

# Anchors made of segments, which are paired one by one.
SEGMENTS = {"exact_question": ("subject", "property")}
# Candidates of a row that are compared by their uses; of more, some are drawn first.
_MOST_COMPARED = 300
_DRAWN = 100
# Rows of the pool that are looked at for one direction.
_MOST_TRIED = 500
# Larger pools are not copied for a draw.
_MOST_COPIED = 512


def pair_positions(
    base: TokenRow, donor: TokenRow, anchor: str, align: str
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the positions of one anchor in base and donor, paired slot by slot.

    The result is None if a segment cannot be paired.

    ``align="equal"`` requires segments of equal length; otherwise the last tokens of the longer
    segment are used.
    """
    base_out: list[int] = []
    donor_out: list[int] = []
    for segment in SEGMENTS.get(anchor, (anchor,)):
        a = base.positions[segment]
        b = donor.positions[segment]
        if align == "equal" and len(a) != len(b):
            return None
        n = min(len(a), len(b))
        if n == 0:
            return None
        base_out += _last(a, n)
        donor_out += _last(b, n)
    return tuple(base_out), tuple(donor_out)


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
        found += _last(own, n)
    return tuple(found) if len(found) == len(positions) else None


def _last(positions: tuple[int, ...], n: int) -> tuple[int, ...]:
    """Return the last ``n`` positions; none if ``n`` is 0."""
    return positions[len(positions) - n :]


def free_positions(row: TokenRow, anchor: str, region: str = "question") -> list[int]:
    """Return the prompt positions outside an anchor at which a null may lie.

    Excluded are position 0, tokens of E_Q, positions that predict an answer token, and the anchor
    itself. For anchors at the answer and ``prompt_last`` the positions lie after E_Q. The region
    ``question`` excludes text shared by all rows (shots, a template's head); ``prompt`` is the
    whole prompt.
    """
    forbidden = {
        0,
        *row.positions["exact_question"],
        *row.positions["pre_answer_all"],
        *row.positions[anchor],
    }
    if anchor in (*ANSWER_ANCHORS, "prompt_last"):
        first = max(row.positions["exact_question"]) + 1
    elif region == "question":
        first = min(row.positions["exact_question"] + row.positions["question_rest"])
    else:
        first = 1
    return [p for p in range(first, row.prompt_length) if p not in forbidden]


def null_positions(
    row: TokenRow, anchor: str, n: int, seed: int, donor_id: str, region: str = "question"
) -> tuple[int, ...]:
    """Draw the positions of ``displaced`` for a donor's streams: at most ``n`` free positions, in
    random order (METHOD 4).
    """
    free = free_positions(row, anchor, region)
    rng = random.Random(f"{seed}:null:{row.id}:{donor_id}:{draw_label(anchor)}")
    return tuple(rng.sample(free, min(n, len(free))))


def same_role_positions(
    row: TokenRow, donor: TokenRow, anchor: str, n: int, label: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw the positions of ``same_role``: at most ``n`` free positions, and the donor's
    corresponding ones (METHOD 4).

    Positions before the first token in which the inputs differ are excluded, because their streams
    are equal. Where the row has content words outside E_Q, positions are drawn from these.

    Args:
        row: Input that is patched.
        donor: Input whose streams are patched in.
        anchor: Anchor of the swap.
        n: Number of positions of the anchor.
        label: Label of the random draw.
    """
    first = common_prefix([row.ids, donor.ids], len(row.ids))
    free = [p for p in free_positions(row, anchor) if p >= first]
    content = set(row.positions.get("rest_content", ())).intersection(free)
    if content:
        free = sorted(content)
    donor_free = [p for p in free_positions(donor, anchor) if p >= first]
    pairs = _corresponding(row, donor, free, donor_free)
    drawn = random.Random(label).sample(pairs, min(n, len(pairs)))
    return tuple(p for p, _ in drawn), tuple(q for _, q in drawn)


def _corresponding(
    row: TokenRow, donor: TokenRow, free: Sequence[int], donor_free: Sequence[int]
) -> list[tuple[int, int]]:
    """Pair positions of two inputs one to one, by their offset from the nearest edge: of a segment
    of E_Q, or the prompt's end.
    """
    candidates: list[tuple[int, int, int]] = []  # distance from an edge, position, donor's position
    for edge, donor_edge in zip(_edges(row), _edges(donor), strict=True):
        for p in free:
            offset = p - edge
            candidates.append((abs(offset), p, donor_edge + offset))
    left = set(donor_free)
    pairs: dict[int, int] = {}
    for _, p, q in sorted(candidates):
        if p not in pairs and q in left:
            pairs[p] = q
            left.remove(q)
    return sorted(pairs.items())


def _edges(row: TokenRow) -> list[int]:
    """Return first and last position of both segments, and the prompt's end."""
    edges: list[int] = []
    for segment in SEGMENTS["exact_question"]:
        positions = row.positions[segment]
        edges += [positions[0], positions[-1]]
    return [*edges, row.prompt_length]


def rule_name(rule: DonorLike) -> str:
    """Return the name of a donor rule in outputs; raise DonorError if the rule is invalid."""
    if isinstance(rule, str):
        if rule not in DONOR_RULES:
            raise DonorError(
                f"donors={rule!r}: unknown rule. {did_you_mean(rule, DONOR_RULES)}",
                argument="donors",
            )
        return rule
    if not callable(rule) or isinstance(rule, type) or not takes(rule, 2):
        names = ", ".join(map(repr, DONOR_RULES))
        raise DonorError(
            f"donors={short_repr(rule)}:"
            f" must be {names} or a function (base, pool) -> rows of pool.",
            argument="donors",
        )
    return callable_name(rule)


def _kind(base: Example) -> tuple[str, str | None]:
    """Return the field and value that donors of the same kind have: the relation or, if the base
    has none, the answer type.
    """
    if base.relation is not None:
        return "relation", base.relation
    return "answer_type", base.answer_type


@dataclass(frozen=True, kw_only=True)
class DonorPicker:
    """Selects up to ``n_donors`` donors from ``pool`` for each base row, such that all ``anchors``
    can be paired.
    """

    pool: tuple[TokenRow, ...]
    rule: DonorLike
    anchors: tuple[str, ...]
    align: str
    n_donors: int
    seed: int
    _aliases: dict[str, frozenset[str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    # Place in the order of donors -> row -> earlier rows that it serves up to that place.
    _uses: dict[int, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.align not in ALIGNMENTS:
            raise DonorError(
                f"align={self.align!r}: unknown. {did_you_mean(self.align, ALIGNMENTS)}",
                argument="align",
            )
        rule_name(self.rule)
        if (as_int(self.n_donors) or 0) < 1:
            raise DonorError(
                f"n_donors={short_repr(self.n_donors)}: must be an integer >= 1.",
                argument="n_donors",
            )

    @cached_property
    def _by_shape(self) -> dict[tuple[int, int], list[TokenRow]]:
        shapes: dict[tuple[int, int], list[TokenRow]] = defaultdict(list)
        for row in self.pool:
            shapes[self._shape(row)].append(row)
        return dict(shapes)

    @cached_property
    def _by_kind(self) -> dict[tuple[int, int, str, str | None], list[TokenRow]]:
        kinds: dict[tuple[int, int, str, str | None], list[TokenRow]] = defaultdict(list)
        for row in self.pool:
            shape = self._shape(row)
            kinds[(*shape, "answer_type", row.example.answer_type)].append(row)
            if row.example.relation is not None:
                kinds[(*shape, "relation", row.example.relation)].append(row)
        return dict(kinds)

    @cached_property
    def _by_id(self) -> dict[str, TokenRow]:
        return {row.example.example_id: row for row in self.pool}

    @cached_property
    def _pooled(self) -> dict[str, tuple[str, ...]]:
        return pool_answers(row.example for row in self.pool)

    def _shape(self, row: TokenRow) -> tuple[int, int]:
        """Return the lengths of subject and property, which must agree to pair two rows at E_Q.

        All rows have the same shape for ``align='last'``, which pairs any lengths.
        """
        if self.align == "last":
            return (0, 0)
        return len(row.positions["subject"]), len(row.positions["property"])

    def pick(self, base: TokenRow) -> tuple[TokenRow, ...]:
        """Return the donors of one row: eligible rows in a random order given by the seed and the
        base's id, those that serve the fewest earlier rows first.

        Rows that share a donor are not independent, so donors are used again only where the pool is
        too small. The first donor of a row has the nulls.
        """
        candidates = self.candidates(base)
        rng = random.Random(f"{self.seed}:donors:{base.id}")
        chosen: list[TokenRow] = []
        if len(candidates) > _MOST_COMPARED:
            # In a large pool a few hundred rows nearly always hold enough donors.
            chosen = self._choose(base, rng.sample(candidates, _DRAWN))
        if len(chosen) < self.n_donors:
            rng.shuffle(candidates)
            chosen = self._choose(base, candidates)
        self._note_uses(chosen)
        return tuple(chosen)

    def candidates(self, base: TokenRow) -> list[TokenRow]:
        """Return the rows of the pool that the rule permits for a row."""
        if callable(self.rule):
            return self._call_rule(self.rule, base)
        shape = self._shape(base)
        if self.rule == "random":
            return list(self._by_shape.get(shape, []))
        return list(self._by_kind.get((*shape, *_kind(base.example)), []))

    def is_eligible(self, base: TokenRow, row: TokenRow) -> bool:
        """Return whether a row is of another question, has another answer and can be paired."""
        if row.example.question_id == base.example.question_id:
            return False
        if first_difference(base.answer_ids, row.answer_ids)[0] < 0:
            return False
        if self._alias_set(base.example) & self._alias_set(row.example):
            return False
        return self.can_pair(base, row)

    def can_pair(self, base: TokenRow, row: TokenRow) -> bool:
        """Return whether all anchors of the sweep can be paired."""
        for anchor in {"exact_question", *self.anchors}:
            if pair_positions(base, row, anchor, self.align) is None:
                return False
        return True

    def _choose(self, base: TokenRow, candidates: Sequence[TokenRow]) -> list[TokenRow]:
        """Return one eligible row for each place; the first donors are the same however many
        follow.
        """
        chosen: dict[str, TokenRow] = {}
        checked: dict[str, bool] = {}
        for place in range(self.n_donors):
            for row in self._by_uses(candidates, place):
                if row.id in chosen:
                    continue
                if row.id not in checked:
                    checked[row.id] = self.is_eligible(base, row)
                if checked[row.id]:
                    chosen[row.id] = row
                    break
            else:
                break
        return list(chosen.values())

    def _by_uses(self, candidates: Sequence[TokenRow], place: int) -> Iterator[TokenRow]:
        """Yield rows in their order, those that serve the fewest earlier rows first."""
        uses = self._uses[place]
        numbers = [uses.get(row.id, 0) for row in candidates]
        for wanted in sorted(set(numbers)):
            for row, number in zip(candidates, numbers, strict=True):
                if number == wanted:
                    yield row

    def _note_uses(self, chosen: Sequence[TokenRow]) -> None:
        for place in range(len(chosen)):
            self._uses[place].update(row.id for row in chosen[: place + 1])

    def _call_rule(
        self, rule: Callable[[Example, Sequence[Example]], Any], base: TokenRow
    ) -> list[TokenRow]:
        pool = tuple(row.example for row in self.pool)
        result = call_user_function("donors", rule, DonorError, base=base.example, pool=pool)
        intro = f"donors={rule_name(rule)}: the function returned"
        question = shorten(base.example.question)
        fix = f"for {question}. It must return rows of its second argument, pool."
        if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
            raise DonorError(f"{intro} {short_repr(result)} {fix}", argument="donors")
        examples = list(result)
        for item in examples:
            if not isinstance(item, Example):
                raise DonorError(f"{intro} {short_repr(item)} as a row {fix}", argument="donors")
        for example in examples:
            if example.example_id not in self._by_id:
                raise DonorError(
                    f"{intro} {shorten(example.question)}, a row outside the pool, {fix}",
                    argument="donors",
                )
        return [self._by_id[example.example_id] for example in examples]

    def _alias_set(self, example: Example) -> frozenset[str]:
        if example.example_id not in self._aliases:
            answers = (*example.answers, *self._pooled.get(example.question_id, ()))
            self._aliases[example.example_id] = frozenset(map(normalise, answers))
        return self._aliases[example.example_id]


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
        for index in _random_indices(rng, len(candidates)):
            row = candidates[index]
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


def _random_indices(rng: random.Random, n: int) -> Iterator[int]:
    """Yield different random indices below ``n``, at most ``_MOST_TRIED``."""
    n_drawn = min(_MOST_TRIED, n)
    if n <= _MOST_COPIED:
        indices = list(range(n))
        for last in range(n - 1, n - 1 - n_drawn, -1):
            at = rng.randrange(last + 1)
            yield indices[at]
            indices[at] = indices[last]
        return
    drawn: set[int] = set()
    while len(drawn) < n_drawn:
        index = rng.randrange(n)
        if index not in drawn:
            drawn.add(index)
            yield index
