"""``anchorlens figure``: one figure from several runs."""

import json
from pathlib import Path

import click

from anchorlens.errors import InputError, did_you_mean

EPILOG = """\b
Examples:
  anchorlens figure runs/a runs/b --out figure.html
  anchorlens figure runs/a --anchors question --no-controls --out question.html
  anchorlens figure runs/patch --quantity flip --out flips.html
"""


@click.command("figure", epilog=EPILOG, short_help="Draw the curves of one or more runs")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", "-o", default="figure.html", show_default=True, metavar="FILE", help="HTML file to write.")
@click.option("--title", default=None, help="A title in place of the one that names protocol, readout and anchors.")
@click.option("--anchors", default=None, metavar="A,B", help="Only these anchors.")
@click.option(
    "--quantity", default="p", show_default=True, metavar="NAME", help="p, or another quantity of the runs, such as flip."
)
@click.option("--controls/--no-controls", default=True, show_default=True, help="Draw the controls too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
def figure_command(
    runs: tuple[str, ...], out: str, title: str | None, anchors: str | None, quantity: str, controls: bool, as_json: bool
) -> None:
    """Draw the curves of one or more runs as one interactive HTML file: a panel for each model."""
    import pandas as pd

    from anchorlens.figures.curves import plot_curves
    from anchorlens.figures.page import save_html
    from anchorlens.runs.store import load_curves

    curves = pd.concat([load_curves(path) for path in runs], ignore_index=True)
    if anchors is not None:
        wanted = [a.strip() for a in anchors.split(",")]
        there = list(curves["anchor"].unique())
        unknown = [a for a in wanted if a not in there]
        if unknown:
            raise InputError(f"No curve of anchor '{unknown[0]}' in these runs. {did_you_mean(unknown[0], there)}")
        curves = curves[curves["anchor"].isin(wanted)]
    save_html(plot_curves(curves, title=title, controls=controls, quantity=quantity), Path(out))
    click.echo(json.dumps({"figure": out, "runs": list(runs)}) if as_json else f"figure  {out}")


__all__ = ["figure_command"]
