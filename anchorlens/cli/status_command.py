"""``anchorlens status RUN``: show the progress of a run."""

import json
from dataclasses import asdict

import click

from anchorlens.cli.output import echo, echo_json, show_table


@click.command(
    "status",
    epilog="\b\nExamples:\n  watch -n 10 anchorlens status runs/a\n",
    short_help="Show the progress of a run",
)
@click.argument("run", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
def status_command(run: str, as_json: bool) -> None:
    """Print whether a run is finished, running or stopped, and the finished shards of each sweep.

    RUN is the --out directory of the command.
    """
    from anchorlens.runs.status import ago, status_of

    found = status_of(run)
    if as_json:
        echo_json(json.dumps(asdict(found)))
        return
    rows: list[tuple[str, str, str, str]] = []
    for one in found.sweeps:
        kept = "finished"
        if not one.finished:
            planned = "?" if one.shards is None else one.shards
            kept = f"{one.done} of {planned} shards"
        left = "" if one.finished or one.seconds_left is None else f"{one.seconds_left:,.0f} s"
        rows.append((one.name, kept, left, ago(one.updated)))
    show_table(f"{run}: {found.state}", ("sweep", "kept", "left", "last shard"), rows)
    if found.state == "stopped":
        echo(
            "Continue: repeat the command with --resume;"
            " combine several jobs with `anchorlens merge`."
        )
    if found.jobs:
        echo(f"Running jobs: {', '.join(found.jobs)}.")
    if found.rss_mb is not None and found.state == "running":
        echo(f"Memory of the process at its last shard: {found.rss_mb:,} MB.")
