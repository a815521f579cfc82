"""``anchorlens run``: several models, data sets and protocols in one run directory."""

from collections.abc import Mapping
from typing import Any

import click

from anchorlens.cli.options import check_out, output_options

EPILOG = """\b
Examples:
  anchorlens run study.toml --out runs/study
\b
A study's file:
  models = ["smollm2-135m-instruct"]
\b
  [[data]]
  name = "popqa"
  path = "popqa.jsonl"       # beside this file; the hub if left out
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

    The whole file is checked before the first model is loaded. Each finished sweep is written at once, with the figure of all so
    far, and stays when a later one fails or is stopped; --resume continues that one.
    """
    measure_study(given)


def measure_study(given: Mapping[str, Any]) -> None:
    check_out(given, "run")
    from dataclasses import replace

    from anchorlens.cli.measure import measure, plan_only
    from anchorlens.running.study import Study

    made = Study.from_toml(given["study"])
    made = replace(made, specifications=[one.replace(progress=not given["quiet"]) for one in made.specifications])
    if given["dry_run"]:
        plan_only(made, as_json=given["as_json"])
    else:
        measure(made, "run", given)
