"""Set up a sweep over questions: prompt, few-shot examples, tokenizer and rows."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from typing_extensions import override

from anchorlens.display import short_repr
from anchorlens.engine.patches import common_prefix
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import name_of
from anchorlens.prompts.dataset import Dropped, PromptDataset
from anchorlens.prompts.sweep_context import DataSource, SweepContext
from anchorlens.questions.datasets import QAData, load_qa
from anchorlens.questions.example import Example
from anchorlens.questions.prompts import (
    ChatPrompt,
    FewShotPrompt,
    make_prompt,
    reads_more_than_arguments,
    render_prompt,
    truth_question,
)
from anchorlens.questions.tokens import RowTokenizer, make_token_text

# Number of prompts from which the common prefix is computed.
_PREFIX_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class QuestionContext(SweepContext):
    """Context of a sweep over questions: rows to evaluate, pool of donors and tokenizer."""

    examples: tuple[Example, ...]
    pool: tuple[Example, ...]
    tokenizer: RowTokenizer

    @property
    @override
    def prompts_sha256(self) -> str | None:
        return self._prompts_sha256 if reads_more_than_arguments(self.tokenizer.prompt) else None

    @cached_property
    def _prompts_sha256(self) -> str:
        prompt = self.tokenizer.prompt
        hf = self.tokenizer.tokenizer
        texts = [render_prompt(prompt, example.question, hf).text for example in self.examples]
        if self.tokenizer.ask:
            texts.append(truth_question(prompt, hf))
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()

    @property
    @override
    def clock(self) -> str | None:
        prompt = self.tokenizer.prompt
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
