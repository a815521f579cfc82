"""Inputs of an edge sweep: pairs with their places, and the measured edges."""

from dataclasses import asdict, dataclass
from typing import Any

from typing_extensions import override

from anchorlens.display import join_words, short_repr, warn
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.graph import LOGITS, Edge, Graph
from anchorlens.errors import EmptySweepError, InputError
from anchorlens.measure.patched_pairs import Placement
from anchorlens.models.adapter import Adapter
from anchorlens.prompts.tokenize_pairs import PairContext
from anchorlens.protocols.edges.edge_anchors import join_anchor, split_anchor
from anchorlens.protocols.edges.spec import Edges
from anchorlens.protocols.patch.gradient_estimates import warn_of_flat_metric
from anchorlens.protocols.patch.patch_inputs import PatchInputs, prepare_patch, restore_patch
from anchorlens.protocols.patch.placements import PatchPair, anchors_of
from anchorlens.protocols.stored_inputs import StoredInputs

# Number of edges from which pairs may be too few for claims, and of groups that are enough.
_MANY_EDGES = 100
_ENOUGH_PAIRS = 40
# Layers of the receivers of a quick look, and how to measure others.
_QUICK = "the layers of quick=True, every fourth and the last"
_CURE = "Give layers= with those to measure, or leave out quick=True."


@dataclass(frozen=True, kw_only=True)
class EdgeInputs(PatchInputs):
    """Inputs of an edge sweep.

    Attributes:
        edges: Measured edges, in order of the receivers.
        graph: Graph of the model.
    """

    graph: Graph
    edges: tuple[Edge, ...] = ()

    @override
    def record(self, spec: Any) -> dict[str, Any]:
        record = super().record(spec)
        places = record["config"]["anchors"]
        anchors: list[str] = []
        for place in places:
            anchors += [join_anchor(edge.name, place) for edge in self.edges]
        record["config"]["anchors"] = anchors
        record["config"]["graph"] = asdict(self.graph)
        record["config"]["layers"] = sorted({self.layer_of(edge) for edge in self.edges})
        return record

    def layer_of(self, edge: Edge) -> int:
        """Return the layer of an edge in outputs: that of its receiver; the last one of the
        logits.
        """
        return min(edge.receiver.layer, self.n_layers - 1)


def graph_of(adapter: Adapter) -> Graph:
    """Return the graph of a model."""
    with adapter.blocks().load(0) as block:
        parallel = block.parallel
    shape = adapter.shape
    return Graph(
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        has_mlps=bool(shape.d_mlp),
        parallel=parallel,
    )


def prepare_edges(context: PairContext, spec: Edges) -> EdgeInputs:
    """Make the inputs of a sweep."""
    made = prepare_patch(context, spec)
    inputs = EdgeInputs(
        **vars(made),
        graph=graph_of(context.adapter),
        edges=choose_edges(context.adapter, spec),
    )
    _warn_of_few_pairs(inputs)
    _warn_of_unused_names(spec, inputs)
    if spec.method == "attribution":
        others = "method='exact' or 'attribution_ig'"
        warn_of_flat_metric(inputs.reading.metric, spec.direction, others)
    return inputs


def _warn_of_few_pairs(inputs: EdgeInputs) -> None:
    """Warn before measuring where few pairs can claim large effects only (METHOD 4b)."""
    n = len(inputs.edges) * len(anchors_of(inputs.own_pairs))
    groups = len({pair.base.group for pair in inputs.own_pairs})
    if inputs.controls and n >= _MANY_EDGES and groups < _ENOUGH_PAIRS:
        warn(
            f"{n:,} edges share one simultaneous band over {groups} groups of pairs, which shows"
            " large effects only: over 960 cells an effect of one standard deviation was found in"
            " 0, 28 and 88 % of runs at 12, 20 and 40 groups. Choose fewer edges, or take"
            f" {_ENOUGH_PAIRS} pairs."
        )


def restore_edges(adapter: Adapter, spec: Edges, stored: StoredInputs) -> EdgeInputs:
    """Rebuild the inputs of a sweep from its run directory."""
    made = restore_patch(adapter, spec, stored)
    graph = graph_of(adapter)
    names = dict.fromkeys(split_anchor(anchor)[0] for anchor in stored.config["anchors"])
    return EdgeInputs(**vars(made), graph=graph, edges=tuple(map(graph.edge, names)))


def choose_edges(adapter: Adapter, spec: Edges) -> tuple[Edge, ...]:
    """Return the edges of a specification whose receivers lie in its layers, and those into the
    logits.

    Raises:
        InputError: If the model lacks a node or an edge.
        EmptySweepError: If no edge is left.
    """
    graph = graph_of(adapter)
    layers = set(spec.layers_of(graph.n_layers))
    if spec.edges is not None:
        chosen = tuple(dict.fromkeys(graph.edge(name) for name in spec.edges))
    else:
        senders = graph.choose(spec.senders, "senders")
        chosen = graph.edges(senders, graph.choose(spec.receivers, "receivers"))
    kept: list[Edge] = []
    for edge in chosen:
        receiver = edge.receiver
        if receiver.kind == LOGITS or receiver.layer in layers:
            kept.append(edge)
    where = _QUICK if _is_thinned(spec) else f"layers {min(layers)} to {max(layers)}"
    if not kept and spec.edges is not None:
        cure = _CURE if _is_thinned(spec) else "Leave out layers=, or choose others."
        raise EmptySweepError(
            f"edges={short_repr(','.join(spec.edges))}: no receiver is in {where}. {cure}",
            argument="edges",
        )
    if not kept:
        cure = _CURE if _is_thinned(spec) else "Choose others."
        raise EmptySweepError(
            f"No edge from senders={','.join(spec.senders)} to receivers={','.join(spec.receivers)}"
            f" in {where}: a sender lies in a lower layer than its receiver. {cure}"
        )
    return tuple(sorted(kept, key=lambda edge: edge.receiver.layer))


def _is_thinned(spec: Edges) -> bool:
    """Return whether a quick look chooses the layers of the receivers."""
    return spec.quick and spec.layers is None


def _warn_of_unused_names(spec: Edges, inputs: EdgeInputs) -> None:
    """Warn of single edges that were named and are left out, and of names and patterns whose nodes
    are all at no edge.
    """
    kept = inputs.edges
    graph = inputs.graph
    unused: list[str] = []
    if spec.edges is not None:
        unused = [name for name in spec.edges if graph.edge(name) not in kept]
        reason = f"{_QUICK}. {_CURE}" if _is_thinned(spec) else "layers=."
        if unused:
            warn(f"{join_words(unused)}: left out, because the receiver is not in {reason}")
        return
    for argument, names, used in (
        ("senders", spec.senders, {edge.sender for edge in kept}),
        ("receivers", spec.receivers, {edge.receiver for edge in kept}),
    ):
        unused += [one for one in names if used.isdisjoint(graph.choose([one], argument))]
    if unused:
        left_out = "the layer is left out."
        if _is_thinned(spec):
            left_out = f"the receiver is not in {_QUICK}. {_CURE}"
        warn(
            f"{', '.join(unused)}: at no edge of this sweep, because no receiver lies above the"
            f" sender, or {left_out}"
        )


def prompts_of(pair: PatchPair, place: Placement) -> EdgePrompts:
    """Return target and source of a place, without the positions whose activations are equal in
    both prompts.
    """
    assert pair.source is not None  # every pair has two prompts
    alike = pair.n_alike
    paired = sorted(zip(place.target_positions, place.source_positions, strict=True))
    kept = [(t, s) for t, s in paired if not t == s < alike]
    return EdgePrompts(
        target=pair.target.ids,
        source=pair.source.ids,
        at=tuple(t for t, _ in kept),
        by=tuple(s for _, s in kept),
    )


def check_model_has_edges(adapter: Adapter, spec: Edges) -> None:
    """Raise InputError if edges of a model cannot be measured."""
    feature = adapter.find_unsupported_feature()
    if feature is not None:
        raise InputError(
            f"edges: not measured in a model with {feature}. Use al.patch_sweep, whose reference"
            " engine takes any model.",
            argument="model",
        )
    hook = adapter.find_user_hook()
    if hook is not None:
        raise InputError(
            f"edges: {hook}, and edges are computed without it. Remove it (model.reset_hooks()), or"
            " use al.patch_sweep, whose reference engine runs hooks.",
            argument="model",
        )
    choose_edges(adapter, spec)
