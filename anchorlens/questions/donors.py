"""Which other rows a base row is changed with (METHOD 4), and which positions are paired.

A donor is eligible when it asks another question, shares no gold alias, begins its answer with another token, and its anchors can
be paired with the base's slot by slot. The rule decides who is asked first: rows of the same relation, or any row, or the user's.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from anchorlens.callables import callable_name, takes
from anchorlens.errors import DonorError, did_you_mean
from anchorlens.kinds import as_whole, described, shortened
from anchorlens.questions.example import Example, normalise, pooled_answers
from anchorlens.questions.tokens import TokenRow
from anchorlens.vocabulary import ALIGNMENTS, ANSWER_ANCHORS, DONOR_RULES

# Anchors that are made of segments; each segment is paired on its own.
SEGMENTS = {"question": ("subject", "property")}


@runtime_checkable
class DonorRule(Protocol):
    """A rule of the user's own: which rows of the pool may be donors of ``base``; order does not matter."""

    def __call__(self, base: Example, pool: Sequence[Example]) -> Iterable[Example]:
        """Rows of ``pool`` that may be donors."""
        ...


DonorLike: TypeAlias = str | DonorRule | Callable[[Example, Sequence[Example]], Iterable[Example]]


def rule_name(rule: DonorLike) -> str:
    """The name of a rule as outputs write it.

    Raises:
        DonorError: No rule goes by this name, or it is neither a name nor a function of a base and a pool.
    """
    if isinstance(rule, str):
        if rule not in DONOR_RULES:
            raise DonorError(f"Unknown donor rule {rule!r}. {did_you_mean(rule, DONOR_RULES)}")
        return rule
    if not callable(rule) or isinstance(rule, type) or not takes(rule, 2):
        names = ", ".join(map(repr, DONOR_RULES))
        raise DonorError(f"donors must be {names} or a function (base, pool) -> rows of pool; got {described(rule)}.")
    return callable_name(rule)


def same_kind(base: Example, other: Example) -> bool:
    """Same relation, where the base has one, else the same answer type."""
    if base.relation is not None:
        return other.relation == base.relation
    return other.answer_type == base.answer_type


def pair_positions(base: TokenRow, donor: TokenRow, anchor: str, align: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Positions of one anchor in base and donor, paired slot by slot.

    Args:
        base: The row that is changed.
        donor: The row that it is changed with.
        anchor: An anchor's name.
        align: ``equal``: every segment has the same length in both; ``last``: pairs are counted from each segment's last token.

    Returns:
        Base positions and donor positions, equally many; None where they cannot be paired.
    """
    base_out: list[int] = []
    donor_out: list[int] = []
    for segment in SEGMENTS.get(anchor, (anchor,)):
        a, b = base.positions[segment], donor.positions[segment]
        if align == "equal" and len(a) != len(b):
            return None
        n = min(len(a), len(b))
        if n == 0:
            return None
        base_out += a[len(a) - n :]
        donor_out += b[len(b) - n :]
    return tuple(base_out), tuple(donor_out)


@dataclass(frozen=True)
class DonorPicker:
    """Finds up to ``n_donors`` donors for each base row.

    Attributes:
        pool: Token rows of the whole file (gold answers), the only place donors come from.
        rule: ``same_relation``, ``random`` or the user's callable.
        anchors: Every anchor of the run: a donor must be paired at each of them, and always at ``question``, so that one
            complete-case set of rows serves all anchors.
        align: ``equal`` or ``last``.
        n_donors: Most donors for one row.
        seed: With the base's id it decides which of the eligible rows are taken.
    """

    pool: tuple[TokenRow, ...]
    rule: DonorLike
    anchors: tuple[str, ...]
    align: str
    n_donors: int
    seed: int

    def __post_init__(self) -> None:
        if self.align not in ALIGNMENTS:
            raise DonorError(f"Unknown align={self.align!r}. {did_you_mean(self.align, ALIGNMENTS)}")
        rule_name(self.rule)
        n_donors = as_whole(self.n_donors)
        if n_donors is None:
            raise DonorError(f"n_donors must be a whole number, at least 1; got {described(self.n_donors)}.")
        if n_donors < 1:
            raise DonorError(f"n_donors must be at least 1, got {n_donors}.")
        shapes: dict[tuple[int, int], list[TokenRow]] = defaultdict(list)
        for row in self.pool:
            shapes[self._shape(row)].append(row)
        object.__setattr__(self, "_by_shape", dict(shapes))
        object.__setattr__(self, "_by_id", {row.example.example_id: row for row in self.pool})
        object.__setattr__(self, "_pooled", pooled_answers(row.example for row in self.pool))
        object.__setattr__(self, "_aliases", {})

    def _shape(self, row: TokenRow) -> tuple[int, int]:
        """Rows of one shape can be paired at E_Q; with ``align='last'`` all can."""
        if self.align == "last":
            return (0, 0)
        return len(row.positions["subject"]), len(row.positions["property"])

    def pick(self, base: TokenRow) -> tuple[TokenRow, ...]:
        """The donors of one row, best-mixed first: eligible rows in an order drawn from the seed and the base's id."""
        candidates = list(self._candidates(base))
        random.Random(f"{self.seed}:donors:{base.row_id}").shuffle(candidates)
        picked: list[TokenRow] = []
        for row in candidates:
            if self._eligible(base, row):
                picked.append(row)
            if len(picked) == self.n_donors:
                break
        return tuple(picked)

    def _candidates(self, base: TokenRow) -> Iterable[TokenRow]:
        same_shape: list[TokenRow] = self._by_shape.get(self._shape(base), [])  # pyright: ignore
        if callable(self.rule):
            return self._chosen(self.rule, base)
        if self.rule == "same_relation":
            return [row for row in same_shape if same_kind(base.example, row.example)]
        return list(same_shape)

    def _chosen(self, rule: Callable[[Example, Sequence[Example]], Any], base: TokenRow) -> list[TokenRow]:
        """Rows that the user's rule chose.

        Raises:
            DonorError: It gave something else than rows of the pool.
        """
        by_id: dict[str, TokenRow] = self._by_id  # pyright: ignore
        given = rule(base.example, tuple(row.example for row in self.pool))
        about = f"donors={rule_name(rule)} gave"
        for_base = f"for {shortened(base.example.question)}; it must give rows of the pool that it is called with (base, pool)"
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise DonorError(f"{about} {described(given)} {for_base}.")
        chosen = list(given)
        strange = [item for item in chosen if not isinstance(item, Example)]
        if strange:
            raise DonorError(f"{about} {described(strange[0])} as a row {for_base}.")
        found = [by_id[example.example_id] for example in chosen if example.example_id in by_id]
        if chosen and not found:
            raise DonorError(f"{about} only rows that are not of the pool {for_base}.")
        return found

    def _eligible(self, base: TokenRow, row: TokenRow) -> bool:
        if row.example.question_id == base.example.question_id or row.answer_ids[0] == base.answer_ids[0]:
            return False
        if self._alias_set(base.example) & self._alias_set(row.example):
            return False
        return all(pair_positions(base, row, anchor, self.align) is not None for anchor in {"question", *self.anchors})

    def _alias_set(self, example: Example) -> frozenset[str]:
        cache: dict[str, frozenset[str]] = self._aliases  # pyright: ignore
        if example.example_id not in cache:
            pooled: dict[str, tuple[str, ...]] = self._pooled  # pyright: ignore
            answers = (*example.answers, *pooled.get(example.question_id, ()))
            cache[example.example_id] = frozenset(normalise(answer) for answer in answers)
        return cache[example.example_id]


def null_positions(row: TokenRow, anchor: str, wanted: int, seed: int, donor_id: str, where: str = "own") -> tuple[int, ...]:
    """Where the null puts the donor's streams: as many random other prompt positions (METHOD 4).

    Never position 0, a token of E_Q, a position from which the answer is predicted, or the anchor itself; for the anchors at the
    answer and for ``prompt_last`` only positions after E_Q.

    Args:
        row: The input that is changed.
        anchor: The anchor that the null goes with.
        wanted: Its number of positions.
        seed: With row, donor and anchor it decides which positions are taken.
        donor_id: The donor.
        where: ``own``: in the row's own part of the prompt, from the question's first token on, where the anchors lie too; what all
            rows share (shots, the head of a template) is left alone. ``anywhere``: in the whole prompt.

    Returns:
        At most ``wanted`` positions, in random order; fewer where there are no more (the shortfall is counted by the caller).
    """
    forbidden = {0, *row.positions["question"], *row.positions["answer_site_all"], *row.positions[anchor]}
    if anchor in (*ANSWER_ANCHORS, "prompt_last"):
        first = max(row.positions["question"]) + 1
    else:
        first = min(row.positions["question"] + row.positions["question_rest"]) if where == "own" else 1
    free = [p for p in range(first, row.prompt_length) if p not in forbidden]
    rng = random.Random(f"{seed}:null:{row.row_id}:{donor_id}:{anchor}")
    return tuple(rng.sample(free, min(wanted, len(free))))
