"""Texts of metrics and contrasts, and hover texts."""

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from anchorlens.constants import AUC, DIFFERENCE, FLIP, SIZE, P
from anchorlens.figures.controls import CUTS, GAP, PLACEBOS

WEAK = 0.5  # share of rows whose null has fewer slots than the anchor, beyond which the null is marked
FEW = 20  # number of questions below which a curve is marked (METHOD 6)
_POINT = [
    "control", "layer", "effect", "ci_low", "ci_high", "sim_low", "sim_high", "p_before", "n", "auc", "auc_low", "auc_high",
    "no_signal", "is_noise", "noise_floor", "frac_null_incomplete", "by_construction",
]  # fmt: skip
_CONTRAST = ["quantity", "layer", "value", "ci_low", "ci_high", "sim_low", "sim_high", "n", "excludes_zero"]


@dataclass(frozen=True)
class Words:
    """Display texts of one metric of curves."""

    name: str
    axis: str
    said: str  # explanation in the title; empty where the name suffices
    unit: str  # with a leading space
    bound: float = float("inf")  # largest possible absolute value


DELTA = Words("ΔP", "ΔP", "ΔP in percentage points", " points", 100)
FLIPS = Words(
    "flip rate", "flip rate (points)", "flip rate: share of predictions that changed, in percentage points", " points", 100
)
_WORDS = {
    P: DELTA,
    FLIP: FLIPS,
    DIFFERENCE: Words(
        "difference of ΔP", "ΔP less ΔP", "second run's ΔP less the first's, in percentage points", " points", 200
    ),
    AUC: Words("AUC of the probe", "AUC", "line: 0.5, no better than chance", "", 1),
    SIZE: Words("size of the pathways", "questions", "", " questions"),
}


def words_of(table: pd.DataFrame) -> Words:
    """Return the texts of the metric of a table of points."""
    metric, unit = map(str, table[["metric", "unit"]].iloc[0])
    name = f"Δ {metric}"
    return _WORDS.get(metric) or Words(name, f"{name} ({unit})" if unit else name, "", f" {unit}" if unit else "")


@dataclass(frozen=True)
class Contrast:
    """Display texts of one contrast of ``contrasts()``."""

    axis: str  # ``less ...`` is added where there is a control
    said: str
    unit: str = " points"
    bound: float = 200
    digits: int = 2
    controls: tuple[str, ...] = ("random_tokens", "other_question", "null", "none")  # the leading one, by preference


# The quantities of ``contrasts()`` that the figure draws, in the order of its buttons (METHOD 5).
CONTRASTS = {
    "delta_p_vs_placebo": Contrast("ΔP", "mean ΔP of all rows less that of the control"),
    "flip_rate": Contrast("flips", "share of rows that flip less that of the control", bound=100),
    "auc_drop": Contrast("AUC", "AUC of the probe less that of the control", "", 1, 3),
    "row_specific_effect": Contrast(
        "ΔP by own change", "ΔP by the row's own change less that by other rows'", controls=("size_matched", "none")
    ),
    "p_after": Contrast("P after", "mean P after the change less that of the control", bound=100),
    "delta_p_minus_null": Contrast("ΔP", "ΔP less that of the null"),
}
_LESS = {"random_tokens": " less placebo's", "null": " less null's", "none": ""}


def contrast_axis(quantity: str, control: str) -> str:
    """Return the y axis title of a contrast with a control."""
    axis = CONTRASTS[quantity].axis
    # An own change is compared with those of other rows, not with a control.
    return axis if quantity == "row_specific_effect" else axis + _LESS.get(control, " less control's")


def point_texts(table: pd.DataFrame) -> list[str]:
    """Return the lower part of the hover of every point: layer, ΔP with both intervals, P before, n, the probe's AUC."""
    words = words_of(table)
    rows: Any = table[_POINT].itertuples(index=False)
    parts = [(row.layer, (_gap if row.control == GAP.label else _point)(row, words)) for row in rows]
    return ["<br>".join([str(layer), *lines]) for layer, lines in parts]


def point_head(name: str, panel: str, dataset: str, *, protocol: str, anchor: str, control: str) -> str:
    """Return the upper part of the hover of one curve, up to the number of the layer; names of curve and data set are displayed."""
    known, kind = PLACEBOS | CUTS, ""
    if control not in ("none", GAP.label):
        meaning = f" ({known[control]})" if protocol == "knockout" and control in known else ""
        kind = f"<br>control: {escape(control, quote=False)}{meaning}"
    return f"<b>{name}</b>{kind}<br>{panel}, {dataset}<br>anchor {escape(anchor, quote=False)}, layer "


def contrast_texts(contrast_tables: pd.DataFrame) -> list[str]:
    """Return the lower part of the hover of every contrast: layer, value with both intervals, n."""
    texts: list[str] = []
    rows: Any = contrast_tables[_CONTRAST].itertuples(index=False)
    for row in rows:
        contrast = CONTRASTS[row.quantity]
        lines = [str(row.layer), _measured(row, row.value, contrast.unit, contrast.digits)]
        if row.excludes_zero:
            lines.append("the interval of all layers at once excludes 0")
        texts.append("<br>".join([*lines, *_size(row.n)]))
    return texts


def contrast_head(name: str, panel: str, *, quantity: str, anchor: str, control: str) -> str:
    """Return the upper part of the hover of one line of contrasts."""
    kind = "" if control == "none" else f"<br>control: {escape(control, quote=False)}"
    head = f"<b>{quantity}</b>: {CONTRASTS[quantity].said}{kind}<br>{name}<br>{panel}"
    return f"{head}<br>anchor {escape(anchor, quote=False)}, layer "


def _point(row: Any, words: Words) -> list[str]:
    lines = [f"{escape(words.name, quote=False)} {_measured(row, row.effect, words.unit, 2)}"]
    if words is not FLIPS:  # nothing has flipped before
        before = "P before" if words is DELTA else "before"
        lines.append(f"{before} unknown" if math.isnan(row.p_before) else f"{before} {row.p_before:.3f}")
    lines += _size(row.n)
    if not math.isnan(row.auc):
        lines.append(f"AUC {row.auc:.2f} ({_interval(f'{row.auc_low:.2f}', f'{row.auc_high:.2f}') or 'no interval'})")
    if row.no_signal:
        lines.append("no signal")
    if row.is_noise:
        lines.append(f"within the noise floor (±{row.noise_floor:.1g})")
    if row.frac_null_incomplete > WEAK:
        lines.append(f"null weaker: {100 * row.frac_null_incomplete:.0f} % of rows have fewer slots")
    if row.by_construction:
        lines.append("trivial by construction")
    return lines


def _gap(row: Any, words: Words) -> list[str]:
    said = f"Q − A = {signed(row.effect)}{words.unit} with {PLACEBOS['random_tokens']}"
    return [said, "a gap that a split makes by itself", *_size(row.n)]


def _measured(row: Any, value: float, unit: str, digits: int) -> str:
    point = _interval(signed(row.ci_low, digits), signed(row.ci_high, digits))
    every = _interval(signed(row.sim_low, digits), signed(row.sim_high, digits))
    intervals = [point, every and f"all layers at once {every}"]
    return f"{signed(value, digits)}{unit} ({'; '.join(filter(None, intervals)) or 'no interval'})"


def _interval(low: str, high: str) -> str:
    return "" if "nan" in (low, high) else f"95 %: {low} to {high}"


def _size(n: float) -> list[str]:
    if math.isnan(n):
        return ["n unknown"]
    said = f"n = {int(n)} question{'' if int(n) == 1 else 's'}"
    return [said, f"fewer than {FEW} questions: read with care"] if n < FEW else [said]


def signed(value: float, digits: int = 2) -> str:
    """Format a number with a true minus sign, and -0.00 as 0.00."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")
