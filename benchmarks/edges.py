"""CPU seconds of exact edges, beside one bare forward pass for each edge and the FLOP bound.

    python benchmarks/edges.py                      # SmolLM2, 16 tokens, 2,000 edges of all layers
    python benchmarks/edges.py --model gpt2-shape   # random weights in the shape of GPT-2

The first different token is at a third of the prompt. The bound is the time of the operations that
the plan counts, at the rate of a matrix product measured in the same run.
"""

import argparse
import random
import time
from collections.abc import Callable

import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.edge_cost import edge_flops
from anchorlens.engine.edges.exact import edge_values
from anchorlens.engine.readouts import LOGIT_DIFF, LogitDiffReader
from anchorlens.models.load import adapt, load_model
from anchorlens.protocols.edges.edge_inputs import graph_of

GPT2 = {
    "n_layers": 12,
    "d_model": 768,
    "n_heads": 12,
    "d_head": 64,
    "d_mlp": 3072,
    "d_vocab": 50257,
    "n_ctx": 128,
    "act_fn": "gelu_new",
    "normalization_type": "LN",
    "seed": 0,
    "device": "cpu",
}


def cpu_seconds(function: Callable[[], object], repeats: int = 1) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - start) / repeats


def matrix_rate(width: int, inner: int, tokens: int = 1024) -> float:
    """Return the operations per CPU second of a product in the size of an MLP."""
    x, weight = torch.randn(tokens, width), torch.randn(width, inner)
    x @ weight
    return 2.0 * tokens * width * inner / cpu_seconds(lambda: x @ weight, 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--edges", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    if given.model == "gpt2-shape":
        model = HookedTransformer(HookedTransformerConfig(**GPT2))
    else:
        model = load_model(given.model, progress=False)
    adapter = adapt(model)
    shape, graph = adapter.shape, graph_of(adapter)
    rng = random.Random(0)
    target = [rng.randrange(1000, 9000) for _ in range(given.tokens)]
    source = list(target)
    first = given.tokens // 3
    source[first] = rng.randrange(1000, 9000)
    at = tuple(range(first, given.tokens))
    prompts = EdgePrompts(target=tuple(target), source=tuple(source), at=at, by=at)
    reader = LogitDiffReader(torch.tensor([given.tokens - 1]), torch.tensor([[1001, 1002]]))
    every = graph.edges(graph.senders, graph.receivers)
    some = rng.sample(every, min(given.edges, len(every)))
    engine = ConeEngine(adapter)

    def run(edges: list, **how: str) -> None:
        edge_values(engine, prompts, reader, edges, metric=LOGIT_DIFF, **how)

    tokens = torch.tensor([target])
    model(tokens)
    run(some[:50])
    forward = cpu_seconds(lambda: model(tokens), 10)
    exact = cpu_seconds(lambda: run(some))
    forward = min(forward, cpu_seconds(lambda: model(tokens), 10))
    rate = matrix_rate(shape.d_model, shape.d_mlp)
    bound = edge_flops(shape, prompts, some, end=given.tokens) / rate
    frozen = cpu_seconds(lambda: run(list(every), downstream="freeze"))
    frozen_bound = edge_flops(shape, prompts, every, end=given.tokens, frozen=True) / rate
    n = len(some)
    print(f"{given.model}: {given.tokens} tokens, first difference at {first}, {n} edges of")
    print(f"  {len(every):,}; {given.threads} threads, {rate / 1e9:.0f} GFLOP a CPU second")
    print("| | CPU seconds | an edge, ms | bound, CPU s | share of the bound |")
    print("| --- | --- | --- | --- | --- |")
    print(
        f"| `flow`, {n} edges | {exact:.1f} | {1e3 * exact / n:.1f} | {bound:.1f} |"
        f" {bound / exact:.0%} |"
    )
    print(
        f"| `freeze`, all {len(every):,} | {frozen:.1f} | {1e3 * frozen / len(every):.2f} |"
        f" {frozen_bound:.1f} | {frozen_bound / frozen:.0%} |"
    )
    print(
        f"One bare forward pass: {1e3 * forward:.0f} ms; one for each edge takes"
        f" {n * forward / exact:.1f} times as long as `flow`."
    )
    print(f"All {len(every):,} edges: {len(every) * exact / n:.0f} CPU s, extrapolated.")


if __name__ == "__main__":
    main()
