"""Donors: the other rows that a base row is changed with, and the positions that are paired (METHOD 4)."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

from anchorlens.constants import ALIGNMENTS, ANSWER_ANCHORS, DONOR_RULES, draw_label
from anchorlens.display import as_whole, described, shortened
from anchorlens.errors import DonorError, did_you_mean
from anchorlens.fingerprint import call_user_function, callable_name, takes
from anchorlens.questions.example import Example, normalise, pooled_answers
from anchorlens.questions.tokens import TokenRow

# Anchors that are made of segments; each segment is paired on its own.
SEGMENTS = {"exact_question": ("subject", "property")}


DonorLike: TypeAlias = str | Callable[[Example, Sequence[Example]], Iterable[Example]]


def rule_name(rule: DonorLike) -> str:
    """The name of a rule as outputs write it."""
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
    """Positions of one anchor in base and donor, paired slot by slot."""
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
    """Finds up to ``n_donors`` donors for each base row."""

    pool: tuple[TokenRow, ...]
    rule: DonorLike
    anchors: tuple[str, ...]
    align: str
    n_donors: int
    seed: int
    _aliases: dict[str, frozenset[str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.align not in ALIGNMENTS:
            raise DonorError(f"Unknown align={self.align!r}. {did_you_mean(self.align, ALIGNMENTS)}")
        rule_name(self.rule)
        if (as_whole(self.n_donors) or 0) < 1:
            raise DonorError(f"n_donors must be a whole number, at least 1; got {described(self.n_donors)}.")

    @cached_property
    def _by_shape(self) -> dict[tuple[int, int], list[TokenRow]]:
        shapes: dict[tuple[int, int], list[TokenRow]] = defaultdict(list)
        for row in self.pool:
            shapes[self._shape(row)].append(row)
        return dict(shapes)

    @cached_property
    def _pooled(self) -> dict[str, tuple[str, ...]]:
        return pooled_answers(row.example for row in self.pool)

    def _shape(self, row: TokenRow) -> tuple[int, int]:
        """Rows of one shape can be paired at E_Q; with ``align='last'`` all can."""
        if self.align == "last":
            return (0, 0)
        return len(row.positions["subject"]), len(row.positions["property"])

    def pick(self, base: TokenRow) -> tuple[TokenRow, ...]:
        """The donors of one row, best-mixed first: eligible rows in an order drawn from the seed and the base's id."""
        candidates = self._candidates(base)
        random.Random(f"{self.seed}:donors:{base.id}").shuffle(candidates)
        return tuple(islice((row for row in candidates if self._eligible(base, row)), self.n_donors))

    def _candidates(self, base: TokenRow) -> list[TokenRow]:
        if callable(self.rule):
            return self._chosen(self.rule, base)
        same_shape = self._by_shape.get(self._shape(base), [])
        return [row for row in same_shape if self.rule == "random" or same_kind(base.example, row.example)]

    def _chosen(self, rule: Callable[[Example, Sequence[Example]], Any], base: TokenRow) -> list[TokenRow]:
        by_id = {row.example.example_id: row for row in self.pool}
        pool = tuple(row.example for row in self.pool)
        given = call_user_function("donors", rule, DonorError, base=base.example, pool=pool)
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
        return all(pair_positions(base, row, anchor, self.align) is not None for anchor in {"exact_question", *self.anchors})

    def _alias_set(self, example: Example) -> frozenset[str]:
        if example.example_id not in self._aliases:
            answers = (*example.answers, *self._pooled.get(example.question_id, ()))
            self._aliases[example.example_id] = frozenset(normalise(answer) for answer in answers)
        return self._aliases[example.example_id]


def null_positions(
    row: TokenRow, anchor: str, wanted: int, seed: int, donor_id: str, where: str = "question"
) -> tuple[int, ...]:
    """Draw the null's positions for a donor's streams: at most ``wanted`` other prompt positions, in random order (METHOD 4).

    Never position 0, a token of E_Q, a position from which the answer is predicted, or the anchor itself; for the anchors at the
    answer and for ``prompt_last`` only positions after E_Q. ``where='question'`` leaves out what all rows share (shots, the head of a
    template); ``'prompt'`` takes the whole prompt.
    """
    forbidden = {0, *row.positions["exact_question"], *row.positions["pre_answer_all"], *row.positions[anchor]}
    if anchor in (*ANSWER_ANCHORS, "prompt_last"):
        first = max(row.positions["exact_question"]) + 1
    else:
        first = min(row.positions["exact_question"] + row.positions["question_rest"]) if where == "question" else 1
    free = [p for p in range(first, row.prompt_length) if p not in forbidden]
    rng = random.Random(f"{seed}:null:{row.id}:{donor_id}:{draw_label(anchor)}")
    return tuple(rng.sample(free, min(wanted, len(free))))
