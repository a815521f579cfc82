"""Single rows of a sweep: tokens, what they are, and the row's own ΔP by layer."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from anchorlens.missing_values import without_nulls
from anchorlens.runs.schema import P
from anchorlens.statistics.pathways import RANDOM

ROLES = {
    "subject": "subject", "property": "property", "answer": "answer", "pre_answer": "where the answer is predicted",
    f"cut:{RANDOM}": "control: cut instead", "replaced": "replaced",
}  # fmt: skip
"""Marked tokens; where two roles share one, the first holds it."""
# Controls that stand beside a row's own curve.
_BESIDE = ("null", RANDOM, "other_question")
_LABELS = ("true", "false")

Row = dict[str, Any]


def example_rows(
    samples: pd.DataFrame,
    examples: pd.DataFrame,
    anchors: Sequence[str],
    layers: Sequence[int],
    ids: Collection[str] | None = None,
) -> list[Row]:
    """Every measured row of a sweep, as plain values.

    Args:
        samples: Its samples.
        examples: Its inputs.
        anchors: Its anchors.
        layers: Its layers.
        ids: These rows only.

    Returns:
        ``id question answer label``, ``tokens``, ``marks`` (role -> positions), ``curves`` (name -> ΔP in points at each layer,
        averaged over donors; None where a layer was not measured), ``peak`` and ``at``: the largest change without a control, and
        its layer; ``before`` and ``pathway``: P and the row's pathway there.
    """
    base = examples[examples["role"] == "base"]
    base = base if ids is None else base[base["example_id"].isin(list(ids))]
    samples = without_nulls(samples)
    own = samples[(samples["metric"] == P) & samples["control"].isin(["none", *_BESIDE])]
    own = own if ids is None else own[own["example_id"].isin(list(ids))]
    means = own.groupby(["example_id", "anchor", "control", "layer"], sort=False)["effect"].mean()
    table = means.unstack("layer").reindex(columns=list(layers))
    measured = own[own["control"] == "none"]
    # What stood there before at each layer (a probe's P differs by layer), and the pathway.
    told = measured.drop_duplicates(["example_id", "layer"]).set_index("example_id")[["layer", "value_before", "pathway"]]
    first = {str(example): group.set_index("layer").to_dict("index") for example, group in told.groupby(level=0, sort=False)}
    curves: dict[str, dict[str, list[float | None]]] = {}
    for (example, anchor, control), values in zip(table.index, table.to_numpy(), strict=True):
        name = anchor if control == "none" else f"{anchor}, {control}"
        curves.setdefault(example, {})[name] = [None if value != value else round(float(value), 2) for value in values]
    records: list[dict[Any, Any]] = base.to_dict("records")
    return [
        _row(row, anchors, layers, curves[row["example_id"]], first[row["example_id"]])
        for row in records
        if row["example_id"] in first
    ]


def _row(
    row: Mapping[Any, Any],
    anchors: Sequence[str],
    layers: Sequence[int],
    curves: dict[str, list[float | None]],
    told: Mapping[Any, Mapping[Any, Any]],
) -> Row:
    points = [
        (value, layer)
        for anchor in anchors
        for value, layer in zip(curves.get(anchor, ()), layers, strict=False)
        if value is not None
    ]
    peak, at = max(points, key=lambda point: abs(point[0]))
    label, told_tokens = row["label"], row.get("tokens")
    # Runs of before schema version 6 have the text alone.
    known = isinstance(told_tokens, Collection) or hasattr(told_tokens, "tolist")
    tokens: list[str] = list(told_tokens) if known else [str(row["text"])]  # pyright: ignore[reportArgumentType]
    return {
        "id": str(row["example_id"]), "question": str(row["question"]), "answer": str(row["answer"]),
        "label": "" if pd.isna(label) else _LABELS[int(label)], "pathway": str(told[at]["pathway"]),
        "before": round(float(told[at]["value_before"]), 4), "tokens": tokens,
        "marks": _marks(json.loads(str(row["positions"]))) if known else {}, "curves": curves, "peak": peak, "at": at,
    }  # fmt: skip


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
