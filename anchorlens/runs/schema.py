"""The tables of a run: their columns, the version of the schema, and how older tables become those of today."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anchorlens.vocabulary import FLIP, SETTINGS, P

SCHEMA_VERSION = 6
"""2: curves have the probe's AUC, examples the roles train and validation. 3: curves have the noise floor. 4: samples and curves
carry any quantity (``quantity``, ``value_before``, ``value_after``); ``probe_site`` is a column of its own. 5: simultaneous bands
(``sim_low``, ``sim_high``); prompt, answers, distractor, split and known_only are keys of samples, curves and effects; samples
carry ``slots``, ``null_slots`` and ``site_differs``, curves ``null_short``, ``text_only``, ``pair_text`` and ``pair_text_low``,
effects ``anchor``, examples ``pair_text``. 6: examples carry ``tokens``, the text of every token."""
READABLE = (2, 3, 4, 5, 6)

SAMPLE_COLUMNS = (
    "run_id", "model", "dataset", "example_id", "question_id", "protocol", "anchor", "pathway", "layer", "site", "probe_site",
    "window", "direction", "mode", "readout", "delta_kind", *SETTINGS, "donor_id", "control", "seed", "quantity", "value_before",
    "value_after", "delta_p", "logp_before", "logp_after", "logit_diff_before", "logit_diff_after", "trivial", "slots",
    "null_slots", "site_differs",
)  # fmt: skip
CURVE_KEYS = (
    "model", "dataset", "protocol", "anchor", "pathway", "layer", "site", "probe_site", "window", "direction", "mode", "readout",
    "delta_kind", *SETTINGS, "control", "seed", "quantity",
)  # fmt: skip
TEXT_AUCS = ("text_only", "pair_text", "pair_text_low")
CURVE_COLUMNS = (
    *CURVE_KEYS, "delta_p", "ci_low", "ci_high", "sim_low", "sim_high", "p_before", "n", "trivial", "auc", "auc_low", "auc_high",
    "signal", "noise_floor", "null_short", *TEXT_AUCS,
)  # fmt: skip
CURVE_TYPES = {
    "auc": "float64", "auc_low": "float64", "auc_high": "float64", "signal": "boolean", "noise_floor": "float64",
    "sim_low": "float64", "sim_high": "float64", "null_short": "float64", "text_only": "float64", "pair_text": "float64",
    "pair_text_low": "float64",
}  # fmt: skip
SLOT_TYPES = {"slots": "Int64", "null_slots": "Int64", "site_differs": "boolean"}
EXAMPLE_COLUMNS = (
    "run_id", "example_id", "question_id", "role", "dataset", "question", "answer", "label", "prompt", "text", "token_ids", "tokens",
    "positions", "donor_ids", "drop_reason", "drop_detail", "relation", "answer_type", "popularity", "span_source", "pair_text",
)  # fmt: skip
EFFECT_COLUMNS = (
    "run_id", "protocol", "model", "dataset", *SETTINGS, "anchor", "layer", "quantity", "control", "value", "ci_low", "ci_high",
    "sim_low", "sim_high", "n",
)  # fmt: skip

TABLE_COLUMNS = {
    "samples": SAMPLE_COLUMNS, "curves": CURVE_COLUMNS, "effects": EFFECT_COLUMNS, "examples": EXAMPLE_COLUMNS,
}  # fmt: skip
"""Columns of the files, in their order there. Frames that are shown have an order of their own: :func:`answer_first`."""

CELL = ["example_id", "donor_id", "anchor", "control", "layer", "quantity"]
"""What makes two rows of ``samples`` the same measurement."""


# The order for reading. A terminal shows the first and the last few columns, a notebook ten of each.
_NAMED = ("quantity", "control", "anchor", "pathway")
_VALUE = ("layer", "max_layer", "delta_p", "delta_p_again", "off", "value", "difference")
_BESIDE = (
    "ci_low", "ci_high", "p_before", "value_before", "value_after", "n", "question", "answer", "label", "drop_reason",
    "drop_detail", "donor_id",
)  # fmt: skip
_SAME = tuple(dict.fromkeys(("run_id", *CURVE_KEYS)))


def answer_first(frame: pd.DataFrame) -> list[str]:
    """The columns of a table in the order for reading: what was found first, what is the same in every row last.

    First stand those of ``quantity control anchor pathway`` that differ between rows (the anchor where neither it nor the pathway
    does), then layer, value, interval, P before and n, then whatever else names a row (a second model, a second set), then all
    other columns; what does not differ comes last. Where a row is one of an example, or a quantity of its own, name, layer and value
    stand together.
    """
    there = list(frame.columns)
    differ = {name for name in _SAME if name in there and frame[name].nunique(dropna=False) > 1}
    named = [name for name in _NAMED if name in differ]
    if "anchor" in there and not {"anchor", "pathway"} & differ:
        named.append("anchor")
    rows = [name for name in ("example_id", "role") if name in there]
    head = rows or (["quantity"] if "value" in there else [])
    order = [*head, *_VALUE, *named, *_BESIDE] if head else [*named, *_VALUE, *_BESIDE]
    first = [name for name in dict.fromkeys(order) if name in there]
    first += [name for name in there if name in differ and name not in first]
    same = [name for name in _SAME if name in there and name not in first]
    return [*first, *(name for name in there if name not in first and name not in same), *same]


def summary_order(frame: pd.DataFrame) -> list[str]:
    """The columns of a small table of several models or sets: whose a row is stands in the middle, which a narrow terminal hides."""
    whose = [name for name in ("model", "dataset", "protocol") if name in frame.columns]
    told = [name for name in answer_first(frame) if name not in whose]
    half = len(told) // 2
    return [*told[:half], *whose, *told[half:]]


def as_stored(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    """A table of results with its columns in the order of its file; one that an older run lacks is left out."""
    return frame[[name for name in TABLE_COLUMNS[table] if name in frame.columns]]


def of_today(frame: pd.DataFrame) -> pd.DataFrame:
    """Samples or curves of an older version as those of this one; what that version did not know is empty."""
    whole = frame if "quantity" in frame.columns else _with_quantity(frame)
    samples = "value_after" in whole.columns
    whole = whole.assign(**{name: "" for name in SETTINGS if name not in whole.columns})
    whole = whole.reindex(columns=list(SAMPLE_COLUMNS if samples else CURVE_COLUMNS))
    return whole.astype(SLOT_TYPES if samples else CURVE_TYPES)


def _with_quantity(frame: pd.DataFrame) -> pd.DataFrame:
    """Before version 4: P was the only quantity, and the site of a knockout was where its probe reads."""
    renamed = frame.rename(
        columns={"p_before": "value_before", "p_after": "value_after"} if "p_after" in frame.columns else {}
    )
    # What a probe of a swap read stood in the record alone.
    cut = renamed["protocol"] == "knockout"
    sites = {"site": renamed["site"].where(~cut, ""), "probe_site": renamed["site"].where(cut, "")}
    return renamed.assign(quantity=P, **sites)


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The columns of :data:`SETTINGS`, of a specification as run.json keeps it."""
    # Before version 5 a readout of the answer's probability said which truth answers it did not use.
    unused = ("answers", "distractor") if config.get("delta_kind") == "probability" else ()
    return {name: "" if name in unused else str(config.get(name, "")) for name in SETTINGS}


__all__ = [
    "CELL", "CURVE_COLUMNS", "CURVE_KEYS", "CURVE_TYPES", "EFFECT_COLUMNS", "EXAMPLE_COLUMNS", "FLIP", "READABLE", "SAMPLE_COLUMNS",
    "SCHEMA_VERSION", "SETTINGS", "SLOT_TYPES", "TABLE_COLUMNS", "TEXT_AUCS", "P", "answer_first", "as_stored", "of_today",
    "settings_of", "summary_order",
]  # fmt: skip
