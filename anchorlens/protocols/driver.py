"""One driver for every protocol: from a model, questions and a specification to a result.

Tokenizer and prompt, shots, the engine, units, progress, memory that runs out, checked cells and the record are done
here, once; what is measured is the protocol's (:mod:`anchorlens.protocols.plug`).
"""

import inspect
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Concatenate, ParamSpec, TypeVar

import pandas as pd
import torch

from anchorlens.engine.engine import Engine
from anchorlens.engine.select import choose_engine
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import card_of, name_of
from anchorlens.models.load import as_hooked
from anchorlens.progress import progress
from anchorlens.protocols.plug import Bench, Plan, SweepProtocol
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.trust import Trust
from anchorlens.questions.datasets import QAData, load_qa
from anchorlens.questions.prompts import FewShotPrompt, make_prompt
from anchorlens.questions.tokenised import drop
from anchorlens.questions.tokens import RowTokenizer
from anchorlens.results.sweep import SweepResult
from anchorlens.results.tables import examples_frame
from anchorlens.runs.provenance import data_record, environment, model_record, run_id_of
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES, settings_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result", bound=SweepResult)


def run(protocol: SweepProtocol[Any, Any], model: Any, data: Any, spec: Specification) -> SweepResult:
    """Measure every cell of a sweep.

    Args:
        protocol: What is measured.
        model: A HookedTransformer, or what :func:`anchorlens.load_model` takes.
        data: From :func:`anchorlens.load_qa`, or what it takes as its first argument.
        spec: The protocol's specification.

    Raises:
        InputError: The model cannot be measured so, or nothing fits into the memory that was given.
        EmptySweepError: No row is left; the message counts the reasons.
        CheckError: A cell that was measured again by the oracle came out differently.
    """
    # Tables of indices belong on the CPU, whatever the user's default device is.
    with torch.device("cpu") if torch.get_default_device().type != "cpu" else nullcontext():
        return _run(protocol, Adapter(as_hooked(model)), data, spec)


def _run(protocol: SweepProtocol[Any, Any], adapter: Adapter, data: Any, spec: Specification) -> SweepResult:
    protocol.fit_to(spec, adapter)
    qa = data if isinstance(data, QAData) else load_qa(data, seed=spec.seed)
    bench = set_up(adapter, qa, spec, asking=protocol.asking(spec))
    ready = protocol.prepare(bench, spec)
    engine = choose_engine(adapter, spec.engine, ready.trial, ready.sites)
    plan = protocol.plan(engine, ready, spec)
    if spec.on_plan is not None:
        spec.on_plan(plan.cost)
    return _measured(protocol, bench, engine, ready, plan, spec)


def set_up(adapter: Adapter, data: QAData, spec: Specification, *, asking: bool) -> Bench:
    """Tokenizer, prompt and rows."""
    hf = adapter.model.tokenizer
    if hf is None:
        raise InputError(
            "This HookedTransformer has no tokenizer. Set model.tokenizer, or load it with anchorlens.load_model."
        )
    prompt = make_prompt(spec.prompt, data.examples, data.pool, spec.seed)
    tokenizer = RowTokenizer(hf, prompt, add_bos=spec.add_bos, max_length=adapter.shape.n_ctx, ask=asking)
    shots = prompt.shot_ids if isinstance(prompt, FewShotPrompt) else frozenset()
    examples, pool = (tuple(e for e in rows if e.question_id not in shots) for rows in (data.examples, data.pool))
    used = tuple(drop(e, "used_as_shot") for e in data.examples if e.question_id in shots)
    name = name_of(adapter.model)
    return Bench(adapter, name, data, examples, pool, tokenizer, (*data.dropped, *used), spec.progress)


def _measured(
    protocol: SweepProtocol[Any, Any], bench: Bench, engine: Engine, ready: Any, plan: Plan, spec: Specification
) -> SweepResult:
    memory = plan.memory
    label = f"{protocol.name} {bench.model_name} {bench.data.name}"
    with progress(label, plan.work, plan.unit_name, show=spec.progress) as bar:
        ready = protocol.fit(engine, ready, spec, plan, bar.advance)

        def measure(unit: Any) -> pd.DataFrame:
            parts = memory.measured(lambda one: protocol.measure(engine, ready, spec, one, bar.advance), unit)
            return pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]

        trust = Trust(protocol, ready, spec, engine, plan.cost.pass_bytes)
        frames: list[pd.DataFrame] = []
        for unit in plan.units:
            frames.append(measure(unit))
            if len(frames) == 1 and not frames[0].empty:
                bar.enter("checks")
                trust.first(frames[0], alone=len(plan.units) == 1)
                bar.enter("")
        samples = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        if samples.empty:
            raise InputError(protocol.nothing(ready, spec))
        if len(frames) > 1:
            bar.enter("checks")
            trust.rest(pd.concat(frames[1:], ignore_index=True))
            bar.enter("")
    how = {"plan": {**plan.cost.to_dict(), "split": memory.splits}, **trust.record()}
    return _result(protocol, bench, ready, spec, samples, how)


def _result(
    protocol: SweepProtocol[Any, Any],
    bench: Bench,
    ready: Any,
    spec: Specification,
    samples: pd.DataFrame,
    how: dict[str, Any],
) -> SweepResult:
    own = protocol.record(ready, spec)
    prompt, code = bench.tokenizer.prompt.name, spec.own_code()
    config = {
        "protocol": protocol.name, **spec.identity(), "layers": list(spec.layers_of(bench.adapter.n_layers)), "prompt": prompt,
        "add_bos": bench.tokenizer.add_bos,
        **own.pop("config", {}), **({"own_code": code} if code else {}),
    }  # fmt: skip
    card, data = model_record(card_of(bench.adapter.model)), data_record(bench.data)
    run_id = run_id_of(config, card, data)
    counts = own.pop("counts", {}) | {"dropped": dict(Counter(d.reason for d in ready.dropped).most_common())}
    record = {"config": config, "model": card, "data": data, "environment": environment(bench.adapter.device), **how} | {
        "counts": counts, **own
    }  # fmt: skip
    keys = {
        "run_id": run_id,
        "model": bench.model_name,
        "dataset": bench.data.name,
        "protocol": protocol.name,
        "seed": spec.seed,
    }
    same: dict[str, Any] = {**keys, **settings_of(config), **protocol.keys(spec)}
    whole = samples.assign(**same).reindex(columns=list(SAMPLE_COLUMNS)).astype(SLOT_TYPES)
    examples = examples_frame(run_id, bench.data.name, prompt, dropped=ready.dropped, **protocol.inputs(ready))
    examples["pair_text"] = examples["example_id"].map(dict(protocol.text_scores(ready))).astype("float64")
    return protocol.result.make(protocol, whole, examples, record, run_id).with_probes(*protocol.probes(ready))


def short_way(
    protocol: SweepProtocol[Any, Any], spec: Callable[Arguments, Specification], result: type[Result]
) -> Callable[Concatenate[Any, Any, Arguments], Result]:
    """The function ``NAME_sweep(model, data, ...)`` of a protocol; its arguments are those of the specification."""

    def sweep(model: Any, data: Any, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if args:
            raise InputError(
                f"{protocol.name}_sweep takes its arguments by name: {next(iter(made.arguments()))}=..., and so on."
            )
        done = run(protocol, model, data, spec(*args, **kwargs))
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
    sweep.__signature__ = inspect.Signature([*first, *rest], return_annotation=result)  # pyright: ignore[reportFunctionMemberAccess]
    return sweep


def _documented(spec: type[Specification], protocol: SweepProtocol[Any, Any]) -> str:
    """A docstring with every argument's own help."""
    lines = [inspect.cleandoc(spec.__doc__ or protocol.title), "", "Args:"]
    lines.append(
        "    model: A HookedTransformer from :func:`anchorlens.load_model`, or what that takes: a name, a path, a live model."
    )
    lines.append("    data: From :func:`anchorlens.load_qa`, or what it takes as its first argument.")
    lines += [f"    {name}: {one.help}" for name, one in spec.arguments().items()]
    lines += ["", "Returns:", f"    A :class:`~{protocol.result.__module__}.{protocol.result.__name__}`.", "", "Raises:"]
    lines.append("    InputError: An argument is not one of those above, or the model lacks what it names.")
    lines.append("    EmptySweepError: No row is left; the message counts the reasons.")
    lines.append("    CheckError: A cell that was measured again by the oracle came out differently.")
    return "\n".join(lines) + "\n"


__all__ = ["run", "set_up", "short_way"]
