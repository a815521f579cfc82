"""Rows with true and false answers, split by question: what truth probes and ``p_true`` are measured on (METHOD 3)."""

import random
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from anchorlens.analysis.rows import FEW_ROWS, Rows, answered_rows, drop, make_rows
from anchorlens.analysis.stats import Resamples, interval
from anchorlens.analysis.text_only import text_only_scores
from anchorlens.engine.readouts import ChoiceReader
from anchorlens.errors import EmptySweepError, InputError, LeakError, did_you_mean
from anchorlens.models.adapter import Adapter
from anchorlens.questions.example import Dropped, Example
from anchorlens.questions.given import DISTRACTORS, SPLITS, given_answers, split_questions
from anchorlens.questions.tokens import Answer, RowDropped, RowTokenizer, TokenRow

ANSWERS = ("given", "generated")


@dataclass(frozen=True)
class TruthRows:
    """Token rows with their labels and splits.

    Attributes:
        rows: ``answer.label`` is 1 where the answer is false.
        split: Split of each row: ``train``, ``validation`` or ``test``.
        dropped: Rows that were left out, with reasons.
    """

    rows: tuple[TokenRow, ...]
    split: tuple[str, ...]
    dropped: tuple[Dropped, ...]

    @property
    def own_answers(self) -> bool:
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
        """Both labels in every split.

        Raises:
            EmptySweepError: A split lacks one, with the counts and what to do.
        """
        counts = Counter(zip(self.split, (row.answer.label for row in self.rows), strict=True))
        if all(counts[split, label] for split in SPLITS for label in (0, 1)):
            few = ", ".join(f"{name} {n}" for name, n in self.sizes.items() if n < FEW_ROWS)
            if few:
                warnings.warn(f"Few rows ({few}): k*, AUC and groups are noisy. Take more questions (limit=).", stacklevel=4)
            return
        said = "; ".join(f"{s}: {counts[s, 0]} true, {counts[s, 1]} false" for s in SPLITS)
        reasons = ", ".join(f"{r} {n}" for r, n in Counter(d.reason for d in self.dropped).most_common()) or "none"
        raise EmptySweepError(
            f"A truth probe needs true and false answers in every split, and here are {said} (dropped: {reasons}). Take more "
            "questions (limit=)" + (", or answers='given'." if self.own_answers else ".")
        )

    def check_balance(self) -> None:
        """Inside every split, each answer string stands equally often as true and as false (``given`` answers only).

        Raises:
            LeakError: It does not: then the answer alone tells something about its truth.
        """
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


def check_answers(answers: str, distractor: str) -> None:
    """Names of the answer and distractor rules.

    Raises:
        InputError: One is unknown.
    """
    for value, known, what in ((answers, ANSWERS, "answers"), (distractor, DISTRACTORS, "distractor")):
        if value not in known:
            raise InputError(f"Unknown {what}={value!r}. {did_you_mean(value, known)}")


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
    """Split the questions, then find a true and a false answer for each (``given``) or take the model's own (``generated``)."""
    check_answers(answers, distractor)
    split = split_questions(examples, fractions=fractions, seed=seed)
    if answers == "generated":
        own = answered_rows(
            adapter, examples, RowTokenizer(
                tokenizer.tokenizer, tokenizer.prompt, add_bos=tokenizer.add_bos, max_length=tokenizer.max_length
            ), max_new_tokens=max_new_tokens, batch_size=batch_size, progress=progress,
        )  # fmt: skip
        made = own
        if tokenizer.ask:
            asked = make_rows((row.example for row in own.rows), tokenizer, {row.row_id: row.answer for row in own.rows})
            made = Rows(asked.rows, (*own.dropped, *asked.dropped))
        return TruthRows(made.rows, tuple(split[row.example.question_id] for row in made.rows), made.dropped)
    rows, dropped = _given_rows(examples, tokenizer, split, distractor=distractor, seed=seed)
    kept = TruthRows(rows, tuple(split[row.example.question_id] for row in rows), dropped)
    kept.check_balance()
    return kept


def _given_rows(
    examples: Sequence[Example], tokenizer: RowTokenizer, split: Mapping[str, str], *, distractor: str, seed: int
) -> tuple[tuple[TokenRow, ...], tuple[Dropped, ...]]:
    """Two rows an example: the gold answer and a false one.

    An example without one of its rows leaves as a whole, and the answers are permuted anew: dropped afterwards it would leave its
    answer standing more often on one side.
    """
    usable, dropped = list(examples), list[Dropped]()
    while True:
        given = given_answers(usable, split, distractor=distractor, seed=seed)
        rows: list[TokenRow] = []
        failed: set[str] = set()
        for example in usable:
            try:
                rows += _both(tokenizer, example, given.false.get(example.example_id))
            except RowDropped as why:
                failed.add(example.example_id)
                dropped.append(drop(example, why.reason, why.detail))
        if not failed:
            return tuple(rows), (*dropped, *given.dropped)
        usable = [example for example in usable if example.example_id not in failed]


def _both(tokenizer: RowTokenizer, example: Example, false: str | None) -> list[TokenRow]:
    """The row with the gold answer and the row with the false one; none where there is no false answer."""
    made: list[TokenRow] = []
    for name, text, label in (("true", example.answers[0], 0), ("false", false, 1)):
        if text is not None:
            answer = Answer(text, Answer.gold(text).exact, source="given", label=label)
            made.append(tokenizer.row(example, answer, f"{example.example_id}|{name}"))
    return made if len(made) == 2 else []


def text_only(rows: TruthRows, *, n_resamples: int, seed: int) -> dict[str, float]:
    """AUC on the test split of a classifier that sees nothing but the answer's text, with its interval over questions.

    Returns:
        ``auc``, ``ci_low``, ``ci_high``.
    """
    train, test = rows.of("train", "validation"), rows.of("test")
    texts = [row.answer.exact.of(row.answer.text) for row in rows.rows]
    scores = text_only_scores([texts[i] for i in train], rows.labels[train], [texts[i] for i in test])
    draws = Resamples.of([rows.question_ids[i] for i in test], n_resamples=n_resamples, seed=seed)
    auc, many = draws.aucs(scores, rows.labels[test])
    low, high = interval(many[:, None], np.array([True]))
    return {"auc": auc, "ci_low": float(low[0]), "ci_high": float(high[0])}


def shuffled_labels(rows: TruthRows, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Labels of the train and validation rows, shuffled; those of test rows stay.

    Inside each split, half of the true rows and half of the false rows get each label: what is left to learn then has nothing to do
    with truth. A free shuffle keeps some of it by accident (measured on a made set: AUC 0.29), with either sign.
    """
    labels = rows.labels
    for name in ("train", "validation"):
        for label in (0, 1):
            where = [i for i in rows.of(name) if rows.rows[i].answer.label == label]
            random.Random(f"{seed}:shuffled labels:{name}:{label}").shuffle(where)
            # The odd one out goes to the other side in the second group, so that both labels are equally frequent.
            labels[where] = [float(i < (len(where) + label) // 2) for i in range(len(where))]
    return labels


def half_splits(rows: TruthRows, seed: int) -> tuple[list[str], list[str]]:
    """Splits for two probes of disjoint training and validation questions: what is not a probe's own half is ``unused``."""
    halves: tuple[list[str], list[str]] = ([], [])
    for question, split in zip(rows.question_ids, rows.split, strict=True):
        mine = random.Random(f"{seed}:fold:{question}").random() < 0.5
        halves[0].append(split if split == "test" or mine else "unused")
        halves[1].append(split if split == "test" or not mine else "unused")
    return halves


def truth_reader(adapter: Adapter, rows: Sequence[TokenRow]) -> ChoiceReader:
    """The reader of ``p_true``: at the last token of each row, yes against no.

    Raises:
        InputError: Yes and no begin with the same tokens.
    """
    yes, no = (_first_tokens(adapter, words) for words in (("yes", "Yes", "YES"), ("no", "No", "NO")))
    yes, no = yes - no, no - yes
    if not yes or not no:
        raise InputError("readout='p_true' needs yes and no to begin with different tokens. Use readout='probe'.")
    last = torch.tensor([len(row.ids) - 1 for row in rows])
    return ChoiceReader(last, tuple(sorted(yes)), tuple(sorted(no)))


def _first_tokens(adapter: Adapter, words: Sequence[str]) -> set[int]:
    """First token of each form of a word, with and without a space before it."""
    hf = adapter.model.tokenizer
    assert hf is not None  # checked by the sweep
    forms = [f"{space}{word}" for word in words for space in ("", " ")]
    return {int(hf(form, add_special_tokens=False)["input_ids"][0]) for form in forms}  # pyright: ignore


__all__ = [
    "ANSWERS",
    "TruthRows",
    "check_answers",
    "half_splits",
    "shuffled_labels",
    "text_only",
    "truth_reader",
    "truth_rows",
]
