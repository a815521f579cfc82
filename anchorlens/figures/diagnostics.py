"""Diagnostic figures: the probe's AUC and the sizes of the pathways by layer, and a heatmap of all
roles.
"""

from html import escape
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anchorlens.constants import AUC, SIZE
from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.labels import PANEL, anchor_rank, panel_titles
from anchorlens.figures.layout import FRAME, INK, NOT_MEASURED, UNUSED_BUTTONS
from anchorlens.figures.notebook_figure import NotebookFigure
from anchorlens.figures.palette import in_theme
from anchorlens.figures.table import Results, by_dataset, gather
from anchorlens.loading.load_run import results_of
from anchorlens.results.vocabulary import metric_labels

_NO_INTERVAL = dict.fromkeys(["ci_low", "ci_high", "sim_low", "sim_high"], float("nan"))
_ROW = 26
_AROUND = 118
_LEAST_BAR = 170
_PALETTE = "RdBu"


def plot_probe_auc(
    results: Results,
    *,
    title: str | None = None,
    theme: str = "light",
    width: int | None = None,
) -> go.Figure:
    """Plot the AUC of the truth probe by layer with its 95 % interval, and a line at 0.5 (chance).

    Where the AUC is near 0.5, the split into pathways is noise. Arguments as in
    :func:`~anchorlens.figures.curves.plot_curves`.

    Examples:
        >>> import anchorlens as al
        >>> al.plot_probe_auc("runs/knockout").show()  # doctest: +SKIP

    Raises:
        InputError: If the results have no probe.
    """
    points = gather(results_of(results), controls=False)
    own = points[points["auc"].notna() & ~points["pathway"].isin(["Q-Anchored", "A-Anchored"])]
    if own.empty:
        raise InputError("The results have no AUC, because no probe was read. Use plot_curves.")
    ends = _NO_INTERVAL | {"ci_low": own["auc_low"], "ci_high": own["auc_high"]}
    made = own.assign(**ends, effect=own["auc"], metric=AUC, probe_above_chance=True)
    figure = plot_curves(
        _with_labels(made), metric=AUC, controls=False, title=title, theme=theme, width=width
    )
    figure.update_yaxes(range=[min(0.4, float(own["auc_low"].min()) - 0.02), 1.02], zeroline=False)
    figure.add_hline(0.5, line={"color": "#888888", "width": 1.5}, layer="below")
    return figure


def plot_pathway_sizes(
    results: Results,
    *,
    title: str | None = None,
    theme: str = "light",
    width: int | None = None,
) -> go.Figure:
    """Plot the number of questions of each pathway by layer.

    Arguments as in :func:`~anchorlens.figures.curves.plot_curves`.

    Examples:
        >>> import anchorlens as al
        >>> al.plot_pathway_sizes("runs/knockout").show()  # doctest: +SKIP

    Raises:
        InputError: If the results have no pathways.
    """
    points = gather(results_of(results), controls=False)
    own = points[points["pathway"].isin(["Q-Anchored", "A-Anchored"])]
    if own.empty:
        raise InputError("The results have no pathways. Use plot_curves.")
    made = own.assign(**_NO_INTERVAL, effect=own["n"], metric=SIZE, noise_floor=float("nan"))
    return plot_curves(
        _with_labels(made), metric=SIZE, controls=False, title=title, theme=theme, width=width
    )


def plot_role_heatmap(
    results: Results,
    *,
    metric: str | None = None,
    title: str | None = None,
    theme: str = "light",
    width: int | None = None,
) -> go.Figure:
    """Plot ΔP by layer and role (pathway, else anchor) as a heatmap, one panel per model and data
    set, with one colour scale.

    ΔP is in percentage points, other metrics are in their unit. Arguments as in
    :func:`~anchorlens.figures.curves.plot_curves`, which also draws intervals.

    Raises:
        InputError: If there is no point, or the metric is unknown.
    """
    points = by_dataset(gather(results, controls=False, metric=metric))
    points["role"] = points["pathway"].where(points["pathway"] != "", points["anchor"])
    panels = panel_titles(points)
    labels = metric_labels(points)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    most = int(points.groupby(PANEL)["role"].nunique().max())
    inner = rows * (_ROW * most + 20) + (rows - 1) * 80
    figure = make_subplots(
        figure=NotebookFigure(),
        rows=rows,
        cols=columns,
        subplot_titles=list(panels.values()),
        horizontal_spacing=0.16 if columns > 1 else 0,
        vertical_spacing=80 / inner if rows > 1 else 0,
    )
    for k, key in enumerate(panels):
        own = points[(points[PANEL] == list(key)).all(axis=1)]
        wide = own.pivot_table(index="role", columns="layer", values="effect", dropna=False)
        place = own.groupby("role")["position"].min().fillna(-1)
        order = sorted(
            wide.index,
            key=lambda role: (anchor_rank(role), role != "Q-Anchored", place[role], role),
        )
        layers = range(
            int(wide.columns.min()), int(wide.columns.max()) + 1
        )  # layers that were not measured are grey
        wide = wide.reindex(index=order[::-1], columns=layers)
        cells = go.Heatmap(
            x=wide.columns.tolist(),
            y=[escape(role, quote=False) for role in wide.index],
            z=wide.to_numpy(),
            coloraxis="coloraxis",
            hovertemplate="%{y}, layer %{x}<br>%{z:.2f}"
            + escape(labels.unit, quote=False)
            + "<extra></extra>",
        )
        figure.add_trace(cells, row=k // columns + 1, col=k % columns + 1)
    largest = float(points["effect"].abs().max()) or 1.0
    rows_are = "position" if points["position"].notna().any() else "anchor"
    if (points["pathway"] != "").any():
        rows_are = "pathway"
    default = escape(f"{labels.name} by layer and {rows_are}", quote=False)
    figure.update_xaxes(
        title={"text": "Layer", "standoff": 6}, tickformat="d", **FRAME | {"showgrid": False}
    )
    figure.update_yaxes(**FRAME | {"showgrid": False, "ticks": ""}, automargin=True)
    figure.update_layout(
        template="plotly_white",
        font={"size": 12, "color": INK},
        paper_bgcolor="white",
        plot_bgcolor=NOT_MEASURED,
        modebar={"remove": UNUSED_BUTTONS},
        title={"text": f"<b>{title or default}</b>", "x": 0.02, "font": {"size": 17}},
        height=inner + _AROUND + 30,
        width=width,
        margin={"t": 86, "b": 62, "l": 40, "r": 20},
        coloraxis={
            "colorscale": _PALETTE,
            "cmin": -largest,
            "cmax": largest,
            "cmid": 0,
            "colorbar": {
                "title": {"text": escape(labels.axis, quote=False)},
                "lenmode": "pixels",
                "len": max(_LEAST_BAR, inner),  # so that its ticks do not touch
            },
        },
    )
    return in_theme(figure, theme)


def _with_labels(points: pd.DataFrame) -> Any:
    """Return the points by label; without labels, the table."""
    parts = {str(part): rows for part, rows in points.groupby("part", sort=False)}
    return points if list(parts) == [""] else parts
