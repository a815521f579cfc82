"""Options shared by the measuring commands: TOML file, data files, output and executor."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anchorlens.errors import InputError, did_you_mean
from anchorlens.protocols.specification import read_toml

if TYPE_CHECKING:
    from anchorlens.running.executors import RayExecutor


EXECUTION_OPTIONS = ("job", "executor", "workers", "address", "gpus_per_worker")
"""Options for measuring a run in several processes."""


BACKEND_HELP = (
    "hooked (HookedTransformer) or bridge (TransformerBridge)."
    " If left out: hooked with transformer-lens 3.9, else bridge."
)


def output_options() -> list[click.Parameter]:
    """Return the output and executor options of the measuring commands."""
    job = (
        "Measure job i of n and store its shards in OUT.parts;"
        " `anchorlens merge` combines the jobs."
    )
    gpus = (
        "GPUs per worker, may be a fraction."
        " If left out: --n-devices, or 0 without a GPU or with --device cpu."
    )
    dry_run = (
        "Print cells, batches, FLOPs, seconds and memory without measuring."
        " Needs no --out; model answers are generated."
    )
    return [
        click.Option(
            ["--out", "-o"], default=None, metavar="DIR", help="Run directory to write.  [required]"
        ),
        click.Option(["--overwrite"], is_flag=True, help="Replace an existing run."),
        click.Option(
            ["--resume"], is_flag=True, help="Continue a stopped run; measured shards are kept."
        ),
        click.Option(
            ["--restart"], is_flag=True, help="Delete the shards of a stopped run and start again."
        ),
        click.Option(["--job"], default=None, metavar="i/n", help=job),
        click.Option(
            ["--executor"],
            default=None,
            metavar="ray",
            help="Measure in Ray workers (pip install 'anchorlens[ray]').",
        ),
        click.Option(
            ["--workers"],
            type=int,
            default=None,
            help="Number of workers of --executor; as many as fit if left out.",
        ),
        click.Option(
            ["--address"],
            default=None,
            help="Address of the Ray cluster, or auto; a local cluster if left out.",
        ),
        click.Option(["--gpus-per-worker"], type=float, default=None, help=gpus),
        click.Option(["--dry-run"], is_flag=True, help=dry_run),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print one JSON object for scripts."
        ),
        click.Option(["--quiet", "-q"], is_flag=True, help="Hide progress bars."),
    ]


def check_output_options(given: Mapping[str, Any], command: str) -> None:
    """Raise if an option of :func:`output_options` is invalid, or ``--out`` holds a run that must
    not be replaced.
    """
    from anchorlens.runs.jobs import parse_job

    job = parse_job(given["job"])
    replaces = {name: given[name] for name in ("overwrite", "resume", "restart")}
    if given["out"]:
        from anchorlens.runs.final_write import check_target

        check_target(given["out"], overwrite=any(replaces.values()) or job is not None)
    elif not given["dry_run"]:
        raise click.UsageError(f"--out is missing. See `anchorlens {command} --help` for examples.")
    from anchorlens.running.run_storage import check_run_options

    check_run_options(given["out"] or "", **replaces, job=job)
    executor_of_options(given)


def read_config(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    value: str | None,
) -> str | None:
    if value is None:
        return None
    known: dict[str, click.Parameter] = {}
    for one in ctx.command.params:
        own_name = one.name
        if own_name is not None and own_name not in ("config", "help"):
            known[own_name] = one
    flags = {one.opts[0].lstrip("-").replace("-", "_"): name for name, one in known.items()}
    defaults: dict[str, Any] = {}
    for key, item in read_toml(Path(value)).items():
        plain = key.replace("-", "_")
        name = plain if plain in known else flags.get(plain, plain)
        if name not in known:
            near = did_you_mean(plain, [one for one in known if one])
            raise InputError(f"{value}: unknown key '{key}'. {near}")
        if isinstance(item, Mapping):
            raise InputError(f"{value}: '{key}' must be a value or a list, not a table.")
        items = [str(one) for one in item] if isinstance(item, list) else [str(item)]
        if known[name].multiple:  # pyright: ignore[reportAttributeAccessIssue]
            defaults[name] = items
        else:
            # Text, because click would round 2.5 to a whole number.
            defaults[name] = ",".join(items)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return value


def data_files(
    datasets: Sequence[str], files: Sequence[str], flag: str = "--data-file", what: str = "data set"
) -> dict[str, str]:
    """Return the path of each name, given as ``NAME=FILE`` or in order."""
    named: dict[str, str] = {}
    unnamed: list[str] = []
    for entry in files:
        name, sign, path = entry.partition("=")
        if sign and name in datasets:
            named[name] = path
        elif sign and not Path(entry).exists():
            raise InputError(
                f"{flag} {entry}: unknown {what} '{name}'. {did_you_mean(name, datasets)}"
            )
        else:
            unnamed.append(entry)
    free = [name for name in dict.fromkeys(datasets) if name not in named]
    if len(unnamed) > len(free):
        n = len(set(datasets))
        raise InputError(
            f"{flag}: {len(files)} files for {n} {what}{'s' * (n > 1)}."
            " Give one for each, in order, or NAME=FILE."
        )
    return named | dict(zip(free, unnamed, strict=False))


def executor_of_options(given: Mapping[str, Any]) -> "RayExecutor | None":
    """Return the Ray executor of the options; None to measure in this process."""
    names = ("workers", "address", "gpus_per_worker")
    own = {name: given[name] for name in names if given[name] is not None}
    if given["executor"] is None:
        if own:
            raise InputError(f"{next(iter(own))}= needs executor='ray'.", argument=next(iter(own)))
        return None
    from anchorlens.running.executors import RayExecutor, executor_of

    executor_of(given["executor"])
    return RayExecutor(**own)
