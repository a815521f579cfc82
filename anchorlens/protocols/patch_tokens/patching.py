"""The inputs of token patching: E_Q's text of another question in the place of the row's own, and the control's other tokens.

Patched inputs have the length of the clean one and its tokens everywhere outside what is replaced, so that every position after the
question stays the same: pairs that cannot be built so are left out and counted. So are pairs that change whether the answer stands
in the question, which a probe could read off the text (METHOD 3). ``random_tokens`` replaces as many tokens of the
question outside E_Q as the patch really changes in E_Q (donors of one relation share its property's words). Where a question
has fewer, ``matched`` replaces only that many tokens of E_Q.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anchorlens.protocols.knockout.cut_tokens import RANDOM, named_positions, row_cuts
from anchorlens.protocols.written import Written
from anchorlens.questions.donors import DonorLike, DonorPicker
from anchorlens.questions.example import Dropped, normalise
from anchorlens.questions.tokenised import drop
from anchorlens.questions.tokens import RowDropped, RowTokenizer, TokenRow
from anchorlens.statistics.pathways import MATCHED

VARIANTS = ("none", RANDOM, MATCHED)
# So many eligible donors are tried for each that is wanted: some do not keep the length inside another question.
_TRIES = 4


@dataclass(frozen=True)
class Patch:
    """One row with one donor.

    Attributes:
        test: Index of the row among the test rows.
        donor: Whose E_Q it is.
        inputs: ``none`` -> E_Q replaced; ``random_tokens`` -> other question tokens replaced; ``matched`` -> as many tokens of E_Q
            replaced as ``random_tokens`` has (often the input of ``none``). The last two are absent where the question has no
            other token.
        replaced: The positions that differ from the clean row, of each input.
    """

    test: int
    donor: TokenRow
    inputs: Mapping[str, TokenRow]
    replaced: Mapping[str, tuple[int, ...]]

    def own(self, variants: Sequence[str]) -> tuple[str, ...]:
        """The variants that need a pass of their own; ``matched`` is often the same input as ``none``."""
        same = self.inputs.get(MATCHED) is self.inputs["none"]
        kept = tuple(v for v in VARIANTS if v in variants and v in self.inputs)
        return tuple(v for v in kept if not (v == MATCHED and same and "none" in kept))


def restored_patch(test: int, row: TokenRow, donor_id: str, written: Written) -> Patch:
    """The patch of a row and a donor, from the inputs that a run directory holds."""
    whole = f"{row.row_id}~{donor_id}"
    inputs = {"none": written.row("corrupt", whole)}
    if ("corrupt", f"{whole}~{RANDOM}") in written.rows:
        inputs[RANDOM] = written.row("corrupt", f"{whole}~{RANDOM}")
        # Where it is the patch itself it was written once.
        inputs[MATCHED] = written.rows.get(("corrupt", f"{whole}~{MATCHED}"), inputs["none"])
    replaced = {variant: one.positions["replaced"] for variant, one in inputs.items()}
    return Patch(test, written.row("donor", donor_id), inputs, replaced)


@dataclass(frozen=True)
class Patches:
    """All patched inputs of a sweep, and what was left out on the way.

    Attributes:
        patches: In the order of the rows.
        dropped: Rows without any.
        failed: Pairs that could not be built, by reason.
    """

    patches: tuple[Patch, ...]
    dropped: tuple[Dropped, ...]
    failed: dict[str, int]


class Patcher:
    """Builds the inputs of a sweep.

    Args:
        tokenizer: Makes them.
        pool: Rows of the whole file, where donors come from.
        rule: Which of them are asked first.
        n_donors: Most donors for one row.
        seed: Draws donors, positions and tokens.
    """

    def __init__(
        self, tokenizer: RowTokenizer, pool: Sequence[TokenRow], *, rule: DonorLike, n_donors: int, seed: int
    ) -> None:
        self.tokenizer, self.n_donors, self.seed = tokenizer, n_donors, seed
        self.picker = DonorPicker(tuple(pool), rule, (), "equal", _TRIES * n_donors, seed)
        self.others = sorted({row.ids[p] for row in pool for p in row.positions["question_rest"]})

    def patches(self, rows: Mapping[int, TokenRow]) -> Patches:
        """Every row with its donors.

        Args:
            rows: Index among the test rows -> row.
        """
        made: list[Patch] = []
        dropped: list[Dropped] = []
        failed: Counter[str] = Counter()
        for test, row in rows.items():
            own: list[Patch] = []
            for donor in self.picker.pick(row):
                try:
                    own.append(self._patch(test, row, donor))
                except RowDropped as why:
                    failed[why.reason] += 1
                if len(own) == self.n_donors:
                    break
            made += own
            if not own:
                without = drop(
                    row.example, "no_donor", "no other question has an E_Q of as many tokens that could be put here"
                )
                dropped.append(replace(without, example_id=row.row_id))
        return Patches(tuple(made), tuple(dropped), dict(failed.most_common()))

    def _patch(self, test: int, row: TokenRow, donor: TokenRow) -> Patch:
        """All inputs of a row with a donor.

        Raises:
            RowDropped: The donor's text does not keep what stands around it as it is, or changes nothing, or makes the answer true,
                or changes whether the answer stands in the question.
        """
        answer = normalise(row.answer.exact.of(row.answer.text))
        if answer in {normalise(theirs) for theirs in donor.example.answers}:
            raise RowDropped("same_answer", "the answer in the input is right for the donor's question too")
        whole = self.tokenizer.corrupt_row(row, donor.example)
        if _stands_in(answer, row.question) != _stands_in(answer, whole.question):
            raise RowDropped("answer_in_question", "the patch changes whether the answer stands in the question")
        if len(whole.ids) != len(row.ids) or whole.positions != row.positions:
            raise RowDropped("corrupt_length", "the donor's text takes another number of tokens inside the base's question")
        changed = tuple(p for p, (old, new) in enumerate(zip(row.ids, whole.ids, strict=True)) if old != new)
        if not set(changed) <= set(row.positions["question"]):
            raise RowDropped("changed_outside", "the donor's text changes tokens beside it")
        if not changed:
            raise RowDropped("same_tokens", "the donor's text is the base's own")
        inputs, replaced = {"none": whole}, {"none": changed}
        rng = random.Random(f"{self.seed}:patch:{whole.row_id}")
        # The placebo's tokens are those of the knockout of the same seed.
        named = named_positions(row, self.tokenizer)
        placebo = row_cuts(row, "question -> later", self.seed, placebos=True, named=named).sources.get(RANDOM, ())
        n = min(len(changed), len(placebo))
        swapped = self._tokens(row, donor, sorted(rng.sample(placebo, n)), rng)
        if swapped:
            fewer = changed if n == len(changed) else tuple(sorted(rng.sample(changed, n)))
            inputs[RANDOM] = self._with(row, f"{whole.row_id}~{RANDOM}", swapped)
            inputs[MATCHED] = whole if n == len(changed) else self._with(
                row, f"{whole.row_id}~{MATCHED}", {p: whole.ids[p] for p in fewer}
            )  # fmt: skip
            replaced |= {RANDOM: tuple(swapped), MATCHED: fewer}
        return Patch(test, donor, inputs, replaced)

    def _tokens(self, row: TokenRow, donor: TokenRow, where: Sequence[int], rng: random.Random) -> dict[int, int]:
        """Another token for each position: of the donor's question outside E_Q, or of any in the pool where that has too few."""
        theirs = [donor.ids[p] for p in sorted(donor.positions["question_rest"])]
        rng.shuffle(theirs)
        out: dict[int, int] = {}
        for p in where:
            new = next((token for token in theirs if token != row.ids[p]), None)
            if new is not None:
                theirs.remove(new)
            else:
                pool = [token for token in self.others if token != row.ids[p]]
                if not pool:
                    return {}  # one token alone stands outside E_Q in every question: nothing can be put there
                new = rng.choice(pool)
            out[p] = new
        return out

    def _with(self, row: TokenRow, row_id: str, tokens: Mapping[int, int]) -> TokenRow:
        """The row with other tokens at some positions of its question."""
        ids = tuple(tokens.get(p, old) for p, old in enumerate(row.ids))
        question = sorted((*row.positions["question"], *row.positions["question_rest"]))
        bos = self.tokenizer.add_bos and ids[:1] == (self.tokenizer.tokenizer.bos_token_id,)
        return replace(
            row, row_id=row_id, ids=ids, text=self._text(ids[bos:]), question=self._text([ids[p] for p in question]).strip()
        )

    def _text(self, ids: Sequence[int]) -> str:
        text = self.tokenizer.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


def _stands_in(answer: str, question: str) -> bool:
    """Whether a normalised answer stands in a question as whole words."""
    return f" {answer} " in f" {normalise(question)} "


__all__ = ["VARIANTS", "Patch", "Patcher", "Patches", "restored_patch"]
