"""Generate and grade the model's own answers for ``known_only`` and ``generated`` (METHOD 3)."""

from collections.abc import Sequence

from anchorlens.display import warn
from anchorlens.engine.generate import greedy
from anchorlens.models.adapter import Adapter
from anchorlens.progress import progress as counted
from anchorlens.prompts.dataset import Dropped, RowDropped
from anchorlens.questions.answer_text import (
    answer_line,
    exact_answer,
    has_open_thinking,
    is_right,
    is_thinking_tag,
    names_gold,
)
from anchorlens.questions.drops import MORE_QUESTIONS
from anchorlens.questions.example import Example, Span
from anchorlens.questions.prompts import render_prompt
from anchorlens.questions.tokens import (
    Answer,
    Rows,
    RowTokenizer,
    TokenRow,
)

FEW_ROWS = 20


def select_known_rows(generated: Rows, prompt: str) -> Rows:
    """Return the rows of :func:`generate_rows` that the model answers correctly (METHOD 3,
    ``known_only``).

    A row is dropped (``answer_not_alone``) if its line is correct but its exact answer is not the
    gold answer alone. Otherwise P would be read at another word.
    """
    rows: list[TokenRow] = []
    wrong: list[Dropped] = []
    not_alone: list[Dropped] = []
    for row in generated.rows:
        if row.answer.label == 1:
            wrong.append(row.example.drop("not_known", row.answer.text))
        elif not _is_gold_alone(row):
            not_alone.append(row.example.drop("answer_not_alone", row.answer.text))
        else:
            rows.append(row)
    n = len(generated.rows) + len(generated.dropped)
    if 0 < len(rows) < FEW_ROWS:
        fix = f"Use {MORE_QUESTIONS} or an easier set"
        if prompt == "qa":
            fix = f"Use {MORE_QUESTIONS}, an easier set, or prompt='fewshot(2)'"
        warn(
            f"known_only=True: {len(rows)} of {n} questions are left, and bands are wide below"
            f" {FEW_ROWS}. {fix}."
        )
    return Rows(tuple(rows), (*wrong, *not_alone, *generated.dropped))


def _is_gold_alone(row: TokenRow) -> bool:
    # Text before the exact answer in its line belongs to a title or a lead-in.
    text = row.answer.text
    exact = row.answer.exact
    line = text[text.rfind("\n", 0, exact.start) + 1 :]
    return names_gold(exact.of(text), line, row.example.answers)


def generate_rows(
    adapter: Adapter,
    examples: Sequence[Example],
    tokenizer: RowTokenizer,
    *,
    max_new_tokens: int,
    batch_size: int | None,
    progress: bool,
) -> Rows:
    """Return rows with the model's greedy answer as y, label 0 if correct and 1 if false (METHOD 3,
    ``generated``).

    The exact answer is found without the gold answer; the label compares the whole line with the
    gold answer. The input contains the generated text, including thinking, up to the end of the
    exact answer.
    """
    texts = generate_answers(
        adapter,
        examples,
        tokenizer,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        progress=progress,
    )
    reader = _AnswerReader(tokenizer, examples)
    n_ctx = adapter.shape.n_ctx
    rows: list[TokenRow] = []
    dropped: list[Dropped] = []
    for example, (ids, text) in zip(examples, texts, strict=True):
        prompt = len(tokenizer.prompt_ids(example.question))
        is_cut = prompt + len(ids) >= n_ctx and len(ids) < max_new_tokens
        try:
            if is_cut and not reader.is_finished(ids):
                raise RowDropped(
                    "too_long", f"{prompt} tokens before the answer, the model takes {n_ctx}"
                )
            rows.append(reader.row(example, ids, text))
        except RowDropped as error:
            dropped.append(example.drop(error.reason, error.detail))
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
    """Return token ids and text of the greedy answer to each question; empty if the context has no
    room left.
    """
    prompts = [tokenizer.prompt_ids(example.question) for example in examples]
    if not prompts:
        return []
    reader = _AnswerReader(tokenizer, examples)
    with counted("answers", len(prompts), "question", show=progress) as bar:
        out = greedy(
            adapter,
            prompts,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            stop=reader.is_finished,
            on_batch=bar.advance,
        )
    return [(ids, reader.decode(ids)) for ids in out]


class _AnswerReader:
    """Finds the end of a generated answer and the exact answer in it."""

    def __init__(self, tokenizer: RowTokenizer, examples: Sequence[Example]) -> None:
        self.tokenizer = tokenizer
        self.hf = tokenizer.tokenizer
        # Special tokens are removed from the text, except tags of thinking.
        self.removed: set[int] = set()
        for number, token in self.hf.added_tokens_decoder.items():
            if token.special and not is_thinking_tag(token.content):
                self.removed.add(number)
        names = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end_of_text|>", "<|endoftext|>")
        known = [name for name in names if name in self.hf.all_special_tokens]
        ends = [self.hf.eos_token_id, *map(self.hf.convert_tokens_to_ids, known)]
        self.ends = {i for i in ends if isinstance(i, int)}
        # Some chat templates open a block of thinking after the question.
        self.opened = False
        if examples:
            question = examples[0].question
            prompt = render_prompt(tokenizer.prompt, question, self.hf)
            behind = prompt.text[prompt.question_start + len(question) :]
            self.opened = has_open_thinking(behind)

    def decode(self, ids: list[int]) -> str:
        kept = [i for i in ids if i not in self.removed]
        text = self.hf.decode(kept, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def is_finished(self, ids: list[int]) -> bool:
        """Return True if the tokens end with an end token, or extend beyond the line of the
        answer.
        """
        if not ids or ids[-1] in self.ends:
            return bool(ids)
        text = self.decode(ids)
        line = answer_line(text, opened=self.opened)
        return line is not None and "\n" in text[line.end :]

    def row(self, example: Example, ids: list[int], text: str) -> TokenRow:
        exact = exact_answer(text, opened=self.opened)
        line = answer_line(text, opened=self.opened)
        if exact is None or line is None:
            is_open = has_open_thinking(text, opened=self.opened)
            reason = "unfinished_thinking" if is_open else "no_exact_answer"
            raise RowDropped(reason, text.strip().split("\n", 1)[0])
        lead = len(text) - len(text.lstrip())
        within = Span(exact.start - lead, exact.end - lead)
        label = int(not is_right(line.of(text), example.answers))
        answer = Answer(text[lead : exact.end], within, source="generated", label=label)
        row = self.tokenizer.row(example, answer)
        as_text = row.ids[row.prompt_length : row.positions["answer"][0] + 1]
        if list(as_text) != ids[: len(as_text)]:
            raise RowDropped(
                "answer_retokenised",
                "the answer's text tokenizes to other tokens than the generated ones",
            )
        return row
