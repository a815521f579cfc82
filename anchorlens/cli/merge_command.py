"""``anchorlens merge RUN``: a run is finished from the shards of several jobs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from anchorlens.cli.sharing import SHARING
from anchorlens.cli.shown import note
from anchorlens.errors import RunError

EPILOG = """\b
Examples:
  anchorlens swap --model smollm2-135m-instruct --dataset triviaqa-sample --out runs/a --shard 1/2
  anchorlens swap --model smollm2-135m-instruct --dataset triviaqa-sample --out runs/a --shard 2/2
  anchorlens merge runs/a
\b
  # shards of machines that share no files, copied here
  anchorlens merge runs/a machine1/a.parts machine2/a.parts
"""


@click.command("merge", epilog=EPILOG, short_help="Finish a run from the shards of several jobs")
@click.argument("run", metavar="RUN")
@click.argument("parts", metavar="[PARTS]...", nargs=-1)
@click.option("--measure-missing", is_flag=True, help="Measure here what no job has measured, instead of refusing.")
@click.option("--overwrite", is_flag=True, help="Replace a run that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
@click.option("--quiet", "-q", is_flag=True, help="No progress bars.")
def merge_command(
    run: str, parts: tuple[str, ...], measure_missing: bool, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Finish a run from the shards that jobs have measured with --shard.

    RUN is the directory that was given to them as --out; their shards lie beside it in RUN.parts, with the command that began
    them, which is not given again. PARTS are such folders from machines that share no files: their shards are copied there first.
    The model is loaded once more, for the last checked cells, the record and the figure.
    """
    from anchorlens.runs.journal import parts_of
    from anchorlens.runs.merging import brought, command_of, refuse_missing
    from anchorlens.runs.store import check_target

    target = check_target(run, overwrite=True).absolute()
    if parts:
        copied = brought(target, [Path(one) for one in parts])
        note(f"{copied} shard{'s' * (copied != 1)} copied to {target.name}.parts.")
    if (target / "run.json").is_file() and not parts_of(target).exists():
        click.echo(f"{run} is finished.")
        return
    command = command_of(target)
    if not measure_missing:
        refuse_missing(target)
    _again(command, {"out": str(target), "resume": True, "overwrite": overwrite, "as_json": as_json, "quiet": quiet})


def _again(command: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
    """Give a command again, from the folder that it was given in where that is here.

    Raises:
        RunError: Another version of anchorlens wrote it.
    """
    given = {**command["given"], "force_new": False, **dict.fromkeys(SHARING), **changed}
    folder = Path(command["folder"])
    if folder.is_dir():
        os.chdir(folder)
    if command["name"] == "run":
        from anchorlens.cli.study_command import measure_study, run_command

        _check(run_command, given)
        measure_study(given)
        return
    from anchorlens.cli.protocol_command import measure_protocol, protocol_command
    from anchorlens.protocols.registry import specification_of

    _check(protocol_command(command["name"]), given)
    measure_protocol(specification_of(command["name"]), given)


def _check(command: click.Command, given: Mapping[str, Any]) -> None:
    if {one.name for one in command.params if one.expose_value} != set(given):
        raise RunError(
            "This run was begun by another version of anchorlens. Give its command again, with --resume and no --shard."
        )


__all__ = ["merge_command"]
