"""Find a circuit by ACDC: remove edges whose removal changes the metric little."""

from typing import Any

import numpy as np

from anchorlens.engine.edges.circuits import remove_in_order
from anchorlens.engine.edges.graph import Edge
from anchorlens.errors import InputError
from anchorlens.progress import progress as progress_bar
from anchorlens.protocols.edges.circuit import ACDC, Circuit
from anchorlens.protocols.edges.circuit_pairs import open_pairs


def acdc(
    model: Any,
    pairs: Any,
    *,
    threshold: float,
    senders: Any = "all",
    receivers: Any = "all",
    metric: Any = "auto",
    ablation: str = "patching",
    add_bos: bool | None = None,
    at_once: int = 16,
    progress: bool = True,
) -> Circuit:
    """Find a circuit by ACDC (Conmy et al. 2023), exactly.

    From the last receiver to the first, an edge is removed (its contribution is the ablated one) if
    the mean metric over pairs then changes by less than ``threshold``. Every test runs only the
    layers from the receiver on, and several tests run together; the same edges stay as with one
    whole forward pass for each.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> pairs = al.load_pairs("ioi-pairs", limit=4)
        >>> circuit = al.acdc(model, pairs, threshold=0.05, receivers="logits")  # doctest: +SKIP
        >>> al.save_circuit(circuit, "circuit.json")  # doctest: +SKIP

    Args:
        model: Model, or an argument of :func:`anchorlens.load_model`.
        pairs: Pairs, or the first argument of :func:`anchorlens.load_pairs`.
        threshold: Change of the metric from which an edge stays, in its unit: percentage points of
            a probability.
        senders: Senders of the tested edges, as in :func:`anchorlens.edge_sweep`; all other edges
            stay.
        receivers: Receivers of the tested edges.
        metric: Metric, as in :func:`anchorlens.edge_sweep`.
        ablation: ``patching`` or ``mean``, as in :meth:`Circuit.faithfulness`.
        add_bos: Whether BOS is added to texts. If None, as the tokenizer does.
        at_once: Number of tests that run together.
        progress: Whether to show progress bars.

    Returns:
        The circuit. The score of a tested edge is by how much its removal changed the metric then
        (negated, so that positive edges help the metric).

    Raises:
        InputError: If an argument is invalid.
    """
    if not isinstance(threshold, int | float) or not threshold > 0:
        raise InputError(f"threshold={threshold!r}: must be above 0.", argument="threshold")
    if not isinstance(at_once, int) or at_once < 1:
        raise InputError(f"at_once={at_once!r}: must be at least 1.", argument="at_once")
    opened = open_pairs(
        model, pairs, metric=metric, ablation=ablation, add_bos=add_bos, show=progress
    )
    graph = opened.graph
    chosen_senders = graph.choose(_as_names(senders), "senders")
    chosen_receivers = graph.choose(_as_names(receivers), "receivers")
    tested = graph.edges(chosen_senders, chosen_receivers)
    if not tested:
        raise InputError("senders: no edge to these receivers. Choose others.", argument="senders")
    kept = set(graph.edges(graph.senders, graph.receivers))
    scores: dict[Edge, float] = {}
    with progress_bar("acdc", len(tested), "edge", show=progress) as bar:
        for edge, change, stays in remove_in_order(
            opened.runs, threshold / opened.factor, tested, at_once=at_once
        ):
            scores[edge] = -opened.factor * change
            if not stays:
                kept.remove(edge)
            bar.advance(1)
    ranked = sorted(kept, key=lambda edge: -abs(scores.get(edge, np.inf)))
    return Circuit(
        graph=graph,
        edges=tuple(ranked),
        scores=scores,
        rule=ACDC,
        model=opened.model,
        dataset=opened.dataset,
        metric=opened.metric,
        unit=opened.unit,
        add_bos=add_bos,
        d_model=opened.runs[0].adapter.shape.d_model,
    )


def _as_names(given: Any) -> list[str]:
    """Return the given names as a list; a text is one name."""
    return [given] if isinstance(given, str) else list(given)
