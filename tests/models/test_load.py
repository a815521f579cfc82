"""From a name to a model. No test here reaches the network."""

import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformer_lens import HookedTransformer, HookedTransformerConfig

from anchorlens.errors import CheckpointError, UnsupportedModelError
from anchorlens.models import devices, hub
from anchorlens.models.card import model_card
from anchorlens.models.load import adapt, as_lens_model, load_model
from anchorlens.models.size import checkpoint_dtype
from anchorlens.models.source import check_model
from anchorlens.prompts.tokenize_pairs import tokenize_pairs
from tests.models.hubs import COMMIT
from tests.models.tiny import FAMILIES, FURTHER_FAMILIES, random_model
from tests.tokenizers_small import small_tokenizer

# --- what works
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_path", [str, Path])
def test_local_directory_never_touches_the_network(tiny, tiny_model, no_sockets, as_path):
    card = model_card(load_model(as_path(tiny("gpt2")), device="cpu", dtype="float64"))
    assert (card.source, card.name, card.dtype) == ("directory", "gpt2", "float64")
    assert card.tokenizer_sha256 == model_card(tiny_model("gpt2")).tokenizer_sha256


def test_a_path_with_another_familys_name_in_it_changes_nothing(tiny, tiny_model, tmp_path):
    card = load_model(
        str(shutil.copytree(tiny("qwen2"), tmp_path / "llama-gemma-gpt2")), device="cpu"
    ).anchorlens_card
    assert card.architecture == "Qwen2ForCausalLM"
    assert card.weights_sha256 == tiny_model("qwen2").anchorlens_card.weights_sha256


def test_hub_model_that_transformer_lens_does_not_register(tiny, fake_hub):
    asked = fake_hub(tiny("qwen3"))
    card = load_model(
        "Qwen/Qwen3-32B", device="cpu", revision="main", token="secret"
    ).anchorlens_card
    assert asked == [("Qwen/Qwen3-32B", "main", "secret")]
    assert (card.name, card.source, card.revision) == ("Qwen/Qwen3-32B", "hub", COMMIT)


@pytest.fixture
def not_by_transformer_lens(monkeypatch):
    """Fail if TransformerLens's loader is used, which takes sizes by name and reads the hub
    again.
    """
    for name in ("from_pretrained", "set_tokenizer"):
        monkeypatch.setattr(
            HookedTransformer,
            name,
            lambda *_args, name=name, **_options: pytest.fail(f"{name} was called"),
        )


def test_an_alias_of_transformer_lens_goes_to_the_official_repository_and_takes_our_own_mapping(
    tiny, fake_hub, not_by_transformer_lens, capsys
):
    asked = fake_hub(tiny("gptj"))
    model = load_model("gpt-j-6B", device="cpu")
    assert asked == [("EleutherAI/gpt-j-6B", None, None)]
    assert (model.cfg.d_model, model.anchorlens_card.architecture) == (
        48,
        "GPTJForCausalLM",
    ), "sizes are the checkpoint's own"
    assert model.tokenizer("Paris").input_ids == model.to_tokens("Paris")[0].tolist()
    assert capsys.readouterr().out == "", "nothing is printed"


@pytest.mark.parametrize("family", sorted(FURTHER_FAMILIES))
def test_a_live_model_with_a_tokenizer_that_lies_in_no_file(
    family, no_sockets, not_by_transformer_lens
):
    live = random_model(FURTHER_FAMILIES[family](), seed=1)
    before = torch.random.get_rng_state()
    model = load_model(live, tokenizer=small_tokenizer("byte", bos=False))
    assert torch.equal(torch.random.get_rng_state(), before), (
        "torch's global generator stays where it was"
    )
    assert (model_card(model).source, model_card(model).name, model_card(model).adds_bos) == (
        "huggingface",
        type(live).__name__,
        False,
    )
    assert (
        model.to_tokens("Paris")[0].tolist()
        == small_tokenizer("byte", bos=False)("Paris").input_ids
    )
    tokens = torch.randint(8, 400, (2, 40), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        gap = (
            (model(tokens).log_softmax(-1) - live(input_ids=tokens).logits.log_softmax(-1))
            .abs()
            .max()
        )
    assert gap < 1e-3


# --- tokenizers
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "gemma2"])
def test_text_is_tokenised_as_auto_tokenizer_does(tiny, tiny_model, family, bos):
    model, plain = (
        tiny_model(family, bos),
        transformers.AutoTokenizer.from_pretrained(tiny(family, bos)),
    )
    for text in ("", "Paris", " Q: What is naïve?\nA: 東京", "<s>Paris"):
        ids = plain(text)["input_ids"]
        assert model.tokenizer(text)["input_ids"] == ids
        assert (ids[:1] == [0]) == (bos or text.startswith("<s>"))
        if ids:
            assert model.to_tokens(text)[0].tolist() == ids
    assert (
        model.cfg.tokenizer_prepends_bos
        == model.cfg.default_prepend_bos
        == model.anchorlens_card.adds_bos
        == bos
    )
    assert model.tokenizer.padding_side == "right"
    assert model.tokenizer.get_vocab() == plain.get_vocab(), "the padding token adds none"
    batch = model.to_tokens(["Paris", "Paris and Paris"])
    assert batch[0, -1] == model.tokenizer.eos_token_id


def test_tokenizer_of_the_users_choice(tiny):
    with_bos = small_tokenizer("byte", bos=True)
    model = load_model(tiny("llama"), device="cpu", tokenizer=with_bos)
    assert model.tokenizer is not with_bos
    assert model.anchorlens_card.adds_bos
    from_directory = load_model(tiny("llama"), device="cpu", tokenizer=tiny("llama", True))
    assert from_directory.to_tokens("Paris").tolist() == model.to_tokens("Paris").tolist()


# --- what fails while it is loaded
# --------------------------------------------------------------------------------------------


def test_missing_weights_are_not_filled_with_random_numbers(tiny, tmp_path):
    here = shutil.copytree(tiny("llama"), tmp_path / "m")
    tensors = load_file(here / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, here / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError,
        match=r"layers\.1\.mlp\.up_proj",
    ):
        load_model(here, device="cpu")


def test_a_live_model_whose_modules_were_replaced(tiny):
    live = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"))
    live.model.layers[1].self_attn.q_proj = torch.nn.Sequential(
        live.model.layers[1].self_attn.q_proj
    )
    with pytest.raises(
        UnsupportedModelError,
        match="LlamaForCausalLM",
    ):
        load_model(live, tokenizer=tiny("llama"))


def test_hub_weights_are_safetensors_where_there_are_any(monkeypatch, tmp_path):
    asked = []

    def snapshot(repo, *, allow_patterns, **options):
        asked.append(allow_patterns[-1])
        if with_torch_files:
            (tmp_path / "pytorch_model.bin").touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with_torch_files = False
    with pytest.raises(CheckpointError, match="holds no weights that transformers reads"):
        hub.fetch_model("a/b", None, None, False)
    with_torch_files = True
    assert hub.fetch_model("a/b", None, None, False) == tmp_path
    assert asked == ["model*.safetensors", "pytorch_model*.bin"] * 2


# --- a model, or what becomes one
# ---------------------------------------------------------------------------------------------


def test_a_hooked_transformer_is_taken_as_it_is(tiny_model):
    model = HookedTransformer(
        HookedTransformerConfig(
            n_layers=1, d_model=8, d_head=4, n_ctx=16, d_vocab=30, act_fn="relu", seed=0
        )
    )
    before = set(vars(model))
    assert as_lens_model(model) is model
    assert set(vars(model)) == before, "no card that would grow old when the weights change"
    loaded = tiny_model("gpt2")
    card = model_card(loaded)
    assert as_lens_model(loaded) is loaded
    assert model_card(loaded) is card, "its card still says where it came from"


def test_the_original_of_a_compiled_model_is_taken(tiny, unchecked):
    model = load_model(str(tiny("llama")), device="cpu")
    compiled = torch.compile(model, backend="eager")
    assert load_model(compiled) is model
    assert check_model(compiled) == "live"
    assert adapt(compiled).model is model
    assert model_card(compiled).name == model_card(model).name
    pairs = [{"clean": "A B", "corrupted": "A C", "answer": "B", "wrong": "C"}]
    assert tokenize_pairs(compiled, pairs).equals(tokenize_pairs(model, pairs))


# --- device and dtype
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cards", "mps", "chosen"), [(2, True, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_device_is_the_first_of_cuda_mps_cpu(monkeypatch, cards, mps, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert devices.pick_device(None) == chosen


def test_dtype_is_float32_until_an_accelerator_meets_a_big_model():
    small = FAMILIES["llama"](dtype="bfloat16")
    big = FAMILIES["llama"](
        dtype="bfloat16", hidden_size=8192, intermediate_size=28672, num_hidden_layers=20
    )
    assert (
        checkpoint_dtype(small, None, "cuda") == checkpoint_dtype(big, None, "cpu") == torch.float32
    )
    assert (
        checkpoint_dtype(big, None, "cuda")
        == checkpoint_dtype(small, "auto", "cpu")
        == torch.bfloat16
    )
    assert checkpoint_dtype(big, "fp16", "cuda") == torch.float16
