"""Features without a mapping are refused by name before weights are read."""

import dataclasses
import math
import re
from copy import deepcopy

import pytest
import torch
import transformers

from anchorlens.errors import UnsupportedModelError
from anchorlens.models.hooked.audit import INERT, MAPPED
from anchorlens.models.hooked.mapping import make_hooked_config
from tests.models import tiny

HALF_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
FULL_LLAMA3 = {"full_attention": tiny.LLAMA3_ROPE, "sliding_attention": tiny.DEFAULT_ROPE}
YARN_EVERYWHERE = dict.fromkeys(("full_attention", "sliding_attention"), tiny.YARN_ROPE)
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 3,
    "long_factor": [2.0] * 3,
}


def mapped(config):
    return make_hooked_config(config, "cpu", torch.float32, "x")


def with_field(config, **fields):
    """Set fields that the configuration class would refuse."""
    vars(config).update(fields)
    return config


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (tiny.llama(mlp_bias=True), "mlp_bias=True"),
        (tiny.llama(hidden_act="relu2"), "the activation 'relu2'"),
        (
            tiny.llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "rope of type 'dynamic'",
        ),
        (tiny.llama(rope_parameters=HALF_ROPE), "partial_rotary"),
        (
            tiny.qwen2_yarn(
                rope_parameters=tiny.YARN_ROPE | {"mscale": 0.7, "mscale_all_dim": 0.5}
            ),
            "rope parameter mscale=0.7",
        ),
        (
            tiny.qwen2(rope_parameters=dict(tiny.LINEAR_ROPE)),
            "linear rope scaling together with sliding layers",
        ),
        (tiny.gemma2(use_bidirectional_attention=True), "use_bidirectional_attention=True"),
        (tiny.gemma3(use_bidirectional_attention=True), "use_bidirectional_attention=True"),
        (
            tiny.gemma3(rope_parameters=deepcopy(FULL_LLAMA3)),
            "rope of type 'llama3' in full layers",
        ),
        (tiny.gpt2(add_cross_attention=True), "add_cross_attention=True"),
        (tiny.gpt2(activation_function="quick_gelu"), "the activation 'quick_gelu'"),
        (tiny.neox(hidden_act="gelu_10"), "the activation 'gelu_10'"),
        (tiny.opt(do_layer_norm_before=False), "do_layer_norm_before=False"),
        (tiny.opt(word_embed_proj_dim=24), "word_embed_proj_dim=24"),
        (tiny.opt(enable_bias=False), "enable_bias=False"),
        (tiny.gptj(rotary_dim=0), "rotary_dim=0"),
        (
            tiny.bloom(apply_residual_connection_post_layernorm=True),
            "apply_residual_connection_post_layernorm=True",
        ),
        (tiny.phi(num_key_value_heads=2), "num_key_value_heads=2 for 4 heads"),
        (tiny.phi(qk_layernorm=True), "qk_layernorm=True"),
        (tiny.phi3(rope_parameters=LONGROPE), "rope of type 'longrope'"),
        (tiny.olmo(num_key_value_heads=2), "num_key_value_heads=2 for 4 heads"),
        (tiny.olmo(attention_bias=True), "attention_bias=True"),
        (tiny.mixtral(rope_parameters=HALF_ROPE), "partial_rotary"),
        (tiny.gpt_oss(swiglu_limit=5.0), "swiglu_limit=5.0"),
        (
            tiny.olmo3(rope_parameters=deepcopy(YARN_EVERYWHERE)),
            "rope of type 'yarn' in sliding layers",
        ),
        (
            with_field(tiny.qwen3(), layer_types=["full_attention", "chunked_attention"]),
            "layers of type 'chunked_attention'",
        ),
        (
            with_field(tiny.llama(), quantization_config={"quant_method": "gptq", "bits": 4}),
            "quantised weights (gptq)",
        ),
        (transformers.T5Config(), "x: models of type 't5' are not mapped"),
    ],
)
def test_features_without_a_counterpart_are_refused_by_name(config, named):
    with pytest.raises(UnsupportedModelError, match=re.escape(named)) as caught:
        mapped(config)
    assert "t5" not in named or re.search("llama.*pass it to load_model", str(caught.value))


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
    # attention_bias and head_dim stand in the shared list; Mistral and Qwen 2 have them only as
    # class constants, or not at all.
    assert MAPPED[kind] - fields <= {"attention_bias", "head_dim"}
    assert not MAPPED[kind] & INERT


def test_sizes_are_the_configurations_own():
    cfg = mapped(tiny.llama_untied())
    assert (cfg.d_head, cfg.n_key_value_heads, cfg.rotary_dim, cfg.attn_scale) == (
        20,
        2,
        20,
        math.sqrt(20),
    )
    cfg = mapped(tiny.gemma2())
    assert (cfg.attn_scale, cfg.attn_scores_soft_cap, cfg.output_logits_soft_cap) == (
        math.sqrt(24),
        3.0,
        5.0,
    )
    assert cfg.attn_types == ["local", "global", "local"]
    assert mapped(tiny.gpt2()).d_mlp == 80
    assert mapped(tiny.neox()).rotary_dim == 6
    assert (mapped(tiny.phi3()).rotary_dim, mapped(tiny.gptj()).rotary_dim) == (6, 8)
    assert mapped(tiny.olmo3()).attn_types == ["local", "global", "local"]
    assert mapped(tiny.bloom()).n_ctx == 2048
    assert (mapped(tiny.olmoe()).norm_topk_prob, mapped(tiny.mixtral()).norm_topk_prob) == (
        False,
        True,
    )


def test_the_published_target_models_map():
    """Sizes of Qwen3-32B and Llama-3.2-1B, as their config.json gives them."""
    qwen = transformers.Qwen3Config(
        hidden_size=5120,
        num_hidden_layers=64,
        num_attention_heads=64,
        num_key_value_heads=8,
        intermediate_size=25600,
        head_dim=128,
        rope_theta=1_000_000,
        max_position_embeddings=40960,
        sliding_window=None,
        rms_norm_eps=1e-6,
    )
    cfg = mapped(qwen)
    assert (cfg.n_layers, cfg.d_head, cfg.rotary_base, cfg.use_qk_norm, cfg.use_local_attn) == (
        64,
        128,
        1e6,
        True,
        False,
    )
    llama = transformers.LlamaConfig(
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        head_dim=64,
        rope_theta=500_000.0,
        max_position_embeddings=131072,
        vocab_size=128256,
        tie_word_embeddings=True,
        rope_scaling={
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "rope_type": "llama3",
            "original_max_position_embeddings": 8192,
        },
    )
    cfg = mapped(llama)
    assert (cfg.n_layers, cfg.rotary_base, cfg.NTK_by_parts_factor, cfg.NTK_original_ctx_len) == (
        16,
        5e5,
        32.0,
        8192,
    )


def test_further_published_models_map():
    """Phi 2, gpt-oss-20b, Olmo 3 7B, Bloom 560m and Gemma 2b: names and places of fields as older
    releases wrote them.
    """
    phi = transformers.PhiConfig(
        hidden_size=2560,
        intermediate_size=10240,
        num_hidden_layers=32,
        num_attention_heads=32,
        partial_rotary_factor=0.4,
        rope_theta=10000.0,
        rope_scaling=None,
        embd_pdrop=0.0,
        resid_pdrop=0.1,
        max_position_embeddings=2048,
    )
    cfg = mapped(phi)
    assert (cfg.d_head, cfg.rotary_dim, cfg.rotary_base, cfg.parallel_attn_mlp, cfg.act_fn) == (
        80,
        32,
        1e4,
        True,
        "gelu_new",
    )
    yarn = {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    }
    oss = transformers.GptOssConfig(
        hidden_size=2880,
        num_hidden_layers=24,
        num_local_experts=32,
        num_experts_per_tok=4,
        head_dim=64,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 12,
        rope_theta=150000,
        router_aux_loss_coef=0.9,
        rope_scaling=yarn | {"original_max_position_embeddings": 4096},
        max_position_embeddings=131072,
    )
    cfg = mapped(oss)
    assert (cfg.num_experts, cfg.experts_per_token, cfg.window_size, cfg.use_attention_sinks) == (
        32,
        4,
        128,
        True,
    )
    assert (cfg.rotary_base, cfg.yarn_truncate, cfg.yarn_factor) == (150000.0, False, 32.0)
    assert cfg.yarn_attention_factor == pytest.approx(0.1 * math.log(32) + 1)
    olmo = transformers.Olmo3Config(
        hidden_size=4096,
        num_hidden_layers=32,
        rope_theta=500000,
        sliding_window=4096,
        max_position_embeddings=65536,
        rope_scaling={
            **yarn,
            "factor": 8.0,
            "attention_factor": 1.2079,
            "original_max_position_embeddings": 8192,
            "truncate": None,
        },
    )
    cfg = mapped(olmo)
    assert (cfg.rotary_base, cfg.rotary_base_local, cfg.yarn_global_attn_only, cfg.yarn_factor) == (
        5e5,
        5e5,
        True,
        8.0,
    )
    assert cfg.attn_types == ["local", "local", "local", "global"] * 8
    bloom = transformers.BloomConfig(
        n_embed=1024, n_layer=24, num_attention_heads=16, seq_length=4096, n_inner=None
    )
    cfg = mapped(bloom)
    assert (cfg.d_model, cfg.d_mlp, cfg.n_ctx, cfg.positional_embedding_type) == (
        1024,
        4096,
        4096,
        "alibi",
    )
    gemma = transformers.GemmaConfig(
        hidden_act="gelu", head_dim=256, num_key_value_heads=1, num_attention_heads=8
    )
    cfg = mapped(gemma)
    assert (cfg.act_fn, cfg.attn_scale, cfg.use_normalization_before_and_after) == (
        "gelu_pytorch_tanh",
        16.0,
        False,
    )
