"""CPU seconds of exact edges in the shape of GPT-2, beside EAP-IG's exact mode.

It runs in the environment of ``benchmarks/eap_ig.py``:

    .venv-eap/bin/python benchmarks/eap_ig_exact.py

Random weights, one pair of 16 tokens with the first difference at a third. EAP-IG measures some
random edges, anchorlens more; both are extrapolated to all 32,491 edges. The values of EAP-IG's
edges are compared. Exit code 1 if they differ by more than 1e-4 of the range of the metric.
"""

import argparse
import random
import sys
import time
from importlib.metadata import version

import torch
from eap_ig import ANSWER, WRONG, _difference, _our_name, _their_code
from edges import GPT2
from transformer_lens import HookedTransformer, HookedTransformerConfig

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.exact import edge_values
from anchorlens.engine.readouts import LOGIT_DIFF, LogitDiffReader
from anchorlens.models.load import adapt
from anchorlens.protocols.edges.edge_inputs import graph_of

ALLOWED = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--theirs", type=int, default=100, help="edges by EAP-IG (default: 100)")
    parser.add_argument("--ours", type=int, default=2000, help="edges here (default: 2000)")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    model = HookedTransformer(HookedTransformerConfig(**GPT2))
    rng = random.Random(0)
    clean = [rng.randrange(1000, 9000) for _ in range(args.tokens)]
    corrupted = list(clean)
    first = args.tokens // 3
    corrupted[first] = rng.randrange(1000, 9000)

    adapter = adapt(model)
    graph = graph_of(adapter)
    every = graph.edges(graph.senders, graph.receivers)
    some = rng.sample(every, args.ours)
    at = tuple(range(first, args.tokens))
    prompts = EdgePrompts(target=tuple(clean), source=tuple(corrupted), at=at, by=at)
    reader = LogitDiffReader(torch.tensor([args.tokens - 1]), torch.tensor([[ANSWER, WRONG]]))
    engine = ConeEngine(adapter)
    edge_values(engine, prompts, reader, some[:50], metric=LOGIT_DIFF)
    start = time.process_time()
    before, values = edge_values(engine, prompts, reader, some, metric=LOGIT_DIFF)
    ours = (time.process_time() - start) / args.ours
    own = {edge.name: value - before for edge, value in values.items()}

    model.set_use_attn_result(True)
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)
    found, theirs = their_exact_scores(
        model, clean, corrupted, [edge.name for edge in some[: args.theirs]]
    )
    worst = max(abs(own[name] - score) for name, score in found.items())
    logits = torch.stack([model(torch.tensor([ids]))[0, -1] for ids in (clean, corrupted)])
    scale = abs(float((logits[:, ANSWER] - logits[:, WRONG]).diff()))
    print(
        f"eap {version('eap')}, shape of GPT-2, {args.tokens} tokens, first difference at {first},"
        f" {args.threads} threads"
    )
    print("| | edges | CPU ms an edge | all 32,491 edges, CPU s |\n| --- | ---: | ---: | ---: |")
    for name, n, seconds in (("EAP-IG", args.theirs, theirs), ("anchorlens", args.ours, ours)):
        print(f"| {name} | {n} | {1e3 * seconds:.1f} | {seconds * len(every):,.0f} |")
    print(f"Ratio {theirs / ours:.1f}. Largest difference {worst:.1e}, range {scale:.3f}.")
    sys.exit(worst > ALLOWED * scale)


def their_exact_scores(
    model: HookedTransformer, clean: list[int], corrupted: list[int], names: list[str]
) -> tuple[dict[str, float], float]:
    """Return EAP-IG's exact scores of some edges, and the CPU seconds of an edge."""
    from eap.attribute import get_scores_exact  # pyright: ignore[reportMissingImports]
    from eap.graph import Graph  # pyright: ignore[reportMissingImports]

    graph = Graph.from_model(model)
    # It measures the edges of this dictionary; circuits are evaluated by matrices.
    chosen = {_our_name(name): edge for name, edge in graph.edges.items()}
    graph.edges = {name: chosen[name] for name in names}
    data = [([tuple(clean)], [tuple(corrupted)], None)]
    with _their_code():
        start = time.process_time()
        scores = get_scores_exact(model, graph, data, _difference, quiet=True)
        seconds = (time.process_time() - start) / len(names)
    return {name: float(scores[chosen[name].matrix_index]) for name in names}, seconds


if __name__ == "__main__":
    main()
