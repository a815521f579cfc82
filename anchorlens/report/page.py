"""Write a report: sweeps as one HTML page that needs no network."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
from plotly.io import to_json
from plotly.offline import get_plotlyjs

from anchorlens.display import minus, short_repr
from anchorlens.errors import InputError, RunError
from anchorlens.figures.choose_figure import report_figures
from anchorlens.figures.export import CONFIG, PAGES, caption_of, layout_script, save_file
from anchorlens.figures.palette import THEMES, in_theme
from anchorlens.loading.load_run import results_of
from anchorlens.paths import resolve_path
from anchorlens.progress import waiting
from anchorlens.report import contents
from anchorlens.report.contents import kind_of
from anchorlens.results.example_view import ROLES, example_rows
from anchorlens.results.findings import CLAIMS, NOT_DETECTED, NULL_MOVES, REVERSED
from anchorlens.results.sweep import SweepResult
from anchorlens.results.vocabulary import row_words
from anchorlens.runs.provenance import versions


def save_report(
    runs: "SweepResult | str | os.PathLike[str] | Sequence[SweepResult | str | os.PathLike[str]]",
    path: "str | os.PathLike[str]",
    *,
    title: str | None = None,
    progress: bool = True,
) -> Path:
    """Save an HTML report of sweeps.

    The page holds verdicts, figures, dropped rows with reasons, every measured row with its tokens
    and curve, and provenance. It needs no network, because it contains plotly's script (about 5
    MB).

    Args:
        runs: Sweeps, or run directories.
        path: File to write, ending with ``.html``; an existing file is replaced.
        title: Heading of the page. If None, models and data sets.
        progress: Whether to name work that lasts longer than two seconds.

    Returns:
        The file, as an absolute path.

    Raises:
        InputError: If there is no sweep, or ``path`` cannot be written.
        RunError: If a run cannot be read, or a sweep is given twice.

    Examples:
        >>> import anchorlens as al
        >>> al.save_report(["runs/swap", "runs/knockout"], "report.html")  # doctest: +SKIP
    """
    target = resolve_path(path, "path", "a file")
    if target.suffix.lower() not in PAGES:
        raise InputError(
            f"path={str(path)!r}: a report is an HTML page. Give a path that ends with .html.",
            argument="path",
        )
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(
            f"path={str(path)!r}: no directory {target.parent} to write into. Create it first.",
            argument="path",
        )
    with waiting("report: reading runs", show=progress):
        results = _results(runs)
    with waiting("report: findings, figures and rows", show=progress):
        return save_file(target, render(results, title or _title(results)))


def _results(runs: Any) -> list[SweepResult]:
    single = isinstance(runs, (SweepResult, str, os.PathLike))
    if not single and not isinstance(runs, Sequence):
        raise InputError(
            f"runs={short_repr(runs)}: save_report takes sweeps or run directories.",
            argument="runs",
        )
    sweeps: list[SweepResult] = results_of([runs] if single else runs)
    for one in sweeps:
        if not isinstance(one, SweepResult):
            raise InputError(
                f"runs: save_report takes sweeps or run directories; got {short_repr(one)}.",
                argument="runs",
            )
    if not sweeps:
        raise InputError("runs: a report needs at least one sweep.", argument="runs")
    for run_id, n in Counter(sweep.run_id for sweep in sweeps).items():
        if n > 1:
            raise RunError(f"The sweep {run_id} is there twice. Give each run once.")
    return sweeps


def _title(results: Sequence[SweepResult]) -> str:
    models = dict.fromkeys(result.model for result in results)
    sets = dict.fromkeys(result.dataset for result in results)
    return f"{', '.join(models)} on {', '.join(sets)}"


def render(results: Sequence[SweepResult], title: str) -> str:
    """Return the HTML page."""
    home = resources.files("anchorlens.report")
    names = contents.names_of(results)
    sets = [result.dataset for result in results]
    pairs = list(zip(results, names, strict=True))
    data = [_rows_of(*both, sets) for both in pairs]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["minus"] = minus
    figures = _figures(results)
    template = environment.from_string((home / "page.html").read_text(encoding="utf8"))
    return template.render(
        title=title,
        about=contents.about(results),
        sweeps=[_summary_of(*both) for both in pairs],
        figures=figures,
        words=contents.words_of(results, [figure["caption"] for figure in figures]),
        claim_statuses=CLAIMS,
        statuses=(*CLAIMS, NOT_DETECTED, NULL_MOVES, REVERSED),
        reversed_status=REVERSED,
        tables=contents.tables_of(results),
        claims=contents.claims_table(results),
        dropped=contents.count_drops(results),
        studies=contents.studies_of(results),
        complete=[name for result, name in pairs if not result.dropped_counts],
        axis="edge" if all(result.has_edges for result in results) else "layer",
        metric=_common_name(data, "metric", "value"),
        change=_common_name(data, "change", "effect"),
        texts=_heads_of_texts(results),
        version=versions()["anchorlens"],
        data=_embed_json({"sweeps": data, "roles": ROLES, "config": CONFIG}),
        plotly=get_plotlyjs(),
        layout_script=layout_script("plot"),
        style=(home / "page.css").read_text(encoding="utf8"),
        script=(home / "page.js").read_text(encoding="utf8"),
    )


def _summary_of(result: SweepResult, name: str) -> dict[str, Any]:
    """Return the section of one sweep in the page."""
    return {
        "name": name,
        "kind": kind_of(result),
        "of": name.partition(": ")[2],
        "findings": result.findings,
        "table": contents.findings_table(result.findings),
        "settings": result.protocol.settings(result),
        "facts": contents.provenance_by_section(result),
        "command": contents.command_of(result),
        "n": len(result.example_ids),
    }


def _rows_of(result: SweepResult, name: str, sets: Sequence[str]) -> dict[str, Any]:
    """Return the measured rows of one sweep, with tokens, curves and their colours, for the page's
    script.
    """
    samples = result.samples(all_columns=True)
    anchors = result.leading_anchors
    rows = example_rows(
        samples[samples["anchor"].isin(anchors)],
        result.examples(all_columns=True),
        anchors,
        result.layers,
    )
    return {
        "name": name,
        "layers": list(result.layers),
        "rows": rows,
        "colours": contents.colours_of(result, anchors, sets),
    }


def _common_name(data: Sequence[dict[str, Any]], key: str, otherwise: str) -> str:
    """Return the name that all rows of all sweeps have under a key, else a general one."""
    names: set[str] = set()
    for sweep in data:
        names.update(str(row[key]) for row in sweep["rows"])
    return names.pop() if len(names) == 1 else otherwise


def _heads_of_texts(results: Sequence[SweepResult]) -> dict[str, str]:
    """Return the heads of the columns of questions and answers; a pair shows its patched prompt
    beside the answer of the clean one.
    """
    words = {row_words(result.protocol.name).text for result in results}
    if words == {"prompt"}:
        return {"text": "patched prompt", "answer": "answer of the metric"}
    return {
        "text": "question" if words == {"question"} else "question or prompt",
        "answer": "answer",
    }


def _embed_json(value: Any) -> str:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _figures(results: Sequence[SweepResult]) -> list[dict[str, Any]]:
    """Return the figures that show all sweeps, each with a text alternative."""
    found: list[dict[str, Any]] = []
    for figure, group, kind, text in report_figures(results):
        names = ", ".join(contents.names_of(group))
        axis = "edge" if all(result.has_edges for result in group) else "layer"
        verdicts = [result.verdict for result in group]
        subject = "Circuit" if kind == "circuit" else f"Effect by {axis}"
        found.append(
            {
                "json": _embed_json(_in_both_themes(figure)),
                "height": figure.to_dict()["layout"]["height"],
                "caption": caption_of(figure),
                "alt": " ".join([f"{subject}: {names}.", *verdicts]),
                "kind": kind,
                "text": text,
            }
        )
    return found


def _in_both_themes(figure: go.Figure) -> dict[str, Any]:
    """Return a figure as plain values, with the paths and values that change in the dark theme."""
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
