"""Hashes that notice every change and nothing else."""

import hashlib
from copy import deepcopy

import pytest
import torch
import transformers
from transformer_lens import HookedTransformer, HookedTransformerConfig

from anchorlens.errors import InputError
from anchorlens.models import card as cards
from anchorlens.models.card import PRIME, _checksums, model_card, tokenizer_sha256, weights_sha256
from anchorlens.models.load import load_model
from tests.raised import raises
from tests.tokenizers_small import small_tokenizer


def slow_sums(tensor):
    """The definition in the docstring, entry by entry."""
    bits = (
        tensor.contiguous()
        .reshape(-1)
        .view({4: torch.int32, 2: torch.int16}[tensor.element_size()])
        .tolist()
    )
    return sum(bits) % 2**64, sum(b * (1 + i % 65521) for i, b in enumerate(bits)) % 2**64


@pytest.mark.parametrize("shape", [(3,), (7, 5), (PRIME,), (2, PRIME + 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checksums_follow_their_definition(shape, dtype):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert _checksums(tensor) == slow_sums(tensor)


def test_large_tensors_are_hashed_in_parts_as_they_are_whole(monkeypatch):
    table = torch.randn(300, 700, generator=torch.Generator().manual_seed(0)).T
    told = slow_sums(table)
    for piece in (cards.PIECE, 1, 1000, 65_521, 70_000):
        monkeypatch.setattr(cards, "PIECE", piece)
        assert _checksums(table) == told


def test_checksums_see_the_numbers_and_not_the_memory_layout():
    tensor = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    assert _checksums(tensor.T) == _checksums(tensor.T.contiguous())
    assert _checksums(tensor.T) != _checksums(tensor)


def test_weights_hash_notices_one_changed_number_and_a_swap_and_no_rotary_table(tiny, tiny_model):
    model = load_model(tiny("llama"), device="cpu")
    before, weight = weights_sha256(model), model.blocks[1].mlp.W_in
    assert before == tiny_model("llama").anchorlens_card.weights_sha256
    model.blocks[0].attn._extend_rotary_embeddings(300)
    assert weights_sha256(model) == before
    with torch.no_grad():
        weight[3, 4] = torch.nextafter(weight[3, 4], torch.tensor(9.0))
        assert weights_sha256(model) != before
        weight.copy_(tiny_model("llama").blocks[1].mlp.W_in)
        assert weights_sha256(model) == before
        weight[[0, 1]] = weight[[1, 0]]
        assert weights_sha256(model) != before


def fresh_sha256(model):
    """Without what was hashed before."""
    return cards._digest(cards._lines(dict(model.named_parameters())))


WRITES = {
    "in place": lambda weight: weight.add_(1.0),
    "data": lambda weight: weight.data[0].mul_(2.0),  # torch's version counter does not see it
    "numpy": lambda weight: weight.detach().numpy().__setitem__((1, 2), 0.5),
    "rows swapped": lambda weight: weight.data.copy_(weight.data.flip(0)),
    "other memory": lambda weight: setattr(weight, "data", weight.data + 1.0),
}


@pytest.mark.parametrize("made_by", ["us", "the user"])
def test_no_way_of_writing_weights_leaves_an_old_hash(tiny, made_by):
    model = load_model(tiny("llama"), device="cpu")
    if made_by == "the user":
        del model.anchorlens_card
        model.blocks[1].mlp.W_in = torch.nn.Parameter(
            model.blocks[1].mlp.W_in.detach().contiguous()
        )
    before, weight = model_card(model), model.blocks[1].mlp.W_in
    assert model_card(model).weights_sha256 == before.weights_sha256 == fresh_sha256(model)
    kept = weight.detach().clone()
    for way, write in WRITES.items():
        with torch.no_grad():
            write(weight)
        after = model_card(model)
        assert after.weights_sha256 == fresh_sha256(model) != before.weights_sha256, way
        assert (after.name, after.parity, after.revision) == (
            before.name,
            None,
            None,
        ), "parity was that of the loaded weights"
        weight.data.copy_(kept)
        assert model_card(model) == before, way


def test_what_was_hashed_before_is_read_once_in_the_order_of_its_memory(tiny_model, monkeypatch):
    model, reads, honest = tiny_model("llama"), [], cards._lines
    monkeypatch.setattr(
        cards, "_lines", lambda tensors: honest(reads.extend(tensors.values()) or tensors)
    )
    assert model_card(model) is model.anchorlens_card
    assert reads == []  # nothing was written
    with torch.no_grad():
        model.blocks[1].mlp.W_in.add_(0.0)
    assert model_card(model) is model.anchorlens_card
    assert len(reads) == len(list(model.parameters()))
    assert all(tensor.is_contiguous() for tensor in reads)
    assert not all(parameter.is_contiguous() for parameter in model.parameters()), (
        "else this shows nothing"
    )


def test_a_name_costs_no_hash(tiny, monkeypatch):
    model = load_model(tiny("llama"), device="cpu")
    monkeypatch.setattr(cards, "_lines", lambda _tensors: pytest.fail("weights were read"))
    assert cards.name_of(model) == "llama"
    del model.anchorlens_card
    model.cfg.model_name = "mine"
    assert cards.name_of(model) == "mine"


def test_tokenizer_hash_ignores_padding_and_notices_bos():
    plain = deepcopy(
        small_tokenizer("byte", bos=False)
    )  # it is changed, and the other is everybody's
    before = tokenizer_sha256(plain)
    (
        plain(["a", "bb bb"], padding="longest", truncation=True, max_length=4, return_tensors=None)
        if plain.pad_token
        else None
    )
    plain("a b c", truncation=True, max_length=2)
    assert tokenizer_sha256(plain) == before
    assert tokenizer_sha256(small_tokenizer("byte", bos=True)) != before
    assert tokenizer_sha256(small_tokenizer("byte", bos=False, chat=True)) != before
    plain.add_tokens(["Ljubljana"])
    assert tokenizer_sha256(plain) != before


def test_card_of_a_loaded_model(tiny, tiny_model):
    card = model_card(tiny_model("llama"))
    assert card is tiny_model("llama").anchorlens_card
    hf = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"))
    assert card.n_params == sum(p.numel() for p in hf.parameters())
    expected = {
        "name": "llama",
        "source": "directory",
        "revision": None,
        "architecture": "LlamaForCausalLM",
        "n_layers": 3,
        "d_model": 48,
        "n_heads": 4,
        "device": "cpu",
        "dtype": "float32",
        "adds_bos": False,
    }
    assert {key: card.to_dict()[key] for key in expected} == expected
    assert (
        len(card.weights_sha256) == len(card.tokenizer_sha256) == len(hashlib.sha256().hexdigest())
    )


def test_card_of_a_model_that_somebody_else_made(tiny):
    model = load_model(tiny("gpt2"), device="cpu")
    known = model.anchorlens_card
    del model.anchorlens_card
    card = model_card(model)
    assert (card.source, card.revision, card.parity) == ("hooked", None, None)
    assert card.weights_sha256 == known.weights_sha256
    assert load_model(model) is model
    assert model.anchorlens_card == card
    model.tokenizer = None
    with raises(InputError, "tokenizer"):
        load_model(model)


# Parts of large weights, as people ablate them.
ABLATIONS = {
    "row": lambda model: model.blocks[0].mlp.W_in.data[7].zero_(),
    "column": lambda model: model.blocks[0].mlp.W_in.data[:, 901].zero_(),
    "scaled row": lambda model: model.blocks[0].mlp.W_out.data[1203].mul_(1.0001),
    "head": lambda model: model.blocks[0].attn.W_O.data[2].zero_(),
    "direction of a head": lambda model: model.blocks[0].attn.W_Q.data[3, :, 5].zero_(),
    "unembedding of a token": lambda model: model.unembed.W_U.data[:, 29_999].add_(1.0),
    "entry of a norm": lambda model: model.ln_final.w.data[17].mul_(2.0),
}


@pytest.mark.slow
def test_ablations_through_data_are_seen_without_reading_all_weights(monkeypatch):
    sizes = {"n_layers": 1, "d_model": 300, "n_heads": 6, "d_head": 50, "d_mlp": 1500}
    others = {"d_vocab": 30_000, "n_ctx": 8, "act_fn": "gelu", "normalization_type": "LN"}
    model = HookedTransformer(HookedTransformerConfig(**sizes, **others, seed=0))
    before = weights_sha256(model)
    reads = []
    honest = cards._lines
    monkeypatch.setattr(cards, "_lines", lambda some: (reads.append(1), honest(some))[1])
    for name, write in ABLATIONS.items():
        kept = {key: value.detach().clone() for key, value in model.named_parameters()}
        reads.clear()
        assert weights_sha256(model) == before
        # Nothing but the lines of a streamed model, of which there are none.
        assert reads == [], name
        write(model)
        assert weights_sha256(model) != before, name
        for key, value in model.named_parameters():
            value.data.copy_(kept[key])
        assert weights_sha256(model) == before, name
