"""Panels of contrasts below the curves, the marks of their claims, and the switch between
contrasts.

The switch replaces the data of the traces, not their visibility, so curves hidden in the legend
stay hidden.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.constants import NULL_CONTROLS
from anchorlens.figures.labels import (
    PANEL,
    Entries,
    Entry,
    Key,
    Titles,
    contrast_entries,
    legend_places,
)
from anchorlens.figures.layout import FRAME, ZERO, Sheet, fit_range, heading
from anchorlens.figures.palette import translucent
from anchorlens.figures.table import OWNER
from anchorlens.figures.traces import (
    CONTRASTS,
    Points,
    Trace,
    band_of,
    contrast_head,
    contrast_texts,
    find_crowded_panels,
    in_second_legend,
    legend_key,
    line_of,
    mark_of,
)

_HEADING = "Difference from control"
# From back to front.
_BAND, _LINE, _MEASURED, _CLAIMED = range(4)
_NO_POINT: Trace = {"x": [], "y": [], "text": []}
# Shaded layers: of one data set over the whole panel, of several in a strip for each; opacities,
# and height of a strip as a share.
_SHADE = "#888888"
_PANEL_OPACITY = 0.18
_STRIP_OPACITY = 0.6
_STRIP = 0.025


@dataclass(frozen=True)
class _Line:
    """A trace without points, and its points for each view."""

    depth: int
    place: int
    protocol: str
    trace: Trace
    data: dict[str, Trace]


class Contrasts:
    """Lower panels of a figure.

    Attributes:
        panels: Numbers of the panels that have contrasts.
        switch: First panel with several contrasts; None without one.
    """

    def __init__(
        self,
        contrast_tables: pd.DataFrame,
        sheet: Sheet,
        titles: Titles,
        entries: Entries,
        *,
        band: str,
        first: str,
    ) -> None:
        self._sheet = sheet
        self._titles = titles
        self._keys = list(titles)
        self._band = band
        self._rows = _in_order(contrast_tables)
        present = set(self._rows[PANEL].itertuples(index=False, name=None))
        self.panels: list[int] = []
        for panel, key in enumerate(self._keys):
            if key in present:
                self.panels.append(panel)
        self._views: dict[str, list[str]] = {}
        for name, own in self._rows.groupby("protocol", sort=False)["view"]:
            self._views[str(name)] = list(own.unique())
        named = self._rows.loc[
            (self._rows["quantity"] == first) | (self._rows["control"] == first), "view"
        ]
        self._shown = self._choose(next(iter(named), ""))
        self.switch: int | None = None
        for panel in self.panels:
            protocol = self._keys[panel][-1]
            if len(self._views[protocol]) > 1:
                self.switch = panel
                break
        self._entries = contrast_entries(entries)
        self._listed = {entry.group for entry in entries.values()}
        by_order = sorted(entries.items(), key=lambda item: item[1].order, reverse=True)
        self._hues: dict[Key, str] = {}  # colour of the first curve
        for key, entry in by_order:
            self._hues[(*key[:3], *key[4:])] = entry.colour
        self._places = legend_places(self._entries)
        self._lines = sorted(self._all_lines(), key=lambda line: (line.depth, line.place))

    def traces(self) -> list[Trace]:
        """Return the traces of the contrasts shown first."""
        traces: list[Trace] = []
        for line in self._lines:
            points = line.data.get(self._shown[line.protocol], _NO_POINT)
            traces.append(line.trace | points)
        return traces

    def keys(self) -> list[Trace]:
        """Return the entries of the second legend: contrasts over all rows, and shaded layers."""
        lines: dict[Any, Any] = {}
        for line in self._lines:
            if line.depth == _LINE and "legend" in line.trace:
                lines[line.trace["legendgroup"]] = line
        found: list[Trace] = []
        for group, line in sorted(lines.items(), key=lambda item: item[1].place):
            name = str(line.trace["name"])
            found.append(legend_key(name, group, mode="lines", line=line.trace["line"]))
        if self._rows["shaded"].any():
            marker = {"symbol": "square", "size": 13, "color": translucent(_SHADE, _STRIP_OPACITY)}
            found.append(legend_key("All contrasts stand", "shaded", mode="markers", marker=marker))
        return found

    def add_to(self, layout: dict[str, Any], *, start: int, switch: bool) -> None:
        """Add axes, headings and shaded layers of the contrasts to a layout of panels of curves,
        and the switch if there is one.

        ``start`` is the number of traces in the figure before those of :meth:`traces`.
        """
        scales = self._scales(self._shown)
        leaders: dict[str, str] = {}
        first_heading = len(layout["annotations"])
        for panel in self.panels:
            above = self._sheet.axis(panel)
            axis = self._sheet.axis(panel, lower=True)
            protocol = self._keys[panel][-1]
            layout[f"xaxis{axis}"] = layout[f"xaxis{above}"] | {"matches": f"x{above}"}
            follows = {"matches": leaders[protocol]} if protocol in leaders else {}
            leaders.setdefault(protocol, f"y{axis}")  # all panels of a protocol share a scale
            layout[f"yaxis{axis}"] = {"range": scales[protocol], **follows, **ZERO, **FRAME}
            layout["annotations"].append(
                heading(axis, self._heading(protocol, self._shown), 0, "left", 13)
            )
            layout["shapes"] += self._shades(panel)
        if switch and self.switch is not None:
            traces = list(range(start, start + len(self._lines)))
            choices: list[str] = []
            for views in self._views.values():
                if len(views) > 1:
                    choices += views
            choices = list(dict.fromkeys(choices))
            first = self._shown[self._keys[self.switch][-1]]
            layout["updatemenus"] = [
                {
                    "type": "dropdown",
                    "showactive": True,
                    "xanchor": "right",
                    "yanchor": "bottom",
                    "pad": {"b": 24},
                    "font": {"size": 12},
                    "bgcolor": "white",
                    "bordercolor": "#bbbbbb",
                    "active": choices.index(first),
                    "buttons": [self._button(view, traces, first_heading) for view in choices],
                }
            ]

    def _button(self, view: str, traces: list[int], first_heading: int) -> dict[str, Any]:
        shown = self._choose(view)
        layout: dict[str, Any] = {}
        scales = self._scales(shown)
        for number, panel in enumerate(self.panels):
            protocol = self._keys[panel][-1]
            layout[f"yaxis{self._sheet.axis(panel, lower=True)}.range"] = scales[protocol]
            layout[f"annotations[{first_heading + number}].text"] = self._heading(protocol, shown)
        changes: dict[str, list[Any]] = {part: [] for part in _NO_POINT}
        for line in self._lines:
            points = line.data.get(shown[line.protocol], _NO_POINT)
            for part, values in changes.items():
                values.append(points[part])
        return {"label": view, "method": "update", "args": [changes, layout, traces]}

    def _choose(self, view: str) -> dict[str, str]:
        """Return the view that each protocol shows when ``view`` is selected: that, or its first
        one.
        """
        chosen: dict[str, str] = {}
        for protocol, views in self._views.items():
            chosen[protocol] = view if view in views else views[0]
        return chosen

    def _heading(self, protocol: str, shown: Mapping[str, str]) -> str:
        view = shown[protocol]
        rows = self._rows[(self._rows["protocol"] == protocol) & (self._rows["view"] == view)]
        unit = CONTRASTS[str(rows["quantity"].iloc[0])].unit.strip()
        return f"{_HEADING}: {view}{f' ({unit})' if unit else ''}"

    def _scales(self, shown: Mapping[str, str]) -> dict[str, list[float]]:
        """Return the range of the y axes of each protocol."""
        scales: dict[str, list[float]] = {}
        for protocol, view in shown.items():
            rows = self._rows[(self._rows["protocol"] == protocol) & (self._rows["view"] == view)]
            ends = [rows[f"{self._band}_{end}"] for end in ("low", "high")] if self._band else []
            scales[protocol] = fit_range(
                rows["value"], ends, CONTRASTS[str(rows["quantity"].iloc[0])].bound
            )
        return scales

    def _shades(self, panel: int) -> list[dict[str, Any]]:
        """Return the shaded layers of a panel of curves and of the contrasts below it."""
        own = self._rows[(self._rows[PANEL] == list(self._keys[panel])).all(axis=1)]
        owners = list(own.groupby(OWNER, sort=False))
        shapes: list[dict[str, Any]] = []
        for at, ((_, _, *key), rows) in enumerate(owners):
            layers = np.unique(rows.loc[rows["shaded"], "layer"])
            colour = translucent(_SHADE, _PANEL_OPACITY)
            low = 0.0
            high = 1.0
            if len(owners) > 1:
                colour = translucent(self._hues[tuple(key)], _STRIP_OPACITY)
                low, high = at * _STRIP, (at + 1) * _STRIP
            for run in (
                np.split(layers, np.flatnonzero(np.diff(layers) > 1) + 1) if len(layers) else []
            ):
                place = {"x0": int(run[0]) - 0.5, "x1": int(run[-1]) + 0.5, "y0": low, "y1": high}
                look = {
                    "type": "rect",
                    **place,
                    "fillcolor": colour,
                    "line": {"width": 0},
                    "layer": "below",
                }
                axes = self._sheet.axis(panel), self._sheet.axis(panel, lower=True)
                shapes += [look | {"xref": f"x{axis}", "yref": f"y{axis} domain"} for axis in axes]
        return shapes

    def _all_lines(self) -> Iterator[_Line]:
        """Yield the band, line and marks of each curve, with their data for every view."""
        owners = self._rows[OWNER].drop_duplicates()
        crowded = find_crowded_panels(owners)
        owner = self._rows.groupby(OWNER, sort=False).ngroup()
        table = self._rows.assign(hover=contrast_texts(self._rows), owner=owner).sort_values(
            ["owner", "layer"]
        )
        for key, (_, rows) in zip(
            owners.itertuples(index=False, name=None), table.groupby("owner"), strict=True
        ):
            model, part, dataset, protocol, anchor, *settings = key
            panel = (model, part, protocol)
            entry = self._entries[(dataset, protocol, anchor, *settings)]
            axis = self._sheet.axis(self._keys.index(panel), lower=True)
            fixed = {
                "type": "scatter",
                "xaxis": f"x{axis}",
                "yaxis": f"y{axis}",
                "showlegend": False,
            }
            fixed |= {} if entry.group in self._listed else in_second_legend(entry.group)
            looks = {
                _BAND: band_of(entry, crowded=panel in crowded),
                _LINE: {},
                _MEASURED: {},
                _CLAIMED: {
                    "mode": "markers",
                    "marker": {"symbol": entry.symbol, "size": 8, "color": entry.colour},
                },
            }
            data: dict[int, dict[str, Trace]] = {depth: {} for depth in looks}
            for view, own in rows.groupby("view", sort=False):
                points = self._points(own, entry, panel)
                looks[_LINE] = line_of(points, entry)
                looks[_MEASURED] = mark_of(points, points.marked(), entry, "cross-thin-open")
                claimed = np.flatnonzero(own["claimed"].to_numpy(bool))
                for depth, trace in self._data_of_view(points, claimed).items():
                    data[depth][str(view)] = trace
            for depth, look in looks.items():
                if any(trace["x"] for trace in data[depth].values()):
                    trace = (
                        {"hoverinfo": "text", "name": entry.label, "legendgroup": entry.group}
                        | look
                        | fixed
                    )
                    yield _Line(depth, self._places[entry.group], protocol, trace, data[depth])

    def _data_of_view(self, points: Points, claimed: npt.NDArray[np.intp]) -> dict[int, Trace]:
        """Return the data of band, line and marks in one view.

        ``claimed``: points with a claim.
        """
        band = points.outline() if self._band else {"x": [], "y": []}
        texts = [points.text[k] for k in claimed]
        return {
            _BAND: band | {"text": []},
            _LINE: points.xy() | {"text": points.text},
            _MEASURED: points.xy(points.marked()) | {"text": []},
            _CLAIMED: points.xy(claimed) | {"text": texts},
        }

    def _points(self, rows: pd.DataFrame, entry: Entry, panel: tuple[str, str, str]) -> Points:
        fixed = {name: str(rows[name].iloc[0]) for name in ("quantity", "anchor", "control")}
        return Points.of(
            rows, "value", self._band, contrast_head(entry.label, self._titles[panel], **fixed)
        )


def _in_order(contrast_tables: pd.DataFrame) -> pd.DataFrame:
    """Return the contrasts in the order of the switch; the first null of a swap is the one that
    leaves the smallest differences.
    """
    rank = {name: at for at, name in enumerate(CONTRASTS)}
    left = contrast_tables["value"].abs().groupby(contrast_tables["view"]).transform("mean")
    is_null = contrast_tables["control"].isin(list(NULL_CONTROLS.values()))
    keyed = contrast_tables.assign(
        _rank=contrast_tables["quantity"].map(rank), _left=left.where(is_null, 0.0)
    )
    return keyed.sort_values(["_rank", "_left"], kind="stable").drop(columns=["_rank", "_left"])
