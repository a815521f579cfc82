"""Families beyond those of the engine's own tests: each loads, is Hugging Face's model and has the
reference engine's numbers.
"""

import random
import runpy
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformer_lens import HookedTransformer, HookedTransformerConfig

from anchorlens.engine.choose_engine import choose_engine
from anchorlens.errors import UnsupportedModelError
from anchorlens.models import hf
from anchorlens.models.hooked.mapping import ARCHITECTURES
from anchorlens.models.load import adapt, load_model
from tests.engine.fuzz import KINDS
from tests.engine.make import random_rows
from tests.models.tiny import FURTHER_FAMILIES, apertus, gpt_oss, random_model, save_model
from tests.tiers import choose_cases
from tests.tokenizers_small import small_tokenizer

ROOT = Path(__file__).resolve().parents[2]
TRIAL = random_rows((20,), 5)[0]
# A change of a logarithm, a logit difference or a state that the reference engine sees.
SEEN = 1e-2


def random_hooked(**changes):
    """A HookedTransformer of the user's own, weights large enough that every part matters."""
    sizes = {
        "n_layers": 3,
        "d_model": 48,
        "n_heads": 4,
        "d_head": 12,
        "n_ctx": 64,
        "d_vocab": 420,
        "act_fn": "gelu",
    }
    model = HookedTransformer(
        HookedTransformerConfig(**(sizes | {"init_weights": False} | changes))
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(".w"):
                parameter.copy_(1 + 0.3 * noise)
            elif name.rpartition(".")[2].strip("_").startswith("b"):
                parameter.copy_(0.3 * noise)
            elif "embed" in name:
                parameter.copy_(0.7 * noise)
            else:
                parameter.copy_(1.3 * noise / parameter.shape[-2] ** 0.5)
    return model


# As the models that TransformerLens itself trained: without MLPs, with SoLU, with positions that
# only keys and queries see.
OWN = {
    "attn_only": {"attn_only": True, "normalization_type": "LNPre"},
    "solu": {"act_fn": "solu_ln", "d_mlp": 80},
    "shortformer": {"attn_only": True, "positional_embedding_type": "shortformer"},
}
# Measured by the reference engine, and why.
BY_ORACLE = {"shortformer": "shortformer positions"}


@pytest.fixture(scope="module")
def family_model(tiny_model):
    """One of ``FURTHER_FAMILIES``, or of ``OWN`` through load_model as a live model."""
    own = {}

    def make(family):
        if family not in OWN:
            return tiny_model(family)
        if family not in own:
            own[family] = load_model(
                random_hooked(**OWN[family]), tokenizer=small_tokenizer("byte", bos=False)
            )
        return own[family]

    return make


@pytest.mark.parametrize("family", sorted(FURTHER_FAMILIES | OWN))
def test_the_engine_that_is_chosen_gives_the_reference_numbers(family_model, family, recwarn):
    model = family_model(family)
    assert (model.anchorlens_card.parity is None) == (family in OWN)
    assert family in OWN or model.anchorlens_card.parity < 1e-3
    adapter = adapt(model)
    engine = choose_engine(adapter, "cone", TRIAL)
    if family in BY_ORACLE:
        assert engine.name == "reference"
        assert BY_ORACLE[family] in engine.reason
        return
    assert (engine.name, engine.reason) == ("cone", "")
    assert not [str(w.message) for w in recwarn if "engine" in str(w.message)]
    holds(adapter, family, {"swaps": range(2), "cuts": range(2)})


@pytest.mark.parametrize(
    "family",
    choose_cases(
        (), sorted((FURTHER_FAMILIES | OWN).keys() - BY_ORACLE.keys()), slow=("gpt_oss", "phi")
    ),
)
def test_many_random_batches(family_model, family):
    holds(adapt(family_model(family)), family, dict.fromkeys(KINDS, range(2, 7)))


def holds(adapter, family, cases):
    """The cone gives the reference engine's numbers on random batches, of which enough change
    something.
    """
    contrasts = []
    for kind, numbers in cases.items():
        for number in numbers:
            one = KINDS[kind](random.Random(f"{kind} {family} {number}"), adapter)
            assert one.off <= 1, f"{kind} {number}: {one}"
            contrasts.append(one.effect)
    assert sum(effect > SEEN for effect in contrasts) >= len(contrasts) / 4, contrasts


def test_a_model_without_mlps_has_no_mlp_out(family_model):
    assert adapt(family_model("attn_only")).sites == ("resid_pre", "resid_post", "attn_out")


def test_what_an_activation_keeps_beside_its_weights_comes_along():
    """Apertus's activation has a number that is no parameter, as checkpoints store it."""
    live = random_model(apertus())
    for layer in live.model.layers:
        layer.mlp.act_fn.beta.fill_(0.2)
    model = load_model(live, tokenizer=small_tokenizer("byte", bos=False))
    assert model.anchorlens_card.parity < 1e-3
    assert float(model.blocks[2].mlp.act_fn.beta) == pytest.approx(0.2)


# --- gpt-oss as it is published: experts packed in four bits
# ------------------------------------------------------------------

FOUR_BITS = torch.tensor(
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
)


def packed(directory):
    """A checkpoint with experts in MXFP4, and what these are in plain numbers, by name: [expert in
    out].
    """
    save_model(random_model(gpt_oss(hidden_size=64, intermediate_size=32)), directory)
    state = load_file(directory / "model.safetensors")
    generator, plain = torch.Generator().manual_seed(0), {}
    for name in [name for name in state if name.endswith(("gate_up_proj", "down_proj"))]:
        expert, inner, outer = state.pop(name).shape
        blocks = torch.randint(
            256, (expert, outer, inner // 32, 16), generator=generator, dtype=torch.uint8
        )
        scales = torch.randint(
            122, 126, (expert, outer, inner // 32), generator=generator, dtype=torch.uint8
        )
        state |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        # Two numbers a byte, the lower half first; a scale is a power of two whose zero is 127.
        numbers = torch.stack(
            [FOUR_BITS[(blocks & 15).long()], FOUR_BITS[(blocks >> 4).long()]], dim=-1
        ).flatten(-2)
        plain[name] = (
            (numbers * 2.0 ** (scales.float() - 127)[..., None]).flatten(-2).transpose(-1, -2)
        )
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    config = transformers.AutoConfig.from_pretrained(directory)
    config.quantization_config = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["lm_head", "model.embed_tokens"],
    }
    config.save_pretrained(directory)
    return plain


def test_packed_experts_are_unpacked(tmp_path, monkeypatch):
    plain = packed(tmp_path)
    asked, honest = [], hf._load

    def load(*args):
        asked.append(args[-1]["quantization_config"].dequantize)
        return honest(*args)

    monkeypatch.setattr(hf, "_load", load)
    model = load_model(tmp_path, device="cpu")
    assert asked == [True], "with kernels at hand transformers would leave them packed"
    assert model.anchorlens_card.parity < 1e-3
    gate_up, down = (
        plain[f"model.layers.1.mlp.experts.{name}"] for name in ("gate_up_proj", "down_proj")
    )
    expert = model.blocks[1].mlp.experts[2]
    assert torch.equal(expert.W_gate.weight, gate_up[2, :, ::2].T)
    assert torch.equal(expert.W_in.weight, gate_up[2, :, 1::2].T)
    assert torch.equal(expert.W_out.weight, down[2].T)


def test_other_quantised_weights_of_the_family_are_refused(tmp_path):
    packed(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.quantization_config["quant_method"] = "fp8"
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="fp8"):
        load_model(tmp_path)


# --- the page
# -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made():
    return runpy.run_path(str(ROOT / "docs" / "make_families.py"))


def cells(page):
    """The rows of its table."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [tuple(cell.strip(" `") for cell in line.split("|")[1:-1]) for line in lines[2:]]


def test_the_page_names_every_architecture_of_transformer_lens(made):
    """Fails at a release of TransformerLens that brings another, and where the page was not written
    again.
    """
    rows = cells(made["PAGE"].read_text(encoding="utf8"))
    assert {row[0] for row in rows} == made["registered"]()
    assert [row[:2] for row in rows] == [(row.architecture, row.example) for row in made["ROWS"]], (
        "run docs/make_families.py"
    )
    assert {row[0] for row in rows if row[2] == "yes"} == {
        *ARCHITECTURES.values(),
        "Gemma3ForConditionalGeneration",
    }
    assert {"LlamaForCausalLM", "mingpt", "neel", "T5ForConditionalGeneration"} < made[
        "registered"
    ](), "it reads TransformerLens"


@pytest.mark.slow
def test_the_page_is_what_the_script_writes(made):
    """The page equals the script's output except for the last digits of parity, which depend on the
    machine.
    """
    written, now = cells(made["PAGE"].read_text(encoding="utf8")), cells(made["page"]())
    assert [row[:3] + row[4:] for row in written] == [row[:3] + row[4:] for row in now]
    assert all(0 < float(row[3]) < 1e-3 for row in now if row[2] == "yes")
