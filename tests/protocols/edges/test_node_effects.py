"""The effect of a node is that of all edges out of it together: `al.patch_sweep` at the node."""

import pytest

import anchorlens as al
from anchorlens.protocols.edges.circuit_pairs import open_pairs
from tests.tiers import choose_cases

FAMILIES = ("llama", "gpt2", "neox", "qwen3")
# Site and places of an `al.patch_sweep` of the nodes of a kind.
SITES = {"head": ("z", "head"), "mlp": ("mlp_out", "layer")}


def pairs_of_equal_lengths():
    """Answers that differ in their first token, behind the last paired position."""
    rows = [
        {
            "clean": f"of {a} is in the",
            "corrupted": f"of {b} is in the",
            "answer": a,
            "wrong": b,
        }
        for a, b in ("qx", "zj", "vk")
    ]
    return al.load_pairs(rows)


def node_effects(model, kind, method="exact", direction="noising"):
    """Mean effect of each node of a kind, by its name as a sender."""
    site, by = SITES[kind]
    found = al.patch_sweep(
        model,
        pairs_of_equal_lengths(),
        site=site,
        by=by,
        method=method,
        direction=direction,
        controls="none",
        n_spot_checks=0,
        progress=False,
    )
    samples = found.samples(all_columns=True)
    names = {
        "head": lambda row: f"a{int(row['layer'])}.h{int(row['head'])}",
        "mlp": lambda row: f"m{int(row['layer'])}",
    }
    return samples.assign(node=samples.apply(names[kind], axis=1)).groupby("node")["effect"].mean()


@pytest.mark.parametrize("family", choose_cases(("llama", "neox"), FAMILIES))
@pytest.mark.parametrize("kind", SITES)
def test_a_node_is_all_its_edges_ablated_together(tiny_model, family, kind):
    """A circuit of all edges but those out of one sender."""
    model = tiny_model(family)
    opened = open_pairs(model, pairs_of_equal_lengths())
    graph = opened.graph
    nodes = [node for node in graph.senders if node.kind == kind]
    edges = graph.edges(graph.senders, graph.receivers)
    without = [[edge for edge in edges if edge.sender != node] for node in nodes]
    lost = opened.factor * (opened.values(graph.masks(without)) - opened.whole[:, None])
    found = node_effects(model, kind)
    assert found.abs().max() > 0.01
    assert len(found) == len(nodes)
    for node, value in zip(nodes, lost.mean(0), strict=True):
        assert found[node.name] == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("direction", ["noising", "denoising"])
@pytest.mark.parametrize("kind", SITES)
def test_the_attribution_of_a_node_is_the_sum_of_its_edges(tiny_model, kind, direction):
    """The gradient of the stream behind a sender is the sum of those of its receivers' inputs."""
    model = tiny_model("llama")
    edges = al.edge_sweep(
        model,
        pairs_of_equal_lengths(),
        senders=(f"{kind}s",),
        method="attribution",
        direction=direction,
        controls="none",
        n_spot_checks=0,
        progress=False,
    ).table()
    sums = edges.groupby("sender")["effect"].sum()
    found = node_effects(model, kind, "attribution", direction)
    assert set(sums.index) == set(found.index)
    assert found.abs().max() > 0.01
    for node, value in sums.items():
        assert found[node] == pytest.approx(value, abs=1e-4)
