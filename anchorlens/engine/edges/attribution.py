"""Attribution scores of edges: the first-order estimate of their effect.

The score of an edge is the sum over positions of the sender's change times the gradient of the
metric with respect to the receiver's input (edge attribution patching, Syed et al. 2023). With
integrated gradients the gradient is the mean over interpolated runs: over embeddings between those
of target and source (EAP-IG, Hanna et al. 2024). All receivers' gradients of one run come from one
forward and one backward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.graph import ATTENTION_INPUTS, EMBED, HEAD, LOGITS, MLP, Edge, Node
from anchorlens.engine.edges.row_states import (
    attend,
    embed_row,
    run_layers,
)
from anchorlens.engine.patches import OnProgress, no_progress
from anchorlens.engine.site_gradients import StreamMetric
from anchorlens.models.adapter import Adapter
from anchorlens.models.blocks import Block

Gradients = dict[Node, Float[Tensor, "pos d_model"]]
"""Receiver -> gradient of the metric with respect to its input, in float32."""


@dataclass(frozen=True)
class StreamStates:
    """Stream before a block and between its attention and MLP, kept for the backward pass."""

    pre: Float[Tensor, "pos d_model"]
    mid: Float[Tensor, "pos d_model"]


def attribution_scores(
    adapter: Adapter,
    prompts: EdgePrompts,
    metric: StreamMetric,
    edges: Sequence[Edge],
    *,
    steps: int = 0,
    on_progress: OnProgress = no_progress,
) -> dict[Edge, float]:
    """Return the attribution score of each edge, in the unit of the metric.

    Args:
        adapter: The model.
        prompts: Target and source.
        metric: Metric of the target's final stream.
        edges: Scored edges.
        steps: Number of interpolated runs of integrated gradients; 0 for the gradient of the
            target's run. With more, target and source must have paired positions alone.
        on_progress: Progress callback.
    """
    if not prompts.at:  # nothing is exchanged
        return dict.fromkeys(edges, 0.0)
    receivers = {edge.receiver for edge in edges}
    n_runs = max(1, steps)
    x = embed_row(adapter, prompts.target)
    other = x
    if steps:
        other = x.clone()
        by = torch.tensor(prompts.by, device=x.device)
        at = torch.tensor(prompts.at, device=x.device)
        other[at] = embed_row(adapter, prompts.source)[by]
    gradients: Gradients = {}
    for step in range(1, n_runs + 1):
        share = step / n_runs if steps else 0.0
        own = input_gradients(adapter, x + share * (other - x), metric, receivers)
        for node, gradient in own.items():
            gradients[node] = gradients.get(node, 0.0) + gradient / n_runs
        on_progress(1 / (n_runs + 1))
    scores = score_edges(adapter, prompts, gradients, edges)
    on_progress(1 / (n_runs + 1))
    return scores


def score_edges(
    adapter: Adapter, prompts: EdgePrompts, gradients: Gradients, edges: Sequence[Edge]
) -> dict[Edge, float]:
    """Return the change of each edge's sender times the gradient of its receiver, summed over the
    exchanged positions.
    """
    changes = contributions(adapter, prompts, {edge.sender for edge in edges})
    ends = {edge.receiver: gradients[edge.receiver].cpu() for edge in edges}
    table = torch.zeros(len(changes), len(ends), dtype=torch.float64, device="cpu")
    for number, position in enumerate(prompts.at):
        own_changes = torch.stack([change[number].cpu() for change in changes.values()])
        own_gradients = torch.stack([gradient[position] for gradient in ends.values()])
        table += einsum(
            own_changes.double(),
            own_gradients.double(),
            "sender d_model, receiver d_model -> sender receiver",
        )
    rows = dict(zip(changes, table.tolist(), strict=True))
    columns = {node: number for number, node in enumerate(ends)}
    return {edge: rows[edge.sender][columns[edge.receiver]] for edge in edges}


@torch.no_grad()
def contributions(
    adapter: Adapter, prompts: EdgePrompts, senders: "set[Node]"
) -> dict[Node, Float[Tensor, "changed d_model"]]:
    """Return what each sender adds in the source's run minus what it adds in the target's, at the
    exchanged positions, in float32.
    """
    at = torch.tensor(prompts.at, device=adapter.device)
    by = torch.tensor(prompts.by, device=adapter.device)
    target = embed_row(adapter, prompts.target)
    source = embed_row(adapter, prompts.source)
    out = {Node(EMBED, 0): source[by].float() - target[at].float()}
    theirs = run_layers(adapter, source)
    for layer, (block, own) in enumerate(run_layers(adapter, target)):
        _, other = next(theirs)
        at, by = at.to(own.z.device), by.to(own.z.device)
        shares = block.head_shares(other.z[by]) - block.head_shares(own.z[at])
        for head, change in enumerate(shares.unbind(1)):
            out[Node(HEAD, layer, head)] = change
        if own.mlp is not None and other.mlp is not None:
            out[Node(MLP, layer)] = other.mlp[by].float() - own.mlp[at].float()
    return {node: change for node, change in out.items() if node in senders}


def input_gradients(
    adapter: Adapter,
    x: Float[Tensor, "pos d_model"],
    metric: StreamMetric,
    receivers: "set[Node]",
) -> Gradients:
    """Return the gradient of the metric with respect to the input of each receiver.

    Args:
        adapter: The model.
        x: Stream before block 0.
        metric: Metric of the final stream.
        receivers: Receivers.
    """
    found: Gradients = {}
    add_gradients(adapter, x, metric, found, lowest=min(node.layer for node in receivers))
    return {node: own for node, own in found.items() if node in receivers}


def add_gradients(
    adapter: Adapter,
    x: Float[Tensor, "pos d_model"],
    metric: StreamMetric,
    found: Gradients,
    *,
    first: int = 0,
    lowest: int = 0,
) -> Float[Tensor, "pos d_model"]:
    """Run the blocks from ``first`` on, and add to ``found`` the gradient of the metric with
    respect to the input of each of their receivers.

    Args:
        adapter: The model.
        x: Stream before block ``first``.
        metric: Metric of the final stream.
        found: Gradients that are added to.
        first: First block.
        lowest: Block below which no gradients are needed.

    Returns:
        Gradient of the stream before the lowest of these blocks, in float32.
    """
    layers: list[StreamStates] = []
    with torch.no_grad():
        for _, states in run_layers(adapter, x, first):
            layers.append(StreamStates(states.pre, states.mid))
            x = states.post
    final = x.detach().requires_grad_(True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(metric(final), final)
    gradient = gradient.float()
    _add(found, Node(LOGITS, adapter.n_layers), gradient)
    blocks = adapter.blocks()
    for layer in reversed(range(max(first, lowest), adapter.n_layers)):
        with blocks.load(layer) as block:
            gradient = block_gradients(
                block, layers[layer - first], gradient.to(block.device), found
            )
    return gradient


def _add(gradients: Gradients, node: Node, gradient: Float[Tensor, "pos d_model"]) -> None:
    gradients[node] = gradients[node] + gradient if node in gradients else gradient


def block_gradients(
    block: Block,
    states: StreamStates,
    after: Float[Tensor, "pos d_model"],
    gradients: Gradients,
) -> Float[Tensor, "pos d_model"]:
    """Backpropagate through a block.

    Args:
        block: The block.
        states: Streams before its attention and its MLP.
        after: Gradient of the stream after the block.
        gradients: Receives the gradients of the receivers of the block.

    Returns:
        The gradient of the stream before the block.
    """
    of_mlp = mlp_gradient(block, states.pre if block.parallel else states.mid, after, gradients)
    of_mid = after if block.parallel else after + of_mlp
    of_pre = of_mid + (of_mlp if block.parallel else 0.0)
    return of_pre + attention_gradient(block, states.pre, of_mid, gradients)


@torch.enable_grad()
def mlp_gradient(
    block: Block,
    x: Float[Tensor, "pos d_model"],
    out_gradient: Float[Tensor, "pos d_model"],
    gradients: Gradients,
) -> Float[Tensor, "pos d_model"]:
    """Backpropagate through a block's MLP.

    Args:
        block: The block.
        x: Stream that the MLP reads.
        out_gradient: Gradient of what the MLP adds to the stream.
        gradients: Receives the gradient of ``x``.

    Returns:
        The gradient of ``x``.
    """
    read = x.detach().requires_grad_(True)
    out = block.mlp_out(read)
    if out is None:
        return torch.zeros_like(out_gradient)
    (gradient,) = torch.autograd.grad(out, read, out_gradient.to(x.dtype))
    _add(gradients, Node(MLP, block.layer), gradient.float())
    return gradient.float()


@torch.enable_grad()
def attention_gradient(
    block: Block,
    x: Float[Tensor, "pos d_model"],
    out_gradient: Float[Tensor, "pos d_model"],
    gradients: Gradients,
) -> Float[Tensor, "pos d_model"]:
    """Backpropagate through a block's attention.

    Args:
        block: The block.
        x: Stream that attention reads.
        out_gradient: Gradient of what attention adds to the stream.
        gradients: Receives the gradients of the inputs of queries, keys and values.

    Returns:
        Their sum, the gradient of ``x``.
    """
    total = torch.zeros_like(out_gradient)
    for node, own in _attention_gradients(block, x, out_gradient.to(x.dtype)):
        _add(gradients, node, own)
        total = total + own
    return total


def _attention_gradients(
    block: Block, x: Float[Tensor, "pos d_model"], out_gradient: Float[Tensor, "pos d_model"]
) -> list[tuple[Node, Float[Tensor, "pos d_model"]]]:
    """Return the gradient of the input of each query, key and value head of a block.

    ``out_gradient``: gradient of what its attention adds to the stream.
    """
    x = x.detach().requires_grad_(True)
    at = torch.arange(len(x), device=x.device)
    projected = block.project(x)
    inputs = [heads.detach().requires_grad_(True) for heads in projected]
    block.reserve(len(x) - 1)
    angles = block.angles(at)
    q = block.rotate_(inputs[0], angles)
    k = block.rotate_(inputs[1], angles)
    z = attend(block, q[None], k[None], inputs[2][None], at)[0]
    input_gradients = torch.autograd.grad(block.attn_out(z), inputs, out_gradient)
    gradients: list[tuple[Node, Tensor]] = []
    for kind, heads, of_heads in zip(ATTENTION_INPUTS, projected, input_gradients, strict=True):
        for head in range(heads.shape[1]):
            (of_head,) = torch.autograd.grad(
                heads[:, head], x, of_heads[:, head], retain_graph=True
            )
            gradients.append((Node(kind, block.layer, head), of_head.float()))
    return gradients
