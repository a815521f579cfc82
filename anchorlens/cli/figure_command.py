"""``anchorlens figure`` and ``anchorlens report``: a figure or an HTML report from several runs."""

import json
import os
from typing import Any

import click

from anchorlens.cli.output import echo, echo_json
from anchorlens.errors import InputError
from anchorlens.progress import waiting

EPILOG = """\b
Examples:
  anchorlens figure runs/a runs/b --out figure.html
  anchorlens figure runs/a --style paper --width 1000 --out figure.pdf --caption
  anchorlens figure runs/a --controls --contrasts all --out controls.html
  anchorlens figure runs/a --anchors exact_question --out question.html
  anchorlens figure runs/a --contrasts auc_drop --out auc.html
  anchorlens figure runs/a --metric flip --out flips.html
  anchorlens figure runs/a --metric logit_diff --out logits.html
  anchorlens figure runs/qa runs/fewshot --label qa --label fewshot --out both.html
  anchorlens figure runs/a --colour dataset --facet dataset --width 1000 --out figure.pdf
"""

_STYLE_HELP = (
    "plain: a title, and a line with questions, P before and what P is."
    " paper: panels and legend only, on white."
)
_BANDS_HELP = (
    "95 % band: pointwise (for one layer chosen beforehand), simultaneous (over all layers, as the"
    " claims), or none."
)
_CONTRASTS_HELP = (
    "Panels below the curves, difference from the control: none, all (with a switch), or the one to"
    " show first: delta_p_vs_placebo, flip_rate, auc_drop, row_specific_vs_placebo,"
    " row_specific_effect, p_after, delta_p_minus_null, or a null."
)
_COLOUR_HELP = (
    "curve: the published colours."
    " dataset: one hue for each data set, question solid, answer dashed."
)
_WIDTH_HELP = (
    "Width; below 900 pixels the panels stand below each other."
    " An HTML page fills its window if left out."
)


def _heatmap_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a heatmap; raise InputError if one of curves was given."""
    source = click.get_current_context().get_parameter_source
    allowed = ("title", "theme", "width")
    for name in ("labels", "anchors", *options):
        if name not in allowed and source(name) == click.core.ParameterSource.COMMANDLINE:
            raise InputError(
                f"{name}: an option of curves,"
                " but these are heatmaps of patch sweeps. Leave it out.",
                argument=name,
            )
    return {name: options[name] for name in allowed}


def _check_default(out: str) -> None:
    """Raise InputError if the default file exists; one that --out names is replaced."""
    source = click.get_current_context().get_parameter_source("out")
    if source == click.core.ParameterSource.DEFAULT and os.path.lexists(out):
        raise InputError(
            f"{out} exists in this folder, and only a file that --out names is replaced. Give"
            f" --out {out} to replace it, or another name."
        )


@click.command("figure", epilog=EPILOG)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--out",
    "-o",
    default="figure.html",
    show_default=True,
    metavar="FILE",
    help="File to write: .html, .png, .svg or .pdf; an existing file is replaced, but not if --out"
    " is left out.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="TEXT",
    help="Label of each run, in order; each run has its own panels.",
)
@click.option("--title", default=None, help="Title of the figure; protocol and metric if left out.")
@click.option("--style", default="plain", show_default=True, metavar="KIND", help=_STYLE_HELP)
@click.option("--anchors", default=None, metavar="A,B", help="Anchors to draw; all if left out.")
@click.option(
    "--metric",
    default=None,
    metavar="NAME",
    help="A metric of the runs, such as flip or logit_diff.  [default: p, else the first]",
)
@click.option(
    "--controls/--no-controls",
    default=False,
    show_default=True,
    help="Draw the leading null or placebo and the strongest null as dotted lines.",
)
@click.option(
    "--bands",
    default="all",
    metavar="KIND",
    help=f"{_BANDS_HELP}  [default: pointwise; simultaneous in the panels of --contrasts]",
)
@click.option(
    "--contrasts", default="none", show_default=True, metavar="NAME", help=_CONTRASTS_HELP
)
@click.option("--colour", default="curve", show_default=True, metavar="KIND", help=_COLOUR_HELP)
@click.option("--facet", default=None, metavar="dataset", help="Give each data set its own panel.")
@click.option("--theme", default="light", show_default=True, metavar="KIND", help="light or dark.")
@click.option(
    "--width", type=click.IntRange(min=320), default=None, metavar="PIXELS", help=_WIDTH_HELP
)
@click.option(
    "--scale",
    type=click.FloatRange(0.1, 10),
    default=None,
    metavar="X",
    help="PNG points for each pixel.  [default: 3]",
)
@click.option(
    "--caption", is_flag=True, help="Print the caption: settings, bands, controls and marks."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for scripts, with the caption."
)
def figure_command(
    runs: tuple[str, ...], out: str, caption: bool, as_json: bool, **options: Any
) -> None:
    """Draw the curves of one or more runs as an interactive page or a picture, with a panel for
    each model.

    A filled mark is a layer at which the findings of the run claim an effect beyond every control.
    --controls and --contrasts add the controls and the differences from them.

    Runs that differ in prompt, answers, distractor, split or known_only are drawn in one panel; the
    legend names the difference. With --label each run has its own panels.

    Runs of patch are heatmaps side by side; of the options below, --title, --theme and --width
    apply to them.
    """
    from anchorlens.figures.choose_figure import are_grids, plot_heatmap
    from anchorlens.figures.curves import plot_curves
    from anchorlens.figures.export import caption_of, check_kind, check_place, save_figure
    from anchorlens.loading.load_run import results_of

    check_kind(out)
    check_place(out)
    _check_default(out)
    labels, anchors, scale = (options.pop(name) for name in ("labels", "anchors", "scale"))
    if labels and not len(set(labels)) == len(labels) == len(runs):
        raise InputError(
            f"--label: {len(set(labels))} different labels, {len(runs)} given runs."
            " Give --label once for each run, in order."
        )
    for name in ("bands", "contrasts"):
        options[name] = {"all": True, "none": False}.get(options[name], options[name])
    wanted = None if anchors is None else [name.strip() for name in anchors.split(",")]
    with waiting("figure: reading runs and drawing", show=True):
        found = results_of(runs)
        if are_grids(found):
            figure = plot_heatmap(found, **_heatmap_options(options))
        else:
            figure = plot_curves(
                dict(zip(labels, runs, strict=True)) if labels else found, anchors=wanted, **options
            )
        save_figure(figure, out, scale=scale)
    told = caption_of(figure)
    if as_json:
        echo_json(
            json.dumps({"figure": out, "runs": list(runs), "caption": told}, ensure_ascii=False)
        )
    else:
        echo("\n".join([f"figure  {out}", *([told] if caption else [])]))


_REPORT_EXAMPLES = """\b
Examples:
  anchorlens report runs/swap runs/knockout --title "Llama-3.2-1B" --out report.html
"""


@click.command("report", epilog=_REPORT_EXAMPLES)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--out", required=True, metavar="FILE.html", help="File to write; an existing file is replaced."
)
@click.option(
    "--title", default=None, help="Heading of the report; models and data sets if left out."
)
@click.option("--quiet", "-q", is_flag=True, help="Do not name work that lasts longer.")
def report_command(runs: tuple[str, ...], out: str, title: str | None, quiet: bool) -> None:
    """Write an HTML report that needs no network: verdicts, figures, contrasts, dropped rows, every
    example, provenance.

    Examples can be searched, filtered and sorted; each opens into its tokens, with marked anchors,
    and its curve.
    """
    from anchorlens.report.page import save_report

    save_report(list(runs), out, title=title, progress=not quiet)
    echo(f"report  {out}")
