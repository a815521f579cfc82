"""Attribution scores equal finite differences of the exact effect by hooks, in float64."""

import random
from dataclasses import dataclass

import pytest
import torch

from anchorlens.engine.edges import activation_attribution, attribution
from anchorlens.engine.edges.activation_attribution import activation_scores
from anchorlens.engine.edges.attribution import attribution_scores
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.hooked_edges import ReferenceEdges
from anchorlens.engine.readouts import Metrics
from anchorlens.models.adapter import LensModel
from anchorlens.models.load import adapt, load_model
from anchorlens.protocols.edges.edge_inputs import graph_of
from tests.engine.make import random_rows
from tests.models.tiny import FAMILIES, FURTHER_FAMILIES
from tests.tiers import choose_cases

# Each has an attention or norms of its own; the others run in the slow tier.
FIRST = ["llama", "mistral", "qwen3", "gemma2", "gpt2", "neox", "olmo2", "bloom"]
# TransformerLens' routers of experts are in float32, which a small change needs not to be.
ROUTED = ["gpt_oss", "mixtral"]
# OLMoE has such a router, and clipped values that need a change of 1e-5.
EACH = sorted(set(FAMILIES | FURTHER_FAMILIES) - {"gemma3_multimodal", "olmoe", *ROUTED})
# Share of the sender's change. The error of a central difference falls with its square.
EPSILON = 1e-6
# Largest difference, as a share of the largest slope.
CLOSE = 1e-7
KINDS = ("q", "k", "v", "mlp", "logits")


@pytest.fixture(autouse=True)
def double_precision(monkeypatch):
    """Sums that are in float32 whatever the model's dtype are in float64: a difference of small
    changes needs the digits.
    """
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.fixture
def double_model(tiny):
    def make(family):
        model = load_model(str(tiny(family)), device="cpu", progress=False).to(torch.float64)
        model.cfg.dtype = torch.float64
        return model

    return make


class ScaledEdges(ReferenceEdges):
    """Effects of a share of each sender's change."""

    share = 1.0

    def _delta(self, sender):
        return self.share * super()._delta(sender)


@dataclass(frozen=True)
class Difference:
    """Logit difference at the last position, by TransformerLens' own norm and unembedding."""

    model: LensModel
    position: torch.Tensor
    where = None

    @property
    def row(self):
        return torch.zeros_like(self.position)

    def of(self, stream):
        logits = self.model.unembed(self.model.ln_final(stream[None, -1:]))[0, 0]
        cap = self.model.cfg.output_logits_soft_cap
        logits = logits if not cap or cap < 0 else cap * torch.tanh(logits / cap)
        return logits[7] - logits[9]

    def metrics(self, adapter, states):
        return Metrics({"difference": self.of(states).reshape(1)})


def some_edges(adapter, per_kind=4):
    """Edges into every kind of receiver, of every kind of sender."""
    graph = graph_of(adapter)
    rng = random.Random(0)
    chosen = []
    for kind in KINDS:
        receivers = [node for node in graph.receivers if node.kind == kind]
        of_kind = graph.edges(graph.senders, receivers)
        chosen += rng.sample(of_kind, per_kind)
        chosen += [edge for edge in of_kind if edge.sender.kind == "embed"][:1]
    return list(dict.fromkeys(chosen))


def scores_and_slopes(model, epsilon=EPSILON):
    """Attribution scores of some edges, and the slopes of their exact effects at a share of 0."""
    adapter = adapt(model)
    target, source = random_rows((12, 14), 0)
    prompts = EdgePrompts(
        target=tuple(target), source=tuple(source), at=(4, 5, 7, 9, 11), by=(3, 6, 7, 12, 13)
    )
    reader = Difference(model, torch.tensor([len(target) - 1]))
    edges = some_edges(adapter)
    scores = attribution_scores(adapter, prompts, reader.of, edges)
    by_hooks = ScaledEdges(adapter, prompts, reader, metric="difference")
    slopes = {}
    for edge in edges:
        by_hooks.share = epsilon
        above = by_hooks.value(edge)
        by_hooks.share = -epsilon
        slopes[edge] = (above - by_hooks.value(edge)) / (2 * epsilon)
    return scores, slopes


def largest_difference(scores, slopes):
    """As a share of the largest slope."""
    return max(abs(scores[e] - slopes[e]) for e in slopes) / max(map(abs, slopes.values()))


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(FIRST, EACH, slow=["gemma3", "phi"]))
def test_scores_are_slopes_of_the_exact_effect(double_model, family):
    off = largest_difference(*scores_and_slopes(double_model(family)))
    assert off < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("family", ROUTED)
def test_scores_are_slopes_with_routed_experts(double_model, family):
    off = largest_difference(*scores_and_slopes(double_model(family), epsilon=1e-3))
    assert off < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q", "k", "v"])
def test_a_gradient_without_one_term_differs(double_model, monkeypatch, kind):
    """The term that is left out is small: what passes through one kind of input of layer 2."""
    right = attribution._attention_gradients

    def faulty(block, x, of_out):
        found = right(block, x, of_out)
        return [(node, own * (node.kind != kind or node.layer < 2)) for node, own in found]

    model = double_model("llama")
    monkeypatch.setattr(attribution, "_attention_gradients", faulty)
    assert largest_difference(*scores_and_slopes(model)) > 1e4 * CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2", "neox"])
def test_integrated_gradients_of_the_embedding_add_up_to_the_change_of_the_metric(
    double_model, family
):
    """Each sum has one end of the path: their mean is the trapezoidal rule."""
    model = double_model(family)
    adapter = adapt(model)
    rows = [tuple(row) for row in random_rows((9, 9), 1)]
    reader = Difference(model, torch.tensor([8]))
    graph = graph_of(adapter)
    edges = graph.edges(graph.senders[:1], graph.receivers)
    at = tuple(range(9))
    sums, values = [], []
    for target, source in (rows, rows[::-1]):
        prompts = EdgePrompts(target=target, source=source, at=at, by=at)
        scores = attribution_scores(adapter, prompts, reader.of, edges, steps=40)
        sums.append(sum(scores.values()))
        values.append(ReferenceEdges(adapter, prompts, reader, metric="difference").before())
    change = values[1] - values[0]
    assert (sums[0] - sums[1]) / 2 == pytest.approx(change, rel=5e-3)


class InterpolatedEdges(ScaledEdges):
    """Effects in a run in which what one node writes is a constant: the target's own value and a
    share of the source's change.
    """

    constant: tuple = ()
    is_last = True

    def value(self, edge):
        # What goes into the logits is written behind the constant; another receiver's new output
        # comes before it.
        self.is_last = edge.receiver.kind != "logits"
        return super().value(edge)

    def interpolate(self, name, share):
        own = self._own
        new = own._read(self.prompts.target, [name], [])[name]
        change = own._read(self.prompts.source, [name], [])[name][0, list(self.prompts.by)]
        at = list(self.prompts.at)
        new[0, at] += share * (change - new[0, at])
        self.constant = ((name, lambda value, hook: new.clone()),)

    @property
    def _own(self):
        return ReferenceEdges(self.adapter, self.prompts, self.reader, metric=self.metric)

    def _delta(self, sender):
        return self.share * self._own._delta(sender)

    def _value(self, hooks):
        hooks = [*hooks, *self.constant] if self.is_last else [*self.constant, *hooks]
        return super()._value(hooks)

    def _read(self, ids, names, hooks):
        return super()._read(ids, names, [*self.constant, *hooks])


STEPS = 2


def activation_scores_and_slopes(model):
    """Scores over activations, and the mean slopes of exact effects over the interpolated runs."""
    adapter = adapt(model)
    target, source = random_rows((10, 11), 0)
    prompts = EdgePrompts(
        target=tuple(target), source=tuple(source), at=(4, 5, 7, 9), by=(3, 6, 7, 10)
    )
    reader = Difference(model, torch.tensor([len(target) - 1]))
    edges = some_edges(adapter, per_kind=2)
    scores = activation_scores(adapter, prompts, reader.of, edges, steps=STEPS)
    by_hooks = InterpolatedEdges(adapter, prompts, reader, metric="difference")
    nodes = [adapter.hook_name("resid_pre", 0)]
    for layer in range(adapter.n_layers):
        nodes += [adapter.hook_name(site, layer) for site in ("attn_out", "mlp_out")]
    slopes = dict.fromkeys(edges, 0.0)
    for name in nodes:
        for step in range(STEPS):
            by_hooks.interpolate(name, step / STEPS)
            for edge in edges:
                by_hooks.share = EPSILON
                above = by_hooks.value(edge)
                by_hooks.share = -EPSILON
                slope = (above - by_hooks.value(edge)) / (2 * EPSILON)
                slopes[edge] += slope / (STEPS * len(nodes))
            by_hooks.constant = ()
    return scores, slopes


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "family", choose_cases(["neox"], ["llama", "neox", "gemma2", "gpt2"], slow=["gemma2"])
)
def test_scores_over_activations_are_mean_slopes_of_the_exact_effect(double_model, family):
    off = largest_difference(*activation_scores_and_slopes(double_model(family)))
    assert off < CLOSE


@pytest.mark.slow
def test_scores_over_activations_without_one_term_differ(double_model, monkeypatch):
    """What passes through the MLP beside an interpolated attention is left out."""
    monkeypatch.setattr(
        activation_attribution,
        "mlp_gradient",
        lambda block, x, of_out, found: torch.zeros_like(of_out),
    )
    assert largest_difference(*activation_scores_and_slopes(double_model("llama"))) > 1e4 * CLOSE
