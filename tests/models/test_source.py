"""A model is checked before it is loaded: check_model and load_model refuse the same, in the same
words.
"""

import json
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import DryRunFileInfo
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformer_lens import HookedEncoder

from anchorlens.errors import (
    CheckpointError,
    DownloadError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from anchorlens.models import checkpoint, hub, load, source
from anchorlens.models.checkpoint import DEMO, DEMO_GGUF_VARIABLE
from anchorlens.models.load import load_model
from anchorlens.models.source import check_model
from tests.models.hubs import COMMIT, failing_hub, refusal, refused
from tests.models.test_checkpoint import gguf_llama, write_gguf
from tests.models.tiny import FAMILIES
from tests.tokenizers_small import small_tokenizer

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def nothing_is_loaded(monkeypatch):
    """Reading weights, or making the packaged model's files, is an error of its own."""
    for room, names in (
        (load, ("load_weights", "load_gguf", "load_tokenizer")),
        (source, ("fetch_packaged_model",)),
    ):
        for name in names:
            monkeypatch.setattr(
                room, name, lambda *_args, name=name, **_options: pytest.fail(f"{name} was called")
            )


# --- the packaged model
# -------------------------------------------------------------------------------------------------------


def test_what_would_keep_the_packaged_model_from_being_fetched(
    monkeypatch, tmp_path, nothing_is_loaded
):
    monkeypatch.delenv(DEMO_GGUF_VARIABLE, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("ANCHORLENS_CACHE", str(tmp_path))
    assert check_model(DEMO.name) == "packaged"
    assert list(tmp_path.iterdir()) == [], "nothing is built"
    assert "revision='main'" in str(refusal(DEMO.name, revision="main"))
    monkeypatch.setenv(DEMO_GGUF_VARIABLE, "/nowhere/x.gguf")
    assert f"{DEMO_GGUF_VARIABLE}='/nowhere/x.gguf': no such file" in str(refusal(DEMO.name))
    monkeypatch.delenv(DEMO_GGUF_VARIABLE)
    monkeypatch.setattr(checkpoint.importlib.util, "find_spec", lambda _name: None)
    assert "has no pip" in str(refusal(DEMO.name))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    offline = refusal(DEMO.name)
    assert isinstance(offline, DownloadError)
    assert f"is not in {tmp_path}, and HF_HUB_OFFLINE is set" in str(offline)
    (tmp_path / "models" / f"{DEMO.name}-{DEMO.gguf_sha256[:12]}").mkdir(parents=True)
    assert check_model(DEMO.name) == "packaged", "what is built needs neither pip nor network"


# --- directories
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3_multimodal"])
def test_a_directory_is_looked_at_and_not_loaded(tiny, no_sockets, nothing_is_loaded, family):
    assert (
        check_model(tiny(family))
        == check_model(str(tiny(family)), device="cpu", dtype="bfloat16")
        == "directory"
    )


def in_shards(here: Path) -> Path:
    """The weights in several files."""
    model = transformers.AutoModelForCausalLM.from_pretrained(here)
    (here / "model.safetensors").unlink()
    model.save_pretrained(here, max_shard_size="40KB")
    return here


@pytest.mark.parametrize("files", ["shards", "torch", "torch_shards"])
def test_weights_in_other_files_are_the_same_model(tiny, tiny_model, tmp_path, files):
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m")
    if files == "shards":
        assert len(list(in_shards(here).glob("model-*-of-*.safetensors"))) > 2
    else:
        state = transformers.AutoModelForCausalLM.from_pretrained(here).state_dict()
        (here / "model.safetensors").unlink()
        names = sorted(state)
        parts = (
            {"pytorch_model.bin": names}
            if files == "torch"
            else {"a.bin": names[::2], "b.bin": names[1::2]}
        )
        for file, own in parts.items():
            torch.save({name: state[name] for name in own}, here / file)  # noqa: TID251
        index = {
            "metadata": {},
            "weight_map": {name: file for file, own in parts.items() for name in own},
        }
        (here / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert check_model(here) == "directory"
    card = load_model(here, device="cpu").anchorlens_card
    assert card.weights_sha256 == tiny_model("gpt2").anchorlens_card.weights_sha256


def changed(**fields: object) -> Callable[[Path], object]:
    """Some fields of the configuration are others."""

    def change(here: Path) -> None:
        file = here / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda here: (here / name).write_bytes(content)


def gone(names: str) -> Callable[[Path], object]:
    return lambda here: [path.unlink() for path in here.glob(names)]


def cut(path: Path, n_bytes: int = 1000) -> None:
    path.write_bytes(path.read_bytes()[:-n_bytes])


def first_shard(here: Path) -> Path:
    return min(in_shards(here).glob("model-*.safetensors"))


OWN_CLASS = {"architectures": ["MyGPT2"], "auto_map": {"AutoModelForCausalLM": "modeling.MyGPT2"}}
LFS = b"version https://git-lfs.github.com/spec/v1\n"
BROKEN = {
    "no config": (gone("config.json"), ModelNotFoundError, r"holds no config\.json"),
    "empty": (written("config.json", b"{}"), CheckpointError, r"cannot be read .*model_type"),
    "type": (changed(model_type=["gpt2"]), CheckpointError, "cannot be read"),
    "damaged": (written("config.json", b"{"), CheckpointError, r"cannot be read .*Fetch it again"),
    "binary": (written("config.json", b"\xff\xfe"), CheckpointError, "cannot be read .*utf-8"),
    "wrong": (changed(n_embd="x"), CheckpointError, "cannot be read .*'n_embd' expected int"),
    "no heads": (changed(n_head=0), CheckpointError, "is invalid .*ZeroDivision"),
    "exotic": (changed(model_type="exotic"), UnsupportedModelError, "'exotic'.* code is not run"),
    "own class": (changed(**OWN_CLASS), UnsupportedModelError, "no class 'MyGPT2'.* not run"),
    "unmapped": (changed(model_type="bert"), UnsupportedModelError, "'bert' are not mapped.*llama"),
    "feature": (changed(add_cross_attention=True), UnsupportedModelError, "add_cross_attention"),
    "tokenizer": (gone("*token*"), CheckpointError, r"no tokenizer files\. Pass tokenizer="),
    "weights": (gone("model.safetensors"), CheckpointError, "incomplete: it has none of model"),
    "truncated": (
        lambda here: cut(here / "model.safetensors"),
        CheckpointError,
        "weights in .*m cannot be read",
    ),
    "git-lfs": (
        written("model.safetensors", LFS),
        CheckpointError,
        "weights in .*m cannot be read .*`git lfs pull`",
    ),
    "shard": (
        lambda here: first_shard(here).unlink(),
        CheckpointError,
        "lacks the files model-00001-of",
    ),
    "cut shard": (
        lambda here: cut(first_shard(here), 10),
        CheckpointError,
        "weights in .*m cannot be read",
    ),
    "index": (
        lambda here: written("model.safetensors.index.json", b"{}")(in_shards(here)),
        CheckpointError,
        "cannot be read .*weight_map",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_directory_is_refused_before_it_is_loaded(
    tiny, tmp_path, nothing_is_loaded, monkeypatch, fault
):
    monkeypatch.setattr("builtins.input", lambda *_args: pytest.fail("a question was asked"))
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m")
    breaks, kind, message = BROKEN[fault]
    breaks(here)
    error = refusal(here)
    assert type(error) is kind
    assert "\n" not in str(error)
    with pytest.raises(kind, match=message):
        raise error


def test_code_of_a_checkpoint_is_not_needed_for_a_class_of_transformers(tiny, tmp_path):
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m")
    changed(auto_map=OWN_CLASS["auto_map"])(here)
    assert load_model(here, device="cpu").anchorlens_card.architecture == "GPT2LMHeadModel"


def test_another_tokenizer_takes_the_place_of_the_missing_one(tiny, tmp_path):
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m")
    BROKEN["tokenizer"][0](here)
    assert check_model(here, tokenizer=small_tokenizer("byte", bos=False)) == "directory"
    assert load_model(here, device="cpu", tokenizer=tiny("gpt2")).anchorlens_card.parity < 1e-3
    assert "m holds no tokenizer files" in str(refusal(tiny("gpt2"), tokenizer=here))


# --- GGUF files
# ---------------------------------------------------------------------------------------------------------------


def test_a_gguf_file_is_looked_at_and_not_loaded(tmp_path, nothing_is_loaded):
    path = write_gguf(tmp_path / "x.gguf", gguf_llama())
    assert check_model(path) == "gguf"
    cut(path)
    assert "truncated, and cannot be read (" in str(refusal(path))
    path.write_bytes(b"PK")
    assert "x.gguf is not a GGUF file" in str(refusal(path))
    assert "architecture 'rwkv6' are not mapped" in str(
        refusal(write_gguf(path, gguf_llama(), architecture="rwkv6"))
    )


def test_a_gguf_file_on_the_hub_is_not_fetched(monkeypatch, tmp_path, no_sockets):
    path, asked = write_gguf(tmp_path / "x.gguf", gguf_llama()), []
    seen = DryRunFileInfo(COMMIT, 9, "q/x.gguf", str(path), is_cached=False, will_download=True)

    def download(repo, filename, **options):
        asked.append((repo, filename, options))
        return seen

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert check_model("someone/tiny/q/x.gguf", revision="main", token="secret") == "gguf"
    assert asked == [
        ("someone/tiny", "q/x.gguf", {"revision": "main", "token": "secret", "dry_run": True})
    ]
    seen = replace(seen, is_cached=True)
    cut(path)
    assert "truncated" in str(refusal("someone/tiny/q/x.gguf")), (
        "one that is here already is looked at"
    )


# --- the hub
# ------------------------------------------------------------------------------------------------------------------


def test_without_an_address_of_the_hub_the_cache_alone_is_read_and_nothing_is_tried_again(
    monkeypatch, tmp_path
):
    def look_up(*_args, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    begun = time.monotonic()
    said = str(refusal("someone/tiny"))
    assert "'someone/tiny' is not in the hub's cache, and the hub cannot be reached" in said
    assert "Check the network, or give a directory" in said
    assert time.monotonic() - begun < 5


def test_of_a_hub_name_the_configuration_alone_is_fetched(
    fake_hub, tiny, tmp_path, monkeypatch, nothing_is_loaded
):
    (tmp_path / "m").mkdir()
    shutil.copy(tiny("qwen3") / "config.json", tmp_path / "m")
    asked = fake_hub(tmp_path / "m")
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda *_args, **_options: pytest.fail("weights were fetched"),
    )
    assert check_model("Qwen/Qwen3-32B", revision="main", token="secret") == "hub"
    assert asked == [("Qwen/Qwen3-32B", "main", "secret")]
    config = tmp_path / "hub" / "snapshots" / COMMIT / "config.json"
    config.unlink()
    FAMILIES["llama"](mlp_bias=True).save_pretrained(config.parent)
    assert "mlp_bias=True" in str(refusal("someone/model"))


@pytest.fixture
def offline_cache(monkeypatch, tmp_path, no_sockets):
    """The hub's own cache with one repository in it, and no network."""

    def make(files: Path) -> None:
        repository = tmp_path / "cache" / "models--someone--tiny"
        shutil.copytree(files, repository / "snapshots" / COMMIT)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(COMMIT)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    return make


def test_offline_the_hubs_cache_is_used(offline_cache, tiny, tiny_model, tmp_path):
    files = shutil.copytree(tiny("llama"), tmp_path / "files")
    write_gguf(files / "x.gguf", gguf_llama())
    offline_cache(files)
    card = load_model("someone/tiny", device="cpu").anchorlens_card
    assert (card.revision, card.source) == (COMMIT, "hub")
    assert card.weights_sha256 == tiny_model("llama").anchorlens_card.weights_sha256
    assert check_model("someone/tiny/x.gguf") == "gguf"
    card = load_model("someone/tiny/x.gguf", device="cpu").anchorlens_card
    assert (card.source, card.revision) == ("gguf", COMMIT)
    for name in ("someone/tiny/y.gguf", "Qwen/Qwen3-8B"):
        error = refusal(name)
        assert isinstance(error, DownloadError)
        assert "is not in the hub's cache" in str(error) and "Unset HF_HUB_OFFLINE" in str(error)


UNKNOWN = RepositoryNotFoundError("no", response=refused(404))


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (
            GatedRepoError("gated", response=refused(403)),
            DownloadError,
            r"is gated: accept its terms .* set HF_TOKEN",
        ),
        (UNKNOWN, ModelNotFoundError, r"Did you mean 'meta-llama/Llama-3\.2-3B'\? .* set HF_TOKEN"),
        (
            RevisionNotFoundError("no", response=refused(404)),
            ModelNotFoundError,
            r"revision 'v9'.*branch",
        ),
        (EntryNotFoundError("config.json"), CheckpointError, r"lacks a file .*config\.json"),
        (
            LocalEntryNotFoundError("offline"),
            DownloadError,
            r"hub cannot be reached.*Check the network",
        ),
        (
            HfHubHTTPError("HTTP 401", response=refused(401)),
            DownloadError,
            r"failed .*HTTP 401.*HF_TOKEN",
        ),
        (
            HfHubHTTPError("HTTP 500", response=refused(500)),
            DownloadError,
            r"failed .*HTTP 500.*try later",
        ),
        (httpx.ReadTimeout("slow"), DownloadError, r"failed \(slow\)\. Check the network"),
        (OSError("No space left on device"), DownloadError, "No space left"),
    ],
)
def test_each_way_a_download_fails(monkeypatch, error, expected, message):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    failing_hub(monkeypatch, error)
    for name in ("meta-llama/Lama-3.2-3B", "meta-llama/Lama-3.2-3B/x.gguf"):
        if error is not UNKNOWN or name.endswith("B"):
            caught = refusal(name, revision="v9")
            assert type(caught) is expected
            assert "Lama-3.2-3B" in str(caught)
            with pytest.raises(expected, match=message):
                raise caught


def test_a_known_name_is_not_suggested_to_its_user(monkeypatch):
    failing_hub(monkeypatch, UNKNOWN)
    assert "Did you mean" not in str(refusal("meta-llama/Llama-3.2-1B"))


# --- names
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *(
            (name, "No model has the name")
            for name in ("~nobody-of-this-name/model", "a\0b", "a" * 5000, "  ")
        ),
        *(
            (name, f"No model has the name '{name}'")
            for name in ("./nowhere/model", "missing.gguf", "a/b/c/d", "")
        ),
        ("smollm2-135m-instuct", r"Did you mean 'smollm2-135m-instruct'\? Names on the hub"),
        ("LLAMA-3.2-1b", r"Did you mean 'meta-llama/Llama-3\.2-1B'\? Names on the hub"),
    ],
)
def test_names_that_cannot_be(no_sockets, name, message):
    with pytest.raises(ModelNotFoundError, match=message):
        raise refusal(name)


def test_models_without_a_hugging_face_original(no_sockets):
    error = refusal("gelu-1l")
    assert type(error) is UnsupportedModelError
    assert "has no Hugging Face model to compare with" in str(error)


def test_paths_that_are_no_model(tiny, tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    assert "is a file, but not a .gguf file" in str(refusal(tmp_path / "notes.txt"))
    assert "revision='main'" in str(refusal(tiny("gpt2"), revision="main"))


# --- live models and options
# --------------------------------------------------------------------------------------------------


def test_live_models(tiny, tiny_model):
    hooked, tokenizer = tiny_model("gpt2"), small_tokenizer("byte", bos=False)
    live = transformers.AutoModelForCausalLM.from_pretrained(tiny("gpt2"))
    assert check_model(hooked) == check_model(live, tokenizer=tokenizer) == "live"
    assert "keeps its device and dtype" in str(refusal(hooked, dtype="float32"))
    assert "Pass tokenizer=" in str(refusal(live))
    assert "keeps torch.float32" in str(refusal(live, dtype="bf16", tokenizer=tokenizer))
    assert "A live model has no revision" in str(
        refusal(live, revision="main", tokenizer=tokenizer)
    )
    live._hf_peft_config_loaded = True
    assert "has an adapter beside its weights. Merge it first" in str(
        refusal(live, tokenizer=tokenizer)
    )
    live.config.add_cross_attention = True
    assert "add_cross_attention=True" in str(refusal(live, tokenizer=tokenizer))
    headless = transformers.AutoModel.from_pretrained(tiny("gpt2"))
    assert "This GPT2Model predicts no tokens" in str(refusal(headless, tokenizer=tokenizer))
    with torch.device("meta"):
        elsewhere = transformers.AutoModelForCausalLM.from_config(FAMILIES["gpt2"]())
    assert "not in memory (device 'meta')" in str(
        refusal(elsewhere, device="cpu", tokenizer=tokenizer)
    )


NO_MODELS = {
    "None": lambda: None,
    "5": lambda: 5,
    "a Linear": lambda: torch.nn.Linear(2, 2),
    "the class GPT2LMHeadModel": lambda: transformers.GPT2LMHeadModel,
    "an OrderedDict": lambda: torch.nn.Linear(2, 2).state_dict(),
    "a HookedEncoder": lambda: object.__new__(HookedEncoder),
}


@pytest.mark.parametrize("shown", NO_MODELS)
def test_what_is_no_model(shown):
    error = refusal(NO_MODELS[shown]())
    assert str(error).startswith(
        f"model={shown}: not a model. Give a name (`anchorlens models` lists some)"
    )
    assert "Merge an adapter first" in str(error)
