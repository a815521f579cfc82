"""The panels below the published picture: what can be claimed, one contrast at a time, and the switch among several.

A contrast has a curve per data set (and anchor of a swap) in the look of the curve that it belongs to, with its bands, a line at
zero, and a filled point at each layer whose interval for all layers at once excludes 0. The switch changes what these traces hold,
not which are shown: what a click on the legend has hidden stays hidden.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from anchorlens.figures.effects import OWNER
from anchorlens.figures.hover import contrast_texts
from anchorlens.figures.labels import Entry, Key, in_panel, legend_places
from anchorlens.figures.layout import FRAME, INK, ZERO, Sheet, hide_panel, y_range
from anchorlens.figures.shapes import (
    CROWD,
    POINTWISE,
    SIMULTANEOUS,
    THIN_WIDTH,
    WIDTH,
    fill_of,
    outline,
    rests_on_few,
    runs_of,
    values_of,
)
from anchorlens.figures.words import CONTRASTS, contrast_axis

_HEADING = "<b>What can be claimed</b>"
# From back to front.
_OUTER, _INNER, _THIN, _LINE, _POINTS = range(5)
_KIND_AT = {_OUTER: SIMULTANEOUS, _INNER: POINTWISE}
# Pixels. In less than these four buttons do not fit beside the heading; a list that unfolds does.
_WIDE = 620


@dataclass(frozen=True)
class _Trace:
    """One trace with what it holds under each quantity; ``()`` where it has no point."""

    trace: go.Scatter
    cell: tuple[int, int]
    protocol: str
    data: dict[str, tuple[list[Any], list[Any], list[Any]]]


def add_contrasts(
    figure: go.Figure,
    sheet: Sheet,
    effects: pd.DataFrame,
    panels: Mapping[Key, str],
    entries: Mapping[Key, Entry],
    *,
    bands: Sequence[str],
    first: str,
) -> None:
    """Fill the lower panels of a figure.

    Args:
        figure: With its curves; the panels below them are empty.
        sheet: Where the panels stand.
        effects: Contrasts as ``gather_effects`` gives them.
        panels: (model, part, protocol) -> title, in their order.
        entries: Of the legend.
        bands: The intervals that are drawn.
        first: The contrast to show first; where a protocol lacks it, the first that it has.
    """
    shown = _shown_first(effects, first)
    found = sorted(_traces(effects, sheet, panels, entries, bands), key=lambda item: item[:2])
    traces = [one for *_, one in found]
    for one in traces:
        x, y, text = one.data.get(shown[one.protocol], ([], [], []))
        one.trace.update(x=x, y=y, text=text)
    start = sum(1 for _ in figure.select_traces())
    rows, columns = zip(*(one.cell for one in traces), strict=True)
    figure.add_traces([one.trace for one in traces], rows=list(rows), cols=list(columns))
    axes = _style(figure, sheet, effects, panels)
    views = {name: _view(effects, name) for name in CONTRASTS if name in set(effects["quantity"])}
    layouts = {name: _layout_of(effects, view, axes, bands) for name, view in views.items()}
    figure.update_layout(_layout_of(effects, shown, axes, bands))
    # A quantity that no protocol has a choice about is always there and needs no button.
    free = _with_choice(effects)
    choices = [name for name in views if any(_has(effects, protocol, name) for protocol in free)]
    if choices:
        buttons = [_button(name, views[name], layouts[name], traces, start) for name in choices]
        active = next(k for k, name in enumerate(choices) if views[name] == shown)
        _add_switch(figure, sheet, buttons, active, next(k for k, (*_, protocol) in enumerate(panels) if protocol in free))


def _has(effects: pd.DataFrame, protocol: str, quantity: str) -> bool:
    return bool(((effects["protocol"] == protocol) & (effects["quantity"] == quantity)).any())


def _with_choice(effects: pd.DataFrame) -> list[str]:
    return [str(name) for name, rows in effects.groupby("protocol", sort=False) if rows["quantity"].nunique() > 1]


def _view(effects: pd.DataFrame, quantity: str) -> dict[str, str]:
    """Protocol -> what its panels show when ``quantity`` is chosen: the protocol's first contrast where it lacks that one."""
    return {
        protocol: next(name for name in (quantity, *CONTRASTS) if _has(effects, protocol, name))
        for protocol in map(str, effects["protocol"].unique())
    }


def _shown_first(effects: pd.DataFrame, first: str) -> dict[str, str]:
    return _view(effects, first if first in CONTRASTS else next(iter(CONTRASTS)))


def _traces(
    effects: pd.DataFrame,
    sheet: Sheet,
    panels: Mapping[Key, str],
    entries: Mapping[Key, Entry],
    bands: Sequence[str],
) -> Iterator[tuple[int, int, _Trace]]:
    """Every trace with its depth and its curve's place in the legend."""
    places = legend_places(entries)
    for key, rows in effects.groupby(OWNER, sort=False):
        model, part, dataset, protocol, anchor, *settings = map(str, key)
        # Of the pathways of one anchor the first in the legend: the question's.
        own = [entry for k, entry in entries.items() if (*k[:3], *k[4:]) == (dataset, protocol, anchor, *settings)]
        entry = min(own, key=lambda one: one.order)
        title = panels[model, part, protocol]
        crowded = in_panel(effects, (model, part, protocol)).groupby(OWNER).ngroups > CROWD
        cell = sheet.below(list(panels).index((model, part, protocol)))
        parts = {
            str(name): _Part(part.sort_values("layer"), entry, title) for name, part in rows.groupby("quantity", sort=False)
        }
        look = _Look(entry, few=rests_on_few(rows[rows["leading"]], "value"), sparse=_sparse(rows), crowded=crowded)
        for depth in (*(depth for depth, kind in _KIND_AT.items() if kind in bands), _THIN, _LINE, _POINTS):
            data = {name: part.data(depth) for name, part in parts.items()}
            if any(x for x, _, _ in data.values()):
                yield depth, places[entry.group], _Trace(look.trace(depth), cell, protocol, data)


@dataclass(frozen=True)
class _Part:
    """One quantity of one curve."""

    rows: pd.DataFrame
    entry: Entry
    panel: str

    def data(self, depth: int) -> tuple[list[Any], list[Any], list[Any]]:
        """x, y and hover of the trace at a depth; empty where it has no point."""
        leading = self.rows[self.rows["leading"]]
        if depth in _KIND_AT:
            return (*outline(leading, "value", _KIND_AT[depth]), [])
        if depth == _LINE:
            return self._points(leading)
        if depth == _POINTS:
            return self._points(leading[leading["excludes_zero"]])
        x, y, text = [], [], []
        for _, rows in self.rows[~self.rows["leading"]].groupby("control", sort=True):
            for whole, more in zip((x, y, text), self._points(rows), strict=True):
                whole += [*([None] if whole else []), *more]  # a gap between two controls
        return x, y, text

    def _points(self, rows: pd.DataFrame) -> tuple[list[Any], list[Any], list[Any]]:
        if rows.empty:
            return [], [], []
        quantity = str(rows["quantity"].iloc[0])
        texts = contrast_texts(rows, self.entry.label, self.panel, quantity, CONTRASTS[quantity])
        return rows["layer"].tolist(), values_of(rows["value"]), texts


def _sparse(rows: pd.DataFrame) -> bool:
    """Whether the line alone would not show each measured layer: some were left out, or stand between missing ones."""
    leading = rows[rows["leading"]]
    layers = sorted(leading["layer"].unique())
    skipped = any(after - before > 1 for before, after in pairwise(layers))
    curves = [part.sort_values("layer") for _, part in leading.groupby("quantity")]
    return skipped or any(len(run) == 1 for part in curves for run in runs_of(part, ["value"]))


@dataclass(frozen=True)
class _Look:
    """How the traces of one curve look."""

    entry: Entry
    few: bool
    sparse: bool
    crowded: bool

    def trace(self, depth: int) -> go.Scatter:
        """The trace at a depth, without points."""
        colour = self.entry.colour
        line: dict[str, object] = {"color": colour}
        look: dict[str, object] = {"mode": "lines", "line": line, "hoverinfo": "text", "connectgaps": False}
        if depth in _KIND_AT:
            line["width"] = 0
            look |= {
                "fill": "toself",
                "fillcolor": fill_of(colour, _KIND_AT[depth], crowded=self.crowded),
                "hoverinfo": "skip",
            }
        elif depth == _THIN:
            line |= {"width": 1, "dash": "dot"}
        elif depth == _LINE:
            line |= {"width": THIN_WIDTH if self.few else WIDTH, "dash": self.entry.dash}
            if self.sparse:  # hollow, as a full point says more
                marker = {"symbol": "circle", "size": 6, "color": "white", "line": {"color": colour, "width": 1.5}}
                look |= {"mode": "lines+markers", "marker": marker}
        else:
            look = {"mode": "markers", "marker": {"symbol": "circle", "size": 6, "color": colour}, "hoverinfo": "text"}
        return go.Scatter(name=f"{self.entry.label}, contrast", legendgroup=self.entry.group, showlegend=False, **look)


@dataclass(frozen=True)
class _Axis:
    """A y axis of a lower panel: its name in the layout, and whether it is the one of its row that has a title."""

    name: str
    titled: bool


def _style(figure: go.Figure, sheet: Sheet, effects: pd.DataFrame, panels: Mapping[Key, str]) -> dict[str, list[_Axis]]:
    """Dress the lower panels; protocol -> its y axes."""
    axes: dict[str, list[_Axis]] = {}
    for panel, key in enumerate(panels):
        row, column = sheet.below(panel)
        protocol = key[-1]
        if in_panel(effects, key).empty:
            hide_panel(figure, (row, column))
            continue
        above, here = _subplot(figure, sheet.cell(panel)), _subplot(figure, (row, column))
        upper = above.xaxis.to_plotly_json()
        same = {key: upper[key] for key in ("title", "range", "tick0", "dtick", "tickformat", "zeroline")}
        figure.update_xaxes(**same, **FRAME, matches=above.yaxis.anchor, row=row, col=column)
        known, titled = axes.setdefault(protocol, []), sheet.mixed or column == 1
        # The panels of one protocol have one scale.
        leader = known[0].name.replace("axis", "") if known else None
        figure.update_yaxes(matches=leader, title={"standoff": 4}, showticklabels=titled, **ZERO, **FRAME, row=row, col=column)
        known.append(_Axis(here.yaxis.plotly_name, titled))
        if column == 1:
            figure.add_annotation(
                text=_HEADING, showarrow=False, font={"size": 15, "color": INK}, x=0, xref="paper", xanchor="left",
                y=here.yaxis.domain[1], yref="paper", yanchor="bottom", yshift=8,
            )  # fmt: skip
    for panel in range(sheet.panels, sheet.rows * sheet.columns):
        hide_panel(figure, sheet.below(panel))
    return axes


def _subplot(figure: go.Figure, cell: tuple[int, int]) -> Any:
    """The axes of a cell; plotly's own types allow for plots that have none."""
    return figure.get_subplot(*cell)


def _layout_of(
    effects: pd.DataFrame, view: Mapping[str, str], axes: Mapping[str, Sequence[_Axis]], bands: Sequence[str]
) -> dict[str, object]:
    """Range and title of every lower y axis."""
    layout: dict[str, object] = {}
    for protocol, quantity in view.items():
        rows = effects[(effects["protocol"] == protocol) & (effects["quantity"] == quantity)]
        leading = rows[rows["leading"]]
        ends = [leading[f"{kind}_{end}"] for kind in bands for end in ("low", "high")]
        for axis in axes[protocol]:
            layout[f"{axis.name}.range"] = y_range([rows["value"]], ends, CONTRASTS[quantity].bound)
            if axis.titled:
                layout[f"{axis.name}.title.text"] = contrast_axis(quantity, str(leading["control"].iloc[0]))
    return layout


def _button(
    name: str, view: Mapping[str, str], layout: dict[str, object], traces: Sequence[_Trace], start: int
) -> dict[str, object]:
    data = [one.data.get(view[one.protocol], ([], [], [])) for one in traces]
    x, y, text = (list(part) for part in zip(*data, strict=True))
    changes = {"x": x, "y": y, "text": text}
    return {"label": name, "method": "update", "args": [changes, layout, list(range(start, start + len(traces)))]}


def _add_switch(figure: go.Figure, sheet: Sheet, buttons: Sequence[dict[str, object]], active: int, panel: int) -> None:
    """Put the switch into the gap above a panel: at the right end of the row, or of the panel where its neighbours have none."""
    cell = sheet.below(panel)
    here = _subplot(figure, cell)
    own_width = sheet.mixed and cell[1] == 1
    wide = (sheet.panel_width if own_width else sheet.panel_width * sheet.columns) >= _WIDE
    menu = {
        "type": "buttons" if wide else "dropdown",
        "direction": "right" if wide else "down",
        "buttons": list(buttons),
        "active": active,
        "showactive": True,
        "x": here.xaxis.domain[1] if sheet.mixed else 1,
        "xanchor": "right",
        "y": here.yaxis.domain[1],
        "yanchor": "bottom",
        "pad": {"b": 5},
        "font": {"size": 12},
        "bgcolor": "white",
        "bordercolor": "#bbbbbb",
    }
    figure.update_layout(updatemenus=[menu])
