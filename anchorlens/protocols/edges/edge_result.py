"""Result of an edge sweep: effects by pair, sender and receiver, and their matrix."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import override

from anchorlens.display import as_int, short_repr, warn
from anchorlens.engine.edges.graph import ATTENTION_INPUTS, Edge, Graph, parse_node
from anchorlens.errors import InputError, did_you_mean
from anchorlens.protocols.edges.circuit import CONSENSUS, RULES, TOP, Circuit
from anchorlens.protocols.edges.edge_anchors import split_anchor, split_edge
from anchorlens.protocols.edges.select_edges import mean_overlap, select_often
from anchorlens.protocols.patch.grid_statistics import EFFECT
from anchorlens.protocols.patch.patch_result import MEAN, PatchGrid, PatchResult
from anchorlens.results.vocabulary import metric_name, unit_words
from anchorlens.statistics.resamples import Resamples

if TYPE_CHECKING:
    import torch
    import xarray
    from jaxtyping import Float

Array = npt.NDArray[np.float64]
# Edges whose values a report shows for each pair.
_MOST_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class EdgeMatrix:
    """Effects of senders on receivers at one place, as a heatmap shows them.

    Attributes:
        pair: Id of the pair, or ``mean``.
        place: Positions whose contributions are exchanged: ``all``, a segment, or ``pos:5``.
        unit: Unit of the values.
        values: Values, [sender receiver]; NaN where there is no edge, or it was not measured.
        senders: Names of the senders, in order of computation.
        receivers: Names of the receivers, in order of computation.
        stands: Whether the mean effect of an edge stands, [sender receiver].
        n: Number of groups.
    """

    pair: str
    place: str
    unit: str
    values: Array
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    stands: npt.NDArray[np.bool_]
    n: int


@dataclass(frozen=True, repr=False, eq=False)
class EdgeResult(PatchResult):
    """Result of an edge sweep; frozen.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> pairs = al.load_pairs("ioi-pairs", limit=10)
        >>> edges = al.edge_sweep(model, pairs, receivers="logits")  # doctest: +SKIP
        >>> edges.table().head()  # the largest effects  # doctest: +SKIP
        >>> edges.effects.shape  # [pair place sender receiver]  # doctest: +SKIP
    """

    cell_word: ClassVar[str] = "edge"
    change_word: ClassVar[str] = "exchanging"
    changed_word: ClassVar[str] = "contribution"
    place_word: ClassVar[str] = "edge"
    has_layers: ClassVar[bool] = False
    has_edges: ClassVar[bool] = True

    @override
    def name_cell(self, place: str, layer: int) -> str:
        return place

    @override
    def name_place(self, place: str, layers: str) -> str:
        return place

    @property
    @override
    def leading_anchors(self) -> tuple[str, ...]:
        own = self._samples[self._samples["control"] == "none"]
        sizes = own.groupby("anchor", sort=False)["effect"].mean().abs()
        return tuple(sizes.nlargest(_MOST_SHOWN).index)

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Places at which contributions are exchanged: ``all``, segments or positions."""
        return tuple(dict.fromkeys(_place_of(anchor) for anchor in self.anchors))

    @property
    @override
    def effects(self) -> "Float[torch.Tensor, 'pair place sender receiver']":
        """Effect on the metric, [pair place sender receiver]; NaN where there is no edge."""
        import torch

        return torch.from_numpy(self._cube(EFFECT, "none"))

    @override
    def to_xarray(self, quantity: str = EFFECT, control: str = "none") -> "xarray.DataArray":
        """Return a quantity of every pair as a labelled array; its mean over pairs is
        ``.mean("pair")``.

        Args:
            quantity: ``effect``, ``value_after`` (the metric after the change) or
                ``recovered_share``.
            control: ``none`` or ``other_pair``.

        Returns:
            [pair place sender receiver]. NaN where there is no edge. Coordinates: ids of the pairs,
            ``group`` along ``pair``, names of places, senders and receivers.

        Raises:
            InputError: If xarray is not installed, or the quantity or the control was not measured.
        """
        values = self._cube(self._check_quantity(quantity), self._check_control(control))
        senders, receivers = self._nodes
        axes = {"place": self.places, "sender": senders, "receiver": receivers}
        return self._label(values, quantity, {name: list(own) for name, own in axes.items()})

    def table(self, top: int | None = None, *, control: bool = True) -> pd.DataFrame:
        """Return one row per edge, the largest mean effect first.

        Args:
            top: Number of rows. If None, all.
            control: Whether to add the effect of the control and the difference from it.

        Returns:
            ``edge effect sim_low sim_high stands n``, where measured ``other_pair`` and
            ``effect_minus_control``, and ``place sender receiver``; effects in :attr:`unit`, with
            bands that are simultaneous over all edges.
        """
        n_rows = None if top is None else as_int(top)
        if top is not None and (n_rows is None or n_rows < 0):
            raise InputError(
                f"top={short_repr(top)}: give a whole number of rows, or leave it out for all.",
                argument="top",
            )
        curves = self.curves(all_columns=True, controls=True)
        own = curves[curves["control"] == "none"].set_index("anchor")
        out = own[["effect", "sim_low", "sim_high"]].copy()
        out["stands"] = out.index.isin([anchor for anchor, _ in self._standing()])
        out["n"] = own["n"]
        if control and "other_pair" in self.controls:
            other = curves[curves["control"] == "other_pair"].set_index("anchor")["effect"]
            out["other_pair"] = other.reindex(out.index)
            out["effect_minus_control"] = out["effect"] - out["other_pair"]
        names = [split_anchor(anchor)[0] for anchor in out.index]
        # A terminal of 80 columns shows the first and the last ones.
        out.insert(0, "edge", names)
        out["place"] = [_place_of(anchor) for anchor in out.index]
        out["sender"] = [split_edge(name)[0] for name in names]
        out["receiver"] = [split_edge(name)[1] for name in names]
        order = np.argsort(-out["effect"].abs().to_numpy(), kind="stable")
        return out.iloc[order[:n_rows]].reset_index(drop=True)

    def matrix(
        self,
        pair: "str | int" = MEAN,
        quantity: str = EFFECT,
        control: str = "none",
        place: str | None = None,
    ) -> EdgeMatrix:
        """Return the matrix of senders and receivers of one pair, or of the mean over pairs.

        Args:
            pair: Id, index or words of a pair, or ``mean``.
            quantity: ``effect`` or ``value_after``.
            control: ``none`` or ``other_pair``.
            place: Place. If None, that of the largest mean effect.

        Raises:
            InputError: If there is no such pair, quantity, control or place, or no mean.
        """
        values = self._cube(self._check_quantity(quantity), self._check_control(control))
        name = MEAN if pair == MEAN else self.id_of(pair)
        if name == MEAN and (why := self.no_mean):
            raise InputError(f"pair='mean': {why}", argument="pair")
        if place is not None and place not in self.places:
            raise InputError(
                f"place={place!r}: not in this sweep. {did_you_mean(place, self.places)}",
                argument="place",
            )
        whole = _mean_of_pairs(values) if name == MEAN else values[self.example_ids.index(name)]
        number = 0
        if place is None and not np.isnan(whole).all():
            sizes = np.nanmax(np.abs(np.nan_to_num(whole)), axis=(1, 2))
            number = int(sizes.argmax())
        elif place is not None:
            number = self.places.index(place)
        senders, receivers = self._nodes
        stands = np.zeros(whole.shape[1:], dtype=bool)
        if name == MEAN and control == "none":
            for anchor, _ in self._standing():
                where, sender, receiver = self._cell_of[anchor]
                if where == number:
                    stands[sender, receiver] = True
        own = self._samples[self._samples["control"] == control]
        if name != MEAN:
            own = own[own["example_id"] == name]
        return EdgeMatrix(
            pair=name,
            place=self.places[number],
            unit=self.unit,
            values=whole[number],
            senders=senders,
            receivers=receivers,
            stands=stands,
            n=own["question_id"].nunique(),
        )

    def circuit(
        self,
        top: int = 200,
        *,
        rule: str = TOP,
        absolute: bool = True,
        n_resamples: int = 200,
        seed: int = 0,
    ) -> Circuit:
        """Select the edges with the largest mean effects as a circuit.

        Of a sweep by segment or by position, an edge is selected at each place of its own.

        Examples:
            >>> circuit = edges.circuit(top=100, rule="greedy")  # doctest: +SKIP
            >>> print(circuit.faithfulness(model, other_pairs))  # doctest: +SKIP

        Args:
            top: Number of edges.
            rule: ``top`` (the largest effects), ``greedy`` (from the logits down, of the edges into
                nodes selected already the largest, as EAP-IG), or ``consensus`` (the edges that are
                among the ``top`` in most resamples of whole clusters).
            absolute: Whether the size of an effect counts, not its sign.
            n_resamples: Number of resamples from which the stability of the selection is computed;
                0 for none.
            seed: Random seed of the resamples.

        Returns:
            The circuit, with how often each edge is among the ``top`` in resamples.

        Raises:
            InputError: If an argument is invalid.
        """
        if rule not in RULES:
            raise InputError(
                f"rule={rule!r}: must be one of {', '.join(RULES)}. {did_you_mean(rule, RULES)}",
                argument="rule",
            )
        graph = Graph(**self.record["config"]["graph"])
        samples = self._samples[self._samples["control"] == "none"]
        values = samples.pivot(index="example_id", columns="anchor", values=EFFECT)
        values = values[list(dict.fromkeys(samples["anchor"]))]
        if n_lacking := int(values.isna().any(axis=1).sum()):
            warn(
                f"{n_lacking} of {len(values)} pairs lack a place that others have, and select no"
                " edges. Name the same segments in every pair."
            )
        values = values.dropna()
        if values.empty:
            raise InputError(
                "No pair has all places. Name the same segments in every pair, or measure with"
                " by='all'."
            )
        edges = [_edge_of(graph, anchor) for anchor in values.columns]
        if not isinstance(top, int) or isinstance(top, bool) or not 1 <= top <= len(edges):
            raise InputError(
                f"top={top!r}: must be a whole number from 1 to {len(edges):,}, the number of"
                " measured edges.",
                argument="top",
            )
        if rule == CONSENSUS and n_resamples < 1:
            raise InputError(
                "n_resamples: rule='consensus' needs resamples. Give 100 or more.",
                argument="n_resamples",
            )
        means = values.to_numpy(dtype=np.float64).mean(0)
        stability: dict[Edge, float] = {}
        overlap = float("nan")
        if n_resamples:
            shares = select_often(
                values.to_numpy(dtype=np.float64),
                self._weights_of(list(values.index), n_resamples, seed),
                top,
                absolute=absolute,
            )
            stability = dict(zip(edges, shares.tolist(), strict=True))
            overlap = mean_overlap(shares, top)
        whole = Circuit(
            graph=graph,
            edges=(),
            scores=dict(zip(edges, means.tolist(), strict=True)),
            rule=rule,
            absolute=absolute,
            stability=stability,
            overlap=overlap,
            model=self.model,
            dataset=self.dataset,
            metric=self.metric,
            unit=self.unit,
            add_bos=self.record["config"]["add_bos"],
            d_model=int(self.record["model"].get("d_model", 0)),
            by=self.by,
            places=self.places,
        )
        return whole.of_size(top)

    def _weights_of(self, pairs: list[str], n_resamples: int, seed: int) -> Iterator[Array]:
        """Yield how often each pair is drawn in resamples of whole clusters, [pair]."""
        clusters = self.statistics.clusters
        group = self._samples.drop_duplicates("example_id").set_index("example_id")["question_id"]
        ids = group.loc[pairs].to_numpy()
        draws = Resamples.of(ids, clusters=clusters.of(ids), n_resamples=n_resamples, seed=seed)
        for weights in draws.weights:
            yield weights[draws.cluster]

    @override
    def grid(
        self, pair: "str | int" = MEAN, quantity: str = EFFECT, control: str = "none"
    ) -> PatchGrid:
        """Raise InputError: the effects of edges are a matrix of senders and receivers."""
        raise InputError("An edge sweep has no grid of layers. Use matrix() or table().")

    @property
    @override
    def no_mean(self) -> str:
        if self.by != "position":
            return ""
        return super().no_mean

    @cached_property
    def _nodes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of senders and receivers, in order of computation."""
        both: list[list[str]] = [[], []]
        for anchor in self.anchors:
            for names, name in zip(both, split_edge(split_anchor(anchor)[0]), strict=True):
                names.append(name)
        senders, receivers = (sorted(dict.fromkeys(names), key=_order) for names in both)
        return tuple(senders), tuple(receivers)

    @cached_property
    def _cell_of(self) -> dict[str, tuple[int, int, int]]:
        """Anchor -> numbers of its place, sender and receiver."""
        axes = (self.places, *self._nodes)
        numbers: list[dict[str, int]] = []
        for names in axes:
            along = {name: number for number, name in enumerate(names)}
            numbers.append(along)
        cells: dict[str, tuple[int, int, int]] = {}
        for anchor in self.anchors:
            edge, place = split_anchor(anchor)
            sender, receiver = split_edge(edge)
            cells[anchor] = numbers[0][place], numbers[1][sender], numbers[2][receiver]
        return cells

    @override
    def _describe_array(self) -> str:
        senders, receivers = self._nodes
        return (
            f"effects on {metric_name(self.metric)} in {unit_words(self.unit)} [pair"
            f" {len(self.example_ids)}, place {len(self.places)}, sender {len(senders)}, receiver"
            f" {len(receivers)}]"
        )

    def _cube(self, quantity: str, control: str) -> Array:
        """Return a quantity of every pair, [pair place sender receiver]."""
        own = self._samples[self._samples["control"] == control]
        values = own[quantity] if quantity in own else self._shares(own)
        senders, receivers = self._nodes
        at = np.array([self._cell_of[anchor] for anchor in own["anchor"]]).reshape(-1, 3)
        pairs = pd.Categorical(own["example_id"], list(self.example_ids)).codes
        shape = (len(self.example_ids), len(self.places), len(senders), len(receivers))
        out = np.full(shape, np.nan)
        out[pairs, at[:, 0], at[:, 1], at[:, 2]] = values.to_numpy(dtype=np.float64)
        return out

    def _shares(self, own: pd.DataFrame) -> pd.Series:
        """Return the recovered shares of samples."""
        moved, total = self._share_parts(own)
        return moved / total


def _edge_of(graph: Graph, anchor: str) -> Edge:
    """Return the edge of an anchor, at its place."""
    name, place = split_anchor(anchor)
    return graph.edge(name)._replace(place=place)


def _place_of(anchor: str) -> str:
    return split_anchor(anchor)[1]


def _order(name: str) -> tuple[int, int, str, int]:
    """Return the place of a node in the order of computation."""
    node = parse_node(name)
    if node is None:  # the logits
        return 10**9, 0, name, 0
    if name == "embed":
        return -1, 0, name, 0
    kinds = ("head", *ATTENTION_INPUTS, "mlp")
    return node.layer, kinds.index(node.kind), "", node.head


def _mean_of_pairs(values: Array) -> Array:
    """Return the mean over pairs; NaN where no pair has a value."""
    there = ~np.isnan(values)
    count = there.sum(0)
    total = np.where(there, values, 0.0).sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
