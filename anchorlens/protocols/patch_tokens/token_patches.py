"""Build the inputs of token patching: another question's E_Q in place of the row's own, and
replaced tokens of the control.

A patched input has the length of the clean input, so positions after the question do not change.
Only the replaced tokens differ. Pairs without such an input are dropped and counted. So are pairs
that change whether the question contains the answer: a probe could read that off the text (METHOD
3). ``random_tokens`` replaces as many question tokens outside E_Q as the patch changes in E_Q. If a
question has fewer, ``size_matched`` replaces only that many tokens of E_Q.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anchorlens.prompts.dataset import Dropped, RowDropped
from anchorlens.protocols.probe_sweep.placebo_tokens import cut_positions, entity_positions
from anchorlens.protocols.probe_sweep.variants import Variant
from anchorlens.questions.donors import DonorLike, DonorPicker
from anchorlens.questions.example import normalise
from anchorlens.questions.tokens import RowTokenizer, TokenRow
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED

# Eligible donors to try per requested donor, because some change the length of the question.
_TRIES = 4


@dataclass(frozen=True)
class Patches:
    """Patched inputs of a sweep, dropped rows and failed pairs.

    Attributes:
        variants: Index of a test row -> its variants, donor by donor: ``none`` (E_Q replaced),
            ``random_tokens`` (other question tokens replaced) and ``size_matched`` (as many tokens
            of E_Q replaced as in ``random_tokens``). Without other question tokens, only ``none``.
        dropped: Rows without a variant.
        failed: Pairs of row and donor that could not be built, by reason.
    """

    variants: dict[int, tuple[Variant, ...]]
    dropped: tuple[Dropped, ...]
    failed: dict[str, int]


class Patcher:
    """Builder of patched inputs; donors come from ``pool``, the rows of the whole file.

    Without ``placebos`` the control inputs are left out.
    """

    def __init__(
        self,
        tokenizer: RowTokenizer,
        pool: Sequence[TokenRow],
        *,
        rule: DonorLike,
        n_donors: int,
        placebos: bool = True,
        seed: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.n_donors = n_donors
        self.placebos = placebos
        self.seed = seed
        self.picker = DonorPicker(
            pool=tuple(pool),
            rule=rule,
            anchors=(),
            align="equal",
            n_donors=_TRIES * n_donors,
            seed=seed,
        )
        others: set[int] = set()
        for row in pool:
            others.update(row.ids[p] for p in row.positions["question_rest"])
        self.others = sorted(others)

    def patches(self, rows: Mapping[int, TokenRow]) -> Patches:
        """Build the variants of all rows, by index among the test rows."""
        made: dict[int, tuple[Variant, ...]] = {}
        dropped: list[Dropped] = []
        failed: Counter[str] = Counter()
        for test, row in rows.items():
            variants: list[Variant] = []
            n_pairs = 0
            for donor in self.picker.pick(row):
                try:
                    variants += self._patch(row, donor)
                    n_pairs += 1
                except RowDropped as why:
                    failed[why.reason] += 1
                if n_pairs == self.n_donors:
                    break
            if variants:
                made[test] = tuple(variants)
            else:
                without = row.example.drop(
                    "no_donor", "no other question has an E_Q with as many tokens"
                )
                dropped.append(replace(without, example_id=row.id))
        return Patches(made, tuple(dropped), dict(failed.most_common()))

    def _patch(self, row: TokenRow, donor: TokenRow) -> tuple[Variant, ...]:
        """Build the variants of a row with one donor. Raise RowDropped if it is not possible."""
        answer = normalise(row.answer.exact.of(row.answer.text))
        if answer in map(normalise, donor.example.answers):
            raise RowDropped("same_answer", "the answer is also correct for the donor's question")
        whole = self.tokenizer.corrupt_row(row, donor.example)
        if _stands_in(answer, row.question) != _stands_in(answer, whole.question):
            raise RowDropped(
                "answer_in_question", "the patch changes whether the question contains the answer"
            )
        if len(whole.ids) != len(row.ids) or whole.positions != row.positions:
            raise RowDropped(
                "corrupt_length",
                "the donor's text has another number of tokens inside the base question",
            )
        changed: list[int] = []
        for p, (old, new) in enumerate(zip(row.ids, whole.ids, strict=True)):
            if old != new:
                changed.append(p)
        if not set(changed) <= set(row.positions["exact_question"]):
            raise RowDropped("changed_outside", "the donor's text changes tokens outside E_Q")
        if not changed:
            raise RowDropped("same_tokens", "the donor's text is that of the base")
        whole_variant = Variant(
            controls=("none",),
            row=whole,
            positions=tuple(changed),
            donor=donor,
            donor_id=donor.example.example_id,
        )
        if not self.placebos:
            return (whole_variant,)
        rng = random.Random(f"{self.seed}:patch:{whole.id}")
        # The same placebo tokens as in a knockout with this seed.
        named = entity_positions(row, self.tokenizer)
        placebo = cut_positions(
            row, "exact_question -> later", self.seed, placebos=True, named=named
        ).get(RANDOM, ())
        n = min(len(changed), len(placebo))
        swapped = self._tokens(row, donor, sorted(rng.sample(placebo, n)), rng)

        def variant(
            controls: tuple[str, ...], input_row: TokenRow, positions: Sequence[int]
        ) -> Variant:
            return Variant(
                controls=controls,
                row=input_row,
                positions=tuple(positions),
                donor=donor,
                donor_id=donor.example.example_id,
            )

        if not swapped:
            return (whole_variant,)
        random_row = self._with(row, f"{whole.id}~{RANDOM}", swapped)
        if n == len(changed):
            return (
                replace(whole_variant, controls=("none", SIZE_MATCHED)),
                variant((RANDOM,), random_row, tuple(swapped)),
            )
        fewer = tuple(sorted(rng.sample(changed, n)))
        matched = {p: whole.ids[p] for p in fewer}
        size_matched_row = self._with(row, f"{whole.id}~{SIZE_MATCHED}", matched)
        return (
            whole_variant,
            variant((RANDOM,), random_row, tuple(swapped)),
            variant((SIZE_MATCHED,), size_matched_row, fewer),
        )

    def _tokens(
        self, row: TokenRow, donor: TokenRow, where: Sequence[int], rng: random.Random
    ) -> dict[int, int]:
        """Return position -> another token, from the donor's question outside E_Q, else from any
        question.
        """
        donor_tokens = [donor.ids[p] for p in sorted(donor.positions["question_rest"])]
        rng.shuffle(donor_tokens)
        out: dict[int, int] = {}
        for p in where:
            new = next((token for token in donor_tokens if token != row.ids[p]), None)
            if new is not None:
                donor_tokens.remove(new)
            else:
                pool = [token for token in self.others if token != row.ids[p]]
                if not pool:
                    return {}  # all questions have the same single token outside E_Q
                new = rng.choice(pool)
            out[p] = new
        return out

    def _with(self, row: TokenRow, row_id: str, tokens: Mapping[int, int]) -> TokenRow:
        """Return the row with some tokens of its question replaced."""
        ids = tuple(tokens.get(p, old) for p, old in enumerate(row.ids))
        question = sorted((*row.positions["exact_question"], *row.positions["question_rest"]))
        bos = self.tokenizer.add_bos and ids[:1] == (self.tokenizer.tokenizer.bos_token_id,)
        return replace(
            row,
            id=row_id,
            ids=ids,
            text=self._text(ids[bos:]),
            question=self._text([ids[p] for p in question]).strip(),
        )

    def _text(self, ids: Sequence[int]) -> str:
        text = self.tokenizer.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


def _stands_in(answer: str, question: str) -> bool:
    """Return whether a question contains a normalised answer as whole words."""
    return f" {answer} " in f" {normalise(question)} "
