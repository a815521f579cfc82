"""Token rows: a prompt with a teacher-forced answer, tokenized once, with the positions of every
anchor (METHOD 2); the logits that are read for the probability of the answer; and the set-up of a
sweep over questions.

Positions are in *pairing order* (subject, then property): slot i of a base and slot i of a donor
are the same role and offset. A question that cannot be tokenized is dropped with a reason.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from anchorlens.display import short_repr
from anchorlens.engine.patches import common_prefix
from anchorlens.engine.readouts import ReadPlan
from anchorlens.errors import InputError, SpanError
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import name_of, resolve_add_bos, with_bos
from anchorlens.prompts.dataset import Dropped, PromptDataset, RowDropped
from anchorlens.prompts.sweep_context import DataSource, SweepContext
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.questions.datasets import load_qa
from anchorlens.questions.example import Example, QAData, Span, normalise
from anchorlens.questions.prompts import (
    ChatPrompt,
    FewShotPrompt,
    Prompt,
    check_prompt,
    make_prompt,
    reads_more_than_arguments,
    render_prompt,
    truth_question,
)
from anchorlens.questions.spans.lexicon import STOP

_WORD = re.compile(r"\w+")
# Number of prompts from which the common prefix is computed.
_PREFIX_ROWS = 16


@dataclass(frozen=True)
class Answer:
    """Answer text y with the span of the exact answer."""

    text: str
    exact: Span  # characters of ``text`` (E_A)
    source: str = "gold"  # or "generated"
    label: int = 0  # 1 where the answer is false (a hallucination)

    @classmethod
    def gold(cls, text: str) -> "Answer":
        """Return a gold answer, whose whole text is the exact answer."""
        return cls(text=text, exact=Span(0, len(text)))


@dataclass(frozen=True, kw_only=True)
class TokenRow(TokenizedPrompt):
    """Tokenized question with its answer.

    ``id`` is ``example_id``; with ``|true`` or ``|false`` if both answers are rows; ``base~donor``
    for a corrupt input.
    """

    example: Example
    text: str
    question: str  # of this input; the question of a corrupt row differs from its example's
    answer: Answer
    prompt_length: int

    @override
    def columns(self) -> dict[str, object]:
        example = self.example
        return {
            "question": self.question,
            "answer": self.answer.exact.of(self.answer.text),
            "label": self.answer.label,
            "text": self.text,
            "relation": example.relation,
            "answer_type": example.answer_type,
            "popularity": example.popularity,
            "span_source": example.span_source,
        }

    @cached_property
    def answer_ids(self) -> tuple[int, ...]:
        """Token ids of the exact answer."""
        return tuple(self.ids[p] for p in self.positions["answer"])


class RowTokenizer:
    """Tokenizes examples with their answers and finds the positions of all anchors.

    ``ask`` appends the question of the readout ``p_true``.

    If ``add_bos`` is None, BOS is added as the tokenizer does. Rows longer than ``max_length``
    tokens are dropped.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: Prompt,
        *,
        add_bos: bool | None = None,
        max_length: int | None = None,
        ask: bool = False,
    ) -> None:
        if not tokenizer.is_fast:
            fix = "Load the fast tokenizer (AutoTokenizer.from_pretrained(..., use_fast=True))."
            raise InputError(
                f"tokenizer: {type(tokenizer).__name__} returns no character offsets. {fix}"
            )
        self.tokenizer = tokenizer
        self.prompt = check_prompt(prompt)
        self.add_bos = resolve_add_bos(tokenizer, add_bos)
        self.max_length = max_length
        self.ask = ask

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return token ids and character offsets of a text.

        A BOS, if :attr:`add_bos`, has an empty offset, so that no span includes it.
        """
        out = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids = list(out["input_ids"])  # pyright: ignore[reportArgumentType]
        offsets: list[tuple[int, int]] = []
        for start, end in out["offset_mapping"]:  # pyright: ignore[reportGeneralTypeIssues]
            offsets.append((int(start), int(end)))
        whole = with_bos(self.tokenizer, ids, self.add_bos)
        return whole, [(0, 0)] * (len(whole) - len(ids)) + offsets

    def prompt_ids(self, question: str) -> tuple[int, ...]:
        """Return the token ids of the prompt without an answer."""
        return tuple(self.encode(render_prompt(self.prompt, question, self.tokenizer).text)[0])

    def row(
        self, example: Example, answer: Answer | None = None, row_id: str | None = None
    ) -> TokenRow:
        """Tokenize one example with an answer, the first gold alias if None; raise RowDropped if it
        cannot be measured.
        """
        spans = {"subject": example.subject, "property": example.property}
        name = row_id or example.example_id
        return self._row(
            name, example, example.question, spans, answer or Answer.gold(example.answers[0])
        )

    @cached_property
    def token_text(self) -> Callable[[int], str]:
        """Function token id -> text, see :func:`make_token_text`."""
        return make_token_text(self.tokenizer)

    def corrupt_row(self, base: TokenRow, donor: Example) -> TokenRow:
        """Return the base's input and answer with the E_Q text of the donor (METHOD 4,
        denoising).
        """
        example = base.example
        # In the order of the question: either segment may come first.
        parts = sorted(
            [
                (example.subject, "subject", donor.subject),
                (example.property, "property", donor.property),
            ],
            key=lambda part: part[0],
        )
        question = ""
        end = 0
        spans: dict[str, Span] = {}
        for span, role, donor_span in parts:
            question += example.question[end : span.start]
            text = donor_span.of(donor.question)
            spans[role] = Span(len(question), len(question) + len(text))
            question += text
            end = span.end
        question += example.question[end:]
        return self._row(f"{base.id}~{donor.example_id}", example, question, spans, base.answer)

    def _row(
        self, row_id: str, example: Example, question: str, spans: dict[str, Span], answer: Answer
    ) -> TokenRow:
        prompt = render_prompt(self.prompt, question, self.tokenizer)
        answer_start = len(prompt.text) + len(prompt.separator)
        text = prompt.text + prompt.separator + answer.text
        if self.ask:
            text += truth_question(self.prompt, self.tokenizer)
        ids, offsets = self.encode(text)
        prompt_ids = self.encode(prompt.text)[0]
        if ids[: len(prompt_ids)] != prompt_ids:
            raise RowDropped(
                "prompt_not_prefix",
                "the answer's first characters merge with the prompt's last token",
            )
        if self.max_length is not None and len(ids) > self.max_length:
            raise RowDropped("too_long", f"{len(ids)} tokens, the model takes {self.max_length}")
        in_text = {role: _shift(span, prompt.question_start) for role, span in spans.items()}
        in_text["answer"] = _shift(answer.exact, answer_start)
        whole_question = Span(prompt.question_start, prompt.question_start + len(question))
        positions = anchor_positions(offsets, in_text, whole_question, len(prompt_ids))
        positions |= word_positions(offsets, text, whole_question, positions["question_rest"])
        row = TokenRow(
            id=row_id,
            group=example.question_id,
            cluster=example.cluster or example.relation or "",
            ids=tuple(ids),
            positions=positions,
            example=example,
            text=text,
            question=question,
            answer=answer,
            prompt_length=len(prompt_ids),
        )
        for role, span in in_text.items():
            self._check_text(row, role, span.of(text))
        return row

    def _check_text(self, row: TokenRow, role: str, wanted: str) -> None:
        """Raise RowDropped if the decoded tokens of a segment do not contain its text."""
        ids = [row.ids[p] for p in sorted(row.positions[role])]
        decoded = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert isinstance(decoded, str)
        if wanted not in decoded and normalise(wanted) not in normalise(decoded):
            raise RowDropped(
                "anchor_text_mismatch",
                f"{role}: tokens decode to {decoded!r}, the span is {wanted!r}",
            )


def _shift(span: Span, by: int) -> Span:
    return Span(span.start + by, span.end + by)


def make_token_text(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    """Return the function token id -> text, with a leading space if the token has one.

    A part of a character decodes to a replacement sign.
    """

    @cache
    def text(token: int) -> str:
        decoded = tokenizer.decode([token], clean_up_tokenization_spaces=False)
        assert isinstance(decoded, str)
        raw = tokenizer.convert_ids_to_tokens(token)
        # SentencePiece marks the space with a sign, and omits it at the start of a text.
        has_space = (
            isinstance(raw, str) and raw.startswith("\u2581") and not decoded.startswith(" ")
        )
        return f" {decoded}" if has_space else decoded

    return text


def word_positions(
    offsets: Sequence[tuple[int, int]], text: str, question: Span, rest: Collection[int]
) -> dict[str, tuple[int, ...]]:
    """Return the positions of words outside E_Q: ``rest_words``, and ``rest_content`` without
    function words; other tokens of the question are punctuation.
    """
    words: set[int] = set()
    content: set[int] = set()
    for match in _WORD.finditer(text, question.start, question.end):
        tokens = overlapping(offsets, Span(*match.span()))
        words.update(tokens)
        if match[0].casefold() not in STOP:
            content.update(tokens)
    return {
        "rest_words": tuple(p for p in rest if p in words),
        "rest_content": tuple(p for p in rest if p in content),
    }


def overlapping(offsets: Sequence[tuple[int, int]], span: Span) -> tuple[int, ...]:
    """Return the positions of the tokens that share a character with the span."""
    positions: list[int] = []
    for i, (start, end) in enumerate(offsets):
        shares = start < span.end and span.start < end
        if shares:
            positions.append(i)
    return tuple(positions)


def anchor_positions(
    offsets: Sequence[tuple[int, int]], spans: dict[str, Span], question: Span, prompt_length: int
) -> dict[str, tuple[int, ...]]:
    """Return the token positions of every anchor; raise RowDropped if a segment has no usable
    token.
    """
    subject = overlapping(offsets, spans["subject"])
    # A token of both segments counts as subject.
    prop = tuple(p for p in overlapping(offsets, spans["property"]) if p not in subject)
    answer = overlapping(offsets, spans["answer"])
    for name, tokens in (("subject", subject), ("property", prop), ("answer", answer)):
        span = spans[name]
        is_inside = question.start <= span.start < span.end <= question.end
        if name != "answer" and not is_inside:
            raise SpanError(
                f"The {name} span {span} lies outside the question {question}. Correct the span."
            )
        if not tokens:
            raise RowDropped(f"no_{name}_token", "no token of its own")
        if tokens[0] == 0:
            raise RowDropped(
                "anchor_at_position_0", f"{name} includes the first token, the attention sink"
            )
    if answer[0] < prompt_length:
        raise RowDropped("answer_in_prompt", "the exact answer's first token belongs to the prompt")
    excluded = {0, *subject, *prop, *range(prompt_length, len(offsets))}
    rest = tuple(p for p in overlapping(offsets, question) if p not in excluded)
    return {
        "exact_question": subject + prop,
        "subject": subject,
        "property": prop,
        "subject_last": (max(subject),),
        "question_rest": rest,
        "prompt_last": (prompt_length - 1,),
        "answer": answer,
        "pre_answer": (answer[0] - 1,),
        "pre_answer_all": tuple(p - 1 for p in answer),
    }


def first_difference(base: Sequence[int], donor: Sequence[int]) -> tuple[int, int]:
    """Return the first index at which two answers differ, and the donor's token there.

    The result is (-1, -1) if one answer begins with the other, so that no token tells them apart.
    """
    for i, (a, b) in enumerate(zip(base, donor, strict=False)):
        if a != b:
            return i, b
    return -1, -1


def answer_reads(
    rows: Sequence[TokenRow], rivals: Sequence[TokenRow | None], *, first_only: bool
) -> ReadPlan:
    """Plan which logits a batch reads for the probability of its answers.

    A rival is the row whose answer a logit difference compares with. If ``first_only``, one token
    of each answer is read: the first one that differs from the rival's answer.
    """
    reads: list[tuple[int, int, int, int, int]] = []
    for i, (row, rival) in enumerate(zip(rows, rivals, strict=True)):
        differ = -1
        other = -1
        if rival is not None:
            differ, other = first_difference(row.answer_ids, rival.answer_ids)
        answer = list(zip(row.positions["answer"], row.answer_ids, strict=True))
        if first_only:
            position, token = answer[max(differ, 0)]
            reads.append((i, position - 1, token, other, 0))
            continue
        for slot, (position, token) in enumerate(answer):
            reads.append((i, position - 1, token, other if slot == differ else -1, slot))
    columns = torch.tensor(reads, dtype=torch.long, device="cpu").T.contiguous()
    row, position, token, rival, slot = columns
    return ReadPlan(
        row=row, position=position, token=token, rival=rival, slot=slot, n_examples=len(rows)
    )


@dataclass(frozen=True)
class Rows:
    """Token rows and the dropped examples."""

    rows: tuple[TokenRow, ...]
    dropped: tuple[Dropped, ...]


def make_rows(
    examples: Iterable[Example], tokenizer: RowTokenizer, answers: dict[str, Answer] | None = None
) -> Rows:
    """Tokenize examples with their answers, and drop those that cannot be measured.

    ``answers`` has the answer of each ``example_id``. If None, the first gold alias is the answer.
    """
    rows: list[TokenRow] = []
    dropped: list[Dropped] = []
    for example in examples:
        try:
            rows.append(
                tokenizer.row(example, answers[example.example_id] if answers is not None else None)
            )
        except RowDropped as error:
            dropped.append(example.drop(error.reason, error.detail))
    return Rows(tuple(rows), tuple(dropped))


@dataclass(frozen=True, kw_only=True)
class QuestionContext(SweepContext):
    """Context of a sweep over questions: rows to evaluate, pool of donors and tokenizer."""

    examples: tuple[Example, ...]
    pool: tuple[Example, ...]
    tokenizer: RowTokenizer


def _hash_prompts(tokenizer: RowTokenizer, examples: Sequence[Example]) -> str | None:
    """Return the hash of the rendered prompts; None if they follow from arguments, data and
    tokenizer.
    """
    prompt = tokenizer.prompt
    hf = tokenizer.tokenizer
    after = [truth_question(prompt, hf)] if tokenizer.ask else []  # it may read the clock, too
    if not reads_more_than_arguments(prompt):
        return None
    texts = [render_prompt(prompt, example.question, hf).text for example in examples] + after
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _clock_of(prompt: Prompt) -> str | None:
    """Return the local time that a chat template has read; None if it reads none."""
    if isinstance(prompt, ChatPrompt) and prompt.clock.is_read:
        return prompt.clock.time.isoformat()
    return None


def set_up_questions(adapter: Adapter, data: QAData, spec: Any) -> QuestionContext:
    """Return the context of a sweep: prompt and tokenizer, and the rows that do not serve
    as shots.
    """
    hf = adapter.tokenizer
    if hf is None:
        raise InputError(
            "model: has no tokenizer. Set model.tokenizer, or load it with anchorlens.load_model.",
            argument="model",
        )
    prompt = make_prompt(spec.prompt, data.examples, data.pool, spec.seed)
    tokenizer = RowTokenizer(
        hf,
        prompt,
        add_bos=spec.add_bos,
        max_length=adapter.shape.n_ctx,
        ask=spec.has_truth_question,
    )
    shots = prompt.shot_ids if isinstance(prompt, FewShotPrompt) else frozenset()
    examples: list[Example] = []
    used: list[Dropped] = []
    for example in data.examples:
        if example.question_id in shots:
            used.append(example.drop("used_as_shot"))
        else:
            examples.append(example)
    pool = tuple(example for example in data.pool if example.question_id not in shots)
    prompts = [tokenizer.prompt_ids(example.question) for example in examples[:_PREFIX_ROWS]]
    prefix = prompts[0][: common_prefix(prompts, len(prompts[0]))] if len(prompts) > 1 else ()
    return QuestionContext(
        adapter=adapter,
        model_name=name_of(adapter.model),
        data=data,
        dropped=(*data.dropped, *used),
        progress=spec.progress,
        prompt=prompt.name,
        add_bos=tokenizer.add_bos,
        prefix=prefix,
        token_text=tokenizer.token_text,
        prompts_sha256=_hash_prompts(tokenizer, examples),
        clock=_clock_of(prompt),
        examples=tuple(examples),
        pool=pool,
        tokenizer=tokenizer,
    )


def _load(data: Any, seed: int) -> QAData:
    if isinstance(data, PromptDataset) and not isinstance(data, QAData):
        raise InputError(
            f"data={short_repr(data)}: this protocol needs questions. Use load_qa, or patch_sweep.",
            argument="data",
        )
    return data if isinstance(data, QAData) else load_qa(data, seed=seed)


QUESTIONS = DataSource(_load, set_up_questions, make_token_text)
"""Question sets loaded by :func:`anchorlens.load_qa`."""
