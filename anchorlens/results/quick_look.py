"""Findings of a quick look: what was left out, the largest effects, and no claim."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_LAYERS
from anchorlens.display import list_counts, three_digits
from anchorlens.results.findings import Findings
from anchorlens.results.low_p import low_p_note
from anchorlens.results.vocabulary import RowWords, metric_labels

QUICK_NOTE = "quick look, nothing is claimed"
"""Note in the figure of a quick look."""
# Largest number of curves whose largest effects are named one by one.
_MOST_NAMED = 4


def quick_findings(
    record: Mapping[str, Any],
    layers: Sequence[int],
    curves: pd.DataFrame,
    warnings: Sequence[str],
    *,
    words: RowWords,
    dropped: Mapping[str, int],
) -> Findings:
    """Return findings without statements: what was measured, and the largest effects.

    Args:
        record: Record of the sweep.
        layers: Measured layers.
        curves: Curves without controls.
        warnings: Warnings of the protocol's findings.
        words: Words for the rows of the protocol.
        dropped: Reason -> number of rows that were dropped.
    """
    n = int(curves["n"].max())
    measured = words.count(n)
    if dropped:
        measured += f" (dropped: {list_counts(dropped)})"
    cure = "Measure without quick=True for claims"
    if n < MIN_QUESTIONS_FOR_LAYERS:
        cure += f", with {MIN_QUESTIONS_FOR_LAYERS} {words.groups} or more to name layers"
    scope = f"{measured}, {_describe_scope(record, layers)}"
    headline = f"Quick look, nothing is claimed: {scope}. {cure}."
    notes = _largest_effects(curves)
    if low := low_p_note(curves, record["config"]):
        notes.append(low)
    return Findings(headline=headline, warnings=tuple(warnings), notes=tuple(notes))


def _describe_scope(record: Mapping[str, Any], layers: Sequence[int]) -> str:
    """Return the number of layers, and the donors and controls that were left out."""
    config: Mapping[str, Any] = record["config"]
    parts = [f"{len(layers)} of {record['model']['n_layers']} layers"]
    donors = config.get("n_donors")
    if donors is not None:
        parts.append(f"{donors} donor{'s' * (donors > 1)} for each row")
    if config.get("n_null_donors") == 0:
        parts.append("no nulls")
    if config.get("placebos") is False:
        parts.append("no placebos")
    if config.get("controls") == "none":
        parts.append("no controls")
    return ", ".join(parts)


def _largest_effects(curves: pd.DataFrame) -> list[str]:
    """Return the largest effect of each curve, or the largest one of a grid."""
    first = curves["metric"].iloc[0]
    own = curves[(curves["metric"] == first) & curves["effect"].notna()]
    names = [name for name in ("anchor", "pathway") if name in own]
    rows: list[pd.Series] = []
    for _, along in own.groupby(names, sort=False, dropna=False):
        rows.append(along.loc[along["effect"].abs().idxmax()])
    if len(rows) > _MOST_NAMED:
        rows = [max(rows, key=lambda row: abs(row["effect"]))]
    if not rows:
        return []
    labels = metric_labels(own)
    named: list[str] = []
    for row in rows:
        place = " ".join(str(row[name]) for name in names if row[name])
        named.append(f"{three_digits(row['effect'])}{labels.unit} at {place}, layer {row['layer']}")
    return [f"Largest {labels.name}: {'; '.join(named)}."]
