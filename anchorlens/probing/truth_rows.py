"""Rows with true and false answers, split by question, for truth probes and ``p_true``
(METHOD 3).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from anchorlens.constants import SHARES, SPLITS
from anchorlens.display import list_counts, warn
from anchorlens.errors import EmptySweepError, LeakError
from anchorlens.models.adapter import Adapter
from anchorlens.probing.model_answers import FEW_ROWS, generate_rows
from anchorlens.prompts.dataset import Dropped, RowDropped
from anchorlens.questions.answer_options import YES_NO
from anchorlens.questions.drops import MORE_QUESTIONS
from anchorlens.questions.example import Example, normalise
from anchorlens.questions.false_answers import assign_false_answers, split_questions
from anchorlens.questions.tokens import (
    Answer,
    Rows,
    RowTokenizer,
    TokenRow,
    make_rows,
)


@dataclass(frozen=True)
class TruthRows:
    """Token rows with labels and splits.

    Attributes:
        rows: True and false answers with their questions.
        splits: Role of each row (``train``, ``validation``, ``test``) in each split, [split][row].
        dropped: Examples without rows.
    """

    rows: tuple[TokenRow, ...]
    splits: tuple[tuple[str, ...], ...]
    dropped: tuple[Dropped, ...]

    @property
    def each(self) -> "tuple[TruthRows, ...]":
        """The same rows with one split each."""
        return tuple(replace(self, splits=(roles,)) for roles in self.splits)

    @property
    def split(self) -> tuple[str, ...]:
        """Role of each row in the only split."""
        (roles,) = self.splits
        return roles

    @property
    def test_split(self) -> list[int | None]:
        """Index of the first split in which a row is tested, None for none, [row]."""
        found: list[int | None] = []
        for roles in zip(*self.splits, strict=True):
            number = roles.index("test") if "test" in roles else None
            found.append(number)
        return found

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

    def of(self, *roles: str) -> list[int]:
        """Return the indices of the rows that have one of these roles in any split."""
        roles_of_rows = enumerate(zip(*self.splits, strict=True))
        return [i for i, names in roles_of_rows if not set(names).isdisjoint(roles)]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each role in the smallest split of that role."""
        sizes: dict[str, int] = {}
        for name in SPLITS:
            counts = [roles.count(name) for roles in self.splits]
            sizes[name] = min(counts)
        return sizes

    def check(self) -> None:
        """Raise EmptySweepError if a split lacks a label; warn if it has few rows."""
        labels: list[float] = self.labels.tolist()

        def smallest_count(counts: Counter[tuple[str, float]]) -> int:
            return min(counts[role, label] for role, label in product(SPLITS, (0, 1)))

        counts = [Counter(zip(roles, labels, strict=True)) for roles in self.splits]
        worst = min(counts, key=smallest_count)
        if smallest_count(worst) > 0:
            self._warn_of_few_rows()
            return
        parts: list[str] = []
        for role in SPLITS:
            n_true = worst[role, 0]
            n_false = worst[role, 1]
            parts.append(f"{role}: {n_true} true, {n_false} false")
        sizes = "; ".join(parts)
        dropped = Counter(row.reason for row in self.dropped)
        reasons = list_counts(dict(dropped.most_common())) or "none"
        if self.rows and all(normalise(row.example.answers[0]) in YES_NO for row in self.rows):
            fix = (
                "All answers are yes or no, so the questions cannot be split."
                " Use a set with other answers too."
            )
        elif self.has_generated_answers:
            fix = f"Use {MORE_QUESTIONS}, or answers='gold'."
        else:
            fix = f"Use {MORE_QUESTIONS}."
        which = "the smallest of the splits has" if len(self.splits) > 1 else "the split has"
        raise EmptySweepError(
            "A truth readout needs true and false answers for training, validation and test;"
            f" {which} {sizes} (dropped: {reasons}). {fix}"
        )

    def _warn_of_few_rows(self) -> None:
        # Results are over the test rows of all splits.
        sizes = self.sizes | {"test": len(self.of("test"))}
        few = list_counts({name: n for name, n in sizes.items() if n < FEW_ROWS})
        if few:
            warn(f"Few rows ({few}): k*, AUC and groups are noisy. Use {MORE_QUESTIONS}.")

    def check_balance(self) -> None:
        """Raise LeakError if an answer text is not equally often true and false in a role (``gold``
        answers only).
        """
        for one, role in product(self.each, SPLITS):
            tally: Counter[str] = Counter()
            for i in one.of(role):
                row = self.rows[i]
                tally[row.answer.text] += 1 - 2 * row.answer.label
            uneven = [text for text, n in tally.items() if n]
            if uneven:
                raise LeakError(
                    f"split={role!r}: {len(uneven)} answers are not equally often true and false"
                    f" (for example {uneven[0]!r}), so that their text alone predicts their truth."
                    " Assign false answers within each split."
                )


def truth_rows(
    adapter: Adapter,
    examples: Sequence[Example],
    tokenizer: RowTokenizer,
    *,
    answers: str,
    distractor: str,
    n_splits: int,
    max_new_tokens: int,
    batch_size: int | None,
    seed: int,
    progress: bool,
) -> TruthRows:
    """Divide the questions into blocks, then assign a true and a false answer to each (``gold``) or
    generate answers.

    Every split has whole blocks, so that a row has the same false answer in all of them.
    """
    blocks = block_roles(n_splits)
    shares = {name: share for name, (share, _) in blocks.items()}
    block = split_questions(examples, shares, seed=seed)

    def split(rows: Sequence[TokenRow], dropped: Sequence[Dropped]) -> TruthRows:
        roles_of_rows: list[tuple[str, ...]] = []
        for row in rows:
            _, roles = blocks[block[row.example.question_id]]
            roles_of_rows.append(roles)
        splits = tuple(zip(*roles_of_rows, strict=True)) or ((),) * n_splits
        return TruthRows(tuple(rows), splits, tuple(dropped))

    if answers == "generated":
        # Answers are generated without the question of p_true after them.
        plain = RowTokenizer(
            tokenizer.tokenizer,
            tokenizer.prompt,
            add_bos=tokenizer.add_bos,
            max_length=tokenizer.max_length,
        )
        generated = generate_rows(
            adapter,
            examples,
            plain,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            progress=progress,
        )
        if tokenizer.ask:
            answer_of = {row.id: row.answer for row in generated.rows}
            with_question = make_rows((row.example for row in generated.rows), tokenizer, answer_of)
            generated = Rows(with_question.rows, (*generated.dropped, *with_question.dropped))
        return split(generated.rows, generated.dropped)
    truth = split(*_make_gold_rows(examples, tokenizer, block, distractor=distractor, seed=seed))
    truth.check_balance()
    return truth


def block_roles(n_splits: int) -> dict[str, tuple[float, tuple[str, ...]]]:
    """Return the blocks of questions: name -> share of the questions, and role in each split.

    One split has a block per role. Otherwise every block is tested once, is the validation block
    once and trains the other probes.
    """
    if n_splits == 1:
        return {name: (share, (name,)) for name, share in SHARES.items()}
    # Roles of a block in the splits: each block begins one later.
    order = ("test", *("train",) * (n_splits - 2), "validation")
    blocks: dict[str, tuple[float, tuple[str, ...]]] = {}
    for block in range(n_splits):
        roles = tuple(order[(block - split) % n_splits] for split in range(n_splits))
        blocks[f"block {block + 1}"] = (1 / n_splits, roles)
    return blocks


def _make_gold_rows(
    examples: Sequence[Example],
    tokenizer: RowTokenizer,
    block: Mapping[str, str],
    *,
    distractor: str,
    seed: int,
) -> tuple[tuple[TokenRow, ...], tuple[Dropped, ...]]:
    """Return two rows per example, with the gold answer and a false one, and the dropped
    examples.
    """
    usable = list(examples)
    dropped: list[Dropped] = []

    @cache
    def row_of(example: Example, text: str, label: int) -> TokenRow | RowDropped:
        answer = Answer(text, Answer.gold(text).exact, label=label)
        truth = "false" if label else "true"
        try:
            return tokenizer.row(example, answer, f"{example.example_id}|{truth}")
        except RowDropped as error:
            return error

    while True:
        assigned = assign_false_answers(usable, block, distractor=distractor, seed=seed)
        rows: list[TokenRow] = []
        failed: set[str] = set()
        for example in usable:
            false = assigned.false.get(example.example_id)
            # Also tried without a false answer, so that most invalid rows are dropped in the first
            # round.
            true_row = row_of(example, example.answers[0], 0)
            false_row = None if false is None else row_of(example, false, 1)
            for row in (true_row, false_row):
                if isinstance(row, RowDropped):
                    failed.add(example.example_id)
                    dropped.append(example.drop(row.reason, row.detail))
                    break
            if isinstance(true_row, TokenRow) and isinstance(false_row, TokenRow):
                rows += [true_row, false_row]
        if not failed:
            return tuple(rows), (*dropped, *assigned.dropped)
        usable = [example for example in usable if example.example_id not in failed]
