"""Panels of contrasts below the curves, the marks of their claims, and the switch between contrasts.

The switch replaces the data of the traces, not their visibility, so curves hidden in the legend stay hidden.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from anchorlens.figures.hover import CONTRASTS, contrast_head, contrast_texts
from anchorlens.figures.labels import PANEL, Entries, Entry, Titles, contrast_entries, legend_places
from anchorlens.figures.layout import FRAME, ZERO, Sheet, fit_range, heading
from anchorlens.figures.palette import translucent
from anchorlens.figures.table import OWNER
from anchorlens.figures.traces import Points, Trace, band_of, find_crowded_panels, in_second_legend, legend_key, line_of, mark_of

_HEADING = "Difference from control"
# From back to front.
_BAND, _LINE, _MEASURED, _CLAIMED = range(4)
_NO_POINT: Trace = {"x": [], "y": [], "text": []}
# Shaded layers: of one data set over the whole panel, of several in a strip for each; opacities, and height of a strip as a share.
_SHADE, _PANEL_OPACITY, _STRIP_OPACITY, _STRIP = "#888888", 0.18, 0.6, 0.025


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
        self, contrast_tables: pd.DataFrame, sheet: Sheet, titles: Titles, entries: Entries, *, band: str, first: str
    ) -> None:
        self._sheet, self._titles, self._keys, self._band = sheet, titles, list(titles), band
        rank = {name: at for at, name in enumerate(CONTRASTS)}
        self._rows = contrast_tables.sort_values("quantity", key=lambda own: own.map(rank), kind="stable")
        present = set(self._rows[PANEL].itertuples(index=False, name=None))
        self.panels = [panel for panel, key in enumerate(self._keys) if key in present]
        self._views = {str(name): list(own.unique()) for name, own in self._rows.groupby("protocol", sort=False)["view"]}
        named = self._rows.loc[(self._rows["quantity"] == first) | (self._rows["control"] == first), "view"]
        self._shown = self._choose(next(iter(named), ""))
        self.switch = next((panel for panel in self.panels if len(self._views[self._keys[panel][-1]]) > 1), None)
        self._entries, self._listed = contrast_entries(entries), {entry.group for entry in entries.values()}
        by_order = sorted(entries.items(), key=lambda item: item[1].order, reverse=True)
        self._hues = {(*key[:3], *key[4:]): entry.colour for key, entry in by_order}  # colour of the first curve
        self._places = legend_places(self._entries)
        self._lines = sorted(self._all_lines(), key=lambda line: (line.depth, line.place))

    def traces(self) -> list[Trace]:
        """Return the traces of the contrasts shown first."""
        return [line.trace | line.data.get(self._shown[line.protocol], _NO_POINT) for line in self._lines]

    def keys(self) -> list[Trace]:
        """Return the entries of the second legend: contrasts over all rows, and shaded layers."""
        lines = {line.trace["legendgroup"]: line for line in self._lines if line.depth == _LINE and "legend" in line.trace}
        found = [
            legend_key(str(line.trace["name"]), group, mode="lines", line=line.trace["line"])
            for group, line in sorted(lines.items(), key=lambda item: item[1].place)
        ]
        if self._rows["shaded"].any():
            marker = {"symbol": "square", "size": 13, "color": translucent(_SHADE, _STRIP_OPACITY)}
            found.append(legend_key("All contrasts stand", "shaded", mode="markers", marker=marker))
        return found

    def add_to(self, layout: dict[str, Any], *, start: int, switch: bool) -> None:
        """Add axes, headings and shaded layers of the contrasts to a layout of panels of curves, and the switch if there is one.

        ``start`` is the number of traces in the figure before those of :meth:`traces`.
        """
        scales, leaders = self._scales(self._shown), dict[str, str]()
        first_heading = len(layout["annotations"])
        for panel in self.panels:
            above, axis = self._sheet.axis(panel), self._sheet.axis(panel, lower=True)
            protocol = self._keys[panel][-1]
            layout[f"xaxis{axis}"] = layout[f"xaxis{above}"] | {"matches": f"x{above}"}
            follows = {"matches": leaders[protocol]} if protocol in leaders else {}
            leaders.setdefault(protocol, f"y{axis}")  # all panels of a protocol share a scale
            layout[f"yaxis{axis}"] = {"range": scales[protocol], **follows, **ZERO, **FRAME}
            layout["annotations"].append(heading(axis, self._heading(protocol, self._shown), 0, "left", 13))
            layout["shapes"] += self._shades(panel)
        if switch and self.switch is not None:
            traces = list(range(start, start + len(self._lines)))
            choices = list(dict.fromkeys(view for views in self._views.values() if len(views) > 1 for view in views))
            first = self._shown[self._keys[self.switch][-1]]
            layout["updatemenus"] = [{
                "type": "dropdown", "showactive": True, "xanchor": "right", "yanchor": "bottom", "pad": {"b": 24},
                "font": {"size": 12}, "bgcolor": "white", "bordercolor": "#bbbbbb", "active": choices.index(first),
                "buttons": [self._button(view, traces, first_heading) for view in choices],
            }]  # fmt: skip

    def _button(self, view: str, traces: list[int], first_heading: int) -> dict[str, Any]:
        shown, layout = self._choose(view), dict[str, Any]()
        scales = self._scales(shown)
        for number, panel in enumerate(self.panels):
            protocol = self._keys[panel][-1]
            layout[f"yaxis{self._sheet.axis(panel, lower=True)}.range"] = scales[protocol]
            layout[f"annotations[{first_heading + number}].text"] = self._heading(protocol, shown)
        data = [line.data.get(shown[line.protocol], _NO_POINT) for line in self._lines]
        changes = {part: [one[part] for one in data] for part in _NO_POINT}
        return {"label": view, "method": "update", "args": [changes, layout, traces]}

    def _choose(self, view: str) -> dict[str, str]:
        """Return the view that each protocol shows when ``view`` is selected: that, or its first one."""
        return {protocol: view if view in views else views[0] for protocol, views in self._views.items()}

    def _heading(self, protocol: str, shown: Mapping[str, str]) -> str:
        return f"{_HEADING}: {shown[protocol]}"

    def _scales(self, shown: Mapping[str, str]) -> dict[str, list[float]]:
        """Return the range of the y axes of each protocol."""
        scales: dict[str, list[float]] = {}
        for protocol, view in shown.items():
            rows = self._rows[(self._rows["protocol"] == protocol) & (self._rows["view"] == view)]
            ends = [rows[f"{self._band}_{end}"] for end in ("low", "high")] if self._band else []
            scales[protocol] = fit_range(rows["value"], ends, CONTRASTS[str(rows["quantity"].iloc[0])].bound)
        return scales

    def _shades(self, panel: int) -> list[dict[str, Any]]:
        """Return the shaded layers of a panel of curves and of the contrasts below it."""
        own = self._rows[(self._rows[PANEL] == list(self._keys[panel])).all(axis=1)]
        owners = list(own.groupby(OWNER, sort=False))
        shapes: list[dict[str, Any]] = []
        for at, ((_, _, *key), rows) in enumerate(owners):
            layers = np.unique(rows.loc[rows["shaded"], "layer"])
            colour, low, high = translucent(_SHADE, _PANEL_OPACITY), 0.0, 1.0
            if len(owners) > 1:
                colour = translucent(self._hues[tuple(key)], _STRIP_OPACITY)
                low, high = at * _STRIP, (at + 1) * _STRIP
            for run in np.split(layers, np.flatnonzero(np.diff(layers) > 1) + 1) if len(layers) else []:
                place = {"x0": int(run[0]) - 0.5, "x1": int(run[-1]) + 0.5, "y0": low, "y1": high}
                look = {"type": "rect", **place, "fillcolor": colour, "line": {"width": 0}, "layer": "below"}
                axes = self._sheet.axis(panel), self._sheet.axis(panel, lower=True)
                shapes += [look | {"xref": f"x{axis}", "yref": f"y{axis} domain"} for axis in axes]
        return shapes

    def _all_lines(self) -> Iterator[_Line]:
        owners = self._rows[OWNER].drop_duplicates()
        crowded = find_crowded_panels(owners)
        owner = self._rows.groupby(OWNER, sort=False).ngroup()
        table = self._rows.assign(hover=contrast_texts(self._rows), owner=owner).sort_values(["owner", "layer"])
        for key, (_, rows) in zip(owners.itertuples(index=False, name=None), table.groupby("owner"), strict=True):
            model, part, dataset, protocol, anchor, *settings = key
            panel, entry = (model, part, protocol), self._entries[(dataset, protocol, anchor, *settings)]
            axis = self._sheet.axis(self._keys.index(panel), lower=True)
            fixed = {"type": "scatter", "xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": False}
            fixed |= {} if entry.group in self._listed else in_second_legend(entry.group)
            looks = {
                _BAND: band_of(entry, crowded=panel in crowded), _LINE: {}, _MEASURED: {},
                _CLAIMED: {"mode": "markers", "marker": {"symbol": entry.symbol, "size": 8, "color": entry.colour}},
            }  # fmt: skip
            data: dict[int, dict[str, Trace]] = {depth: {} for depth in looks}
            for view, own in rows.groupby("view", sort=False):
                points = self._points(own, entry, panel)
                data[_BAND][str(view)] = (points.outline() if self._band else {"x": [], "y": []}) | {"text": []}
                looks[_LINE] = line_of(points, entry)
                data[_LINE][str(view)] = points.xy() | {"text": points.text}
                looks[_MEASURED] = mark_of(points, points.marked(), entry, "cross-thin-open")
                data[_MEASURED][str(view)] = points.xy(points.marked()) | {"text": []}
                claimed = np.flatnonzero(own["claimed"].to_numpy(bool))
                data[_CLAIMED][str(view)] = points.xy(claimed) | {"text": [points.text[k] for k in claimed]}
            for depth, look in looks.items():
                if any(trace["x"] for trace in data[depth].values()):
                    trace = {"hoverinfo": "text", "name": entry.label, "legendgroup": entry.group} | look | fixed
                    yield _Line(depth, self._places[entry.group], protocol, trace, data[depth])

    def _points(self, rows: pd.DataFrame, entry: Entry, panel: tuple[str, str, str]) -> Points:
        fixed = {name: str(rows[name].iloc[0]) for name in ("quantity", "anchor", "control")}
        return Points.of(rows, "value", self._band, contrast_head(entry.label, self._titles[panel], **fixed))
