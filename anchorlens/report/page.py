"""Sweeps as one page that needs no network."""

import json
import os
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import plotly.graph_objects as go
from plotly.io import to_json
from plotly.offline import get_plotlyjs

from anchorlens.display import described
from anchorlens.errors import InputError, RunError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.export import CONFIG, PAGES, arranging, write_file
from anchorlens.figures.palette import THEMES, in_theme
from anchorlens.report import contents
from anchorlens.report.contents import kind_of, name_of
from anchorlens.results.example_view import ROLES, rows_of
from anchorlens.results.sweep import SweepResult
from anchorlens.running.loading import results_of
from anchorlens.runs.provenance import versions


def save_report(
    runs: "SweepResult | str | os.PathLike[str] | Sequence[SweepResult | str | os.PathLike[str]]",
    path: "str | os.PathLike[str]",
    *,
    title: str | None = None,
) -> Path:
    """Write one page with everything about some sweeps.

    It holds verdicts, figures, what was left out and why, every measured row with its tokens and its own curve, and provenance. It
    needs no network: plotly's script (about 5 MB) is inside.

    Args:
        runs: Sweeps, or run directories.
        path: File to write (``.html``).
        title: Heading; if None, one from protocols, models and data sets.

    Returns:
        ``path``.

    Raises:
        InputError: If there is no sweep, or no page can be written there.
        RunError: If a run cannot be read.
    """
    results = _results(runs)
    target = Path(path)
    if target.suffix.lower() not in PAGES:
        raise InputError(f"A report is a page: give a path that ends with .html; got {str(path)!r}.")
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise InputError(f"{target.parent} is no directory to write {target.name} into. Create it first.")
    return write_file(target, render(results, title or _title(results)))


def _results(runs: Any) -> list[SweepResult]:
    single = isinstance(runs, (SweepResult, str, os.PathLike))
    if not single and not isinstance(runs, Sequence):
        raise InputError(f"save_report takes sweeps or run directories; got {described(runs)}.")
    found: list[SweepResult] = results_of([runs] if single else runs)
    if strange := [one for one in found if not isinstance(one, SweepResult)]:
        raise InputError(f"save_report takes sweeps or run directories; got {described(strange[0])} among them.")
    if not found:
        raise InputError("A report needs at least one sweep.")
    twice = next((one.run_id for i, one in enumerate(found) if one.run_id in [other.run_id for other in found[:i]]), None)
    if twice is not None:
        raise RunError(f"The sweep {twice} is there twice: give each run once.")
    return found


def _title(results: Sequence[SweepResult]) -> str:
    models, sets = (list(dict.fromkeys(names)) for names in zip(*((r.model, r.dataset) for r in results), strict=True))
    return f"{', '.join(models)} on {', '.join(sets)}"


def render(results: Sequence[SweepResult], title: str) -> str:
    """Return the page."""
    home = resources.files("anchorlens.report")
    sweeps = [
        {
            "name": name_of(result), "kind": kind_of(result), "of": f"{result.model} on {result.dataset}",
            "findings": result.findings, "table": contents.findings_table(result.findings),
            "settings": result.protocol.settings(result), "facts": contents.facts_of(result),
            "command": contents.command_of(result), "n": len(result.example_ids),
        }
        for result in results
    ]  # fmt: skip
    data = [
        {
            "name": name_of(result), "layers": list(result.layers),
            "rows": rows_of(result.samples(all_columns=True), result.examples(all_columns=True), result.anchors, result.layers),
        }
        for result in results
    ]  # fmt: skip
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((home / "page.html").read_text(encoding="utf8"))
    return template.render(
        title=title, about=contents.about(results), sweeps=sweeps, figures=_figures(results), tables=contents.tables_of(results),
        dropped=contents.dropped_of(results),
        whole=[name_of(result) for result in results if not result.dropped_counts], studies=contents.studies_of(results),
        version=versions()["anchorlens"], data=_embedded({"sweeps": data, "roles": ROLES, "config": CONFIG}), plotly=get_plotlyjs(),
        arranging=arranging("plot"), style=(home / "page.css").read_text(encoding="utf8"),
        script=(home / "page.js").read_text(encoding="utf8"),
    )  # fmt: skip


def _embedded(value: Any) -> str:
    """Return JSON that may stand inside a script element, whatever a question says."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _figures(results: Sequence[SweepResult]) -> list[dict[str, Any]]:
    """Return one figure if all sweeps can share it, else one a sweep, each with a text alternative."""
    try:
        groups = [list(results)]
        made = [_figure(groups[0])]
    except InputError:
        groups = [[result] for result in results]
        made = [_figure(group) for group in groups]
    return [
        {
            "told": _embedded(_in_both_themes(figure)), "height": figure.to_dict()["layout"]["height"],
            "alt": " ".join([f"ΔP by layer: {', '.join(map(name_of, group))}.", *(result.verdict for result in group)]),
        }
        for figure, group in zip(made, groups, strict=True)
    ]  # fmt: skip


def _figure(results: Sequence[SweepResult]) -> go.Figure:
    curves = pd.concat([result.curves(controls=True, all_columns=True) for result in results], ignore_index=True)
    contrasts = [frame for frame in (result.contrasts(all_columns=True) for result in results) if len(frame)]
    return plot_curves(curves, contrast_tables=contrasts)


def _in_both_themes(figure: go.Figure) -> dict[str, Any]:
    """Return a figure as plain values, with the paths and values that change where the page is dark."""
    light, dark = (json.loads(to_json(in_theme(figure, theme)) or "") for theme in THEMES)
    return {**light, "dark": list(_changes(light, dark, []))}


def _changes(old: Any, new: Any, path: list[str | int]) -> Iterator[tuple[list[str | int], Any]]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() <= new.keys():
        for key in new:
            yield from _changes(old.get(key), new[key], [*path, key])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, pair in enumerate(zip(old, new, strict=True)):
            yield from _changes(*pair, [*path, at])
    else:
        yield path, new
