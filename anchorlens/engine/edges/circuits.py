"""Runs of circuits: every receiver reads the running contributions of its edges in the circuit, and
the ablated contributions of all other senders (METHOD 4b).

The contributions of a run are kept as differences from the ablated ones. What a receiver reads is
the ablated stream plus the differences of its edges, so several circuits are one batch. Only the
positions behind the first difference of the prompts are computed.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from anchorlens.engine.edges.graph import ATTENTION_INPUTS, EMBED, HEAD, LOGITS, MLP, Edge, Graph
from anchorlens.engine.edges.row_states import (
    LayerStates,
    attend,
    embed_row,
    project_and_rotate,
    run_layers,
)
from anchorlens.engine.patches import common_prefix
from anchorlens.engine.readouts import Reader
from anchorlens.models.adapter import Adapter
from anchorlens.models.blocks import Block

Ids = tuple[int, ...]
Masks = Bool[Tensor, "circuit place receiver sender"]
Differences = Float[Tensor, "circuit sender changed d_model"]

# Entries of the differences of the circuits that run together.
_MOST_ENTRIES = 2**26
# Tokens of receivers in one projection.
_MOST_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class _AblatedLayer:
    """Ablated activations of one block.

    Attributes:
        pre: Stream before the block.
        mid: Stream between attention and MLP.
        post: Stream after the block.
        k: Keys, of which those before the first difference are used.
        v: Values, likewise.
        heads: Contributions of heads to the stream, in float32.
        mlp: Contribution of the MLP, in float32; None without an MLP.
    """

    pre: Float[Tensor, "pos d_model"]
    mid: Float[Tensor, "pos d_model"]
    post: Float[Tensor, "pos d_model"]
    k: Float[Tensor, "pos kv_head d_head"]
    v: Float[Tensor, "pos kv_head d_head"]
    heads: Float[Tensor, "pos head d_model"]
    mlp: Float[Tensor, "pos d_model"] | None


@dataclass(frozen=True)
class Ablation:
    """Contributions that replace those outside a circuit.

    Attributes:
        rows: Token ids of the ablated prompts, of one length.
        layers: Activations of every block: of several prompts, their mean at each position.
    """

    rows: tuple[Ids, ...]
    layers: tuple[_AblatedLayer, ...]

    @classmethod
    @torch.no_grad()
    def of(cls, adapter: Adapter, rows: Sequence[Ids]) -> "Ablation":
        """Run the ablated prompts: one (patching) or several of one length (mean ablation)."""
        runs = [run_layers(adapter, embed_row(adapter, ids)) for ids in rows]
        layers: list[_AblatedLayer] = []
        for some in zip(*runs, strict=True):
            block = some[0][0]
            layers.append(_average(block, [states for _, states in some]))
        return cls(tuple(rows), tuple(layers))

    def first_difference(self, kept: Ids) -> int:
        """Return the first position at which any two of a kept prompt and the rows differ."""
        return common_prefix([kept, *self.rows], len(kept))


def _average(block: Block, states: Sequence[LayerStates]) -> _AblatedLayer:
    """Return the mean of the activations of several prompts in a block."""

    def mean(values: Sequence[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        total = reduce(torch.add, (value.float() for value in values))
        return (total / len(values)).to(values[0].dtype)

    mlps = [one.mlp.float() for one in states if one.mlp is not None]
    return _AblatedLayer(
        pre=mean([one.pre for one in states]),
        mid=mean([one.mid for one in states]),
        post=mean([one.post for one in states]),
        k=mean([one.k for one in states]),
        v=mean([one.v for one in states]),
        heads=mean([block.head_shares(one.z) for one in states]),
        mlp=mean(mlps) if mlps else None,
    )


class CircuitRuns:
    """Metric of one prompt under any circuits of a model.

    The differences of the whole model's run from the ablated contributions are computed once and
    kept.

    Args:
        adapter: The model.
        graph: Graph of the model.
        kept: Token ids of the prompt that the circuits run on.
        ablation: Contributions that replace those outside a circuit, of prompts of the same length.
        reader: Reader of the metric, of one row: the kept prompt.
        metric: Name of the metric in the reader's results.
        places: Positions of each place of the circuits' edges. Together they have every position
            from the first difference on, once. If None, one place with all positions.
    """

    @torch.no_grad()
    def __init__(
        self,
        adapter: Adapter,
        graph: Graph,
        kept: Ids,
        ablation: Ablation,
        reader: Reader,
        *,
        metric: str,
        places: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.adapter = adapter
        self.graph = graph
        self.reader = reader
        self.metric = metric
        self.n = len(kept)
        self.first = ablation.first_difference(kept)
        self._places = self._place_by_position(places)
        self._layers = ablation.layers
        x = embed_row(adapter, kept)
        whole = [x[self.first :].float() - self._layers[0].pre[self.first :].float()]
        for layer, (block, states) in zip(self._layers, run_layers(adapter, x), strict=True):
            shares = block.head_shares(states.z[self.first :])
            whole += (shares - layer.heads[self.first :]).unbind(1)
            if states.mlp is not None and layer.mlp is not None:
                whole.append(states.mlp[self.first :].float() - layer.mlp[self.first :])
        self._whole = torch.stack([one.to(adapter.device) for one in whole])

    def _place_by_position(self, places: Sequence[Sequence[int]] | None) -> list[int] | None:
        """Return the number of the place of each position from the first difference on."""
        if places is None:
            return None
        pairs: list[tuple[int, int]] = []
        for place, own in enumerate(places):
            pairs += [(at, place) for at in own if at >= self.first]
        pairs.sort()
        assert [at for at, _ in pairs] == list(range(self.first, self.n))
        return [place for _, place in pairs]

    def value_of_empty(self) -> float:
        """Return the metric of the empty circuit."""
        return self._values(self._layers[-1].post[None, self.first :])[0]

    def values(self, circuits: Sequence[Collection[Edge]]) -> list[float]:
        """Return the metric under each circuit."""
        return self.values_of(self.graph.masks(circuits)) if circuits else []

    @torch.no_grad()
    def values_of(self, masks: Masks, *, from_layer: int = 0) -> list[float]:
        """Return the metric under circuits given as masks.

        Args:
            masks: Whether each edge is in the circuit, in the order of the places and of the
                graph's receivers and senders.
            from_layer: Layer below which every circuit has all edges, so that only layers from it
                on are run.
        """
        if self.first == self.n:  # all prompts are equal
            return [self.value_of_empty()] * len(masks)
        size = max(1, _MOST_ENTRIES // max(1, self._whole.numel()))
        found: list[float] = []
        for some in masks.split(size):
            found += self._values(self._run(some.to(self.adapter.device), from_layer))
        return found

    def _run(self, masks: Masks, from_layer: int) -> Float[Tensor, "circuit changed d_model"]:
        """Return the final streams of some circuits behind the first difference."""
        n_circuits = len(masks)
        changes = self._whole.new_zeros(n_circuits, *self._whole.shape)
        known = sum(node.layer < from_layer or node.kind == EMBED for node in self.graph.senders)
        changes[:, :known] = self._whole[:known]
        receivers = self.graph.receiver_numbers
        senders = self.graph.sender_numbers
        blocks = self.adapter.blocks()
        for number in range(from_layer, self.adapter.n_layers):
            layer = self._layers[number]
            n_before = senders[HEAD, number].start
            with blocks.load(number) as block:
                block.reserve(len(layer.pre) - 1)
                z = self._attention(block, layer, changes[:, :n_before], masks[..., :n_before])
                shares = block.head_shares(z.flatten(0, 1)).unflatten(0, z.shape[:2])
                heads = (shares - layer.heads[self.first :]).transpose(1, 2)
                changes[:, senders[HEAD, number]] = heads.to(changes.device)
                if layer.mlp is None:
                    continue
                base = layer.pre if block.parallel else layer.mid
                n = n_before if block.parallel else senders[HEAD, number].stop
                at = receivers[MLP, number]
                x = self._inputs(base, changes[:, :n], masks[:, :, at, :n])[:, 0]
                out = block.mlp_out(x.flatten(0, 1))
                assert out is not None  # the ablated runs have one
                change = out.float().unflatten(0, x.shape[:2]) - layer.mlp[self.first :]
                changes[:, senders[MLP, number].start] = change.to(changes.device)
        at = receivers[LOGITS, self.adapter.n_layers]
        return self._inputs(self._layers[-1].post, changes, masks[:, :, at])[:, 0]

    def _inputs(
        self,
        base: Float[Tensor, "pos d_model"],
        changes: Differences,
        masks: Bool[Tensor, "circuit place some_receiver sender"],
    ) -> Float[Tensor, "circuit some_receiver changed d_model"]:
        """Return what some receivers read: the ablated stream and the changes of their edges."""
        kept = masks.to(changes.dtype)
        if self._places is None:
            read = einsum(
                kept[:, 0],
                changes,
                "circuit some_receiver sender, circuit sender changed d_model"
                " -> circuit some_receiver changed d_model",
            )
        else:
            read = changes.new_empty(len(masks), masks.shape[2], *changes.shape[2:])
            # One position at a time: its changes are read where they are, without a copy.
            for position, place in enumerate(self._places):
                read[:, :, position] = kept[:, place] @ changes[:, :, position]
        return (base[self.first :].float() + read.to(base.device)).to(base.dtype)

    def _attention(
        self, block: Block, layer: _AblatedLayer, changes: Differences, masks: Masks
    ) -> Float[Tensor, "circuit changed head d_head"]:
        """Return the heads' outputs of some circuits behind the first difference."""
        at = torch.arange(self.first, len(layer.pre), device=block.device)
        inputs: list[Tensor] = []
        for number, kind in enumerate(ATTENTION_INPUTS):
            of_kind = self._project_heads(block, layer, kind, number, changes, masks)
            inputs.append(of_kind)
        q, k, v = inputs
        tables: list[Tensor] = []
        for before, new in ((layer.k, k), (layer.v, v)):
            shared = before[: self.first].expand(len(masks), -1, -1, -1)
            tables.append(torch.cat([shared, new.to(before.dtype)], 1))
        return attend(block, q, tables[0], tables[1], at)

    def _project_heads(
        self,
        block: Block,
        layer: _AblatedLayer,
        kind: str,
        number: int,
        changes: Differences,
        masks: Masks,
    ) -> Float[Tensor, "circuit changed head d_head"]:
        """Return the queries, keys or values of every head, each from what its own receiver
        reads.
        """
        own = masks[:, :, self.graph.receiver_numbers[kind, block.layer]]
        n = len(layer.pre) - self.first
        # Receivers of a circuit with the same edges read the same stream.
        streams: list[Tensor] = []
        numbers: list[Tensor] = []
        for mask, change in zip(own, changes, strict=True):
            kinds, which = mask.unique(dim=1, return_inverse=True)
            numbers.append(which + sum(map(len, streams)))
            streams.append(self._inputs(layer.pre, change[None], kinds[None])[0])
        at = torch.arange(self.first, len(layer.pre), device=block.device)
        parts: list[Tensor] = []
        for x in torch.cat(streams).split(max(1, _MOST_TOKENS // n)):
            made = project_and_rotate(block, x.flatten(0, 1), at.repeat(len(x)))[number]
            parts.append(made.unflatten(0, (len(x), n)))
        table = torch.cat(parts)
        heads = torch.arange(own.shape[2], device=table.device)
        # [circuit head changed d_head]: each head's own entry of the stream that it reads.
        found = table.transpose(1, 2)[torch.stack(numbers).to(table.device), heads]
        return found.transpose(1, 2)

    def _values(self, streams: Float[Tensor, "circuit changed d_model"]) -> list[float]:
        """Return the metric of final streams behind the first difference."""
        reads = self.reader.position
        states = self._layers[-1].post[reads.to(streams.device)].repeat(len(streams), 1, 1)
        behind = reads >= self.first
        states[:, behind.to(states.device)] = streams[:, (reads[behind] - self.first)]
        metrics = self.reader.metrics(self.adapter, states)
        return metrics.values[self.metric].reshape(len(streams)).tolist()


def remove_in_order(
    runs: Sequence[CircuitRuns],
    threshold: float,
    edges: Collection[Edge],
    *,
    at_once: int = 16,
) -> Iterator[tuple[Edge, float, bool]]:
    """Yield each edge with the change of the metric without it, and whether it stays.

    Edges are removed from the last receiver to the first, as by ACDC (Conmy et al. 2023).

    An edge is removed if the mean metric over pairs then changes by less than ``threshold``. While
    the edges of a receiver are tested, every edge of lower layers is still there, so a test runs
    only the layers from the receiver on. Several tests are run together, each as if those before it
    had removed their edge; those behind an edge that stays are run again.

    Args:
        runs: Runs of the pairs.
        threshold: Change of the metric from which an edge stays.
        edges: Tested edges; all others stay.
        at_once: Tests that are run together.
    """
    graph = runs[0].graph
    tested = set(edges)
    mask = graph.masks([graph.edges(graph.senders, graph.receivers)])[0]
    n_layers = graph.n_layers
    mean = _mean_of(runs, mask[None], n_layers)[0]
    for number, receiver in reversed(list(enumerate(graph.receivers))):
        own: list[tuple[int, Edge]] = []
        for at, sender in reversed(list(enumerate(graph.senders))):
            edge = Edge(sender, receiver)
            if graph.is_edge(sender, receiver) and edge in tested:
                own.append((at, edge))
        while own:
            some = own[:at_once]
            masks = mask.repeat(len(some), 1, 1, 1)
            for i, (at, _) in enumerate(some):
                masks[i:, :, number, at] = False
            for (at, edge), found in zip(some, _mean_of(runs, masks, receiver.layer), strict=True):
                stays = abs(found - mean) >= threshold
                yield edge, found - mean, stays
                own = own[1:]
                if stays:
                    break
                mask[:, number, at] = False
                mean = found


def _mean_of(runs: Sequence[CircuitRuns], masks: Masks, from_layer: int) -> list[float]:
    """Return the mean metric over pairs under each circuit."""
    found = [run.values_of(masks, from_layer=from_layer) for run in runs]
    return torch.tensor(found, dtype=torch.float64).mean(0).tolist()
