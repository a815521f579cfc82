"""What the mapping does not cover is refused by name, before any weight is read."""

import dataclasses
import math

import pytest
import torch
import transformers

from anchorlens.errors import UnsupportedModelError
from anchorlens.models.audit import INERT, MAPPED
from anchorlens.models.mapping import hooked_config
from tests.models import tiny


def mapped(config):
    return hooked_config(config, "cpu", torch.float32, "x")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (tiny.llama(mlp_bias=True), "mlp_bias=True"),
        (tiny.llama(hidden_act="relu2"), "the activation 'relu2'"),
        (tiny.llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "rope of type 'dynamic'"),
        (
            tiny.llama(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
            "partial_rotary",
        ),
        (
            tiny.qwen2_yarn(rope_parameters={**tiny.YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 0.5}),
            "rope parameter mscale=0.7",
        ),
        (tiny.qwen2(rope_parameters=dict(tiny.LINEAR_ROPE)), "linear rope scaling together with sliding layers"),
        (tiny.gemma2(use_bidirectional_attention=True), "use_bidirectional_attention=True"),
        (tiny.gemma3(use_bidirectional_attention=True), "use_bidirectional_attention=True"),
        (
            tiny.gemma3(
                rope_parameters={
                    "full_attention": {**tiny.LLAMA3_ROPE},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                }
            ),
            "rope of type 'llama3' in its full layers",
        ),
        (tiny.gpt2(add_cross_attention=True), "add_cross_attention=True"),
        (tiny.gpt2(activation_function="quick_gelu"), "the activation 'quick_gelu'"),
        (tiny.neox(hidden_act="gelu_10"), "the activation 'gelu_10'"),
    ],
)
def test_features_without_a_counterpart_are_refused_by_name(config, named):
    with pytest.raises(UnsupportedModelError) as caught:
        mapped(config)
    assert named in str(caught.value)


def test_a_layer_type_without_a_counterpart_is_refused_by_name():
    config = tiny.qwen3(layer_types=["full_attention", "full_attention", "full_attention"])
    config.layer_types = ["full_attention", "chunked_attention", "full_attention"]
    with pytest.raises(UnsupportedModelError, match="layers of type 'chunked_attention'"):
        mapped(config)


def test_quantised_weights_are_refused_by_name():
    config = tiny.llama()
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(UnsupportedModelError, match="quantised weights \\(gptq\\)"):
        mapped(config)


def test_another_family_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match=r"Models of type 'opt' are not mapped.*gemma2.*llama"):
        mapped(transformers.OPTConfig())


def test_a_field_of_a_later_release_is_refused_unless_it_keeps_its_default():
    @dataclasses.dataclass
    class Later(transformers.LlamaConfig):
        attention_twist: float = 0.0

    assert mapped(Later(**tiny.SIZES)).n_heads == 4
    with pytest.raises(UnsupportedModelError, match=r"attention_twist=0\.5"):
        mapped(Later(**tiny.SIZES, attention_twist=0.5))


@pytest.mark.parametrize("kind", sorted(MAPPED))
def test_every_listed_field_exists_in_its_class(kind):
    config = transformers.AutoConfig.for_model(kind)
    fields = {field.name for field in dataclasses.fields(config)}
    # attention_bias and head_dim stand in the shared list; Mistral and Qwen 2 have them only as class constants, or not at all.
    assert MAPPED[kind] - fields <= {"attention_bias", "head_dim"}
    assert not MAPPED[kind] & INERT


def test_sizes_are_the_configurations_own():
    cfg = mapped(tiny.llama_untied())
    assert (cfg.d_head, cfg.n_key_value_heads, cfg.rotary_dim, cfg.attn_scale) == (20, 2, 20, math.sqrt(20))
    cfg = mapped(tiny.gemma2())
    assert (cfg.attn_scale, cfg.attn_scores_soft_cap, cfg.output_logits_soft_cap) == (math.sqrt(24), 3.0, 5.0)
    assert cfg.attn_types == ["local", "global", "local"]
    assert mapped(tiny.gpt2()).d_mlp == 80
    assert mapped(tiny.neox()).rotary_dim == 6


def test_the_published_target_models_map():
    """Sizes of Qwen3-32B and Llama-3.2-1B, as their config.json gives them."""
    qwen = transformers.Qwen3Config(
        hidden_size=5120, num_hidden_layers=64, num_attention_heads=64, num_key_value_heads=8, intermediate_size=25600,
        head_dim=128, rope_theta=1_000_000, max_position_embeddings=40960, sliding_window=None, rms_norm_eps=1e-6,
    )  # fmt: skip
    cfg = mapped(qwen)
    assert (cfg.n_layers, cfg.d_head, cfg.rotary_base, cfg.use_qk_norm, cfg.use_local_attn) == (64, 128, 1e6, True, False)
    llama = transformers.LlamaConfig(
        hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, intermediate_size=8192,
        head_dim=64, rope_theta=500_000.0, max_position_embeddings=131072, vocab_size=128256, tie_word_embeddings=True,
        rope_scaling={"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3",
                      "original_max_position_embeddings": 8192},
    )  # fmt: skip
    cfg = mapped(llama)
    assert (cfg.n_layers, cfg.rotary_base, cfg.NTK_by_parts_factor, cfg.NTK_original_ctx_len) == (16, 5e5, 32.0, 8192)
