"""``anchorlens run``: several models, data sets and protocols in one run directory."""

from collections.abc import Mapping
from typing import Any

import click

from anchorlens.cli.shared_options import check_output_options, output_options
from anchorlens.progress import name_import

EPILOG = """\b
Examples:
  anchorlens run study.toml --out runs/study
\b
A study's file:
  models = ["smollm2-135m-instruct"]   # or paths, relative to the current folder
\b
  [[data]]
  name = "popqa"
  path = "popqa.jsonl"       # relative to this file; the hub if left out
  limit = 200
\b
  [[protocol]]
  name = "swap"
  n_donors = 2               # the options of `anchorlens swap --help`
"""


@click.command("run", epilog=EPILOG, params=output_options())
@click.argument("study", metavar="STUDY.toml")
def run_command(**given: Any) -> None:
    """Measure every protocol of a study on every model and data set.

    The file is checked before the first model is loaded. Each sweep is saved when it is finished,
    with a figure of all finished sweeps, even if a later one fails; --resume continues a stopped
    study.
    """
    measure_study(given)


def measure_study(given: Mapping[str, Any]) -> None:
    check_output_options(given, "run")
    from dataclasses import replace

    from anchorlens.cli.measure import measure, plan_only

    with name_import(show=not given["quiet"]):
        from anchorlens.running.study import Study

    made = Study.from_toml(given["study"])
    made = replace(
        made,
        specifications=[one.replace(progress=not given["quiet"]) for one in made.specifications],
    )
    if given["dry_run"]:
        plan_only(made, as_json=given["as_json"])
    else:
        measure(made, "run", given)
