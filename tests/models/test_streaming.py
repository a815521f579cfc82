"""Models whose layers are read from their files as they run: the same model, never more than two
layers of it at once.
"""

import json
import os
import weakref
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file

import anchorlens as al
from anchorlens.errors import CheckpointError, InputError
from anchorlens.models.adapter import stream_of
from anchorlens.models.hooked.blocks import find_user_hook
from anchorlens.models.hooked.streaming import Stream, StreamedBlock, load_block
from anchorlens.models.source import check_model
from tests.models.tiny import FAMILIES, FURTHER_FAMILIES, llama, random_model, save_model, save_tiny
from tests.raised import raises

STREAMED = [*FAMILIES, *FURTHER_FAMILIES]
TOKENS = torch.arange(30, 54)[None]


def stream(path, **options):
    return al.load_model(path, device="cpu", stream=True, progress=False, **options)


@pytest.fixture
def sharded(tmp_path):
    """A llama of six layers in many files."""
    model = random_model(llama(num_hidden_layers=6))
    directory = save_model(model, tmp_path / "sharded")
    (directory / "model.safetensors").unlink()
    model.save_pretrained(directory, max_shard_size="60KB")
    assert len(list(directory.glob("*.safetensors"))) > 4
    return directory


def assert_same_model(whole, streamed):
    assert torch.equal(whole(TOKENS), streamed(TOKENS))
    assert al.model_card(streamed) == al.model_card(whole)


@pytest.mark.parametrize("family", STREAMED)
def test_it_is_the_model_that_is_loaded_into_memory(tiny, tiny_model, family):
    # A fresh bloom: TransformerLens keeps the alibi table of the longest row, which changes the
    # last digits of later rows.
    whole = al.load_model(tiny(family), device="cpu") if family == "bloom" else tiny_model(family)
    streamed = stream(tiny(family))
    assert_same_model(whole, streamed)
    assert al.model_card(streamed).parity is not None
    assert all(p.is_meta is name.startswith("blocks.") for name, p in streamed.named_parameters())
    shapes = {name: (p.shape, p.dtype) for name, p in whole.named_parameters()}
    assert {name: (p.shape, p.dtype) for name, p in streamed.named_parameters()} == shapes


# Rounding shows most in bfloat16: there also norms that add 1 to their weight, and weights that are
# transposed.
BFLOAT16 = [(family, "bfloat16") for family in ("llama", "gemma2", "gpt2", "mixtral")]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *BFLOAT16,
        ("llama", "float16"),
        ("llama", "float64"),
        ("mixtral", "float16"),
        ("mixtral", "float64"),
    ],
)
def test_other_types_are_converted_as_they_come(tiny, family, dtype):
    assert_same_model(
        al.load_model(tiny(family), device="cpu", dtype=dtype), stream(tiny(family), dtype=dtype)
    )


def test_a_checkpoint_in_half_precision_is_streamed_in_either_type(tmp_path):
    directory = save_model(random_model(llama()).bfloat16(), tmp_path / "half")
    streamed = {dtype: stream(directory, dtype=dtype) for dtype in ("auto", "float32")}
    for dtype, model in streamed.items():
        assert_same_model(al.load_model(directory, device="cpu", dtype=dtype), model)
    # Of the checkpoint's own type everything is a view of its file; else the embedding is a copy,
    # once for both its uses.
    model = streamed["float32"]
    extra = model.embed.W_E.numel() + model.ln_final.w.numel() + model.unembed.b_U.numel()
    assert stream_of(model).resident_bytes == 4 * extra
    assert stream_of(streamed["auto"]).resident_bytes == 2 * model.unembed.b_U.numel()


def test_a_pass_over_many_files_reads_every_layer_once_and_in_order(sharded, layers_read):
    model = stream(sharded)
    assert_same_model(al.load_model(sharded, device="cpu"), model)
    layers_read.clear()
    model(TOKENS)
    assert layers_read == [0, 1, 2, 3, 4, 5]
    model(TOKENS, stop_at_layer=2)
    model(TOKENS)
    # What was brought ahead of a pass that ended there is let go of.
    assert layers_read[6:] == [0, 1, 2, 0, 1, 2, 3, 4, 5]


def test_never_more_than_two_layers_are_held(sharded, monkeypatch):
    model = stream(sharded)
    alive, most = Counter(), Counter()
    right = Stream._load

    def bring(self, layer):
        brought = right(self, layer)
        for tensor in brought[0].values():
            alive[layer] += 1
            weakref.finalize(tensor, alive.subtract, [layer])
        most["layers"] = max(most["layers"], sum(n > 0 for n in alive.values()))
        return brought

    monkeypatch.setattr(Stream, "_load", bring)
    own, waited = stream_of(model), []

    def wait(*_):  # a layer this small is done before the next one has come, if the machine likes
        if own._next is not None:
            waited.append(own._next[0])
            own._next[1].result()

    for block in model.blocks:
        block.attn.register_forward_hook(wait)
    model(TOKENS)
    assert waited == [1, 2, 3, 4, 5]
    assert most["layers"] == 2
    assert not any(alive.values())  # all were dropped


def test_parts_of_a_block_that_is_held_run_as_modules(tiny, tiny_model):
    streamed, whole = stream(tiny("llama")), tiny_model("llama")
    x = torch.randn(1, 5, 48, generator=torch.Generator().manual_seed(0))
    with load_block(streamed.blocks[1]):
        assert torch.equal(streamed.blocks[1](x), whole.blocks[1](x))
        assert not streamed.blocks[
            1
        ].attn.W_Q.is_meta  # the block that ran inside did not take them away
    assert streamed.blocks[1].attn.W_Q.is_meta


def test_weights_are_dropped_after_an_error(tiny):
    model = stream(tiny("llama"))
    with pytest.raises(ZeroDivisionError), load_block(model.blocks[0]):
        raise ZeroDivisionError
    assert all(p.is_meta for p in model.blocks[0].parameters())
    assert torch.isfinite(model(TOKENS)).all()


def test_blocks_are_blocks_and_hooks_are_the_users(tiny):
    model = stream(tiny("llama"))
    assert all(isinstance(block, StreamedBlock) for block in model.blocks)
    assert find_user_hook(model) is None
    model.blocks[1].register_forward_hook(lambda *_: None)
    assert find_user_hook(model) == "a hook is attached to blocks.1"


def test_the_hash_is_read_again_only_where_a_file_has_changed(sharded, layers_read):
    model = stream(sharded)
    layers_read.clear()
    first = al.model_card(model)
    assert not layers_read
    name = "model.layers.3.mlp.up_proj.weight"
    file = (
        sharded
        / json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"][name]
    )
    os.utime(file, ns=(1, 1))
    assert al.model_card(model) == first
    assert layers_read == [0, 1, 2, 3, 4, 5]
    tensors = {key: tensor.clone() for key, tensor in load_file(file).items()}
    tensors[name][5, 7] += 1
    file.unlink()  # not written over: other views of the old file stay what they are
    save_file(tensors, file, metadata={"format": "pt"})
    changed = al.model_card(model)
    assert changed.weights_sha256 != first.weights_sha256
    assert changed.parity is None
    assert (
        changed.weights_sha256 == al.model_card(al.load_model(sharded, device="cpu")).weights_sha256
    )


def test_a_change_of_what_is_in_memory_is_noticed(tiny):
    model = stream(tiny("llama"))
    first = al.model_card(model).weights_sha256
    with torch.no_grad():
        model.ln_final.w[3] += 1
    assert al.model_card(model).weights_sha256 != first


def test_a_file_that_goes_away_or_shrinks_is_an_error(sharded):
    model = stream(sharded)
    for file in sharded.glob("*.safetensors"):
        file.rename(file.with_suffix(".moved"))
    with pytest.raises(CheckpointError, match="must not change"):
        model(TOKENS)
    for file in sharded.glob("*.moved"):
        file.rename(file.with_suffix(".safetensors"))
    assert torch.isfinite(model(TOKENS)).all()


# A matrix of one expert, by family.
_OF = "model.layers.1.{}.weight"
EXPERT = {
    "mixtral": _OF.format("block_sparse_moe.experts.2.w3"),
    "olmoe": _OF.format("mlp.experts.2.up_proj"),
}


@pytest.mark.parametrize("family", EXPERT)
def test_experts_that_stand_in_the_files_one_by_one(tiny, family):
    one, model = load_file(tiny(family) / "model.safetensors")[EXPERT[family]], stream(tiny(family))
    assert one.shape == (80, 48)
    with load_block(model.blocks[1]):
        assert torch.equal(model.blocks[1].mlp.experts[2].W_in.weight, one)
    # Parts and the whole of the matrices that are joined, beside two layers.
    gates = 4 * 2 * 80 * 48 * 4
    assert stream_of(model).loader.joined_bytes == gates
    plain = stream_of(stream(tiny("llama")))
    assert plain.loader.joined_bytes == 0
    layer = sum(p.numel() for p in model.blocks[0].parameters()) * 4
    matrix, ends = (
        max(p.numel() for p in model.blocks.parameters()) * 4,
        stream_of(model).resident_bytes,
    )
    assert stream_of(model).sizes.peak_bytes == 2 * layer + matrix + gates + ends


UP, NORM, JOINED = (
    "model.layers.1.mlp.up_proj.weight",
    "model.norm.weight",
    "model.layers.1.mlp.experts.gate_up_proj",
)
# Tensors that are put in (None: taken out) by name, and what is said of it.
DAMAGED = [
    ("llama", {UP: None}, InputError, f"no tensor '{UP}'"),
    ("llama", {NORM: torch.ones(7)}, CheckpointError, rf"{NORM} has shape \(7,\).*says \(48,\)"),
    (
        "llama",
        {UP: None, f"{UP}_blocks": torch.ones(80, 48)},
        InputError,
        r"Quantised weights.*Leave stream out",
    ),
    *((family, {one: None}, InputError, f"no tensor '{JOINED}'") for family, one in EXPERT.items()),
    *(
        (
            family,
            {one: torch.ones(79, 48)},
            CheckpointError,
            rf"{one} has shape .79, 48.*says .80, 48",
        )
        for family, one in EXPERT.items()
    ),
]


@pytest.mark.parametrize(("family", "change", "error", "said"), DAMAGED)
def test_a_tensor_that_is_missing_misshapen_or_packed_is_named(
    tmp_path, family, change, error, said
):
    file = save_tiny(family, tmp_path / "m") / "model.safetensors"
    tensors = {key: tensor.clone() for key, tensor in load_file(file).items()} | change
    save_file(
        {key: tensor for key, tensor in tensors.items() if tensor is not None},
        file,
        metadata={"format": "pt"},
    )
    with pytest.raises(error, match=said):
        stream(file.parent)


def test_what_cannot_be_streamed_is_said_before_anything_is_read(tiny, tiny_model, tmp_path):
    with raises(InputError, "stream", word="live"):
        stream(tiny_model("llama"))
    with raises(InputError, "stream", word=".gguf"):
        check_model("owner/repository/model.gguf", stream=True)
    with raises(InputError, "stream", word="bool"):
        check_model(str(tiny("llama")), stream="yes")
    directory = save_model(random_model(llama()), tmp_path / "old")
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    torch.save(tensors, directory / "pytorch_model.bin")  # noqa: TID251
    with raises(InputError, "stream", word=".bin"):
        stream(directory)
