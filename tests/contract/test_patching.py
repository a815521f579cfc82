"""anchorlens.patching on bridges of both versions of TransformerLens, beside its own functions."""

import warnings

import pytest
import torch
import transformer_lens.patching as theirs

from anchorlens import patching as ours
from anchorlens.errors import InputError, ShapeError
from anchorlens.models.backend import patching_result_class
from tests.contract.models import adapter_of
from tests.engine.make import random_rows
from tests.tiers import fast

FUNCTIONS = sorted(name for name in ours.__all__ if name.startswith("get_act_patch_"))
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


@pytest.mark.parametrize("family", fast(["llama"], ["gpt2", "llama", "gemma3"]))
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


@pytest.mark.parametrize("metric", [rank, peak, writes], ids=lambda metric: metric.__name__)
@pytest.mark.parametrize("family", fast(["llama"], ["gpt2", "llama", "gemma3"]))
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
