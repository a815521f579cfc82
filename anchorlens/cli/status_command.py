"""``anchorlens status RUN``: how far a run is, whoever measures it."""

import json
from dataclasses import asdict

import click

from anchorlens.cli.shown import show_table

EPILOG = """\b
Examples:
  anchorlens status runs/a
  watch -n 10 anchorlens status runs/a
"""


@click.command("status", epilog=EPILOG, short_help="How far a run is")
@click.argument("run", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
def status_command(run: str, as_json: bool) -> None:
    """Say how far a run is: finished, running or stopped, and for each of its sweeps the shards that are kept.

    RUN is the directory that was given as --out. While it is measured its parts lie beside it in RUN.parts; a line of
    RUN.parts/log.jsonl is written for each.
    """
    from anchorlens.runs.status import ago, status_of

    found = status_of(run)
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    rows = [
        (
            one.name,
            "finished" if one.finished else f"{one.done} of {'?' if one.shards is None else one.shards} shards",
            "" if one.finished or one.seconds_left is None else f"{one.seconds_left:,.0f} s",
            ago(one.told),
        )
        for one in found.sweeps
    ]
    show_table(f"{run}: {found.state}", ("sweep", "kept", "left", "last shard"), rows)
    if found.state == "stopped":
        click.echo("Continue with the command that began it and --resume; shards of several jobs with `anchorlens merge`.")
    if found.jobs:
        click.echo(f"Jobs that measure now: {', '.join(found.jobs)}.")
    if found.rss_mb is not None and found.state == "running":
        click.echo(f"Memory of the process at its last shard: {found.rss_mb:,} MB.")


__all__ = ["status_command"]
