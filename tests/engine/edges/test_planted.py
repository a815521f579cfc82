"""Scores of edges in planted circuits equal the formulas that follow from their weights."""

import pytest

import anchorlens as al
from anchorlens.engine.edges.hooked_edges import ReferenceEdges
from anchorlens.engine.readouts import LOGIT_DIFF
from anchorlens.models.load import adapt
from benchmarks.planted_circuits import (
    CIRCUITS,
    STEPS,
    edges_of,
    measure_attribution,
    measure_exact,
)

CLOSE = 1e-4


@pytest.fixture(scope="module")
def circuits():
    return {name: make() for name, make in CIRCUITS.items()}


@pytest.fixture(params=CIRCUITS)
def circuit(request, circuits):
    return circuits[request.param]


def check(found, theory):
    """Edges without a formula have no effect, and each formula belongs to an edge."""
    assert theory.keys() <= found.keys()
    assert found == pytest.approx({name: theory.get(name, 0.0) for name in found}, abs=CLOSE)


@pytest.mark.parametrize(
    ("between", "downstream", "theory"),
    [("direct", "flow", "exact"), ("direct", "freeze", "frozen"), ("mlps", "flow", "by_mlps")],
)
def test_exact_effects_equal_the_formulas(circuit, between, downstream, theory):
    found = measure_exact(circuit, between=between, downstream=downstream)
    check(found, getattr(circuit, theory))


def test_effects_by_hooks_equal_the_formulas(circuit):
    adapter = adapt(circuit.model)
    reference = ReferenceEdges(adapter, circuit.prompts, circuit.reader, metric=LOGIT_DIFF)
    before = reference.before()
    check({e.name: reference.value(e) - before for e in edges_of(adapter)}, circuit.exact)


def test_attribution_scores_equal_their_formulas(circuit):
    check(measure_attribution(circuit), circuit.attribution)


@pytest.mark.parametrize("steps", [1, STEPS, 7])
def test_scores_by_integrated_gradients_equal_their_formulas(circuit, steps):
    check(measure_attribution(circuit, steps=steps), circuit.integrated(steps))


@pytest.mark.parametrize("method", ["exact", "attribution", "attribution_ig"])
def test_a_sweep_gives_the_formulas(circuit, method):
    result = al.edge_sweep(
        circuit.model,
        al.load_pairs([circuit.pair]),
        method=method,
        metric="logit_diff",
        steps=STEPS,
        direction="noising" if circuit.noising else "denoising",
        controls="none",
        progress=False,
    )
    theory = {
        "exact": circuit.exact,
        "attribution": circuit.attribution,
        "attribution_ig": circuit.integrated(STEPS),
    }[method]
    check(result.samples().set_index("anchor")["effect"].to_dict(), theory)


@pytest.mark.parametrize(
    ("name", "edge", "exact", "attribution", "integrated"),
    [
        # Attention that is all on one key has no gradient.
        ("induction, noising", "a0.h0 -> a1.h0.k", -0.790, -0.058, -1.023),
        # Attention that is spread evenly has too much.
        ("induction, denoising", "a0.h0 -> a1.h0.k", 0.988, 1.2, 0.794),
        # Neurons of the new fact are silent in the target's run: only the old one is seen to go.
        ("two hops", "m0 -> a1.h0.v", 2.0, 4 / 3, 4 / 3),
        # One head is enough: flat at both ends. Integrated gradients share the credit.
        ("or, denoising", "a0.h0 -> m0", 1.0, 0.0, 0.533),
        ("or, noising", "a0.h0 -> m0", 0.0, 0.0, -0.533),
        # Both heads are needed: each is worth the whole, and both together no more.
        ("and, noising", "a0.h0 -> m0", -1.0, -4 / 3, -0.267),
        ("and, denoising", "a0.h0 -> m0", 0.0, 0.0, 0.533),
        # The backup head's attention has no gradient, so the head that it backs up looks needed.
        ("backup, noising", "embed -> a0.h0.v", -0.006, -0.985, -0.562),
    ],
)
def test_where_gradients_mislead(circuits, name, edge, exact, attribution, integrated):
    circuit = circuits[name]
    found = [
        measure_exact(circuit)[edge],
        measure_attribution(circuit)[edge],
        measure_attribution(circuit, steps=STEPS)[edge],
    ]
    assert found == pytest.approx([exact, attribution, integrated], abs=1e-3)


def test_kl_divergence_has_no_gradient_in_the_clean_run(circuits):
    circuit = circuits["two hops"]
    effects = {}
    for method in ("exact", "attribution"):
        result = al.edge_sweep(
            circuit.model,
            al.load_pairs([circuit.pair]),
            method=method,
            metric="kl",
            direction="noising",
            controls="none",
            progress=False,
        )
        found = result.samples().set_index("anchor")["effect"]
        effects[method] = [found[edge] for edge in circuit.exact]
    assert effects["exact"] == pytest.approx([0.2226] * 4, abs=CLOSE)
    assert effects["attribution"] == pytest.approx([0.0] * 4, abs=CLOSE)
