"""The work behind ``anchorlens run``: data, models, sweeps, or only their plans."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from anchorlens.cli_input import data_files
from anchorlens.cli_output import note
from anchorlens.errors import EmptySweepError, InputError

if TYPE_CHECKING:
    from anchorlens.engine.plan import SweepPlan
    from anchorlens.questions.datasets import QAData
    from anchorlens.results.sweep import SweepResult


def load_data(datasets: Sequence[str], files: Sequence[str], limit: int | None, seed: int) -> "list[QAData]":
    from anchorlens.questions.datasets import load_qa

    if len(set(datasets)) != len(datasets):
        raise InputError(f"Each --dataset once; got {', '.join(datasets)}.")
    paths = data_files(datasets, files)
    return [load_qa(name, path=paths.get(name), limit=limit, seed=seed) for name in datasets]


_ONLY = {
    "swap": ("anchors", "direction", "donors", "n_donors", "align", "known_only", "null_donors"),
    "knockout": ("edges", "mode", "cut_layers", "heads", "split", "placebos"),
}


def check_protocol(protocol: str) -> None:
    """An option that this protocol does not have is a mistake, not something to pass over.

    Raises:
        InputError: One was given.
    """
    ctx = click.get_current_context()
    for other, names in _ONLY.items():
        for name in names:
            source = ctx.get_parameter_source(name)
            if other != protocol and source not in (click.core.ParameterSource.DEFAULT, None):
                flag = next(p.opts[0] for p in ctx.command.params if p.name == name)
                raise InputError(f"{flag} belongs to --protocol {other}; this run has --protocol {protocol}.")


class _Planned(Exception):  # noqa: N818 - it ends a sweep on purpose
    """Carries the plan out of a sweep before anything is measured."""

    def __init__(self, plan: "SweepPlan") -> None:
        super().__init__()
        self.plan = plan


@dataclass(frozen=True)
class Request:
    """What ``anchorlens run`` was asked for: every model on every data set.

    Attributes:
        protocol: ``swap`` or ``knockout``.
        models: Names or directories.
        data: Data sets.
        options: Keyword arguments of the sweep.
        device: Where the models run.
        dtype: Their number type.
    """

    protocol: str
    models: Sequence[str]
    data: "Sequence[QAData]"
    options: dict[str, Any]
    device: str | None
    dtype: str | None


def sweeps(request: Request, plans: "list[tuple[str, str, SweepPlan]] | None" = None) -> "tuple[list[SweepResult], list[str]]":
    """Every model on every data set; a set without a row does not stop the others. With ``plans``, only these are made."""

    def stop(plan: "SweepPlan") -> None:
        raise _Planned(plan)

    options = request.options if plans is None else {**request.options, "on_plan": stop}
    from anchorlens.analysis.knockout import knockout_sweep
    from anchorlens.analysis.swap import swap_sweep
    from anchorlens.models.load import load_model

    results: list[SweepResult] = []
    empty: list[str] = []
    sweep = swap_sweep if request.protocol == "swap" else knockout_sweep
    for name in request.models:
        model = load_model(name, device=request.device, dtype=request.dtype)
        for qa in request.data:
            try:
                results.append(sweep(model, qa, **options))
            except _Planned as why:
                assert plans is not None
                plans.append((name, qa.name, why.plan))
            except EmptySweepError as why:
                empty.append(str(why))
                note(f"{name} on {qa.name}: {why}")
        del model
    return results, empty


def plan_only(request: Request, *, as_json: bool) -> None:
    """Print what each model on each data set would cost; nothing is measured or written."""
    plans: list[tuple[str, str, SweepPlan]] = []
    _, empty = sweeps(request, plans)
    if not plans:
        raise EmptySweepError(" ".join(empty))
    found: list[dict[str, Any]] = []
    for name, dataset, plan in plans:
        own = {"model": name, "dataset": dataset, "rows": plan.questions, "seconds": round(plan.seconds, 2)}
        found.append({**own, **plan.to_dict()})
        if not as_json:
            click.echo(f"{name} on {dataset}: {plan}")
    if as_json:
        click.echo(json.dumps(found))
