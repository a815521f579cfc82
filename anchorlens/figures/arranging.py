"""The legend and the heading of a finished figure, placed again for another width: what ``page.js`` does in a browser."""

from html import unescape
from typing import Any

import plotly.graph_objects as go

from anchorlens.figures.heading import wrapped
from anchorlens.figures.legend import LETTER, Arrangement, chosen


def arranged(figure: go.Figure, width: int) -> go.Figure:
    """A copy of ``figure`` for so many pixels; one that ``plot_curves`` did not draw comes back as it is."""
    layout: Any = figure.layout  # plotly's types allow for figures that have none
    plan: dict[str, Any] | None = (layout.meta or {}).get("anchorlens")
    if plan is None:
        return figure
    made = go.Figure(figure)
    traces: list[Any] = list(made.select_traces())
    room = width - layout.margin.l - layout.margin.r
    legends = plan["legends"]
    letters = max(len(unescape(traces[k].name)) for legend in legends for k in legend["traces"])
    ways = [Arrangement(way["columns"], tuple(way["ranks"])) for way in legends[-1]["ways"]]
    way, size = chosen(ways, letters, room)
    lines = [line for parts in plan["parts"] for line in wrapped(parts, int(room / LETTER))]
    heading = [*([plan["first"]] if plan["first"] else []), *(line.join(plan["next"]) for line in lines)]
    rows = [-(-len(legend["traces"]) // way.columns) * plan["row"] + plan["pad"] for legend in legends]
    top, bottom = plan["top"] + plan["line"] * len(heading), plan["below"] + sum(rows)
    height = top + plan["inner"] + bottom if plan["inner"] else layout.height
    below = 0
    for legend, pixels in zip(legends, rows, strict=True):
        look = {"y": below / height, "entrywidth": 1 / way.columns, "font": {"size": size}}
        made.update_layout({legend["name"]: look})
        for k, rank in zip(legend["traces"], legend["ways"][ways.index(way)]["ranks"], strict=True):
            traces[k].legendrank = rank + 1
        below += pixels
    return made.update_layout(title={"text": "<br>".join(heading)}, margin={"t": top, "b": bottom}, height=height, width=width)
