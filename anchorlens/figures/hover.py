"""Display texts of metrics and contrasts, and hover texts."""

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from anchorlens.constants import AUC, DIFFERENCE, FLIP, MIN_QUESTIONS_FOR_CLAIM, POINTS, SIZE, P
from anchorlens.figures.controls import LEADING, control_labels
from anchorlens.statistics.bands import is_concentrated

WEAK = 0.5  # fraction of rows whose null has fewer positions than the anchor, above which the texts say so
FEW = 20  # number of questions below which the texts say so (METHOD 6)
_POINT = [
    "control", "layer", "effect", "ci_low", "ci_high", "sim_low", "sim_high", "p_before", "n", "n_effective",
    "auc", "auc_low", "auc_high",
    "no_signal", "is_noise", "noise_floor", "frac_null_incomplete", "by_construction",
]  # fmt: skip
_CONTRAST = ["quantity", "layer", "value", "ci_low", "ci_high", "sim_low", "sim_high", "n", "n_effective", "claimed"]


@dataclass(frozen=True)
class MetricLabels:
    """Display texts of one metric of curves."""

    name: str
    axis: str
    explanation: str  # text in the caption; empty if the name suffices
    unit: str  # with a leading space
    bound: float = float("inf")  # largest possible absolute value


DELTA = MetricLabels("ΔP", "ΔP", "ΔP in percentage points", " points", 100)
FLIPS = MetricLabels(
    "flip rate", "flip rate (points)", "flip rate: share of predictions that changed, in percentage points", " points", 100
)
_LABELS = {
    P: DELTA,
    FLIP: FLIPS,
    DIFFERENCE: MetricLabels(
        "difference of ΔP", "ΔP less ΔP", "ΔP of the second run less that of the first, in percentage points", " points", 200
    ),
    AUC: MetricLabels("AUC of the probe", "AUC", "line: 0.5, no better than chance", "", 1),
    SIZE: MetricLabels("size of the pathways", "questions", "", " questions"),
}


def metric_labels(table: pd.DataFrame) -> MetricLabels:
    """Return the texts of the metric of a table of points."""
    metric, unit = map(str, table[["metric", "unit"]].iloc[0])
    if metric in _LABELS and (metric != DIFFERENCE or unit in ("", POINTS)):
        return _LABELS[metric]
    name = metric if metric == DIFFERENCE else f"Δ {metric}"
    return MetricLabels(name, f"{name} ({unit})" if unit else name, "", f" {unit}" if unit else "")


@dataclass(frozen=True)
class ContrastLabels:
    """Display texts of one contrast of ``contrasts()``."""

    axis: str  # "minus ..." is appended if there is a control
    explanation: str
    unit: str = " points"
    bound: float = 200
    digits: int = 2
    controls: tuple[str, ...] = (*LEADING, "none")  # controls of the leading contrast, by preference


# Quantities of ``contrasts()`` that the figure draws, in the order of the switch (METHOD 5).
CONTRASTS = {
    "delta_p_vs_placebo": ContrastLabels("ΔP", "mean ΔP of all rows less that of the control"),
    "flip_rate": ContrastLabels("flips", "share of rows that flip less that of the control", bound=100),
    "auc_drop": ContrastLabels("AUC", "AUC of the probe less that of the control", "", 1, 3),
    "row_specific_vs_placebo": ContrastLabels("row-specific ΔP", "row-specific ΔP less that of the control"),
    "row_specific_effect": ContrastLabels(
        "row-specific ΔP", "ΔP by the row's own state less that by other rows' states", controls=("size_matched", "none")
    ),
    "p_after": ContrastLabels("P after", "mean P after the change less that of the control", bound=100),
    "delta_p_minus_null": ContrastLabels("ΔP", "ΔP less that of the null"),
}


def contrast_axis(quantity: str, control: str) -> str:
    """Return the y axis title of a contrast with a control, such as ``ΔP minus placebo``."""
    axis, name = CONTRASTS[quantity].axis, control_labels(control).name
    if control == "none" or (quantity == "row_specific_effect" and control == "size_matched"):
        return axis
    # The row-specific effect is a comparison with other rows, not with a control.
    return f"{axis} of {name.lower()}" if quantity == "row_specific_effect" else f"{axis} minus {name[0].lower()}{name[1:]}"


def point_texts(table: pd.DataFrame) -> list[str]:
    """Return the lower part of the hover of every point: layer, ΔP with both intervals, P before, n, the probe's AUC."""
    labels = metric_labels(table)
    rows: Any = table[_POINT].itertuples(index=False)
    return ["<br>".join([str(row.layer), *_point(row, labels)]) for row in rows]


def point_head(name: str, panel: str, dataset: str, *, anchor: str, control: str) -> str:
    """Return the upper part of the hover of one curve, up to the layer; ``name`` and ``dataset`` are display names."""
    kind = "" if control == "none" else f"<br>{_control(control)}"
    return f"<b>{name}</b>{kind}<br>{panel}, {dataset}<br>anchor {escape(anchor, quote=False)}, layer "


def _control(control: str) -> str:
    meaning = control_labels(control).explanation
    return f"control: {escape(control, quote=False)}{meaning and f' ({meaning})'}"


def contrast_texts(contrast_tables: pd.DataFrame) -> list[str]:
    """Return the lower part of the hover of every contrast: layer, value with both intervals, n."""
    texts: list[str] = []
    rows: Any = contrast_tables[_CONTRAST].itertuples(index=False)
    for row in rows:
        contrast = CONTRASTS[row.quantity]
        lines = [str(row.layer), _format_interval(row, row.value, contrast.unit, contrast.digits)]
        if row.claimed:
            lines.append("claimed by the findings")
        texts.append("<br>".join([*lines, *_size(row.n, row.n_effective)]))
    return texts


def contrast_head(name: str, panel: str, *, quantity: str, anchor: str, control: str) -> str:
    """Return the upper part of the hover of one line of contrasts."""
    kind = "" if control == "none" else f"<br>{_control(control)}"
    head = f"<b>{quantity}</b>: {CONTRASTS[quantity].explanation}{kind}<br>{name}<br>{panel}"
    return f"{head}<br>anchor {escape(anchor, quote=False)}, layer "


def _point(row: Any, labels: MetricLabels) -> list[str]:
    lines = [f"{escape(labels.name, quote=False)} {_format_interval(row, row.effect, labels.unit, 2)}"]
    if labels is not FLIPS:  # a flip rate has no value before
        before = "P before" if labels is DELTA else "before"
        lines.append(f"{before} unknown" if math.isnan(row.p_before) else f"{before} {row.p_before:.3f}")
    lines += _size(row.n, row.n_effective)
    if not math.isnan(row.auc):
        lines.append(f"AUC {row.auc:.2f} ({_interval(f'{row.auc_low:.2f}', f'{row.auc_high:.2f}') or 'no interval'})")
    if row.no_signal:
        lines.append("no signal")
    if row.is_noise:
        lines.append(f"within the noise floor (±{row.noise_floor:.1g})")
    if row.frac_null_incomplete > WEAK:
        lines.append(f"null weaker: {100 * row.frac_null_incomplete:.0f} % of rows have fewer positions")
    if row.by_construction:
        lines.append("fixed by construction")
    return lines


def _format_interval(row: Any, value: float, unit: str, digits: int) -> str:
    point = _interval(format_number(row.ci_low, digits), format_number(row.ci_high, digits))
    every = _interval(format_number(row.sim_low, digits), format_number(row.sim_high, digits))
    intervals = [point, every and f"simultaneous {every}"]
    return f"{format_number(value, digits)}{unit} ({'; '.join(filter(None, intervals)) or 'no interval'})"


def _interval(low: str, high: str) -> str:
    return "" if "nan" in (low, high) else f"95 %: {low} to {high}"


def _size(n: float, n_effective: float) -> list[str]:
    if math.isnan(n):
        return ["n unknown"]
    text = f"n = {int(n)} question{'' if int(n) == 1 else 's'}"
    if n < MIN_QUESTIONS_FOR_CLAIM:
        return [text, f"fewer than {MIN_QUESTIONS_FOR_CLAIM} questions: no interval, no claim"]
    care = [f"fewer than {FEW} questions: interpret with care"] if n < FEW else []
    few = [f"few questions carry the effect: effective number {n_effective:.1f}"] if is_concentrated(n_effective, n) else []
    return [text, *care, *few]


def format_number(value: float, digits: int = 2) -> str:
    """Format a number with a typographic minus sign, and -0.00 as 0.00."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")
