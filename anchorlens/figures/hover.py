"""Display texts of contrasts, and hover texts."""

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.display import minus
from anchorlens.figures.controls import LEADING, control_labels
from anchorlens.results.vocabulary import MetricLabels, RowWords, metric_labels, row_words
from anchorlens.statistics.bands import is_concentrated

WEAK = 0.5
"""Fraction of rows whose null has fewer positions than the anchor, above which the texts say so."""
FEW = 20  # number of questions below which the texts say so (METHOD 6)
_POINT = [
    "protocol",
    "control",
    "layer",
    "effect",
    "ci_low",
    "ci_high",
    "sim_low",
    "sim_high",
    "value_before",
    "n",
    "n_clusters",
    "n_effective",
    "auc",
    "auc_low",
    "auc_high",
    "no_signal",
    "is_noise",
    "noise_floor",
    "frac_null_incomplete",
    "by_construction",
    "claimed",
]
_CONTRAST = [
    "protocol",
    "quantity",
    "layer",
    "value",
    "ci_low",
    "ci_high",
    "sim_low",
    "sim_high",
    "n",
    "n_clusters",
    "n_effective",
    "claimed",
]


@dataclass(frozen=True)
class ContrastLabels:
    """Display texts of one contrast of ``contrasts()``."""

    axis: str  # "minus ..." is appended if there is a control
    explanation: str
    unit: str = " points"
    bound: float = 200
    digits: int = 2
    controls: tuple[str, ...] = (
        *LEADING,
        "none",
    )  # controls of the leading contrast, by preference


# Quantities of ``contrasts()`` that the figure draws, in the order of the switch (METHOD 5).
CONTRASTS = {
    "delta_p_vs_placebo": ContrastLabels("ΔP", "mean ΔP of all rows less that of the control"),
    "flip_rate": ContrastLabels(
        "flips", "share of rows that flip less that of the control", bound=100
    ),
    "auc_drop": ContrastLabels("AUC", "AUC of the probe less that of the control", "", 1, 3),
    "row_specific_vs_placebo": ContrastLabels(
        "row-specific ΔP", "row-specific ΔP less that of the control"
    ),
    "row_specific_effect": ContrastLabels(
        "row-specific ΔP",
        "ΔP by the row's own state less that by other rows' states",
        controls=("size_matched", "none"),
    ),
    "p_after": ContrastLabels(
        "P after", "mean P after the change less that of the control", bound=100
    ),
    "delta_p_minus_null": ContrastLabels("ΔP", "ΔP less that of the null"),
    "delta_logit_diff_minus_null": ContrastLabels(
        "Δ logit difference", "change of the logit difference less that of the null", " logits"
    ),
    "donor_p_minus_null": ContrastLabels(
        "ΔP of the donor's answer", "ΔP of the donor's answer less that of the null"
    ),
}


def contrast_axis(quantity: str, control: str) -> str:
    """Return the name of a contrast with a control, such as ``ΔP minus same_role``."""
    axis = CONTRASTS[quantity].axis
    name = control_labels(control).short
    if control == "none" or (quantity == "row_specific_effect" and control == "size_matched"):
        return axis
    # The row-specific effect is a comparison with other rows, not with a control.
    return f"{axis} of {name}" if quantity == "row_specific_effect" else f"{axis} minus {name}"


def point_texts(table: pd.DataFrame) -> list[str]:
    """Return the lower part of the hover of every point: layer, ΔP with both intervals, P before,
    n, the probe's AUC.
    """
    labels = metric_labels(table)
    rows: Any = table[_POINT].itertuples(index=False)
    texts: list[str] = []
    for row in rows:
        lines = _point(row, labels, row_words(row.protocol))
        texts.append("<br>".join([str(row.layer), *lines]))
    return texts


def point_head(name: str, panel: str, dataset: str, *, anchor: str, control: str) -> str:
    """Return the upper part of the hover of one curve, up to the layer; ``name`` and ``dataset``
    are display names.
    """
    kind = "" if control == "none" else f"<br>{_control(control)}"
    return (
        f"<b>{name}</b>{kind}<br>{panel}, {dataset}<br>anchor {escape(anchor, quote=False)}, layer "
    )


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
        lines += _size(row, row_words(row.protocol))
        texts.append("<br>".join(lines))
    return texts


def contrast_head(name: str, panel: str, *, quantity: str, anchor: str, control: str) -> str:
    """Return the upper part of the hover of one line of contrasts."""
    kind = "" if control == "none" else f"<br>{_control(control)}"
    head = f"<b>{quantity}</b>: {CONTRASTS[quantity].explanation}{kind}<br>{name}<br>{panel}"
    return f"{head}<br>anchor {escape(anchor, quote=False)}, layer "


def _point(row: Any, labels: MetricLabels, words: RowWords) -> list[str]:
    lines = [
        f"{escape(labels.name, quote=False)} {_format_interval(row, row.effect, labels.unit, 2)}"
    ]
    if labels.before:
        value = "unknown" if math.isnan(row.value_before) else f"{row.value_before:.3f}"
        lines.append(f"{escape(labels.before, quote=False)} {value}")
    lines += _size(row, words)
    if not math.isnan(row.auc):
        lines.append(
            f"AUC {row.auc:.2f}"
            f" ({_interval(f'{row.auc_low:.2f}', f'{row.auc_high:.2f}') or 'no interval'})"
        )
    if row.no_signal:
        lines.append("no signal")
    if row.is_noise:
        lines.append(f"within the noise floor (±{row.noise_floor:.1g})")
    if row.frac_null_incomplete > WEAK:
        lines.append(
            f"null weaker: {100 * row.frac_null_incomplete:.0f} % of rows have fewer positions"
        )
    if row.by_construction:
        lines.append("fixed by construction")
    if row.claimed:
        lines.append("claimed by the findings")
    return lines


def _format_interval(row: Any, value: float, unit: str, digits: int) -> str:
    point = _interval(format_number(row.ci_low, digits), format_number(row.ci_high, digits))
    every = _interval(format_number(row.sim_low, digits), format_number(row.sim_high, digits))
    intervals = [point, every and f"simultaneous {every}"]
    return (
        f"{format_number(value, digits)}{unit}"
        f" ({'; '.join(filter(None, intervals)) or 'no interval'})"
    )


def _interval(low: str, high: str) -> str:
    return "" if "nan" in (low, high) else f"95 %: {low} to {high}"


def _size(row: Any, words: RowWords) -> list[str]:
    n = row.n
    if math.isnan(n):
        return ["n unknown"]
    lines = [f"n = {words.count(int(n))}"]
    if n < MIN_QUESTIONS_FOR_CLAIM:
        least = f"fewer than {MIN_QUESTIONS_FOR_CLAIM} {words.groups}"
        return [*lines, f"{least}: no interval, no claim"]
    if n < FEW:
        lines.append(f"fewer than {FEW} {words.groups}: interpret with care")
    if is_concentrated(row.n_effective, row.n_clusters):
        carried = f"few {words.groups} carry the effect"
        lines.append(f"{carried}: effective number {row.n_effective:.1f}")
    return lines


def format_number(value: float, digits: int = 2) -> str:
    """Format a number with a typographic minus sign, and -0.00 as 0.00."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else minus(text)
