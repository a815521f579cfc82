"""Edges and circuits on a bridge equal hooks on the same bridge, on every version of
TransformerLens.
"""

import pytest
import torch

import anchorlens as al
from anchorlens.models.load import load_model
from tests.contract.models import adapter_of, hugging_face, live_bridge, tokenizer
from tests.engine.edges.make import Case, largest_gap
from tests.tiers import choose_cases

# Norms behind attention, parallel blocks, grouped queries, and positions of every kind.
FAMILIES = ("gpt2", "neox", "qwen2", "gemma2", "olmo2")


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(("gpt2",), FAMILIES))
def test_edges_equal_hooks(family):
    case = Case(adapter_of(family, "bridge").model)
    assert largest_gap(case, case.draw(8)) < 1e-4
    assert largest_gap(case, case.draw(6), downstream="freeze") < 1e-4


@pytest.mark.slow
def test_edges_of_a_bridge_that_a_user_made():
    bridge = load_model(live_bridge(hugging_face("llama")), tokenizer=tokenizer())
    case = Case(bridge)
    assert largest_gap(case, case.draw(8)) < 1e-4


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("family", choose_cases(("qwen2",), FAMILIES))
@pytest.mark.filterwarnings("ignore:Few rows")
def test_the_circuit_of_all_edges_is_the_model(family):
    """Faithfulness from the edges that a sweep over all of them selects; the empty circuit has the
    metric of the corrupted run.
    """
    model = adapter_of(family, "bridge").model
    rows = [
        {"clean": f"one {a} three", "corrupted": f"one {b} three", "answer": " x", "wrong": " y"}
        for a, b in (("two", "six"), ("cat", "dog"), ("red", "sky"))
    ]
    pairs = al.load_pairs(rows)
    sweep = al.edge_sweep(model, pairs, method="attribution", controls="none", progress=False)
    circuit = sweep.circuit(top=len(sweep.anchors))
    table = circuit.faithfulness(model, pairs, sizes=[len(sweep.anchors)]).table()
    assert table["faithfulness"].item() == pytest.approx(1, abs=1e-4)
    assert table["rest"].item() == pytest.approx(0, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["attribution_ig", "attribution_ig_activations"])
def test_estimates_do_not_depend_on_the_bridge(method):
    """One that a user made, and one of ``load_model``, whose norms are in the weights."""
    rows = [{"clean": "one two three four", "corrupted": "one six three four", "answer": " x"}]
    options = {"method": method, "steps": 2, "controls": "none", "n_spot_checks": 0}
    own = load_model(live_bridge(hugging_face("llama")), tokenizer=tokenizer())
    found = [
        al.edge_sweep(model, al.load_pairs(rows), **options, progress=False).effects
        for model in (own, adapter_of("llama", "bridge").model)
    ]
    assert found[0].abs().nanmean() > 0
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-3, equal_nan=True)
