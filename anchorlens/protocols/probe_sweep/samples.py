"""The rows of ``samples.parquet`` of a probe sweep."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from anchorlens.questions.tokens import TokenRow
from anchorlens.runs.schema import FLIP, P
from anchorlens.statistics.delta import delta_p, is_flipped
from anchorlens.statistics.pathways import A, ProbeChange, Q


def pathway_samples(
    anchor: str, kind: str, layers: Sequence[int], rows: Sequence[TokenRow], measured: Sequence[ProbeChange], *, event_is_true: bool,
    flips: bool = False,
) -> pd.DataFrame:  # fmt: skip
    """Return rows of ``samples.parquet``, without the columns that are the same for the whole sweep.

    Args:
        anchor: What is changed or cut off.
        kind: What ΔP is taken on, see :func:`~anchorlens.statistics.delta.support`.
        layers: Layers of the curve.
        rows: The rows, in the order of the measured arrays.
        measured: P before and after, and the split, for each control and donor.
        event_is_true: Whether P is that of the answer being true (``p_true``), not false (``probe``).
        flips: Whether to add the metric ``flip``: 1 where the prediction changed.
    """
    labels = np.array([row.answer.label for row in rows], dtype=np.float64)
    event = 1 - labels if event_is_true else labels
    names = {
        "example_id": np.array([r.id for r in rows]),
        "question_id": np.array([r.example.question_id for r in rows]),
    }
    frames: list[pd.DataFrame] = []
    for one in measured:
        layer, row = np.nonzero(~np.isnan(one.after))
        before, after = one.before[layer, row], one.after[layer, row]
        columns: dict[str, object] = {
            **{name: values[row] for name, values in names.items()}, "anchor": anchor,
            "pathway": np.where(one.q[layer, row], Q, A), "layer": np.asarray(layers)[layer],
            "donor_id": np.array(one.donors)[row] if one.donors else "", "control": one.control, "by_construction": False,
        }  # fmt: skip
        delta = delta_p(before, after, event[row], kind)
        own = {"metric": P, "value_before": before, "value_after": after, "effect": delta}
        with np.errstate(divide="ignore"):
            for when, p in (("before", before), ("after", after)):
                own |= {f"logp_{when}": np.log(p), f"logit_diff_{when}": np.log(p) - np.log1p(-p)}
        frames.append(pd.DataFrame({**columns, **own}))
        if flips:
            changed = is_flipped(before, after).astype(np.float64)
            flip = {"metric": FLIP, "value_before": 0.0, "value_after": changed, "effect": 100 * changed}
            frames.append(pd.DataFrame({**columns, **flip}).reindex(columns=frames[-1].columns))
    return pd.concat(frames, ignore_index=True)
