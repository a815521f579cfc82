"""Traces of a curve: line, band and marks on single points, as dictionaries in plotly's schema."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from anchorlens.constants import DIFFERENCE
from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.labels import PANEL, Entry, Key
from anchorlens.figures.palette import translucent

POINTWISE, SIMULTANEOUS = "ci", "sim"  # prefixes of the columns of the two bands
_BANDS = {"simultaneous": SIMULTANEOUS, "pointwise": POINTWISE}
Trace = dict[str, Any]
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
