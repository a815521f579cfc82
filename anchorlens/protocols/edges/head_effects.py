"""Direct and total effects of heads, what later layers repair, and joint effects of two heads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.engine.edges.circuits import Masks
from anchorlens.engine.edges.graph import HEAD, LOGITS, Node
from anchorlens.errors import InputError
from anchorlens.progress import progress as progress_bar
from anchorlens.protocols.edges.circuit_pairs import CircuitPairs, open_pairs
from anchorlens.results.vocabulary import unit_words
from anchorlens.statistics.bands import band

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class HeadEffects:
    """Effects of single heads and of pairs of heads; frozen.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> pairs = al.load_pairs("ioi-pairs", limit=10)
        >>> found = al.head_effects(model, pairs, heads="a2*", joint=5)  # doctest: +SKIP
        >>> found.singles.head()  # doctest: +SKIP

    Attributes:
        singles: One row per head; see :func:`head_effects`.
        joint: One row per pair of heads.
        model: Name of the model.
        dataset: Name of the pairs.
        metric: Name of the metric.
        unit: Unit of the effects.
        n: Number of pairs of prompts.
        n_clusters: Number of clusters that were drawn.
    """

    singles: pd.DataFrame
    joint: pd.DataFrame
    model: str
    dataset: str
    metric: str
    unit: str
    n: int
    n_clusters: int

    def __str__(self) -> str:
        shape = {"index": False, "float_format": "{:.3f}".format}
        lines = [
            f"Ablated heads of {self.model} on {self.dataset}: loss of {self.metric} in"
            f" {unit_words(self.unit)}, {self.n} pairs, {self.n_clusters} clusters drawn",
            self.singles.head(10).to_string(**shape),
        ]
        if len(self.joint):
            lines += ["Pairs of heads", self.joint.head(10).to_string(**shape)]
        return "\n".join(lines)


def head_effects(
    model: Any,
    pairs: Any,
    *,
    heads: Any = "heads",
    joint: int = 20,
    metric: Any = "auto",
    ablation: str = "patching",
    add_bos: bool | None = None,
    at_once: int = 32,
    n_resamples: int = 1000,
    seed: int = 0,
    progress: bool = True,
) -> HeadEffects:
    """Measure what is lost in the clean run when heads are ablated: directly at the logits, in
    total, and jointly for two heads.

    A head that others back up has a large direct and a small total effect. Of two heads that do the
    same, each alone has a small effect and both together a large one.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> pairs = al.load_pairs("ioi-pairs", limit=10)
        >>> found = al.head_effects(model, pairs, heads="a2*", joint=5)  # doctest: +SKIP
        >>> found.singles.head()  # doctest: +SKIP
        >>> found.joint[found.joint["low"] > 0]  # heads that back each other up  # doctest: +SKIP

    Args:
        model: Model, or an argument of :func:`anchorlens.load_model`.
        pairs: Pairs, or the first argument of :func:`anchorlens.load_pairs`.
        heads: Names or patterns of heads (``a5.*``), or ``heads`` for all.
        joint: Number of heads with the largest direct or total effect, of which every pair is
            measured; 0 for none.
        metric: Metric, as in :func:`anchorlens.edge_sweep`.
        ablation: ``patching`` or ``mean``, as in :meth:`Circuit.faithfulness`.
        add_bos: Whether BOS is added to texts. If None, as the tokenizer does.
        at_once: Number of interventions that run together.
        n_resamples: Number of bootstrap resamples of whole clusters.
        seed: Random seed of the resamples.
        progress: Whether to show progress bars.

    Returns:
        Effects in the unit of the metric, positive where the metric falls, with bands that are
        simultaneous over the rows of each table. ``singles``: ``head direct direct_low direct_high
        total total_low total_high repaired repaired_low repaired_high``; ``direct`` ablates the
        head in the input of the logits alone, ``total`` in every later input, and ``repaired`` is
        direct minus total, the part that later layers replace. ``joint``: ``first second joint sum
        interaction low high``; ``interaction`` is the effect of both minus the sum of their single
        effects: positive for heads that back each other up, negative for heads that only work
        together.

    Raises:
        InputError: If an argument is invalid.
    """
    for name, value, least in (("joint", joint, 0), ("at_once", at_once, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name}={value!r}: must be a whole number >= {least}.", argument=name)
    opened = open_pairs(
        model, pairs, metric=metric, ablation=ablation, add_bos=add_bos, show=progress
    )
    return measure_heads(
        opened,
        heads,
        joint=joint,
        at_once=at_once,
        n_resamples=n_resamples,
        seed=seed,
        show=progress,
    )


def measure_heads(
    opened: CircuitPairs,
    heads: Any,
    *,
    joint: int,
    at_once: int = 32,
    n_resamples: int = 1000,
    seed: int = 0,
    show: bool = False,
) -> HeadEffects:
    """Measure the effects of heads on opened pairs; the arguments are those of
    :func:`head_effects`.
    """
    chosen = opened.graph.choose([heads] if isinstance(heads, str) else list(heads), "senders")
    if any(node.kind != HEAD for node in chosen):
        raise InputError(
            f"heads={heads!r}: must be heads, such as 'a5.h3' or 'a5.*'.", argument="heads"
        )
    logits = Node(LOGITS, opened.graph.n_layers)
    direct = _losses(opened, [((head,), logits) for head in chosen], at_once, "direct", show)
    total = _losses(opened, [((head,), None) for head in chosen], at_once, "total", show)
    draws = opened.resamples(n_resamples, seed)
    singles = pd.DataFrame({"head": [head.name for head in chosen]})
    for name, values in (("direct", direct), ("total", total), ("repaired", direct - total)):
        found = band(opened.means(values, draws))
        singles[[name, f"{name}_low", f"{name}_high"]] = np.stack(
            [found.value, found.sim_low, found.sim_high], 1
        )
    sizes = np.maximum(np.abs(direct.mean(0)), np.abs(total.mean(0)))
    order = np.argsort(-sizes, kind="stable")
    couples = list(combinations(sorted(order[:joint].tolist()), 2))
    table = pd.DataFrame(columns=["first", "second", "joint", "sum", "interaction", "low", "high"])
    if couples:
        both = _losses(
            opened,
            [((chosen[a], chosen[b]), None) for a, b in couples],
            at_once,
            "joint",
            show,
        )
        alone = np.stack([total[:, a] + total[:, b] for a, b in couples], 1)
        found = band(opened.means(both - alone, draws))
        table = pd.DataFrame(
            {
                "first": [chosen[a].name for a, _ in couples],
                "second": [chosen[b].name for _, b in couples],
                "joint": opened.factor * both.mean(0),
                "sum": opened.factor * alone.mean(0),
                "interaction": found.value,
                "low": found.sim_low,
                "high": found.sim_high,
            }
        )
        table = table.iloc[np.argsort(-table["interaction"].abs().to_numpy(), kind="stable")]
    return HeadEffects(
        singles=singles.iloc[order].reset_index(drop=True),
        joint=table.reset_index(drop=True),
        model=opened.model,
        dataset=opened.dataset,
        metric=opened.metric,
        unit=opened.unit,
        n=len(opened.runs),
        n_clusters=len(np.unique(draws.cluster)),
    )


def _losses(
    pairs: CircuitPairs,
    removed: Sequence[tuple[tuple[Node, ...], Node | None]],
    at_once: int,
    label: str,
    show: bool,
) -> Array:
    """Return by how much the metric of the whole graph falls without some edges, [pair case].

    Args:
        pairs: Opened pairs.
        removed: Senders, and the receiver at which they are ablated; None for all.
        at_once: Cases that run together.
        label: Label of the progress bar.
        show: Whether to show it.
    """
    graph = pairs.graph
    whole = graph.masks([graph.edges(graph.senders, graph.receivers)])[0]
    number = {node: i for i, node in enumerate(graph.senders)}
    receiver = {node: i for i, node in enumerate(graph.receivers)}
    lost = np.empty((len(pairs.runs), len(removed)))
    # Cases that begin in the same layer run together, from there on.
    by_layer: dict[int, list[int]] = {}
    for case, (senders, at) in enumerate(removed):
        first = graph.n_layers if at is not None else min(node.layer for node in senders)
        by_layer.setdefault(first, []).append(case)
    parts: list[tuple[int, list[int]]] = []
    for layer, cases in by_layer.items():
        for start in range(0, len(cases), at_once):
            some = cases[start : start + at_once]
            parts.append((layer, some))
    with progress_bar(f"heads: {label}", len(removed), "case", show=show) as bar:
        for layer, own in parts:
            masks: Masks = whole.repeat(len(own), 1, 1, 1)
            for mask, case in zip(masks, own, strict=True):
                senders, at = removed[case]
                for node in senders:
                    mask[:, slice(None) if at is None else receiver[at], number[node]] = False
            lost[:, own] = pairs.whole[:, None] - pairs.values(masks, from_layer=layer)
            bar.advance(len(own))
    return lost
