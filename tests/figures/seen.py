"""What stands in a figure: its legends, lines, marks and texts."""

import re

import plotly.graph_objects as go


def legend(figure: go.Figure) -> list[go.Scatter]:
    """The traces that the legends list: the curves, set by set, then what stands beside them."""
    return [trace for trace in figure.data if trace.showlegend]


def curves_of(figure: go.Figure) -> list[go.Scatter]:
    """The traces that the first legend lists."""
    return [trace for trace in legend(figure) if trace.legend != "legend2"]


def names(figure: go.Figure) -> list[str]:
    return [trace.name for trace in curves_of(figure)]


def looks(figure: go.Figure) -> dict[str, tuple[str, str]]:
    """Colour and dash of each curve."""
    return {trace.name: (trace.line.color, trace.line.dash) for trace in curves_of(figure)}


def only_curve(figure: go.Figure) -> go.Scatter:
    (line,) = curves_of(figure)
    return line


def lines_of(figure: go.Figure, name: str) -> list[go.Scatter]:
    """The line of this name in each panel."""
    return [trace for trace in figure.data if trace.name == name and trace.mode.startswith("lines")]


def dotted(figure: go.Figure) -> list[go.Scatter]:
    """The lines of the controls."""
    return [
        trace
        for trace in figure.data
        if trace.legend == "legend2" and not trace.showlegend and ", " in trace.name
    ]


def keys(figure: go.Figure) -> list[str]:
    """The entries of the second legend."""
    return [trace.name for trace in legend(figure) if trace.legend == "legend2"]


def titles(figure: go.Figure) -> list[str]:
    """The titles of the panels of curves."""
    return [
        note.text
        for note in figure.layout.annotations
        if "Difference from control" not in note.text
    ]


def said(figure: go.Figure) -> str:
    """The heading, its lines joined as its parts are."""
    return " · ".join(re.findall(r">([^<>]+)</", figure.layout.title.text))


def told(figure: go.Figure) -> str:
    """The caption."""
    return figure.layout.meta["anchorlens"]["caption"]
