"""Rows of ``samples.parquet`` of a probe sweep."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from anchorlens.constants import FLIP, P
from anchorlens.questions.tokens import TokenRow
from anchorlens.statistics.delta import delta_p, is_flipped
from anchorlens.statistics.pathways import A, ProbeChange, Q


def pathway_samples(
    anchor: str,
    kind: str,
    layers: Sequence[int],
    rows: Sequence[TokenRow],
    measured: ProbeChange,
    *,
    event_is_true: bool,
    flips: bool = False,
) -> pd.DataFrame:
    """Build rows of ``samples.parquet``, without the constant columns.

    Args:
        anchor: Name of the changed or cut segment.
        kind: Kind of ΔP, see :func:`~anchorlens.statistics.delta.support`.
        layers: Layers of the curve.
        rows: Rows, in the order of the measured arrays.
        measured: P before and after and the pathway, under one control.
        event_is_true: Whether P is the probability of a true answer (``p_true``) instead of a false
            one (``probe``).
        flips: Whether to add the metric ``flip``, 1 if the prediction changed.
    """
    labels = np.array([row.answer.label for row in rows], dtype=np.float64)
    event = 1 - labels if event_is_true else labels
    ids = np.array([row.id for row in rows])
    clusters = np.array([row.cluster for row in rows])
    question_ids = np.array([row.example.question_id for row in rows])
    layer, row = np.nonzero(~np.isnan(measured.after))
    before = measured.before[layer, row]
    after = measured.after[layer, row]
    columns: dict[str, object] = {
        "example_id": ids[row],
        "question_id": question_ids[row],
        "cluster": clusters[row],
        "anchor": anchor,
        "pathway": np.where(measured.q[layer, row], Q, A),
        "layer": np.asarray(layers)[layer],
        "donor_id": np.array(measured.donors)[row] if measured.donors else "",
        "control": measured.control,
        "draw": 0,
        "by_construction": False,
    }
    values = {
        "metric": P,
        "value_before": before,
        "value_after": after,
        "effect": delta_p(before, after, event[row], kind),
    }
    with np.errstate(divide="ignore"):
        for when, p in (("before", before), ("after", after)):
            values |= {f"logp_{when}": np.log(p), f"logit_diff_{when}": np.log(p) - np.log1p(-p)}
    frame = pd.DataFrame({**columns, **values})
    if not flips:
        return frame
    changed = is_flipped(before, after).astype(np.float64)
    flip = {"metric": FLIP, "value_before": 0.0, "value_after": changed, "effect": 100 * changed}
    flips_frame = pd.DataFrame({**columns, **flip}).reindex(columns=frame.columns)
    return pd.concat([frame, flips_frame], ignore_index=True)
