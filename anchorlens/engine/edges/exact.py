"""Exact effects of edges.

An edge changes the input of one receiver (:mod:`~anchorlens.engine.edges.changed_inputs`). With
``flow`` everything behind the receiver is recomputed: its changed output is patched, and the cone
engine computes the positions and layers that it reaches. With ``freeze`` all other parts keep their
values of the target's run, so the change is added to the final stream.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.edges.changed_inputs import ChangedInputs, EdgePrompts, change_inputs
from anchorlens.engine.edges.graph import ATTENTION_INPUTS, LOGITS, MLP, Edge, Node
from anchorlens.engine.edges.row_states import embed_row, run_layers
from anchorlens.engine.engine import Engine
from anchorlens.engine.patches import (
    AnchorSwap,
    OnProgress,
    Slots,
    SwapBatch,
    TokenBatch,
    no_progress,
    pad_rows,
)
from anchorlens.engine.readouts import Metrics, Reader
from anchorlens.models.adapter import Adapter

# Changed tokens in one pass of the cone engine.
_PASS_TOKENS = {"cpu": 2048, "cuda": 65536, "mps": 8192}


@dataclass(frozen=True)
class _OutputPatch:
    """Patch of one receiver's output that has the effect of an edge."""

    edge: Edge
    layer: int
    site: str
    swap: AnchorSwap

    @property
    def tokens(self) -> int:
        return self.swap.slots.positions.shape[1]


def edge_values(
    engine: Engine,
    prompts: EdgePrompts,
    reader: Reader,
    edges: Sequence[Edge],
    *,
    metric: str,
    between: str = "direct",
    downstream: str = "flow",
    on_progress: OnProgress = no_progress,
) -> tuple[float, dict[Edge, float]]:
    """Return the metric of the target's run, and with each edge changed.

    Args:
        engine: Engine that recomputes what is behind a receiver.
        prompts: Target and source.
        reader: Reader of the metric, of one row.
        edges: Measured edges.
        metric: Name of the metric in the reader's results.
        between: ``direct``, or ``mlps`` if the MLPs between sender and receiver are recomputed.
        downstream: ``flow`` or ``freeze``.
        on_progress: Progress callback.
    """
    adapter = engine.adapter
    end = int(reader.position.max()) + 1
    final = _final_stream(adapter, prompts.target)
    before = _value(reader, adapter, final[reader.position.to(final.device)][None], metric)[0]
    values: dict[Edge, float] = {}
    waiting: list[_OutputPatch] = []
    wanted: dict[tuple[str, int, Node], list[Edge]] = {}
    for edge in edges:
        key = edge.receiver.kind, edge.receiver.layer, edge.sender
        wanted.setdefault(key, []).append(edge)
    share = 1 / max(1, len(edges))
    most = _PASS_TOKENS.get(adapter.device.type, _PASS_TOKENS["cpu"])

    def run() -> None:
        for edge, value in _flow(engine, prompts, reader, waiting, metric):
            values[edge] = value
            on_progress(share)
        waiting.clear()

    for changed in change_inputs(adapter, prompts, edges, between=between):
        layer = adapter.n_layers if changed.kind == LOGITS else changed.block.layer
        own = [wanted[changed.kind, layer, sender] for sender in changed.senders]
        if changed.kind == LOGITS or downstream == "freeze":
            for edge, value in _frozen(adapter, changed, own, final, reader, metric):
                values[edge] = value
                on_progress(share)
            continue
        for i, some in enumerate(own):
            for edge in some:
                waiting.append(_patch_of(adapter, changed, i, edge, end))
                if sum(patch.tokens for patch in waiting) >= most:
                    run()
    run()
    # Without a position at which the prompts differ nothing changes.
    return before, {edge: values.get(edge, before) for edge in edges}


def _final_stream(adapter: Adapter, ids: tuple[int, ...]) -> Float[Tensor, "pos d_model"]:
    """Return the final stream of a prompt."""
    x = embed_row(adapter, ids)
    with torch.no_grad():
        for _, states in run_layers(adapter, x):
            x = states.post
    return x


def _patch_of(
    adapter: Adapter, changed: ChangedInputs, number: int, edge: Edge, end: int
) -> _OutputPatch:
    """Return the patch with the effect of an edge.

    ``number``: number of the sender.
    """
    used = changed.positions < end
    positions = changed.positions[used].cpu()
    values = changed.outputs[number][used]
    heads = None
    site = "mlp_out"
    if changed.kind in ATTENTION_INPUTS:
        values = rearrange(values, "pos head d_head -> pos (head d_head)")
        heads = changed.heads_of(edge.receiver)
        site = "z"
    streams = values.expand(adapter.n_layers, 1, *values.shape)
    slots = Slots(positions[None], torch.ones(1, len(positions), dtype=torch.bool))
    swap = AnchorSwap(anchor=edge.name, control="none", slots=slots, streams=streams, heads=heads)
    return _OutputPatch(edge, changed.block.layer, site, swap)


def _flow(
    engine: Engine,
    prompts: EdgePrompts,
    reader: Reader,
    patches: Sequence[_OutputPatch],
    metric: str,
) -> Iterator[tuple[Edge, float]]:
    """Yield the metric of each patch, with everything behind it recomputed."""
    tokens = pad_rows([prompts.target])
    for site in dict.fromkeys(patch.site for patch in patches):
        by_layer: dict[int, list[_OutputPatch]] = {}
        for patch in patches:
            if patch.site == site:
                by_layer.setdefault(patch.layer, []).append(patch)
        batches: list[tuple[SwapBatch, list[int]]] = []
        for layer, own in by_layer.items():
            swaps = tuple(patch.swap for patch in own)
            batches.append((SwapBatch(tokens, reader, swaps), [layer]))
        found = engine.run_swap_batches(batches, site=site, window=1)
        for own, (_, after) in zip(by_layer.values(), found, strict=True):
            for patch, metrics in zip(own, after, strict=True):
                yield patch.edge, float(metrics.values[metric].flatten()[0])


def _frozen(
    adapter: Adapter,
    changed: ChangedInputs,
    edges: Sequence[Sequence[Edge]],
    final: Float[Tensor, "pos d_model"],
    reader: Reader,
    metric: str,
) -> Iterator[tuple[Edge, float]]:
    """Yield the metric of each edge, with everything behind the receiver but the final norm and
    the logits frozen.
    """
    place = {position: slot for slot, position in enumerate(changed.positions.tolist())}
    reads = reader.position.tolist()
    at = [number for number, position in enumerate(reads) if position in place]
    if not at:
        return
    slots = [place[reads[number]] for number in at]
    some: list[tuple[int, Edge]] = []
    for number, own in enumerate(edges):
        some += [(number, edge) for edge in own]
    positions = torch.tensor([reads[number] for number in at], device="cpu")
    change = _changes_of(changed, some, slots, positions.to(changed.outputs.device))
    base = final[reader.position.to(final.device)]
    streams = base.float().repeat(len(some), 1, 1)
    streams[:, at] += change.to(streams.device)
    values = _value(reader, adapter, streams.to(final.dtype), metric)
    yield from zip([edge for _, edge in some], values, strict=True)


def _changes_of(
    changed: ChangedInputs,
    edges: Sequence[tuple[int, Edge]],
    slots: Sequence[int],
    positions: Int[Tensor, "read"],
) -> Float[Tensor, "edge read d_model"]:
    """Return the change of what the receivers of some edges add to the stream, in float32.

    Args:
        changed: Outputs of the receivers.
        edges: Number of the sender, and edge.
        slots: Slots of the outputs that are read.
        positions: Positions of these slots.
    """
    states = changed.states
    senders = [number for number, _ in edges]
    outputs = changed.outputs[:, list(slots)][senders]
    if changed.kind == LOGITS:
        return outputs.float() - states.post[positions].float()
    if changed.kind == MLP:
        assert states.mlp is not None  # the graph has MLPs
        return outputs.float() - states.mlp[positions].float()
    before = states.z[positions]
    after = before.repeat(len(edges), 1, 1, 1)
    for number, (_, edge) in enumerate(edges):
        heads = changed.heads_of(edge.receiver)
        own = slice(heads.start, heads.stop)
        after[number, :, own] = outputs[number, :, own].to(after.dtype)
    out = changed.block.attn_out(after.flatten(0, 1)).float()
    return out.unflatten(0, after.shape[:2]) - changed.block.attn_out(before).float()


def _value(
    reader: Reader, adapter: Adapter, states: Float[Tensor, "cell read d_model"], metric: str
) -> list[float]:
    """Return the metric of several final streams at the read positions."""
    metrics: Metrics = reader.metrics(adapter, states)
    return metrics.values[metric].reshape(len(states)).tolist()


__all__ = ["EdgePrompts", "TokenBatch", "edge_values"]
