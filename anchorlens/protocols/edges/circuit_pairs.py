"""Prompt pairs on which circuits are run, with their clusters."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from anchorlens.display import short_repr, warn
from anchorlens.engine.edges.circuits import Ablation, CircuitRuns, Masks
from anchorlens.engine.edges.graph import Edge, Graph
from anchorlens.engine.function_reader import FunctionReader
from anchorlens.engine.hooked_passes import full_reader, measure
from anchorlens.engine.patches import pad_rows
from anchorlens.errors import EmptySweepError, InputError
from anchorlens.models.card import name_of
from anchorlens.models.load import adapt, as_lens_model
from anchorlens.progress import progress
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.pairs import PairData
from anchorlens.prompts.tokenize_pairs import set_up_pairs
from anchorlens.protocols.edges.edge_inputs import check_model_has_edges, graph_of, prepare_edges
from anchorlens.protocols.edges.spec import Edges
from anchorlens.protocols.patch.placements import ALL, REST, PatchPair, anchors_of
from anchorlens.statistics.clusters import clusters_of_rows
from anchorlens.statistics.resamples import Estimate, Resamples

Array = npt.NDArray[np.float64]

ABLATIONS = ("patching", "mean")
# Prompts of one length from which their mean is a mean.
_FEW_PROMPTS = 10
# Largest difference of the whole graph's metric from the model's own, as a share of the range.
_MOST_DIFFERENCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_MOST_DIFFERENCE_HALF = 0.1


@dataclass(frozen=True, kw_only=True)
class CircuitPairs:
    """Pairs that circuits run on.

    Attributes:
        graph: Graph of the model.
        places: Places of the edges: ``all``, or segments or positions.
        model: Name of the model.
        dataset: Name of the pairs.
        runs: Runs of each pair.
        groups: Group of each pair.
        clusters: Cluster of each pair; empty if unknown.
        clean: Metric of the clean prompts by forward passes.
        whole: Metric of the whole graph, which is the same up to rounding.
        ablated: Metric of the empty circuit.
        metric: Name of the metric.
        unit: Unit of its differences.
        factor: Factor of differences of values to this unit.
        n_dropped: Number of pairs that were left out.
    """

    graph: Graph
    places: tuple[str, ...]
    model: str
    dataset: str
    runs: tuple[CircuitRuns, ...]
    groups: tuple[str, ...]
    clusters: tuple[str, ...]
    clean: Array
    whole: Array
    ablated: Array
    metric: str
    unit: str
    factor: float
    n_dropped: int

    @property
    def every_edge(self) -> tuple[Edge, ...]:
        """Edges of the model, at each place."""
        return self.graph.edges(self.graph.senders, self.graph.receivers, self.places)

    def masks(self, circuits: Sequence[Collection[Edge]]) -> Masks:
        """Return whether each edge is in each circuit."""
        return self.graph.masks(circuits, self.places)

    def values(
        self, masks: Masks, *, from_layer: int = 0, label: str = "circuits", show: bool = False
    ) -> Array:
        """Return the metric of every pair under each circuit, [pair circuit]."""
        found: list[list[float]] = []
        with progress(label, len(self.runs), "pair", show=show) as bar:
            for run in self.runs:
                found.append(run.values_of(masks, from_layer=from_layer))
                bar.advance(1)
        return np.array(found, dtype=np.float64).reshape(len(self.runs), len(masks))

    def resamples(self, n_resamples: int, seed: int) -> Resamples:
        """Draw whole clusters of pairs."""
        known = clusters_of_rows(list(zip(self.groups, self.clusters, strict=True)))
        groups = np.array(self.groups)
        return Resamples.of(groups, clusters=known.of(groups), n_resamples=n_resamples, seed=seed)

    def means(self, values: Array, draws: Resamples) -> Estimate:
        """Return the mean over pairs with its resamples, in :attr:`unit`."""
        scaled = self.factor * values
        return draws.means(scaled, np.ones(scaled.shape, dtype=bool))


def open_pairs(
    model: Any,
    pairs: Any,
    *,
    metric: Any = "auto",
    ablation: str = "patching",
    add_bos: bool | None = None,
    by: str = ALL,
    show: bool = False,
) -> CircuitPairs:
    """Tokenize pairs and compute what their circuits need.

    Args:
        model: Model, or an argument of :func:`anchorlens.load_model`.
        pairs: Pairs, or the first argument of :func:`anchorlens.load_pairs`.
        metric: Metric, as in :func:`anchorlens.edge_sweep`.
        ablation: ``patching`` (contributions of the corrupted prompt) or ``mean`` (their mean over
            the corrupted prompts of the same length, at each position).
        add_bos: Whether BOS is added to texts.
        by: Places of the edges, as in :func:`anchorlens.edge_sweep`.
        show: Whether to show a progress bar.

    Raises:
        InputError: If the model, the metric or the ablation cannot be used, or the whole graph does
            not give the model's own metric.
        EmptySweepError: If no pair has prompts of equal length.
    """
    if ablation not in ABLATIONS:
        raise InputError(
            f"ablation={ablation!r}: must be {' or '.join(map(repr, ABLATIONS))}.",
            argument="ablation",
        )
    lens = as_lens_model(model, progress=show)
    adapter = adapt(lens)
    data = pairs if isinstance(pairs, PairData) else load_pairs(pairs)
    spec = Edges(
        metric=metric, by=by, controls="none", n_spot_checks=0, add_bos=add_bos, progress=show
    )
    check_model_has_edges(adapter, spec)
    inputs = prepare_edges(set_up_pairs(adapter, data, spec), spec).read_sources(adapter, spec)
    own = [pair for pair in inputs.own_pairs if _has_equal_lengths(pair)]
    n_dropped = len(inputs.own_pairs) - len(own)
    if not own:
        raise EmptySweepError(
            "No pair has a clean and a corrupted prompt of equal length, which a circuit needs: a"
            " receiver reads both at the same position. Give such pairs."
        )
    if n_dropped:
        warn(
            f"{n_dropped} of {len(inputs.own_pairs)} pairs were left out: clean and corrupted"
            " prompt differ in length, and a circuit reads both at the same position."
        )
    graph = graph_of(adapter)
    places = anchors_of(own)
    reading = inputs.reading
    ablations = _ablate(adapter, own, ablation)
    runs: list[CircuitRuns] = []
    clean: list[float] = []
    with progress("circuits: pairs", len(own), "pair", show=show) as bar:
        for pair, rows in zip(own, ablations, strict=True):
            assert pair.source is not None  # every pair has two prompts
            reader = reading.reader([pair.target], [pair.base.id])
            if isinstance(reader, FunctionReader):
                reader = reader.of_any_states()
            runs.append(
                CircuitRuns(
                    adapter,
                    graph,
                    pair.source.ids,
                    rows,
                    reader,
                    metric=reading.name,
                    places=_positions_of(pair, rows, places),
                )
            )
            tokens = pad_rows([pair.source.ids])
            found = measure(adapter, tokens, (), full_reader(reader)).values[reading.name]
            clean.append(float(found.flatten()[0]))
            bar.advance(1)
    everything = graph.masks([graph.edges(graph.senders, graph.receivers, places)], places)
    made = CircuitPairs(
        graph=graph,
        places=places,
        model=name_of(adapter.model),
        dataset=data.name,
        runs=tuple(runs),
        groups=tuple(str(pair.base.group) for pair in own),
        clusters=tuple(str(pair.base.cluster or "") for pair in own),
        clean=np.array(clean),
        whole=np.array([run.values_of(everything)[0] for run in runs]),
        ablated=np.array([run.value_of_empty() for run in runs]),
        metric=reading.name,
        unit=reading.unit,
        factor=reading.factor,
        n_dropped=n_dropped + len(inputs.dropped),
    )
    _check_whole_graph(made, ablations[0].layers[0].pre.dtype, in_steps=not reading.is_named)
    return made


def _has_equal_lengths(pair: PatchPair) -> bool:
    return pair.source is not None and len(pair.source.ids) == len(pair.target.ids)


def _positions_of(
    pair: PatchPair, ablation: Ablation, places: Sequence[str]
) -> list[tuple[int, ...]] | None:
    """Return the positions of each place in a pair; None for one place of all positions.

    Raises:
        InputError: If a position from the first difference on is at no place.
    """
    if tuple(places) == (ALL,):
        return None
    assert pair.source is not None  # every pair has two prompts
    of = {place.anchor: place.target_positions for place in pair.placements}
    inside = set(chain.from_iterable(of.values()))
    first = ablation.first_difference(pair.source.ids)
    # Tokens that right and wrong answer share are behind the prompt.
    rest = tuple(set(range(first, len(pair.source.ids))).difference(inside))
    if rest and REST not in places:
        raise InputError(
            f"pair {pair.base.id!r}: positions {short_repr(list(rest))} are at no place of the"
            " circuit's edges, for example because right and wrong answer share their first token."
            " Measure with by='all'.",
            argument="pairs",
        )
    return [of.get(name, ()) + (rest if name == REST else ()) for name in places]


def _ablate(adapter: Any, pairs: Sequence[PatchPair], ablation: str) -> list[Ablation]:
    """Return the ablated contributions of each pair."""
    if ablation == "patching":
        return [Ablation.of(adapter, [pair.target.ids]) for pair in pairs]
    by_length: dict[int, list[tuple[int, ...]]] = {}
    for pair in pairs:
        by_length.setdefault(len(pair.target.ids), []).append(pair.target.ids)
    fewest = min(len(set(rows)) for rows in by_length.values())
    if fewest < _FEW_PROMPTS:
        warn(
            f"ablation='mean': the mean is over {fewest} different corrupted prompts of one length,"
            " and keeps what they have in common. Give more pairs of equal length, or use"
            " ablation='patching'."
        )
    means = {length: Ablation.of(adapter, rows) for length, rows in by_length.items()}
    return [means[len(pair.target.ids)] for pair in pairs]


def _check_whole_graph(pairs: CircuitPairs, dtype: torch.dtype, *, in_steps: bool) -> None:
    """Raise InputError if the whole graph does not give the metric of a forward pass.

    A metric function may move in steps, where rounding turns single pairs: up to half of them warn.
    """
    scale = np.abs(pairs.clean - pairs.ablated).max()
    gaps = np.abs(pairs.whole - pairs.clean)
    gap = gaps.max()
    most = max(1e-6, _MOST_DIFFERENCE.get(dtype, _MOST_DIFFERENCE_HALF) * scale)
    n_off = int((gaps > most).sum())
    if in_steps and 0 < n_off <= len(gaps) / 2:
        warn(
            f"In {n_off} of {len(gaps)} pairs rounding changes the metric {pairs.metric}: the whole"
            " graph and a forward pass differ. Take effects of this size in a pair as rounding."
        )
    elif n_off:
        raise InputError(
            f"model: the whole graph gives a metric that differs by {gap:.2g} from that of a"
            f" forward pass (clean and ablated differ by {scale:.2g}). Circuits of this model are"
            " not run.",
            argument="model",
        )
