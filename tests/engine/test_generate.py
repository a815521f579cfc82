"""Batched greedy generation, and the rule that finds the exact answer without knowing it."""

import pytest
import torch
import transformers

from anchorlens.engine.generate import answer_line, exact_answer, greedy, is_right, unfinished_thinking
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from tests.models.tiny import WINDOW

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


SHARED = list(range(100, 100 + 2 * WINDOW + 3))
SETS = {
    "prefix longer than the window": [[*SHARED, 5, 6, 7], [*SHARED, 8], [*SHARED, 9, 10, 11, 12, 13, 14]],
    "prefix shorter than the padding": [[50, 51, 5], [50, 51, *range(200, 212)], [50, 51, 6, 7, 8, 9, 10]],
    "one begins another, two are the same": [[50, 51, 52, 5, 6], SHARED, [*SHARED, 5, 6, 7], SHARED, [*SHARED, 5]],
    "all the same": [SHARED, SHARED, SHARED],
    "one begins all": [SHARED[:-2], SHARED, [*SHARED, 5]],
    "a single token": [SHARED[:1], SHARED],
    "a single prompt": [SHARED],
}  # fmt: skip


def alone(model, prompt, max_new_tokens, **options):
    """What Hugging Face's own greedy generation writes after one prompt."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0, **options
    )
    return out[0, len(prompt) :].tolist()


class Recording(Adapter):
    """An adapter that keeps the log-probabilities of every step."""

    def logits(self, stream):
        out = super().logits(stream)
        self.steps = [*getattr(self, "steps", []), out.log_softmax(-1)]
        return out


@pytest.mark.parametrize("prompts", SETS.values(), ids=SETS)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3", "qwen2_yarn", "qwen3_sliding", "gpt2", "neox"])
def test_shared_prompts_are_continued_as_hugging_face_does_alone(tiny, tiny_model, family, prompts):
    """The same tokens, and the same log-probabilities at every step of one batch (some small models repeat one token for ever)."""
    adapter = Recording(tiny_model(family))
    hf = transformers.AutoModelForCausalLM.from_pretrained(tiny(family), attn_implementation="eager").eval()
    out = greedy(adapter, prompts, max_new_tokens=4, batch_size=8, stop=lambda ids: False)
    # Rows stand in order of length.
    for row, i in enumerate(sorted(range(len(prompts)), key=lambda i: len(prompts[i]))):
        with torch.no_grad():
            logits = hf(torch.tensor([[*prompts[i], *out[i][:-1]]])).logits[0, len(prompts[i]) - 1 :]
        assert out[i] == logits.argmax(-1).tolist()
        torch.testing.assert_close(
            torch.stack([step[row] for step in adapter.steps[-4:]]), logits.log_softmax(-1), atol=5e-4, rtol=0
        )
    new = greedy(adapter, prompts, max_new_tokens=5, batch_size=2, stop=lambda ids: ids[-1] == hf.config.eos_token_id)
    assert new == [alone(hf, prompt, 5) for prompt in prompts]


def test_questions_are_answered_as_hugging_face_does_alone(smollm2):
    """On the packaged model, with a shared prefix and, by one more prompt, without; None chooses the batch."""
    from anchorlens.models.checkpoint import DEMO, packaged_directory

    hf = transformers.AutoModelForCausalLM.from_pretrained(packaged_directory(DEMO), dtype=torch.float32).eval()
    shots = "Q: What is the capital of Italy?\nA: Rome\n\nQ: Who wrote Emma?\nA: Jane Austen\n\n"
    questions = ["What is the capital of France?", "Who wrote War and Peace?", "In what country is Kyoto?"]
    prompts = [smollm2.tokenizer(f"{shots}Q: {question}\nA:")["input_ids"] for question in questions]
    prompts += [smollm2.tokenizer("Q: Which planet is called the red planet?\nA:")["input_ids"]]
    eos = smollm2.tokenizer.eos_token_id
    wanted = [alone(hf, prompt, 5) for prompt in prompts]
    for n in (3, 4):
        assert greedy(Adapter(smollm2), prompts[:n], max_new_tokens=5, stop=lambda ids: ids[-1] == eos) == wanted[:n]


@pytest.fixture
def passes(tiny_model):
    """Rows and tokens of every forward pass of the small Llama."""
    seen: list[tuple[int, int]] = []
    handle = tiny_model("llama").embed.register_forward_pre_hook(lambda module, args: seen.append(tuple(args[0].shape)))
    yield seen
    handle.remove()


def test_what_all_prompts_begin_with_is_run_once(tiny_model, passes):
    """Two batches of two rows, three tokens each; a row's own tokens are run at the width of the longest in its batch."""
    prompts = [[*SHARED, *range(200 + n, 200 + 2 * n)] for n in (5, 2, 3, 6)]
    greedy(Adapter(tiny_model("llama")), prompts, max_new_tokens=3, batch_size=2, stop=lambda ids: False)
    assert passes == [(1, len(SHARED)), (2, 3), (2, 1), (2, 1), (2, 6), (2, 1), (2, 1)]


def test_finished_rows_are_not_run_again(tiny_model, passes):
    """Rows stop after a number of tokens that depends on their first one; the others go on as if they had been alone."""
    adapter = Adapter(tiny_model("llama"))
    prompts = [[*SHARED, 200 + n] for n in range(6)]
    full = greedy(adapter, prompts, max_new_tokens=9, batch_size=1, stop=lambda ids: False)
    passes.clear()
    out = greedy(adapter, prompts, max_new_tokens=9, batch_size=6, stop=lambda ids: len(ids) == ids[0] % 5 + 1)
    lengths = [ids[0] % 5 + 1 for ids in full]
    assert len(set(lengths)) > 2
    assert out == [ids[:n] for ids, n in zip(full, lengths, strict=True)]
    assert passes[1:] == [(sum(n > done for n in lengths), 1) for done in range(max(lengths))]


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_many_prompts_of_many_lengths_together(tiny_model, family):
    """Against each row alone: tokens, and log-probabilities of the last step."""
    generator = torch.Generator().manual_seed(0)
    prompts = [[*SHARED, *torch.randint(2, 400, (n % 23 + 1,), generator=generator).tolist()] for n in range(40)]
    together, one = Recording(tiny_model(family)), Recording(tiny_model(family))
    out = greedy(together, prompts, max_new_tokens=3, batch_size=40, stop=lambda ids: False)
    assert [step.shape[0] for step in together.steps] == [1, 40, 40, 40]
    for row, i in enumerate(sorted(range(40), key=lambda i: len(prompts[i]))):
        assert greedy(one, [prompts[i]], max_new_tokens=3, stop=lambda ids: False) == [out[i]]
        torch.testing.assert_close(together.steps[-1][row], one.steps[-1][0], atol=5e-4, rtol=0)


def test_an_empty_prompt_is_an_error(tiny_model):
    with pytest.raises(InputError, match=r"^A prompt without tokens cannot be continued\.$"):
        greedy(Adapter(tiny_model("llama")), [[5, 6], []], max_new_tokens=1, stop=lambda ids: False)


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
        (" Paris, the capital of France", "Paris"),
        (" Pluto, which was a planet", "Pluto"),
        (" Neil Armstrong, an American astronaut.", "Neil Armstrong"),
        (" The Good, the Bad and the Ugly", "The Good, the Bad and the Ugly"),
        (" The Lion, the Witch and the Wardrobe", "The Lion, the Witch and the Wardrobe"),
        (" Athos, Porthos and Aramis", "Athos, Porthos and Aramis"),
        ("<think>\nRome? No.\n</think>\n\nThe answer is Paris.\nMore", "Paris"),
        ("Rome? No.\n</think>\n\nParis", "Paris"),
        ("<think>a</think>b<think>c</think> Oslo", "Oslo"),
        ("[THINK]hm[/THINK] Lima", "Lima"),
    ],
)  # fmt: skip
def test_exact_answer(text, wanted):
    span = exact_answer(text)
    assert span is not None
    assert span.of(text) == wanted


@pytest.mark.parametrize("text", ["", "  ", "\n", " ...", '""', "<think>", "<think>\nOkay, the user", "<think>x</think>\n"])
def test_no_answer_is_none(text):
    assert exact_answer(text) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (" This is Spinal Tap", "This is Spinal Tap"),
        (" They Were Expendable\nQ:", "They Were Expendable"),
        ("<think>\nIs it Rome?\n</think>\n\n The Lion King is a movie \n", "The Lion King is a movie"),
        ("\n\n Paris, the capital of France.", "Paris, the capital of France."),
    ],
)
def test_the_line_of_the_answer_is_whole(text, wanted):
    line = answer_line(text)
    assert line is not None
    assert line.of(text) == wanted


def test_thinking_that_does_not_end_has_no_answer_and_says_so():
    assert answer_line("<think>\nThe capital is Paris") is None
    assert unfinished_thinking("<think>\nThe capital is Paris")
    assert unfinished_thinking("<think>a</think> b <think> c")
    assert not unfinished_thinking("<think>a</think>")
    assert not unfinished_thinking("I think, Paris")


def test_behind_a_prompt_that_opens_the_thinking_the_answer_stands_behind_its_end():
    thinking = "Okay, it may be Rome.\nOr not."
    assert answer_line(thinking, opened=True) is None and exact_answer(thinking, opened=True) is None
    assert unfinished_thinking(thinking, opened=True) and not unfinished_thinking(thinking)
    text = thinking + "\n</think>\n\nParis."
    span = exact_answer(text, opened=True)
    assert span is not None and span.of(text) == "Paris"
    assert not unfinished_thinking(text, opened=True)
    # A second block that is still open.
    assert unfinished_thinking("a</think> <think>b", opened=True)


def test_right_means_whole_words_in_any_case():
    assert is_right("the city of PARIS, France", ["Paris"])
    assert is_right("Tolstoy", ["Leo Tolstoy", "tolstoy"])
    assert not is_right("Parisian", ["Paris"])
    assert not is_right("anything", ["", "?"])
    assert is_right("U.S.A", ["u.s.a."])
