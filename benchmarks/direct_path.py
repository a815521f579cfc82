"""CPU seconds of direct paths beside TransformerLens' own function, on SmolLM2.

It needs transformer-lens 4.3 or newer:

    .venv-tl4/bin/python benchmarks/direct_path.py

One pair of 16 tokens with the first difference at a third; from head 0 of some layers to the
queries of every later head. TransformerLens runs one forward pass for each pair of heads. The same
function of anchorlens also measures some cells by forward passes as a check; the engine alone is
that of ``al.edge_sweep``, on the same edges. Then the engine measures edges that are drawn over all
layers, ``--drawn`` of every kind and as many from heads to queries: head 0 of a few layers is no
fair draw, because an edge costs the more the lower its receiver is. Prints the largest difference
of the metric; exit code 1 if it exceeds 1e-4 of the metric's range.
"""

import argparse
import random
import sys
import time
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from transformer_lens import patching as theirs

import anchorlens as al
from anchorlens import patching as ours
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.exact import edge_values
from anchorlens.engine.readouts import LOGIT_DIFF, LogitDiffReader
from anchorlens.models.load import adapt
from anchorlens.protocols.edges.edge_inputs import graph_of

ALLOWED = 1e-4
ANSWER, WRONG = 1001, 1002


def metric(logits: Tensor) -> Tensor:
    """Return the logit difference at the last position."""
    return logits[0, -1, ANSWER] - logits[0, -1, WRONG]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--layers", default="0,6,12,18,24", help="layers of the source heads")
    parser.add_argument("--drawn", type=int, default=2000, help="edges drawn over all layers")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    model: Any = al.load_model("smollm2-135m-instruct", progress=False)
    rng = random.Random(0)
    clean = torch.tensor([[rng.randrange(1000, 9000) for _ in range(args.tokens)]])
    corrupted = clean.clone()
    corrupted[0, args.tokens // 3] = rng.randrange(1000, 9000)
    caches = [model.run_with_cache(tokens)[1] for tokens in (clean, corrupted)]
    seconds = {"TransformerLens": 0.0, "anchorlens": 0.0, "engine alone": 0.0}
    each = dict.fromkeys(seconds, 0)
    worst = 0.0
    scale = abs(float(metric(model(clean)) - metric(model(corrupted))))
    # The first call of each makes what later calls share.
    for module in (theirs, ours):
        module.get_act_patch_direct_path(
            model, corrupted, *caches, metric, model.cfg.n_layers - 2, 0, "q", verbose=False
        )
    adapter = adapt(model)
    graph = graph_of(adapter)
    at = tuple(range(args.tokens // 3, args.tokens))
    target, source = (tuple(tokens[0].tolist()) for tokens in (corrupted, clean))
    prompts = EdgePrompts(target=target, source=source, at=at, by=at)
    reader = LogitDiffReader(torch.tensor([args.tokens - 1]), torch.tensor([[ANSWER, WRONG]]))
    engine = ConeEngine(adapter)
    for layer in map(int, args.layers.split(",")):
        edges = graph.edges(
            graph.choose([f"a{layer}.h0"], "senders"), graph.choose(["q"], "receivers")
        )
        start = time.process_time()
        _, values = edge_values(engine, prompts, reader, edges, metric=LOGIT_DIFF)
        seconds["engine alone"] += time.process_time() - start
        found: list[Tensor] = []
        for name, module in (("TransformerLens", theirs), ("anchorlens", ours)):
            start = time.process_time()
            result = module.get_act_patch_direct_path(
                model, corrupted, *caches, metric, layer, 0, "q", verbose=False
            )
            seconds[name] += time.process_time() - start
            found.append(result)
        worst = max(worst, float((found[0] - found[1]).abs().max()))
        for edge, value in values.items():
            end = edge.receiver
            worst = max(worst, abs(value - float(found[0][end.layer, end.head])))
        for name in each:
            each[name] += (model.cfg.n_layers - layer - 1) * model.cfg.n_heads
    for name, senders, receivers in (
        ("engine, edges of every kind", "all", "all"),
        ("engine, heads to queries", "heads", "q"),
    ):
        every = graph.edges(
            graph.choose([senders], "senders"), graph.choose([receivers], "receivers")
        )
        some = rng.sample(every, min(args.drawn, len(every)))
        start = time.process_time()
        edge_values(engine, prompts, reader, some, metric=LOGIT_DIFF)
        seconds[name] = time.process_time() - start
        each[name] = len(some)
    print(
        f"transformer-lens {version('transformer-lens')}, SmolLM2, {args.tokens} tokens, first"
        f" difference at {args.tokens // 3}, {args.threads} threads"
    )
    print("| | edges | CPU seconds | an edge, ms | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    theirs_each = seconds["TransformerLens"] / each["TransformerLens"]
    for name, own in seconds.items():
        an_edge = own / each[name]
        ratio = theirs_each / an_edge
        print(f"| {name} | {each[name]} | {own:.1f} | {1e3 * an_edge:.1f} | {ratio:.1f} |")
    print(f"Largest difference {worst:.1e}, range {scale:.3f}.")
    sys.exit(worst > ALLOWED * scale)


if __name__ == "__main__":
    main()
