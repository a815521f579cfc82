"""Compare scores of edges with those of EAP-IG's own code, on a small random GPT-2.

EAP-IG (https://github.com/hannamw/EAP-IG) runs in an environment of its own:

    python -m venv .venv-eap
    .venv-eap/bin/pip install -c constraints.txt -e . git+https://github.com/hannamw/EAP-IG
    .venv-eap/bin/python benchmarks/eap_ig.py

Target is the clean prompt, source the corrupted one: EAP-IG takes gradients in the clean run, and
puts corrupted contributions into it. Its interpolated runs are those of anchorlens: with ``steps``
points it includes the corrupted embeddings and leaves out the clean ones. One pair at a time,
because EAP-IG divides by the size of a batch. Its tokenizer is passed over, and its fixed device
``cuda`` is replaced by the CPU; everything else is its own code.

Prints the largest difference over all edges and pairs. Exit code 1 if it exceeds 1e-4 of the
metric, or 1e-4 of the largest score.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import Any
from unittest import mock

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformer_lens import HookedTransformer, HookedTransformerConfig

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.edges.activation_attribution import activation_scores
from anchorlens.engine.edges.attribution import attribution_scores
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.exact import edge_values
from anchorlens.engine.readouts import LOGIT_DIFF, LogitDiffReader
from anchorlens.models.load import adapt
from anchorlens.protocols.edges.edge_inputs import graph_of

SEED, ALLOWED = 0, 1e-4
VOCAB, LENGTH = 200, 12
ANSWER, WRONG = 7, 9
# Position of the first token that differs.
FIRST = 4
STEPS = (1, 5, 30)

Scores = Mapping[str, float]
Ids = tuple[int, ...]


def random_model(
    n_layers: int, n_heads: int, d_model: int, n_kv_heads: int | None = None
) -> HookedTransformer:
    """Return a GPT-2 shape with random weights, so large that attention and norms matter; with
    grouped queries if it has fewer key/value heads.
    """
    config = HookedTransformerConfig(
        n_layers=n_layers,
        d_model=d_model,
        n_ctx=4 * LENGTH,
        n_heads=n_heads,
        n_key_value_heads=n_kv_heads,
        d_head=d_model // n_heads,
        d_mlp=4 * d_model,
        d_vocab=VOCAB,
        act_fn="gelu_new",
        normalization_type="LN",
        device="cpu",
    )
    model = HookedTransformer(config, move_to_device=False)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(".w"):  # of a norm
                parameter.copy_(1 + 0.3 * noise)
            elif ".b" in name:
                parameter.copy_(0.3 * noise)
            elif "embed.W" in name and "un" not in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(1.5 * noise / d_model**0.5)
    return model.eval()


class _OnCPU(TorchFunctionMode):
    """Makes tensors on the CPU where the device ``cuda`` is named."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if named.get("device") == "cuda":
            named["device"] = "cpu"
        return func(*args, **named)


def _tokens_of(
    model: HookedTransformer,  # noqa: ARG001
    inputs: Sequence[Ids],
    max_length: int | None = None,  # noqa: ARG001
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"], Int[Tensor, "batch"], int]:
    """Return token ids as EAP-IG's ``tokenize_plus`` returns them, with mask and lengths."""
    tokens = torch.tensor([list(row) for row in inputs])
    mask = torch.ones_like(tokens)
    return tokens, mask, mask.sum(1), tokens.shape[1]


@contextmanager
def _their_code() -> Iterator[None]:
    """Let EAP-IG run on token ids and on a CPU."""
    import eap.attribute  # pyright: ignore[reportMissingImports]
    import eap.evaluate  # pyright: ignore[reportMissingImports]

    with ExitStack() as stack:
        for module in (eap.attribute, eap.evaluate):
            stack.enter_context(mock.patch.object(module, "tokenize_plus", _tokens_of))
        stack.enter_context(_OnCPU())
        yield


def _difference(logits: Float[Tensor, "batch pos d_vocab"], *_: object) -> Float[Tensor, "batch"]:
    """Return the logit difference at the last position."""
    return logits[:, -1, ANSWER] - logits[:, -1, WRONG]


def _mean_difference(logits: Float[Tensor, "batch pos d_vocab"], *_: object) -> Float[Tensor, ""]:
    return _difference(logits).mean()


def their_scores(
    model: HookedTransformer, clean: Ids, corrupted: Ids, *, method: str, steps: int = 0
) -> Scores:
    """Return EAP-IG's scores of all edges, by our names; ``method``: ``EAP``, ``EAP-IG``,
    ``EAP-IG activations`` or ``exact``.
    """
    from eap import attribute  # pyright: ignore[reportMissingImports]
    from eap.graph import Graph  # pyright: ignore[reportMissingImports]

    graph = Graph.from_model(model)
    data = [([clean], [corrupted], None)]
    with _their_code():
        if method == "exact":
            scores = attribute.get_scores_exact(model, graph, data, _difference, quiet=True)
        elif method == "EAP":
            scores = attribute.get_scores_eap(model, graph, data, _mean_difference, quiet=True)
        elif method == "EAP-IG":
            scores = attribute.get_scores_eap_ig(
                model, graph, data, _mean_difference, steps=steps, quiet=True
            )
        else:
            scores = attribute.get_scores_ig_activations(
                model, graph, data, _mean_difference, steps=steps, quiet=True
            )
    return {_our_name(name): float(scores[edge.matrix_index]) for name, edge in graph.edges.items()}


def _our_name(name: str) -> str:
    """Return our name of an edge.

    >>> _our_name("input->a1.h2<q>"), _our_name("m0->logits")
    ('embed -> a1.h2.q', 'm0 -> logits')
    """
    sender, _, receiver = name.partition("->")
    sender = "embed" if sender == "input" else sender
    return f"{sender} -> {receiver.replace('<', '.').replace('>', '')}"


def our_scores(
    model: HookedTransformer, clean: Ids, corrupted: Ids, *, method: str, steps: int = 0
) -> Scores:
    """Return our scores of all edges, with the same arguments."""
    adapter = adapt(model)
    graph = graph_of(adapter)
    edges = graph.edges(graph.senders, graph.receivers)
    at = tuple(range(len(clean)))
    prompts = EdgePrompts(target=clean, source=corrupted, at=at, by=at)
    if method == "exact":
        reader = LogitDiffReader(torch.tensor([len(clean) - 1]), torch.tensor([[ANSWER, WRONG]]))
        before, values = edge_values(ConeEngine(adapter), prompts, reader, edges, metric=LOGIT_DIFF)
        return {edge.name: value - before for edge, value in values.items()}

    def metric(stream: Float[Tensor, "pos d_model"]) -> Float[Tensor, ""]:
        return _mean_difference(adapter.read.logits(stream[-1:])[None])

    score = activation_scores if method == "EAP-IG activations" else attribution_scores
    scores = score(adapter, prompts, metric, edges, steps=steps)
    return {edge.name: score for edge, score in scores.items()}


def random_pair(generator: torch.Generator) -> tuple[Ids, Ids]:
    """Return two prompts that differ from position ``FIRST`` on."""
    clean, other = torch.randint(10, VOCAB, (2, LENGTH), generator=generator).tolist()
    return tuple(clean), tuple(clean[:FIRST] + other[FIRST:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3, help="number of pairs (default: 3)")
    parser.add_argument("--layers", type=int, default=3, help="layers (default: 3)")
    parser.add_argument("--heads", type=int, default=4, help="heads of a layer (default: 4)")
    parser.add_argument("--width", type=int, default=48, help="d_model (default: 48)")
    args = parser.parse_args()
    model = random_model(args.layers, args.heads, args.width)
    # What EAP-IG needs switched on.
    theirs = random_model(args.layers, args.heads, args.width)
    theirs.set_use_attn_result(True)
    theirs.set_use_split_qkv_input(True)
    theirs.set_use_hook_mlp_in(True)
    generator = torch.Generator().manual_seed(SEED)
    pairs = [random_pair(generator) for _ in range(args.pairs)]
    methods = [("exact", 0), ("EAP", 0)]
    for method in ("EAP-IG", "EAP-IG activations"):
        methods += [(method, steps) for steps in STEPS]
    print(
        f"eap {version('eap')}, transformer-lens {version('transformer-lens')},"
        f" torch {torch.__version__}, {args.layers} layers, {args.heads} heads,"
        f" d_model {args.width}, {LENGTH} tokens, {len(pairs)} pairs"
    )
    print("| scores | edges | largest score | largest difference | CPU s, EAP-IG | CPU s, here |")
    print("|---|---:|---:|---:|---:|---:|")
    failed = False
    for method, steps in methods:
        largest, worst, n, seconds = 0.0, 0.0, 0, [0.0, 0.0]
        for clean, corrupted in pairs:
            start = time.process_time()
            right = their_scores(theirs, clean, corrupted, method=method, steps=steps)
            middle = time.process_time()
            own = our_scores(model, clean, corrupted, method=method, steps=steps)
            seconds[0] += middle - start
            seconds[1] += time.process_time() - middle
            assert own.keys() == right.keys()
            n += len(own)
            largest = max(largest, *map(abs, right.values()))
            worst = max(worst, *(abs(own[edge] - right[edge]) for edge in own))
        failed |= worst > ALLOWED * min(1.0, largest)
        name = f"{method}, {steps} step{'s' if steps > 1 else ''}" if steps else method
        print(
            f"| {name} | {n} | {largest:.3f} | {worst:.1e} | {seconds[0]:.2f} | {seconds[1]:.2f} |"
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
