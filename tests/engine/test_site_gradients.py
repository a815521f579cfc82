"""Gradients at every site equal central differences of patches by hooks, in float64."""

import pytest
import torch

from anchorlens.constants import HEAD_SITES, SITES
from anchorlens.engine import site_gradients as module
from anchorlens.engine.patches import by_head
from anchorlens.engine.site_gradients import patch_scores, site_activations, site_gradients
from anchorlens.models.load import adapt, load_model
from tests.engine.make import random_rows
from tests.tiers import choose_cases

# Each has an attention or norms of its own; the others run in the slow tier.
FIRST = ["llama", "gemma2", "neox"]
EACH = [*FIRST, "gpt2", "mistral", "qwen3", "olmo2", "bloom"]
ALL_SITES = (*SITES, *HEAD_SITES)
AT = (4, 5, 9, 11)
BY = (3, 6, 9, 10)
# Share of the change. The error of a central difference falls with its square.
EPSILON = 1e-5
# Largest difference, as a share of the largest slope.
CLOSE = 1e-6


@pytest.fixture(autouse=True)
def double_precision(monkeypatch):
    """Sums that are in float32 whatever the model's dtype are in float64: a difference of small
    changes needs the digits.
    """
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.fixture
def double_adapter(tiny):
    def make(family):
        model = load_model(str(tiny(family)), device="cpu", progress=False).to(torch.float64)
        model.cfg.dtype = torch.float64
        return adapt(model)

    return make


def metric_of(adapter):
    """Logit difference at the last position, by the model's own norm and unembedding."""
    model = adapter.model

    def metric(stream):
        logits = model.unembed(model.ln_final(stream[None, -1:]))[0, 0]
        cap = model.cfg.output_logits_soft_cap
        logits = logits if not cap or cap < 0 else cap * torch.tanh(logits / cap)
        return logits[7] - logits[9]

    return metric


def value_with(adapter, ids, site, layer, change):
    """The metric with ``change`` [pos head width] added to an activation by a hook."""
    model = adapter.model

    def add(value, hook):
        moved = value.clone()
        by_head(moved, site)[0] += change
        return moved

    with torch.no_grad():
        stream = model.run_with_hooks(
            torch.tensor([ids]),
            fwd_hooks=[(adapter.hook_name(site, layer), add)],
            stop_at_layer=adapter.n_layers,
        )
        return float(metric_of(adapter)(stream[0]))


def largest_difference(adapter, site):
    """Of scores from slopes, over layers and heads, as a share of the largest slope."""
    target, source = (list(row) for row in random_rows((12, 12), 0))
    own = site_gradients(adapter, target, metric_of(adapter), site)
    other = site_activations(adapter, source, site)
    heads = [None] if site in SITES else [None, *range(adapter.n_heads(site))]
    gaps, slopes = [], []
    for head in heads:
        some = slice(None) if head is None else slice(head, head + 1)
        scores = patch_scores(own, other, at=AT, by=BY, head=head)
        for layer in range(adapter.n_layers):
            change = torch.zeros_like(own.own[layer])
            new = other[layer][list(BY), some] - own.own[layer][list(AT), some]
            change[list(AT), some] = EPSILON * new
            above = value_with(adapter, target, site, layer, change)
            below = value_with(adapter, target, site, layer, -change)
            slopes.append((above - below) / (2 * EPSILON))
            gaps.append(abs(float(scores[layer]) - slopes[-1]))
    return max(gaps) / max(map(abs, slopes))


@pytest.mark.parametrize("site", ALL_SITES)
@pytest.mark.parametrize("family", choose_cases(FIRST, EACH, slow=("olmo2",)))
def test_a_score_is_the_slope_of_the_patch(double_adapter, family, site):
    adapter = double_adapter(family)
    if site in SITES and site not in adapter.sites:
        pytest.skip("parallel blocks have no stream between attention and MLP")
    assert largest_difference(adapter, site) < CLOSE


def test_the_change_of_one_position_is_not_left_out(double_adapter, monkeypatch):
    """The comparison sees a score without one of four positions."""
    right = module.patch_scores

    def faulty(target, source, *, at, by, head=None):
        return right(target, source, at=at[:-1], by=by[:-1], head=head)

    monkeypatch.setitem(globals(), "patch_scores", faulty)
    assert largest_difference(double_adapter("llama"), "z") > 1e3 * CLOSE


def test_all_gradients_come_from_one_forward_pass(double_adapter, monkeypatch):
    adapter = double_adapter("llama")
    calls = []
    run = type(adapter).forward

    def count(*args, **options):
        calls.append(options)
        return run(*args, **options)

    monkeypatch.setattr(type(adapter), "forward", count)
    site_gradients(adapter, [5, 6, 7, 8], metric_of(adapter), "q")
    assert calls == [{"with_graph": True}]


def test_scores_add_up_over_heads_and_positions(double_adapter):
    adapter = double_adapter("llama")
    target, source = random_rows((12, 12), 0)
    own = site_gradients(adapter, target, metric_of(adapter), "k")
    other = site_activations(adapter, source, "k")
    whole = patch_scores(own, other, at=AT, by=BY)
    parts = torch.zeros(adapter.n_layers, dtype=torch.float64)
    for t, s in zip(AT, BY, strict=True):
        for head in range(adapter.n_heads("k")):
            parts += patch_scores(own, other, at=(t,), by=(s,), head=head)
    assert torch.allclose(whole, parts, rtol=1e-10, atol=0)


def test_where_the_metric_is_linear_the_score_is_exact(double_adapter):
    """Behind the last block, and without a final norm, the whole patch is its slope."""
    adapter = double_adapter("gpt2")
    last = adapter.n_layers - 1
    direction = torch.linspace(-1, 1, adapter.d_model, dtype=torch.float64)
    target, source = random_rows((12, 12), 1)

    def metric(stream):
        return stream[-1] @ direction

    for site in ("resid_post", "mlp_out"):
        own = site_gradients(adapter, target, metric, site)
        other = site_activations(adapter, source, site)
        score = patch_scores(own, other, at=(11,), by=(11,))[last]
        wanted = (other[last, 11, 0] - own.own[last, 11, 0]) @ direction
        assert float(score) == pytest.approx(float(wanted), rel=1e-10)
