"""Pairs of rows and donors: patched input, positions and streams; and what is read of them, the
probability of the answer, a truth probe or P(yes).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from anchorlens.constants import NULL_CONTROLS, SITE_ORDER
from anchorlens.engine.patches import window_layers
from anchorlens.engine.readouts import (
    AnswerReader,
    Reader,
    ReadoutLike,
    StateReader,
    call_readout,
    make_readout,
)
from anchorlens.errors import InputError
from anchorlens.fingerprint import callable_name
from anchorlens.measure.metric_state import check_repeats, first_change
from anchorlens.measure.patched_pairs import DirectionPrompt, Pair, Placement
from anchorlens.models.adapter import Adapter
from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.p_true import truth_reader
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.prompts.dataset import Dropped, RowDropped
from anchorlens.protocols.swap.spec import Swap
from anchorlens.protocols.swap.statistic_donors import StreamStatistics
from anchorlens.questions.answer_text import is_right
from anchorlens.questions.donors import (
    DirectionPicker,
    DonorPicker,
    null_positions,
    pair_positions,
    positions_towards,
    same_role_positions,
)
from anchorlens.questions.tokens import (
    RowTokenizer,
    TokenRow,
    answer_reads,
    first_difference,
)

NULL = NULL_CONTROLS["displaced"]
SAME_ANSWER = NULL_CONTROLS["same_answer"]
SAME_ROLE = NULL_CONTROLS["same_role"]
NORM_MATCHED = NULL_CONTROLS["norm_matched"]
QAPair: TypeAlias = Pair[TokenRow]
# Rows with which a readout function is tried.
_TRIED = 8


@dataclass(frozen=True)
class WrongAnswerPicker(DonorPicker):
    """Picker that excludes donors whose answer is correct for the base question."""

    @override
    def is_eligible(self, base: TokenRow, row: TokenRow) -> bool:
        right = is_right(row.answer.exact.of(row.answer.text), base.example.answers)
        return not right and super().is_eligible(base, row)


@dataclass(frozen=True)
class SameAnswerPicker(DonorPicker):
    """Picker of other questions with the answer of the base."""

    @override
    def candidates(self, base: TokenRow) -> list[TokenRow]:
        return [row for row in super().candidates(base) if row.answer_ids == base.answer_ids]

    @override
    def is_eligible(self, base: TokenRow, row: TokenRow) -> bool:
        if row.example.question_id == base.example.question_id:
            return False
        return self.can_pair(base, row)


def donor_picker(spec: Swap, pool: Sequence[TokenRow]) -> Callable[[TokenRow], Sequence[TokenRow]]:
    """Return the function that picks the donors of a row, in random order.

    For truth readouts, a donor has the label of its base, so that a swap changes content but not
    truth. With true donors for false rows, ΔP would also contain the effect of a true answer.
    """

    def make_picker(kind: type[DonorPicker], rows: Sequence[TokenRow]) -> DonorPicker:
        return kind(
            pool=tuple(rows),
            rule=spec.donors,
            anchors=spec.anchors,
            align=spec.align,
            n_donors=spec.n_donors,
            seed=spec.seed,
        )

    if not spec.is_truth_readout:
        return make_picker(DonorPicker, pool).pick
    pickers: list[DonorPicker] = []
    for label in (0, 1):
        same_label = [row for row in pool if row.answer.label == label]
        pickers.append(make_picker(WrongAnswerPicker, same_label))
    return lambda row: pickers[row.answer.label].pick(row)


def pre_answer_token_differs(pair: QAPair) -> bool | None:
    """Return whether the pre-answer tokens of target and source differ; None without a source."""
    return None if pair.source is None else not pair.same_tokens("pre_answer")


@dataclass(frozen=True)
class Reading:
    """Readout of a swap sweep, with its rows and probes.

    Attributes:
        readout: Name or function of the readout.
        truth: Labelled rows with their splits; None for answer readouts.
        probes: Fitted or given probes; None unless the readout is ``probe``.
        n_layers: Number of layers of the model.
    """

    readout: ReadoutLike
    truth: TruthRows | None = None
    probes: CrossFittedProbes | None = None
    n_layers: int = 0

    @property
    def probe_layer(self) -> int | None:
        """Layer k* of the probe; None for other readouts."""
        return None if self.probes is None else self.probes.probe_layer

    def event(self, row: TokenRow) -> int:
        """Return 1 if the event of P is the case for a row, else 0."""
        return 1 - row.answer.label if self.readout == "p_true" else row.answer.label

    def reader(self, adapter: Adapter, pairs: Sequence[QAPair]) -> Reader:
        """Return the reader of a batch. Raise LeakError if a probe was trained on a question."""
        targets = [p.target for p in pairs]
        if self.readout == "p_true":
            return truth_reader(adapter, targets)
        if self.probes is not None:
            probes = self.probes
            layer = probes.probe_layer
            ids = [row.example.question_id for row in targets]

            def score(states: Tensor) -> Float[Tensor, "example"]:
                return torch.from_numpy(probes.log_odds(layer, states.numpy(), ids)).float()

            last = torch.tensor([row.positions["answer"][-1] for row in targets])
            return StateReader(layer, probes.site, last, score)
        name, function = make_readout(self.readout)
        donors = [pair.donor for pair in pairs]
        reads = answer_reads(targets, donors, first_only=name == "first_token")
        return AnswerReader(reads, function)

    def reaches(self, spec: Swap, anchor: str, control: str, layer: int) -> bool:
        """Return whether a swap can reach the readout; other cells are missing, not zero."""
        first = window_layers(layer, spec.window, layer + 1).start
        if self.probes is None or first < self.probes.probe_layer:
            return True
        if first > self.probes.probe_layer:
            return False
        # In the layer of the probe, other positions act only through its attention, which reads
        # resid_pre.
        if not isinstance(spec.site, str) or spec.site == "resid_pre":
            return True
        return (
            anchor == "answer"
            and control in ("none", NORM_MATCHED)
            and SITE_ORDER.index(spec.site) <= SITE_ORDER.index(self.probes.site)
        )

    def is_by_construction(
        self, spec: Swap, pair: QAPair, anchor: str, control: str, layer: int
    ) -> bool:
        """Return whether the value of a cell follows by construction.

        The stream into block 0 depends on tokens only: equal tokens in both inputs (``pre_answer``
        in most rows) change nothing, and ``pre_answer_all`` inserts the donor's answer tokens. A
        swap of ``answer`` at k* makes the probe read the donor's state. ``same_role`` and
        ``norm_matched`` change nothing with equal tokens, or without a position. After the last
        attention a change reaches the readout at its own position only.
        """
        changed = window_layers(layer, spec.window, layer + spec.window)
        if (
            isinstance(spec.site, str)
            and spec.site != "resid_pre"
            and self.probes is None
            and changed.start == self.n_layers - 1
        ):
            read: set[int] = set()
            if self.readout != "p_true":
                read.update(pair.target.positions["pre_answer_all"])
            changed_positions: set[int] = set()
            for place in pair.placements:
                if (place.anchor, place.control) == (anchor, control):
                    changed_positions.update(place.target_positions)
            if not read & changed_positions:
                return True
        same = changed == range(1) and pair.same_tokens(anchor, control)
        if control != "none":
            return control != NULL and (
                not pair.count_positions(anchor, control) or (spec.site == "resid_pre" and same)
            )
        if spec.site == "resid_pre" and 0 in changed and (anchor == "pre_answer_all" or same):
            return True
        return anchor == "answer" and self.probe_layer in changed


@torch.no_grad()
def check_readout(adapter: Adapter, readout: ReadoutLike, rows: Sequence[TokenRow]) -> None:
    """Call a readout function of the user with unpatched log-probabilities of a few rows.

    Warn if it keeps something between calls.

    Raises:
        InputError: If the value of a row is another in a second call, or without the other rows.
    """
    if isinstance(readout, str):
        return
    some = rows[:_TRIED]
    each: list[Tensor] = []
    for row in some:
        _, logits = adapter.whole(torch.tensor(row.ids, device="cpu").to(adapter.device))
        before = logits[[position - 1 for position in row.positions["answer"]]]
        log_probs = before.float().log_softmax(-1).cpu()
        each.append(log_probs.gather(1, torch.tensor(row.answer_ids, device="cpu")[:, None])[:, 0])
    table = pad_sequence(each, batch_first=True)
    used = [torch.ones_like(own, dtype=torch.bool) for own in each]
    mask = pad_sequence(used, batch_first=True)
    if table.isnan().any():
        return  # numbers that overflow are reported by the first batch

    def together() -> Tensor:
        return call_readout(readout, table.clone(), mask.clone())

    value = together()
    check_repeats("readout", readout, together, value, of="log-probabilities")
    alone = torch.cat(
        [call_readout(readout, own[None], one[None]) for own, one in zip(each, used, strict=True)]
    )
    at = first_change(value, alone)
    if at is not None:
        raise InputError(
            f"readout={callable_name(readout)}: gave {float(value[at]):.6g} for a row"
            f" ({some[at].id!r}) in a batch, and {float(alone[at]):.6g} for it alone. Return a"
            " value of each row that does not depend on other rows.",
            argument="readout",
        )


def direction_label(spec: Swap, base_id: str, donor_id: str, anchor: str, draw: int = 0) -> str:
    """Return the label of the random directions of ``norm_matched``."""
    label = f"{spec.seed}:{NORM_MATCHED}:{base_id}:{donor_id}:{anchor}"
    return f"{label}:{draw}" if draw else label


def swap_direction_id(base_id: str, donor_id: str, draw: int, side: int) -> str:
    """Return the id of a row of a direction: ``base~donor~0a``."""
    return f"{base_id}~{donor_id}~{draw}{'ab'[side]}"


def at_difference(row: TokenRow, other: TokenRow) -> TokenRow:
    """Return a row whose ``pre_answer`` is the position that predicts the first token in which two
    answers differ.
    """
    shared, _ = first_difference(row.answer_ids, other.answer_ids)
    if shared <= 0:
        return row
    return replace(
        row,
        positions={**row.positions, "pre_answer": (row.positions["pre_answer_all"][shared],)},
    )


@dataclass(kw_only=True)
class PairMaker:
    """Builder of the pairs of a sweep, which counts failures.

    Attributes:
        spec: Arguments of the sweep.
        tokenizer: Tokenizer of corrupt inputs.
        dropped: Rows without a pair.
        null_shortfall: Anchor (and control, unless it is ``null``) -> number of null slots without
            a position.
        failed_pairs: Number of pairs that could not be built, by reason (denoising only).
        directions: Picker of the rows of directions; None for Gaussian ones.
        same_answers: Picker of donors with the base's own answer; None if that null is not
            measured.
        same_role_positions: Number of positions of ``same_role``, and of those that are format or
            punctuation.
        gaussian_draws: Number of draws without two other rows, whose direction is Gaussian.
        without_same_answer: Number of rows without another question of the same answer.
    """

    spec: Swap
    tokenizer: RowTokenizer
    dropped: list[Dropped] = field(default_factory=list)
    null_shortfall: dict[str, int] = field(default_factory=dict)
    failed_pairs: dict[str, int] = field(default_factory=dict)
    directions: DirectionPicker | None = None
    same_answers: SameAnswerPicker | None = None
    same_role_positions: dict[str, int] = field(
        default_factory=lambda: {"positions": 0, "format": 0}
    )
    gaussian_draws: int = 0
    without_same_answer: int = 0
    _drawn: dict[tuple[str, str, int], tuple[TokenRow, TokenRow] | None] = field(
        default_factory=dict
    )

    def with_donors(
        self, rows: Sequence[TokenRow], pick: Callable[[TokenRow], Sequence[TokenRow]]
    ) -> Iterator[QAPair]:
        """Yield every row with its donors."""
        for row in rows:
            made: list[QAPair] = []
            for donor in pick(row):
                with_null = len(made) < self.spec.n_null_donors
                try:
                    made.append(self._pair(row, donor, with_null=with_null))
                except RowDropped as why:
                    self.failed_pairs[why.reason] = self.failed_pairs.get(why.reason, 0) + 1
            if not made:
                detail = (
                    "no row of another question has as many tokens at all anchors"
                    if self.spec.align == "equal"
                    else f"no row of another question serves with align={self.spec.align!r}"
                )
                self.dropped.append(row.example.drop("no_donor", detail))
            yield from made
            if made and self.same_answers is not None:
                yield from self._same_answer(row, self.same_answers)

    def _same_answer(self, row: TokenRow, picker: SameAnswerPicker) -> Iterator[QAPair]:
        """Yield the row with a donor that has the same answer, if there is one."""
        donors = picker.pick(row)
        if not donors:
            self.without_same_answer += 1
        for donor in donors:
            places: list[Placement] = []
            for anchor in self.spec.anchors:
                both = pair_positions(row, donor, anchor, self.spec.align)
                assert both is not None  # the picker pairs all anchors
                places.append(Placement(anchor, SAME_ANSWER, *both))
            yield Pair(row, row, donor, donor, donor.id, tuple(places))

    def with_statistic(
        self, rows: Sequence[TokenRow], statistics: StreamStatistics
    ) -> Iterator[QAPair]:
        """Yield every row with a mean, zero or noise stream as donor."""
        rule = self.spec.donors
        anchors = self.spec.anchors
        for row in rows:
            lacks = [a for a in ("exact_question", *anchors) if not row.positions[a]]
            if lacks or (rule == "mean" and not statistics.covers(row, anchors)):
                why = f"no token at {lacks}" if lacks else "longer than all reference rows"
                self.dropped.append(row.example.drop("no_donor", why))
                continue
            paired = {anchor: (row.positions[anchor], row.positions[anchor]) for anchor in anchors}
            placements = self._placements(row, None, row.id, rule, paired, with_null=True)
            yield Pair(row, row, None, None, rule, placements)

    def _pair(self, row: TokenRow, donor: TokenRow, *, with_null: bool) -> QAPair:
        target = at_difference(row, donor)
        source = at_difference(donor, row)
        if self.spec.direction == "denoising":
            target = self.tokenizer.corrupt_row(row, donor.example)
            target = at_difference(target, donor)
            source = at_difference(row, donor)
        paired: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for anchor in self.spec.anchors:
            both = pair_positions(target, source, anchor, self.spec.align)
            if both is None:
                raise RowDropped(
                    "corrupt_length",
                    "the donor's text has another number of tokens inside the base question",
                )
            paired[anchor] = both
        placements = self._placements(target, source, row.id, donor.id, paired, with_null=with_null)
        return Pair(row, target, source, donor, donor.id, placements)

    def _placements(
        self,
        target: TokenRow,
        source: TokenRow | None,
        base_id: str,
        donor_id: str,
        paired: dict[str, tuple[tuple[int, ...], tuple[int, ...]]],
        *,
        with_null: bool,
    ) -> tuple[Placement, ...]:
        """Return the placement of every anchor, followed by its nulls."""
        spec = self.spec
        placements: list[Placement] = []
        for anchor, (to, by) in paired.items():
            swap = Placement(anchor, "none", to, by)
            placements.append(swap)
            for control in spec.null_controls if with_null else ():
                if control == SAME_ANSWER:
                    continue  # its donor is another row
                null = self._null_placement(control, swap, target, source, base_id, donor_id)
                name = anchor if control == NULL else f"{anchor}, {control}"
                lacking = len(by) - len(null.target_positions)
                self.null_shortfall[name] = self.null_shortfall.get(name, 0) + lacking
                if control == NORM_MATCHED:
                    placements += self._placements_of_draws(target, source, base_id, donor_id, null)
                else:
                    placements.append(null)
        return tuple(placements)

    def _null_placement(
        self,
        control: str,
        swap: Placement,
        target: TokenRow,
        source: TokenRow | None,
        base_id: str,
        donor_id: str,
    ) -> Placement:
        """Return the placement of a null of a swap, which may have fewer positions."""
        spec = self.spec
        anchor = swap.anchor
        n = len(swap.source_positions)
        if control == NORM_MATCHED:
            return replace(swap, control=control)
        if control == SAME_ROLE:
            assert source is not None  # the specification refuses a statistic
            label = f"{spec.seed}:{control}:{base_id}:{donor_id}:{anchor}"
            to, by = same_role_positions(target, source, anchor, n, label)
            self._count_format(target, to)
            return Placement(anchor, control, to, by)
        to = null_positions(target, anchor, n, spec.seed, donor_id, spec.null_region)
        return Placement(anchor, control, to, swap.source_positions[: len(to)])

    def _count_format(self, target: TokenRow, positions: Sequence[int]) -> None:
        """Count the positions of ``same_role`` that are no words of the question."""
        words = {*target.positions["rest_words"]}
        self.same_role_positions["positions"] += len(positions)
        self.same_role_positions["format"] += sum(p not in words for p in positions)

    def _placements_of_draws(
        self,
        target: TokenRow,
        source: TokenRow | None,
        base_id: str,
        donor_id: str,
        place: Placement,
    ) -> Iterator[Placement]:
        """Yield the placement of each draw of ``norm_matched``."""
        for draw in range(self.spec.n_null_draws):
            label = direction_label(self.spec, base_id, donor_id, place.anchor, draw)
            both = self._rows_of_draw(target, source, base_id, donor_id, draw)
            prompts = None if both is None else towards(both, target, place)
            yield replace(place, direction_label=label, draw=draw, towards=prompts)

    def _rows_of_draw(
        self, target: TokenRow, source: TokenRow | None, base_id: str, donor_id: str, draw: int
    ) -> tuple[TokenRow, TokenRow] | None:
        """Return the two rows of a direction, which all anchors of a draw share."""
        if self.directions is None or source is None:
            return None
        key = (base_id, donor_id, draw)
        if key not in self._drawn:
            both = self.directions.pick(target, source, draw)
            if both is None:
                self.gaussian_draws += 1
            else:
                first = replace(both[0], id=swap_direction_id(*key, 0))
                second = replace(both[1], id=swap_direction_id(*key, 1))
                both = (first, second)
            self._drawn[key] = both
        return self._drawn[key]


def towards(
    rows: tuple[TokenRow, TokenRow], target: TokenRow, place: Placement
) -> tuple[DirectionPrompt, DirectionPrompt] | None:
    """Return the rows of a direction with the positions that correspond to a placement; None if a
    segment of theirs is too short.
    """
    found: list[DirectionPrompt] = []
    for row in rows:
        positions = positions_towards(row, target, place.anchor, place.target_positions)
        if positions is None:
            return None
        found.append(DirectionPrompt(row, positions))
    return found[0], found[1]
