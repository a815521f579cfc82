"""Build the inputs of an answer-only sweep: the answer after an empty question, and after another
row's question.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from anchorlens.errors import InputError
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.prompts.dataset import Dropped, RowDropped
from anchorlens.protocols.answer_only.findings import OTHER
from anchorlens.protocols.probe_sweep.variants import Variant, items_at
from anchorlens.questions.example import Example, Span, normalise
from anchorlens.questions.prompts import PromptText, render_prompt
from anchorlens.questions.tokens import RowTokenizer, TokenRow, overlapping

# Number of other questions to try before a row is dropped.
_TRIES = 64


def without_question(tokenizer: RowTokenizer) -> PromptText:
    """Render the prompt with an empty question, without the space before it: ``Q:\\nA:`` for
    ``qa``.

    Raises:
        InputError: If the prompt takes no empty question (chat templates need a message).
    """
    try:
        made = render_prompt(tokenizer.prompt, "", tokenizer.tokenizer)
    except InputError as why:
        raise InputError(
            f"prompt={tokenizer.prompt.name!r} takes no empty question, which answer_only needs."
            f" Use prompt='qa'. {why}",
            argument="prompt",
        ) from why
    before = made.text[: made.question_start]
    after = made.text[made.question_start :]
    if not after[:1].strip():
        before = before.rstrip(" ")
    after = after if before else after.lstrip(" ")
    return PromptText(before + after, len(before), made.separator)


def build_changed_inputs(
    truth: TruthRows, tokenizer: RowTokenizer, empty: PromptText, seed: int, *, placebos: bool
) -> tuple[dict[int, tuple[Variant, ...]], tuple[Dropped, ...]]:
    """Build both inputs of every test row; other questions are drawn from the test rows of the same
    split.

    Returns:
        Row index -> variants ``none`` (no question) and, with ``placebos``, ``other_question``;
        and the dropped rows.
    """
    kept: dict[int, tuple[Variant, ...]] = {}
    dropped: list[Dropped] = []
    pools: list[list[Example]] = []
    for one in truth.each:
        examples: dict[str, Example] = {}
        for row in items_at(truth.rows, one.of("test")):
            examples[row.group] = row.example
        pools.append(list(examples.values()))
    for i, (row, split) in enumerate(zip(truth.rows, truth.test_split, strict=True)):
        if split is None:
            continue
        try:
            changed = build_changed_row(row, tokenizer, empty, "", f"{row.id}~")
            variants = [Variant(controls=("none",), row=changed)]
            if placebos:
                other, donor = after_other_question(row, tokenizer, pools[split], seed)
                variants.append(Variant(controls=(OTHER,), row=other, donor_id=donor))
            kept[i] = tuple(variants)
        except RowDropped as why:
            named = {"example_id": row.id, "answer": row.answer.exact.of(row.answer.text)}
            dropped.append(replace(row.example.drop(why.reason, why.detail), **named))
    return kept, tuple(dropped)


def build_changed_row(
    row: TokenRow, tokenizer: RowTokenizer, prompt: PromptText, question: str, row_id: str
) -> TokenRow:
    """Return a row with the answer after another prompt.

    Raise RowDropped if the answer has other tokens there.
    """
    text = prompt.text + prompt.separator + row.answer.text
    ids, offsets = tokenizer.encode(text)
    head = tokenizer.encode(prompt.text)[0]
    answer_ids = list(row.ids[row.prompt_length :])
    if ids != [*head, *answer_ids]:
        raise RowDropped(
            "answer_retokenised", f"the answer has other tokens after {prompt.text[-20:]!r}"
        )
    if tokenizer.max_length is not None and len(ids) > tokenizer.max_length:
        raise RowDropped(
            "too_long", f"{len(ids)} tokens, but the model takes {tokenizer.max_length}"
        )
    start = len(prompt.text) + len(prompt.separator)
    answer = overlapping(
        offsets, Span(start + row.answer.exact.start, start + row.answer.exact.end)
    )
    if answer[0] == 0:
        raise RowDropped(
            "anchor_at_position_0", "the answer includes the first token, the attention sink"
        )
    return TokenRow(
        id=row_id,
        group=row.group,
        cluster=row.cluster,
        ids=tuple(ids),
        positions={"answer": answer},
        example=row.example,
        text=text,
        question=question,
        answer=row.answer,
        prompt_length=len(head),
    )


def after_other_question(
    row: TokenRow, tokenizer: RowTokenizer, pool: Sequence[Example], seed: int
) -> tuple[TokenRow, str]:
    """Return the answer after an unrelated question, and the id of that question's row."""
    rng = random.Random(f"{seed}:{OTHER}:{row.id}")
    tried = rng.sample(pool, min(_TRIES, len(pool)))
    for example in tried:
        if _shares_answer(example, row):
            continue
        prompt = render_prompt(tokenizer.prompt, example.question, tokenizer.tokenizer)
        try:
            changed = build_changed_row(
                row, tokenizer, prompt, example.question, f"{row.id}~{example.example_id}"
            )
        except RowDropped:
            continue
        return changed, example.example_id
    raise RowDropped(
        "no_other_question",
        f"of {len(tried)} questions tried, each shares an answer, changes its tokens or is too"
        " long",
    )


def _shares_answer(other: Example, row: TokenRow) -> bool:
    """Return whether a question is the row's own, shares a gold alias with it or its answer, or
    contains that answer.
    """
    if other.question_id == row.example.question_id:
        return True
    answer = _pad_with_spaces(row.answer.exact.of(row.answer.text))
    if answer in _pad_with_spaces(other.question):
        return True
    own = [answer, *map(_pad_with_spaces, row.example.answers)]
    pairs = product(map(_pad_with_spaces, other.answers), own)
    return any(a in b or b in a for a, b in pairs)


def _pad_with_spaces(text: str) -> str:
    return f" {normalise(text)} "
