"""Plot one example: tokens with their roles, and the effect by layer."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

# Text colours of marked tokens; other roles are controls.
_TEXT = {"subject": "#0550ae", "property": "#1a7f37", "answer": "#bc4c00", "pre_answer": "#a0287a"}
_CONTROL = "#6e7781"
_SYMBOLS, _DASHES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross"), ("solid", "dash", "longdashdot")
_CURVES = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
_WIDTH = 90


def example_figure(row: Mapping[str, Any], layers: Sequence[int], roles: Mapping[str, str], heading: str) -> go.Figure:
    """Plot the curves of one row of ``example_rows`` below its tokens; ``roles`` maps roles to display names."""
    figure = go.Figure()
    anchors = [name for name in row["curves"] if ", " not in name]
    for name, values in row["curves"].items():
        anchor, _, control = name.partition(", ")
        at = anchors.index(anchor) if anchor in anchors else len(anchors)
        # A control has the open symbol of its anchor on a thin dotted line.
        colour, symbol = _CURVES[at % len(_CURVES)], _SYMBOLS[at % len(_SYMBOLS)]
        look = {"color": colour, "dash": "dot" if control else _DASHES[at % len(_DASHES)], "width": 1.2 if control else 2.2}
        figure.add_scatter(
            x=list(layers), y=values, name=escape(name), mode="lines+markers", line=look, connectgaps=False,
            marker={"symbol": f"{symbol}-open" if control else symbol, "size": 7, "color": colour}, opacity=0.75 if control else 1,
            legendgroup=escape(anchor),
        )  # fmt: skip
    lines = _tokens(row["tokens"], row["marks"])
    key = " · ".join(f'<span style="color:{_TEXT.get(role, _CONTROL)}">{escape(roles[role])}</span>' for role in row["marks"])
    facts = [row["label"] and f"answer {row['label']}", row["pathway"], f"{row['metric']} before {row['before']:.3f}"]
    subtitle = " · ".join([*(escape(fact) for fact in facts if fact), key])
    title = [f"<b>{escape(heading)}</b> {escape(row['id'])}", *lines, f'<span style="font-size:11px">{subtitle}</span>']
    figure.update_layout(
        title={
            "text": "<br>".join(title), "font": {"size": 13}, "x": 0.02, "xanchor": "left", "y": 1, "yanchor": "top",
            "pad": {"t": 14},
        },
        margin={"t": 24 + 18 * len(title), "l": 60, "r": 20, "b": 50}, height=340 + 18 * len(title),
        xaxis={"title": {"text": "Layer"}, "zeroline": False},
        yaxis={"title": {"text": escape(f"{row['change']} ({row['unit']})")}, "zerolinecolor": "#888888"},
        template="plotly_white", showlegend=True, legend={"groupclick": "toggleitem"},
    )  # fmt: skip
    return figure


def _tokens(tokens: Sequence[str], marks: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the tokens as lines of HTML; marked tokens are bold and coloured."""
    of = {p: role for role, where in marks.items() for p in where}
    lines, width = [""], 0
    for p, token in enumerate(tokens):
        parts = token.split("\n")
        for i, part in enumerate(parts):
            if i or width + len(part) > _WIDTH:
                lines.append("")
                width = 0
            text = escape(part).replace(" ", "\u00a0")
            colour = _TEXT.get(of[p], _CONTROL) if p in of else ""
            lines[-1] += f'<b><span style="color:{colour}">{text}</span></b>' if colour and part.strip() else text
            width += len(part)
    return lines
