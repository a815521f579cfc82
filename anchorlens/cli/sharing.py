"""Options with which several processes measure one run: a job's share, and workers."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from anchorlens.errors import InputError

if TYPE_CHECKING:
    from anchorlens.runs.workers import RayExecutor

SHARING = ("shard", "executor", "workers", "address", "gpus_per_worker")
"""Their names."""


def sharing_params() -> list[click.Option]:
    """The options."""
    return [
        click.Option(
            ["--shard"], default=None, metavar="i/n",
            help="Measure the i-th of n shares and keep it beside --out; other jobs measure theirs, `anchorlens merge` finishes.",
        ),
        click.Option(["--executor"], default=None, metavar="ray", help="Workers measure: pip install 'anchorlens[ray]'."),
        click.Option(["--workers"], type=int, default=None, help="Workers of --executor; as many as there is room for if left out."),
        click.Option(["--address"], default=None, help="Ray cluster of --executor, or auto; one on this machine if left out."),
        click.Option(
            ["--gpus-per-worker"], type=float, default=None,
            help="GPUs of a worker of --executor, also a part of one; as --n-devices if left out, where there are any and --device "
            "is not cpu.",
        ),
    ]  # fmt: skip


def with_sharing(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with these options."""
    params: list[click.Parameter] = getattr(command, "__click_params__", [])
    command.__click_params__ = [*params, *reversed(sharing_params())]  # pyright: ignore[reportFunctionMemberAccess]
    return command


def executor_of_options(given: Mapping[str, Any]) -> "RayExecutor | None":
    """The workers that were asked for; None where this process measures.

    Raises:
        InputError: What is said of workers, and no executor is given; or there is no such executor.
    """
    from anchorlens.runs.workers import RayExecutor, executor_of

    own = {name: given[name] for name in ("workers", "address", "gpus_per_worker") if given[name] is not None}
    if given["executor"] is None:
        if own:
            raise InputError(f"{next(iter(own))}= needs executor='ray'.")
        return None
    executor_of(given["executor"])
    return RayExecutor(**own)


__all__ = ["SHARING", "executor_of_options", "sharing_params", "with_sharing"]
