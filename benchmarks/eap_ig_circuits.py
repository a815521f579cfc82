"""Compare the faithfulness of circuits with that of EAP-IG's ``evaluate_graph``.

It runs in the environment of ``benchmarks/eap_ig.py``, on its small random GPT-2:

    .venv-eap/bin/python benchmarks/eap_ig_circuits.py

Circuits of several sizes are drawn at random, and selected by EAP scores. EAP-IG runs each in one
forward pass with hooks; here they are one batch. Prints the largest difference of the metric, and
CPU seconds of both. Exit code 1 if it exceeds 1e-4 of the metric's range.
"""

import random
import sys
import time
from collections.abc import Collection
from importlib.metadata import version

import torch
from eap_ig import (
    ANSWER,
    LENGTH,
    SEED,
    WRONG,
    Ids,
    _difference,
    _our_name,
    _their_code,
    random_model,
    random_pair,
    their_scores,
)
from transformer_lens import HookedTransformer

from anchorlens.engine.edges.circuits import Ablation, CircuitRuns
from anchorlens.engine.edges.graph import Edge
from anchorlens.engine.readouts import LOGIT_DIFF, LogitDiffReader
from anchorlens.models.load import adapt
from anchorlens.protocols.edges.edge_inputs import graph_of
from anchorlens.protocols.edges.select_edges import grow_from_logits, rank

PAIRS = 3
SIZES = (10, 40, 100, 200)


def their_values(
    model: HookedTransformer, circuit: Collection[Edge], clean: Ids, corrupted: Ids
) -> float:
    """Return the metric of a circuit by EAP-IG."""
    from eap.evaluate import evaluate_graph  # pyright: ignore[reportMissingImports]
    from eap.graph import Graph  # pyright: ignore[reportMissingImports]

    names = {edge.name for edge in circuit}
    graph = Graph.from_model(model)
    used = {edge.sender.name.replace("embed", "input") for edge in circuit}
    for name, edge in graph.edges.items():
        edge.in_graph = _our_name(name) in names
    for name, node in graph.nodes.items():
        if name != "logits":
            node.in_graph = name in used
    data = [([clean], [corrupted], None)]
    with _their_code():
        found = evaluate_graph(model, graph, data, _difference, quiet=True, skip_clean=False)
    return float(found[0] if isinstance(found, list) else found)


def main() -> None:
    own = random_model(3, 4, 48)
    theirs = random_model(3, 4, 48)
    theirs.set_use_attn_result(True)
    theirs.set_use_split_qkv_input(True)
    theirs.set_use_hook_mlp_in(True)
    adapter = adapt(own)
    graph = graph_of(adapter)
    edges = graph.edges(graph.senders, graph.receivers)
    generator = torch.Generator().manual_seed(SEED)
    rng = random.Random(SEED)
    worst, scale, seconds, n = 0.0, 0.0, [0.0, 0.0], 0
    for _ in range(PAIRS):
        clean, corrupted = random_pair(generator)
        scores = their_scores(theirs, clean, corrupted, method="EAP")
        of = {edge: scores[edge.name] for edge in edges}
        circuits: list[list[Edge]] = [rng.sample(edges, size) for size in SIZES]
        circuits += [rank(of)[:size] for size in SIZES]
        circuits += [grow_from_logits(graph, of, size) for size in SIZES]
        reader = LogitDiffReader(torch.tensor([LENGTH - 1]), torch.tensor([[ANSWER, WRONG]]))
        start = time.process_time()
        ablation = Ablation.of(adapter, [corrupted])
        found = CircuitRuns(adapter, graph, clean, ablation, reader, metric=LOGIT_DIFF).values(
            [*circuits, edges, ()]
        )
        middle = time.process_time()
        right = [their_values(theirs, circuit, clean, corrupted) for circuit in circuits]
        seconds[0] += time.process_time() - middle
        seconds[1] += middle - start
        scale = max(scale, abs(found[-2] - found[-1]))
        worst = max(worst, *(abs(a - b) for a, b in zip(found, right, strict=False)))
        n += len(circuits)
    print(
        f"eap {version('eap')}, transformer-lens {version('transformer-lens')}, {len(edges)} edges"
    )
    print("| circuits | range of the metric | largest difference | CPU s, EAP-IG | CPU s, here |")
    print("|---:|---:|---:|---:|---:|")
    print(f"| {n} | {scale:.2f} | {worst:.1e} | {seconds[0]:.2f} | {seconds[1]:.2f} |")
    sys.exit(worst > 1e-4 * scale)


if __name__ == "__main__":
    main()
