"""Build the functions ``NAME_sweep(model, data, ...)`` from the specifications of the protocols."""

import inspect
from collections.abc import Callable, Mapping, Sequence
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
_RUN_OPTIONS: dict[str, tuple[Any, Any, str]] = {
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

_LOAD_QUESTIONS = 'data = al.load_qa("triviaqa-sample", limit=110)'
_LOAD_PAIRS = 'pairs = al.load_pairs("ioi-pairs", limit=10)'
# Protocol -> lines of the example in its docstring, after the import and the model.
_EXAMPLES: dict[str, tuple[str, ...]] = {
    "swap": (
        'data = al.load_qa("popqa-sample", limit=20)',
        "sweep = al.swap_sweep(model, data, layers=(0, 24))",
        "sweep.delta_p.shape  # [anchor layer example]",
        "print(sweep.verdict)",
    ),
    "knockout": (
        _LOAD_QUESTIONS,
        "sweep = al.knockout_sweep(model, data, n_splits=1)",
        "sweep.probe_layer  # layer k*",
        "print(sweep.verdict)",
    ),
    "patch_tokens": (
        _LOAD_QUESTIONS,
        "sweep = al.patch_tokens_sweep(model, data, n_splits=1)",
        "print(sweep.verdict)",
    ),
    "answer_only": (
        _LOAD_QUESTIONS,
        "sweep = al.answer_only_sweep(model, data, n_splits=1)",
        "print(sweep.verdict)",
    ),
    "patch": (
        _LOAD_PAIRS,
        "grid = al.patch_sweep(model, pairs, layers=(0, 12, 24))",
        "al.plot_heatmap(grid).show()",
    ),
    "edges": (
        _LOAD_PAIRS,
        'edges = al.edge_sweep(model, pairs, receivers="logits")',
        "edges.table().head()  # the largest effects",
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
                f" {next(iter(spec_class.arguments()))}=..."
            )
        spec_class.check_names(kwargs, [*spec_class.arguments(), *_RUN_OPTIONS])
        options = {name: kwargs.pop(name) for name in _RUN_OPTIONS if name in kwargs}
        specification = spec(*args, **kwargs)
        directions = specification.each_direction()
        is_stored = any(value not in (None, False) for value in options.values())
        if is_stored or len(directions) > 1:
            return _run_stored(protocol, model, data, directions, options)
        found = run_sweep(LocalRunner(protocol, model, data, specification), specification)
        assert isinstance(found, result)  # declared by the protocol
        return found

    spec_class = protocol.spec
    sweep.__name__ = sweep.__qualname__ = name
    sweep.__module__ = type(protocol).__module__
    sweep.__doc__ = _make_docstring(spec_class, protocol)
    signature = _signature_of(spec_class, result)
    sweep.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return sweep


def _run_stored(
    protocol: Measurement[Any, Any, Any],
    model: Any,
    data: Any,
    directions: Sequence[Specification],
    options: Mapping[str, Any],
) -> Any:
    """Measure both directions, or a sweep with a run directory, a job or an executor.

    Returns:
        The result, those of both directions, or the status of the run after a job.
    """
    every = {name: options.get(name, default) for name, (_, default, _) in _RUN_OPTIONS.items()}
    out = every.pop("out")
    if out is None and every["overwrite"]:
        raise InputError("overwrite=True needs a run directory. Give out=.", argument="overwrite")

    def prepare(check_models: bool) -> list[Step]:  # noqa: ARG001 - checked when loaded
        loaded = protocol.source.load(data, directions[0].seed)
        return [(protocol, model, loaded, specification) for specification in directions]

    outcome = Outcome(0, None)
    try:
        run_steps(prepare, [model], Loading(), out, done=outcome, **every)
    except KeyboardInterrupt:
        # What is kept, in place of the thirty lines of where it stopped.
        raise KeyboardInterrupt(f"Stopped. {outcome.kept}") from None
    if outcome.job is not None and out is not None:
        return status_of(out)
    if len(directions) > 1:
        return BothDirections.of(outcome.results)
    (found,) = outcome.results
    return found


def _signature_of(spec: type[Specification], result: type[SweepResult]) -> inspect.Signature:
    """Return the signature of a sweep function; model and data alone have a position."""
    by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, by_place, annotation=Any) for name in ("model", "data")]
    kinds: list[tuple[str, Any, Any]] = []
    for name in spec.arguments():
        field = spec.model_fields[name]
        kinds.append((name, _plain_type(field.annotation), field.get_default()))
    kinds += [(name, kind, default) for name, (kind, default, _) in _RUN_OPTIONS.items()]
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


def _make_docstring(spec: type[Specification], protocol: Measurement[Any, Any, Any]) -> str:
    made = protocol.analysis.result
    options: dict[str, Argument] = {}
    for name, (_, _, text) in _RUN_OPTIONS.items():
        options[name] = Argument(help=text, execution_only=True)
    first, *others = group_arguments(spec.arguments() | options).items()
    sections = "\n\n".join(f"Args: {title}\n{_describe(own)}" for title, own in others)
    return f"""{spec.description() or protocol.analysis.title}

{_make_examples(protocol.name)}Args:
    model: A HookedTransformer from :func:`anchorlens.load_model`, or an argument for it: a name,
        a path or a live model.
    data: A loaded data set (:func:`anchorlens.load_qa`, :func:`anchorlens.load_pairs`), or the
        first argument of its loader.
{_describe(first[1])}

{sections}

Returns:
    A :class:`~{made.__module__}.{made.__name__}`.

Raises:
    InputError: If an argument is invalid, or the model lacks a layer, head or site.
    EmptySweepError: If no row is left; the message counts the reasons.
    RunError: If ``out`` holds another run, is in use by another process, or cannot be written.
    CheckError: If a spot check by the reference engine gives another number.
"""


def _make_examples(name: str) -> str:
    """Return the section with the example of a protocol; empty for a protocol of the user's."""
    if name not in _EXAMPLES:
        return ""
    model = 'model = al.load_model("smollm2-135m-instruct")'
    # They measure, so doctest skips them.
    lines = [f"    >>> {line}  # doctest: +SKIP" for line in (model, *_EXAMPLES[name])]
    return "\n".join(["Examples:", "    >>> import anchorlens as al", *lines, "", ""])


def _describe(arguments: Mapping[str, Argument]) -> str:
    return "\n".join(f"    {name}: {one.help}" for name, one in arguments.items())


swap_sweep = make_sweep_function(measurement_of("swap"), Swap, SweepResult)
knockout_sweep = make_sweep_function(measurement_of("knockout"), Knockout, PathwayResult)
patch_tokens_sweep = make_sweep_function(measurement_of("patch_tokens"), PatchTokens, PathwayResult)
patch_sweep = make_sweep_function(measurement_of("patch"), Patch, PatchResult)
edge_sweep = make_sweep_function(measurement_of("edges"), Edges, EdgeResult)
answer_only_sweep = make_sweep_function(measurement_of("answer_only"), AnswerOnly, PathwayResult)
