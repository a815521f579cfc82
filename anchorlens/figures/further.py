"""What stands behind the curves: the probe's AUC and the sizes of the pathways by layer, and all roles at a glance as a heatmap."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.labels import PANEL, anchor_rank, panel_titles
from anchorlens.figures.layout import FRAME, INK
from anchorlens.figures.table import CurveResults, by_dataset, gather
from anchorlens.figures.theme import in_theme
from anchorlens.vocabulary import AUC, SIZE, P

_NO_INTERVAL = dict.fromkeys(["ci_low", "ci_high", "sim_low", "sim_high"], float("nan"))
_ROW, _AROUND = 26, 118
_PALETTE = "RdBu"


def plot_auc(results: CurveResults, *, title: str | None = None, theme: str = "light", width: int | None = None) -> go.Figure:
    """The AUC of the truth probe by layer, with its interval: where it is near 0.5 a split into pathways is a split by noise.

    Args:
        results: As :func:`~anchorlens.figures.curves.plot_curves` takes them; of a protocol that reads a probe.
        title: First line of the title; None says what is drawn.
        theme: ``light`` or ``dark``.
        width: Pixels; None fills the page or notebook cell.

    Returns:
        A plotly figure; a line at 0.5 is what guessing gives.

    Raises:
        InputError: no probe was read.
    """
    points = gather(results, controls=False)
    own = points[points["auc"].notna() & ~points["pathway"].isin(["Q-Anchored", "A-Anchored"])]
    if own.empty:
        raise InputError("These results hold no AUC: no probe was read. Draw them with plot_curves.")
    made = own.assign(
        **_NO_INTERVAL | {"ci_low": own["auc_low"], "ci_high": own["auc_high"]}, delta_p=own["auc"], quantity=AUC, signal=True
    )
    figure = plot_curves(_labelled(made), quantity=AUC, controls=False, title=title, theme=theme, width=width)
    figure.update_yaxes(range=[min(0.4, float(own["auc_low"].min()) - 0.02), 1.02], zeroline=False)
    figure.add_hline(0.5, line={"color": "#888888", "width": 1.5}, layer="below")
    return figure


def plot_sizes(
    results: CurveResults, *, title: str | None = None, theme: str = "light", width: int | None = None
) -> go.Figure:
    """How many questions stand behind each pathway at each layer.

    Args:
        results: As :func:`~anchorlens.figures.curves.plot_curves` takes them; of a protocol with pathways.
        title: First line of the title; None says what is drawn.
        theme: ``light`` or ``dark``.
        width: Pixels; None fills the page or notebook cell.

    Returns:
        A plotly figure.

    Raises:
        InputError: the results have no pathways.
    """
    points = gather(results, controls=False)
    own = points[points["pathway"].isin(["Q-Anchored", "A-Anchored"])]
    if own.empty:
        raise InputError("These results have no pathways. Draw them with plot_curves.")
    made = own.assign(**_NO_INTERVAL, delta_p=own["n"], quantity=SIZE, noise_floor=float("nan"))
    return plot_curves(_labelled(made), quantity=SIZE, controls=False, title=title, theme=theme, width=width)


def plot_heatmap(
    results: CurveResults, *, quantity: str = P, title: str | None = None, theme: str = "light", width: int | None = None
) -> go.Figure:
    """ΔP by layer and role (anchor, or pathway where there are pathways), a panel for each model and data set, one colour scale.

    A heatmap has no intervals: what it shows is read off, with its band, in :func:`~anchorlens.figures.curves.plot_curves`.

    Args:
        results: As :func:`~anchorlens.figures.curves.plot_curves` takes them.
        quantity: ``p`` for ΔP, or another quantity of the results.
        title: First line of the title; None says what is drawn.
        theme: ``light`` or ``dark``.
        width: Pixels; None fills the page or notebook cell.

    Returns:
        A plotly figure, ΔP in percentage points (or the quantity in its own unit).

    Raises:
        InputError: no such quantity.
    """
    points = by_dataset(gather(results, controls=False, quantity=quantity))
    points["role"] = points["pathway"].where(points["pathway"] != "", points["anchor"])
    panels = panel_titles(points)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    most = int(points.groupby(PANEL)["role"].nunique().max())
    inner = rows * (_ROW * most + 20) + (rows - 1) * 80
    figure = make_subplots(
        rows=rows, cols=columns, subplot_titles=list(panels.values()), horizontal_spacing=0.16 if columns > 1 else 0,
        vertical_spacing=80 / inner if rows > 1 else 0,
    )  # fmt: skip
    for k, key in enumerate(panels):
        own = points[(points[PANEL] == list(key)).all(axis=1)]
        wide = own.groupby(["role", "layer"])["delta_p"].mean().unstack("layer")
        order = sorted(wide.index, key=lambda role: (anchor_rank(role), role != "Q-Anchored", role))
        wide = wide.loc[order[::-1]]
        hover = "%{y}, layer %{x}<br>%{z:.2f} points<extra></extra>"
        cells = go.Heatmap(
            x=wide.columns.tolist(), y=wide.index.tolist(), z=wide.to_numpy(), coloraxis="coloraxis", hovertemplate=hover
        )
        figure.add_trace(cells, row=k // columns + 1, col=k % columns + 1)
    largest = float(points["delta_p"].abs().max()) or 1.0
    figure.update_xaxes(title={"text": "Layer", "standoff": 6}, tickformat="d", **FRAME | {"showgrid": False})
    figure.update_yaxes(**FRAME | {"showgrid": False, "ticks": ""}, automargin=True)
    figure.update_layout(
        template="plotly_white", font={"size": 12, "color": INK}, paper_bgcolor="white", plot_bgcolor="white",
        title={"text": f"<b>{title or 'ΔP by layer and role'}</b>", "x": 0.02, "font": {"size": 17}},
        height=inner + _AROUND + 30, width=width, margin={"t": 86, "b": 62, "l": 40, "r": 20},
        coloraxis={"colorscale": _PALETTE, "cmin": -largest, "cmax": largest, "cmid": 0, "colorbar": {"title": {"text": "ΔP"}}},
    )  # fmt: skip
    return in_theme(figure, theme)


def _labelled(points: pd.DataFrame) -> Any:
    """The points under the labels that they came with."""
    parts = {str(part): rows for part, rows in points.groupby("part", sort=False)}
    return points if list(parts) == [""] else parts


__all__ = ["plot_auc", "plot_heatmap", "plot_sizes"]
