"""From a name to a model, and one clear error for each way that it can fail. No test here reaches the network."""

import inspect
import json
import shutil
from pathlib import Path

import httpx
import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformer_lens import HookedEncoder, HookedEncoderDecoder, HookedTransformer, HookedTransformerConfig
from transformer_lens.model_bridge import TransformerBridge

from anchorlens.errors import CheckpointError, DownloadError, InputError, ModelNotFoundError, UnsupportedModelError
from anchorlens.models import devices, hub
from anchorlens.models.card import card_of
from anchorlens.models.load import as_hooked, load_model
from tests.models.hubs import COMMIT, failing_hub, refused
from tests.models.tiny import FAMILIES, FURTHER_FAMILIES, random_model
from tests.tokenizers_small import small_tokenizer

# --- what works ---------------------------------------------------------------------------------------------------------------


def test_local_directory_never_touches_the_network(tiny, no_sockets):
    model = load_model(tiny("qwen3"), device="cpu")
    assert (model.anchorlens_card.name, model.anchorlens_card.source) == ("qwen3", "directory")


def test_a_path_with_another_familys_name_in_it_changes_nothing(tiny, tmp_path):
    here = shutil.copytree(tiny("qwen2"), tmp_path / "llama-gemma-gpt2")
    model = load_model(str(here), device="cpu")
    assert model.anchorlens_card.architecture == "Qwen2ForCausalLM"
    assert model.anchorlens_card.weights_sha256 == load_model(tiny("qwen2"), device="cpu").anchorlens_card.weights_sha256


def test_hub_model_that_transformer_lens_does_not_register(tiny, fake_hub):
    asked = fake_hub(tiny("qwen3"))
    card = load_model("Qwen/Qwen3-32B", device="cpu", revision="main", token="secret").anchorlens_card
    assert asked == [("Qwen/Qwen3-32B", "main", "secret")]
    assert (card.name, card.source, card.revision) == ("Qwen/Qwen3-32B", "hub", COMMIT)


def test_alias_of_transformer_lens_goes_to_the_official_repository(tiny, fake_hub):
    asked = fake_hub(tiny("gpt2"))
    card = load_model("gpt2-small", device="cpu").anchorlens_card
    assert asked == [("gpt2", None, None)]
    assert card.architecture == "GPT2LMHeadModel"


@pytest.fixture
def not_by_transformer_lens(monkeypatch):
    """Its loader takes sizes by name, reads tokenizers again and asks the hub: nothing goes through it."""
    for name in ("from_pretrained", "set_tokenizer"):
        monkeypatch.setattr(HookedTransformer, name, lambda *_args, name=name, **_options: pytest.fail(f"{name} was called"))


def test_a_name_that_transformer_lens_registers_takes_our_own_mapping(tiny, fake_hub, not_by_transformer_lens, capsys):
    asked = fake_hub(tiny("gptj"))
    model = load_model("gpt-j-6B", device="cpu")
    assert asked == [("EleutherAI/gpt-j-6B", None, None)]
    assert (model.cfg.d_model, model.anchorlens_card.architecture) == (48, "GPTJForCausalLM"), "sizes are the checkpoint's own"
    assert model.tokenizer("Paris").input_ids == model.to_tokens("Paris")[0].tolist()
    assert capsys.readouterr().out == "", "nothing is printed"


@pytest.mark.parametrize("family", sorted(FURTHER_FAMILIES))
def test_a_live_model_with_a_tokenizer_that_lies_in_no_file(family, no_sockets, not_by_transformer_lens):
    live = random_model(FURTHER_FAMILIES[family](), seed=1)
    before = torch.random.get_rng_state()
    model = load_model(live, tokenizer=small_tokenizer("byte", bos=False))
    assert torch.equal(torch.random.get_rng_state(), before), "torch's global generator stays where it was"
    assert (card_of(model).source, card_of(model).name, card_of(model).adds_bos) == ("huggingface", type(live).__name__, False)
    assert model.to_tokens("Paris")[0].tolist() == small_tokenizer("byte", bos=False)("Paris").input_ids
    tokens = torch.randint(8, 400, (2, 40), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        gap = (model(tokens).log_softmax(-1) - live(input_ids=tokens).logits.log_softmax(-1)).abs().max()
    assert gap < 1e-3


def test_live_hugging_face_model_needs_its_tokenizer(tiny):
    live = transformers.AutoModelForCausalLM.from_pretrained(tiny("gpt2"))
    with pytest.raises(InputError, match=r"Pass tokenizer="):
        load_model(live)
    with pytest.raises(InputError, match=r"keeps its dtype, here torch.float32"):
        load_model(live, dtype="bfloat16", tokenizer=small_tokenizer("byte", bos=False))


# --- tokenizers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "gemma2"])
def test_text_is_tokenised_as_auto_tokenizer_does(tiny, family, bos):
    path = tiny(family, bos)
    model = load_model(path, device="cpu")
    plain = transformers.AutoTokenizer.from_pretrained(path)
    for text in ("", "Paris", " Q: What is naïve?\nA: 東京", "<s>Paris"):
        ids = plain(text)["input_ids"]
        assert model.tokenizer(text)["input_ids"] == ids
        assert (ids[:1] == [0]) == (bos or text.startswith("<s>"))
        if ids:
            assert model.to_tokens(text)[0].tolist() == ids
    assert model.cfg.tokenizer_prepends_bos == model.cfg.default_prepend_bos == model.anchorlens_card.adds_bos == bos
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
    with pytest.raises(InputError, match="is neither a tokenizer nor a directory"):
        load_model(tiny("llama"), tokenizer="nowhere")


def test_directory_without_a_tokenizer(tiny, tmp_path):
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m", ignore=shutil.ignore_patterns("tokenizer*", "*.jinja"))
    with pytest.raises(CheckpointError, match=r"Pass tokenizer="):
        load_model(here, device="cpu")
    assert load_model(here, device="cpu", tokenizer=small_tokenizer("byte", bos=False)).anchorlens_card.parity < 1e-3


# --- what fails ---------------------------------------------------------------------------------------------------------------


def test_directory_without_config(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"holds no config\.json, so it is no Hugging Face checkpoint"):
        load_model(tmp_path)


def test_broken_config(tiny, tmp_path):
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m")
    (here / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        load_model(here)


def test_truncated_weights(tiny, tmp_path):
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m")
    weights = here / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"weights in .* cannot be read"):
        load_model(here, device="cpu")


def test_missing_weights_are_not_filled_with_random_numbers(tiny, tmp_path):
    from safetensors.torch import load_file, save_file

    here = shutil.copytree(tiny("llama"), tmp_path / "m")
    tensors = load_file(here / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, here / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"incomplete: it lacks 1 weights \(model\.layers\.1\.mlp\.up_proj\.weight\)"):
        load_model(here, device="cpu")


def test_unsupported_directory_names_the_families(tmp_path):
    transformers.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(
        UnsupportedModelError, match=r"models of type 'bert' are not mapped\. Mapped: llama, mistral, .* gpt_neox"
    ):
        load_model(tmp_path)


def test_a_class_of_the_checkpoints_own_is_named(tiny, tmp_path):
    """As bigcode/santacoder has it: a model type of transformers, and another class."""
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m")
    fields = json.loads((here / "config.json").read_text())
    own = {"architectures": ["GPT2LMHeadCustomModel"], "auto_map": {"AutoModelForCausalLM": "modeling.GPT2LMHeadCustomModel"}}
    (here / "config.json").write_text(json.dumps(fields | own))
    with pytest.raises(UnsupportedModelError, match="no class 'GPT2LMHeadCustomModel', .* own code is not run"):
        load_model(here)
    (here / "config.json").write_text(json.dumps(fields | {"auto_map": own["auto_map"]}))
    assert load_model(here, device="cpu").anchorlens_card.architecture == "GPT2LMHeadModel", "a class that transformers has"


def test_a_checkpoints_own_code_is_neither_run_nor_asked_about(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_args: pytest.fail("a question was asked"))
    (tmp_path / "config.json").write_text('{"model_type": "exotic", "auto_map": {"AutoConfig": "code.Config"}}')
    (tmp_path / "code.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(UnsupportedModelError, match="has no models of type 'exotic'; own code is not run"):
        load_model(tmp_path)


def test_unsupported_hub_model_is_refused_before_its_weights_are_fetched(fake_hub, tiny, tmp_path, monkeypatch):
    config = FAMILIES["llama"](mlp_bias=True)
    config.save_pretrained(tmp_path / "m")
    fake_hub(tmp_path / "m")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_args, **_kwargs: pytest.fail("weights were fetched"))
    with pytest.raises(UnsupportedModelError, match="mlp_bias=True"):
        load_model("someone/model", device="cpu")


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (GatedRepoError("gated", response=refused(403)), DownloadError, r"is gated: accept its terms .* set HF_TOKEN"),
        (
            RepositoryNotFoundError("no", response=refused(404)),
            ModelNotFoundError,
            r"Did you mean 'meta-llama/Llama-3\.2-3B'",
        ),
        (RevisionNotFoundError("no", response=refused(404)), ModelNotFoundError, r"has no revision 'v9'"),
        (EntryNotFoundError("config.json"), CheckpointError, r"lacks a file .*config\.json"),
        (
            LocalEntryNotFoundError("offline"),
            DownloadError,
            r"not in the local Hugging Face cache, and the hub cannot be reached",
        ),
        (HfHubHTTPError("401", response=refused(401)), DownloadError, r"refused .*HTTP 401.* set HF_TOKEN"),
        (HfHubHTTPError("500", response=refused(500)), DownloadError, r"failed \(HTTP 500\)\. Try again later"),
        (httpx.ReadTimeout("slow"), DownloadError, r"failed \(slow\)\. Check the network"),
    ],
)
def test_each_way_a_download_fails(monkeypatch, error, expected, message):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    failing_hub(monkeypatch, error)
    with pytest.raises(expected, match=message) as caught:
        load_model("meta-llama/Lama-3.2-3B", revision="v9")
    assert type(caught.value) is expected
    assert "Lama-3.2-3B" in str(caught.value)


def test_offline_names_the_switch(monkeypatch, no_sockets, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DownloadError, match=r"'Qwen/Qwen3-8B' is not in the local .* HF_HUB_OFFLINE forbids fetching it"):
        load_model("Qwen/Qwen3-8B")


def test_offline_loads_what_is_in_the_hubs_cache(monkeypatch, no_sockets, tmp_path, tiny):
    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(tiny("llama"), repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    card = load_model("someone/tiny", device="cpu").anchorlens_card
    assert (card.revision, card.source) == (COMMIT, "hub")
    assert card.weights_sha256 == load_model(tiny("llama"), device="cpu").anchorlens_card.weights_sha256


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere/model", "There is no file or directory './nowhere/model'"),
        ("missing.gguf", r"There is no file or directory 'missing\.gguf'"),
        ("a/b/c/d", "There is no file or directory 'a/b/c/d'"),
        ("smollm2-135m-instuct", r"Did you mean 'smollm2-135m-instruct'\? Names on the hub"),
        ("llama-3.2-1b", r"Did you mean 'meta-llama/Llama-3\.2-1B'\? Names on the hub"),
        ("~nobody-of-this-name/model", "There is no file or directory '~nobody-of-this-name/model'"),
        ("a\0b", r"There is no file or directory 'a\\x00b'"),
    ],
)
def test_names_that_cannot_be(monkeypatch, name, message):
    failing_hub(monkeypatch, RepositoryNotFoundError("no", response=refused(404)))
    with pytest.raises(ModelNotFoundError, match=message):
        load_model(name)


def test_models_without_a_hugging_face_original(no_sockets):
    with pytest.raises(UnsupportedModelError, match="has no Hugging Face model to be checked against"):
        load_model("gelu-1l")


def test_arguments_that_cannot_be(tiny, tmp_path):
    model = load_model(tiny("gpt2"), device="cpu")
    (tmp_path / "notes.txt").write_text("x")
    for call, message in (
        (lambda: load_model(model, device="cpu"), "keeps its device and dtype"),
        (lambda: load_model(tiny("gpt2"), revision="main"), "is a local path, which has no revision"),
        (lambda: load_model("smollm2-135m-instruct", revision="main"), "has one release only"),
        (lambda: load_model(tmp_path / "notes.txt"), r"is a file, but not a \.gguf file"),
        (lambda: load_model(tiny("gpt2"), device="gpu"), "There is no device 'gpu'"),
        (lambda: load_model(tiny("gpt2"), device="cuda:99"), r"Device 'cuda:99' was asked for"),
        (lambda: load_model(tiny("gpt2"), device="cpu", dtype="float23"), r"dtype='float23' is no type .* 'float32'"),
    ):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_not_the_current_directory(name):
    with pytest.raises(InputError) as caught:
        load_model(name)
    assert str(caught.value) == (
        "The model's name is empty: give a name (`anchorlens models` lists some), a directory or a .gguf file; '.' is the current "
        "directory."
    )


def test_a_name_that_no_file_system_takes():
    with pytest.raises(InputError, match="File name too long|No model goes by"):
        load_model("a" * 5000)


NO_MODELS = {
    "None": (lambda: None, "not None."),
    "number": (lambda: 5, "not 5."),
    "bytes": (lambda: b"gpt2", "not b'gpt2'."),
    "list": (lambda: ["gpt2"], "not an object of type list."),
    "module": (lambda: torch.nn.Linear(2, 2), "not an object of type Linear."),
    "class": (
        lambda: transformers.GPT2LMHeadModel,
        "not the class GPT2LMHeadModel: make a model of it first, for example with ",
    ),
    "state": (lambda: torch.nn.Linear(2, 2).state_dict(), "not a dict of weights: save the whole model with save_pretrained"),
    "config": (
        lambda: {"model_type": "gpt2"},
        "not a dict: save the whole model with save_pretrained and give that directory.",
    ),
}


def unchecked(function):
    """As users call it: without the checks of types that the tests switch on."""
    return inspect.unwrap(function)


# Classes of these packages, or in the first case of one that is not here, by name.
OTHER_MODELS = {
    "PeftModelForCausalLM": (type("PeftModel", (torch.nn.Module,), {}), "give what model.merge_and_unload() returns"),
    "TransformerBridge": (TransformerBridge, "the name or directory that the bridge was made from"),
    "HookedEncoder": (HookedEncoder, "reads text in both directions"),
    "HookedEncoderDecoder": (HookedEncoderDecoder, "reads text in both directions"),
    "TextGenerationPipeline": (transformers.TextGenerationPipeline, "al.load_model(pipe.model, tokenizer=pipe.tokenizer)"),
}


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_a_model_of_another_kind_is_told_its_cure(name):
    base, cure = OTHER_MODELS[name]
    kind = type(name, (base,), {"__init__": lambda self: None})
    for function in (load_model, as_hooked):
        with pytest.raises(InputError) as caught:
            unchecked(function)(kind())
        assert f"not an object of type {name}. " in str(caught.value)
        assert cure in str(caught.value)


def test_a_live_model_that_predicts_no_tokens(tiny):
    live = transformers.AutoModel.from_pretrained(tiny("gpt2"))
    with pytest.raises(InputError, match=r"This GPT2Model predicts no tokens\. Load the checkpoint with AutoModelForCausalLM"):
        load_model(live, tokenizer=tiny("gpt2"))


def test_a_live_model_with_an_adapter_beside_its_weights(tiny):
    live = transformers.AutoModelForCausalLM.from_pretrained(tiny("gpt2"))
    live._hf_peft_config_loaded = True
    with pytest.raises(InputError, match=r"holds an adapter beside its weights\. Merge it first"):
        load_model(live, tokenizer=tiny("gpt2"))


def test_a_live_model_whose_modules_were_replaced(tiny):
    live = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"))
    live.model.layers[1].self_attn.q_proj = torch.nn.Sequential(live.model.layers[1].self_attn.q_proj)
    with pytest.raises(
        UnsupportedModelError, match=r"LlamaForCausalLM are not laid out as those of its family \(AttributeError: "
    ):
        load_model(live, tokenizer=tiny("llama"))


@pytest.mark.parametrize("kind", NO_MODELS)
def test_what_is_no_model_is_told_what_one_is(kind):
    make, ending = NO_MODELS[kind]
    for function, beginning in (
        (
            load_model,
            "A model is given as a name (`anchorlens models` lists some), a Hugging Face directory, a .gguf file, ",
        ),
        (
            as_hooked,
            "swap_sweep and the others take a model from al.load_model(...), its name or directory, a HookedTransformer",
        ),
    ):
        with pytest.raises(InputError) as caught:
            unchecked(function)(make())
        assert str(caught.value).startswith(beginning)
        assert ending in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "There is no device 'gpu'"),
        ({"device": 3.5}, r"There is no device 3\.5\. Give 'cuda'"),
        ({"device": ""}, "There is no device ''"),
        ({"device": "xpu"}, r"not on 'xpu'\. Use device='cpu'"),
        ({"dtype": "float23"}, r"dtype='float23' is no type that models run in\. Did you mean 'float32'"),
        ({"dtype": "atuo"}, "Did you mean 'auto'"),
        ({"dtype": 5}, "dtype='5' is no type"),
        ({"dtype": torch.int8}, "dtype='int8' is no type"),
        ({"revision": 5}, r"revision=5 is no branch, tag or commit of a repository\. Leave it out"),
        ({"revision": " "}, "revision=' ' is no branch"),
        ({"token": 17}, "token= takes the text of an access token"),
        ({"parity_tolerance": 0}, "parity_tolerance=0 is no bound: give a number above 0"),
        ({"parity_tolerance": float("nan")}, "parity_tolerance=nan is no bound"),
        ({"parity_tolerance": "1"}, "parity_tolerance='1' is no bound"),
        ({"tokenizer": 5}, "tokenizer=5 is neither a tokenizer nor a directory"),
        ({"tokenizer": ""}, "tokenizer='' is neither a tokenizer nor a directory"),
        ({"tokenizer": transformers.AutoTokenizer}, "tokenizer=the class AutoTokenizer is neither"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_the_model_is_looked_up(options, message):
    with pytest.raises(InputError, match=message) as caught:
        unchecked(load_model)("./no/such/model", **options)
    assert type(caught.value) is InputError
    assert "17" not in str(caught.value), "a token is not quoted"


def test_cuda_that_is_not_there_is_refused_before_the_model_is_looked_up(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError) as caught:
        load_model("./no/such/model", device="cuda")
    assert str(caught.value) == "Device 'cuda' was asked for; torch sees 0 CUDA devices here: use device='cpu'."
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"torch sees 2 CUDA devices here: device='cuda:1' is the last\."):
        load_model("./no/such/model", device="cuda:2")


def test_apples_gpus_have_no_float64(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(InputError, match=r"Apple's GPUs have no float64\. Use dtype='float32'"):
        load_model("./no/such/model", device="mps", dtype="float64")


# --- a model, or what becomes one ---------------------------------------------------------------------------------------------


def test_a_hooked_transformer_is_taken_as_it_is(tiny_model):
    model = tiny_model("gpt2")
    card = card_of(model)
    assert as_hooked(model) is model
    assert card_of(model) is card, "its card still says where it came from"
    with pytest.raises(InputError, match="keeps its device and dtype"):
        as_hooked(model, device="cpu")


def test_a_hooked_transformer_of_the_users_own_is_not_touched(tiny_model):
    model = HookedTransformer(
        HookedTransformerConfig(n_layers=1, d_model=8, d_head=4, n_ctx=16, d_vocab=30, act_fn="relu", seed=0)
    )
    before = set(vars(model))
    assert as_hooked(model) is model
    assert set(vars(model)) == before, "no card that would grow old when the weights change"


@pytest.mark.parametrize("as_path", [str, Path])
def test_a_name_becomes_a_hooked_transformer(tiny, tiny_model, as_path):
    model = as_hooked(as_path(tiny("gpt2")), device="cpu", dtype="float64")
    card = card_of(model)
    assert (card.source, card.name, card.dtype) == ("directory", "gpt2", "float64")
    assert card.tokenizer_sha256 == card_of(tiny_model("gpt2")).tokenizer_sha256


def test_a_live_hugging_face_model_becomes_a_hooked_transformer(tiny, tiny_model):
    live = transformers.AutoModelForCausalLM.from_pretrained(tiny("gpt2"))
    with pytest.raises(InputError) as caught:
        as_hooked(live)
    assert str(caught.value) == (
        "A live Hugging Face model comes without its tokenizer. Pass tokenizer=, as in al.load_model(model, tokenizer=...)."
    )
    model = as_hooked(live, device="cpu", tokenizer=tiny("gpt2"))
    assert card_of(model).weights_sha256 == card_of(tiny_model("gpt2")).weights_sha256


def test_a_live_model_whose_weights_lie_elsewhere(tiny):
    with torch.device("meta"):
        live = transformers.AutoModelForCausalLM.from_config(FAMILIES["gpt2"]())
    with pytest.raises(InputError, match=r"not in memory \(device 'meta'\)\. Load it without device_map"):
        load_model(live, device="cpu", tokenizer=tiny("gpt2"))


# --- device and dtype ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cuda", "mps", "chosen"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_device_is_the_first_of_cuda_mps_cpu(monkeypatch, cuda, mps, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert devices.pick_device(None) == chosen


def test_dtype_is_float32_until_an_accelerator_meets_a_big_model(tmp_path, monkeypatch):
    config = FAMILIES["llama"](dtype="bfloat16")
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(16_000_000_000)  # 8 billion parameters of two bytes; the file is sparse
    assert devices.pick_dtype(None, "cuda", config, tmp_path) == torch.float32
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(64_000_000_000)
    assert devices.pick_dtype(None, "cuda", config, tmp_path) == torch.bfloat16
    assert devices.pick_dtype(None, "cpu", config, tmp_path) == torch.float32
    assert devices.pick_dtype("fp16", "cuda", config, tmp_path) == torch.float16
    assert devices.pick_dtype("auto", "cpu", config, tmp_path) == torch.bfloat16


def test_hub_weights_are_safetensors_where_there_are_any(monkeypatch, tmp_path):
    asked = []

    def snapshot(repo, *, allow_patterns, **options):
        asked.append(allow_patterns)
        if "pytorch_model*.bin" in allow_patterns:
            (tmp_path / "pytorch_model.bin").touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert hub.fetch_model("a/b", None, None, False) == tmp_path
    assert ["model*.safetensors" in patterns for patterns in asked] == [True, False]
    (tmp_path / "pytorch_model.bin").unlink()
    monkeypatch.setattr(hub, "TORCH_FILES", ["other*.bin"])
    with pytest.raises(CheckpointError, match="holds no weights that transformers reads"):
        hub.fetch_model("a/b", None, None, False)
