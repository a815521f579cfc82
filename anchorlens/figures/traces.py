"""Traces of a curve: line, bands and marks on single points, as dictionaries in plotly's schema."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.controls import GAP, RANGE, Beside
from anchorlens.figures.hover import THIN_LINE_BELOW, WEAK, format_number
from anchorlens.figures.labels import PANEL, Entry, Key
from anchorlens.figures.palette import shade, translucent

POINTWISE, SIMULTANEOUS = "ci", "sim"  # prefixes of the columns of the two bands
# Values of ``bands=``, and the bands of each from back to front.
BANDS = {"both": (SIMULTANEOUS, POINTWISE), "pointwise": (POINTWISE,), "simultaneous": (SIMULTANEOUS,)}
Trace = dict[str, Any]
WIDTH, THIN_WIDTH = 2.2, 1.1
GREY = "#666666"
_CROWD = 4  # number of curves in a panel beyond which the bands are paler
_OPACITY = {POINTWISE: 0.15, SIMULTANEOUS: 0.07}
_RANGE_FILL = "rgba(120,120,120,0.15)"
_SILENT: Trace = {"hoverinfo": "skip", "showlegend": False}


def select_bands(bands: bool | str, *frames: pd.DataFrame) -> tuple[str, ...]:
    """Return the bands to draw, from back to front."""
    if isinstance(bands, bool):
        return BANDS["both"] if bands else ()
    if bands not in BANDS:
        raise InputError(f"bands={bands!r}: neither a bool nor a known word. {did_you_mean(str(bands), BANDS)}", argument="bands")
    if bands == "simultaneous" and not any(frame["sim_low"].notna().any() for frame in frames):
        raise InputError("bands='simultaneous': the results have no simultaneous band. Use bands='pointwise'.", argument="bands")
    return BANDS[bands]


def find_crowded_panels(curves: pd.DataFrame) -> set[Key]:
    """Return the panels whose bands are drawn paler because of many curves; repeated rows count once."""
    counts = curves.drop_duplicates().groupby(PANEL).size()
    return set(counts.index[counts > _CROWD])


def has_few(values: pd.Series, n: pd.Series) -> bool:
    """Return whether most points of a curve have fewer than 20 questions."""
    return float(n[values.notna()].median()) < THIN_LINE_BELOW


@dataclass(frozen=True)
class Points:
    """Points of one line in order of layer."""

    layer: Int[np.ndarray, "point"]
    value: Float[np.ndarray, "point"]  # NaN where missing
    ends: dict[str, tuple[Float[np.ndarray, "point"], Float[np.ndarray, "point"]]]  # low and high end of each band
    text: list[str]  # hover texts
    few: bool  # whether most points have fewer than 20 questions

    @classmethod
    def of(cls, rows: pd.DataFrame, column: str, head: str = "") -> "Points":
        """Make points from rows sorted by layer, whose column ``hover`` holds the texts after ``head``."""
        ends = {kind: (rows[f"{kind}_low"].to_numpy(float), rows[f"{kind}_high"].to_numpy(float)) for kind in BANDS["both"]}
        text, few = [head + hover for hover in rows["hover"]], has_few(rows[column], rows["n"])
        return cls(rows["layer"].to_numpy(), rows[column].to_numpy(float), ends, text, few)

    def runs(self, kind: str = "") -> list[Int[np.ndarray, "index"]]:
        """Return the indices of each run of adjacent points with a value (and a band of ``kind``, if given)."""
        known = ~np.isnan(np.vstack([self.value, *(self.ends[kind] if kind else ())])).any(axis=0)
        where = np.flatnonzero(known)
        return [run for run in np.split(where, np.flatnonzero(np.diff(where) > 1) + 1) if len(run)]

    def lone(self) -> list[int]:
        """Return the indices of points without an adjacent point."""
        return [int(run[0]) for run in self.runs() if len(run) == 1]

    def skips(self) -> bool:
        """Return whether there are unmeasured layers between two points."""
        return bool((np.diff(self.layer) > 1).any())

    def xy(self, chosen: Any = slice(None)) -> Trace:
        """Return x and y of the chosen points; None for missing values."""
        y = [None if math.isnan(value) else value for value in self.value[chosen].tolist()]
        return {"x": self.layer[chosen].tolist(), "y": y}

    def outline(self, kind: str) -> Trace:
        """Return x and y of a band: a closed shape per run of adjacent points with an interval."""
        x: list[int | None] = []
        y: list[float | None] = []
        for run in self.runs(kind):
            if len(run) > 1:
                layers, (low, high) = self.layer[run].tolist(), (end[run].tolist() for end in self.ends[kind])
                x += [*layers, *reversed(layers), layers[0], None]
                y += [*high, *reversed(low), high[0], None]
        return {"x": x[:-1], "y": y[:-1]}


def line_of(points: Points, entry: Entry) -> Trace:
    """Return the line of a curve, with markers if there are unmeasured layers between its points."""
    line = {"color": entry.colour, "dash": entry.dash, "width": THIN_WIDTH if points.few else WIDTH}
    return {
        **points.xy(), "name": entry.label, "mode": "lines+markers" if points.skips() else "lines", "line": line,
        "marker": {"size": 5, "color": entry.colour}, "legendgroup": entry.group, "connectgaps": False, "text": points.text,
        "hoverinfo": "text",
    }  # fmt: skip


def beside_line(points: Points, rows: pd.DataFrame, name: str, entry: Entry, beside: Beside) -> Trace:
    """Return the line of a control or extra: thin, without a band."""
    colour = shade(entry.colour, -0.3) if beside.dark else entry.colour
    control, weak = rows["control"].iloc[0], (rows["frac_null_incomplete"] > WEAK).tolist()
    marker: Trace = {"size": 3, "color": colour}
    if any(weak):
        marker |= {"symbol": "triangle-down-open", "size": [6 if is_weak else 0 for is_weak in weak], "opacity": 1}
    return {
        **points.xy(), "name": name if control in ("none", GAP.label) else f"{name}, {control}",
        "mode": "lines+markers" if any(weak) or points.lone() else "lines",
        "line": {"color": colour, "dash": beside.dash, "width": beside.width}, "marker": marker, **_in_second_legend(beside),
        "showlegend": False, "connectgaps": False, "text": points.text, "hoverinfo": "text",
    }  # fmt: skip


def _in_second_legend(beside: Beside) -> Trace:
    return {"legend": "legend2", "legendgroup": beside.label} | ({} if beside.shown else {"visible": "legendonly"})


def range_of(rows: pd.DataFrame) -> Trace:
    """Return the grey area from the lowest to the highest control of a panel."""
    by_layer = rows.groupby("layer")["effect"].agg(["min", "max"])
    layers, low, high = by_layer.index.tolist(), by_layer["min"].tolist(), by_layer["max"].tolist()
    return {
        "x": [*layers, *reversed(layers), layers[0]], "y": [*high, *reversed(low), high[0]], "name": RANGE.label, "mode": "lines",
        "fill": "toself", "fillcolor": _RANGE_FILL, "line": {"width": RANGE.width, "color": "rgba(120,120,120,0.5)"},
        **_in_second_legend(RANGE), **_SILENT,
    }  # fmt: skip


def beside_entry(beside: Beside) -> Trace:
    """Return the legend entry of all lines of one kind: a grey trace without points."""
    area = {"fill": "toself", "fillcolor": _RANGE_FILL} if beside is RANGE else {}
    return {
        "type": "scatter", "x": [None], "y": [None], "name": beside.label, "mode": "lines",
        "line": {"color": GREY, "dash": beside.dash, "width": beside.width}, **_in_second_legend(beside),
        "showlegend": True, "hoverinfo": "skip", **area,
    }  # fmt: skip


def tick_of(rows: pd.DataFrame, entry: Entry, edge: float) -> Trace | None:
    """Return the mark of the lowest possible ΔP at the right edge of a panel, or None."""
    tick = float(rows["tick"].mean())
    if math.isnan(tick):
        return None
    low, high = rows["p_before"].min(), rows["p_before"].max()
    ends = "" if high - low < 0.005 else f", {low:.2f} to {high:.2f} by layer"
    size = 14 if entry.dash == "solid" else 8
    return {
        "x": [edge], "y": [tick], "name": f"{entry.label}, P before", "mode": "markers",
        "marker": {"symbol": "line-ew", "size": size, "line": {"color": entry.colour, "width": 2}}, "cliponaxis": False,
        "legendgroup": entry.group, "showlegend": False, "hoverinfo": "text",
        "text": [f"<b>{entry.label}</b><br>P before {rows['before'].mean():.2f}{ends}<br>lowest possible ΔP: {format_number(tick)}"],
    }  # fmt: skip


def band_look(entry: Entry, kind: str, *, crowded: bool) -> Trace:
    """Return a band without its points."""
    opacity = round(_OPACITY[kind] * (0.42 if crowded else 1), 3)
    return {
        "name": f"{entry.label}, 95 % band{', simultaneous' if kind == SIMULTANEOUS else ''}", "mode": "lines",
        "fill": "toself", "fillcolor": translucent(entry.colour, opacity), "line": {"width": 0, "color": entry.colour},
        "legendgroup": entry.group, **_SILENT,
    }  # fmt: skip


def marks_of(points: Points, rows: pd.DataFrame, entry: Entry, bands: Sequence[str]) -> list[Trace]:
    """Return marks of lone points with intervals, points fixed by construction, without signal or within noise."""
    colour, present = entry.colour, rows["effect"].notna().to_numpy()
    hollow, silent, noise = (rows[name].to_numpy(bool) for name in ("by_construction", "no_signal", "is_noise"))
    lone = np.zeros(len(rows), dtype=bool)
    lone[points.lone()] = True
    whiskers = [_whisker(points, lone & ~hollow, colour, kind) for kind in bands]
    drawn: list[tuple[np.ndarray, Trace]] = [
        (lone & ~hollow, {"marker": {"symbol": "circle", "size": 6, "color": colour}, "error_y": whisker})
        for whisker in list(filter(None, whiskers)) or [None]
    ]
    drawn += [
        (hollow & present, {"marker": {"symbol": "circle", "size": 9, "color": "white", "line": {"color": colour, "width": 2}}}),
        (silent & present, {"marker": {"symbol": "x-thin-open", "size": 5, "color": colour, "line": {"width": 1}}}),
        (noise & ~hollow, {"marker": {"symbol": "circle-open", "size": 6, "color": GREY, "line": {"width": 1.2}}}),
    ]
    look = {"name": entry.label, "mode": "markers", "legendgroup": entry.group, **_SILENT}
    return [points.xy(chosen) | look | more for chosen, more in drawn if chosen.any()]


def _whisker(points: Points, chosen: np.ndarray, colour: str, kind: str) -> Trace | None:
    low, high = (end[chosen] for end in points.ends[kind])
    if np.isnan(low + high).all():
        return None
    value = points.value[chosen]
    return {
        "type": "data", "symmetric": False, "array": np.nan_to_num((high - value).clip(min=0)).tolist(),
        "arrayminus": np.nan_to_num((value - low).clip(min=0)).tolist(),
        "color": translucent(colour, 0.25 if kind == SIMULTANEOUS else 0.5), "thickness": 2, "width": 0,
    }  # fmt: skip
