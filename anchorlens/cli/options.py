"""Options that measuring commands share: a TOML file of options, data files, where to write, what to print."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anchorlens.errors import InputError, did_you_mean
from anchorlens.protocols.specification import read_toml

if TYPE_CHECKING:
    from anchorlens.running.executors import RayExecutor


EXECUTION_OPTIONS = ("job", "executor", "workers", "address", "gpus_per_worker")
"""Options for measuring one run in several processes."""


def output_options() -> list[click.Parameter]:
    """Return the options of every measuring command on what is written and printed, and on who measures."""
    job = "Measure the i-th of n shares and keep it beside --out; other jobs measure theirs, `anchorlens merge` finishes."
    gpus = "GPUs of a worker, also a part of one; as --n-devices if left out, where there are any and --device is not cpu."
    dry_run = "Only print cells, batches, FLOPs, seconds and memory. Needs no --out; answers of the model are still generated."
    return [
        click.Option(["--out", "-o"], default=None, metavar="DIR", help="Run directory to write.  [required]"),
        click.Option(["--overwrite"], is_flag=True, help="Replace a run that is there."),
        click.Option(["--resume"], is_flag=True, help="Continue a run that was stopped; what was measured is not measured again."),
        click.Option(["--restart"], is_flag=True, help="Throw away what a run that was stopped had measured, and begin again."),
        click.Option(["--job"], default=None, metavar="i/n", help=job),
        click.Option(["--executor"], default=None, metavar="ray", help="Workers measure: pip install 'anchorlens[ray]'."),
        click.Option(["--workers"], type=int, default=None, help="Workers of --executor; as many as there is room for if left out."),
        click.Option(["--address"], default=None, help="Ray cluster of --executor, or auto; one on this machine if left out."),
        click.Option(["--gpus-per-worker"], type=float, default=None, help=gpus),
        click.Option(["--dry-run"], is_flag=True, help=dry_run),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object for scripts."),
        click.Option(["--quiet", "-q"], is_flag=True, help="No progress bars."),
    ]  # fmt: skip


def check_out(given: Mapping[str, Any], command: str) -> None:
    """Raise if ``--out`` is missing or holds a run that must stay."""
    if given["out"]:
        from anchorlens.runs.store import check_target

        check_target(given["out"], overwrite=any(given[name] for name in ("overwrite", "resume", "restart", "job")))
    elif not given["dry_run"]:
        raise click.UsageError(f"--out is missing. See `anchorlens {command} --help` for examples.")


def read_config(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    if value is None:
        return None
    known = {one.name: one for one in ctx.command.params if one.name not in (None, "config", "help")}
    flags = {one.opts[0].lstrip("-").replace("-", "_"): name for name, one in known.items()}
    defaults: dict[str, Any] = {}
    for key, item in read_toml(Path(value)).items():
        plain = key.replace("-", "_")
        name = plain if plain in known else flags.get(plain, plain)
        if name not in known:
            raise InputError(f"{value}: unknown key '{key}'. {did_you_mean(plain, [k for k in known if k])}")
        if isinstance(item, Mapping):
            raise InputError(f"{value}: '{key}' must be a value or a list, not a table.")
        items = [str(one) for one in item] if isinstance(item, list) else [str(item)]
        if known[name].multiple:  # pyright: ignore[reportAttributeAccessIssue]
            defaults[name] = items
        else:
            defaults[name] = ",".join(items) if isinstance(item, list) else item
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return value


def data_files(
    datasets: Sequence[str], files: Sequence[str], flag: str = "--data-file", what: str = "data set"
) -> dict[str, str]:
    """Assign paths to names, by ``NAME=FILE`` or in order."""
    named: dict[str, str] = {}
    unnamed: list[str] = []
    for entry in files:
        name, sign, path = entry.partition("=")
        if sign and name in datasets:
            named[name] = path
        elif sign and not Path(entry).exists():
            raise InputError(f"{flag} {entry}: no {what} is called '{name}'. {did_you_mean(name, datasets)}")
        else:
            unnamed.append(entry)
    free = [name for name in dict.fromkeys(datasets) if name not in named]
    if len(unnamed) > len(free):
        n = len(set(datasets))
        raise InputError(f"{len(files)} {flag} for {n} {what}{'s' * (n > 1)}. Give one for each, in order, or NAME=FILE.")
    return named | dict(zip(free, unnamed, strict=False))


def executor_of_options(given: Mapping[str, Any]) -> "RayExecutor | None":
    """Return the options of the workers; None if this process measures."""
    from anchorlens.running.executors import RayExecutor, executor_of

    own = {name: given[name] for name in ("workers", "address", "gpus_per_worker") if given[name] is not None}
    if given["executor"] is None:
        if own:
            raise InputError(f"{next(iter(own))}= needs executor='ray'.")
        return None
    executor_of(given["executor"])
    return RayExecutor(**own)
