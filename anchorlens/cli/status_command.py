"""``anchorlens status RUN``: how far a run is, whoever measures it."""

import json
from dataclasses import asdict

import click

from anchorlens.cli.output import show_table


@click.command("status", epilog="\b\nExamples:\n  watch -n 10 anchorlens status runs/a\n", short_help="How far a run is")
@click.argument("run", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
def status_command(run: str, as_json: bool) -> None:
    """Print the status of a run: finished, running or stopped, and the shards of each sweep that are kept.

    RUN is the directory that was given as --out.
    """
    from anchorlens.runs.status import ago, status_of

    found = status_of(run)
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    rows: list[tuple[str, str, str, str]] = []
    for one in found.sweeps:
        kept = "finished" if one.finished else f"{one.done} of {'?' if one.shards is None else one.shards} shards"
        left = "" if one.finished or one.seconds_left is None else f"{one.seconds_left:,.0f} s"
        rows.append((one.name, kept, left, ago(one.updated)))
    show_table(f"{run}: {found.state}", ("sweep", "kept", "left", "last shard"), rows)
    if found.state == "stopped":
        click.echo("Continue with the command that began it and --resume; shards of several jobs with `anchorlens merge`.")
    if found.jobs:
        click.echo(f"Jobs that measure now: {', '.join(found.jobs)}.")
    if found.rss_mb is not None and found.state == "running":
        click.echo(f"Memory of the process at its last shard: {found.rss_mb:,} MB.")
