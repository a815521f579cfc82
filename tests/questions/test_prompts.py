"""Prompts by name, and shots that are never evaluated."""

import pytest

from anchorlens.errors import InputError
from anchorlens.questions.prompts import FewShotPrompt, QAPrompt, make_prompt
from tests.questions.make import capitals
from tests.tokenizers_small import small_tokenizer

TOKENIZER = small_tokenizer("byte", bos=False)


def test_qa_text_and_question_start():
    text = QAPrompt().render("Who?", TOKENIZER)
    assert text.text + text.separator + "Me" == "Q: Who?\nA: Me"
    assert text.text[text.question_start :].startswith("Who?")


def test_shots_are_rows_that_are_not_evaluated():
    data = capitals(6)
    prompt = make_prompt("fewshot(4, seed=3)", data.examples, data.pool, 0)
    assert isinstance(prompt, FewShotPrompt)
    assert prompt.name == "fewshot(4, seed=3)"
    assert not prompt.shot_ids & {e.question_id for e in data.examples}
    text = prompt.render("Who?", TOKENIZER)
    assert text.text.count("Q: ") == 5
    assert text.text[text.question_start :] == "Who?\nA:"


def test_seed_of_the_name_wins_over_the_runs_seed():
    data = capitals(6)
    shots = {s: make_prompt(f"fewshot(3, {s})", data.examples, data.pool, 99).render("x", TOKENIZER).text for s in range(4)}
    assert len(set(shots.values())) > 1
    assert shots[1] == make_prompt("fewshot(3, seed=1)", data.examples, data.pool, 5).render("x", TOKENIZER).text


def test_where_all_rows_are_evaluated_shots_are_taken_from_them():
    data = capitals()
    prompt = make_prompt("fewshot(2)", data.examples, data.pool, 0)
    assert isinstance(prompt, FewShotPrompt)
    assert len(prompt.shot_ids) == 2


@pytest.mark.parametrize("name", ["few", "fewshot(x)", "QA", "fewshot(4", ""])
def test_unknown_prompt_says_what_is_known(name):
    with pytest.raises(InputError, match="Unknown prompt .* Use 'qa', 'fewshot"):
        make_prompt(name, capitals().examples, capitals().pool, 0)


def test_more_shots_than_questions():
    with pytest.raises(InputError, match=r"fewshot\(12\) needs .* fewer shots than the 12 questions"):
        make_prompt("fewshot(12)", capitals().examples, capitals().pool, 0)
