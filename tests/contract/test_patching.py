"""anchorlens.patching on bridges of both versions of TransformerLens, beside its own functions."""

import copy
import inspect
import warnings

import pytest
import torch
import transformer_lens.patching as theirs
from transformers import GraniteConfig

from anchorlens import patching as ours
from anchorlens.errors import InputError, ShapeError
from anchorlens.models.adapter import patching_result_class
from anchorlens.models.load import adapt, load_model
from tests.contract.models import BACKENDS, adapter_of, hugging_face, recurrent, tokenizer
from tests.engine.make import random_rows
from tests.models.tiny import VOCAB, random_model
from tests.raised import raises
from tests.tiers import choose_cases

ALL = sorted(name for name in ours.__all__ if name.startswith("get_act_patch_"))
# Functions of a source head, which take two caches.
DIRECT = [name for name in ALL if "direct_path" in name]
FUNCTIONS = sorted({*ALL} - {*DIRECT})
HAS_DIRECT = hasattr(theirs, DIRECT[0])
needs_direct = pytest.mark.skipif(
    not HAS_DIRECT, reason="transformer-lens before 4.3 has no direct paths in this module"
)
HAS_RESULT = patching_result_class() is not None
needs_result = pytest.mark.skipif(
    not HAS_RESULT, reason="transformer-lens 3.9 has no PatchingResult"
)


def setting(family):
    """Bridge, corrupted tokens and clean cache of two prompts of four tokens."""
    model = adapter_of(family, "bridge").model
    clean, corrupted = (torch.tensor(random_rows((4, 4), seed)) for seed in (3, 4))
    with torch.no_grad():
        return model, corrupted, model.run_with_cache(clean)[1]


def public_functions(module):
    """Names of the functions that a module defines, without those that it imports."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and not isinstance(value, type)
        and getattr(value, "func", value).__module__.startswith(module.__name__)
    }


def test_all_public_functions_of_transformer_lens_are_there():
    more = set() if HAS_DIRECT else {*DIRECT}
    assert public_functions(ours) == public_functions(theirs) | more
    assert public_functions(ours) == {*ours.__all__}


@needs_direct
@pytest.mark.parametrize("name", DIRECT)
def test_direct_paths_have_the_arguments_of_transformer_lens(name):
    own, wanted = (inspect.signature(getattr(module, name)) for module in (ours, theirs))
    assert list(own.parameters) == list(wanted.parameters)
    for parameter in own.parameters.values():
        assert parameter.default == wanted.parameters[parameter.name].default
        assert parameter.kind == wanted.parameters[parameter.name].kind


def mean_logit(logits):
    return logits[:, -1, 7].mean()


def each_logit(logits):
    return logits[:, -1, 7] - logits[:, -2, 5]


def each_log_prob(logits):
    return logits.log_softmax(-1)[:, -1, 3]


def both(name, family, *metric, **options):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            getattr(module, name)(*setting(family), *metric, **options) for module in (ours, theirs)
        ]


def close(found, wanted):
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < 1e-4 * float(wanted.max() - wanted.min())


@pytest.mark.sampled(9)
@pytest.mark.slow
@pytest.mark.parametrize(
    "family", choose_cases(["llama"], ["gpt2", "llama", "gemma3"], slow=["gemma3"])
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_transformer_lens(name, family):
    close(*both(name, family, mean_logit))


def rank(logits):
    return (logits[:, -1] > logits[:, -1, 7:8]).sum().float()


def peak(logits):
    return logits[..., 11].max()


def writes(logits):
    logits[..., 7] = -1e9
    logits[:, -1] -= logits[:, -1].mean(-1, keepdim=True)
    return logits[:, -1].log_softmax(-1)[:, 5].mean()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("metric", [rank, peak, writes], ids=lambda metric: metric.__name__)
@pytest.mark.parametrize(
    "family", choose_cases(["llama"], ["gpt2", "llama", "gemma3"], slow=["gemma3"])
)
@pytest.mark.parametrize(
    "name", ["resid_pre", "mlp_out", "attn_head_k_by_pos", "attn_head_pattern_all_pos"]
)
def test_metrics_that_move_in_steps_or_write_into_the_logits(name, family, metric):
    found, wanted = both(f"get_act_patch_{name}", family, metric)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@needs_result
@pytest.mark.parametrize(
    "name",
    [
        "get_act_patch_resid_pre",
        "get_act_patch_attn_head_k_by_pos",
        "get_act_patch_attn_head_by_pos_every",
    ],
)
@pytest.mark.parametrize("metric", [each_logit, {"logit": each_logit, "log_prob": each_log_prob}])
@pytest.mark.parametrize(
    "options",
    [
        {"reduce": "none"},
        {"reduce": "none", "baseline": True},
        {"reduce": "mean", "baseline": True},
    ],
)
def test_results_of_each_example(name, metric, options):
    found, wanted = both(name, "llama", metric, **options)
    assert type(found) is type(wanted)
    close(found.values, wanted.values)
    for field in ("axis_names", "metric_names", "reduced", "has_metric_axis", "patch_type_names"):
        assert getattr(found, field) == getattr(wanted, field), field
    assert found.index_df.equals(wanted.index_df)
    assert (found.baseline is None) is (wanted.baseline is None)
    if wanted.baseline is not None:
        torch.testing.assert_close(found.baseline, wanted.baseline, atol=1e-4, rtol=1e-4)


def test_the_mean_over_examples_is_a_tensor():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the cone engine is used, also after run_with_cache
        found = ours.get_act_patch_resid_pre(*setting("llama"), each_logit, reduce="mean")
    with torch.no_grad():
        wanted = ours.get_act_patch_resid_pre(
            *setting("llama"), lambda logits: each_logit(logits).mean()
        )
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("metric", "options", "error", "message"),
    [
        (mean_logit, {"reduce": "sum"}, InputError, "reduce='sum': unknown"),
        ({}, {}, InputError, "an empty mapping"),
        (
            mean_logit,
            {"reduce": "mean"},
            ShapeError,
            r"returned shape \(\). Return \[batch\] = \(2,\)",
        ),
        (each_logit, {}, ShapeError, r"returned shape \(2,\). Return a scalar"),
        pytest.param(
            each_logit,
            {"reduce": "none"},
            InputError,
            "TransformerLens 3.9 does not have",
            marks=pytest.mark.skipif(HAS_RESULT, reason="transformer-lens 4.x has it"),
        ),
    ],
)
def test_errors(metric, options, error, message):
    with pytest.raises(error, match=message):
        ours.get_act_patch_resid_pre(*setting("llama"), metric, **options)


def direct_setting(family, backend="bridge", model=None):
    """Model, corrupted tokens, and the caches of two clean and two corrupted prompts that begin
    with two equal tokens.
    """
    model = model or adapter_of(family, backend).model
    clean, corrupted = (torch.tensor(random_rows((6, 6), seed)) for seed in (3, 4))
    corrupted[:, :2] = clean[:, :2]
    with torch.no_grad():
        caches = [model.run_with_cache(tokens)[1] for tokens in (clean, corrupted)]
        ends = [float(loss(model(tokens))) for tokens in (clean, corrupted)]
    return (model, corrupted, *caches), abs(ends[0] - ends[1])


def loss(logits):
    """A metric of all logits."""
    return logits.float().log_softmax(-1)[..., 11].mean() + logits[0, 2, 4].float()


def small_peak(logits):
    logits[..., 7] = -1e9
    return logits[..., 11].max()


@needs_direct
@pytest.mark.parametrize(
    ("family", "component"),
    [
        *(("gpt2", component) for component in "qkv"),
        ("llama", "q"),
        *(
            pytest.param(family, component, marks=pytest.mark.slow)
            for family, component in (("neox", "k"), ("neox", "v"), ("qwen3_sliding", "q"))
        ),
    ],
)
def test_direct_paths_are_those_of_transformer_lens(family, component):
    args, spread = direct_setting(family)
    for metric, source in ((loss, (0, 3)), (small_peak, (1, 0)), (loss, (2, 1))):
        found, wanted = (
            module.get_act_patch_direct_path(*args, metric, *source, component, verbose=False)
            for module in (ours, theirs)
        )
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        assert float((found - wanted).abs().max()) < 1e-4 * spread
        assert torch.equal(found == 0, wanted == 0)


@needs_direct
def test_direct_paths_from_all_sources_are_those_of_transformer_lens():
    args, spread = direct_setting("gpt2")
    found, wanted = (
        module.get_act_patch_direct_path_all_sources(*args, loss, "v", verbose=False)
        for module in (ours, theirs)
    )
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert float((found - wanted).abs().max()) < 1e-4 * spread


@needs_direct
def test_direct_paths_in_bfloat16_are_within_the_rounding_of_transformer_lens():
    """Both differ from a float32 run with the same weights by as much."""
    half = copy.deepcopy(hugging_face("gpt2")).bfloat16()
    settings = [
        direct_setting("gpt2", model=load_model(hf, device="cpu", tokenizer=tokenizer()))[0]
        for hf in (half, copy.deepcopy(half).float())
    ]
    for component in "qkv":
        found, wanted = (
            module.get_act_patch_direct_path(*settings[0], loss, 0, 2, component, verbose=False)
            for module in (ours, theirs)
        )
        right = theirs.get_act_patch_direct_path(*settings[1], loss, 0, 2, component, verbose=False)
        gaps = [float((one - right).abs().max()) for one in (found, wanted)]
        assert gaps[0] <= 2 * gaps[1]


@needs_direct
@pytest.mark.parametrize(("family", "component"), [("llama", "k"), ("gemma3", "q")])
def test_direct_paths_that_transformer_lens_refuses(family, component):
    """The result is that of hooks on the input of one head."""
    args, spread = direct_setting(family)
    with pytest.raises(ValueError, match="unsupported here"):
        theirs.get_act_patch_direct_path(*args, loss, 0, 2, component)
    check_by_hooks(args, spread, component, source=(0, 2))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("component", ["q", "k", "v"])
@pytest.mark.parametrize(
    "family", choose_cases(["llama"], ["gpt2", "llama", "qwen3", "gemma3"], slow=["gemma3"])
)
def test_direct_paths_are_those_of_hooks_on_the_input_of_one_head(family, component, backend):
    check_by_hooks(*direct_setting(family, backend), component, source=(0, 2))


@torch.no_grad()
def check_by_hooks(args, spread, component, source):
    """Compare with the change added to the stream that one head reads, for every pair."""
    model, corrupted, clean_cache, corrupted_cache = args
    layer, head = source
    found = ours.get_act_patch_direct_path(*args, loss, *source, component, verbose=False)
    wanted = torch.zeros_like(found)
    with adapt(model).blocks().load(layer) as block:
        shares = [
            block.head_shares(cache[f"blocks.{layer}.attn.hook_z"].flatten(0, 1))
            for cache in (clean_cache, corrupted_cache)
        ]
    change = (shares[0] - shares[1])[:, head].unflatten(0, corrupted.shape)
    model.set_use_split_qkv_input(True)
    try:
        for to_layer in range(layer + 1, len(found)):
            for to_head in range(found.shape[1]):
                names = (
                    f"blocks.{to_layer}.{part}hook_{component}_input" for part in ("", "attn.")
                )
                name = next(name for name in names if name in model.hook_dict)

                def add(value, hook, to_head=to_head):
                    out = value.clone()
                    out[:, :, to_head] += change
                    return out

                logits = model.run_with_hooks(corrupted, fwd_hooks=[(name, add)])
                wanted[to_layer, to_head] = loss(logits)
    finally:
        model.set_use_split_qkv_input(False)
    assert float((found - wanted).abs().max()) < 1e-4 * spread
    assert found[layer + 1].std() > 1e-4 * spread


def test_direct_paths_of_a_bridge_in_training_mode():
    args, _ = direct_setting("gpt2")
    args[0].train()
    try:
        with raises(InputError, "model"):
            ours.get_act_patch_direct_path(*args, loss, 0, 1)
    finally:
        args[0].eval()


@pytest.mark.parametrize("part", ["GatedDeltaNetBridge", "SSM2MixerBridge"])
def test_direct_paths_need_attention_alone_in_every_later_block(part):
    _, adapter = recurrent(part)
    tokens = torch.tensor(random_rows((6,), 3))
    with torch.no_grad():
        cache = adapter.model.run_with_cache(tokens)[1]
    with raises(InputError, "model"):
        ours.get_act_patch_direct_path(adapter.model, tokens, cache, cache, loss, 0, 1)


def test_direct_paths_in_blocks_that_scale_what_attention_adds():
    """A block of Granite with a scale is one whose output weights are smaller."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB}
    scaled = random_model(GraniteConfig(**sizes, **heads, residual_multiplier=0.3))
    plain = random_model(GraniteConfig(**sizes, **heads, residual_multiplier=1.0))
    plain.load_state_dict(scaled.state_dict())
    for name, weight in plain.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data *= 0.3
    found = []
    for hf in (scaled, plain):
        model = load_model(hf, device="cpu", backend="bridge", tokenizer=tokenizer())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*one forward pass per cell")
            args, spread = direct_setting("granite", model=model)
            found.append(ours.get_act_patch_direct_path(*args, loss, 0, 2, verbose=False))
    assert float((found[0] - found[1]).abs().max()) < 1e-4 * spread
    assert found[0][1].std() > 1e-4 * spread
