"""``anchorlens run study.toml``: several models, data sets and protocols in one run directory."""

from collections.abc import Mapping
from typing import Any

import click

from anchorlens.cli.sharing import with_sharing

EPILOG = """\b
Examples:
  anchorlens run study.toml --out runs/study
\b
A study's file:
  models = ["smollm2-135m-instruct"]
\b
  [[data]]
  name = "popqa"
  path = "popqa.jsonl"       # beside this file; the hub where it is left out
  limit = 200
\b
  [[data]]
  name = "nq-sample"
\b
  [[protocol]]
  name = "swap"
  n_donors = 2               # the options of `anchorlens swap --help`
\b
  [[protocol]]
  name = "knockout"
"""


@click.command("run", epilog=EPILOG, short_help="Measure a study: several models, data sets and protocols")
@click.argument("study", metavar="STUDY.toml")
@click.option("--out", "-o", default=None, metavar="DIR", help="Run directory to write.  [required]")
@click.option("--overwrite", is_flag=True, help="Replace a run that is there.")
@click.option("--resume", is_flag=True, help="Continue a run that was stopped; what was measured is not measured again.")
@click.option("--force-new", is_flag=True, help="Throw away what a run that was stopped had measured, and begin again.")
@with_sharing
@click.option("--dry-run", is_flag=True, help="Only print what would be measured, and what it costs. Needs no --out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
@click.option("--quiet", "-q", is_flag=True, help="No progress bars.")
def run_command(**given: Any) -> None:
    """Measure every protocol of a study on every model and data set.

    Everything in the file is looked at before the first model is loaded. Each finished sweep is written at once, with the figure
    of all that is there so far, and stays when a later one fails or is stopped. So does what was measured of that one: --resume
    continues.
    """
    measure_study(given)


def measure_study(given: Mapping[str, Any]) -> None:
    """Measure what the options of the command say."""
    if not given["out"] and not given["dry_run"]:
        raise click.UsageError("--out is missing. See `anchorlens run --help` for an example.")
    if given["out"]:
        from anchorlens.runs.store import check_target

        check_target(given["out"], overwrite=any(given[name] for name in ("overwrite", "resume", "force_new", "shard")))
    from dataclasses import replace

    from anchorlens.cli.measure import measure, plan_only
    from anchorlens.protocols.study import Study

    made = Study.from_toml(given["study"])
    made = replace(made, specifications=[one.changed(progress=not given["quiet"]) for one in made.specifications])
    if given["dry_run"]:
        plan_only(made, as_json=given["as_json"])
    else:
        measure(made, "run", given)


__all__ = ["measure_study", "run_command"]
