"""Rows with true and false answers, split by question: what truth probes and ``p_true`` are measured on (METHOD 3)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from anchorlens.constants import SPLITS
from anchorlens.errors import EmptySweepError, LeakError
from anchorlens.models.adapter import Adapter
from anchorlens.probing.model_answers import FEW_ROWS, generate_rows
from anchorlens.prompts.dataset import Dropped
from anchorlens.questions.answer_options import YES_NO
from anchorlens.questions.build_rows import MORE_QUESTIONS, Rows, drop, make_rows
from anchorlens.questions.example import Example, normalise
from anchorlens.questions.false_answers import assign_false_answers, split_questions
from anchorlens.questions.tokens import Answer, RowDropped, RowTokenizer, TokenRow
from anchorlens.warn import warn


@dataclass(frozen=True)
class TruthRows:
    """Token rows with their labels and splits."""

    rows: tuple[TokenRow, ...]
    split: tuple[str, ...]
    dropped: tuple[Dropped, ...]

    @property
    def has_generated_answers(self) -> bool:
        """Whether the answers are the model's own."""
        return any(row.answer.source == "generated" for row in self.rows)

    @property
    def labels(self) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """1 where the answer is false, [row]."""
        return np.array([row.answer.label for row in self.rows], dtype=np.float64)

    @property
    def question_ids(self) -> list[str]:
        """Question of each row."""
        return [row.example.question_id for row in self.rows]

    def of(self, *splits: str) -> list[int]:
        """Indices of the rows of these splits."""
        return [i for i, name in enumerate(self.split) if name in splits]

    @property
    def sizes(self) -> dict[str, int]:
        """Rows in each split."""
        counts = Counter(self.split)
        return {name: counts[name] for name in SPLITS}

    def check(self) -> None:
        """Both labels in every split."""
        counts = Counter(zip(self.split, (row.answer.label for row in self.rows), strict=True))
        if all(counts[split, label] for split in SPLITS for label in (0, 1)):
            few = ", ".join(f"{name} {n}" for name, n in self.sizes.items() if n < FEW_ROWS)
            if few:
                warn(f"Few rows ({few}): k*, AUC and groups are noisy. Take {MORE_QUESTIONS}.")
            return
        said = "; ".join(f"{s}: {counts[s, 0]} true, {counts[s, 1]} false" for s in SPLITS)
        reasons = ", ".join(f"{r} {n}" for r, n in Counter(d.reason for d in self.dropped).most_common()) or "none"
        if self.rows and all(normalise(row.example.answers[0]) in YES_NO for row in self.rows):
            what_to_do = (
                "All questions share the answers yes and no, so they cannot be split: take a set with other answers too."
            )
        else:
            what_to_do = f"Take {MORE_QUESTIONS}" + (", or answers='gold'." if self.has_generated_answers else ".")
        raise EmptySweepError(
            f"A truth probe needs true and false answers in every split, and here are {said} (dropped: {reasons}). {what_to_do}"
        )

    def check_balance(self) -> None:
        """Inside every split, each answer string stands equally often as true and as false (``gold`` answers only)."""
        for split in SPLITS:
            tally: Counter[str] = Counter()
            for i in self.of(split):
                row = self.rows[i]
                tally[row.answer.text] += 1 - 2 * row.answer.label
            uneven = [text for text, n in tally.items() if n]
            if uneven:
                raise LeakError(
                    f"In the {split} split {len(uneven)} answers stand more often on one side than on the other (for example "
                    f"{uneven[0]!r}): the answer's text alone tells whether it is true. Draw false answers inside each split."
                )


def truth_rows(
    adapter: Adapter,
    examples: Sequence[Example],
    tokenizer: RowTokenizer,
    *,
    answers: str,
    distractor: str,
    fractions: tuple[float, float, float],
    max_new_tokens: int,
    batch_size: int | None,
    seed: int,
    progress: bool,
) -> TruthRows:
    """Split the questions, then find a true and a false answer for each (``gold``) or take the model's own (``generated``)."""
    split = split_questions(examples, fractions=fractions, seed=seed)
    if answers == "generated":
        own = generate_rows(
            adapter, examples, RowTokenizer(
                tokenizer.tokenizer, tokenizer.prompt, add_bos=tokenizer.add_bos, max_length=tokenizer.max_length
            ), max_new_tokens=max_new_tokens, batch_size=batch_size, progress=progress,
        )  # fmt: skip
        made = own
        if tokenizer.ask:
            asked = make_rows((row.example for row in own.rows), tokenizer, {row.id: row.answer for row in own.rows})
            made = Rows(asked.rows, (*own.dropped, *asked.dropped))
        return TruthRows(made.rows, tuple(split[row.example.question_id] for row in made.rows), made.dropped)
    rows, dropped = _make_gold_rows(examples, tokenizer, split, distractor=distractor, seed=seed)
    kept = TruthRows(rows, tuple(split[row.example.question_id] for row in rows), dropped)
    kept.check_balance()
    return kept


def _make_gold_rows(
    examples: Sequence[Example], tokenizer: RowTokenizer, split: Mapping[str, str], *, distractor: str, seed: int
) -> tuple[tuple[TokenRow, ...], tuple[Dropped, ...]]:
    """Two rows an example: the gold answer and a false one."""
    usable, dropped = list(examples), list[Dropped]()

    @cache
    def row_of(example: Example, text: str, label: int) -> TokenRow | RowDropped:
        answer = Answer(text, Answer.gold(text).exact, label=label)
        try:
            return tokenizer.row(example, answer, f"{example.example_id}|{'false' if label else 'true'}")
        except RowDropped as why:
            return why

    while True:
        given = assign_false_answers(usable, split, distractor=distractor, seed=seed)
        rows: list[TokenRow] = []
        failed: set[str] = set()
        for example in usable:
            false = given.false.get(example.example_id)
            # The true row alone tells of most rows that cannot be made: they go in the first round.
            true = row_of(example, example.answers[0], 0)
            pair = [true] if false is None else [true, row_of(example, false, 1)]
            why = next((made for made in pair if isinstance(made, RowDropped)), None)
            if why is not None:
                failed.add(example.example_id)
                dropped.append(drop(example, why.reason, why.detail))
            elif false is not None:
                rows += [made for made in pair if isinstance(made, TokenRow)]
        if not failed:
            return tuple(rows), (*dropped, *given.dropped)
        usable = [example for example in usable if example.example_id not in failed]
