"""SmolLM2-135M answers at least 40 questions of each embedded set correctly."""

import pytest

import anchorlens as al
from anchorlens.models.load import adapt
from anchorlens.probing.model_answers import generate_answers
from anchorlens.questions.answer_text import exact_answer, is_right
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer
from tests.tiers import choose_cases


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    choose_cases(
        (), ("popqa-sample", "triviaqa-sample", "hotpotqa-sample", "nq-sample"), slow=("nq-sample",)
    ),
)
def test_at_least_160_questions_of_which_40_are_known(smollm2, name):
    data = al.load_qa(name)
    assert len(data.examples) >= 160
    tokenizer = RowTokenizer(smollm2.tokenizer, QAPrompt())
    known = 0
    for row, (_, text) in zip(
        data.examples, generate_answers(adapt(smollm2), data.examples, tokenizer), strict=True
    ):
        span = exact_answer(text)
        known += span is not None and is_right(span.of(text), row.answers)
        if known == 40:
            return
    pytest.fail(f"{known} of {len(data.examples)} are known")
