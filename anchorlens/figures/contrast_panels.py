"""Panels of contrasts below the curves, and the buttons that switch between contrasts.

A button replaces the data of the traces, not their visibility, so curves hidden in the legend stay hidden.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from anchorlens.figures.hover import CONTRASTS, contrast_axis, contrast_head, contrast_texts
from anchorlens.figures.labels import PANEL, Entries, Entry, Titles, legend_places
from anchorlens.figures.layout import FRAME, INK, ZERO, Sheet, fit_range, hidden_axes
from anchorlens.figures.table import OWNER
from anchorlens.figures.traces import POINTWISE, SIMULTANEOUS, Points, Trace, band_look, find_crowded_panels, line_of

_HEADING = "<b>Contrasts</b>"
# From back to front.
_OUTER, _INNER, _THIN, _LINE, _POINTS = range(5)
_DEPTH_OF = {SIMULTANEOUS: _OUTER, POINTWISE: _INNER}
# Minimum panel width in pixels for buttons beside the heading; narrower panels have a drop-down list.
_WIDE = 620
_NO_POINT: Trace = {"x": [], "y": [], "text": []}


@dataclass(frozen=True)
class _Line:
    """A trace without points, and its points for each quantity."""

    depth: int
    place: int
    protocol: str
    trace: Trace
    data: dict[str, Trace]


class Contrasts:
    """Lower panels of a figure; a protocol without the contrast ``first`` shows its first available one."""

    def __init__(
        self, contrast_tables: pd.DataFrame, sheet: Sheet, panels: Titles, entries: Entries, *, bands: Sequence[str], first: str
    ) -> None:
        self._contrasts, self._sheet, self._panels, self._bands = contrast_tables, sheet, list(panels), bands
        self._present = set(contrast_tables[PANEL].itertuples(index=False, name=None))
        by_protocol = contrast_tables.groupby("protocol", sort=False)["quantity"]
        self._quantities: dict[str, set[str]] = {str(protocol): set(rows) for protocol, rows in by_protocol}
        self._shown = self._view(first if first in CONTRASTS else next(iter(CONTRASTS)))
        self._lines = sorted(self._all_lines(panels, entries), key=lambda line: (line.depth, line.place))

    def traces(self) -> list[Trace]:
        """Return the traces of the contrasts shown first."""
        return [line.trace | line.data.get(self._shown[line.protocol], _NO_POINT) for line in self._lines]

    def axes(self, layout: Mapping[str, Any]) -> dict[str, Any]:
        """Return axes and headings of the lower panels, given the layout of the panels of curves."""
        scales = self._scales(self._shown)
        leaders: dict[str, str] = {}
        axes: dict[str, Any] = {"annotations": []}
        for panel, key in enumerate(self._panels):
            above, axis = self._sheet.axis(panel), self._sheet.axis(panel, lower=True)
            if key not in self._present:
                axes |= hidden_axes(axis)
                continue
            y_range, title = scales[key[-1]]
            titled = self._has_title(panel)
            axes[f"xaxis{axis}"] = layout[f"xaxis{above}"] | {"matches": f"x{above}"}
            axes[f"yaxis{axis}"] = {
                "title": {"standoff": 4} | ({"text": title} if titled else {}), "range": y_range, "showticklabels": titled,
                **({"matches": leaders[key[-1]]} if key[-1] in leaders else {}), **ZERO, **FRAME,
            }  # fmt: skip
            leaders.setdefault(key[-1], f"y{axis}")  # all panels of a protocol share a scale
            if panel % self._sheet.columns == 0:
                axes["annotations"].append({
                    "x": 0, "xref": "paper", "xanchor": "left", "y": 1, "yref": f"y{axis} domain", "yanchor": "bottom",
                    "text": _HEADING, "yshift": 8, "font": {"size": 15, "color": INK}, "showarrow": False,
                })  # fmt: skip
        for panel in range(self._sheet.panels, self._sheet.rows * self._sheet.columns):
            axes |= hidden_axes(self._sheet.axis(panel, lower=True))
        return axes

    def add_menu(self, figure: go.Figure, start: int) -> None:
        """Add the buttons above the lower panel of the first protocol with several contrasts.

        ``start`` is the number of traces in the figure before those of :meth:`traces`.
        """
        choosing = [protocol for protocol, quantities in self._quantities.items() if len(quantities) > 1]
        choices = [name for name in CONTRASTS if any(name in self._quantities[protocol] for protocol in choosing)]
        if not choices:
            return
        panel = next(k for k, (*_, protocol) in enumerate(self._panels) if protocol in choosing)
        axis, sheet = self._sheet.axis(panel, lower=True), self._sheet
        room = sheet.panel_width * (1 if sheet.mixed and panel % sheet.columns == 0 else sheet.columns)
        layout: Any = figure.layout
        kind, direction = ("buttons", "right") if room >= _WIDE else ("dropdown", "down")
        menu = {
            "type": kind, "direction": direction, "showactive": True,
            "buttons": [self._button(name, list(range(start, start + len(self._lines)))) for name in choices],
            "active": next(k for k, name in enumerate(choices) if self._view(name) == self._shown),
            "x": layout[f"xaxis{axis}"].domain[1] if sheet.mixed else 1, "xanchor": "right",
            "y": layout[f"yaxis{axis}"].domain[1], "yanchor": "bottom",
            "pad": {"b": 5}, "font": {"size": 12}, "bgcolor": "white", "bordercolor": "#bbbbbb",
        }  # fmt: skip
        figure.update_layout(updatemenus=[menu])

    def _button(self, name: str, traces: list[int]) -> dict[str, Any]:
        view, layout = self._view(name), {}
        data = [line.data.get(view[line.protocol], _NO_POINT) for line in self._lines]
        scales = self._scales(view)
        for panel, key in enumerate(self._panels):
            if key in self._present:
                axis = f"yaxis{self._sheet.axis(panel, lower=True)}"
                layout[f"{axis}.range"], title = scales[key[-1]]
                layout |= {f"{axis}.title.text": title} if self._has_title(panel) else {}
        changes = {part: [trace[part] for trace in data] for part in _NO_POINT}
        return {"label": name, "method": "update", "args": [changes, layout, traces]}

    def _view(self, quantity: str) -> dict[str, str]:
        """Return the contrast that each protocol shows when ``quantity`` is selected."""
        known = self._quantities.items()
        return {protocol: next(name for name in (quantity, *CONTRASTS) if name in names) for protocol, names in known}

    def _has_title(self, panel: int) -> bool:
        return self._sheet.mixed or panel % self._sheet.columns == 0

    def _scales(self, view: Mapping[str, str]) -> dict[str, tuple[list[float], str]]:
        """Return range and title of the y axes of each protocol."""
        scales: dict[str, tuple[list[float], str]] = {}
        for protocol, quantity in view.items():
            rows = self._contrasts[(self._contrasts["protocol"] == protocol) & (self._contrasts["quantity"] == quantity)]
            leading = rows[rows["leading"]]
            ends = [leading[f"{kind}_{end}"] for kind in self._bands for end in ("low", "high")]
            y_range = fit_range([rows["value"]], ends, CONTRASTS[quantity].bound)
            scales[protocol] = y_range, contrast_axis(quantity, str(leading["control"].iloc[0]))
        return scales

    def _all_lines(self, panels: Titles, entries: Entries) -> Iterator[_Line]:
        places = legend_places(entries)
        owners = self._contrasts[OWNER].drop_duplicates()
        crowded = find_crowded_panels(owners)
        owner = self._contrasts.groupby(OWNER, sort=False).ngroup()
        contrast_tables = self._contrasts.assign(hover=contrast_texts(self._contrasts), owner=owner).sort_values(["owner", "layer"])
        for key, (_, rows) in zip(owners.itertuples(index=False, name=None), contrast_tables.groupby("owner"), strict=True):
            model, part, dataset, protocol, anchor, *settings = key
            # The contrast has the look of the first pathway of its anchor.
            pathways = [entry for k, entry in entries.items() if (*k[:3], *k[4:]) == (dataset, protocol, anchor, *settings)]
            entry = min(pathways, key=lambda entry: entry.order)
            panel = (model, part, protocol)
            axis = self._sheet.axis(self._panels.index(panel), lower=True)
            fixed = {"xaxis": f"x{axis}", "yaxis": f"y{axis}"}
            looks, data = self._traces(rows, entry, panels[panel], crowded=panel in crowded)
            for depth, look in looks.items():
                if any(trace["x"] for trace in data[depth].values()):
                    yield _Line(depth, places[entry.group], protocol, look | fixed, data[depth])

    def _traces(
        self, rows: pd.DataFrame, entry: Entry, panel: str, *, crowded: bool
    ) -> tuple[dict[int, Trace], dict[int, dict[str, Trace]]]:
        """Return the style, and the data by quantity, of each depth."""
        depths = (*(_DEPTH_OF[kind] for kind in self._bands), _THIN, _LINE, _POINTS)
        data: dict[int, dict[str, Trace]] = {depth: {} for depth in depths}
        sparse, leading, anchor = False, rows[rows["leading"]], str(rows["anchor"].iloc[0])
        for quantity, of_quantity in rows.groupby("quantity", sort=False):
            name = str(quantity)
            for control, part in of_quantity.groupby("control", sort=True):
                kind = {"quantity": name, "anchor": anchor, "control": str(control)}
                points = Points.of(part, "value", contrast_head(entry.label, panel, **kind))
                if not part["leading"].iloc[0]:
                    data[_THIN][name] = _join_lines(data[_THIN].get(name, _NO_POINT), points.xy() | {"text": points.text})
                    continue
                sparse = sparse or points.skips() or bool(points.lone())
                data[_LINE][name] = points.xy() | {"text": points.text}
                full = part["excludes_zero"].to_numpy(bool)
                data[_POINTS][name] = points.xy(full) | {
                    "text": [text for text, keep in zip(points.text, full, strict=True) if keep]
                }
                for kind in self._bands:
                    data[_DEPTH_OF[kind]][name] = points.outline(kind) | {"text": []}
        line = line_of(Points.of(leading, "value"), entry)
        if sparse:  # hollow, because a filled point excludes 0
            marker = {"symbol": "circle", "size": 6, "color": "white", "line": {"color": entry.colour, "width": 1.5}}
            line |= {"mode": "lines+markers", "marker": marker}
        looks = {_DEPTH_OF[kind]: band_look(entry, kind, crowded=crowded) for kind in self._bands}
        looks[_THIN] = line | {"mode": "lines", "line": {"color": entry.colour, "width": 1, "dash": "dot"}}
        looks[_LINE] = line
        looks[_POINTS] = line | {"mode": "markers", "marker": {"symbol": "circle", "size": 6, "color": entry.colour}, "line": None}
        fixed = {"name": f"{entry.label}, contrast", "showlegend": False}
        return {depth: look | fixed for depth, look in looks.items()}, data


def _join_lines(first: Trace, second: Trace) -> Trace:
    """Join two lines, separated by a gap."""
    return {part: [*first[part], None, *second[part]] for part in _NO_POINT} if first["x"] else second
