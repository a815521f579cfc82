"""Pairs of rows and donors: patched input, positions and streams."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from anchorlens.constants import NULL_CONTROLS
from anchorlens.prompts.dataset import Dropped
from anchorlens.protocols.pair_sweep.donor_pairs import Pair, Placement
from anchorlens.protocols.swap.spec import Swap
from anchorlens.protocols.swap.statistic_donors import StreamStatistics
from anchorlens.questions.answer_text import is_right
from anchorlens.questions.build_rows import drop
from anchorlens.questions.donors import DonorPicker, null_positions, pair_positions, same_role_positions
from anchorlens.questions.tokens import RowDropped, RowTokenizer, TokenRow

NULL, SAME_ROLE, NORM_MATCHED = (NULL_CONTROLS[name] for name in ("displaced", "same_role", "norm_matched"))
QAPair: TypeAlias = Pair[TokenRow]


@dataclass(frozen=True)
class WrongAnswerPicker(DonorPicker):
    """Picker that excludes donors whose answer is correct for the base question."""

    def _eligible(self, base: TokenRow, row: TokenRow) -> bool:
        right = is_right(row.answer.exact.of(row.answer.text), base.example.answers)
        return not right and super()._eligible(base, row)


def donor_picker(spec: Swap, pool: Sequence[TokenRow]) -> Callable[[TokenRow], Sequence[TokenRow]]:
    """Return the function that picks the donors of a row, in random order.

    For truth readouts, a donor has the label of its base, so that a swap changes content but not truth. With true donors for false
    rows, ΔP would also contain the effect of a true answer.
    """
    options = (spec.donors, spec.anchors, spec.align, spec.n_donors, spec.seed)
    if not spec.is_truth_readout:
        return DonorPicker(tuple(pool), *options).pick
    pickers = [WrongAnswerPicker(tuple(row for row in pool if row.answer.label == label), *options) for label in (0, 1)]
    return lambda row: pickers[row.answer.label].pick(row)


def pre_answer_token_differs(pair: QAPair) -> bool | None:
    """Return whether the pre-answer tokens of target and source differ; None without a source."""
    return None if pair.source is None else not pair.same_tokens("pre_answer")


def direction_label(spec: Swap, base_id: str, donor_id: str, anchor: str) -> str:
    """Return the label of the random directions of ``norm_matched``."""
    return f"{spec.seed}:{NORM_MATCHED}:{base_id}:{donor_id}:{anchor}"


@dataclass
class PairMaker:
    """Builder of the pairs of a sweep, which counts failures.

    Attributes:
        spec: Arguments of the sweep.
        tokenizer: Tokenizer of corrupt inputs.
        dropped: Rows without a pair.
        null_shortfall: Anchor (and control, unless it is ``null``) -> number of null slots without a position.
        failed_pairs: Number of pairs that could not be built, by reason (denoising only).
    """

    spec: Swap
    tokenizer: RowTokenizer
    dropped: list[Dropped] = field(default_factory=list)
    null_shortfall: dict[str, int] = field(default_factory=dict)
    failed_pairs: dict[str, int] = field(default_factory=dict)

    def with_donors(self, rows: Sequence[TokenRow], pick: Callable[[TokenRow], Sequence[TokenRow]]) -> Iterator[QAPair]:
        """Yield every row with its donors."""
        for row in rows:
            made: list[QAPair] = []
            for donor in pick(row):
                try:
                    made.append(self._pair(row, donor, with_null=len(made) < self.spec.n_null_donors))
                except RowDropped as why:
                    self.failed_pairs[why.reason] = self.failed_pairs.get(why.reason, 0) + 1
            if not made:
                self.dropped.append(drop(row.example, "no_donor", f"align={self.spec.align}, all anchors of the run"))
            yield from made

    def with_statistic(self, rows: Sequence[TokenRow], statistics: StreamStatistics) -> Iterator[QAPair]:
        """Yield every row with a mean, zero or noise stream as donor."""
        rule, anchors = self.spec.donors, self.spec.anchors
        for row in rows:
            lacks = [a for a in ("exact_question", *anchors) if not row.positions[a]]
            if lacks or (rule == "mean" and not statistics.covers(row, anchors)):
                why = f"no token at {lacks}" if lacks else "longer than all reference rows"
                self.dropped.append(drop(row.example, "no_donor", why))
                continue
            paired = {anchor: (row.positions[anchor], row.positions[anchor]) for anchor in anchors}
            yield Pair(row, row, None, None, rule, self._placements(row, None, row.id, rule, paired, with_null=True))

    def _pair(self, row: TokenRow, donor: TokenRow, *, with_null: bool) -> QAPair:
        target, source = row, donor
        if self.spec.direction == "denoising":
            target, source = self.tokenizer.corrupt_row(row, donor.example), row
        paired: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for anchor in self.spec.anchors:
            both = pair_positions(target, source, anchor, self.spec.align)
            if both is None:
                raise RowDropped("corrupt_length", "the donor's text has another number of tokens inside the base question")
            paired[anchor] = both
        placements = self._placements(target, source, row.id, donor.id, paired, with_null=with_null)
        return Pair(row, target, source, donor, donor.id, placements)

    def _placements(
        self, target: TokenRow, source: TokenRow | None, base_id: str, donor_id: str,
        paired: dict[str, tuple[tuple[int, ...], tuple[int, ...]]], *, with_null: bool,
    ) -> tuple[Placement, ...]:  # fmt: skip
        """Return the placement of every anchor, followed by its nulls."""
        spec = self.spec
        placements: list[Placement] = []
        for anchor, (to, by) in paired.items():
            placements.append(Placement(anchor, "none", to, by))
            for control in spec.null_controls if with_null else ():
                if control == SAME_ROLE:
                    assert source is not None  # the specification refuses a statistic
                    label = f"{spec.seed}:{control}:{base_id}:{donor_id}:{anchor}"
                    null = Placement(anchor, control, *same_role_positions(target, source, anchor, len(by), label))
                elif control == NORM_MATCHED:
                    null = Placement(anchor, control, to, by, direction_label(spec, base_id, donor_id, anchor))
                else:
                    where = null_positions(target, anchor, len(by), spec.seed, donor_id, spec.null_region)
                    null = Placement(anchor, control, where, by[: len(where)])
                name = anchor if control == NULL else f"{anchor}, {control}"
                self.null_shortfall[name] = self.null_shortfall.get(name, 0) + len(by) - len(null.target)
                placements.append(null)
        return tuple(placements)
