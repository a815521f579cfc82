"""``anchorlens report RUN...``: one page of everything about some runs."""

import click

EPILOG = """\b
Examples:
  anchorlens report runs/a --out report.html
  anchorlens report runs/swap runs/knockout --title "Llama-3.2-1B" --out report.html
"""


@click.command("report", epilog=EPILOG, short_help="One page of everything about one or more runs")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", required=True, metavar="FILE.html", help="Where the page goes; a page of that name is replaced.")
@click.option("--title", default=None, help="Its heading; models and data sets if left out.")
def report_command(runs: tuple[str, ...], out: str, title: str | None) -> None:
    """Write one page that needs no network: verdicts, figures, contrasts, what was left out, every example, provenance.

    Examples can be searched, filtered and sorted; each opens into its tokens, with the anchors marked, and its own curve.
    """
    from anchorlens.report.page import write_report

    click.echo(f"report  {write_report(list(runs), out, title=title)}")


__all__ = ["report_command"]
