"""Heatmap of a grid of activation patches: layer by position, segment or head, one panel per sweep, with a slider over the pairs."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anchorlens.errors import InputError
from anchorlens.figures.layout import FRAME, INK, SLIDER
from anchorlens.figures.palette import in_theme

MEAN = "mean"
Grid: TypeAlias = Any
"""Values of a pair or of the mean over pairs, [layer place]: a ``PatchGrid`` of the patch protocol."""
# Pairs of the slider besides the mean; a page of more would be slow.
_MOST_PAIRS = 100
_AXIS_TITLES = {
    "position": "Token of the patched prompt (of the source where it differs)", "segment": "Segment", "layer": "Positions",
    "head": "Head", "head_position": "Token",
}  # fmt: skip
_ROW, _LEAST_INNER, _MOST_INNER, _AROUND = 14, 260, 900, 230
_OUTLINE = {"color": INK, "width": 1.6}
_WIDEST_LABEL, _MOST_ROW_LABELS = 14, 40
# Label of a column whose tokens differ between the pairs of a mean.
_DIFFERENT = "*"


@runtime_checkable
class GridResult(Protocol):
    """Result that has a grid for each pair and for their mean."""

    @property
    def example_ids(self) -> tuple[str, ...]:
        """Ids of the pairs."""
        ...

    @property
    def record(self) -> dict[str, Any]:
        """Record of the sweep, as in run.json."""
        ...

    @property
    def no_mean(self) -> str:
        """Reason why there is no mean over pairs; empty if there is one."""
        ...

    def grid(self, pair: "str | int" = MEAN, quantity: str = "effect", control: str = "none") -> Any:
        """Return the grid of one pair or of the mean over pairs."""
        ...


def plot_grids(
    results: Sequence[GridResult], *, pair: "str | int | None" = None, quantity: str = "effect", control: str = "none",
    title: str | None = None, theme: str = "light", width: int | None = None,
) -> go.Figure:  # fmt: skip
    """Plot grids of activation patches as heatmaps side by side, with one diverging colour scale centred at 0.

    Cells whose mean effect stands are outlined. A slider shows the mean over pairs and each pair.

    Args:
        results: Patch sweeps of the same pairs, for example of three sites.
        pair: Id, index or words of a pair, or ``mean``: draws this grid without a slider. If None, the mean and a slider over the
            pairs; the first pair where there is no mean.
        quantity: ``effect``, ``value_after`` or ``recovered_share``.
        control: ``none``, ``other_pair`` or ``norm_matched``.
        title: Title; metric and site if None.
        theme: ``light`` or ``dark``.
        width: Width in pixels; that of the page if None.

    Raises:
        InputError: If there is no result, no such pair, quantity or control, or the sweeps have different pairs.
    """
    if not results:
        raise InputError("results: empty. Give a patch sweep, or several.", argument="results")
    if len({one.example_ids for one in results}) > 1:
        raise InputError("results: the sweeps have different pairs. Draw each alone.", argument="results")
    has_mean = not any(one.no_mean for one in results)
    names: list[str | int] = [pair] if pair is not None else [*([MEAN] if has_mean else []), *results[0].example_ids[:_MOST_PAIRS]]
    if pair is None and len(results[0].example_ids) == 1:
        names = names[-1:]
    by_name = {name: [one.grid(name, quantity, control) for one in results] for name in names}
    shown = by_name[names[0]]
    figure = make_subplots(
        cols=len(results), subplot_titles=[_panel_title(one) for one in results] if len(results) > 1 else None, shared_yaxes=True,
        horizontal_spacing=0.02,
    )  # fmt: skip
    for column, (result, grid) in enumerate(zip(results, shown, strict=True), start=1):
        for trace in _traces(grid, result):
            figure.add_trace(trace, row=1, col=column)
        figure.update_xaxes(_ticks(grid, result), row=1, col=column)
        figure.update_yaxes(_row_ticks(grid, result), row=1, col=column)
    if len(results) > 1:  # the long title would run into the next panel's
        figure.update_xaxes(title={"text": str(results[0].record["config"]["by"]).replace("_", " and ").capitalize()})
    inner = min(
        _MOST_INNER,
        max(_LEAST_INNER, _ROW * max(len(grid.layers) * _n_rows(grid, one) for grid, one in zip(shown, results, strict=True))),
    )
    heading = title or _heading(results, quantity)
    figure.update_yaxes(autorange="reversed", automargin=True, zeroline=False, **FRAME | {"showgrid": False})
    figure.update_yaxes(title={"text": "Layer", "standoff": 6}, col=1)
    has_slider = len(names) > 1
    figure.update_layout(
        template="plotly_white", font={"size": 12, "color": INK}, paper_bgcolor="white", plot_bgcolor="white", showlegend=False,
        title={"text": _title(heading, shown[0], results[0]), "x": 0.02, "font": {"size": 16}},
        height=inner + _AROUND + SLIDER * has_slider, width=width, coloraxis=_colours(shown),
        margin={"t": 92, "b": 110 + SLIDER * has_slider, "l": 60, "r": 20}, meta={"caption": _caption(results, shown, quantity)},
    )  # fmt: skip
    if has_slider:
        steps = [_step(str(name), grids, results, heading) for name, grids in by_name.items()]
        figure.update_layout(
            sliders=[
                {
                    "steps": steps, "active": 0, "pad": {"t": 78},
                    # The font of the steps is transparent.
                    "currentvalue": {"prefix": "Pair: ", "font": {"size": 12, "color": INK}},
                    "ticklen": 2, "font": {"size": 9, "color": "rgba(0,0,0,0)"},
                }
            ]
        )  # fmt: skip
    return in_theme(figure, theme)


def _colours(grids: Sequence[Grid]) -> dict[str, Any]:
    largest = max((float(np.nanmax(np.abs(grid.values))) for grid in grids if np.isfinite(grid.values).any()), default=0.0) or 1.0
    return {
        "colorscale": "RdBu", "cmin": -largest, "cmax": largest, "cmid": 0,
        "colorbar": {"title": {"text": escape(grids[0].unit, quote=False)}, "thickness": 14},
    }  # fmt: skip


def _panel_title(result: GridResult) -> str:
    return escape(str(result.record["config"]["site"]), quote=False)


def _heading(results: Sequence[GridResult], quantity: str) -> str:
    config = results[0].record["config"]
    names = {"effect": "Change of {}", "value_after": "{}", "recovered_share": "Recovered share of {}"}
    direction = "clean into corrupted" if config["direction"] == "denoising" else "corrupted into clean"
    site = f", {config['site']}" if len(results) == 1 else ""
    return f"{names[quantity].format(_metric(config))}, {direction}{site}"


def _metric(config: Mapping[str, Any]) -> str:
    """Return the name of the metric; of a function of the user, its own."""
    return str(config["metric"]).removeprefix("callable:")


def _groups(grid: Grid) -> str:
    return f"{grid.n} group{'' if grid.n == 1 else 's'} of pairs"


def _caption(results: Sequence[GridResult], grids: Sequence[Grid], quantity: str) -> str:
    """Return what was patched and measured, and the meaning of colours and outlines."""
    config, grid = results[0].record["config"], grids[0]
    metric = _metric(config)
    source, target = ("clean", "corrupted") if config["direction"] == "denoising" else ("corrupted", "clean")
    what = {
        "effect": f"{metric} after the patch minus before",
        "value_after": f"{metric} after the patch",
        "recovered_share": f"share of the difference of {metric} between corrupted (0) and clean (1) run",
    }[quantity]
    sites = " and ".join(str(one.record["config"]["site"]) for one in results)
    places = str(config["by"]).replace("head_position", "head and position")
    shown = f"Mean over {_groups(grid)}" if grid.pair == MEAN else f"Pair {grid.pair}"
    parts = [
        f"Activations of {sites} of the {source} prompt are patched into the {target} prompt, at one layer and {places} at a time.",
        f"{shown}: {what}{f' ({grid.unit})' if grid.unit else ''}. The colour scale is centred at 0.",
    ]
    if any(one.stands.any() for one in grids):
        parts.append("Outlined cells stand: their simultaneous band over the grid excludes 0, also less each control.")
    return " ".join([*parts, *([grid.note] if grid.note else [])])


def _title(heading: str, grid: Grid, result: GridResult) -> str:
    record = result.record
    parts = [f"{record['model']['name']} on {record['data']['name']}"]
    parts.append(f"mean over {_groups(grid)}" if grid.pair == MEAN else f"pair {grid.pair}")
    if grid.stands.any():
        parts.append("outlined: cells that stand")
    if grid.pair == MEAN and any(_DIFFERENT in tokens for _, *tokens in _columns(grid, result)):
        parts.append(f"{_DIFFERENT}: tokens that differ between pairs")
    if grid.note:
        parts.append(grid.note)
    about = escape("; ".join(parts), quote=False)
    return f'<b>{escape(heading, quote=False)}</b><br><span style="font-size:12px;color:#555555">{about}</span>'


def _is_by_head_and_position(result: GridResult) -> bool:
    return result.record["config"]["by"] == "head_position"


def _n_rows(grid: Grid, result: GridResult) -> int:
    """Return the number of rows of one layer: of head and position the number of heads."""
    return len(_heads(grid)) if _is_by_head_and_position(result) else 1


def _heads(grid: Grid) -> list[str]:
    return list(dict.fromkeys(place.split(" ")[1] for place in grid.places))


def _table(grid: Grid, result: GridResult, cells: Any) -> Any:
    """Return cells [layer place] as rows and columns of the figure; of head and position [(layer head) position]."""
    if not _is_by_head_and_position(result):
        return cells
    columns = list(dict.fromkeys(place.split(" ")[0] for place in grid.places))
    heads, out = _heads(grid), np.full((len(grid.layers), len(_heads(grid)), len(columns)), np.nan)
    for i, place in enumerate(grid.places):
        column, head = place.split(" ")
        out[:, heads.index(head), columns.index(column)] = cells[:, i]
    return out.reshape(-1, len(columns))


def _rows(grid: Grid, result: GridResult) -> list[str]:
    if not _is_by_head_and_position(result):
        return [str(layer) for layer in grid.layers]
    return [f"{layer}.{head.removeprefix('head:')}" for layer in grid.layers for head in _heads(grid)]


def _columns(grid: Grid, result: GridResult) -> list[tuple[str, str, str]]:
    """Return (place, patched token, source token) of each column."""
    is_denoising = result.record["config"]["direction"] == "denoising"
    both = (grid.corrupted_tokens, grid.clean_tokens) if is_denoising else (grid.clean_tokens, grid.corrupted_tokens)
    found = {place.split(" ")[0]: (own, other) for place, own, other in zip(grid.places, *both, strict=True)}
    if not _is_by_head_and_position(result):
        found = dict(zip(grid.places, zip(*both, strict=True), strict=True))
    return [(place, *tokens) for place, tokens in found.items()]


def _ticks(grid: Grid, result: GridResult) -> dict[str, Any]:
    columns = _columns(grid, result)
    labels = [_label(place, own, other) for place, own, other in columns]
    by = str(result.record["config"]["by"])
    angle = -60 if any(len(own) > 2 for _, own, _ in columns) else 0
    return {
        "tickvals": list(range(len(columns))), "ticktext": labels, "tickangle": angle, "automargin": True, "zeroline": False,
        "title": {"text": _AXIS_TITLES.get(by, by), "standoff": 8}, **FRAME, "showgrid": False,
    }  # fmt: skip


def _row_ticks(grid: Grid, result: GridResult) -> dict[str, Any]:
    rows = _rows(grid, result)
    step = max(1, -(-len(rows) // _MOST_ROW_LABELS))
    return {"tickvals": list(range(0, len(rows), step)), "ticktext": rows[::step]}


def _label(place: str, own: str, other: str) -> str:
    if not own and not other:
        return escape(place.removeprefix("head:").removeprefix("pos:"), quote=False)
    token, source = (_visible(text) for text in (own, other))
    return token if own == other else f"<b>{token}</b> ({source})"


def _visible(token: str) -> str:
    """Return a token with visible spaces and line breaks, shortened and safe in plotly's text markup."""
    text = token.replace("\n", "\u21b5").replace(" ", "\u00b7")
    text = text if len(text) <= _WIDEST_LABEL else f"{text[: _WIDEST_LABEL - 1]}\u2026"
    return escape(text, quote=False)


def _hover(grid: Grid, result: GridResult) -> Any:
    columns, rows = _columns(grid, result), _rows(grid, result)
    stands = np.nan_to_num(_table(grid, result, grid.stands.astype(float)))
    values = _table(grid, result, grid.values)
    name = "Layer.head" if _is_by_head_and_position(result) else "Layer"
    texts: list[list[str]] = []
    for i, row in enumerate(rows):
        line: list[str] = []
        for j, (place, own, other) in enumerate(columns):
            tokens = f"<br>patched {_visible(own)}, source {_visible(other)}" if own or other else ""
            value = "not measured" if np.isnan(values[i, j]) else f"{values[i, j]:+.4g} {escape(grid.unit, quote=False)}"
            stand = "<br>stands" if stands[i, j] else ""
            line.append(f"{name} {row}, {escape(place, quote=False)}{tokens}<br>{value}{stand}")
        texts.append(line)
    return texts


def _traces(grid: Grid, result: GridResult) -> list[go.Heatmap | go.Scatter]:
    cells = go.Heatmap(
        z=_table(grid, result, grid.values), y=list(range(len(_rows(grid, result)))), x=list(range(len(_columns(grid, result)))),
        coloraxis="coloraxis", text=_hover(grid, result), hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    x, y = _outline(np.nan_to_num(_table(grid, result, grid.stands.astype(float))) > 0)
    return [cells, go.Scatter(x=x, y=y, mode="lines", line=_OUTLINE, hoverinfo="skip", connectgaps=False)]


def _outline(mask: Any) -> tuple[list[float | None], list[float | None]]:
    """Return the borders of the marked cells as line segments with gaps; rows and columns are counted from 0."""
    x: list[float | None] = []
    y: list[float | None] = []
    padded = np.pad(mask, 1)
    for i, j in np.argwhere(mask):
        for di, dj in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            if not padded[i + 1 + di, j + 1 + dj]:
                ends = ((i + di / 2, j - 0.5), (i + di / 2, j + 0.5)) if di else ((i - 0.5, j + dj / 2), (i + 0.5, j + dj / 2))
                x += [float(ends[0][1]), float(ends[1][1]), None]
                y += [float(ends[0][0]), float(ends[1][0]), None]
    return x, y


def _step(name: str, grids: Sequence[Grid], results: Sequence[GridResult], heading: str) -> dict[str, Any]:
    """Return the step of the slider that shows a pair: values, hover texts, outlines, ticks, title and colour scale."""
    traces = [trace for grid, result in zip(grids, results, strict=True) for trace in _traces(grid, result)]
    data = {
        "z": [_plain(trace.z) if isinstance(trace, go.Heatmap) else None for trace in traces],
        "text": [trace.text if isinstance(trace, go.Heatmap) else None for trace in traces],
        "x": [list(trace.x or ()) for trace in traces],
        "y": [list(trace.y or ()) for trace in traces],
    }
    scale = _colours(grids)
    layout: dict[str, Any] = {f"coloraxis.{end}": scale[end] for end in ("cmin", "cmax")}
    layout["title.text"] = _title(heading, grids[0], results[0])
    for number, (grid, result) in enumerate(zip(grids, results, strict=True), start=1):
        ticks = _ticks(grid, result)
        axis = f"xaxis{number if number > 1 else ''}"
        layout |= {f"{axis}.{key}": ticks[key] for key in ("tickvals", "ticktext", "tickangle")}
    return {"label": name, "method": "update", "args": [data, layout]}


def _plain(values: Any) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in values]
