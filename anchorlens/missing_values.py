"""Convert missing values of tables: null in files and public frames, "" and 0 inside the package.

Grouping and joining by a column drops null keys in pandas, so keys are never null inside.
"""

from typing import TYPE_CHECKING

from anchorlens.constants import SETTINGS

if TYPE_CHECKING:
    import pandas

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


def with_nulls(frame: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return a table with null for every value that is missing."""
    changed: dict[str, pandas.Series] = {}
    for name in _TEXT:
        if name in frame:
            text = frame[name].astype(object)
            changed[name] = text.where(text.notna() & (text != ""), None)
    if "window" in frame:
        window = frame["window"].astype("Int64")
        changed["window"] = window.where(window != 0)
    return frame.assign(**changed)


def without_nulls(frame: "pandas.DataFrame") -> "pandas.DataFrame":
    """Invert :func:`with_nulls`: replace null by "" and 0."""
    changed: dict[str, pandas.Series] = {}
    for name in _TEXT:
        if name in frame:
            text = frame[name].astype(object)
            changed[name] = text.where(text.notna(), "")
    if "window" in frame:
        changed["window"] = frame["window"].astype("Int64").fillna(0).astype("int64")
    return frame.assign(**changed)
