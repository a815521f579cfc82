"""``anchorlens compare FIRST SECOND``: the paired difference of two runs by layer."""

import json

import click

from anchorlens.cli.output import echo, echo_json
from anchorlens.progress import waiting


@click.command(
    "compare",
    epilog="\b\nExamples:\n"
    "  anchorlens compare runs/qa runs/fewshot --label qa --label fewshot\n"
    "  anchorlens compare runs/qa runs/fewshot --out difference.html\n",
    short_help="Compare two runs row by row",
)
@click.argument("first", metavar="FIRST")
@click.argument("second", metavar="SECOND")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="TEXT",
    help="Name of each run, in order.  [default: first, second]",
)
@click.option(
    "--metric", default=None, metavar="NAME", help="Metric of both runs.  [default: p, else first]"
)
@click.option(
    "--resamples",
    "n_resamples",
    type=int,
    default=1000,
    show_default=True,
    metavar="N",
    help="Number of bootstrap resamples of questions.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Random seed of the resamples."
)
@click.option(
    "--out",
    "-o",
    default=None,
    metavar="FILE",
    help="Figure of the differences to write: .html, .png, .svg or .pdf; an existing file is"
    " replaced.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the table as one JSON object for scripts."
)
def compare_command(
    first: str,
    second: str,
    labels: tuple[str, ...],
    metric: str | None,
    n_resamples: int,
    seed: int,
    out: str | None,
    as_json: bool,
) -> None:
    """Print the difference of the curves, second minus first, paired by row.

    Rows are paired by question, anchor and layer, and whole questions are resampled. The band holds
    for all layers, anchors and sweeps of the comparison.
    """
    from anchorlens.figures.curves import plot_curves
    from anchorlens.figures.export import check_kind, check_place, save_figure
    from anchorlens.running.compare import compare

    if len(labels) not in (0, 2):
        raise click.UsageError("--label: give one for each of the two runs, or none.")
    if out is not None:
        check_kind(out)
        check_place(out)
    with waiting("compare: reading runs and drawing rows anew", show=True):
        found = compare(
            first,
            second,
            labels=(labels[0], labels[1]) if labels else ("first", "second"),
            metric=metric,
            n_resamples=n_resamples,
            seed=seed,
        )
        if out is not None:
            save_figure(plot_curves(found, metric="difference"), out)
    if as_json:
        rows = json.loads(found.table().to_json(orient="records"))
        echo_json(json.dumps({"labels": found.labels, "figure": out, "rows": rows}))
        return
    echo(str(found))
    if out is not None:
        echo(f"figure  {out}")
