"""Traces of a curve: line, band and marks on single points, as dictionaries in plotly's schema, and
their hover texts.
"""

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from anchorlens.constants import DIFFERENCE, MIN_QUESTIONS_FOR_CLAIM
from anchorlens.display import minus
from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.labels import LEADING, PANEL, Entry, Key, control_labels
from anchorlens.figures.palette import translucent
from anchorlens.results.vocabulary import MetricLabels, RowWords, metric_labels, row_words
from anchorlens.statistics.bands import is_concentrated

POINTWISE, SIMULTANEOUS = "ci", "sim"  # prefixes of the columns of the two bands
_BANDS = {"simultaneous": SIMULTANEOUS, "pointwise": POINTWISE}
Trace = dict[str, Any]
WEAK = 0.5
"""Fraction of rows whose null has fewer positions than the anchor, above which the texts say so."""
FEW = 20  # number of questions below which the texts say so (METHOD 6)
GREY = "#666666"
_CROWD = 2  # number of curves in a panel beyond which the bands are paler
_OPACITY = {False: 0.15, True: 0.07}  # by whether the panel is crowded
_SILENT: Trace = {"hoverinfo": "skip", "showlegend": False}
_BAR = 0.15  # half the width of the interval of a single point, in layers


def select_bands(
    bands: bool | str, curves: pd.DataFrame, contrast_tables: pd.DataFrame
) -> tuple[str, str]:
    """Return the prefix of the columns of the band of curves and of contrasts; "" for none.

    If ``bands`` is True, curves have the pointwise band. Contrasts, which claims are made of, and
    differences of two runs, which have no findings, have the simultaneous one.
    """
    if not isinstance(bands, bool) and bands not in _BANDS:
        raise InputError(
            f"bands={bands!r}: neither a bool nor a known word. {did_you_mean(str(bands), _BANDS)}",
            argument="bands",
        )
    in_curves = bool(curves["sim_low"].notna().any())
    in_contrasts = bool(contrast_tables["sim_low"].notna().any())
    if bands == "simultaneous" and not (in_curves or in_contrasts):
        raise InputError(
            "bands='simultaneous': the results have no simultaneous band. Use bands='pointwise'.",
            argument="bands",
        )
    if bands is False:
        return "", ""
    if bands is True:
        is_comparison = bool((curves["metric"] == DIFFERENCE).any()) and in_curves
        return (
            SIMULTANEOUS if is_comparison else POINTWISE,
            SIMULTANEOUS if in_contrasts else POINTWISE,
        )
    return _BANDS[str(bands)], _BANDS[str(bands)]


def find_crowded_panels(curves: pd.DataFrame) -> set[Key]:
    """Return the panels whose bands are drawn paler because of many curves; repeated rows count
    once.
    """
    counts = curves.drop_duplicates().groupby(PANEL).size()
    return set(counts.index[counts > _CROWD])


@dataclass(frozen=True)
class Points:
    """Points of one line in order of layer."""

    layer: Int[np.ndarray, "point"]
    value: Float[np.ndarray, "point"]  # NaN where missing
    low: Float[np.ndarray, "point"]  # ends of the band
    high: Float[np.ndarray, "point"]
    text: list[str]  # hover texts

    @classmethod
    def of(cls, rows: pd.DataFrame, column: str, band: str, head: str) -> "Points":
        """Make points from rows sorted by layer, whose column ``hover`` holds the texts after
        ``head``.
        """
        low, high = (rows[f"{band or POINTWISE}_{end}"].to_numpy(float) for end in ("low", "high"))
        return cls(
            rows["layer"].to_numpy(),
            rows[column].to_numpy(float),
            low,
            high,
            [head + hover for hover in rows["hover"]],
        )

    def runs(self, *, with_band: bool = False) -> list[Int[np.ndarray, "index"]]:
        """Return the indices of each run of adjacent points with a value (and a band)."""
        known = ~np.isnan(self.value + (self.low + self.high if with_band else 0))
        where = np.flatnonzero(known)
        if not len(where):
            return []
        starts = np.flatnonzero(np.diff(where) > 1) + 1
        return np.split(where, starts)

    def marked(self) -> Int[np.ndarray, "index"]:
        """Return the indices of points to mark as measured: all beside unmeasured layers, else
        those without an adjacent point.
        """
        if (np.diff(self.layer) > 1).any():
            return np.flatnonzero(~np.isnan(self.value))
        return np.array([run[0] for run in self.runs() if len(run) == 1], dtype=int)

    def xy(self, chosen: Any = slice(None)) -> Trace:
        """Return x and y of the chosen points; None for missing values."""
        y = [None if math.isnan(value) else value for value in self.value[chosen].tolist()]
        return {"x": self.layer[chosen].tolist(), "y": y}

    def outline(self) -> Trace:
        """Return x and y of the band: a closed shape per run of adjacent points with an interval, a
        bar for a single point.
        """
        x: list[float | None] = []
        y: list[float | None] = []
        for run in self.runs(with_band=True):
            layers = self.layer[run].tolist()
            low = self.low[run].tolist()
            high = self.high[run].tolist()
            if len(run) == 1:
                layers, low, high = [layers[0] - _BAR, layers[0] + _BAR], low * 2, high * 2
            x += [*layers, *reversed(layers), layers[0], None]
            y += [*high, *reversed(low), high[0], None]
        return {"x": x[:-1], "y": y[:-1]}


def line_of(points: Points, entry: Entry) -> Trace:
    """Return the line of a curve."""
    return {
        **points.xy(),
        "name": entry.label,
        "mode": "lines",
        "line": {"color": entry.colour, "dash": entry.dash, "width": 2.2},
        "legendgroup": entry.group,
        "connectgaps": False,
        "text": points.text,
        "hoverinfo": "text",
    }


def band_of(entry: Entry, *, crowded: bool) -> Trace:
    """Return a band without its points."""
    return {
        "name": f"{entry.label}, 95 % band",
        "mode": "lines",
        "fill": "toself",
        "line": {"width": 0, "color": entry.colour},
        "fillcolor": translucent(entry.colour, _OPACITY[crowded]),
        "legendgroup": entry.group,
        **_SILENT,
    }


def control_line(points: Points, entry: Entry, control: str, dash: str) -> Trace:
    """Return the dotted line of a control in the colour of its curve."""
    look = {
        "name": f"{entry.label}, {control}",
        "line": {"color": entry.colour, "dash": dash, "width": 1.2},
        "showlegend": False,
    }
    return line_of(points, entry) | look | in_second_legend(control)


def in_second_legend(group: str) -> Trace:
    """Return the part of a trace that puts it into the second legend."""
    return {"legend": "legend2", "legendgroup": group}


def legend_key(name: str, group: str, **look: Any) -> Trace:
    """Return an entry of the second legend: a trace without points."""
    key = {
        "type": "scatter",
        "x": [None],
        "y": [None],
        "name": name,
        "showlegend": True,
        "hoverinfo": "skip",
    }
    return key | in_second_legend(group) | look


def mark_of(points: Points, chosen: Any, entry: Entry, symbol: str) -> Trace:
    """Return thin marks on the chosen points."""
    marker = {
        "symbol": symbol,
        "color": entry.colour,
        "size": 6,
        "line": {"width": 1.2, "color": entry.colour},
    }
    return {
        **points.xy(chosen),
        "name": entry.label,
        "mode": "markers",
        "marker": marker,
        "legendgroup": entry.group,
        **_SILENT,
    }


def claim_mark(points: Points, rows: pd.DataFrame, entry: Entry) -> list[Trace]:
    """Return filled marks on the layers at which an effect is claimed."""
    claimed = np.flatnonzero(rows["claimed"].to_numpy(bool) & rows["effect"].notna().to_numpy())
    if not len(claimed):
        return []
    look = {"size": 7, "line": {"width": 1, "color": "white"}}
    made = mark_of(points, claimed, entry, entry.symbol)
    return [made | {"marker": made["marker"] | look}]


def marks_of(
    points: Points, rows: pd.DataFrame, entry: Entry, *, has_controls: bool
) -> list[Trace]:
    """Return marks of measured layers, of values fixed by construction, and, beside controls, of
    layers without signal of the probe.
    """
    present = rows["effect"].notna().to_numpy()
    fixed = np.flatnonzero(rows["by_construction"].to_numpy(bool) & present)
    silent = np.flatnonzero(rows["no_signal"].to_numpy(bool) & present & has_controls)
    chosen = {"cross-thin-open": points.marked(), "asterisk-open": fixed, "x-thin-open": silent}
    marks: list[Trace] = []
    for symbol, where in chosen.items():
        if len(where):
            marks.append(mark_of(points, where, entry, symbol))
    return marks


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
