"""Outputs of receivers with the contribution of one sender to their input changed.

The input of a receiver in the target's run, plus c(source) - c(target), where c is what the sender
adds to the stream (METHOD 4b). Between sender and receiver nothing else changes (``direct``), or
the MLPs are recomputed on the changed stream (``mlps``).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.edges.graph import ATTENTION_INPUTS, EMBED, HEAD, LOGITS, MLP, Edge, Node
from anchorlens.engine.edges.row_states import (
    LayerStates,
    attend,
    embed_row,
    project_and_rotate,
    run_layers,
)
from anchorlens.models.adapter import Adapter
from anchorlens.models.blocks import Block

# Entries of the streams of several senders that are held in one product.
_MOST_ENTRIES = 2**24


@dataclass(frozen=True, kw_only=True)
class EdgePrompts:
    """Target and source of the edges of a pair.

    Attributes:
        target: Token ids of the prompt whose run is changed.
        source: Token ids of the prompt whose contributions are taken.
        at: Positions of the target at which contributions are exchanged, ascending.
        by: Position of the source for each of them.
    """

    target: tuple[int, ...]
    source: tuple[int, ...]
    at: tuple[int, ...]
    by: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ChangedInputs:
    """Receivers of one kind in one layer, with the output of each for every sender.

    Attributes:
        kind: ``q``, ``k``, ``v``, ``mlp`` or ``logits``.
        block: The block; of ``logits``, the last one.
        states: Activations of the target in it.
        senders: Changed senders.
        positions: Positions at which the outputs differ from those of the target.
        outputs: Heads' outputs, [sender pos head d_head], or what the MLP adds, [sender pos
            d_model]; of ``logits`` the final stream, [sender pos d_model].
    """

    kind: str
    block: Block
    states: LayerStates
    senders: tuple[Node, ...]
    positions: Int[Tensor, "output"]
    outputs: Tensor

    def heads_of(self, receiver: Node) -> range:
        """Return the query heads whose output a receiver of queries, keys or values changes."""
        if receiver.kind == "q":
            return range(receiver.head, receiver.head + 1)
        rep = self.states.q.shape[1] // self.states.k.shape[1]
        return range(receiver.head * rep, (receiver.head + 1) * rep)


@torch.no_grad()
def change_inputs(
    adapter: Adapter, prompts: EdgePrompts, edges: Sequence[Edge], *, between: str
) -> Iterator[ChangedInputs]:
    """Yield what the receivers of some edges compute with the changed contribution of each sender,
    in order of layers.

    Args:
        adapter: The model.
        prompts: Target and source.
        edges: Edges whose receivers are computed.
        between: ``direct`` or ``mlps``.
    """
    if not prompts.at:
        return
    deltas = _Deltas(prompts, {edge.sender for edge in edges})
    senders_of: dict[tuple[str, int], list[Node]] = {}
    for edge in edges:
        own = senders_of.setdefault((edge.receiver.kind, edge.receiver.layer), [])
        if edge.sender not in own:
            own.append(edge.sender)
    top = max(edge.receiver.layer for edge in edges)
    x = embed_row(adapter, prompts.target)
    other = embed_row(adapter, prompts.source)
    deltas.add(Node(EMBED, 0), deltas.difference(other, x))
    sources = run_layers(adapter, other)
    for layer, (block, states) in enumerate(run_layers(adapter, x)):
        _, theirs = next(sources)
        for kind in ATTENTION_INPUTS:
            own = senders_of.get((kind, layer), [])
            yield from _change_heads(kind, block, states, deltas, own)
        mlp_senders = senders_of.get((MLP, layer), [])
        if block.parallel:
            yield from _change_mlp(block, states, deltas, mlp_senders)
            if between == "mlps":
                deltas.pass_mlp(block, states)
        if any(node.layer == layer and node.kind == HEAD for node in deltas.wanted):
            deltas.add_heads(block, theirs, states)
        if not block.parallel:
            yield from _change_mlp(block, states, deltas, mlp_senders)
            if between == "mlps":
                deltas.pass_mlp(block, states)
        if states.mlp is not None and theirs.mlp is not None:
            deltas.add(Node(MLP, layer), deltas.difference(theirs.mlp, states.mlp))
        if layer == adapter.n_layers - 1:
            yield from _change_stream(
                block, states, deltas, senders_of.get((LOGITS, layer + 1), [])
            )
        if layer == top:
            return


class _Deltas:
    """Change of the stream for each sender, [changed d_model] in float32, at the exchanged
    positions.

    ``wanted``: senders that are kept.
    """

    def __init__(self, prompts: EdgePrompts, wanted: Collection[Node]) -> None:
        self.wanted = wanted
        self.at = torch.tensor(prompts.at, device="cpu")
        self.by = torch.tensor(prompts.by, device="cpu")
        self._of: dict[Node, Float[Tensor, "changed d_model"]] = {}

    def difference(
        self, source: Float[Tensor, "source_pos *width"], target: Float[Tensor, "target_pos *width"]
    ) -> Tensor:
        """Return the source minus the target at the exchanged positions, in float32."""
        device = target.device
        return source[self.by.to(device)].float() - target[self.at.to(device)].float()

    def add(self, sender: Node, delta: Float[Tensor, "changed d_model"]) -> None:
        """Keep the change of a sender, if it is wanted."""
        if sender in self.wanted:
            self._of[sender] = delta

    def add_heads(self, block: Block, theirs: LayerStates, own: LayerStates) -> None:
        """Keep the changes of the heads of a block."""
        device = own.z.device
        source = block.head_shares(theirs.z[self.by.to(device)])
        target = block.head_shares(own.z[self.at.to(device)])
        for head, delta in enumerate((source - target).unbind(1)):
            self.add(Node(HEAD, block.layer, head), delta)

    def of(
        self, senders: Sequence[Node], device: torch.device
    ) -> Float[Tensor, "sender changed d_model"]:
        """Return the changes of some senders."""
        return torch.stack([self._of[sender].to(device) for sender in senders])

    def pass_mlp(self, block: Block, states: LayerStates) -> None:
        """Add to each change what the MLP of a block makes of it."""
        if states.mlp is None:
            return
        for some in _in_parts(tuple(self._of), len(self.at) * states.pre.shape[1]):
            device = states.pre.device
            delta = self.of(some, device)
            base, out = _mlp_outputs(block, states, self.at, delta)
            for sender, change in zip(some, delta + (out.float() - base.float()), strict=True):
                self._of[sender] = change


def _change_heads(
    kind: str, block: Block, states: LayerStates, deltas: _Deltas, senders: Sequence[Node]
) -> Iterator[ChangedInputs]:
    """Yield the outputs of heads whose queries, keys or values read changed streams."""
    device = states.pre.device
    n = len(states.pre)
    at = deltas.at.to(device)
    # Queries behind the first changed key or value attend to it.
    after = torch.arange(int(deltas.at[0]), n, device=device)
    for some in _in_parts(senders, n * states.q.shape[1] * (n + states.q.shape[2])):
        x = states.pre[at] + deltas.of(some, device)
        cases = len(some)
        tokens = x.to(states.pre.dtype).flatten(0, 1)
        new = project_and_rotate(block, tokens, at.repeat(cases))[ATTENTION_INPUTS.index(kind)]
        new = new.unflatten(0, (cases, -1))
        if kind == "q":
            z = attend(block, new, states.k[None], states.v[None], at)
            yield _pack(kind, block, states, some, at, z)
            continue
        table = (states.k if kind == "k" else states.v).repeat(cases, 1, 1, 1)
        table[:, at] = new.to(table.dtype)
        k = table if kind == "k" else states.k[None]
        v = table if kind == "v" else states.v[None]
        yield _pack(
            kind, block, states, some, after, attend(block, states.q[None, after], k, v, after)
        )


def _change_mlp(
    block: Block, states: LayerStates, deltas: _Deltas, senders: Sequence[Node]
) -> Iterator[ChangedInputs]:
    """Yield what the MLP adds to the stream when it reads changed streams."""
    device = states.pre.device
    for some in _in_parts(senders, 4 * len(deltas.at) * states.pre.shape[1]):
        _, out = _mlp_outputs(block, states, deltas.at, deltas.of(some, device))
        yield _pack(MLP, block, states, some, deltas.at.to(device), out)


def _change_stream(
    block: Block, states: LayerStates, deltas: _Deltas, senders: Sequence[Node]
) -> Iterator[ChangedInputs]:
    """Yield the changed final stream."""
    device = states.pre.device
    at = deltas.at.to(device)
    for some in _in_parts(senders, len(at) * states.pre.shape[1]):
        out = (states.post[at] + deltas.of(some, device)).to(states.pre.dtype)
        yield _pack(LOGITS, block, states, some, at, out)


def _mlp_outputs(
    block: Block,
    states: LayerStates,
    at: Int[Tensor, "changed"],
    delta: Float[Tensor, "sender changed d_model"],
) -> tuple[Tensor, Float[Tensor, "sender changed d_model"]]:
    """Return what the MLP adds to the stream of the target, and to changed streams."""
    assert states.mlp is not None  # the graph has MLPs
    at = at.to(states.pre.device)
    base = (states.pre if block.parallel else states.mid)[at]
    x = (base + delta).to(base.dtype)
    out = block.mlp_out(x.flatten(0, 1))
    assert out is not None
    return states.mlp[at], out.unflatten(0, x.shape[:2])


def _pack(
    kind: str,
    block: Block,
    states: LayerStates,
    senders: Sequence[Node],
    positions: Int[Tensor, "output"],
    outputs: Tensor,
) -> ChangedInputs:
    return ChangedInputs(
        kind=kind,
        block=block,
        states=states,
        senders=tuple(senders),
        positions=positions,
        outputs=outputs,
    )


def _in_parts(senders: Sequence[Node], entries: int) -> Iterator[Sequence[Node]]:
    """Split senders so that a product of ``entries`` per sender fits into memory."""
    size = max(1, _MOST_ENTRIES // max(1, entries))
    for start in range(0, len(senders), size):
        yield senders[start : start + size]
