"""What the model itself answers, and whether it is right: ``known_only`` and ``generated`` answers (METHOD 3)."""

from collections.abc import Callable, Sequence

from anchorlens.engine.generate import greedy
from anchorlens.models.adapter import Adapter
from anchorlens.notices import warn
from anchorlens.progress import progress as counted
from anchorlens.questions.answer_text import (
    answer_line,
    exact_answer,
    is_right,
    is_thinking_tag,
    names_gold,
    unfinished_thinking,
)
from anchorlens.questions.example import Dropped, Example, Span
from anchorlens.questions.more import more_questions
from anchorlens.questions.prompts import rendered
from anchorlens.questions.tokenised import Rows, drop
from anchorlens.questions.tokens import Answer, RowDropped, RowTokenizer, TokenRow

FEW_ROWS = 20


def known_rows(
    adapter: Adapter,
    examples: Sequence[Example],
    tokenizer: RowTokenizer,
    *,
    max_new_tokens: int,
    batch_size: int | None,
    progress: bool,
) -> Rows:
    """Rows that the model answers right, with its own answer as y (METHOD 3, ``known_only``).

    A row whose line holds a right answer, but whose exact answer is not that alone, is left out as ``answer_not_alone``: P would be
    read at another word than the answer's, and some of these lines are wrong.
    """
    answered = answered_rows(
        adapter, examples, tokenizer, max_new_tokens=max_new_tokens, batch_size=batch_size, progress=progress
    )
    right = [row for row in answered.rows if row.answer.label == 0]
    rows = tuple(row for row in right if _alone(row))
    wrong = [drop(row.example, "not_known", row.answer.text) for row in answered.rows if row.answer.label == 1]
    wrong += [drop(row.example, "answer_not_alone", row.answer.text) for row in right if not _alone(row)]
    if 0 < len(rows) < FEW_ROWS:
        warn(
            f"known_only left {len(rows)} of {len(examples)} questions: below {FEW_ROWS}, bands are wide. "
            f"Take {more_questions()}, or an easier set."
        )
    return Rows(rows, (*wrong, *answered.dropped))


def _alone(row: TokenRow) -> bool:
    # What stands before the exact answer in its line belongs to a title, or to a lead-in.
    text, exact = row.answer.text, row.answer.exact
    line = text[text.rfind("\n", 0, exact.start) + 1 :]
    return names_gold(exact.of(text), line, row.example.answers)


def answered_rows(
    adapter: Adapter,
    examples: Sequence[Example],
    tokenizer: RowTokenizer,
    *,
    max_new_tokens: int,
    batch_size: int | None,
    progress: bool,
) -> Rows:
    """Rows with the model's own answer as y, label 0 where it is right and 1 where it is wrong (METHOD 3, ``generated``).

    The answer is generated greedily, the exact answer is found in it by one rule that does not look at the gold answer, and only
    then is the whole line that it stands in compared. The input holds what the model itself wrote, a reasoning model's thinking
    included, up to the end of the exact answer. A row whose thinking does not end within ``max_new_tokens`` is dropped as
    ``unfinished_thinking``, and one whose answer the model's context cuts off as ``too_long``: how long the question is must not
    decide whether its answer is right.
    """
    texts = generate_answers(
        adapter, examples, tokenizer, max_new_tokens=max_new_tokens, batch_size=batch_size, progress=progress
    )
    opened = _opens_thinking(tokenizer, examples)
    finished, n_ctx = _ending(tokenizer, examples), adapter.shape.n_ctx
    rows: list[TokenRow] = []
    dropped: list[Dropped] = []
    for example, (ids, text) in zip(examples, texts, strict=True):
        prompt = len(tokenizer.prompt_ids(example.question))
        if prompt + len(ids) >= n_ctx and len(ids) < max_new_tokens and not finished(ids):
            dropped.append(drop(example, "too_long", f"{prompt} tokens before the answer, the model takes {n_ctx}"))
            continue
        exact = exact_answer(text, opened=opened)
        line = answer_line(text, opened=opened)
        if exact is None or line is None:
            reason = "unfinished_thinking" if unfinished_thinking(text, opened=opened) else "no_exact_answer"
            dropped.append(drop(example, reason, text.strip().split("\n", 1)[0]))
            continue
        lead = len(text) - len(text.lstrip())
        right = is_right(line.of(text), example.answers)
        within = Span(exact.start - lead, exact.end - lead)
        try:
            row = tokenizer.row(example, Answer(text[lead : exact.end], within, source="generated", label=int(not right)))
        except RowDropped as why:
            dropped.append(drop(example, why.reason, why.detail))
            continue
        first = row.positions["answer"][0]
        if list(row.ids[row.prompt_length : first + 1]) != list(ids[: first + 1 - row.prompt_length]):
            dropped.append(
                drop(example, "answer_retokenised", "tokenised as text, the answer has other tokens than generated")
            )
            continue
        rows.append(row)
    return Rows(tuple(rows), tuple(dropped))


def generate_answers(
    adapter: Adapter,
    examples: Sequence[Example],
    tokenizer: RowTokenizer,
    *,
    max_new_tokens: int = 16,
    batch_size: int | None = None,
    progress: bool = False,
) -> list[tuple[list[int], str]]:
    """Token ids and text of the greedy answer to each question, up to the end of the line that it stands in.

    Cut off where the model's context ends; nothing where it leaves no room.
    """
    prompts = [tokenizer.prompt_ids(example.question) for example in examples]
    if not prompts:
        return []
    with counted("answers", len(prompts), "question", show=progress) as bar:
        out = greedy(
            adapter,
            prompts,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            stop=_ending(tokenizer, examples),
            on_batch=bar.advance,
        )
    decode = _decoder(tokenizer)
    return [(ids, decode(ids)) for ids in out]


def _decoder(tokenizer: RowTokenizer) -> Callable[[list[int]], str]:
    """What generated tokens say."""
    unseen = _unseen_tokens(tokenizer)

    def decode(ids: list[int]) -> str:
        text = tokenizer.tokenizer.decode([i for i in ids if i not in unseen], clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    return decode


def _ending(tokenizer: RowTokenizer, examples: Sequence[Example]) -> Callable[[list[int]], bool]:
    """Whether generated tokens end an answer: at a token that ends it, or behind the line that it stands in."""
    decode, eos, opened = _decoder(tokenizer), _end_tokens(tokenizer), _opens_thinking(tokenizer, examples)

    def finished(ids: list[int]) -> bool:
        if not ids or ids[-1] in eos:
            return bool(ids)
        text = decode(ids)
        line = answer_line(text, opened=opened)
        return line is not None and "\n" in text[line.end :]

    return finished


def _opens_thinking(tokenizer: RowTokenizer, examples: Sequence[Example]) -> bool:
    """Whether the prompt leaves a block of thinking open behind the question, as some chat templates do."""
    if not examples:
        return False
    question = examples[0].question
    prompt = rendered(tokenizer.prompt, question, tokenizer.tokenizer)
    return unfinished_thinking(prompt.text[prompt.question_start + len(question) :])


def _unseen_tokens(tokenizer: RowTokenizer) -> set[int]:
    """Special tokens that are no part of the text; those that open or end a block of thinking are."""
    added = tokenizer.tokenizer.added_tokens_decoder
    return {i for i, token in added.items() if token.special and not is_thinking_tag(token.content)}


def _end_tokens(tokenizer: RowTokenizer) -> set[int]:
    """Tokens after which nothing of the answer comes: EOS, and a chat template's end of turn."""
    hf = tokenizer.tokenizer
    names = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end_of_text|>", "<|endoftext|>")
    vocab: Callable[[str], int | None] = hf.convert_tokens_to_ids  # pyright: ignore
    ids = {vocab(name) for name in names if name in hf.all_special_tokens}
    return {i for i in (hf.eos_token_id, *ids) if isinstance(i, int)}


__all__ = ["FEW_ROWS", "answered_rows", "generate_answers", "known_rows"]
