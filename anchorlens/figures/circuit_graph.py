"""Drawing of a circuit: nodes by layer, edges by effect and stability."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from anchorlens.display import as_int, minus, short_repr, three_digits
from anchorlens.engine.edges.graph import EMBED, LOGITS, Edge, Node
from anchorlens.errors import InputError
from anchorlens.figures.circuit_layout import (
    BOX_HEIGHT,
    GROUP,
    TAB,
    Box,
    Drawing,
    Line,
    Port,
    place_circuit,
)
from anchorlens.figures.layout import INK, UNUSED_BUTTONS, check_width
from anchorlens.figures.notebook_figure import NotebookFigure
from anchorlens.figures.palette import in_theme
from anchorlens.protocols.edges.circuit import Circuit
from anchorlens.protocols.patch.spec import AUTO
from anchorlens.results.vocabulary import metric_name, unit_words

# Colours of the diverging palette "RdBu" of the heatmaps, one step from its ends.
POSITIVE, NEGATIVE = "#2166ac", "#b2182b"
MOST_EDGES = 60
_UNKNOWN = "#888888"  # an edge without an effect
_FAINT, _GREY = "#e6e6e6", "#bbbbbb"
_WIDEST, _THINNEST = 9.0, 0.8
_LEAST_OPACITY = 0.25
_WIDTH, _HEIGHT = 900, 900
# Edge -> lower and upper limit.
_Bands = Mapping[str, tuple[float, float]]
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 92, 52


def plot_circuit(
    circuit: Circuit,
    *,
    top: int = MOST_EDGES,
    bands: pd.DataFrame | None = None,
    title: str | None = None,
    theme: str = "light",
    width: int | None = None,
) -> go.Figure:
    """Plot a circuit as a graph: layers from the embedding at the bottom to the logits at the top,
    and an arrow for each edge.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> pairs = al.load_pairs("ioi-pairs", limit=10)
        >>> edges = al.edge_sweep(model, pairs, receivers="logits")  # doctest: +SKIP
        >>> al.plot_circuit(edges.circuit(top=60), bands=edges.table())  # doctest: +SKIP

    The width of an edge is the size of its effect, the colour its sign, and the opacity its
    stability. Edges end at the q, k or v of a head. Heads that share a key/value head have one
    frame, with one k and one v. Layers without nodes are left out.

    Args:
        circuit: Circuit to draw.
        top: Largest number of edges to draw: those with the largest effects.
        bands: Table of the edge sweep, whose ``sim_low`` and ``sim_high`` stand beside the effects.
            If None, effects have no band.
        title: Title. If None, made from the circuit.
        theme: ``light`` or ``dark``.
        width: Width in pixels. If None, 900. Boxes have a size in pixels, so the figure does not
            stretch with the page.

    Returns:
        Figure.

    Raises:
        InputError: If ``circuit`` is no circuit or has no edges, ``top`` is not positive, or
            ``bands`` lacks its columns.
    """
    if not isinstance(circuit, Circuit):
        raise InputError(
            f"circuit={short_repr(circuit)}: not a circuit. Give the result of"
            " edge_sweep(...).circuit(), acdc or load_circuit.",
            argument="circuit",
        )
    number = as_int(top)
    if number is None or number < 1:
        raise InputError(
            f"top={short_repr(top)}: must be a whole number of edges, at least 1.", argument="top"
        )
    if not circuit.edges:
        raise InputError(
            "circuit: it has no edges. Select more edges, or draw it before prune() drops those"
            " that are on no path from the embedding to the logits.",
            argument="circuit",
        )
    check_width(width)
    known = _bands_of(bands)
    edges = sorted(circuit.edges, key=lambda edge: -_size(circuit, edge))[:number]
    inner = (width or _WIDTH) - _LEFT - _RIGHT
    drawing = place_circuit(circuit.graph, edges, width=inner, most=_HEIGHT - _TOP - _BOTTOM)
    largest = max(_size(circuit, edge) for edge in edges) or 1.0
    figure = NotebookFigure()
    for line in reversed(drawing.lines):  # the largest effects are above
        figure.add_trace(_path(circuit, line, largest, known))
    for heads in _arrow_heads(circuit, drawing.lines, largest, known):
        figure.add_trace(heads)
    for entry in _legend(circuit, edges, largest):
        figure.add_trace(entry)
    heading = escape(title or f"Circuit of {circuit.model or 'a model'}", quote=False)
    figure.update_layout(
        template="plotly_white",
        font={"size": 12, "color": INK},
        paper_bgcolor="white",
        plot_bgcolor="white",
        hovermode="closest",
        hoverlabel={"align": "left", "namelength": -1},
        modebar={"remove": UNUSED_BUTTONS},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "itemdoubleclick": False,
        },
        title={
            "text": _title(heading, circuit, edges, has_frames=bool(drawing.frames)),
            "font": {"size": 13},
            "x": 0.02,
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 20},
        },
        height=round(drawing.height + _TOP + _BOTTOM),
        width=width or _WIDTH,
        margin={"t": _TOP, "b": _BOTTOM, "l": _LEFT, "r": _RIGHT},
        annotations=[
            *(_square(port) for port in drawing.ports),
            *(_node(box, circuit, edges) for box in drawing.boxes),
        ],
        shapes=[_frame(frame) for frame in drawing.frames],
        meta={"caption": _caption(circuit, edges, known)},
    )
    figure.update_xaxes(visible=False, range=[0, inner], fixedrange=False)
    figure.update_yaxes(_layers(drawing))
    return in_theme(figure, theme)


def _bands_of(bands: pd.DataFrame | None) -> _Bands:
    """Return the band of each edge that has one.

    Raises:
        InputError: If columns are missing.
    """
    if bands is None:
        return {}
    columns = ["edge", "sim_low", "sim_high"]
    if not isinstance(bands, pd.DataFrame) or not set(columns) <= set(bands.columns):
        raise InputError(
            f"bands={short_repr(bands)}: has no columns {', '.join(columns)}. Give table() of the"
            " edge sweep.",
            argument="bands",
        )
    rows = bands[columns].dropna()
    return {name: (float(low), float(high)) for name, low, high in rows.itertuples(index=False)}


def _size(circuit: Circuit, edge: Edge) -> float:
    """Return the size of an effect; 0 if it was not measured."""
    size = abs(circuit.scores.get(edge, 0.0))
    return 0.0 if math.isnan(size) else size


def _effect(circuit: Circuit, edge: Edge) -> float:
    return circuit.scores.get(edge, float("nan"))


def _opacity(circuit: Circuit, edge: Edge) -> float:
    if not circuit.stability:
        return 1.0
    return max(_LEAST_OPACITY, circuit.stability.get(edge, 0.0))


def _style(effect: float) -> tuple[str, str]:
    """Return the name and the colour of the sign of an effect."""
    if math.isnan(effect):
        return "not measured", _UNKNOWN
    return ("negative effect", NEGATIVE) if effect < 0 else ("positive effect", POSITIVE)


def _width(circuit: Circuit, edge: Edge, largest: float) -> float:
    return max(_THINNEST, _WIDEST * _size(circuit, edge) / largest)


def _head_size(width: float) -> float:
    return 6 + 1.3 * width


def _path(circuit: Circuit, line: Line, largest: float, bands: _Bands) -> go.Scatter:
    """Return the line of an edge, which ends inside its arrow head."""
    edge = line.edge
    name, colour = _style(_effect(circuit, edge))
    width = _width(circuit, edge, largest)
    low, top = line.y[0], line.y[-1]
    shorter = max(0.1, 1 - 0.6 * _head_size(width) / (top - low))
    return go.Scatter(
        x=line.x,
        y=[low + shorter * (y - low) for y in line.y],
        mode="lines",
        name=edge.name,
        legendgroup=name,
        showlegend=False,
        opacity=_opacity(circuit, edge),
        line={"color": colour, "width": width},
        hovertemplate=_hover(circuit, edge, bands) + "<extra></extra>",
    )


def _arrow_heads(
    circuit: Circuit, lines: Sequence[Line], largest: float, bands: _Bands
) -> list[go.Scatter]:
    """Return the arrow heads, one trace for each sign."""
    by_style: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        by_style.setdefault(_style(_effect(circuit, line.edge)), []).append(line)
    traces: list[go.Scatter] = []
    for (name, colour), own in by_style.items():
        sizes = [_head_size(_width(circuit, line.edge, largest)) for line in own]
        tips = [line.y[-1] - size / 2 for line, size in zip(own, sizes, strict=True)]
        trace = go.Scatter(
            x=[line.x[-1] for line in own],
            y=tips,
            mode="markers",
            name="arrow heads",
            legendgroup=name,
            showlegend=False,
            marker={
                "symbol": "triangle-up",
                "color": colour,
                "size": sizes,
                "opacity": [_opacity(circuit, line.edge) for line in own],
                "line": {"width": 0},
            },
            text=[_hover(circuit, line.edge, bands) for line in own],
            hovertemplate="%{text}<extra></extra>",
        )
        traces.append(trace)
    return traces


def _hover(circuit: Circuit, edge: Edge, bands: _Bands) -> str:
    effect = _effect(circuit, edge)
    unit = escape(unit_words(circuit.unit), quote=False)
    parts = [f"{edge.sender.name} → {edge.receiver.name}"]
    parts.append("not measured" if math.isnan(effect) else minus(f"{three_digits(effect)} {unit}"))
    if edge.name in bands:
        low, high = bands[edge.name]
        parts.append(minus(f"joint 95 % band: {three_digits(low)} to {three_digits(high)}"))
    if circuit.stability:
        share = circuit.stability.get(edge, 0.0)
        parts.append(f"selected in {share:.0%} of resamples")
    rep = circuit.graph.n_heads // circuit.graph.n_kv_heads
    if rep > 1 and edge.receiver.kind in "kv":
        first = edge.receiver.head * rep
        parts.append(f"read by heads {first} to {first + rep - 1}")
    return "<br>".join(parts)


def _legend(circuit: Circuit, edges: Sequence[Edge], largest: float) -> list[go.Scatter]:
    """Return the entries of signs, and of two widths."""
    entries: list[go.Scatter] = []
    styles = [_style(_effect(circuit, edge)) for edge in edges]
    for name, colour in sorted(set(styles), key=lambda one: one[0], reverse=True):
        entries.append(_entry(name, colour, 4.0, name))
    if any(_size(circuit, edge) for edge in edges):
        for share in (1.0, 0.25):
            text = f"{share * largest:.2g} {escape(unit_words(circuit.unit), quote=False)}"
            entries.append(_entry(text, _UNKNOWN, _WIDEST * share, ""))
    return entries


def _entry(name: str, colour: str, width: float, group: str) -> go.Scatter:
    return go.Scatter(
        x=[None],
        y=[None],
        mode="lines",
        name=name,
        legendgroup=group or f"width {name}",
        line={"color": colour, "width": width},
        hoverinfo="skip",
    )


def _node(box: Box, circuit: Circuit, edges: Sequence[Edge]) -> dict[str, Any]:
    kind = box.node.kind
    n_out = sum(edge.sender == box.node for edge in edges)
    n_in = sum(_ends_at(circuit, edge.receiver, box.node) for edge in edges)
    counts: list[str] = []
    for n, way in ((n_in, "in"), (n_out, "out")):
        if n:
            counts.append(f"{n} edge{'s' * (n > 1)} {way}")
    is_end = kind in (EMBED, LOGITS)
    return {
        "x": box.x,
        "y": box.y,
        "text": box.label,
        "font": {"size": 11 if is_end else 10, "color": INK},
        "showarrow": False,
        "width": box.width - 2,
        "height": BOX_HEIGHT - 2,
        "borderpad": 0,
        "borderwidth": 1,
        "bordercolor": _UNKNOWN if is_end or kind == GROUP else "#444444",
        "bgcolor": _FAINT if "h" in box.label and not is_end else "white",
        "hovertext": f"{box.label}<br>{', '.join(counts)}",
    }


def _ends_at(circuit: Circuit, receiver: Node, node: Node) -> bool:
    """Return whether a receiver is an input of a drawn node."""
    if receiver.kind in (LOGITS, "mlp") or node.kind == GROUP:
        return (receiver.layer, receiver.head) == (node.layer, node.head) and (
            node.kind == receiver.kind or (node.kind == GROUP and receiver.kind in "kv")
        )
    if node.kind != "head" or receiver.layer != node.layer:
        return False
    rep = 1 if receiver.kind == "q" else circuit.graph.n_heads // circuit.graph.n_kv_heads
    return node.head // rep == receiver.head


def _square(port: Port) -> dict[str, Any]:
    return {
        "x": port.x,
        "y": port.y,
        "text": port.letter,
        "font": {"size": 9, "color": INK},
        "showarrow": False,
        "width": TAB - 1,
        "height": TAB - 1,
        "borderpad": 0,
        "borderwidth": 1,
        "bordercolor": _UNKNOWN,
        "bgcolor": "white",
    }


def _frame(frame: tuple[float, float, float, float]) -> dict[str, Any]:
    left, right, bottom, top = frame
    return {
        "type": "rect",
        "x0": left,
        "x1": right,
        "y0": bottom,
        "y1": top,
        "line": {"color": _UNKNOWN, "width": 1},
        "layer": "below",
    }


def _layers(drawing: Drawing) -> dict[str, Any]:
    return {
        "range": [0, drawing.height],
        "tickvals": list(drawing.layers.values()),
        "ticktext": [str(layer) for layer in drawing.layers],
        "tickfont": {"size": 10, "color": "#555555"},
        "title": {"text": "Layer", "standoff": 6},
        "gridcolor": _FAINT,
        "zeroline": False,
        "showline": False,
    }


def _title(heading: str, circuit: Circuit, edges: Sequence[Edge], *, has_frames: bool) -> str:
    """Return the heading, a line on the edges that are drawn, and a line on the marks."""
    n_all = len(circuit.edges)
    drawn = f"{n_all} edge{'s' * (n_all > 1)}"
    if len(edges) < n_all:
        drawn = f"the {len(edges):,} largest of {n_all:,} edges"
    effects = "effects" if circuit.metric == AUTO else f"effects on {metric_name(circuit.metric)}"
    about = [effects, drawn]
    if circuit.dataset:
        about.insert(0, circuit.dataset)
    marks = ["width: size of the effect"]
    marks.append(
        "opacity: share of resamples that select the edge"
        if circuit.stability
        else "no stability was computed"
    )
    if has_frames:
        marks.append("in one frame: heads with one k and v")
    first = f'<span style="font-size:16px"><b>{heading}</b></span>'
    small = '<span style="font-size:12px;color:#555555">{}</span>'
    lines = ["; ".join(about), "; ".join(marks)]
    return "<br>".join([first, *(small.format(escape(line, quote=False)) for line in lines)])


def _caption(circuit: Circuit, edges: Sequence[Edge], bands: _Bands) -> str:
    """Return what is drawn, and the meaning of widths, colours and opacities."""
    kinds = Counter(edge.receiver.kind for edge in edges)
    parts = [
        f"Circuit of {len(circuit.edges):,} of {circuit.n_all:,} edges"
        f"{f' of {circuit.model}' if circuit.model else ''}, rule {circuit.rule}."
    ]
    if len(edges) < len(circuit.edges):
        parts.append(f"Drawn: the {len(edges)} edges with the largest effects.")
    parts.append(
        f"Width of an edge: size of its effect on {metric_name(circuit.metric)}"
        f" ({unit_words(circuit.unit)}), at least {_THINNEST} pixels. Colour: its sign."
    )
    if circuit.stability:
        parts.append(
            "Opacity: share of resamples of whole clusters that select the edge, at least"
            f" {_LEAST_OPACITY:.0%}."
        )
    else:
        parts.append("No stability was computed, so all edges are opaque.")
    if any(edge.name in bands for edge in edges):
        parts.append("Bands at the edges are simultaneous over all measured edges.")
    if kinds["k"] + kinds["v"] and circuit.graph.n_kv_heads < circuit.graph.n_heads:
        parts.append("Heads in one frame share a key/value head, with one k and one v.")
    return " ".join(parts)
