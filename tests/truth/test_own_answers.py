"""The model's own answers: judged on the whole line, found after the thinking, dropped by name where the thinking does not end."""

import copy

import pytest

from anchorlens.models.adapter import Adapter
from anchorlens.questions.prompts import QAPrompt, TemplatePrompt
from anchorlens.questions.tokens import RowTokenizer
from anchorlens.truth import own_answers
from anchorlens.truth.own_answers import answered_rows, generate_answers, known_rows
from tests.questions.make import example


@pytest.fixture
def answered(tiny_model, monkeypatch):
    """``answered(question and gold -> what the model says)``: rows as if the model had generated these texts."""
    model = tiny_model("llama")

    def rows(said, make=answered_rows, prompt=QAPrompt()):  # noqa: B008 - frozen
        texts = iter(said.values())
        tokens = [model.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        monkeypatch.setattr(own_answers, "greedy", lambda *args, **kwargs: tokens)
        examples = [example(question, question.split()[2], question.split()[1], gold) for question, gold in said]
        tokenizer = RowTokenizer(model.tokenizer, prompt)
        return make(Adapter(model), examples, tokenizer, max_new_tokens=16, batch_size=None, progress=False)

    return rows


@pytest.mark.parametrize(
    ("text", "gold", "exact"),
    [
        (" This is Spinal Tap", "This is Spinal Tap", "Spinal Tap"),
        (" They Were Expendable", "They Were Expendable", "Expendable"),
        (" The Lion King is a movie", "The Lion King", "a movie"),
        (" Paris, the capital of France", "Paris", "Paris"),
    ],
)
def test_a_right_title_is_right_whatever_the_span_leaves_of_it(answered, text, gold, exact):
    (row,) = answered({("Which film lasts longest?", gold): text}).rows
    assert row.answer.label == 0
    assert row.answer.exact.of(row.answer.text) == exact
    (known,) = answered({("Which film lasts longest?", gold): text}, known_rows).rows
    assert known.answer == row.answer


def test_a_wrong_answer_stays_wrong(answered):
    (row,) = answered({("Which film lasts longest?", "Spinal"): " This is Spinaltap"}).rows
    assert row.answer.label == 1


def test_the_answer_of_a_thinking_model_stands_behind_its_thinking(answered):
    found = answered({("Which city lies there?", "Paris"): " <think>\nRome? No.\n</think>\n\nIt is Paris."})
    (row,) = found.rows
    assert row.answer.exact.of(row.answer.text) == "Paris" and row.answer.label == 0
    # What the model wrote before stays in its input.
    assert row.answer.text.startswith("<think>\nRome?")


OPENED = TemplatePrompt.of("User: {question}\nAssistant: <think>\n")


def test_thinking_that_the_prompt_opened_is_not_judged_as_the_answer(answered):
    found = answered(
        {
            ("Which city lies there?", "Rome"): "Rome? No, it is not.\nSo",
            ("Which town lies here?", "Rome"): "Rome? No.\n</think>\n\nParis",
        },
        prompt=OPENED,
    )
    (row,) = found.rows
    assert row.answer.exact.of(row.answer.text) == "Paris" and row.answer.label == 1
    assert [gone.reason for gone in found.dropped] == ["unfinished_thinking"]


def test_a_question_that_holds_the_tag_opens_nothing(answered):
    (row,) = answered({("Which tag is <think> there?", "HTML"): " HTML"}).rows
    assert row.answer.label == 0


def test_a_tag_of_thinking_that_is_a_special_token_is_seen_by_the_rule(tiny_model, monkeypatch):
    model = tiny_model("llama")
    hf = copy.deepcopy(model.tokenizer)
    hf.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "<|im_end|>"]})
    said = hf("[THINK]Rome?\nNo.[/THINK]\n\nParis<|im_end|>", add_special_tokens=False)["input_ids"]
    assert {hf.convert_tokens_to_ids(tag) for tag in ("[THINK]", "[/THINK]", "<|im_end|>")} < set(said)
    monkeypatch.setattr(own_answers, "greedy", lambda *args, **kwargs: [said])
    rows = [example("Which city lies there?", "there", "city", "Paris")]
    prompt = TemplatePrompt.of("{question}\n")
    found = answered_rows(Adapter(model), rows, RowTokenizer(hf, prompt), max_new_tokens=16, batch_size=None, progress=False)
    (row,) = found.rows
    assert row.answer.exact.of(row.answer.text) == "Paris" and row.answer.label == 0
    assert row.answer.text == "[THINK]Rome?\nNo.[/THINK]\n\nParis"


def test_thinking_that_does_not_end_is_dropped_by_name(answered):
    found = answered(
        {
            ("Which city lies there?", "Paris"): "<think>\nParis may be",
            ("Which town lies here?", "Rome"): " ...",
            ("Which hill is high?", "Etna"): " Etna",
        }
    )
    assert [row.answer.text for row in found.rows] == ["Etna"]
    assert [gone.reason for gone in found.dropped] == ["unfinished_thinking", "no_exact_answer"]


def test_generation_goes_on_through_the_thinking_to_the_end_of_the_answers_line(tiny_model, monkeypatch):
    model = tiny_model("llama")
    tokenizer = RowTokenizer(model.tokenizer, QAPrompt())
    texts = (
        "<think>\nRome?\n",
        "<think>\na\n</think>\n\n",
        "<think>\na\n</think>\n\nParis",
        "a</think>Paris\n",
        " Paris\n",
        "\n",
    )
    stops: list[bool] = []

    def stopped(*args, stop, **kwargs):
        stops.extend(stop(model.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
        return [[5]]

    monkeypatch.setattr(own_answers, "greedy", stopped)
    rows = [example("Which city lies there?", "there", "city", "Paris")]
    generate_answers(Adapter(model), rows, tokenizer)
    assert stops == [False, False, False, True, True, False]
    stops.clear()
    generate_answers(Adapter(model), rows, RowTokenizer(model.tokenizer, OPENED))
    assert stops == [False, False, False, True, False, False]
