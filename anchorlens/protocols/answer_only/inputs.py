"""The inputs of an answer-only sweep: a row's own answer after an empty question, and after a question of another row."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anchorlens.errors import InputError
from anchorlens.protocols.truth_probing import PreparedTruth
from anchorlens.questions.example import Dropped, Example, Span, normalise
from anchorlens.questions.prompts import PromptText, rendered
from anchorlens.questions.tokenised import drop
from anchorlens.questions.tokens import RowDropped, RowTokenizer, TokenRow, overlapping
from anchorlens.truth.labelled import TruthRows

OTHER = "other_question"
# Questions that are looked at before a row is given up.
_TRIES = 64


@dataclass(frozen=True)
class PreparedAnswerOnly(PreparedTruth):
    """An answer-only sweep that is ready to run.

    Attributes:
        empty: The input without a question of each row that is measured.
        other: Its input with another row's question.
        donors: ``example_id`` of that row.
    """

    empty: tuple[TokenRow, ...] = ()
    other: tuple[TokenRow, ...] = ()
    donors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Changed:
    """The rows that can be measured, with their inputs; all of one length.

    Attributes:
        test: Indices into the rows with answers.
        empty: See :class:`PreparedAnswerOnly`.
        other: See :class:`PreparedAnswerOnly`.
        donors: See :class:`PreparedAnswerOnly`.
        dropped: Rows that were left out, with reasons.
    """

    test: tuple[int, ...]
    empty: tuple[TokenRow, ...]
    other: tuple[TokenRow, ...]
    donors: tuple[str, ...]
    dropped: tuple[Dropped, ...]


def without_question(tokenizer: RowTokenizer) -> PromptText:
    """The prompt with an empty question: ``Q:\\nA:`` for ``qa``; the space before the question goes with it.

    Raises:
        InputError: The prompt does not take one (chat templates need a message).
    """
    try:
        made = rendered(tokenizer.prompt, "", tokenizer.tokenizer)
    except InputError as why:
        raise InputError(
            f"answer_only needs a prompt that takes an empty question, such as prompt='qa'; {tokenizer.prompt.name!r} does not. "
            f"{why}"
        ) from why
    before, after = made.text[: made.question_start], made.text[made.question_start :]
    if not after[:1].strip():
        before = before.rstrip(" ")
    after = after if before else after.lstrip(" ")
    return PromptText(before + after, len(before), made.separator)


def changed_inputs(truth: TruthRows, tokenizer: RowTokenizer, empty: PromptText, seed: int) -> Changed:
    """Both inputs of every test row; other questions are drawn here, from the questions of the test split.

    Args:
        truth: Rows with their answers.
        tokenizer: What made them.
        empty: From :func:`without_question`.
        seed: Draws the other questions.
    """
    tests = truth.of("test")
    pool = list({truth.rows[i].example.question_id: truth.rows[i].example for i in tests}.values())
    kept: list[tuple[int, TokenRow, TokenRow, str]] = []
    dropped: list[Dropped] = []
    for i in tests:
        row = truth.rows[i]
        try:
            changed = changed_row(row, tokenizer, empty, "", f"{row.row_id}~")
            kept.append((i, changed, *_after_other_question(row, tokenizer, pool, seed)))
        except RowDropped as why:
            named = {"example_id": row.row_id, "answer": row.answer.exact.of(row.answer.text)}
            dropped.append(replace(drop(row.example, why.reason, why.detail), **named))
    test, none, other, donors = zip(*kept, strict=True) if kept else ((), (), (), ())
    return Changed(test, none, other, donors, tuple(dropped))


def changed_row(row: TokenRow, tokenizer: RowTokenizer, prompt: PromptText, question: str, row_id: str) -> TokenRow:
    """The row's answer after another prompt.

    Args:
        row: The row as it is measured clean.
        tokenizer: What made it.
        prompt: What stands before the answer now.
        question: The question in it.
        row_id: Name of the new row.

    Raises:
        RowDropped: ``answer_retokenised`` where the answer is not made of the tokens that it has in ``row``; ``too_long``;
            ``anchor_at_position_0`` where nothing stands before it.
    """
    text = prompt.text + prompt.separator + row.answer.text
    ids, offsets = tokenizer.encode(text)
    head = tokenizer.encode(prompt.text)[0]
    own = list(row.ids[row.prompt_length :])
    if ids != [*head, *own]:
        raise RowDropped("answer_retokenised", f"after {prompt.text[-20:]!r} the answer is made of other tokens")
    if tokenizer.max_length is not None and len(ids) > tokenizer.max_length:
        raise RowDropped("too_long", f"{len(ids)} tokens, the model takes {tokenizer.max_length}")
    start = len(prompt.text) + len(prompt.separator)
    answer = overlapping(offsets, Span(start + row.answer.exact.start, start + row.answer.exact.end))
    if answer[0] == 0:
        raise RowDropped("anchor_at_position_0", "answer takes in the first token, the attention sink")
    return TokenRow(row_id, row.example, text, question, row.answer, tuple(ids), len(head), {"answer": answer})


def read_of(row: TokenRow) -> tuple[tuple[int, ...], int]:
    """What decides P of an input: its token ids, and the position t* that is read."""
    return row.ids, row.positions["answer"][-1]


def _after_other_question(row: TokenRow, tokenizer: RowTokenizer, pool: Sequence[Example], seed: int) -> tuple[TokenRow, str]:
    """The answer after a question that has nothing to do with it, and whose question that is."""
    rng = random.Random(f"{seed}:{OTHER}:{row.row_id}")
    for example in rng.sample(pool, min(_TRIES, len(pool))):
        if _related(example, row):
            continue
        prompt = rendered(tokenizer.prompt, example.question, tokenizer.tokenizer)
        try:
            changed = changed_row(row, tokenizer, prompt, example.question, f"{row.row_id}~{example.example_id}")
        except RowDropped:
            continue
        return changed, example.example_id
    raise RowDropped("no_other_question", "every other question of the test split shares an answer with this row")


def _related(other: Example, row: TokenRow) -> bool:
    """Whether a question is the row's own, shares a gold alias with it or with its answer, or names that answer."""
    if other.question_id == row.example.question_id:
        return True
    answer = _padded(row.answer.exact.of(row.answer.text))
    taken = [answer, *map(_padded, row.example.answers)]
    return answer in _padded(other.question) or any(
        alias in one or one in alias for alias in map(_padded, other.answers) for one in taken
    )


def _padded(text: str) -> str:
    return f" {normalise(text)} "


__all__ = ["OTHER", "Changed", "PreparedAnswerOnly", "changed_inputs", "changed_row", "read_of", "without_question"]
