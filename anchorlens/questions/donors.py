"""Donor rows of a base row, and the token positions that are paired (METHOD 4)."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

from anchorlens.constants import ALIGNMENTS, ANSWER_ANCHORS, DONOR_RULES, draw_label
from anchorlens.display import as_int, short_repr, shorten
from anchorlens.errors import DonorError, did_you_mean
from anchorlens.fingerprint import call_user_function, callable_name, takes
from anchorlens.prompts.batches import common_prefix
from anchorlens.questions.example import Example, normalise, pool_answers
from anchorlens.questions.tokens import TokenRow

# Anchors made of segments, which are paired one by one.
SEGMENTS = {"exact_question": ("subject", "property")}


DonorLike: TypeAlias = str | Callable[[Example, Sequence[Example]], Iterable[Example]]


def rule_name(rule: DonorLike) -> str:
    """Return the name of a donor rule in outputs; raise DonorError if the rule is invalid."""
    if isinstance(rule, str):
        if rule not in DONOR_RULES:
            raise DonorError(f"donors={rule!r}: unknown rule. {did_you_mean(rule, DONOR_RULES)}", argument="donors")
        return rule
    if not callable(rule) or isinstance(rule, type) or not takes(rule, 2):
        names = ", ".join(map(repr, DONOR_RULES))
        raise DonorError(
            f"donors={short_repr(rule)}: must be {names} or a function (base, pool) -> rows of pool.", argument="donors"
        )
    return callable_name(rule)


def same_kind(base: Example, other: Example) -> bool:
    """Return True if both have the same relation or, if the base has none, the same answer type."""
    if base.relation is not None:
        return other.relation == base.relation
    return other.answer_type == base.answer_type


def pair_positions(base: TokenRow, donor: TokenRow, anchor: str, align: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the positions of one anchor in base and donor, paired slot by slot; None if a segment cannot be paired.

    ``align="equal"`` requires segments of equal length; otherwise the last tokens of the longer segment are used.
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
    """Selects up to ``n_donors`` donors from ``pool`` for each base row, such that all ``anchors`` can be paired."""

    pool: tuple[TokenRow, ...]
    rule: DonorLike
    anchors: tuple[str, ...]
    align: str
    n_donors: int
    seed: int
    _aliases: dict[str, frozenset[str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.align not in ALIGNMENTS:
            raise DonorError(f"align={self.align!r}: unknown. {did_you_mean(self.align, ALIGNMENTS)}", argument="align")
        rule_name(self.rule)
        if (as_int(self.n_donors) or 0) < 1:
            raise DonorError(f"n_donors={short_repr(self.n_donors)}: must be an integer >= 1.", argument="n_donors")

    @cached_property
    def _by_shape(self) -> dict[tuple[int, int], list[TokenRow]]:
        shapes: dict[tuple[int, int], list[TokenRow]] = defaultdict(list)
        for row in self.pool:
            shapes[self._shape(row)].append(row)
        return dict(shapes)

    @cached_property
    def _by_id(self) -> dict[str, TokenRow]:
        return {row.example.example_id: row for row in self.pool}

    @cached_property
    def _pooled(self) -> dict[str, tuple[str, ...]]:
        return pool_answers(row.example for row in self.pool)

    def _shape(self, row: TokenRow) -> tuple[int, int]:
        """Return the lengths that must agree to pair rows at E_Q; constant for ``align='last'``."""
        if self.align == "last":
            return (0, 0)
        return len(row.positions["subject"]), len(row.positions["property"])

    def pick(self, base: TokenRow) -> tuple[TokenRow, ...]:
        """Return the donors of one row: eligible rows in a random order given by the seed and the base's id."""
        candidates = self._candidates(base)
        random.Random(f"{self.seed}:donors:{base.id}").shuffle(candidates)
        return tuple(islice((row for row in candidates if self._eligible(base, row)), self.n_donors))

    def _candidates(self, base: TokenRow) -> list[TokenRow]:
        if callable(self.rule):
            return self._call_rule(self.rule, base)
        same_shape = self._by_shape.get(self._shape(base), [])
        return [row for row in same_shape if self.rule == "random" or same_kind(base.example, row.example)]

    def _call_rule(self, rule: Callable[[Example, Sequence[Example]], Any], base: TokenRow) -> list[TokenRow]:
        pool = tuple(row.example for row in self.pool)
        result = call_user_function("donors", rule, DonorError, base=base.example, pool=pool)
        intro = f"donors={rule_name(rule)}: the function returned"
        fix = f"for {shorten(base.example.question)}. It must return rows of its second argument, pool."
        if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
            raise DonorError(f"{intro} {short_repr(result)} {fix}", argument="donors")
        examples = list(result)
        invalid = [item for item in examples if not isinstance(item, Example)]
        if invalid:
            raise DonorError(f"{intro} {short_repr(invalid[0])} as a row {fix}", argument="donors")
        foreign = next((example for example in examples if example.example_id not in self._by_id), None)
        if foreign is not None:
            raise DonorError(f"{intro} {shorten(foreign.question)}, a row outside the pool, {fix}", argument="donors")
        return [self._by_id[example.example_id] for example in examples]

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


def null_positions(row: TokenRow, anchor: str, n: int, seed: int, donor_id: str, region: str = "question") -> tuple[int, ...]:
    """Draw the positions of ``displaced`` for a donor's streams: at most ``n`` free positions, in random order (METHOD 4)."""
    free = free_positions(row, anchor, region)
    rng = random.Random(f"{seed}:null:{row.id}:{donor_id}:{draw_label(anchor)}")
    return tuple(rng.sample(free, min(n, len(free))))


def same_role_positions(row: TokenRow, donor: TokenRow, anchor: str, n: int, label: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw the positions of ``same_role``: at most ``n`` free positions, and the donor's corresponding ones (METHOD 4).

    Positions before the first token in which the inputs differ are excluded, because their streams are equal.

    Args:
        row: Input that is patched.
        donor: Input whose streams are patched in.
        anchor: Anchor of the swap.
        n: Number of positions of the anchor.
        label: Label of the random draw.
    """
    first = common_prefix([row.ids, donor.ids], len(row.ids))
    pairs = _corresponding(row, donor, *([p for p in free_positions(one, anchor) if p >= first] for one in (row, donor)))
    drawn = random.Random(label).sample(pairs, min(n, len(pairs)))
    return tuple(p for p, _ in drawn), tuple(q for _, q in drawn)


def _corresponding(row: TokenRow, donor: TokenRow, free: Sequence[int], donor_free: Sequence[int]) -> list[tuple[int, int]]:
    """Pair positions of two inputs one to one, by their offset from the nearest edge: of a segment of E_Q, or the prompt's end."""
    edges = list(zip(_edges(row), _edges(donor), strict=True))
    left, pairs = set(donor_free), dict[int, int]()
    for _, p, q in sorted((abs(p - here), p, p - here + there) for here, there in edges for p in free):
        if p not in pairs and q in left:
            pairs[p] = q
            left.remove(q)
    return sorted(pairs.items())


def _edges(row: TokenRow) -> list[int]:
    segments = [row.positions[segment] for segment in SEGMENTS["exact_question"]]
    return [*(edge for segment in segments for edge in (segment[0], segment[-1])), row.prompt_length]


def free_positions(row: TokenRow, anchor: str, region: str = "question") -> list[int]:
    """Return the prompt positions outside an anchor at which a null may lie.

    Excluded are position 0, tokens of E_Q, positions that predict an answer token, and the anchor itself. For anchors at the answer
    and ``prompt_last`` the positions lie after E_Q. The region ``question`` excludes text shared by all rows (shots, a template's
    head); ``prompt`` is the whole prompt.
    """
    forbidden = {0, *row.positions["exact_question"], *row.positions["pre_answer_all"], *row.positions[anchor]}
    if anchor in (*ANSWER_ANCHORS, "prompt_last"):
        first = max(row.positions["exact_question"]) + 1
    else:
        first = min(row.positions["exact_question"] + row.positions["question_rest"]) if region == "question" else 1
    return [p for p in range(first, row.prompt_length) if p not in forbidden]
