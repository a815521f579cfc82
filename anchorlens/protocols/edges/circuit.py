"""Circuit: a set of edges, how it was selected, and how stable the selection is."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from anchorlens.constants import ALL_PLACES
from anchorlens.display import as_int, short_repr, warn
from anchorlens.engine.edges.graph import Edge, Graph
from anchorlens.errors import InputError
from anchorlens.protocols.edges.faithfulness import SHARES, Faithfulness, score_circuits
from anchorlens.protocols.edges.select_edges import connect, grow_from_logits, rank
from anchorlens.results.vocabulary import unit_words
from anchorlens.statistics.bands import band

if TYPE_CHECKING:
    from anchorlens.protocols.edges.circuit_pairs import CircuitPairs

TOP, GREEDY, CONSENSUS, ACDC = "top", "greedy", "consensus", "acdc"
RULES = (TOP, GREEDY, CONSENSUS)
_NO_PATH = (
    "No edge is on a path from the embedding to the logits: the circuit computes what the ablated"
    " prompt does, and its faithfulness is 0 by construction."
)


@dataclass(frozen=True, kw_only=True)
class Circuit:
    """Edges that were selected from their effects; frozen.

    Attributes:
        graph: Graph of the model.
        edges: Selected edges, the largest effect first.
        scores: Effect of every measured edge, in :attr:`unit`.
        rule: ``top``, ``greedy``, ``consensus`` or ``acdc``.
        absolute: Whether the size of an effect counted, not its sign.
        stability: Edge -> share of resamples of whole clusters in which it is among the ``top``
            edges; empty if no resamples were drawn.
        overlap: Mean share of edges that two resamples have in common; NaN without resamples.
        model: Name of the model.
        dataset: Name of the pairs.
        metric: Name of the metric.
        unit: Unit of the effects.
        add_bos: Whether BOS was added to texts; None for the model's default.
        d_model: Width of the residual stream, which files of other programs name.
        by: Positions at which contributions are kept together: ``all``, ``segment`` or
            ``position``. Otherwise than ``all``, an edge is in the circuit at single places.
        places: Names of the places of its edges.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> rows = al.load_pairs("ioi-pairs").to_frame()
        >>> edges = al.edge_sweep(model, rows.head(10), receivers="logits")  # doctest: +SKIP
        >>> circuit = edges.circuit(top=200)  # doctest: +SKIP
        >>> circuit.faithfulness(model, rows.tail(10))  # doctest: +SKIP
    """

    graph: Graph
    edges: tuple[Edge, ...]
    scores: Mapping[Edge, float]
    rule: str
    absolute: bool = True
    stability: Mapping[Edge, float] = field(default_factory=dict)
    overlap: float = float("nan")
    model: str = ""
    dataset: str = ""
    metric: str = "auto"
    unit: str = "logit"
    add_bos: bool | None = None
    d_model: int = 0
    by: str = ALL_PLACES
    places: tuple[str, ...] = (ALL_PLACES,)

    @cached_property
    def n_all(self) -> int:
        """Number of edges of the graph, at every place."""
        return len(self.graph.edges(self.graph.senders, self.graph.receivers, self.places))

    def of_size(self, n: int) -> "Circuit":
        """Return the circuit of ``n`` edges by the same rule.

        Raises:
            InputError: If fewer edges were measured, or the rule does not rank edges.
        """
        if self.rule == ACDC:
            raise InputError(
                f"n={short_repr(n)}: a circuit of ACDC has one size. Use another threshold.",
                argument="n",
            )
        count = as_int(n)
        if count is None or not 1 <= count <= len(self.scores):
            raise InputError(
                f"n={short_repr(n)}: must be a whole number from 1 to {len(self.scores):,}, the"
                " number of measured edges.",
                argument="n",
            )
        return replace(self, edges=tuple(self._select(count)))

    def _select(self, n: int) -> list[Edge]:
        if self.rule == GREEDY:
            return grow_from_logits(self.graph, self.scores, n, absolute=self.absolute)
        ranked = rank(self.scores, absolute=self.absolute)
        if self.rule == CONSENSUS:
            ranked.sort(key=lambda edge: -self.stability.get(edge, 0.0))
        return ranked[:n]

    def prune(self) -> "Circuit":
        """Return the circuit without edges that are on no path from the embedding to the logits; it
        computes the same.
        """
        return replace(self, edges=tuple(connect(self.graph, self.edges)))

    def table(self) -> pd.DataFrame:
        """Return one row per edge: ``edge sender receiver effect``, ``place`` if there are several,
        and ``stability`` where resamples were drawn.
        """
        frame = pd.DataFrame(
            {
                "edge": [edge.name for edge in self.edges],
                "sender": [edge.sender.name for edge in self.edges],
                "receiver": [edge.receiver.name for edge in self.edges],
                "effect": [self.scores.get(edge, float("nan")) for edge in self.edges],
            }
        )
        if self.by != ALL_PLACES:
            frame.insert(3, "place", [edge.place for edge in self.edges])
        if self.stability:
            frame["stability"] = [self.stability.get(edge, 0.0) for edge in self.edges]
        return frame

    def faithfulness(
        self,
        model: Any,
        pairs: Any,
        *,
        sizes: Sequence[float | int] | None = None,
        ablation: str = "patching",
        metric: Any = None,
        rest: bool = True,
        n_resamples: int = 1000,
        seed: int = 0,
        progress: bool = True,
    ) -> Faithfulness:
        """Score circuits of several sizes by this circuit's rule: what share of the metric they
        keep when all other edges carry ablated contributions.

        Score on pairs that did not select the circuit: on its own pairs it looks better.

        Args:
            model: Model, or an argument of :func:`anchorlens.load_model`.
            pairs: Pairs, or the first argument of :func:`anchorlens.load_pairs`.
            sizes: Numbers of edges (``int``), or shares of all edges of the model (``float``). If
                None, 0.1 to 100 %, as far as edges were measured; of ACDC, its own size.
            ablation: ``patching`` (contributions of the corrupted prompt), or ``mean`` (their mean
                over the corrupted prompts of the same length, at each position). Means keep what
                the prompts have in common, such as the template, so a circuit looks better.
            metric: Metric. If None, that of the circuit.
            rest: Whether to run all other edges without the circuit too (completeness).
            n_resamples: Number of bootstrap resamples of whole clusters.
            seed: Random seed of the resamples.
            progress: Whether to show progress bars.

        Raises:
            InputError: If an argument is invalid, or the model has another graph.
        """
        wanted = self._sizes(sizes)
        circuits = [self.edges] if wanted is None else [tuple(self._select(n)) for n in wanted]
        if not connect(self.graph, circuits[-1]):
            warn(f"{_NO_PATH} Measure edges of all layers, or select more of them.")
        opened = self._open(model, pairs, metric, ablation, progress=progress)
        return score_circuits(
            opened,
            circuits,
            ablation=ablation,
            n_edges=self.n_all,
            with_rest=rest,
            n_resamples=n_resamples,
            seed=seed,
            show=progress,
        )

    def minimality(
        self,
        model: Any,
        pairs: Any,
        *,
        ablation: str = "patching",
        metric: Any = None,
        n_resamples: int = 1000,
        seed: int = 0,
        progress: bool = True,
    ) -> pd.DataFrame:
        """Measure how the circuit's metric changes when each of its edges leaves it.

        Args:
            model: Model, or an argument of :func:`anchorlens.load_model`.
            pairs: Pairs, or the first argument of :func:`anchorlens.load_pairs`.
            ablation: As in :meth:`faithfulness`.
            metric: Metric. If None, that of the circuit.
            n_resamples: Number of bootstrap resamples of whole clusters.
            seed: Random seed of the resamples.
            progress: Whether to show progress bars.

        Returns:
            One row per edge: ``edge effect low high``: the circuit's mean metric with the edge
            minus that without it, with a pointwise 95 % interval over clusters. An edge with an
            effect near 0 is not needed beside the others.

        Raises:
            InputError: If an argument is invalid, or the model has another graph.
        """
        opened = self._open(model, pairs, metric, ablation, progress=progress)
        circuits: list[Sequence[Edge]] = [self.edges]
        for edge in self.edges:
            others = [one for one in self.edges if one != edge]
            circuits.append(others)
        masks = opened.masks(circuits)
        values = opened.values(masks, label="circuits: minimality", show=progress)
        change = values[:, :1] - values[:, 1:]
        found = band(opened.means(change, opened.resamples(n_resamples, seed)))
        frame = pd.DataFrame({"edge": [edge.name for edge in self.edges], "effect": found.value})
        return frame.assign(low=found.low, high=found.high)

    def _sizes(self, sizes: Sequence[float | int] | None) -> list[int] | None:
        """Return numbers of edges, ascending; None for the circuit as it is."""
        if self.rule == ACDC:
            if sizes is None:
                return None
            raise InputError(
                f"sizes={short_repr(sizes)}: a circuit of ACDC has one size. Leave it out.",
                argument="sizes",
            )
        n_measured = len(self.scores)
        if sizes is None:
            wanted = [self._count_edges(share) for share in SHARES]
            found = [n for n in wanted if n <= n_measured]
            if not found:
                raise InputError(
                    f"sizes=None: {n_measured:,} of {self.n_all:,} edges were measured, fewer than"
                    f" the smallest share has ({wanted[0]:,}). Give numbers of edges up to"
                    f" {n_measured:,}.",
                    argument="sizes",
                )
            return sorted(set(found))
        if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
            raise self._bad_sizes(sizes, "must be a list of")
        given = list(sizes)
        if not given:
            raise self._bad_sizes(given, "is empty. Give")
        found = [self._count_edges(one) for one in given]
        for one, n in zip(given, found, strict=True):
            if n > n_measured:
                raise InputError(
                    f"sizes={short_repr(one)}: {n_measured:,} of {self.n_all:,} edges were"
                    " measured. Measure all, or give smaller sizes.",
                    argument="sizes",
                )
        return sorted(set(found))

    def _count_edges(self, size: object) -> int:
        """Return the number of edges of a size; raise InputError if it is neither a number of edges
        nor a share.
        """
        if isinstance(size, float) and 0 < size <= 1:
            return max(1, round(size * self.n_all))
        n = as_int(size)
        if n is None or not 1 <= n <= self.n_all:
            raise self._bad_sizes(size, "must be")
        return n

    def _bad_sizes(self, value: object, problem: str) -> InputError:
        return InputError(
            f"sizes={short_repr(value)}: {problem} numbers of edges from 1 to {self.n_all:,}, or"
            " shares above 0 up to 1.0.",
            argument="sizes",
        )

    def _open(
        self, model: Any, pairs: Any, metric: Any, ablation: str, *, progress: bool
    ) -> "CircuitPairs":
        """Return the pairs on which the circuit is run; raise InputError if the model has another
        graph.
        """
        from anchorlens.models.load import adapt, as_lens_model
        from anchorlens.protocols.edges.circuit_pairs import open_pairs
        from anchorlens.protocols.edges.edge_inputs import graph_of

        lens = as_lens_model(model, progress=progress)
        own = graph_of(adapt(lens))
        if own != self.graph:
            raise InputError(
                f"model: it has {own.describe()}; the circuit is of a model with"
                f" {self.graph.describe()}. Use the model of the circuit.",
                argument="model",
            )
        opened = open_pairs(
            lens,
            pairs,
            metric=self.metric if metric is None else metric,
            ablation=ablation,
            add_bos=self.add_bos,
            by=self.by,
            show=progress,
        )
        if set(opened.places) != set(self.places):
            raise InputError(
                f"pairs: their places are {short_repr(list(opened.places))}, those of the circuit"
                f" {short_repr(list(self.places))}. Give pairs with the same segments.",
                argument="pairs",
            )
        return opened

    def __str__(self) -> str:
        how = "size" if self.absolute else "signed effect"
        measured = f"{self.n_all:,} edges"
        if len(self.scores) < self.n_all:
            measured = f"{len(self.scores):,} measured edges ({self.n_all:,} in the model)"
        ranking = "scores of a file"
        if self.model:
            measured += f" of {self.model}"
            ranking = f"{how} of the effect on {self.metric} in {unit_words(self.unit)}"
        lines = [f"Circuit of {len(self.edges):,} of {measured}, rule {self.rule}, by {ranking}"]
        if not connect(self.graph, self.edges):
            lines.append(_NO_PATH)
        if not self.edges:
            return "\n".join(lines)
        if self.stability:
            shares = np.array([self.stability.get(edge, 0.0) for edge in self.edges])
            lines.append(
                f"{int((shares >= 0.9).sum())} of its edges are selected in 90 % of resamples, the"
                f" median edge in {np.median(shares):.0%}; two resamples share {self.overlap:.0%}"
                " of their edges"
            )
        lines.append(self.table().head(10).to_string(index=False, float_format="{:.3f}".format))
        return "\n".join(lines)
