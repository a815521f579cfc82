"""Measure the CPU seconds of circuits: a run beside its arithmetic, and ACDC beside a plain one.

    OMP_NUM_THREADS=1 python benchmarks/circuit_cost.py

Faithfulness: SmolLM2, one IOI pair, random circuits of 1 to 50 % of all edges in one batch. The
bound is the arithmetic of a circuit at the measured rate of matrix products: the blocks behind the
first difference, one row of the unembedding, and for every edge of the graph one addition of a
contribution at each of these positions.

ACDC: a small random GPT-2. The plain implementation runs the whole model by hooks of
TransformerLens for each edge. Both must keep the same edges; exit code 1 if not.
"""

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from eap_ig import ANSWER, LENGTH, WRONG, Ids, random_model, random_pair
from edges import matrix_rate

import anchorlens as al
from anchorlens.engine.edges.circuits import Ablation, CircuitRuns, remove_in_order
from anchorlens.engine.edges.graph import Edge, Graph
from anchorlens.engine.readouts import LOGIT_DIFF, LogitDiffReader
from anchorlens.models.load import adapt
from anchorlens.protocols.edges.circuit_pairs import open_pairs
from anchorlens.protocols.edges.edge_inputs import graph_of
from tests.engine.edges.hooked_circuits import circuit_logits

SHARES = (0.01, 0.05, 0.1, 0.5)
EACH = 8
ROUNDS = 5


def measure_faithfulness() -> None:
    """Print CPU seconds of a circuit of SmolLM2, of a forward pass, and the bound."""
    model = al.load_model("smollm2-135m-instruct", progress=False)
    opened = open_pairs(model, al.load_pairs("ioi-pairs", limit=1))
    (run,) = opened.runs
    graph = opened.graph
    edges = graph.edges(graph.senders, graph.receivers)
    rng = random.Random(0)
    shape = run.adapter.shape
    n = run.n - run.first
    weights = sum(p.numel() for p in model.blocks.parameters())
    arithmetic = 2 * n * weights + 2 * shape.d_model * shape.d_vocab
    arithmetic += 2 * len(edges) * n * shape.d_model
    rate = matrix_rate(shape.d_model, shape.d_mlp)
    bare = _least_seconds(lambda: model(torch.arange(run.n)[None]))
    print(f"{run.n} tokens, first difference at {run.first}, {len(edges):,} edges")
    print(f"forward pass {bare:.3f} CPU s; bound of a circuit {arithmetic / rate:.3f} CPU s")
    print("| edges | CPU s for each circuit | share of the bound | forward passes |")
    print("|---:|---:|---:|---:|")
    for share in SHARES:
        size = round(share * len(edges))
        masks = graph.masks([rng.sample(edges, size) for _ in range(EACH)])
        seconds = _least_seconds(lambda masks=masks: run.values_of(masks)) / EACH
        part = arithmetic / rate / seconds
        print(
            f"| {100 * share:.0f} % | {seconds:.3f} | {100 * part:.0f} % | {seconds / bare:.1f} |"
        )


def _least_seconds(call: Callable[[], object]) -> float:
    """Return the fewest CPU seconds of several calls."""
    found: list[float] = []
    with torch.no_grad():
        for _ in range(ROUNDS):
            start = time.process_time()
            call()
            found.append(time.process_time() - start)
    return min(found)


@torch.no_grad()
def measure_acdc() -> bool:
    """Print CPU seconds of ACDC; return whether both keep the same edges."""
    model = random_model(3, 4, 48)
    adapter = adapt(model)
    graph = graph_of(adapter)
    edges = graph.edges(graph.senders, graph.receivers)
    clean, corrupted = random_pair(torch.Generator().manual_seed(0))
    reader = LogitDiffReader(torch.tensor([LENGTH - 1]), torch.tensor([[ANSWER, WRONG]]))
    start = time.process_time()
    ablation = Ablation.of(adapter, [corrupted])
    run = CircuitRuns(adapter, graph, clean, ablation, reader, metric=LOGIT_DIFF)
    whole, empty = run.values([edges, ()])
    threshold = 0.02 * abs(whole - empty)
    tests = remove_in_order([run], threshold, edges)
    here = {edge for edge, _, stays in tests if stays}
    middle = time.process_time()
    theirs = _plain_acdc(model, graph, clean, corrupted, threshold)
    end = time.process_time()
    print(f"\nACDC, {len(edges)} edges, {len(here)} stay; the same edges: {here == theirs}")
    print("| CPU s, here | CPU s, one pass by hooks for each edge | ratio |")
    print("|---:|---:|---:|")
    ratio = (end - middle) / (middle - start)
    print(f"| {middle - start:.2f} | {end - middle:.2f} | {ratio:.1f} |")
    return here == theirs


def _plain_acdc(
    model: Any, graph: Graph, clean: Ids, corrupted: Ids, threshold: float
) -> set[Edge]:
    """Return the edges that stay, with one run of the whole model for each test."""

    def value(edges: list[Edge]) -> float:
        logits = circuit_logits(model, graph, clean, (corrupted,), edges)
        return float(logits[LENGTH - 1, ANSWER] - logits[LENGTH - 1, WRONG])

    kept = list(graph.edges(graph.senders, graph.receivers))
    now = value(kept)
    for receiver in reversed(graph.receivers):
        for sender in reversed(graph.senders):
            edge = Edge(sender, receiver)
            if edge not in kept:
                continue
            without = [one for one in kept if one != edge]
            found = value(without)
            if abs(found - now) < threshold:
                kept, now = without, found
    return set(kept)


def main() -> None:
    measure_faithfulness()
    sys.exit(not measure_acdc())


if __name__ == "__main__":
    main()
