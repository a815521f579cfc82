"""The tables of a run: their columns, the version of the schema, and how older tables become those of today."""

import pandas as pd

from anchorlens.vocabulary import FLIP, P

SCHEMA_VERSION = 4
"""2: curves have the probe's AUC, examples the roles train and validation. 3: curves have the noise floor. 4: samples and curves
carry any quantity (``quantity``, ``value_before``, ``value_after``); ``probe_site`` is a column of its own."""
READABLE = (2, 3, 4)

SAMPLE_COLUMNS = (
    "run_id", "model", "dataset", "example_id", "question_id", "protocol", "anchor", "pathway", "layer", "site", "probe_site",
    "window", "direction", "mode", "readout", "delta_kind", "donor_id", "control", "seed", "quantity", "value_before", "value_after",
    "delta_p",
    "logp_before", "logp_after", "logit_diff_before", "logit_diff_after", "trivial",
)  # fmt: skip
CURVE_KEYS = (
    "model", "dataset", "protocol", "anchor", "pathway", "layer", "site", "probe_site", "window", "direction", "mode", "readout",
    "delta_kind", "control", "seed", "quantity",
)  # fmt: skip
CURVE_COLUMNS = (
    *CURVE_KEYS, "delta_p", "ci_low", "ci_high", "p_before", "n", "trivial", "auc", "auc_low", "auc_high", "signal", "noise_floor",
)  # fmt: skip
CURVE_TYPES = {"auc": "float64", "auc_low": "float64", "auc_high": "float64", "signal": "boolean", "noise_floor": "float64"}
EXAMPLE_COLUMNS = (
    "run_id", "example_id", "question_id", "role", "dataset", "question", "answer", "label", "prompt", "text", "token_ids",
    "positions", "donor_ids", "drop_reason", "drop_detail", "relation", "answer_type", "popularity", "span_source",
)  # fmt: skip
EFFECT_COLUMNS = ("run_id", "protocol", "model", "dataset", "layer", "quantity", "control", "value", "ci_low", "ci_high", "n")

CELL = ["example_id", "donor_id", "anchor", "control", "layer", "quantity"]
"""What makes two rows of ``samples`` the same measurement."""


def of_today(frame: pd.DataFrame) -> pd.DataFrame:
    """Samples or curves of an older version as those of this one."""
    if "quantity" in frame.columns:
        return frame
    samples = "p_after" in frame.columns
    renamed = frame.rename(columns={"p_before": "value_before", "p_after": "value_after"}) if samples else frame
    # The site of a knockout was where its probe reads; what a probe of a swap read stood in the record alone.
    cut = renamed["protocol"] == "knockout"
    sites = {"site": renamed["site"].where(~cut, ""), "probe_site": renamed["site"].where(cut, "")}
    known = SAMPLE_COLUMNS if samples else CURVE_COLUMNS
    whole = renamed.assign(quantity=P, **sites)
    return whole[[name for name in known if name in whole.columns]]


__all__ = [
    "CELL", "CURVE_COLUMNS", "CURVE_KEYS", "CURVE_TYPES", "EFFECT_COLUMNS", "EXAMPLE_COLUMNS", "FLIP", "READABLE", "SAMPLE_COLUMNS",
    "SCHEMA_VERSION", "P", "of_today",
]  # fmt: skip
