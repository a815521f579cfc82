"""``anchorlens merge RUN``: combine the shards of several jobs into a run."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from anchorlens.cli.output import echo, note
from anchorlens.cli.shared_options import EXECUTION_OPTIONS
from anchorlens.errors import RunError
from anchorlens.protocols.registry import PROTOCOLS, specification_of

_OTHER_VERSION = (
    "This run was begun by another version of anchorlens."
    " Repeat its command with --resume and without --job."
)

EPILOG = """\b
Examples:
  anchorlens swap --model smollm2-135m-instruct --dataset triviaqa-sample --out runs/a --job 1/2
  anchorlens swap --model smollm2-135m-instruct --dataset triviaqa-sample --out runs/a --job 2/2
  anchorlens merge runs/a
  anchorlens merge runs/a machine1/a.parts machine2/a.parts
"""


@click.command("merge", epilog=EPILOG, short_help="Combine the shards of several jobs into a run")
@click.argument("run", metavar="RUN")
@click.argument("parts", metavar="[PARTS]...", nargs=-1)
@click.option("--run-missing", is_flag=True, help="Measure missing shards instead of stopping.")
@click.option("--overwrite", is_flag=True, help="Replace an existing run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
@click.option("--quiet", "-q", is_flag=True, help="Hide progress bars.")
def merge_command(
    run: str, parts: tuple[str, ...], run_missing: bool, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Combine the shards that jobs have measured with --job into a run.

    RUN is the --out directory of the jobs; their shards are in RUN.parts, with the command that
    began them. PARTS are such folders from machines that share no files; their shards are copied
    first. The model is loaded once more, for the remaining spot checks, the record and the figure.
    """
    from anchorlens.paths import resolve_path
    from anchorlens.runs.files import parts_of
    from anchorlens.runs.final_write import check_target, find_run
    from anchorlens.runs.merging import copy_parts, read_command, refuse_missing

    target = check_target(run, overwrite=True)
    if parts:
        copied = copy_parts(
            target, [resolve_path(one, "parts", "a folder of shards") for one in parts]
        )
        note(f"{copied} shard{'s' * (copied != 1)} copied to {target.name}.parts.")
    if (find_run(target) / "run.json").is_file() and not (parts_of(target) / "run.json").is_file():
        echo(f"{run} is already complete.")
        return
    command = read_command(target)
    if not run_missing:
        refuse_missing(target)
    _rerun_command(
        command,
        {
            "out": str(target),
            "resume": True,
            "overwrite": overwrite,
            "as_json": as_json,
            "quiet": quiet,
        },
    )


def _rerun_command(command: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
    """Repeat a command, from its original working directory if that exists."""
    name, given, folder = (command.get(key) for key in ("name", "given", "folder"))
    if (
        name not in ("run", *PROTOCOLS)
        or not isinstance(given, dict)
        or not isinstance(folder, str)
    ):
        raise RunError(_OTHER_VERSION)
    given = {
        **given,
        "dry_run": False,
        "restart": False,
        **dict.fromkeys(EXECUTION_OPTIONS),
        **changed,
    }
    if Path(folder).is_dir():
        os.chdir(folder)
    if name == "run":
        from anchorlens.cli.study_command import measure_study as measure
        from anchorlens.cli.study_command import run_command as shown
    else:
        from anchorlens.cli.protocol_command import measure_protocol, protocol_command

        shown = protocol_command(name)
        measure = partial(measure_protocol, specification_of(name))
    if {one.name for one in shown.params if one.expose_value} != set(given):
        raise RunError(_OTHER_VERSION)
    measure(given)
