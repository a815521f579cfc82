"""Names of live models in results: what they state, without the folders of this machine."""

import copy
import json

import pytest
import transformers
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module

import anchorlens as al
from anchorlens.models.card import CARD, name_of
from tests.tokenizers_small import small_tokenizer

SIZES = {"n_layers": 1, "d_model": 8, "d_head": 4, "n_ctx": 16, "d_vocab": 30, "act_fn": "relu"}
PAIRS = [
    {"id": "a", "clean": "b of g is", "corrupted": "h of i is", "answer": " j", "wrong": " k"},
    {"id": "b", "clean": "g of b is", "corrupted": "i of h is", "answer": " k", "wrong": " j"},
]


def live(hf, **name):
    """Make a bridge as a user does, of a copy of the model."""
    inside = copy.deepcopy(hf)
    bridge = build_bridge_from_module(
        inside, type(inside).__name__, hf_config=inside.config, **name
    )
    bridge.tokenizer = small_tokenizer("byte", bos=False)
    return bridge


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ("mine", "mine"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("owner/repository/file.gguf", "owner/repository/file.gguf"),
        ("/home/me/models/step-100", "step-100"),
        ("/home/me/models/step-100/", "step-100"),
        ("runs/long/step-100", "step-100"),
        ("./step-100", "step-100"),
        ("~/step-100", "step-100"),
        (".", "custom"),
        ("", "custom"),
        ("custom", "custom"),
    ],
)
def test_a_hooked_transformer_has_the_name_that_it_states(stated, shown):
    model = HookedTransformer(HookedTransformerConfig(**SIZES, model_name=stated))
    assert name_of(model) == shown
    assert al.model_card(model).name == shown


def test_a_folder_that_looks_like_a_name_on_the_hub_is_a_folder(tmp_path, monkeypatch):
    model = HookedTransformer(HookedTransformerConfig(**SIZES, model_name="models/step-100"))
    assert name_of(model) == "models/step-100"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "step-100").mkdir(parents=True)
    assert name_of(model) == "step-100"


def test_a_bridge_has_its_own_name_else_that_of_the_model_inside(tiny):
    hf = transformers.AutoModelForCausalLM.from_pretrained(tiny("gpt2"))
    assert name_of(live(hf, model_name="mine")) == "mine"
    assert name_of(live(hf)) == "gpt2", "the last part of its folder, as of the model itself"
    hf.config._name_or_path = "owner/name"
    assert name_of(live(hf)) == "name"
    for origin in ("", "."):
        hf.config._name_or_path = origin
        assert name_of(live(hf)) == "GPT2LMHeadModel"
    booted = TransformerBridge.boot_transformers(str(tiny("gpt2")), device="cpu")
    assert booted.cfg.model_name == str(tiny("gpt2")), "else this shows nothing"
    assert name_of(booted) == "gpt2"


@pytest.mark.slow
def test_two_live_models_are_told_apart_and_a_run_is_resumed(tiny, tmp_path):
    """Both were called external; the name is the same in another process."""
    hf = transformers.AutoModelForCausalLM.from_pretrained(tiny("gpt2"))
    hf.config._name_or_path = "/home/me/models/step-100"
    other = copy.deepcopy(hf)
    other.config._name_or_path = "/home/me/models/step-200"

    def measure(model, **more):
        return al.patch_sweep(model, PAIRS, by="layer", layers=[0], progress=False, **more)

    out = tmp_path / "run"
    first = measure(live(hf), out=out)
    second = measure(live(other))
    assert (first.model, second.model) == ("step-100", "step-200")
    assert set(first.samples(all_columns=True)["model"]) == {"step-100"}
    record = (out / "run.json").read_text()
    assert json.loads(record)["sweeps"][0]["model"]["name"] == "step-100"
    assert "/home/me" not in record
    assert first.run_id != second.run_id
    assert measure(live(hf), out=out, resume=True).run_id == first.run_id
    assert not hasattr(live(hf), CARD)
    assert al.load_model(live(hf)).anchorlens_card.name == "step-100"
