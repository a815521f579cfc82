"""``anchorlens verify RUN``: check the files of a run and remeasure random cells."""

import json
import sys
from typing import Any

import click
from typing_extensions import override

from anchorlens.cli.output import echo, echo_json, records, show_table, with_options
from anchorlens.cli.shared_options import data_files
from anchorlens.constants import ALL_CELLS, BACKENDS

EPILOG = """\b
Examples:
  anchorlens verify runs/a
  anchorlens verify runs/a --cells 100 --seed 1
  anchorlens verify runs/b --model path/to/checkpoint --stream
  anchorlens verify runs/c --model llama=path/to/llama --model qwen=path/to/qwen \\
    --data-file popqa.jsonl

Exit code 0: everything matches; 1: something differs; 2: invalid input.
"""


class Cells(click.ParamType):
    """Number of cells, or ``all``."""

    name = "N|all"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == ALL_CELLS else click.IntRange(0).convert(value, param, ctx)


@click.command(
    "verify", epilog=EPILOG, short_help="Check the files of a run and remeasure some of its cells"
)
@click.argument("run", metavar="RUN")
@click.option(
    "--cells",
    type=Cells(),
    default="20",
    show_default=True,
    help="Number of random cells to remeasure, or all; 0 loads no model unless one is given.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed of the cells."
)
@click.option(
    "--model",
    "model",
    multiple=True,
    metavar="PATH|NAME=PATH",
    help="The model, where it does not load by its name; NAME= where the run has several.",
)
@click.option(
    "--data-file",
    "data",
    multiple=True,
    metavar="FILE|NAME=FILE",
    help="The question set's file, to compare its hash.",
)
@click.option(
    "--columns",
    default=None,
    metavar="FIELD=COLUMN,...",
    help="Column names of that file, if they differ.",
)
@click.option(
    "--device", default=None, help="cuda, cuda:1, mps or cpu; the best available if left out."
)
@click.option(
    "--stream", is_flag=True, help="Read the weights layer by layer, for models larger than memory."
)
@click.option(
    "--n-devices", type=int, default=1, help="Number of CUDA devices for the model; 1 if left out."
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=None,
    help="Model class; that of the run if left out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
def verify_command(
    run: str,
    model: tuple[str, ...],
    data: tuple[str, ...],
    columns: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Check the files of a run directory, and remeasure random cells independently.

    Checks the bytes of every file and the hashes of weights, tokenizer, question set and code. Each
    cell is recomputed from the stored inputs by a full forward pass with hooks.
    """
    from anchorlens.questions.columns import parse_columns
    from anchorlens.running.verify import (
        MATCH,
        MISMATCH,
        find_changes,
        find_damage,
        load_recorded_data,
        verify_run,
    )
    from anchorlens.runs.final_write import find_run
    from anchorlens.runs.store import read_record

    changes, _ = find_changes(find_run(run))
    if find_damage(changes):
        # Nothing of the run can be read, and no model is needed.
        model = ()
        data = ()
    sweeps = read_record(run)["sweeps"] if model or data else []
    models = data_files([one["model"]["name"] for one in sweeps], model, "--model", "model")
    files = data_files([one["data"]["name"] for one in sweeps], data)
    named = None if columns is None else parse_columns(columns)
    by_name = {one["data"]["name"]: one for one in sweeps}
    sets = {name: load_recorded_data(by_name[name], file, named) for name, file in files.items()}
    found = verify_run(run, model=models or None, data=sets or None, **options)
    if as_json:
        tables = {
            "checks": records(found.table()),
            "limits": list(found.limits),
            "cells": records(found.cells()),
        }
        echo_json(json.dumps({"run": run, "ok": found.ok, **tables}))
    else:
        rows: list[tuple[str, str, str]] = []
        for one in found.checks:
            detail = with_options(one.detail, arguments=["data"] if one.needs_data else ())
            rows.append((one.what, one.status, detail))
        show_table(f"{run}: {MATCH if found.ok else MISMATCH}", ("what", "found", ""), rows)
        for line in found.limits:
            echo(with_options(line))
    sys.exit(0 if found.ok else 1)
