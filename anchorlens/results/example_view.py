"""Rows of a sweep as plain values: tokens, their roles, and the effect of the row by layer."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

import pandas as pd

from anchorlens.constants import NULL_CONTROLS, P
from anchorlens.results.curve_tables import clean_values
from anchorlens.results.vocabulary import metric_labels, metric_name
from anchorlens.runs.schema import leading_metric, parse_positions, without_nulls
from anchorlens.statistics.pathways import RANDOM

ROLES = {
    "subject": "subject",
    "property": "property",
    "answer": "answer",
    "pre_answer": "where the answer is predicted",
    f"cut:{RANDOM}": "control: cut instead",
    "replaced": "replaced",
}
"""Role of a marked token -> display name; a token with two roles gets the first."""
# Controls drawn beside the curves of a row.
_BESIDE = (*NULL_CONTROLS.values(), RANDOM, "other_question")
_LABELS = ("true", "false")


class Row(TypedDict):
    """Measured row of a sweep as plain values, for figures and reports."""

    id: str
    question: str
    answer: str
    label: str  # "true" or "false"; empty if the answer has no label
    tokens: list[str]
    marks: dict[str, list[int]]  # role of a token -> positions
    metric: str  # leading metric of the sweep: "P", or its name
    change: str  # name of the effect
    unit: str  # unit of the effect
    curves: dict[str, list[float | None]]  # name -> effect at each layer; None if not measured
    peak: float  # largest |effect| of the anchors, with its sign
    at: int  # layer of the peak
    place: str  # anchor of the peak
    before: float  # metric of the clean run at that layer
    pathway: str  # pathway at that layer


def example_rows(
    samples: pd.DataFrame,
    examples: pd.DataFrame,
    anchors: Sequence[str],
    layers: Sequence[int],
    ids: Collection[str] | None = None,
) -> list[Row]:
    """Return every measured row of a sweep as plain values.

    Args:
        samples: Samples of the sweep.
        examples: Inputs of the sweep.
        anchors: Anchors of the sweep.
        layers: Layers of the sweep.
        ids: Ids of the rows to return. If None, all rows.

    Returns:
        The rows, in the order of the inputs; effects are averaged over donors.
    """
    base = examples[examples["role"] == "base"]
    base = base if ids is None else base[base["example_id"].isin(list(ids))]
    samples = without_nulls(samples)
    metric = leading_metric(samples)
    own = samples[(samples["metric"] == metric) & samples["control"].isin(["none", *_BESIDE])]
    labels = metric_labels(own)
    of_metric = {
        "metric": metric_name(metric),
        "change": labels.name,
        "unit": labels.unit.strip(),
    }
    own = own if ids is None else own[own["example_id"].isin(list(ids))]
    means = own.groupby(["example_id", "anchor", "control", "layer"], sort=False)["effect"].mean()
    table = means.unstack("layer").reindex(columns=list(layers))
    measured = own[own["control"] == "none"]
    # As in the curves, P of a truth readout is the confidence in the clean prediction.
    if metric == P:
        event = base.set_index("example_id")["label"].to_dict()
        measured = measured.assign(value_before=clean_values(measured, event))
    # The value of a probe and the pathway differ by layer.
    before = measured.drop_duplicates(["example_id", "layer"]).set_index("example_id")[
        ["layer", "value_before", "pathway"]
    ]
    first: dict[str, Mapping[Any, Mapping[Any, Any]]] = {}
    for example, group in before.groupby(level=0, sort=False):
        by_layer = group.set_index("layer")
        first[str(example)] = by_layer.to_dict("index")
    curves: dict[str, dict[str, list[float | None]]] = {}
    cells = zip(table.index, table.to_numpy(), strict=True)
    for (example, anchor, control), values in sorted(
        cells, key=lambda cell: list(anchors).index(cell[0][1])
    ):
        name = anchor if control == "none" else f"{anchor}, {control}"
        curves.setdefault(example, {})[name] = [_curve_value(value) for value in values]
    records: list[dict[Any, Any]] = base.to_dict("records")
    rows: list[Row] = []
    for record in records:
        row_id = record["example_id"]
        if row_id in first:
            row = _row(record, anchors, layers, curves[row_id], first[row_id], of_metric)
            rows.append(row)
    return rows


def _curve_value(value: float) -> float | None:
    """Return a value with two decimals; None for NaN."""
    return None if value != value else round(float(value), 2)


def _row(
    row: Mapping[Any, Any],
    anchors: Sequence[str],
    layers: Sequence[int],
    curves: dict[str, list[float | None]],
    before: Mapping[Any, Mapping[Any, Any]],
    of_metric: Mapping[str, str],
) -> Row:
    points: list[tuple[float, int, str]] = []
    for anchor in anchors:
        for value, layer in zip(curves.get(anchor, ()), layers, strict=False):
            if value is not None:
                point = (value, layer, anchor)
                points.append(point)
    peak, at, place = max(points, key=lambda point: abs(point[0]))
    label = row["label"]
    positions = parse_positions(row["example_id"], row["positions"], len(row["tokens"]))
    return {
        "id": str(row["example_id"]),
        "question": str(row["question"]),
        "answer": str(row["answer"]),
        "label": "" if pd.isna(label) else _LABELS[int(label)],
        "pathway": str(before[at]["pathway"]),
        "before": round(float(before[at]["value_before"]), 4),
        "tokens": list(row["tokens"]),
        "marks": _marks(positions),
        "curves": curves,
        "peak": peak,
        "at": at,
        "place": place,
        "metric": of_metric["metric"],
        "change": of_metric["change"],
        "unit": of_metric["unit"],
    }


def _marks(positions: Mapping[str, list[int]]) -> dict[str, list[int]]:
    taken: set[int] = set()
    found: dict[str, list[int]] = {}
    for role in ROLES:
        own = [p for p in positions.get(role, ()) if p not in taken]
        taken |= set(own)
        if own:
            found[role] = own
    return found


__all__ = ["ROLES", "Row", "example_rows"]
