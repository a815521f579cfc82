"""Prompts by name, and shots that are not evaluated."""

import copy
from types import SimpleNamespace

import pytest

from anchorlens.errors import InputError
from anchorlens.questions.prompts import (
    ChatPrompt,
    FewShotPrompt,
    PromptText,
    QAPrompt,
    TemplatePrompt,
    make_prompt,
    reads_more_than_arguments,
    render_prompt,
)
from tests.questions.make import capitals, refused
from tests.raised import raises
from tests.tokenizers_small import small_tokenizer

TOKENIZER = small_tokenizer("byte", bos=False)


def test_shots_are_rows_that_are_not_evaluated():
    data = capitals(6)
    prompt = make_prompt("fewshot(4, seed=3)", data.examples, data.pool, 0)
    assert isinstance(prompt, FewShotPrompt)
    assert prompt.name == "fewshot(4, seed=3)"
    assert not prompt.shot_ids & {e.question_id for e in data.examples}
    text = prompt.render("Who?", TOKENIZER)
    assert text.text.count("Q: ") == 5
    assert text.text[text.question_start :] == "Who?\nA:"


def test_a_seed_in_the_name_overrides_the_seed_of_the_run():
    data = capitals(6)
    shots = {
        s: make_prompt(f"fewshot(3, {s})", data.examples, data.pool, 99).render("x", TOKENIZER).text
        for s in range(4)
    }
    assert len(set(shots.values())) > 1
    assert (
        shots[1]
        == make_prompt("fewshot(3, seed=1)", data.examples, data.pool, 5)
        .render("x", TOKENIZER)
        .text
    )


def test_shots_come_from_evaluated_rows_if_there_are_no_others():
    data = capitals()
    prompt = make_prompt("fewshot(2)", data.examples, data.pool, 0)
    assert isinstance(prompt, FewShotPrompt)
    assert len(prompt.shot_ids) == 2


UNKNOWN = "unknown. Use 'qa', 'fewshot"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, UNKNOWN) for name in ("few", "fewshot(x)", "QA", "fewshot(4", "")),
        (
            "fewshot(12)",
            "prompt='fewshot(12)': needs at least one shot and fewer shots than the 12 questions",
        ),
        ("{question} {question}", "prompt='{question} {question}': contains {question} 2 times."),
    ],
)
def test_an_unknown_or_invalid_name_is_refused(name, message):
    with refused(InputError, message, "prompt"):
        make_prompt(name, capitals().examples, capitals().pool, 0)


@pytest.mark.parametrize(
    ("template", "before_answer"),
    [
        ("Question: {question}\nAnswer:", "Question: Who?\nAnswer:| |"),
        (r"Q: {question}\nA:", "Q: Who?\nA:| |"),
        ("Question: {question}\nAnswer: ", "Question: Who?\nAnswer:| |"),
        ("Q: {question}\nA:   ", "Q: Who?\nA:|   |"),
        ("Q: {question}\nA:\n", "Q: Who?\nA:\n||"),
        ("Q: {question}\nA:\n ", "Q: Who?\nA:\n| |"),
        ("Q: {question}\tA:\t", "Q: Who?\tA:\t||"),
        ("{question}", "Who?| |"),
        ("{question} ", "Who?| |"),
        ('{"q": "{question}", "a": {0} {} {x!r', '{"q": "Who?", "a": {0} {} {x!r| |'),
        ("{{question}}", "{Who?}| |"),
    ],
)
def test_a_template_is_the_text_around_the_question(template, before_answer):
    prompt = make_prompt(template, (), (), 0)
    made = prompt.render("Who?", TOKENIZER)
    assert f"{made.text}|{made.separator}|" == before_answer
    assert made.text[made.question_start :].startswith("Who?")
    again = make_prompt(prompt.name, (), (), 0)
    assert again == prompt


def test_a_template_of_qa_is_qa():
    made = make_prompt("Q: {question}\nA:", (), (), 0)
    assert isinstance(made, TemplatePrompt)
    assert made.name == r"Q: {question}\nA:"
    for question in ("Who?", "What is {question}?"):
        assert made.render(question, TOKENIZER) == QAPrompt().render(question, TOKENIZER)


class Named:
    name = "named"

    def render(self, question, tokenizer):
        return PromptText(question, 0, " ")


class Short(Named):
    def render(self, question):
        return PromptText(question, 0, " ")


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        (Named, "the class Named"),
        (Named().render, "a method"),
        (("qa", 2), "('qa', 2)"),
        (3, "3"),
        (SimpleNamespace(name="x"), "a SimpleNamespace"),
        (SimpleNamespace(name="x", render=3), "a SimpleNamespace"),
        (SimpleNamespace(render=Named().render), "a SimpleNamespace"),
        (SimpleNamespace(render=Named().render, name=3), "a SimpleNamespace"),
        (Short(), "a Short"),
    ],
)
def test_an_object_that_is_no_prompt_is_refused(unchecked, prompt, shown):
    with refused(InputError, f"prompt={shown}: must be 'qa', ", "prompt"):
        make_prompt(prompt, (), (), 0)


def test_a_custom_prompt_is_accepted():
    prompt = Named()
    assert make_prompt(prompt, (), (), 0) is prompt


class Shifted(QAPrompt):
    def render(self, question, tokenizer):
        return PromptText(f"Q: {question}\nA:", 0, " ")


class Wordy(ChatPrompt):
    def render(self, question, tokenizer):
        return PromptText(f"Well: {question}", 6, " ")


def test_a_prompt_derived_from_one_of_ours_counts_as_code_of_the_user():
    with raises(InputError, "prompt", word="question_start=0"):
        render_prompt(Shifted(), "Who wrote Emma?", TOKENIZER)
    assert render_prompt(Wordy(), "Who?", TOKENIZER).text == "Well: Who?"
    assert reads_more_than_arguments(Shifted())
    assert reads_more_than_arguments(Wordy())
    assert not reads_more_than_arguments(QAPrompt())


def test_a_chat_template_that_repeats_the_question_is_refused():
    tokenizer = copy.deepcopy(TOKENIZER)
    content = "{{ messages[0]['content'] }}"
    tokenizer.chat_template = f"{content} Again: {content} A:"
    with raises(InputError, "prompt", word="2 times"):
        ChatPrompt().render("Who wrote it?", tokenizer)
    # The word of the template is no second question.
    tokenizer.chat_template = f"User: {content} A:"
    assert ChatPrompt().render("User", tokenizer).text == "User: User A:"
