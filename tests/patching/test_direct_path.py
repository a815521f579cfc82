"""Direct paths beside hooks on the streams that queries, keys and values read."""

import warnings

import pytest
import torch

from anchorlens import patching
from anchorlens.errors import InputError, ShapeError
from anchorlens.models.load import adapt, load_model
from tests.engine.make import random_rows
from tests.raised import raises
from tests.tiers import choose_cases

SHAPE = (2, 7)
Z = "blocks.0.attn.hook_z"
# Plain and grouped queries; parallel blocks; norms of queries, behind attention, and only there.
FAMILIES = ["gpt2", "llama", "neox", "qwen3", "gemma2", "gemma3", "olmo2"]


def last(logits):
    return (logits[:, -1, 7] - logits[:, -1, 9]).mean()


def everything(logits):
    return logits.float().log_softmax(-1)[..., 11].mean() + logits[0, 2, 4]


def peak(logits):
    return logits[..., 11].max()


def writes(logits):
    logits[..., 7] = -1e9
    return logits[:, -1].log_softmax(-1)[:, 5].mean()


def rank(logits):
    return (logits[:, -1] > logits[:, -1, 7:8]).sum().float()


def run(model, first_difference=2, shape=SHAPE):
    """Tokens of both runs, and their caches."""
    clean = torch.tensor(random_rows((shape[1],) * shape[0], 3))
    corrupted = torch.tensor(random_rows((shape[1],) * shape[0], 4))
    corrupted[:, :first_difference] = clean[:, :first_difference]
    with torch.no_grad():
        caches = [model.run_with_cache(tokens)[1] for tokens in (clean, corrupted)]
    return clean, corrupted, *caches


def written(model, cache, layer, head):
    """What a head adds to the stream, in float32; behind a norm, at the scale of all heads."""
    attn = model.blocks[layer].attn
    z = cache[f"blocks.{layer}.attn.hook_z"].float()
    parts = torch.einsum("bphd,hdm->bphm", z, attn.W_O.float())
    part = parts[:, :, head]
    normed = cache[f"blocks.{layer}.hook_attn_out"].float()
    total = parts.sum(2) + attn.b_O.float()
    if torch.allclose(total, normed, atol=0.05 * float(normed.std())):
        return part
    return part * (normed / total)  # an RMS norm scales every entry


@torch.no_grad()
def add_to_input(model, corrupted, change, to, component):
    """Logits with a change added to the stream that queries, keys or values of one head read."""

    def add(value, hook):
        out = value.clone()
        out[:, :, to[1]] = (out[:, :, to[1]].float() + change).to(value.dtype)
        return out

    model.set_use_split_qkv_input(True)
    try:
        name = f"blocks.{to[0]}.hook_{component}_input"
        return model.run_with_hooks(corrupted, fwd_hooks=[(name, add)])
    finally:
        model.set_use_split_qkv_input(False)


@torch.no_grad()
def by_hooks(model, corrupted, clean_cache, corrupted_cache, metric, source, to, component):
    """The metric of one pair."""
    change = written(model, clean_cache, *source) - written(model, corrupted_cache, *source)
    return float(metric(add_to_input(model, corrupted, change, to, component)))


def measure(model, metric, source, component="q", **options):
    """Return a grid, the same pairs by hooks, and the metric's range."""
    clean, corrupted, *caches = run(model, **options)
    args = (model, corrupted, *caches, metric)
    found = patching.get_act_patch_direct_path(*args, *source, component, verbose=False)
    n_heads = adapt(model).n_heads(component)
    assert found.shape == (model.cfg.n_layers, n_heads)
    assert not found[: source[0] + 1].any()
    wanted = torch.zeros(found.shape)
    for layer in range(source[0] + 1, model.cfg.n_layers):
        for head in range(n_heads):
            wanted[layer, head] = by_hooks(*args, source, (layer, head), component)
    with torch.no_grad():
        return found, wanted, abs(float(metric(model(clean)) - metric(model(corrupted))))


def gap(found, wanted):
    return float((found - wanted).abs().max())


@pytest.mark.parametrize("component", ["q", "k", "v"])
@pytest.mark.parametrize("family", choose_cases(["llama", "gpt2"], FAMILIES, slow=["gemma3"]))
def test_pairs_are_those_of_hooks(tiny_model, family, component):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*one forward pass")
        found, wanted, spread = measure(tiny_model(family), everything, (0, 2), component)
    assert gap(found, wanted) < 1e-4 * spread
    assert found[1].std() > 1e-3 * spread


@pytest.mark.parametrize("metric", [peak, writes, rank], ids=lambda metric: metric.__name__)
def test_metrics_that_move_in_steps_or_write_into_the_logits(tiny_model, metric):
    found, wanted, _ = measure(tiny_model("llama"), metric, (0, 1), "k")
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("component", ["q", "v"])
def test_half_precision_is_within_the_rounding_of_the_model(tiny, dtype, component):
    """Hooks with the same weights in half precision and in float32 differ as much."""
    models = [load_model(str(tiny("llama")), device="cpu", dtype=one) for one in (dtype, "float32")]
    for one, two in zip(*(model.parameters() for model in models), strict=True):
        two.data.copy_(one)
    found, wanted, _ = measure(models[0], everything, (0, 2), component)
    _, exact, spread = measure(models[1], everything, (0, 2), component)
    assert gap(found, exact) < max(2 * gap(wanted, exact), 0.01 * spread)


@pytest.mark.slow
@pytest.mark.parametrize("component", ["q", "v"])
def test_all_sources_are_single_sources(tiny_model, component):
    model = tiny_model("llama")
    _, *args = run(model)
    found = patching.get_act_patch_direct_path_all_sources(
        model, *args, last, component, verbose=False
    )
    n_heads = adapt(model).n_heads(component)
    assert found.shape == (3, 4, 3, n_heads)
    for layer in range(3):
        for head in range(4):
            one = patching.get_act_patch_direct_path(
                model, *args, last, layer, head, component, verbose=False
            )
            torch.testing.assert_close(found[layer, head], one, atol=1e-6, rtol=1e-6)
    assert not found[2].any()


def test_what_is_written_comes_from_the_given_caches(tiny_model):
    """One clean row for all rows, values edited by hand, and nothing but z of the source layer."""
    model = tiny_model("gpt2")
    _, corrupted, clean_cache, corrupted_cache = run(model)
    name = "blocks.0.attn.hook_z"
    clean_cache = {name: 2 * clean_cache[name][:1] + 0.1}
    corrupted_cache = {name: corrupted_cache[name]}
    args = (model, corrupted, clean_cache, corrupted_cache, last)
    found = patching.get_act_patch_direct_path(*args, 0, -1, "v", verbose=False)
    attn = model.blocks[0].attn
    change = (clean_cache[name] - corrupted_cache[name])[:, :, 3] @ attn.W_O[3]
    wanted = add_to_input(model, corrupted, change, (2, 1), "v")
    torch.testing.assert_close(float(found[2, 1]), float(last(wanted)), atol=1e-5, rtol=1e-5)


def test_equal_caches_leave_the_corrupted_run(tiny_model):
    model = tiny_model("llama")
    _, corrupted, _, cache = run(model)
    found = patching.get_act_patch_direct_path(
        model, corrupted, cache, cache, last, 0, 1, verbose=False
    )
    with torch.no_grad():
        before = last(model(corrupted))
    torch.testing.assert_close(found[1:], before.expand(2, 4), atol=1e-6, rtol=1e-6)


def test_ungrouped_keys_have_a_column_for_each_query_head(tiny):
    model = load_model(str(tiny("llama")), device="cpu")
    model.set_ungroup_grouped_query_attention(True)
    found, wanted, spread = measure(model, everything, (0, 2), "k")
    assert found.shape == (3, 4)
    assert gap(found, wanted) < 1e-4 * spread


class Counting:
    """A metric whose value depends on the number of its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, logits):
        self.calls += 1
        return logits[0, -1, 5] + self.calls


def test_a_metric_that_keeps_state_is_called_once_for_each_pair_in_order(tiny_model):
    model = tiny_model("gpt2")
    _, *args = run(model)
    with pytest.warns(UserWarning, match="q: one forward pass per cell is run, because the metric"):
        found = patching.get_act_patch_direct_path(model, *args, Counting(), 0, 1, verbose=False)
    plain = patching.get_act_patch_direct_path(
        model, *args, lambda logits: logits[0, -1, 5], 0, 1, verbose=False
    )
    torch.testing.assert_close(
        found[1:] - plain[1:], torch.arange(1.0, 9).view(2, 4), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("verbose", [True, False])
def test_a_hook_of_the_user_acts_and_runs_one_pass_per_pair(tiny, verbose, capfd):
    model = load_model(str(tiny("llama")), device="cpu", progress=False)
    model.blocks[1].hook_mlp_out.add_perma_hook(lambda value, hook: 2 * value)
    with pytest.warns(UserWarning, match="k: one forward pass per cell is run, because a hook"):
        found, wanted, spread = measure(model, everything, (0, 2), "k")
    assert gap(found, wanted) < 1e-4 * spread
    _, *args = run(model)
    capfd.readouterr()
    with pytest.warns(UserWarning, match="one forward pass per cell"):
        patching.get_act_patch_direct_path(model, *args, last, 0, 2, "k", verbose)
    assert ("Direct path patch (0,2) -> * [k]" in capfd.readouterr().err) is verbose


@pytest.mark.parametrize(
    ("changed", "argument", "error"),
    [
        ({"component": "z"}, "component", InputError),
        ({"src_layer": 3}, "src_layer", InputError),
        ({"src_layer": -1}, "src_layer", InputError),
        ({"src_head": 4}, "src_head", InputError),
        ({"src_head": 1.0}, "src_head", InputError),
        ({"corrupted_tokens": "a prompt"}, "corrupted_tokens", InputError),
        ({"clean_cache": {}}, "clean_cache", InputError),
        ({"corrupted_cache": {}}, "corrupted_cache", InputError),
        ({"clean_cache": {Z: torch.zeros(7, 4, 12)}}, "clean_cache", InputError),
        ({"clean_cache": {Z: None}}, "clean_cache", InputError),
        ({"clean_cache": {Z: torch.zeros(2, 6, 4, 12)}}, "clean_cache", ShapeError),
        ({"corrupted_cache": {Z: torch.zeros(3, 7, 4, 12)}}, "corrupted_cache", ShapeError),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_errors_name_the_argument(tiny_model, changed, argument, error):
    model = tiny_model("llama")
    _, corrupted, clean_cache, corrupted_cache = run(model)
    given = {
        "corrupted_tokens": corrupted,
        "clean_cache": clean_cache,
        "corrupted_cache": corrupted_cache,
        "patching_metric": last,
        "src_layer": 0,
        "src_head": 1,
    }
    with raises(error, argument):
        patching.get_act_patch_direct_path(model, **given | changed)


def test_a_metric_that_returns_no_scalar(tiny_model):
    model = tiny_model("llama")
    _, *args = run(model)
    with pytest.raises(ShapeError, match="Return a scalar"):
        patching.get_act_patch_direct_path(model, *args, lambda logits: logits[:, -1, 3], 0, 1)
