"""Circuits as JSON files of EAP-IG and the MIB benchmark.

Names of nodes and edges are those of EAP-IG: ``input``, ``a0.h1``, ``m0``, ``logits``;
``a0.h1->a1.h2<q>``. It has keys and values of every query head: under grouped queries the edges of
a group are one edge here, which is written once for each head.
"""

import json
import math
from os import PathLike
from pathlib import Path
from typing import Any

from anchorlens.constants import ALL_PLACES
from anchorlens.display import short_repr
from anchorlens.engine.edges.graph import ATTENTION_INPUTS, EMBED, Edge, Graph, Node
from anchorlens.errors import DataError, InputError
from anchorlens.protocols.edges.circuit import TOP, Circuit
from anchorlens.runs.files import write_whole

_OWN = "anchorlens"


def save_circuit(circuit: Circuit, path: "str | PathLike[str]") -> Path:
    """Write a circuit, with the effects of all measured edges, as JSON that EAP-IG and the MIB
    benchmark read.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> pairs = al.load_pairs("ioi-pairs", limit=10)
        >>> edges = al.edge_sweep(model, pairs, receivers="logits")  # doctest: +SKIP
        >>> al.save_circuit(edges.circuit(top=200), "ioi/importances.json")  # doctest: +SKIP

    A folder of the MIB benchmark has one folder for each task and model, with a file
    ``importances.json``; its folders are made.

    Args:
        circuit: Circuit to write.
        path: File to write.

    Raises:
        InputError: If the file cannot be written, or the circuit's edges are not over all
            positions.
    """
    if circuit.by != ALL_PLACES:
        raise InputError(
            f"circuit: its edges are by {circuit.by}, and files of EAP-IG have edges over all"
            " positions. Write circuit.table(), or select a circuit of a sweep with by='all'.",
            argument="circuit",
        )
    graph = circuit.graph
    inside = set(circuit.edges)
    used = {edge.sender for edge in inside}
    edges: dict[str, dict[str, Any]] = {}
    every_edge = graph.edges(graph.senders, graph.receivers)
    for edge in every_edge:
        own = {"score": circuit.scores.get(edge, 0.0), "in_graph": edge in inside}
        for name in _their_names(graph, edge):
            edges[name] = own
    nodes = {_their_node(node): {"in_graph": node in used} for node in graph.senders}
    made = {
        "cfg": {
            "n_layers": graph.n_layers,
            "n_heads": graph.n_heads,
            "parallel_attn_mlp": graph.parallel,
            "d_model": circuit.d_model,
        },
        "nodes": {**nodes, "logits": {"in_graph": True}},
        "edges": edges,
        _OWN: {
            "n_kv_heads": graph.n_kv_heads,
            "has_mlps": graph.has_mlps,
            "rule": circuit.rule,
            "absolute": circuit.absolute,
            "model": circuit.model,
            "dataset": circuit.dataset,
            "metric": circuit.metric,
            "unit": circuit.unit,
            "add_bos": circuit.add_bos,
            "unmeasured": [edge.name for edge in every_edge if edge not in circuit.scores],
            "overlap": None if math.isnan(circuit.overlap) else circuit.overlap,
            "stability": {edge.name: share for edge, share in circuit.stability.items()},
        },
    }
    out = Path(path)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, json.dumps(made, allow_nan=False).encode())
    except OSError as why:
        raise InputError(
            f"path={short_repr(str(path))}: cannot be written ({why.strerror}). Choose another"
            " path.",
            argument="path",
        ) from why
    return out


def load_circuit(path: "str | PathLike[str]", *, n_kv_heads: int | None = None) -> Circuit:
    """Read a circuit from a JSON file of anchorlens, EAP-IG or the MIB benchmark.

    Examples:
        >>> import anchorlens as al
        >>> pairs = al.load_pairs("ioi-pairs", limit=10)
        >>> circuit = al.load_circuit("ioi/importances.json")  # doctest: +SKIP
        >>> circuit.faithfulness("smollm2-135m-instruct", pairs)  # doctest: +SKIP

    Args:
        path: File, such as ``importances.json``.
        n_kv_heads: Number of key/value heads of the model, for files of other programs under
            grouped queries. If None, that in the file, else the number of heads.

    Returns:
        The circuit. The edges of a group of query heads must be in it together; their score is the
        sum over the heads, or the common score in a file of anchorlens.

    Raises:
        DataError: If the file is missing or is no such circuit, or its edges are not those of the
            model in its ``cfg``.
    """
    where = Path(path)
    try:
        found = json.loads(where.read_text(encoding="utf-8"))
    except OSError as why:
        raise DataError(f"path={short_repr(str(path))}: {why.strerror}.", argument="path") from why
    except ValueError as why:
        raise DataError(f"path={short_repr(str(path))}: no JSON ({why}).", argument="path") from why
    try:
        return _read(found, n_kv_heads)
    except (KeyError, TypeError, AttributeError, ValueError) as why:
        raise DataError(
            f"path={short_repr(str(path))}: no circuit of EAP-IG or the MIB benchmark"
            f" ({_say(why)}). It has cfg, nodes and edges, with score and in_graph of every edge.",
            argument="path",
        ) from why


def _read(found: Any, n_kv_heads: int | None) -> Circuit:
    """Return the circuit of a file's content."""
    cfg = found["cfg"]
    own = found.get(_OWN, {})
    n_heads = int(cfg["n_heads"])
    n_kv = int(n_kv_heads or own.get("n_kv_heads", n_heads))
    graph = Graph(
        n_layers=int(cfg["n_layers"]),
        n_heads=n_heads,
        n_kv_heads=n_kv,
        has_mlps=bool(own.get("has_mlps", True)),
        parallel=bool(cfg["parallel_attn_mlp"]),
    )
    stored = found["edges"]
    unmeasured = set(own.get("unmeasured", ()))
    scores: dict[Edge, float] = {}
    inside: list[Edge] = []
    known: set[str] = set()
    for edge in graph.edges(graph.senders, graph.receivers):
        names = _their_names(graph, edge)
        known.update(names)
        if lacking := [name for name in names if name not in stored]:
            raise ValueError(f"edge {lacking[0]} is missing, though cfg has {graph.describe()}")
        some = [stored[name] for name in names]
        flags = {bool(one["in_graph"]) for one in some}
        if len(flags) > 1:
            raise ValueError(f"{edge.name}: in the circuit for some query heads of its group only")
        # EAP-IG writes NaN for edges without a score.
        values = [float(one["score"]) for one in some]
        if edge.name not in unmeasured and not any(map(math.isnan, values)):
            scores[edge] = values[0] if _OWN in found else math.fsum(values)
        if flags == {True}:
            inside.append(edge)
    if unknown := [name for name in stored if name not in known]:
        raise ValueError(
            f"{short_repr(unknown[0])} is no edge of cfg, which has {graph.describe()}"
        )
    inside.sort(key=lambda edge: -abs(scores.get(edge, 0.0)))
    by_name = {edge.name: edge for edge in graph.edges(graph.senders, graph.receivers)}
    return Circuit(
        graph=graph,
        edges=tuple(inside),
        scores=scores,
        rule=own.get("rule", TOP),
        absolute=bool(own.get("absolute", True)),
        stability={by_name[name]: share for name, share in own.get("stability", {}).items()},
        overlap=float("nan") if own.get("overlap") is None else float(own["overlap"]),
        model=own.get("model", ""),
        dataset=own.get("dataset", ""),
        metric=own.get("metric", "auto"),
        unit=own.get("unit", "logit"),
        add_bos=own.get("add_bos"),
        d_model=int(cfg["d_model"]),
    )


def _say(why: Exception) -> str:
    """Return an error in words: of a missing key, its name."""
    return f"{why} is missing" if isinstance(why, KeyError) else str(why)


def _their_node(node: Node) -> str:
    """Return EAP-IG's name of a sender."""
    return "input" if node.kind == EMBED else node.name


def _their_names(graph: Graph, edge: Edge) -> list[str]:
    """Return EAP-IG's names of an edge: of a key or value, one for each query head of its group."""
    sender = _their_node(edge.sender)
    receiver = edge.receiver
    if receiver.kind not in ATTENTION_INPUTS:
        return [f"{sender}->{receiver.name}"]
    rep = 1 if receiver.kind == "q" else graph.n_heads // graph.n_kv_heads
    heads = range(receiver.head * rep, (receiver.head + 1) * rep)
    return [f"{sender}->a{receiver.layer}.h{head}<{receiver.kind}>" for head in heads]
