"""Columns and types of the tables of a run, and the version of the schema.

A value that is missing is null in files and public frames, and "" or 0 inside the package
(:func:`without_nulls`): grouping and joining by a column drops null keys in pandas.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anchorlens.constants import SETTINGS, P

SCHEMA_VERSION = 12
"""Version of the tables and of ``run.json``; no other version is read."""

SAMPLE_COLUMNS = (
    "run_id",
    "model",
    "dataset",
    "example_id",
    "question_id",
    "cluster",
    "protocol",
    "anchor",
    "pathway",
    "layer",
    "position",
    "head",
    "site",
    "probe_site",
    "window",
    "direction",
    "donor_rule",
    "knockout_mode",
    "readout",
    "delta_kind",
    *SETTINGS,
    "donor_id",
    "control",
    "draw",
    "seed",
    "metric",
    "unit",
    "value_before",
    "value_after",
    "effect",
    "logp_before",
    "logp_after",
    "logit_diff_before",
    "logit_diff_after",
    "donor_logit_before",
    "donor_logit_after",
    "donor_p_before",
    "donor_p_after",
    "donor_is_top_before",
    "donor_is_top_after",
    "by_construction",
    "n_patched",
    "n_null_patched",
    "pre_answer_token_differs",
)
CURVE_KEYS = (
    "model",
    "dataset",
    "protocol",
    "metric",
    "unit",
    "anchor",
    "pathway",
    "layer",
    "position",
    "head",
    "site",
    "probe_site",
    "window",
    "direction",
    "donor_rule",
    "knockout_mode",
    "readout",
    "delta_kind",
    *SETTINGS,
    "control",
    "seed",
)
TEXT_AUCS = ("answer_text_auc", "qa_text_auc", "qa_text_auc_low")
CURVE_COLUMNS = (
    *CURVE_KEYS,
    "effect",
    "ci_low",
    "ci_high",
    "sim_low",
    "sim_high",
    "value_before",
    "n",
    "n_clusters",
    "n_effective",
    "by_construction",
    "auc",
    "auc_low",
    "auc_high",
    "probe_above_chance",
    "noise_floor",
    "frac_null_incomplete",
    *TEXT_AUCS,
)
CURVE_TYPES = {
    "position": "Int64",
    "head": "Int64",
    "auc": "float64",
    "auc_low": "float64",
    "auc_high": "float64",
    "probe_above_chance": "boolean",
    "noise_floor": "float64",
    "sim_low": "float64",
    "sim_high": "float64",
    "n_effective": "float64",
    "frac_null_incomplete": "float64",
    "answer_text_auc": "float64",
    "qa_text_auc": "float64",
    "qa_text_auc_low": "float64",
}
SLOT_TYPES = dict.fromkeys(("position", "head", "n_patched", "n_null_patched"), "Int64") | {
    "pre_answer_token_differs": "boolean"
}
EXAMPLE_COLUMNS = (
    "run_id",
    "example_id",
    "question_id",
    "cluster",
    "role",
    "dataset",
    "question",
    "answer",
    "label",
    "prompt",
    "text",
    "token_ids",
    "tokens",
    "positions",
    "donor_ids",
    "drop_reason",
    "drop_detail",
    "relation",
    "answer_type",
    "popularity",
    "span_source",
    "test_split",
    "qa_text_score",
    "wrong_answer",
)
CONTRAST_COLUMNS = (
    "run_id",
    "protocol",
    "model",
    "dataset",
    *SETTINGS,
    "anchor",
    "layer",
    "quantity",
    "control",
    "value",
    "ci_low",
    "ci_high",
    "sim_low",
    "sim_high",
    "n",
    "n_clusters",
    "n_effective",
    "p",
)

TABLE_COLUMNS = {
    "samples": SAMPLE_COLUMNS,
    "curves": CURVE_COLUMNS,
    "contrasts": CONTRAST_COLUMNS,
    "examples": EXAMPLE_COLUMNS,
}
"""Columns of each file, in file order. Frames for display are ordered by :func:`answer_first`."""

LOGITS = (
    "logp_before",
    "logp_after",
    "logit_diff_before",
    "logit_diff_after",
    "donor_logit_before",
    "donor_logit_after",
)
"""Columns of ``samples`` in logits, beside the metric ``p``."""
CELL = ["example_id", "donor_id", "anchor", "control", "draw", "layer", "metric"]
"""Columns that identify a measurement in ``samples``."""


# Order for display: a terminal shows the first and last few columns, a notebook ten of each.
_NAMED = ("metric", "quantity", "control", "anchor", "pathway")
_VALUE = ("layer", "max_layer", "effect", "effect_again", "max_abs_diff", "value", "difference")
_BESIDE = (
    "ci_low",
    "ci_high",
    "value_before",
    "value_after",
    "n",
    "question",
    "answer",
    "label",
    "drop_reason",
    "drop_detail",
    "donor_id",
)
ALWAYS_SHOWN = (
    *CELL,
    *_VALUE,
    "ci_low",
    "ci_high",
    "sim_low",
    "sim_high",
    "value_before",
    "value_after",
    "n",
)
"""Columns that a shown frame keeps even if they have no value."""
_SAME = tuple(dict.fromkeys(("run_id", *CURVE_KEYS)))


def answer_first(frame: pd.DataFrame) -> list[str]:
    """Return the columns of a table in display order: results first, constant columns last.

    Tables of examples begin with id and role, contrasts with the quantity, other tables with those
    of ``metric anchor pathway`` that differ between rows. If neither anchor nor pathway differs,
    the anchor is shown. Layer and value follow, then the other names, intervals, value before and
    n. Constant keys come last.
    """
    columns = list(frame.columns)
    differ = {name for name in _SAME if name in columns and frame[name].nunique(dropna=False) > 1}
    named = [name for name in _NAMED if name in differ]
    if "anchor" in columns and not {"anchor", "pathway"} & differ:
        named.append("anchor")
    rows = [name for name in ("example_id", "role") if name in columns]
    head = rows or (["quantity"] if "value" in columns else [])
    # Names beside the value; of tables with neither examples nor quantities, all but the control
    # come before it.
    beside = named if head else [name for name in named if name == "control"]
    before = [] if head else [name for name in named if name != "control"]
    order = [*head, *before, *_VALUE, *beside, *_BESIDE]
    first = [name for name in dict.fromkeys(order) if name in columns]
    first += [name for name in columns if name in differ and name not in first]
    same = [name for name in _SAME if name in columns and name not in first]
    rest = [name for name in columns if name not in first and name not in same]
    return [*first, *rest, *same]


def summary_order(frame: pd.DataFrame) -> list[str]:
    """Return the columns of a small table with model, data set and protocol in the middle, hidden
    by narrow terminals.
    """
    whose = [name for name in ("model", "dataset", "protocol") if name in frame.columns]
    rest = [name for name in answer_first(frame) if name not in whose]
    half = len(rest) // 2
    return [*rest[:half], *whose, *rest[half:]]


def order_columns(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its columns in the order of its file."""
    return frame[list(TABLE_COLUMNS[table])]


def format_cell(cell: Mapping[Any, Any]) -> str:
    """Return example, donor, anchor and layer of a cell as text."""
    parts = {
        "example": cell["example_id"],
        "donor": cell["donor_id"],
        "anchor": cell["anchor"],
        "layer": cell["layer"],
    }
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value != "")


def leading_metric(samples: pd.DataFrame) -> str:
    """Return the main metric of a sweep: the probability if measured, else the first one."""
    metrics = samples["metric"].unique().tolist()
    return P if P in metrics or not metrics else str(metrics[0])


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of :data:`SETTINGS` for the ``config`` of a sweep in run.json."""
    return {name: str(config.get(name, "")) for name in SETTINGS}


_TEXT = (
    "anchor",
    "pathway",
    "site",
    "probe_site",
    "donor_rule",
    "knockout_mode",
    "readout",
    "delta_kind",
    *SETTINGS,
    "donor_id",
    "cluster",
    "drop_reason",
    "drop_detail",
    "text",
    "relation",
    "answer_type",
    "span_source",
    "wrong_answer",
)


def with_nulls(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with null for every value that is missing."""
    changed: dict[str, pd.Series] = {}
    for name in _TEXT:
        if name in frame:
            text = frame[name].astype(object)
            changed[name] = text.where(text.notna() & (text != ""), None)
    if "window" in frame:
        window = frame["window"].astype("Int64")
        changed["window"] = window.where(window != 0)
    return frame.assign(**changed)


def without_nulls(frame: pd.DataFrame) -> pd.DataFrame:
    """Invert :func:`with_nulls`: replace null by "" and 0."""
    changed: dict[str, pd.Series] = {}
    for name in _TEXT:
        if name in frame:
            text = frame[name].astype(object)
            changed[name] = text.where(text.notna(), "")
    if "window" in frame:
        changed["window"] = frame["window"].astype("Int64").fillna(0).astype("int64")
    return frame.assign(**changed)
