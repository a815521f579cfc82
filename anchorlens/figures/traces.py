"""The traces of one curve: its line, its bands, and the marks on single points."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from anchorlens.figures.extras import GAP, RANGE, Beside, in_range
from anchorlens.figures.hover import WEAK, signed
from anchorlens.figures.labels import Entry
from anchorlens.figures.palette import shaded, translucent
from anchorlens.figures.shapes import (
    SIMULTANEOUS,
    THIN_WIDTH,
    WIDTH,
    fill_of,
    has_band,
    outline,
    rests_on_few,
    runs_of,
    values_of,
)

GREY = "#666666"
_RANGE_FILL = "rgba(120,120,120,0.15)"
_TRIANGLE = 6


def line_of(rows: pd.DataFrame, entry: Entry, texts: list[str], *, showlegend: bool) -> go.Scatter:
    """The curve itself."""
    layers = rows["layer"].to_numpy()
    # Between layers that were not measured the line is only a guide, so the measured ones are marked.
    sparse = bool((np.diff(layers) > 1).any())
    return go.Scatter(
        x=layers.tolist(),
        y=values_of(rows["delta_p"]),
        name=entry.label,
        mode="lines+markers" if sparse else "lines",
        line={"color": entry.colour, "dash": entry.dash, "width": THIN_WIDTH if rests_on_few(rows, "delta_p") else WIDTH},
        marker={"size": 5, "color": entry.colour},
        legendgroup=entry.group,
        showlegend=showlegend,
        connectgaps=False,
        text=texts,
        hoverinfo="text",
    )


def beside_line(rows: pd.DataFrame, name: str, entry: Entry, beside: Beside, texts: list[str]) -> go.Scatter:
    """A control or extra of one curve: thin, without a band, drawn where its kind is."""
    colour = shaded(entry.colour, -0.3) if beside.dark else entry.colour
    control = rows["control"].iloc[0]
    lone = any(len(part) == 1 for part in runs_of(rows, ["delta_p"]))
    trace = go.Scatter(
        x=rows["layer"].tolist(),
        y=values_of(rows["delta_p"]),
        name=name if control in ("none", GAP.label) else f"{name}, {control}",
        mode="lines+markers" if lone else "lines",
        line={"color": colour, "dash": beside.dash, "width": beside.width},
        marker={"size": 3, "color": colour},
        legend="legend2",
        legendgroup=beside.label,
        showlegend=False,
        visible=None if beside.shown else "legendonly",
        connectgaps=False,
        text=texts,
        hoverinfo="text",
    )
    weak = (rows["null_short"] > WEAK).tolist()
    if any(weak):
        marker = {"symbol": "triangle-down-open", "size": [_TRIANGLE if one else 0 for one in weak], "opacity": 1}
        trace.update(mode="lines+markers", marker=marker)
    return trace


def range_of(rows: pd.DataFrame) -> go.Scatter | None:
    """The grey area that holds the controls of a panel."""
    ends = in_range(rows).groupby("layer")["delta_p"].agg(["min", "max"])
    if ends.empty:
        return None
    layers, low, high = ends.index.tolist(), ends["min"].tolist(), ends["max"].tolist()
    return go.Scatter(
        x=[*layers, *reversed(layers), layers[0]],
        y=[*high, *reversed(low), high[0]],
        name=RANGE.label,
        mode="lines",
        fill="toself",
        fillcolor=_RANGE_FILL,
        line={"width": RANGE.width, "color": "rgba(120,120,120,0.5)"},
        legend="legend2",
        legendgroup=RANGE.label,
        showlegend=False,
        hoverinfo="skip",
    )


def tick_of(rows: pd.DataFrame, entry: Entry, edge: float) -> go.Scatter | None:
    """The mark at the right edge that says how far a curve can fall; None where there is none."""
    tick = float(rows["tick"].mean())
    if math.isnan(tick):
        return None
    low, high = rows["p_before"].min(), rows["p_before"].max()
    ends = "" if high - low < 0.005 else f", {low:.2f} to {high:.2f} by layer"
    return go.Scatter(
        x=[edge],
        y=[tick],
        name=f"{entry.label}, P before",
        mode="markers",
        marker={"symbol": "line-ew", "size": 14 if entry.dash == "solid" else 8, "line": {"color": entry.colour, "width": 2}},
        cliponaxis=False,
        legendgroup=entry.group,
        showlegend=False,
        text=[f"<b>{entry.label}</b><br>P before {rows['before'].mean():.2f}{ends}<br>ΔP cannot fall below {signed(tick)}"],
        hoverinfo="text",
    )


def beside_entry(beside: Beside) -> go.Scatter:
    """The legend entry of all curves of one kind: grey, as it stands for every colour, and without a point."""
    area = {"fill": "toself", "fillcolor": _RANGE_FILL} if beside is RANGE else {}
    return go.Scatter(
        x=[None],
        y=[None],
        name=beside.label,
        mode="lines",
        line={"color": GREY, "dash": beside.dash, "width": beside.width},
        legend="legend2",
        legendgroup=beside.label,
        showlegend=True,
        visible=None if beside.shown else "legendonly",
        hoverinfo="skip",
        **area,
    )


def band_of(rows: pd.DataFrame, entry: Entry, kind: str, *, crowded: bool) -> go.Scatter | None:
    """A band; None where no two neighbouring points have an interval."""
    x, y = outline(rows, "delta_p", kind)
    if not x:
        return None
    return go.Scatter(
        x=x,
        y=y,
        name=f"{entry.label}, 95 % band{' of all layers at once' if kind == SIMULTANEOUS else ''}",
        mode="lines",
        fill="toself",
        fillcolor=fill_of(entry.colour, kind, crowded=crowded),
        line={"width": 0, "color": entry.colour},
        legendgroup=entry.group,
        showlegend=False,
        hoverinfo="skip",
    )


def marks_of(rows: pd.DataFrame, entry: Entry, bands: Sequence[str]) -> list[go.Scatter]:
    """Hollow marks on trivial points, crosses where there is no signal; full ones, with their intervals, where no line is."""
    lone = [part for part in runs_of(rows, ["delta_p"]) if len(part) == 1]
    marks: list[go.Scatter] = []
    if lone:
        points = pd.concat(lone)
        points = points[~points["trivial"]]
        full: dict[str, object] = {"symbol": "circle", "size": 6, "color": entry.colour}
        whiskers = [_whisker(points, entry.colour, kind) for kind in bands if has_band(points, kind)]
        if len(points):
            marks += [_mark(points, entry, full, whisker) for whisker in whiskers or [None]]
    hollow = rows[rows["trivial"] & rows["delta_p"].notna()]
    style = {"symbol": "circle", "size": 9, "color": "white", "line": {"color": entry.colour, "width": 2}}
    if len(hollow):
        marks.append(_mark(hollow, entry, style, None))
    unsure = rows[rows["no_signal"] & rows["delta_p"].notna()]
    cross = {"symbol": "x-thin-open", "size": 5, "color": entry.colour, "line": {"width": 1}}
    if len(unsure):
        marks.append(_mark(unsure, entry, cross, None))
    noise = rows[rows["is_noise"] & ~rows["trivial"]]
    ring = {"symbol": "circle-open", "size": 6, "color": GREY, "line": {"width": 1.2}}
    if len(noise):
        marks.append(_mark(noise, entry, ring, None))
    return marks


def _whisker(points: pd.DataFrame, colour: str, kind: str) -> dict[str, object]:
    up, down = points[f"{kind}_high"] - points["delta_p"], points["delta_p"] - points[f"{kind}_low"]
    return {
        "type": "data",
        "symmetric": False,
        "array": up.clip(lower=0).fillna(0).tolist(),
        "arrayminus": down.clip(lower=0).fillna(0).tolist(),
        "color": translucent(colour, 0.25 if kind == SIMULTANEOUS else 0.5),
        "thickness": 2,
        "width": 0,
    }


def _mark(points: pd.DataFrame, entry: Entry, marker: dict[str, object], whisker: dict[str, object] | None) -> go.Scatter:
    return go.Scatter(
        x=points["layer"].tolist(),
        y=points["delta_p"].tolist(),
        error_y=whisker,
        name=entry.label,
        mode="markers",
        marker=marker,
        legendgroup=entry.group,
        showlegend=False,
        hoverinfo="skip",
    )
