"""``anchorlens figure`` and ``anchorlens report``: a figure or an HTML report from several runs."""

import json
from pathlib import Path
from typing import Any

import click

from anchorlens.constants import LOGIT_DIFF
from anchorlens.errors import InputError, did_you_mean

EPILOG = """\b
Examples:
  anchorlens figure runs/a runs/b --out figure.html
  anchorlens figure runs/a --anchors exact_question --no-controls --out question.html
  anchorlens figure runs/a --bands simultaneous --contrasts auc_drop --out auc.html
  anchorlens figure runs/patch --metric flip --contrasts none --out flips.html
  anchorlens figure runs/a --metric logit_diff --out logits.html
  anchorlens figure runs/qa runs/fewshot --label qa --label fewshot --out both.html
  anchorlens figure runs/a --colour dataset --facet dataset --width 1000 --out figure.pdf
"""

_BANDS_HELP = (
    "95 % intervals: pointwise (for one layer chosen beforehand), simultaneous (over all layers, for statements about which "
    "layers), both (simultaneous outside, paler), or none."
)
_CONTRASTS_HELP = (
    "Panels of contrasts below the curves: all (with a switch), none, or the one to show first: delta_p_vs_placebo, flip_rate, "
    "auc_drop (each minus its placebo), row_specific_vs_placebo, row_specific_effect, p_after, delta_p_minus_null."
)
_COLOUR_HELP = "curve: the published colours. dataset: one hue for each data set, question solid, answer dashed."


@click.command("figure", epilog=EPILOG)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", "-o", default="figure.html", show_default=True, metavar="FILE", help="A .html, .png, .svg or .pdf file.")
@click.option("--label", "labels", multiple=True, metavar="TEXT", help="Label of each run, in order; each run has its own panels.")
@click.option("--title", default=None, help="Title of the figure; protocol and metric if left out.")
@click.option("--anchors", default=None, metavar="A,B", help="Anchors to draw; all if left out.")
@click.option(
    "--metric", default=None, metavar="NAME", help="A metric of the runs, such as flip or logit_diff.  [default: p, else the first]"
)
@click.option("--controls/--no-controls", default=True, show_default=True, help="Draw the controls.")
@click.option("--bands", default="both", show_default=True, metavar="KIND", help=_BANDS_HELP)
@click.option("--contrasts", default="all", show_default=True, metavar="NAME", help=_CONTRASTS_HELP)
@click.option("--colour", default="curve", show_default=True, metavar="KIND", help=_COLOUR_HELP)
@click.option("--facet", default=None, metavar="dataset", help="Give each data set its own panel.")
@click.option("--theme", default="light", show_default=True, metavar="KIND", help="light or dark.")
@click.option(
    "--width", type=click.IntRange(min=320), default=None, metavar="PIXELS", help="Width; an HTML page fills its window if left out."
)
@click.option("--scale", type=click.FloatRange(0.1, 10), default=None, metavar="X", help="PNG points for each pixel.  [default: 3]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
def figure_command(runs: tuple[str, ...], out: str, as_json: bool, **options: Any) -> None:
    """Draw the curves of one or more runs as an interactive page or a picture, with a panel for each model.

    Below each panel are the contrasts of the run. A filled point is a layer whose simultaneous interval excludes 0.

    Runs that differ in prompt, answers, distractor, split or known_only are drawn in one panel; the legend names the difference.
    With --label each run has its own panels.
    """
    import pandas as pd

    from anchorlens.figures.curves import plot_curves
    from anchorlens.figures.export import check_kind, save_figure
    from anchorlens.running.loading import load_run
    from anchorlens.runs.store import check_place, load_curves, read_table

    check_kind(out)
    if (folder := Path(out).absolute().parent).is_dir():
        check_place(folder)
    labels, anchors, scale = (options.pop(name) for name in ("labels", "anchors", "scale"))
    if labels and len(set(labels)) != len(runs):
        raise InputError(
            f"--label: {len(set(labels))} different labels, {len(runs)} given runs. Give --label once for each run, in order."
        )
    curves = [load_curves(path) for path in runs]
    if options["metric"] == LOGIT_DIFF:
        sweeps = [[one.curves(controls=True, metric=LOGIT_DIFF) for one in load_run(path)] for path in runs]
        curves = [pd.concat(frames, ignore_index=True) for frames in sweeps]
        options["contrasts"] = "none" if options["contrasts"] == "all" else options["contrasts"]  # they are of ΔP
    if anchors is not None:
        wanted = [name.strip() for name in anchors.split(",")]
        known = list(dict.fromkeys(str(name) for frame in curves for name in frame["anchor"].unique()))
        for name in wanted:
            if name not in known:
                raise InputError(f"anchors={name!r}: no curve in these runs. {did_you_mean(name, known)}", argument="anchors")
        curves = [frame[frame["anchor"].isin(wanted)] for frame in curves]
    contrast_tables = [[read_table(run, "contrasts")] if (Path(run) / "contrasts.parquet").is_file() else [] for run in runs]
    for name in ("bands", "contrasts"):
        options[name] = {"all": True, "none": False}.get(options[name], options[name])
    drawn = dict(zip(labels, curves, strict=True)) if labels else curves
    beside = dict(zip(labels, contrast_tables, strict=True)) if labels else [frame for own in contrast_tables for frame in own]
    figure = plot_curves(drawn, contrast_tables=beside, **options)
    save_figure(figure, Path(out), scale=scale)
    click.echo(json.dumps({"figure": out, "runs": list(runs)}) if as_json else f"figure  {out}")


_REPORT_EXAMPLES = """\b
Examples:
  anchorlens report runs/swap runs/knockout --title "Llama-3.2-1B" --out report.html
"""


@click.command("report", epilog=_REPORT_EXAMPLES)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", required=True, metavar="FILE.html", help="File to write; an existing page is replaced.")
@click.option("--title", default=None, help="Heading of the report; models and data sets if left out.")
def report_command(runs: tuple[str, ...], out: str, title: str | None) -> None:
    """Write an HTML report that needs no network: verdicts, figures, contrasts, dropped rows, every example, provenance.

    Examples can be searched, filtered and sorted; each opens into its tokens, with marked anchors, and its curve.
    """
    from anchorlens.report.page import save_report

    click.echo(f"report  {save_report(list(runs), out, title=title)}")
