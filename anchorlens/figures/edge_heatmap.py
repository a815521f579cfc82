"""Heatmap of an edge sweep: senders by receivers."""

from html import escape

import numpy as np
import plotly.graph_objects as go

from anchorlens.display import minus, three_digits
from anchorlens.figures.layout import INK, heatmap_layout, heatmap_title
from anchorlens.figures.notebook_figure import NotebookFigure
from anchorlens.figures.palette import in_theme
from anchorlens.protocols.edges.edge_result import EdgeMatrix, EdgeResult
from anchorlens.protocols.patch.patch_result import MEAN
from anchorlens.results.quick_look import QUICK_NOTE
from anchorlens.results.vocabulary import metric_name, row_words, unit_words

_MOST_LABELS = 46
_TOP = 100
_BOTTOM = 110
_DIRECTIONS = {
    "denoising": "clean contributions into the corrupted run",
    "noising": "corrupted contributions into the clean run",
}
_METHODS = {
    "exact": "exact",
    "attribution": "attribution (change times gradient)",
    "attribution_ig": "attribution (integrated gradients)",
    "attribution_ig_activations": "attribution (integrated gradients over activations)",
}


def plot_edges(
    result: EdgeResult,
    *,
    pair: str | int = MEAN,
    quantity: str = "effect",
    control: str = "none",
    place: str | None = None,
    title: str | None = None,
    theme: str = "light",
    width: int | None = None,
) -> go.Figure:
    """Plot the effects of edges as a heatmap of senders by receivers, with a diverging colour scale
    centred at 0.

    Args:
        result: Edge sweep.
        pair: Id, index or words of a pair, or ``mean``.
        quantity: ``effect``, ``value_after`` or ``recovered_share``.
        control: ``none`` or ``other_pair``.
        place: Place whose contributions are exchanged. If None, that of the largest effect.
        title: Title. If None, made from the result.
        theme: ``light`` or ``dark``.
        width: Width in pixels. If None, that of the page.

    Returns:
        Figure. Edges whose mean effect stands are marked by a dot.

    Raises:
        InputError: If there is no such pair, quantity, control or place.
    """
    name = pair
    if pair == MEAN and result.no_mean:
        name = result.example_ids[0]
    matrix = result.matrix(name, quantity, control, place)
    largest = float(np.nanmax(np.abs(matrix.values))) if np.isfinite(matrix.values).any() else 0.0
    unit = unit_words(matrix.unit)
    figure = NotebookFigure()
    figure.add_trace(
        go.Heatmap(
            z=matrix.values,
            x=list(range(len(matrix.receivers))),
            y=list(range(len(matrix.senders))),
            zmid=0,
            zmin=-(largest or 1.0),
            zmax=largest or 1.0,
            colorscale="RdBu",
            text=_hover(matrix, unit),
            hovertemplate="%{text}<extra></extra>",
            hoverongaps=False,
            colorbar={"title": {"text": escape(unit, quote=False)}, "thickness": 14},
        )
    )
    rows, columns = np.nonzero(matrix.stands)
    figure.add_trace(
        go.Scatter(
            x=columns,
            y=rows,
            mode="markers",
            marker={"color": INK, "size": 5, "symbol": "circle"},
            hoverinfo="skip",
        )
    )
    heading = title or _heading(result, quantity, control)
    figure.update_layout(
        heatmap_layout(
            title=_title(heading, result, matrix),
            caption=_caption(result, matrix, quantity, control),
            n_rows=len(matrix.senders),
            top=_TOP,
            bottom=_BOTTOM,
            left=70,
            width=width,
        )
    )
    figure.update_xaxes(_axis(matrix.receivers, "Receiver"), tickangle=-60)
    figure.update_yaxes(_axis(matrix.senders, "Sender"), range=[len(matrix.senders) - 0.5, -0.5])
    return in_theme(figure, theme)


def _axis(names: tuple[str, ...], title: str) -> dict[str, object]:
    step = max(1, -(-len(names) // _MOST_LABELS))
    return {
        "tickvals": list(range(0, len(names), step)),
        "ticktext": list(names[::step]),
        "automargin": True,
        "zeroline": False,
        "showgrid": False,
        "title": {"text": title, "standoff": 8},
    }


def _hover(matrix: EdgeMatrix, unit: str) -> list[list[str]]:
    texts: list[list[str]] = []
    for i, sender in enumerate(matrix.senders):
        row: list[str] = []
        for j, receiver in enumerate(matrix.receivers):
            value = matrix.values[i, j]
            mark = "<br>stands" if matrix.stands[i, j] else ""
            row.append(
                minus(f"{sender} → {receiver}<br>{three_digits(value)} {escape(unit)}{mark}")
            )
        texts.append(row)
    return texts


def _heading(result: EdgeResult, quantity: str, control: str) -> str:
    metric = metric_name(result.metric)
    what = {"effect": f"Change of {metric}", "recovered_share": f"Recovered share of {metric}"}
    parts = [what.get(quantity, metric) + " by edge"]
    if control != "none":
        parts.append(f"control {control}")
    parts.append(_METHODS[str(result.record["config"]["method"])])
    return ", ".join(parts)


def _title(heading: str, result: EdgeResult, matrix: EdgeMatrix) -> str:
    """Return the heading, a line that names model, data set and pairs, and a line on marks."""
    about = f"{result.model} on {result.dataset}"
    groups = row_words("edges").count(matrix.n)
    about += f"; mean over {groups}" if matrix.pair == MEAN else f"; pair {matrix.pair}"
    if matrix.place != "all":
        about += f"; at {matrix.place}"
    if result.is_quick:
        about += f"; {QUICK_NOTE}"
    marks = ["grey: no edge, or not measured"]
    if matrix.stands.any():
        marks.insert(0, "dots: edges that stand")
    return heatmap_title(heading, [about, "; ".join(marks), result.no_change])


def _caption(result: EdgeResult, matrix: EdgeMatrix, quantity: str, control: str) -> str:
    """Return what was exchanged and measured, and the meaning of colours and marks."""
    config = result.record["config"]
    metric = metric_name(result.metric)
    what = {
        "effect": f"{metric} after the change minus before",
        "value_after": f"{metric} after the change",
    }.get(quantity, f"recovered share of {metric}")
    shown = "Mean over pairs" if matrix.pair == MEAN else f"Pair {matrix.pair}"
    behind = "recomputed" if config["downstream"] == "flow" else "frozen"
    parts = [
        f"Edges of {result.model}: {_DIRECTIONS[str(config['direction'])]}, at the input of one"
        f" receiver; everything behind it is {behind}; method {config['method']}.",
        f"{shown}: {what} ({unit_words(result.unit)}). The colour scale is centred at 0.",
    ]
    if control != "none":
        parts.append(f"Control: {control}.")
    if matrix.stands.any():
        parts.append(
            "Edges with a dot stand: their simultaneous band over all edges excludes 0, also less"
            " the control."
        )
    return minus(" ".join(parts))
