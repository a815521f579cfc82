"""Attribution scores of edges by integrated gradients over activations (Hanna et al. 2024).

The gradient of every receiver is the mean over runs of the target in which what one node writes is
interpolated between target and source: the embedding, the attention of one layer (all heads
together) or its MLP, in equal steps from the target's own value on. The interpolated value is a
constant: no gradient goes through it.

Below the interpolated node all runs are those of the target. A gradient goes through a block
linearly, so the gradients of all these runs are added and go through the lower blocks together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.edges.attribution import (
    Gradients,
    StreamStates,
    add_gradients,
    attention_gradient,
    block_gradients,
    mlp_gradient,
    score_edges,
)
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.graph import Edge
from anchorlens.engine.edges.row_states import embed_row, run_layers
from anchorlens.engine.patches import OnProgress, no_progress
from anchorlens.engine.site_gradients import StreamMetric
from anchorlens.models.adapter import Adapter

Stream = Float[Tensor, "pos d_model"]


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """A block in the target's run.

    Attributes:
        states: Streams before the block and behind its attention.
        attn: Output of attention, as it is added to the stream.
        mlp: Output of the MLP, as it is added; None without an MLP.
        attn_change: Output of attention in the source's run minus ``attn``; 0 at positions that
            are not exchanged.
        mlp_change: The same of the MLP.
    """

    states: StreamStates
    attn: Stream
    mlp: Stream | None
    attn_change: Stream
    mlp_change: Stream | None


def activation_scores(
    adapter: Adapter,
    prompts: EdgePrompts,
    metric: StreamMetric,
    edges: Sequence[Edge],
    *,
    steps: int,
    on_progress: OnProgress = no_progress,
) -> dict[Edge, float]:
    """Return the score of each edge by integrated gradients over activations, in the unit of the
    metric.

    Args:
        adapter: The model.
        prompts: Target and source.
        metric: Metric of the target's final stream.
        edges: Scored edges.
        steps: Number of interpolated runs of each node.
        on_progress: Progress callback.
    """
    if not prompts.at:  # nothing is exchanged
        return dict.fromkeys(edges, 0.0)
    x, change = _embedding(adapter, prompts)
    layers = _layers(adapter, prompts)
    runs = _InterpolatedRuns(
        adapter=adapter,
        metric=metric,
        shares=[step / steps for step in range(steps)],
        lowest=min(edge.receiver.layer for edge in edges),
    )
    # Of the stream before the block above, summed over the runs of all nodes from there on.
    carried = torch.zeros_like(x, dtype=torch.float32)
    for number in reversed(range(len(layers))):
        carried = runs.add_block(number, layers[number], carried)
        on_progress(1 / (len(layers) + 2))
    for share in runs.shares:
        runs.add_from(0, x + share * change)
    on_progress(1 / (len(layers) + 2))
    n_runs = steps * (1 + sum(1 if layer.mlp is None else 2 for layer in layers))
    means = {node: gradient / n_runs for node, gradient in runs.found.items()}
    scores = score_edges(adapter, prompts, means, edges)
    on_progress(1 / (len(layers) + 2))
    return scores


@dataclass(frozen=True, kw_only=True)
class _InterpolatedRuns:
    """Runs of the target in which what one node writes is interpolated.

    Attributes:
        adapter: The model.
        metric: Metric of the final stream.
        shares: Interpolated shares of the change.
        lowest: Block below which no gradients are needed.
        found: Gradients of the receivers, summed over the runs.
    """

    adapter: Adapter
    metric: StreamMetric
    shares: Sequence[float]
    lowest: int
    found: Gradients = field(default_factory=dict)

    def add_from(self, first: int, x: Stream) -> Stream:
        """Run the blocks from ``first`` on, add the gradients of their receivers, and return that
        of the stream ``x`` before them.
        """
        gradient = add_gradients(
            self.adapter, x, self.metric, self.found, first=first, lowest=self.lowest
        )
        return gradient.to(x.device)

    def add_block(self, number: int, layer: _Layer, carried: Stream) -> Stream:
        """Add the gradients of the runs in which the attention or the MLP of a block is
        interpolated.

        Args:
            number: Number of the block.
            layer: The block in the target's run.
            carried: Gradient of the stream after the block, summed over the runs of nodes above.

        Returns:
            Gradient of the stream before the block, summed over all these runs.
        """
        own, blocks = layer.states, self.adapter.blocks()
        # The MLP is interpolated: its output is a constant, and what is below is the target's.
        of_mid = torch.zeros_like(own.pre, dtype=torch.float32)
        if layer.mlp is not None and layer.mlp_change is not None:
            for share in self.shares:
                post = own.mid + layer.mlp + share * layer.mlp_change
                of_mid += self.add_from(number + 1, post)
        # Attention is interpolated: the MLP reads another stream in each run.
        runs: list[tuple[Stream, Stream]] = []
        for share in self.shares:
            mid = own.pre + layer.attn + share * layer.attn_change
            with torch.no_grad(), blocks.load(number) as block:
                read = own.pre if block.parallel else mid
                out = block.mlp_out(read)
            runs.append((read, self.add_from(number + 1, mid if out is None else mid + out)))
        if number < self.lowest:  # no receiver is left below
            return carried
        with blocks.load(number) as block:
            of_pre = block_gradients(block, own, carried.to(own.pre.device), self.found)
            of_pre = of_pre + of_mid + attention_gradient(block, own.pre, of_mid, self.found)
            for read, after in runs:
                of_pre = of_pre + after + mlp_gradient(block, read, after, self.found)
        return of_pre


@torch.no_grad()
def _embedding(adapter: Adapter, prompts: EdgePrompts) -> tuple[Stream, Stream]:
    """Return the target's embedding, and the source's minus it."""
    target, source = embed_row(adapter, prompts.target), embed_row(adapter, prompts.source)
    return target, _change(target, source, prompts)


def _change(
    target: Stream, source: Float[Tensor, "source_pos d_model"], prompts: EdgePrompts
) -> Stream:
    """Return source minus target at the exchanged positions, 0 elsewhere."""
    change = torch.zeros_like(target)
    at = torch.tensor(prompts.at, device=target.device)
    by = torch.tensor(prompts.by, device=target.device)
    change[at] = source[by] - target[at]
    return change


@torch.no_grad()
def _layers(adapter: Adapter, prompts: EdgePrompts) -> list[_Layer]:
    """Run target and source."""
    theirs = run_layers(adapter, embed_row(adapter, prompts.source))
    found: list[_Layer] = []
    for block, own in run_layers(adapter, embed_row(adapter, prompts.target)):
        attn = block.attn_out(own.z)
        _, other = next(theirs)
        mlp_change = None
        if own.mlp is not None and other.mlp is not None:
            mlp_change = _change(own.mlp, other.mlp, prompts)
        layer = _Layer(
            states=StreamStates(own.pre, own.mid),
            attn=attn,
            mlp=own.mlp,
            attn_change=_change(attn, block.attn_out(other.z), prompts),
            mlp_change=mlp_change,
        )
        found.append(layer)
    return found
