"""Runs of circuits equal hooks; ACDC keeps the edges of a plain implementation."""

import random

import pytest
import torch

from anchorlens.engine.edges import circuits
from anchorlens.engine.edges.circuits import Ablation, CircuitRuns, remove_in_order
from anchorlens.engine.readouts import LOGIT_DIFF
from tests.engine.edges.hooked_circuits import circuit_logits
from tests.engine.edges.make import Case
from tests.tiers import choose_cases

FAMILIES = ("llama", "gpt2", "gemma2", "neox", "qwen3", "mistral")


def random_prompts(case, n_ablated=1):
    """The case's own prompts, and further ablated ones."""
    rng = random.Random(5)
    ablated = [case.prompts.target]
    for _ in range(n_ablated - 1):
        ids = list(case.prompts.target)
        ids[3:9] = [rng.randrange(5, 300) for _ in range(6)]
        ablated.append(tuple(ids))
    return case.prompts.source, tuple(ablated)


def random_circuits(case, shares=(0.0, 0.05, 0.3, 0.7, 0.95, 1.0)):
    rng = random.Random(1)
    return [tuple(e for e in case.edges if rng.random() < share) for share in shares]


def runs_of(case, prompts):
    kept, rows = prompts
    ablation = Ablation.of(case.adapter, rows)
    return CircuitRuns(case.adapter, case.graph, kept, ablation, case.reader, metric=LOGIT_DIFF)


def by_hooks(case, prompts, edges):
    logits = circuit_logits(case.model, case.graph, *prompts, edges)[-1]
    answer, wrong = case.reader.tokens[0].tolist()
    return float(logits[answer] - logits[wrong])


@pytest.mark.parametrize("family", choose_cases(("llama", "neox"), FAMILIES, slow=("gemma2",)))
@pytest.mark.parametrize("n_ablated", [1, 3])
@torch.no_grad()
def test_circuits_equal_hooks(tiny_model, family, n_ablated):
    case = Case(tiny_model(family))
    prompts = random_prompts(case, n_ablated)
    some = random_circuits(case)
    found = runs_of(case, prompts).values(some)
    wanted = [by_hooks(case, prompts, edges) for edges in some]
    scale = max(wanted) - min(wanted)
    assert scale > 0.01
    for own, right in zip(found, wanted, strict=True):
        assert abs(own - right) < 1e-4 * scale


PLACES = {"first": [4, 9], "last": [5, 6, 7, 8], "rest": [10, 11, 12, 13]}


def placed_circuits(case, shares=(0.1, 0.4, 0.8, 1.0)):
    rng = random.Random(2)
    edges = case.graph.edges(case.graph.senders, case.graph.receivers, list(PLACES))
    return [tuple(e for e in edges if rng.random() < share) for share in shares]


@pytest.mark.parametrize("family", choose_cases(("llama",), FAMILIES, slow=("gemma2",)))
@torch.no_grad()
def test_circuits_with_edges_at_single_places_equal_hooks(tiny_model, family):
    """The prompts differ from position 4 on; the places are out of order."""
    case = Case(tiny_model(family))
    kept, rows = random_prompts(case)
    ablation = Ablation.of(case.adapter, rows)
    own = {"metric": LOGIT_DIFF, "places": list(PLACES.values())}
    runs = CircuitRuns(case.adapter, case.graph, kept, ablation, case.reader, **own)
    some = placed_circuits(case)
    found = runs.values_of(case.graph.masks(some, list(PLACES)))
    answer, wrong = case.reader.tokens[0].tolist()
    wanted = []
    for edges in some:
        logits = circuit_logits(case.model, case.graph, kept, rows, edges, PLACES)[-1]
        wanted.append(float(logits[answer] - logits[wrong]))
    scale = max(wanted) - min(wanted)
    assert scale > 0.01
    assert found == pytest.approx(wanted, abs=1e-4 * scale)
    # The last one has every edge; the same edges at exchanged places are other circuits.
    whole = runs_of(case, (kept, rows)).values([case.edges])
    assert found[-1] == pytest.approx(whole[0], abs=1e-4 * scale)
    turned = {"first": PLACES["last"], "last": PLACES["first"], "rest": PLACES["rest"]}
    own["places"] = list(turned.values())
    other = CircuitRuns(case.adapter, case.graph, kept, ablation, case.reader, **own)
    gaps = torch.tensor(other.values_of(case.graph.masks(some[:3], list(turned)))) - torch.tensor(
        found[:3]
    )
    assert gaps.abs().max() > 1e-2 * scale


def test_ends_are_the_two_prompts(tiny_model):
    """The whole graph gives the kept prompt's own metric; the empty circuit the ablated one's."""
    case = Case(tiny_model("gemma2"))
    runs = runs_of(case, random_prompts(case))
    whole, empty = runs.values([case.edges, ()])
    with torch.no_grad():
        for ids, value in ((case.prompts.source, whole), (case.prompts.target, empty)):
            logits = case.model(torch.tensor([ids]))[0, -1]
            answer, wrong = case.reader.tokens[0].tolist()
            assert abs(float(logits[answer] - logits[wrong]) - value) < 1e-4
    assert runs.value_of_empty() == pytest.approx(empty, abs=1e-5)


def test_parts_give_the_same_numbers(tiny_model, monkeypatch):
    case = Case(tiny_model("qwen3"))
    some = random_circuits(case)
    whole = runs_of(case, random_prompts(case)).values(some)
    monkeypatch.setattr(circuits, "_MOST_ENTRIES", 1)
    monkeypatch.setattr(circuits, "_MOST_TOKENS", 1)
    assert runs_of(case, random_prompts(case)).values(some) == pytest.approx(whole, abs=2e-5)


def test_layers_below_may_be_left_out(tiny_model):
    """Circuits with all edges below a layer give the same values from that layer on."""
    case = Case(tiny_model("llama"))
    last = case.graph.n_layers - 1
    rng = random.Random(3)
    some = [
        tuple(e for e in case.edges if e.receiver.layer < last or rng.random() < 0.5)
        for _ in range(3)
    ]
    runs = runs_of(case, random_prompts(case))
    masks = case.graph.masks(some)
    found = runs.values_of(masks, from_layer=last)
    assert found == pytest.approx(runs.values_of(masks), abs=2e-5)


def test_equal_prompts_change_nothing(tiny_model):
    case = Case(tiny_model("llama"))
    prompts = case.prompts.source, (case.prompts.source,)
    assert len(set(runs_of(case, prompts).values([(), case.edges]))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(("llama",), ("llama", "neox")))
@torch.no_grad()
def test_acdc_keeps_the_edges_of_a_plain_implementation(tiny_model, family):
    case = Case(tiny_model(family))
    runs = runs_of(case, random_prompts(case))
    whole, empty = runs.values([case.edges, ()])
    threshold = 0.02 * abs(whole - empty)
    found = {
        edge: stays for edge, _, stays in remove_in_order([runs], threshold, case.edges, at_once=5)
    }
    assert set(found) == set(case.edges)

    # One run of the whole model by hooks for each edge.
    kept = list(case.edges)
    now = by_hooks(case, random_prompts(case), kept)
    for receiver in reversed(case.graph.receivers):
        for sender in reversed(case.graph.senders):
            edge = next((e for e in kept if e[:2] == (sender, receiver)), None)
            if edge is None:
                continue
            without = [e for e in kept if e != edge]
            value = by_hooks(case, random_prompts(case), without)
            if abs(value - now) < threshold:
                kept, now = without, value
    assert 0 < len(kept) < len(case.edges)
    assert {edge for edge, stays in found.items() if stays} == set(kept)
