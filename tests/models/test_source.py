"""A model is looked at before it is loaded: what check_model lets pass and refuses, and that load_model says the same."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import DryRunFileInfo
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from anchorlens.errors import AnchorlensError, CheckpointError, DownloadError, InputError, ModelNotFoundError
from anchorlens.models import checkpoint, load, source
from anchorlens.models.checkpoint import DEMO, DEMO_GGUF_VARIABLE
from anchorlens.models.load import load_model
from anchorlens.models.source import check_model
from tests.models.hubs import COMMIT, failing_hub, refused
from tests.models.test_checkpoint import gguf_llama, write_gguf
from tests.models.test_load import NO_MODELS, unchecked
from tests.models.tiny import FAMILIES
from tests.tokenizers_small import small_tokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def nothing_is_loaded(monkeypatch):
    """Reading weights, or making the packaged model's files, is an error of its own."""
    for room, names in ((load, ("load_weights", "load_gguf", "load_tokenizer")), (source, ("packaged_directory",))):
        for name in names:
            monkeypatch.setattr(room, name, lambda *_args, name=name, **_options: pytest.fail(f"{name} was called"))


def both_say(name, **options) -> AnchorlensError:
    """The error of check_model, which is load_model's too."""
    with pytest.raises(AnchorlensError) as of_check:
        unchecked(check_model)(name, **options)
    with pytest.raises(AnchorlensError) as of_load:
        unchecked(load_model)(name, **options)
    assert (type(of_check.value), str(of_check.value)) == (type(of_load.value), str(of_load.value))
    return of_check.value


# --- the packaged model -------------------------------------------------------------------------------------------------------


def test_the_packaged_model_is_looked_up_without_torch(tmp_path):
    code = (
        "import sys; from anchorlens.models.source import check_model; print(check_model('smollm2-135m-instruct'), "
        "sorted({'torch', 'transformers', 'transformer_lens', 'huggingface_hub', 'gguf', 'numpy'} & set(sys.modules)))"
    )
    hidden = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", DEMO_GGUF_VARIABLE)
    env = {name: value for name, value in os.environ.items() if name not in hidden} | {"ANCHORLENS_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("packaged []\n", 0), done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is built"


def test_what_would_keep_the_packaged_model_from_being_fetched(monkeypatch, tmp_path, nothing_is_loaded):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", DEMO_GGUF_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANCHORLENS_CACHE", str(tmp_path))
    assert check_model(DEMO.name) == "packaged"
    assert "has one release only" in str(both_say(DEMO.name, revision="main"))
    monkeypatch.setenv(DEMO_GGUF_VARIABLE, "/nowhere/x.gguf")
    assert "names '/nowhere/x.gguf', and there is no such file" in str(both_say(DEMO.name))
    monkeypatch.delenv(DEMO_GGUF_VARIABLE)
    monkeypatch.setattr(checkpoint.importlib.util, "find_spec", lambda _name: None)
    assert "has no pip" in str(both_say(DEMO.name))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refusal = both_say(DEMO.name)
    assert isinstance(refusal, DownloadError)
    assert f"is not in the cache yet ({tmp_path}), and HF_HUB_OFFLINE forbids fetching it" in str(refusal)
    (tmp_path / "models" / f"{DEMO.name}-{DEMO.gguf_sha256[:12]}").mkdir(parents=True)
    assert check_model(DEMO.name) == "packaged", "what is built needs neither pip nor network"


# --- directories --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3_multimodal"])
def test_a_directory_is_looked_at_and_not_loaded(tiny, no_sockets, nothing_is_loaded, family):
    assert check_model(tiny(family)) == check_model(str(tiny(family)), device="cpu", dtype="bfloat16") == "directory"


def in_shards(here: Path) -> Path:
    """The weights in several files."""
    model = transformers.AutoModelForCausalLM.from_pretrained(here)
    (here / "model.safetensors").unlink()
    model.save_pretrained(here, max_shard_size="40KB")
    return here


def test_weights_in_several_files(tiny, tmp_path):
    here = in_shards(shutil.copytree(tiny("llama"), tmp_path / "m"))
    assert len(list(here.glob("model-*-of-*.safetensors"))) > 2
    assert check_model(here) == "directory"
    whole = load_model(tiny("llama"), device="cpu").anchorlens_card
    assert load_model(here, device="cpu").anchorlens_card.weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize("in_two", [False, True])
def test_weights_that_pytorch_wrote(tiny, tmp_path, in_two):
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m")
    state = transformers.AutoModelForCausalLM.from_pretrained(here).state_dict()
    (here / "model.safetensors").unlink()
    names = sorted(state)
    parts = {"a.bin": names[::2], "b.bin": names[1::2]} if in_two else {"pytorch_model.bin": names}
    for file, own in parts.items():
        torch.save({name: state[name] for name in own}, here / file)  # noqa: TID251
    if in_two:
        index = {"metadata": {}, "weight_map": {name: file for file, own in parts.items() for name in own}}
        (here / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert check_model(here) == "directory"
    whole = load_model(tiny("gpt2"), device="cpu").anchorlens_card
    assert load_model(here, device="cpu").anchorlens_card.weights_sha256 == whole.weights_sha256


def config(here: Path, text: str) -> None:
    (here / "config.json").write_text(text)


def changed_config(here: Path, **fields: object) -> None:
    config(here, json.dumps(json.loads((here / "config.json").read_text()) | fields))


def cut(path: Path, n_bytes: int = 1000) -> None:
    path.write_bytes(path.read_bytes()[:-n_bytes])


def first_shard(here: Path) -> Path:
    return min(in_shards(here).glob("model-*.safetensors"))


NO_TYPE = (
    r"m/config\.json has no model_type, so it does not say what kind of model this is\. Give the directory that `save_pre"
)
BROKEN = {
    "config_missing": (
        lambda here: (here / "config.json").unlink(),
        r"holds no config\.json, so it is no Hugging Face checkpoint",
    ),
    "config_empty": (lambda here: config(here, "{}"), NO_TYPE),
    "config_list": (lambda here: config(here, "[]"), NO_TYPE),
    "config_type": (lambda here: changed_config(here, model_type=None), NO_TYPE),
    "config_type_list": (lambda here: changed_config(here, model_type=["gpt2"]), NO_TYPE),
    "config_damaged": (
        lambda here: config(here, "{"),
        r"config\.json cannot be read: Expecting property name .*\. Fetch it again\.",
    ),
    "config_not_utf8": (
        lambda here: (here / "config.json").write_bytes(b"\xff\xfe"),
        r"config\.json cannot be read: 'utf-8' codec",
    ),
    "config_wrong": (
        lambda here: changed_config(here, n_embd="x"),
        r"cannot be read: .*'n_embd' expected int, got str",
    ),
    "config_no_heads": (
        lambda here: changed_config(here, n_head=0),
        r"configuration of m is not that of a working .*ZeroDivision",
    ),
    "config_file": (lambda here: changed_config(here, transformers_weights=5), r"transformers_weights=5 is no file name"),
    "other_file": (
        lambda here: changed_config(here, transformers_weights="w.safetensors"),
        r"lacks its w\.safetensors\. Fetch it",
    ),
    "exotic": (lambda here: changed_config(here, model_type="exotic"), "no models of type 'exotic'; own code is not run"),
    "unmapped": (lambda here: changed_config(here, model_type="bert"), "models of type 'bert' are not mapped"),
    "feature": (lambda here: changed_config(here, add_cross_attention=True), "add_cross_attention=True, which has no exact"),
    "tokenizer": (lambda here: [p.unlink() for p in here.glob("*token*")], r"m holds no tokenizer files\. Pass tokenizer=\."),
    "weights": (
        lambda here: (here / "model.safetensors").unlink(),
        r"is incomplete: it lacks weights \(model\.safetensors or pytorch_model\.bin\)\. Fetch it again\.",
    ),
    "truncated": (lambda here: cut(here / "model.safetensors"), r"The weights in .*m cannot be read \(SafetensorError: "),
    "empty": (
        lambda here: (here / "model.safetensors").write_bytes(b""),
        r"The weights in .*m cannot be read \(SafetensorError: ",
    ),
    "git_lfs": (
        lambda here: (here / "model.safetensors").write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        ),
        r"model\.safetensors is only git-lfs's pointer to the weights\. Run `git lfs pull` in ",
    ),
    "shard": (
        lambda here: first_shard(here).unlink(),
        r"is incomplete: it lacks 1 of the \d+ files that its index names \(model-00001-of-\d+\.safetensors\)\. Fetch it again\.",
    ),
    "shard_truncated": (lambda here: cut(first_shard(here), 10), r"The weights in .*m cannot be read \(SafetensorError: "),
    "index": (
        lambda here: (in_shards(here) / "model.safetensors.index.json").unlink(),
        r"is incomplete: it lacks model\.safetensors\.index\.json, which lists its files\. Fetch it again\.",
    ),
    "index_damaged": (
        lambda here: (in_shards(here) / "model.safetensors.index.json").write_text("{}"),
        r"model\.safetensors\.index\.json is no index of weights \(KeyError: 'weight_map'\)\. Fetch it again\.",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_directory_is_refused_before_it_is_loaded(tiny, tmp_path, nothing_is_loaded, fault):
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m")
    breaks, message = BROKEN[fault]
    breaks(here)
    refusal = both_say(here)
    assert "\n" not in str(refusal)
    with pytest.raises(InputError, match=message):
        raise refusal
    if "config" in fault and fault != "config_missing":
        assert type(refusal) is CheckpointError


def test_another_tokenizer_takes_the_place_of_the_missing_one(tiny, tmp_path, nothing_is_loaded):
    here = shutil.copytree(tiny("gpt2"), tmp_path / "m")
    BROKEN["tokenizer"][0](here)
    assert check_model(here, tokenizer=small_tokenizer("byte", bos=False)) == "directory"
    assert check_model(here, tokenizer=tiny("gpt2")) == "directory"
    assert "m holds no tokenizer files" in str(both_say(tiny("gpt2"), tokenizer=here))
    assert "tokenizer='nowhere' is neither" in str(both_say(tiny("gpt2"), tokenizer="nowhere"))


def test_paths_that_are_no_model(tiny, tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    assert "is a file, but not a .gguf file" in str(both_say(tmp_path / "notes.txt"))
    assert "is a local path, which has no revision" in str(both_say(tiny("gpt2"), revision="main"))
    assert "There is no file or directory './nowhere'" in str(both_say("./nowhere"))
    assert "The model's name is empty" in str(both_say(" "))


# --- GGUF files ---------------------------------------------------------------------------------------------------------------


def test_a_gguf_file_is_looked_at_and_not_loaded(tmp_path, nothing_is_loaded):
    path = write_gguf(tmp_path / "x.gguf", gguf_llama())
    assert check_model(path) == "gguf"
    cut(path)
    assert "x.gguf is damaged or truncated (" in str(both_say(path))
    path.write_bytes(b"PK")
    assert "does not begin with the letters GGUF" in str(both_say(path))
    assert "holds the architecture 'rwkv6'" in str(both_say(write_gguf(path, gguf_llama(), architecture="rwkv6")))


def test_a_gguf_file_on_the_hub_is_not_fetched(monkeypatch, tmp_path, no_sockets):
    path, asked = write_gguf(tmp_path / "x.gguf", gguf_llama()), []
    seen = DryRunFileInfo(COMMIT, 9, "q/x.gguf", str(path), is_cached=False, will_download=True)

    def download(repo, filename, **options):
        asked.append((repo, filename, options))
        return seen

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert check_model("someone/tiny/q/x.gguf", revision="main", token="secret") == "gguf"
    assert asked == [("someone/tiny", "q/x.gguf", {"revision": "main", "token": "secret", "dry_run": True})]
    seen = replace(seen, is_cached=True)
    cut(path)
    assert "is damaged or truncated" in str(both_say("someone/tiny/q/x.gguf")), "one that is here already is looked at"


def hub_cache(monkeypatch, directory: Path, source_files: Path) -> None:
    """The hub's own cache with one repository in it, and no network."""
    repository = directory / "models--someone--tiny"
    shutil.copytree(source_files, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(directory))


def test_offline_a_gguf_file_is_looked_for_in_the_hubs_cache(monkeypatch, tmp_path, no_sockets):
    files = tmp_path / "files"
    files.mkdir()
    write_gguf(files / "x.gguf", gguf_llama())
    hub_cache(monkeypatch, tmp_path / "cache", files)
    assert check_model("someone/tiny/x.gguf") == "gguf"
    card = load_model("someone/tiny/x.gguf", device="cpu").anchorlens_card
    assert (card.source, card.revision) == ("gguf", COMMIT)
    refusal = both_say("someone/tiny/y.gguf")
    assert isinstance(refusal, DownloadError)
    assert "'someone/tiny' is not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids fetching it" in str(refusal)


# --- the hub ------------------------------------------------------------------------------------------------------------------


def test_of_a_hub_name_the_configuration_alone_is_fetched(fake_hub, tiny, tmp_path, monkeypatch, nothing_is_loaded):
    (tmp_path / "m").mkdir()
    shutil.copy(tiny("qwen3") / "config.json", tmp_path / "m")
    asked = fake_hub(tmp_path / "m")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_args, **_options: pytest.fail("weights were fetched"))
    assert check_model("Qwen/Qwen3-32B", revision="main", token="secret") == "hub"
    assert asked == [("Qwen/Qwen3-32B", "main", "secret")]


def test_an_unsupported_hub_model(fake_hub, tmp_path):
    FAMILIES["llama"](mlp_bias=True).save_pretrained(tmp_path / "m")
    fake_hub(tmp_path / "m")
    assert "mlp_bias=True" in str(both_say("someone/model"))


def test_what_the_hub_refuses(monkeypatch):
    failing_hub(monkeypatch, GatedRepoError("gated", response=refused(403)))
    assert isinstance(both_say("meta-llama/Llama-3.2-1B"), DownloadError)
    assert "'a/b' is gated: accept its terms" in str(both_say("a/b/c.gguf"))
    failing_hub(monkeypatch, RepositoryNotFoundError("no", response=refused(404)))
    misspelt = both_say("meta-llama/Lama-3.2-1B")
    assert isinstance(misspelt, ModelNotFoundError)
    assert str(misspelt) == (
        "The Hugging Face hub has no model 'meta-llama/Lama-3.2-1B' that you may see. Did you mean 'meta-llama/Llama-3.2-1B'? "
        "If it is private, set HF_TOKEN or pass token=."
    )
    assert "Did you mean" not in str(both_say("meta-llama/Llama-3.2-1B")), "nobody is asked whether he meant what he wrote"
    assert "has no Hugging Face model to be checked against" in str(both_say("gelu-1l"))
    assert "Did you mean 'meta-llama/Llama-3.2-1B'? Names on the hub" in str(both_say("LLAMA-3.2-1b"))


# --- live models and options --------------------------------------------------------------------------------------------------


def test_live_models(tiny, tiny_model):
    hooked, tokenizer = tiny_model("gpt2"), small_tokenizer("byte", bos=False)
    live = transformers.AutoModelForCausalLM.from_pretrained(tiny("gpt2"))
    assert check_model(hooked) == check_model(live, tokenizer=tokenizer) == "live"
    assert "keeps its device and dtype" in str(both_say(hooked, dtype="float32"))
    assert "Pass tokenizer=, as in al.load_model(model, tokenizer=...)." in str(both_say(live))
    assert "keeps its dtype, here torch.float32. Load it in the other: from_pretrained(..., dtype=torch.bfloat16)." in str(
        both_say(live, dtype="bf16", tokenizer=tokenizer)
    )
    assert "A live model has no revision" in str(both_say(live, revision="main", tokenizer=tokenizer))
    live.config.add_cross_attention = True
    assert "add_cross_attention=True" in str(both_say(live, tokenizer=tokenizer))


@pytest.mark.parametrize("kind", NO_MODELS)
def test_what_is_no_model(kind):
    make, ending = NO_MODELS[kind]
    assert ending in str(both_say(make()))


@pytest.mark.parametrize(
    "options",
    [
        {"device": "gpu"},
        {"device": "cuda:99"},
        {"dtype": "float23"},
        {"dtype": None, "device": 3.5},
        {"revision": 5},
        {"token": ""},
    ],
)
def test_options_are_looked_at_before_the_model(options):
    refusal = both_say("./no/such/model", **options)
    assert type(refusal) is InputError
    assert "such/model" not in str(refusal)
