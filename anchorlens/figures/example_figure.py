"""Plot one example: tokens with their roles, and the effect by layer."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import plotly.graph_objects as go

from anchorlens.figures.labels import anchor_colours
from anchorlens.figures.notebook_figure import NotebookFigure
from anchorlens.results.example_view import ROLES, Row, example_rows
from anchorlens.results.sweep import SweepResult

# Text colours of marked tokens; other roles are controls.
_TEXT = {"subject": "#0550ae", "property": "#1a7f37", "answer": "#bc4c00", "pre_answer": "#a0287a"}
_CONTROL = "#6e7781"
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
_DASHES = (
    "solid",
    "dash",
    "longdashdot",
)
# A control has the open symbol of its anchor; several controls differ in dash and symbol.
_CONTROL_DASHES = ("dot", "dashdot", "longdash")
_CONTROL_SYMBOLS = ("-open", "-open-dot", "-dot")
_WIDTH = 90


def plot_example(result: SweepResult, example: str | int) -> go.Figure:
    """Plot one example of a sweep: its curves below its tokens.

    Args:
        result: Sweep that measured the example.
        example: Id, index or words of the question, as in
            :meth:`~anchorlens.SweepResult.plot_example`.

    Raises:
        InputError: If no measured example matches, or several.
    """
    (row,) = example_rows(
        result.samples(all_columns=True),
        result.examples(all_columns=True),
        result.anchors,
        result.layers,
        [result.id_of(example)],
    )
    colours = anchor_colours(result.dataset, result.protocol.name, result.anchors)
    heading = f"{result.model} on {result.dataset}"
    return _figure_of_row(row, result.layers, heading, colours)


def _figure_of_row(
    row: Row, layers: Sequence[int], heading: str, colours: Mapping[str, str]
) -> go.Figure:
    figure = NotebookFigure()
    anchors = [name for name in row["curves"] if ", " not in name]
    controls = list(dict.fromkeys(name.partition(", ")[2] for name in row["curves"]))
    controls.remove("")
    for name, values in row["curves"].items():
        anchor, _, control = name.partition(", ")
        at = anchors.index(anchor) if anchor in anchors else len(anchors)
        colour = colours.get(anchor, _CONTROL)
        symbol = _SYMBOLS[at % len(_SYMBOLS)]
        dash = _DASHES[at % len(_DASHES)]
        if control:
            number = controls.index(control)
            symbol += _CONTROL_SYMBOLS[number % len(_CONTROL_SYMBOLS)]
            dash = _CONTROL_DASHES[number % len(_CONTROL_DASHES)]
        look = {
            "color": colour,
            "dash": dash,
            "width": 1.2 if control else 2.2,
        }
        figure.add_scatter(
            x=list(layers),
            y=values,
            name=escape(name),
            mode="lines+markers",
            line=look,
            connectgaps=False,
            marker={"symbol": symbol, "size": 7, "color": colour},
            opacity=0.75 if control else 1,
            legendgroup=escape(anchor),
        )
    lines = _tokens(row["tokens"], row["marks"])
    facts = [
        row["label"] and f"answer {row['label']}",
        row["pathway"],
        f"{row['metric']} before {row['before']:.3f}",
    ]
    subtitle = " · ".join([*(escape(fact) for fact in facts if fact), _colour_key(row["marks"])])
    title = [
        f"<b>{escape(heading)}</b> {escape(row['id'])}",
        *lines,
        f'<span style="font-size:11px">{subtitle}</span>',
    ]
    figure.update_layout(
        title={
            "text": "<br>".join(title),
            "font": {"size": 13},
            "x": 0.02,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 14},
        },
        margin={"t": 24 + 18 * len(title), "l": 60, "r": 20, "b": 50},
        height=340 + 18 * len(title),
        xaxis={"title": {"text": "Layer"}, "zeroline": False},
        yaxis={
            "title": {"text": escape(f"{row['change']} ({row['unit']})")},
            "zerolinecolor": "#888888",
        },
        template="plotly_white",
        showlegend=True,
        legend={"groupclick": "toggleitem"},
    )
    return figure


def _colour_key(roles: Iterable[str]) -> str:
    """Return the display names of roles as HTML, in their colours."""
    names: list[str] = []
    for role in roles:
        colour = _TEXT.get(role, _CONTROL)
        names.append(f'<span style="color:{colour}">{escape(ROLES[role])}</span>')
    return " · ".join(names)


def _tokens(tokens: Sequence[str], marks: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the tokens as lines of HTML; marked tokens are bold and coloured."""
    of: dict[int, str] = {}
    for role, where in marks.items():
        of |= dict.fromkeys(where, role)
    lines = [""]
    width = 0
    for p, token in enumerate(tokens):
        parts = token.split("\n")
        for i, part in enumerate(parts):
            if i or width + len(part) > _WIDTH:
                lines.append("")
                width = 0
            text = escape(part).replace(" ", "\u00a0")
            colour = _TEXT.get(of[p], _CONTROL) if p in of else ""
            lines[-1] += (
                f'<b><span style="color:{colour}">{text}</span></b>'
                if colour and part.strip()
                else text
            )
            width += len(part)
    return lines
