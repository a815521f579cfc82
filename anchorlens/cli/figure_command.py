"""``anchorlens figure``: one figure from several runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anchorlens.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

EPILOG = """\b
Examples:
  anchorlens figure runs/a runs/b --out figure.html
  anchorlens figure runs/a --anchors question --no-controls --out question.html
  anchorlens figure runs/a --bands simultaneous --contrasts auc_drop --out auc.html
  anchorlens figure runs/a --contrasts none --out published.html
  anchorlens figure runs/patch --quantity flip --out flips.html
  anchorlens figure runs/qa runs/fewshot --label qa --label fewshot --out both.html
  anchorlens figure runs/a --colour dataset --facet dataset --out figure.pdf
  anchorlens figure runs/a --width 1000 --scale 2 --out figure.png
"""

_BANDS_HELP = (
    "95 % intervals: pointwise (each layer by itself: for a layer named beforehand), simultaneous (all layers at once: for saying "
    "at which layers there is something), both (simultaneous outside, paler), or none."
)
_CONTRASTS_HELP = (
    "Panels below the curves: what can be claimed. all (a switch among them), none, or the one to show first: delta_all, flip_rate, "
    "auc_drop (each less its placebo's), own_change, p_after, less_null."
)
_COLOUR_HELP = "curve: the published colours. dataset: one hue for each data set, question solid, answer dashed."
_SWITCHES = {"all": True, "none": False}


@click.command("figure", epilog=EPILOG, short_help="Draw the curves of one or more runs")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--out", "-o", default="figure.html", show_default=True, metavar="FILE", help="File to write: .html, .png, .svg or .pdf."
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="TEXT",
    help="A label for each run, in their order: panels of its own, so titled.",
)
@click.option("--title", default=None, help="A title in place of the one that names protocol, readout and anchors.")
@click.option("--anchors", default=None, metavar="A,B", help="Only these anchors.")
@click.option(
    "--quantity", default="p", show_default=True, metavar="NAME", help="p, or another quantity of the runs, such as flip."
)
@click.option("--controls/--no-controls", default=True, show_default=True, help="Draw the controls too.")
@click.option("--bands", default="both", show_default=True, metavar="KIND", help=_BANDS_HELP)
@click.option("--contrasts", default="all", show_default=True, metavar="NAME", help=_CONTRASTS_HELP)
@click.option("--colour", default="curve", show_default=True, metavar="KIND", help=_COLOUR_HELP)
@click.option("--facet", default=None, metavar="dataset", help="A panel for each data set.")
@click.option("--theme", default="light", show_default=True, metavar="KIND", help="light or dark.")
@click.option("--width", type=click.IntRange(min=320), default=None, metavar="PIXELS", help="Width; a page fills its window.")
@click.option(
    "--scale",
    type=click.FloatRange(min=0.1, max=10),
    default=None,
    metavar="X",
    help="Points of a PNG for each pixel.  [default: 3]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
def figure_command(
    runs: tuple[str, ...],
    out: str,
    labels: tuple[str, ...],
    title: str | None,
    anchors: str | None,
    quantity: str,
    controls: bool,
    bands: str,
    contrasts: str,
    colour: str,
    facet: str | None,
    theme: str,
    width: int | None,
    scale: float | None,
    as_json: bool,
) -> None:
    """Draw the curves of one or more runs as one file, an interactive page or a picture: a panel for each model.

    Below each panel stand the run's contrasts: the curves above show the published picture, in which a split by the plotted
    quantity draws two pathways whatever the tokens mean; the contrasts below show what can be claimed. A filled point is a layer
    at which the interval of all layers at once excludes 0. Runs of older versions hold no such contrasts and are drawn without.

    Runs that differ in prompt, answers, distractor, split or known_only stand in one panel; the legend names what differs. With
    --label each run has panels of its own, whatever differs.
    """
    from anchorlens.figures.curves import plot_curves
    from anchorlens.figures.files import check_kind, write_figure
    from anchorlens.runs.store import check_place, load_curves

    check_kind(out)
    if (folder := Path(out).absolute().parent).is_dir():
        check_place(folder)
    if labels and len(set(labels)) != len(runs):
        raise InputError(
            f"There are {len(runs)} runs and {len(set(labels))} different labels. Give --label once for each run, in their order."
        )
    curves = {path: load_curves(path) for path in runs}
    if anchors is not None:
        wanted = [a.strip() for a in anchors.split(",")]
        there = list(dict.fromkeys(str(name) for frame in curves.values() for name in frame["anchor"].unique()))
        unknown = [a for a in wanted if a not in there]
        if unknown:
            raise InputError(f"No curve of anchor '{unknown[0]}' in these runs. {did_you_mean(unknown[0], there)}")
        curves = {path: frame[frame["anchor"].isin(wanted)] for path, frame in curves.items()}
    effects = {path: _effects(path) for path in runs}
    figure = plot_curves(
        dict(zip(labels, curves.values(), strict=True)) if labels else list(curves.values()),
        title=title,
        controls=controls,
        quantity=quantity,
        bands=_SWITCHES.get(bands, bands),
        contrasts=_SWITCHES.get(contrasts, contrasts),
        effects=dict(zip(labels, effects.values(), strict=True))
        if labels
        else [one for own in effects.values() for one in own],
        colour=colour,
        facet=facet,
        theme=theme,
        width=width,
    )
    write_figure(figure, Path(out), scale=scale)
    click.echo(json.dumps({"figure": out, "runs": list(runs)}) if as_json else f"figure  {out}")


def _effects(run: str) -> "list[pd.DataFrame]":
    """The contrasts of a run; none where its protocols compare nothing."""
    from anchorlens.runs.store import read_table

    return [read_table(run, "effects")] if (Path(run) / "effects.parquet").is_file() else []


__all__ = ["figure_command"]
