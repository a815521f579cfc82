"""Batched greedy generation, and the rule that finds the exact answer without knowing it."""

import pytest
import torch

from anchorlens.engine.generate import exact_answer, greedy, is_right
from anchorlens.models.adapter import Adapter

PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [5, 6, 7, 9], [12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3", "qwen3_sliding", "gpt2", "neox"])
def test_a_batch_writes_what_each_prompt_alone_would(tiny_model, family):
    """Against the slow way: the whole input through the model again for every token, past every sliding window."""
    model = tiny_model(family)
    out = greedy(Adapter(model), PROMPTS, max_new_tokens=12, batch_size=2, stop=lambda ids: False)
    for prompt, new in zip(PROMPTS, out, strict=True):
        ids = list(prompt)
        for _ in range(12):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]), prepend_bos=False)[0, -1].argmax()))
        assert new == ids[len(prompt) :]


def test_a_row_stops_by_itself(tiny_model):
    out = greedy(
        Adapter(tiny_model("llama")), PROMPTS, max_new_tokens=9, batch_size=8, stop=lambda ids: len(ids) == ids[0] % 5 + 1
    )
    assert [len(ids) for ids in out] == [ids[0] % 5 + 1 for ids in out]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (" Paris", "Paris"),
        (" Paris.\nQ: What", "Paris"),
        ("The capital of France is Paris. It is big.", "Paris"),
        (" The answer is: \"War and Peace\".", "War and Peace"),
        ("A: 1912", "1912"),
        (" St. Louis, Missouri", "St. Louis, Missouri"),
        (" J. K. Rowling!", "J. K. Rowling"),
        (" The Beatles", "The Beatles"),
        (" the U.S.", "the U.S"),
        (" It is in Rome", "in Rome"),
        (" Leo Tolstoy - the writer", "Leo Tolstoy"),
        ("Sure, the sport is called football (soccer).", "football"),
        (" **Mars**", "Mars"),
        ("  \n Mars", "Mars"),
    ],
)  # fmt: skip
def test_exact_answer(text, wanted):
    span = exact_answer(text)
    assert span is not None
    assert span.of(text) == wanted


@pytest.mark.parametrize("text", ["", "  ", "\n", " ...", '""'])
def test_no_answer_is_none(text):
    assert exact_answer(text) is None


def test_right_means_whole_words_in_any_case():
    assert is_right("the city of PARIS, France", ["Paris"])
    assert is_right("Tolstoy", ["Leo Tolstoy", "tolstoy"])
    assert not is_right("Parisian", ["Paris"])
    assert not is_right("anything", ["", "?"])
    assert is_right("U.S.A", ["u.s.a."])
