"""``anchorlens run study.toml``: several models, data sets and protocols in one run directory."""

import click

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
@click.option("--dry-run", is_flag=True, help="Only print what would be measured, and what it costs. Needs no --out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
@click.option("--quiet", "-q", is_flag=True, help="No progress bars.")
def run_command(
    study: str, out: str | None, overwrite: bool, resume: bool, force_new: bool, dry_run: bool, as_json: bool, quiet: bool
) -> None:
    """Measure every protocol of a study on every model and data set.

    Everything in the file is looked at before the first model is loaded. Each finished sweep is written at once, with the figure
    of all that is there so far, and stays when a later one fails or is stopped. So does what was measured of that one: --resume
    continues.
    """
    if not out and not dry_run:
        raise click.UsageError("--out is missing. See `anchorlens run --help` for an example.")
    if out:
        from anchorlens.runs.store import check_target

        check_target(out, overwrite=overwrite or resume or force_new)
    from dataclasses import replace

    from anchorlens.cli.measure import measure, plan_only
    from anchorlens.protocols.study import Study

    made = Study.from_toml(study)
    made = replace(made, specifications=[one.changed(progress=not quiet) for one in made.specifications])
    if dry_run:
        plan_only(made, as_json=as_json)
    else:
        measure(made, out, overwrite=overwrite, resume=resume, force_new=force_new, as_json=as_json)


__all__ = ["run_command"]
