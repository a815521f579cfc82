"""``anchorlens verify RUN``: is a run what was written, and do its numbers come out again?"""

import json
import sys

import click

from anchorlens.cli.shown import records, show_table
from anchorlens.errors import InputError

EPILOG = """\b
Examples:
  anchorlens verify runs/a
  anchorlens verify runs/a --cells 100 --seed 1
  anchorlens verify runs/b --model path/to/checkpoint --stream
  anchorlens verify runs/c --model llama=path/to/llama --model qwen=path/to/qwen --data-file popqa.jsonl

Exit code 0: nothing differs; 1: something does; 2: the command has to change.
"""


@click.command("verify", epilog=EPILOG, short_help="Check a run's bytes, and measure some of its cells again")
@click.argument("run", metavar="RUN")
@click.option(
    "--cells", type=click.IntRange(0), default=20, show_default=True, help="How many random cells are measured again."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws them.")
@click.option(
    "--model", "models", multiple=True, metavar="PATH|NAME=PATH",
    help="The model, where it does not load by its name; NAME= where the run has several.",
)  # fmt: skip
@click.option(
    "--data-file", "files", multiple=True, metavar="FILE|NAME=FILE", help="The question set's file, to compare its hash."
)
@click.option(
    "--columns", default=None, metavar="FIELD=COLUMN,...", help="Names of that file's columns, where they are not ours."
)
@click.option("--device", default=None, help="cuda, cuda:1, mps or cpu; the first that is there if left out.")
@click.option(
    "--stream", is_flag=True, help="Read the weights layer by layer, for a model larger than memory (docs/streaming.md)."
)
@click.option("--n-devices", type=int, default=1, help="CUDA devices that the model is spread over; 1 if left out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
def verify_command(
    run: str,
    cells: int,
    seed: int,
    models: tuple[str, ...],
    files: tuple[str, ...],
    columns: str | None,
    device: str | None,
    stream: bool,
    n_devices: int,
    as_json: bool,
) -> None:
    """Check that a run directory is what was written, and measure random cells of it again, slowly and plainly.

    First the bytes of every file, and the hashes of weights, tokenizer, question set and code. Then the cells: from the inputs
    in the directory alone, each by a full forward pass with hooks.
    """
    from anchorlens.protocols.verifying import MATCH, MISMATCH, verify_run
    from anchorlens.questions.columns import parse_columns
    from anchorlens.questions.datasets import load_qa
    from anchorlens.runs.store import read_record

    # A damaged record is told of with everything else, where nothing has to be looked up in it.
    sweeps = read_record(run)["sweeps"] if models or files else []
    model = _named(models, [one["model"]["name"] for one in sweeps], "--model")
    sets = _named(files, [one["data"]["name"] for one in sweeps], "--data-file")
    named = None if columns is None else parse_columns(columns)
    data = {name: load_qa(name, path=file, columns=named) for name, file in sets.items()}
    found = verify_run(
        run, cells=cells, seed=seed, model=model or None, data=data or None, device=device, n_devices=n_devices, stream=stream
    )
    if as_json:
        click.echo(json.dumps({"run": run, "ok": found.ok, "checks": records(found.table()), "cells": records(found.cells())}))
    else:
        rows = [(one.what, one.found, one.said) for one in found.checks]
        show_table(f"{run}: {MATCH if found.ok else MISMATCH}", ("what", "found", ""), rows)
    sys.exit(0 if found.ok else 1)


def _named(given: tuple[str, ...], names: list[str], flag: str) -> dict[str, str]:
    """Name -> what was given for it.

    Raises:
        InputError: Nobody can tell what one is for.
    """
    known = list(dict.fromkeys(names))
    found: dict[str, str] = {}
    for entry in given:
        name, sign, path = entry.partition("=")
        if sign and name in known:
            found[name] = path
        elif len(known) == 1:
            found[known[0]] = entry
        else:
            raise InputError(f"{flag} {entry}: this run has {', '.join(known)}; say which with {flag} NAME={path or entry}.")
    return found


__all__ = ["verify_command"]
