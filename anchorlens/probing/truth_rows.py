"""Rows with true and false answers, split by question, for truth probes and ``p_true`` (METHOD 3)."""

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
    """Token rows with labels and splits."""

    rows: tuple[TokenRow, ...]
    split: tuple[str, ...]  # of each row
    dropped: tuple[Dropped, ...]

    @property
    def has_generated_answers(self) -> bool:
        """True if the model generated the answers."""
        return any(row.answer.source == "generated" for row in self.rows)

    @property
    def labels(self) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Labels, 1 for a false answer, [row]."""
        return np.array([row.answer.label for row in self.rows], dtype=np.float64)

    @property
    def question_ids(self) -> list[str]:
        """Question of each row."""
        return [row.example.question_id for row in self.rows]

    def of(self, *splits: str) -> list[int]:
        """Return the indices of the rows of these splits."""
        return [i for i, name in enumerate(self.split) if name in splits]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows in each split."""
        counts = Counter(self.split)
        return {name: counts[name] for name in SPLITS}

    def check(self) -> None:
        """Raise EmptySweepError if a split lacks a label; warn if it has few rows."""
        counts = Counter(zip(self.split, (row.answer.label for row in self.rows), strict=True))
        if all(counts[split, label] for split in SPLITS for label in (0, 1)):
            few = ", ".join(f"{name} {n}" for name, n in self.sizes.items() if n < FEW_ROWS)
            if few:
                warn(f"Few rows ({few}): k*, AUC and groups are noisy. Use {MORE_QUESTIONS}.")
            return
        sizes = "; ".join(f"{s}: {counts[s, 0]} true, {counts[s, 1]} false" for s in SPLITS)
        reasons = ", ".join(f"{r} {n}" for r, n in Counter(d.reason for d in self.dropped).most_common()) or "none"
        if self.rows and all(normalise(row.example.answers[0]) in YES_NO for row in self.rows):
            fix = "All answers are yes or no, so the questions cannot be split. Use a set with other answers too."
        else:
            fix = f"Use {MORE_QUESTIONS}" + (", or answers='gold'." if self.has_generated_answers else ".")
        raise EmptySweepError(
            f"A truth probe needs true and false answers in every split; the splits have {sizes} (dropped: {reasons}). {fix}"
        )

    def check_balance(self) -> None:
        """Raise LeakError if an answer text is not equally often true and false in a split (``gold`` answers only)."""
        for split in SPLITS:
            tally: Counter[str] = Counter()
            for i in self.of(split):
                row = self.rows[i]
                tally[row.answer.text] += 1 - 2 * row.answer.label
            uneven = [text for text, n in tally.items() if n]
            if uneven:
                raise LeakError(
                    f"split={split!r}: {len(uneven)} answers are not equally often true and false (for example {uneven[0]!r}), so "
                    "that their text alone predicts their truth. Assign false answers within each split."
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
    """Split the questions, then assign a true and a false answer to each (``gold``) or generate answers (``generated``)."""
    split = split_questions(examples, fractions=fractions, seed=seed)
    if answers == "generated":
        generated = generate_rows(
            adapter, examples, RowTokenizer(
                tokenizer.tokenizer, tokenizer.prompt, add_bos=tokenizer.add_bos, max_length=tokenizer.max_length
            ), max_new_tokens=max_new_tokens, batch_size=batch_size, progress=progress,
        )  # fmt: skip
        if tokenizer.ask:
            answer_of = {row.id: row.answer for row in generated.rows}
            with_question = make_rows((row.example for row in generated.rows), tokenizer, answer_of)
            generated = Rows(with_question.rows, (*generated.dropped, *with_question.dropped))
        return TruthRows(generated.rows, tuple(split[row.example.question_id] for row in generated.rows), generated.dropped)
    rows, dropped = _make_gold_rows(examples, tokenizer, split, distractor=distractor, seed=seed)
    truth = TruthRows(rows, tuple(split[row.example.question_id] for row in rows), dropped)
    truth.check_balance()
    return truth


def _make_gold_rows(
    examples: Sequence[Example], tokenizer: RowTokenizer, split: Mapping[str, str], *, distractor: str, seed: int
) -> tuple[tuple[TokenRow, ...], tuple[Dropped, ...]]:
    """Return two rows per example, with the gold answer and a false one, and the dropped examples."""
    usable, dropped = list(examples), list[Dropped]()

    @cache
    def row_of(example: Example, text: str, label: int) -> TokenRow | RowDropped:
        answer = Answer(text, Answer.gold(text).exact, label=label)
        try:
            return tokenizer.row(example, answer, f"{example.example_id}|{'false' if label else 'true'}")
        except RowDropped as error:
            return error

    while True:
        assigned = assign_false_answers(usable, split, distractor=distractor, seed=seed)
        rows: list[TokenRow] = []
        failed: set[str] = set()
        for example in usable:
            false = assigned.false.get(example.example_id)
            # Also tried without a false answer, so that most invalid rows are dropped in the first round.
            true = row_of(example, example.answers[0], 0)
            pair = [true] if false is None else [true, row_of(example, false, 1)]
            error = next((row for row in pair if isinstance(row, RowDropped)), None)
            if error is not None:
                failed.add(example.example_id)
                dropped.append(drop(example, error.reason, error.detail))
            elif false is not None:
                rows += [row for row in pair if isinstance(row, TokenRow)]
        if not failed:
            return tuple(rows), (*dropped, *assigned.dropped)
        usable = [example for example in usable if example.example_id not in failed]
