"""Generated answers: graded by the whole line, found after thinking, dropped if thinking does not
end.
"""

import copy
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch

import anchorlens as al
from anchorlens.errors import EmptySweepError
from anchorlens.models.load import adapt, load_model
from anchorlens.probing import model_answers
from anchorlens.probing.model_answers import generate_answers, generate_rows, select_known_rows
from anchorlens.questions.prompts import QAPrompt, TemplatePrompt
from anchorlens.questions.tokens import RowTokenizer
from tests.models.tiny import FAMILIES, random_model, save_model
from tests.questions.make import capital, data_of, example


@pytest.fixture
def answered(tiny_model, monkeypatch):
    """Make the rows of a model that generates the passed text for each (question, gold answer)."""
    model = tiny_model("llama")

    def rows(said, prompt=QAPrompt()):  # noqa: B008 - frozen
        texts = iter(said.values())
        tokens = [model.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        monkeypatch.setattr(model_answers, "greedy", lambda *args, **kwargs: tokens)
        examples = [
            example(question, question.split()[2], question.split()[1], gold)
            for question, gold in said
        ]
        tokenizer = RowTokenizer(model.tokenizer, prompt)
        return generate_rows(
            adapt(model), examples, tokenizer, max_new_tokens=16, batch_size=None, progress=False
        )

    return rows


@pytest.mark.parametrize(
    ("text", "gold", "exact", "reason"),
    [
        (" This is Spinal Tap", "This is Spinal Tap", "Spinal Tap", ""),
        (" They Were Expendable", "They Were Expendable", "Expendable", ""),
        (" Paris, the capital of France", "Paris", "Paris", ""),
        (" The giraffe", "giraffe", "The giraffe", ""),
        (" Liverpool, England.", "Liverpool", "Liverpool, England", ""),
        (" The capital of France is Paris.", "Paris", "Paris", ""),
        (" <think>\nRome? No.\n</think>\n\nIt is Paris.", "Paris", "Paris", ""),
        # P would be read at another word than the gold one, such as " a".
        (" The Lion King is a movie", "The Lion King", "a movie", "answer_not_alone"),
        (" Abraham Lincoln", "Abraham", "Abraham Lincoln", "answer_not_alone"),
        (
            " The Psycho film was directed by Alfred Hitchcock",
            "Alfred Hitchcock",
            "directed by Alfred Hitchcock",
            "answer_not_alone",
        ),
        (
            " Sydney is a city in Australia.",
            "Australia",
            "Sydney is a city in Australia",
            "answer_not_alone",
        ),
        (
            " 1. Fire is a form of heat. 2. Snow is a",
            "snow",
            "1. Fire is a form of heat",
            "answer_not_alone",
        ),
        (" This is Spinaltap", "Spinal", "Spinaltap", "not_known"),
    ],
)
def test_a_line_that_holds_a_gold_answer_is_right_and_known_where_that_stands_alone(
    answered, text, gold, exact, reason
):
    (row,) = answered({("Which film lasts longest?", gold): text}).rows
    assert row.answer.label == (reason == "not_known")
    assert row.answer.exact.of(row.answer.text) == exact
    assert text.strip().startswith(
        row.answer.text
    )  # what the model wrote before, such as its thinking, stays in its input
    found = select_known_rows(answered({("Which film lasts longest?", gold): text}), "qa")
    assert [known.answer for known in found.rows] == ([] if reason else [row.answer])
    assert [(gone.reason, gone.detail) for gone in found.dropped] == (
        [(reason, row.answer.text)] if reason else []
    )


OPENED = TemplatePrompt.of("User: {question}\nAssistant: <think>\n")


def test_thinking_that_the_prompt_opened_is_not_judged_as_the_answer(answered):
    said = {
        ("Which city lies there?", "Rome"): "Rome? No, it is not.\nSo",
        ("Which town lies here?", "Rome"): "Rome? No.\n</think>\n\nParis",
    }
    found = answered(said, prompt=OPENED)
    (row,) = found.rows
    assert row.answer.exact.of(row.answer.text) == "Paris" and row.answer.label == 1
    assert [gone.reason for gone in found.dropped] == ["unfinished_thinking"]
    # A question that holds the tag opens nothing.
    (row,) = answered({("Which tag is <think> there?", "HTML"): " HTML"}).rows
    assert row.answer.label == 0


def test_a_tag_of_thinking_that_is_a_special_token_is_seen_by_the_rule(tiny_model, monkeypatch):
    model = tiny_model("llama")
    hf = copy.deepcopy(model.tokenizer)
    hf.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "<|im_end|>"]})
    said = hf("[THINK]Rome?\nNo.[/THINK]\n\nParis<|im_end|>", add_special_tokens=False)["input_ids"]
    assert {hf.convert_tokens_to_ids(tag) for tag in ("[THINK]", "[/THINK]", "<|im_end|>")} < set(
        said
    )
    monkeypatch.setattr(model_answers, "greedy", lambda *args, **kwargs: [said])
    rows = [example("Which city lies there?", "there", "city", "Paris")]
    prompt = TemplatePrompt.of("{question}\n")
    found = generate_rows(
        adapt(model),
        rows,
        RowTokenizer(hf, prompt),
        max_new_tokens=16,
        batch_size=None,
        progress=False,
    )
    (row,) = found.rows
    assert row.answer.exact.of(row.answer.text) == "Paris" and row.answer.label == 0
    assert row.answer.text == "[THINK]Rome?\nNo.[/THINK]\n\nParis"


@pytest.mark.parametrize(
    ("prompt", "fix"),
    [
        (
            "qa",
            "Use more questions (a larger limit= or another set), an easier set, or"
            " prompt='fewshot(2)'.",
        ),
        ("fewshot(2)", "Use more questions (a larger limit= or another set) or an easier set."),
    ],
)
def test_few_known_questions_give_a_warning_that_joins_its_cures_by_or(answered, prompt, fix):
    said = {("Which city lies there?", "Paris"): " Paris", ("Which town lies here?", "Rome"): " No"}
    with pytest.warns(UserWarning) as caught:
        kept = select_known_rows(answered(said), prompt)
    assert len(kept.rows) == 1
    assert [str(one.message) for one in caught] == [
        f"known_only=True: 1 of 2 questions are left, and bands are wide below 20. {fix}"
    ]


def test_thinking_that_does_not_end_is_dropped_by_name(answered):
    said = {
        ("Which city lies there?", "Paris"): "<think>\nParis may be",
        ("Which town lies here?", "Rome"): " ...",
        ("Which hill is high?", "Etna"): " Etna",
    }
    found = answered(said)
    assert [row.answer.text for row in found.rows] == ["Etna"]
    assert [gone.reason for gone in found.dropped] == ["unfinished_thinking", "no_exact_answer"]


def test_generation_goes_on_through_the_thinking_to_the_end_of_the_answers_line(
    tiny_model, monkeypatch
):
    model = tiny_model("llama")
    ends = {  # of the prompt "qa", and of one that opens the thinking
        "<think>\nRome?\n": (False, False),
        "<think>\na\n</think>\n\n": (False, False),
        "<think>\na\n</think>\n\nParis": (False, False),
        "a</think>Paris\n": (True, True),
        " Paris\n": (True, False),
        "\n": (False, False),
    }
    stops: list[bool] = []

    def stopped(*args, stop, **kwargs):
        stops.extend(
            stop(model.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in ends
        )
        return [[5]]

    monkeypatch.setattr(model_answers, "greedy", stopped)
    rows = [example("Which city lies there?", "there", "city", "Paris")]
    for prompt in (QAPrompt(), OPENED):
        generate_answers(adapt(model), rows, RowTokenizer(model.tokenizer, prompt))
    assert stops == [end for of_prompt in zip(*ends.values(), strict=True) for end in of_prompt]


# --- the model's context
# ---------------------------------------------------------------------------------------------------------

QUICK = {"progress": False, "layers": (0,), "n_resamples": 100, "n_splits": 1}
QUIET = {
    "progress": False,
    "align": "last",
    "n_donors": 1,
    "n_null_donors": 0,
    "layers": (0,),
    "n_spot_checks": 0,
}
# Words that are one token each; each of them is right for some question.
RIGHT = ("Paris", "France", "Tolstoy", "Peace", "War", "Leo", "Paulo", "author", "city", "capital")
SAID = f" {' '.join(RIGHT)}\n"
CONTEXT = 96


@pytest.fixture(scope="module")
def parrot(tmp_path_factory):
    """Make a model of a family that answers every question with the same words, by a table of next
    tokens.
    """

    def make(family, n_ctx):
        size = {"n_positions" if family == "gpt2" else "max_position_embeddings": n_ctx}
        directory = tmp_path_factory.mktemp("parrot")
        model = load_model(
            str(save_model(random_model(FAMILIES[family](**size)), directory)), device="cpu"
        )
        ids = model.tokenizer(f":{SAID}", add_special_tokens=False)["input_ids"]
        assert len(set(ids)) == len(ids)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if (
                    "blocks." in name
                    or "W_pos" in name
                    or name.startswith(("unembed", "ln_final.b"))
                ):
                    parameter.zero_()
            model.ln_final.w.fill_(1.0)
            for token, following in pairwise(ids):
                x = model.embed.W_E[token]
                model.unembed.W_U[:, following] += (
                    (x - x.mean()) / x.std() if family == "gpt2" else x / x.norm()
                )
        return model

    return make


def asked(tokenizer, length):
    """Make a question whose prompt has a number of tokens."""
    for n in range(2 * length):
        made = replace(capital(f"Spain{n * '?'}", RIGHT[-1]), example_id=f"Spain:{length}")
        if len(tokenizer.prompt_ids(made.question)) == length:
            return made
    raise AssertionError(f"no question of {length} tokens")


@pytest.fixture(scope="module")
def crowded(parrot):
    """Make the parrot and questions, some of whose prompts leave too little room for an answer."""

    def make(family):
        model = parrot(family, CONTEXT)
        tokenizer = RowTokenizer(model.tokenizer, QAPrompt(), max_length=CONTEXT)
        said = len(model.tokenizer(SAID, add_special_tokens=False)["input_ids"])
        short = [capital(*pair) for pair in zip(("Japan", "Italy", "Cuba"), RIGHT, strict=False)]
        lengths = (CONTEXT - said, CONTEXT - said + 1, CONTEXT - 1, CONTEXT, CONTEXT + 9)
        return (
            model,
            tokenizer,
            data_of([*short, *(asked(tokenizer, length) for length in lengths)]),
        )

    return make


@pytest.fixture
def wordy(monkeypatch):
    """Grade by a substring, because the models of these tests write many words on a line."""
    monkeypatch.setattr(model_answers, "names_gold", lambda *told: True)


def too_long(sweep):
    """Return the examples dropped as too long, shortest first."""
    examples = sweep.examples()
    return sorted(
        examples.loc[examples["drop_reason"] == "too_long", "example_id"],
        key=lambda name: int(name.split(":")[1]),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("wordy")
@pytest.mark.parametrize("family", ["gpt2", "neox"])
def test_rows_whose_answer_the_context_cuts_off_are_dropped_and_do_not_end_a_sweep(crowded, family):
    model, tokenizer, data = crowded(family)
    said = len(model.tokenizer(SAID, add_special_tokens=False)["input_ids"])
    texts = [text for _, text in generate_answers(adapt(model), data.examples, tokenizer)]
    assert texts == [*[SAID] * 4, SAID[:-1], " Paris", "", ""]
    rows = generate_rows(
        adapt(model), data.examples, tokenizer, max_new_tokens=16, batch_size=None, progress=False
    )
    found = select_known_rows(rows, "qa")
    assert [row.example.example_id for row in found.rows] == [
        "Japan",
        "Italy",
        "Cuba",
        f"Spain:{CONTEXT - said}",
    ]
    assert {row.answer.text for row in found.rows} == {SAID.strip()}
    assert [gone.reason for gone in found.dropped] == ["too_long"] * 4
    assert found.dropped[-1].detail == "105 tokens before the answer, the model takes 96"
    sweep = al.swap_sweep(model, data, known_only=True, **QUIET)
    assert sweep.record["counts"]["dropped"] == {"too_long": 4}
    assert too_long(sweep) == [f"Spain:{length}" for length in (86, 95, 96, 105)]
    assert len(sweep.example_ids) == 4
    plain = al.swap_sweep(model, data_of(list(data.examples[:4])), known_only=True, **QUIET)
    torch.testing.assert_close(sweep.delta_p, plain.delta_p)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "measured", "options"),
    [
        ("gpt2", al.knockout_sweep, {"placebos": False}),
        ("neox", al.knockout_sweep, {"placebos": False, "readout": "p_true"}),
        ("neox", al.patch_tokens_sweep, {"base": "all"}),
        ("neox", al.answer_only_sweep, {}),
    ],
)
def test_one_long_question_does_not_end_a_sweep_of_generated_answers(
    crowded, family, measured, options
):
    model, _, data = crowded(family)
    answers = [*RIGHT[:-1], *(f"Zoo{i}" for i in range(14))]
    some = [
        capital(f"{a}{b}", answer)
        for (a, b), answer in zip(product("KLMNT", "aeiou"), answers, strict=False)
    ]
    data = data_of([*some, *data.examples[3:]])
    sweep = measured(model, data, answers="generated", **QUICK | options)
    # Where the model is asked afterwards whether its answer is right, that question needs room too.
    assert too_long(sweep)[-4:] == [f"Spain:{length}" for length in (86, 95, 96, 105)]
    assert sweep.record["counts"]["dropped"] == {
        "too_long": 5 if options.get("readout") == "p_true" else 4
    }


def test_a_context_shorter_than_every_prompt_is_an_error(parrot):
    with pytest.raises(
        EmptySweepError,
        match="too_long 3",
    ):
        al.swap_sweep(
            parrot("gpt2", 9),
            data_of([capital(name, "Paris") for name in ("France", "Japan", "Italy")]),
            known_only=True,
            **QUIET,
        )
