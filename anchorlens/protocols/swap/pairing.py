"""Rows and donors become batches: who is changed with whom, where, and with which streams."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from anchorlens.engine.interventions import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.readouts import Reader
from anchorlens.engine.reference import capture
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.protocols.swap.statistic_donors import StreamStatistics
from anchorlens.questions.answer_text import is_right
from anchorlens.questions.donors import DonorPicker, null_positions, pair_positions
from anchorlens.questions.example import Dropped
from anchorlens.questions.tokenised import drop
from anchorlens.questions.tokens import RowDropped, RowTokenizer, TokenRow, pad_rows

NULL = "null"


@runtime_checkable
class Picker(Protocol):
    """What finds the donors of a row."""

    def pick(self, base: TokenRow) -> Sequence[TokenRow]:
        """They, best-mixed first."""
        ...


@dataclass(frozen=True)
class TrueToOthers(DonorPicker):
    """A picker that takes no donor whose answer, false for its own question, is right for the base's."""

    def _eligible(self, base: TokenRow, row: TokenRow) -> bool:
        right = is_right(row.answer.exact.of(row.answer.text), base.example.answers)
        return not right and super()._eligible(base, row)


class SameLabelPicker:
    """Donors of truth readouts: rows whose answer is true where the base's is true, and false where it is false.

    So base and donor differ in the question and in the words of the answer, not in whether the answer is true: what is swapped is
    the content. With true donors for every row, ΔP of false rows would mix the loss of their content with a gain of truth.

    Args:
        pool: Rows with either label.
        make: A picker of some rows.
    """

    def __init__(self, pool: Sequence[TokenRow], make: Callable[[tuple[TokenRow, ...]], Picker]) -> None:
        self.of = {label: make(tuple(row for row in pool if row.answer.label == label)) for label in (0, 1)}

    def pick(self, base: TokenRow) -> Sequence[TokenRow]:
        """The donors of one row."""
        return self.of[base.answer.label].pick(base)


@dataclass(frozen=True)
class Placement:
    """One anchor of one pair: streams of ``source`` positions are put at ``target`` positions, slot by slot."""

    anchor: str
    control: str
    target: tuple[int, ...]
    source: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """One row with one donor.

    Attributes:
        base: The example's own input.
        target: The input that is changed: the base, or for denoising the corrupt input.
        source: The input whose streams are put there; None where streams are a statistic.
        donor: The donor row, None where streams are a statistic.
        donor_id: Its row's id, or the statistic's name.
        placements: Anchors and their nulls.
    """

    base: TokenRow
    target: TokenRow
    source: TokenRow | None
    donor: TokenRow | None
    donor_id: str
    placements: tuple[Placement, ...]

    @property
    def has_null(self) -> bool:
        """Whether this pair also measures the null."""
        return any(p.control == NULL for p in self.placements)

    @property
    def site_differs(self) -> bool | None:
        """Whether the answer is predicted from another token than in the input whose streams are put there; None without one."""
        return None if self.source is None else not self.same_tokens("answer_site")

    def same_tokens(self, anchor: str) -> bool:
        """Whether the anchor's slots hold the same tokens in both inputs: then the streams that enter block 0 are the same."""
        own = next((p for p in self.placements if (p.anchor, p.control) == (anchor, "none")), None)
        if self.source is None:
            return False
        to, by = (own.target, own.source) if own is not None else (row.positions[anchor] for row in (self.target, self.source))
        return [self.target.ids[i] for i in to] == [self.source.ids[i] for i in by]

    def slots(self, anchor: str, control: str) -> int | None:
        """Positions that are changed; None where this is not measured."""
        return next((len(p.target) for p in self.placements if (p.anchor, p.control) == (anchor, control)), None)


@dataclass(frozen=True)
class Pairs:
    """All pairs of a sweep, and what was left out on the way.

    Attributes:
        pairs: In the order of the rows.
        dropped: Rows without any pair.
        null_shortfall: Anchor -> null slots that found no position (the prompt is too short).
        failed_pairs: Pairs that could not be built, by reason (denoising only).
    """

    pairs: tuple[Pair, ...]
    dropped: tuple[Dropped, ...]
    null_shortfall: dict[str, int]
    failed_pairs: dict[str, int]


class PairMaker:
    """Builds the pairs of a sweep.

    Args:
        anchors: Anchors of the run.
        direction: ``noising`` or ``denoising``.
        align: See :func:`~anchorlens.questions.donors.pair_positions`.
        null_donors: How many donors of each row also measure the null.
        null: Where it lies, see :func:`~anchorlens.questions.donors.null_positions`.
        seed: Draws the null's positions.
        tokenizer: Makes the corrupt inputs.
    """

    def __init__(
        self,
        *,
        anchors: tuple[str, ...],
        direction: str,
        align: str,
        null_donors: int,
        seed: int,
        tokenizer: RowTokenizer,
        null: str = "own",
    ) -> None:
        self.anchors, self.direction, self.align = anchors, direction, align
        self.null_donors, self.null, self.seed, self.tokenizer = null_donors, null, seed, tokenizer
        self.shortfall = dict.fromkeys(anchors, 0) if null_donors else {}
        self.failed: dict[str, int] = {}

    def with_donors(self, rows: Sequence[TokenRow], picker: Picker) -> Pairs:
        """Every row with its donors."""
        pairs: list[Pair] = []
        dropped: list[Dropped] = []
        for row in rows:
            made: list[Pair] = []
            for donor in picker.pick(row):
                try:
                    made.append(self._pair(row, donor, with_null=len(made) < self.null_donors))
                except RowDropped as why:
                    self.failed[why.reason] = self.failed.get(why.reason, 0) + 1
            pairs += made
            if not made:
                dropped.append(drop(row.example, "no_donor", f"{self.align} length, all anchors of the run"))
        return Pairs(tuple(pairs), tuple(dropped), self.shortfall, self.failed)

    def with_statistic(self, rows: Sequence[TokenRow], rule: str, statistics: StreamStatistics | None) -> Pairs:
        """Every row with a mean, zero or noise stream in place of a donor's."""
        pairs: list[Pair] = []
        dropped: list[Dropped] = []
        for row in rows:
            lacks = [a for a in ("question", *self.anchors) if not row.positions[a]]
            if lacks or (rule == "mean" and statistics is not None and not statistics.covers(row, self.anchors)):
                why = f"no token at {lacks}" if lacks else "longer than every reference row"
                dropped.append(drop(row.example, "no_donor", why))
                continue
            placements: list[Placement] = []
            for anchor in self.anchors:
                where = row.positions[anchor]
                placements.append(Placement(anchor, "none", where, where))
                placements += self._null(row, anchor, where, rule) if self.null_donors else []
            pairs.append(Pair(row, row, None, None, rule, tuple(placements)))
        return Pairs(tuple(pairs), tuple(dropped), self.shortfall, {})

    def _pair(self, row: TokenRow, donor: TokenRow, *, with_null: bool) -> Pair:
        target, source = row, donor
        if self.direction == "denoising":
            target, source = self.tokenizer.corrupt_row(row, donor.example), row
        placements: list[Placement] = []
        donor_id = donor.row_id
        for anchor in self.anchors:
            paired = pair_positions(target, source, anchor, self.align)
            if paired is None:
                raise RowDropped(
                    "corrupt_length", "the donor's text takes another number of tokens inside the base's question"
                )
            placements.append(Placement(anchor, "none", *paired))
            placements += self._null(target, anchor, paired[1], donor_id) if with_null else []
        return Pair(row, target, source, donor, donor_id, tuple(placements))

    def _null(self, target: TokenRow, anchor: str, source: tuple[int, ...], donor_id: str) -> list[Placement]:
        positions = null_positions(target, anchor, len(source), self.seed, donor_id, self.null)
        self.shortfall[anchor] += len(source) - len(positions)
        return [Placement(anchor, NULL, positions, source[: len(positions)])]


def slots_of(positions: Sequence[Sequence[int]]) -> Slots:
    """Ragged positions as a padded table."""
    padded = pad_rows([[*p] for p in positions])
    return Slots(positions=padded.ids, mask=padded.mask)


def build_batch(
    adapter: Adapter,
    pairs: Sequence[Pair],
    *,
    site: SiteLike,
    rule: str,
    statistics: StreamStatistics | None,
    make_reader: Callable[[Sequence[Pair]], Reader],
) -> SwapBatch:
    """Tensors of one batch: inputs, reader, and for every anchor the streams of a clean run of the sources."""
    tokens = pad_rows([p.target.ids for p in pairs])
    columns = [[p.placements[i] for p in pairs] for i in range(len(pairs[0].placements))]
    targets = [slots_of([place.target for place in column]) for column in columns]
    reader = make_reader(pairs)
    if statistics is None:
        donors = pad_rows([p.source.ids for p in pairs if p.source is not None])
        swaps = tuple(
            AnchorSwap(column[0].anchor, column[0].control, slots, source=slots_of([place.source for place in column]))
            for column, slots in zip(columns, targets, strict=True)
        )
        return SwapBatch(tokens, reader, swaps, donors)
    clean = capture(adapter, tokens, site, targets) if rule == "noise" else [None] * len(columns)
    swaps = tuple(
        AnchorSwap(
            column[0].anchor,
            column[0].control,
            slots,
            streams=statistics.streams(
                rule, [(p.target, place) for p, place in zip(pairs, column, strict=True)], slots.mask, here
            ),
        )
        for column, slots, here in zip(columns, targets, clean, strict=True)
    )
    return SwapBatch(tokens, reader, swaps)


__all__ = [
    "NULL", "Pair", "PairMaker", "Pairs", "Picker", "Placement", "SameLabelPicker", "TrueToOthers", "build_batch",
]  # fmt: skip
