"""Build the functions ``NAME_sweep(model, data, ...)`` from the specifications of the protocols."""

import inspect
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, Union, get_args, get_origin

from pydantic import ByteSize

from anchorlens.errors import InputError
from anchorlens.protocols.answer_only.spec import AnswerOnly
from anchorlens.protocols.arguments import Argument, group_arguments
from anchorlens.protocols.base import Measurement
from anchorlens.protocols.edges.edge_result import EdgeResult
from anchorlens.protocols.edges.spec import Edges
from anchorlens.protocols.knockout.spec import Knockout
from anchorlens.protocols.patch.patch_result import PatchResult
from anchorlens.protocols.patch.spec import Patch
from anchorlens.protocols.patch_tokens.spec import PatchTokens
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult
from anchorlens.protocols.registry import function_of, measurement_of
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.swap.spec import Swap
from anchorlens.results.both_directions import BothDirections
from anchorlens.results.sweep import SweepResult
from anchorlens.running.executors import Loading
from anchorlens.running.run_study import Outcome, Step, run_steps
from anchorlens.running.runner import LocalRunner, run_sweep
from anchorlens.runs.status import status_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result", bound=SweepResult)

# Arguments beside the specification: type, default and help. They affect no number.
_KEPT: dict[str, tuple[Any, Any, str]] = {
    "out": (
        "str | os.PathLike[str] | None",
        None,
        (
            "Run directory to write; finished shards are stored beside it (``OUT.parts``) until the"
            " sweep is finished."
        ),
    ),
    "overwrite": (bool, False, "Replace an existing run."),
    "resume": (bool, False, "Continue a stopped sweep; what is stored is not measured again."),
    "restart": (bool, False, "Discard the shards of a stopped sweep and start again."),
    "job": (
        "str | tuple[int, int] | None",
        None,
        (
            "``'2/8'`` or ``(2, 8)``: measure the second of eight parts and store it beside"
            " ``out``. Returns a :class:`~anchorlens.runs.status.RunStatus`; after all jobs,"
            " ``resume=True`` finishes the run."
        ),
    ),
    "executor": (
        "str | RayExecutor | None",
        None,
        (
            "``'ray'`` or an :class:`~anchorlens.RayExecutor`: measure in workers, each with its"
            " own copy of the model, which must be given by name or path."
        ),
    ),
}


def make_sweep_function(
    protocol: Measurement[Any, Any, Any],
    spec: Callable[Arguments, Specification],
    result: type[Result],
) -> Callable[Concatenate[Any, Any, Arguments], Result]:
    """Build ``NAME_sweep(model, data, ...)`` of a protocol, with the arguments of its
    specification.
    """
    name = function_of(protocol.name)

    def sweep(model: Any, data: Any, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
        if args:
            raise InputError(
                f"{name} takes keyword arguments after model and data, such as"
                f" {next(iter(made.arguments()))}=..."
            )
        made.check_names(kwargs, [*made.arguments(), *_KEPT])
        kept: dict[str, Any] = {name: kwargs.pop(name) for name in _KEPT if name in kwargs}
        one = spec(*args, **kwargs)
        each = one.each_direction()
        if len(each) == 1 and not any(value not in (None, False) for value in kept.values()):
            done = run_sweep(LocalRunner(protocol, model, data, one), one)
        else:
            given = {name: kept.get(name, default) for name, (_, default, _) in _KEPT.items()}
            out = given.pop("out")
            if out is None and given["overwrite"]:
                raise InputError(
                    "overwrite=True needs a run directory. Give out=.", argument="overwrite"
                )

            def prepare(check_models: bool) -> list[Step]:  # noqa: ARG001 - checked when loaded
                loaded = protocol.source.load(data, one.seed)
                return [(protocol, model, loaded, single) for single in each]

            outcome = Outcome(0, None)
            try:
                run_steps(prepare, [model], Loading(), out, done=outcome, **given)
            except KeyboardInterrupt:
                # What is kept, in place of the thirty lines of where it stopped.
                raise KeyboardInterrupt(f"Stopped. {outcome.kept}") from None
            if outcome.job is not None and out is not None:
                return status_of(out)
            if len(each) > 1:
                return BothDirections.of(outcome.results)
            (done,) = outcome.results
        assert isinstance(done, result)  # declared by the protocol
        return done

    made = protocol.spec
    sweep.__name__ = sweep.__qualname__ = name
    sweep.__module__ = type(protocol).__module__
    sweep.__doc__ = _documented(made, protocol)
    signature = _signature_of(made, result)
    sweep.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return sweep


def _signature_of(spec: type[Specification], result: type[SweepResult]) -> inspect.Signature:
    """Return the signature of a sweep function; model and data alone have a position."""
    by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, by_place, annotation=Any) for name in ("model", "data")]
    kinds: list[tuple[str, Any, Any]] = []
    for name in spec.arguments():
        field = spec.model_fields[name]
        kinds.append((name, _plain_type(field.annotation), field.get_default()))
    kinds += [(name, kind, default) for name, (kind, default, _) in _KEPT.items()]
    by_name = inspect.Parameter.KEYWORD_ONLY
    for name, kind, default in kinds:
        one = inspect.Parameter(name, by_name, default=default, annotation=kind)
        parameters.append(one)
    return inspect.Signature(parameters, return_annotation=result)


def _plain_type(annotation: Any) -> Any:
    """Return a type without the checks of pydantic, as a reader of a signature needs it."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain_type(get_args(annotation)[0])
    if annotation is ByteSize:
        return int | str
    if origin not in (Union, UnionType):
        return annotation
    first, *others = map(_plain_type, get_args(annotation))
    for other in others:
        first = first | other
    return first


def _documented(spec: type[Specification], protocol: Measurement[Any, Any, Any]) -> str:
    made = protocol.analysis.result
    kept = {name: Argument(help=said, execution_only=True) for name, (_, _, said) in _KEPT.items()}
    first, *others = group_arguments(spec.arguments() | kept).items()
    sections = "\n\n".join(f"Args: {title}\n{_described(own)}" for title, own in others)
    return f"""{inspect.cleandoc(spec.__doc__ or protocol.analysis.title)}

Args:
    model: A HookedTransformer from :func:`anchorlens.load_model`, or an argument for it: a name,
        a path or a live model.
    data: A loaded data set (:func:`anchorlens.load_qa`, :func:`anchorlens.load_pairs`), or the
        first argument of its loader.
{_described(first[1])}

{sections}

Returns:
    A :class:`~{made.__module__}.{made.__name__}`.

Raises:
    InputError: If an argument is invalid, or the model lacks a layer, head or site.
    EmptySweepError: If no row is left; the message counts the reasons.
    RunError: If ``out`` holds another run, is in use by another process, or cannot be written.
    CheckError: If a spot check by the reference engine gives another number.
"""


def _described(arguments: Mapping[str, Argument]) -> str:
    return "\n".join(f"    {name}: {one.help}" for name, one in arguments.items())


swap_sweep = make_sweep_function(measurement_of("swap"), Swap, SweepResult)
knockout_sweep = make_sweep_function(measurement_of("knockout"), Knockout, PathwayResult)
patch_tokens_sweep = make_sweep_function(measurement_of("patch_tokens"), PatchTokens, PathwayResult)
patch_sweep = make_sweep_function(measurement_of("patch"), Patch, PatchResult)
edge_sweep = make_sweep_function(measurement_of("edges"), Edges, EdgeResult)
answer_only_sweep = make_sweep_function(measurement_of("answer_only"), AnswerOnly, PathwayResult)
