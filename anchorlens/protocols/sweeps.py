"""The functions ``NAME_sweep(model, data, ...)``: a protocol's short way, made of its specification."""

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from anchorlens.errors import InputError
from anchorlens.protocols.driver import carried_out, run
from anchorlens.protocols.keeping import check_keeping, finished, identity, keeping, load_sweeps
from anchorlens.protocols.plug import SweepProtocol
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.spread import at_work, refuse_live
from anchorlens.questions.datasets import QAData, load_qa
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.shares import Share, share_of
from anchorlens.runs.status import status_of
from anchorlens.runs.workers import RayExecutor, executor_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result", bound=SweepResult)

# What a sweep takes beside its specification: type, default and what it does. No number hangs on these.
_KEPT: dict[str, tuple[Any, Any, str]] = {
    "out": (
        "str | os.PathLike[str] | None", None,
        "Run directory to write; what is measured is kept beside it (``OUT.parts``) until the sweep is finished.",
    ),
    "overwrite": (bool, False, "Replace a run that is there."),
    "resume": (bool, False, "Continue a sweep that was stopped; what was measured is not measured again."),
    "force_new": (bool, False, "Throw away what a sweep that was stopped had measured, and begin again."),
    "shard": (
        "str | tuple[int, int] | None", None,
        "``'2/8'`` or ``(2, 8)``: measure the second of eight shares and keep it beside ``out``, while others measure theirs. A "
        ":class:`~anchorlens.runs.status.RunStatus` is returned then; when all are there, ``resume=True`` finishes the run.",
    ),
    "executor": (
        "str | RayExecutor | None", None,
        "``'ray'`` or an :class:`~anchorlens.RayExecutor`: workers measure, each with a model of its own. Give the model by name "
        "or path.",
    ),
}  # fmt: skip


def short_way(
    protocol: SweepProtocol[Any, Any], spec: Callable[Arguments, Specification], result: type[Result]
) -> Callable[Concatenate[Any, Any, Arguments], Result]:
    """The function ``NAME_sweep(model, data, ...)`` of a protocol; its arguments are those of the specification."""

    def sweep(model: Any, data: Any, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
        if args:
            raise InputError(
                f"{protocol.name}_sweep takes its arguments by name: {next(iter(made.arguments()))}=..., and so on."
            )
        kept: dict[str, Any] = {name: kwargs.pop(name) for name in _KEPT if name in kwargs}
        one = spec(*args, **kwargs)
        if not any(value not in (None, False) for value in kept.values()):
            done = run(protocol, model, data, one)
        else:
            given = {name: kept.get(name, default) for name, (_, default, _) in _KEPT.items()}
            given |= {"share": share_of(given.pop("shard")), "executor": executor_of(given["executor"])}
            done = _carried_out(protocol, model, data, one, **given)
            if given["share"] is not None:
                return status_of(given["out"])
        assert isinstance(done, result)  # the protocol says what it makes
        return done

    made = protocol.spec
    sweep.__name__ = sweep.__qualname__ = f"{protocol.name}_sweep"
    sweep.__module__ = type(protocol).__module__
    sweep.__doc__ = _documented(made, protocol)
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Any) for name in ("model", "data")]
    rest = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.get_default(), annotation=field.annotation)
        for name, field in ((name, made.model_fields[name]) for name in made.arguments())
    ]
    last = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default, _) in _KEPT.items()
    ]
    sweep.__signature__ = inspect.Signature([*first, *rest, *last], return_annotation=result)  # pyright: ignore[reportFunctionMemberAccess]
    return sweep


def _carried_out(
    protocol: SweepProtocol[Any, Any], model: Any, data: Any, spec: Specification, *, out: Any, overwrite: bool, resume: bool,
    force_new: bool, share: Share | None, executor: RayExecutor | None,
) -> SweepResult | None:  # fmt: skip
    """A sweep that is kept as it is measured, or that others measure."""
    check_keeping(out, overwrite=overwrite, resume=resume, force_new=force_new, share=share)
    refuse_live(executor, [model])
    if out is None and overwrite:
        raise InputError("overwrite=True needs a run directory: give out=.")
    qa = data if isinstance(data, QAData) else load_qa(data, seed=spec.seed)
    if out is None:
        with at_work(executor) as who:
            return carried_out(lambda: who.station(protocol, model, qa, spec), spec)
    sweeps = [identity(model, qa, spec)]
    if (resume or share is not None) and finished(out, sweeps):
        (done,) = load_sweeps(out, lambda name: protocol)  # noqa: ARG005
        return done
    with (
        keeping(out, sweeps, overwrite=overwrite, resume=resume, force_new=force_new, share=share) as kept,
        at_work(executor) as who,
    ):
        done = carried_out(lambda: who.station(protocol, model, qa, spec), spec, kept.journal.sweep(0))
        if done is not None:
            kept.write([done])
    return done


def _documented(spec: type[Specification], protocol: SweepProtocol[Any, Any]) -> str:
    """A docstring with every argument's own help."""
    lines = [inspect.cleandoc(spec.__doc__ or protocol.title), "", "Args:"]
    lines.append(
        "    model: A HookedTransformer from :func:`anchorlens.load_model`, or what that takes: a name, a path, a live model."
    )
    lines.append("    data: From :func:`anchorlens.load_qa`, or what it takes as its first argument.")
    lines += [f"    {name}: {one.help}" for name, one in spec.arguments().items()]
    lines += [f"    {name}: {said}" for name, (_, _, said) in _KEPT.items()]
    lines += ["", "Returns:", f"    A :class:`~{protocol.result.__module__}.{protocol.result.__name__}`.", "", "Raises:"]
    lines.append("    InputError: An argument is not one of those above, or the model lacks what it names.")
    lines.append("    EmptySweepError: No row is left; the message counts the reasons.")
    lines.append("    RunError: What stands at ``out`` is another run, another process measures it, or it cannot be written.")
    lines.append("    CheckError: A cell that was measured again by the oracle came out differently.")
    return "\n".join(lines) + "\n"


__all__ = ["short_way"]
