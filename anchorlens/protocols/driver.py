"""One driver for every protocol: from a model, questions and a specification to a result.

Tokenizer and prompt, shots, the engine, units, progress, memory that runs out, checked cells and the record are done
here, once; what is measured is the protocol's (:mod:`anchorlens.protocols.plug`).
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from anchorlens.engine.cost import free_memory, memory_seen
from anchorlens.engine.engine import Engine
from anchorlens.engine.select import choose_engine
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import card_of, name_of
from anchorlens.models.load import as_hooked
from anchorlens.notices import warn
from anchorlens.progress import Progress, progress
from anchorlens.protocols.plug import Bench, Plan, SweepProtocol
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.trust import Trust
from anchorlens.questions.datasets import QAData, load_qa
from anchorlens.questions.prompts import FewShotPrompt, make_prompt
from anchorlens.questions.tokenised import drop
from anchorlens.questions.tokens import RowTokenizer, common_prefix
from anchorlens.results.sweep import SweepResult
from anchorlens.results.tables import examples_frame
from anchorlens.runs.journal import SweepJournal, differences
from anchorlens.runs.provenance import data_record, environment, model_record, run_id_of
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES, settings_of

# Inputs that show what all begin with.
_LOOKED_AT = 16


def run(
    protocol: SweepProtocol[Any, Any], model: Any, data: Any, spec: Specification, journal: SweepJournal | None = None
) -> SweepResult:
    """Measure every cell of a sweep.

    Args:
        protocol: What is measured.
        model: A HookedTransformer, or what :func:`anchorlens.load_model` takes.
        data: From :func:`anchorlens.load_qa`, or what it takes as its first argument.
        spec: The protocol's specification.
        journal: Keeps what is measured as soon as it is; what it has is not measured again.

    Raises:
        InputError: The model cannot be measured so, or nothing fits into the memory that was given.
        RunError: The journal is that of another sweep, or cannot be written.
        EmptySweepError: No row is left; the message counts the reasons.
        CheckError: A cell that was measured again by the oracle came out differently.
    """
    # Tables of indices belong on the CPU, whatever the user's default device is.
    with torch.device("cpu") if torch.get_default_device().type != "cpu" else nullcontext():
        adapter = Adapter(as_hooked(model))
        free = {"bytes": free_memory(adapter.device)}
        if journal is not None:
            # Where it lies and how exactly it was mapped there is the environment's.
            card = model_record(card_of(adapter.model))
            journal.begun("model", {name: value for name, value in card.items() if name not in ("device", "parity")})
            free = journal.kept("free_memory", free)
        with memory_seen(free["bytes"]):
            return _run(protocol, adapter, data, spec, journal)


def _run(
    protocol: SweepProtocol[Any, Any], adapter: Adapter, data: Any, spec: Specification, journal: SweepJournal | None
) -> SweepResult:
    protocol.fit_to(spec, adapter)
    qa = data if isinstance(data, QAData) else load_qa(data, seed=spec.seed)
    bench = set_up(adapter, qa, spec, asking=protocol.asking(spec))
    ready = protocol.prepare(bench, spec)
    engine = choose_engine(adapter, spec.engine, ready.trial, ready.sites)
    plan = protocol.plan(engine, ready, spec)
    if spec.on_plan is not None:
        spec.on_plan(plan.cost)
    if journal is not None:
        journal.begun("plan", {**plan.cost.to_dict(), "check_cells": spec.check_cells, "shards": len(plan.shards)})
        _same_machine(journal, adapter)
        journal.find(len(plan.shards))
    return _measured(protocol, bench, engine, ready, plan, spec, journal)


def _same_machine(journal: SweepJournal, adapter: Adapter) -> None:
    """Warn where shards that are there were measured with something that decides the last digits."""
    now = {name: value for name, value in environment(adapter.device).items() if name != "command"}
    found = differences(journal.kept("environment", now), now)
    if found:
        warn(
            f"This run was begun elsewhere: {'; '.join(found)}. Its numbers may differ in their last digits from shard to shard."
        )


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
    protocol: SweepProtocol[Any, Any],
    bench: Bench,
    engine: Engine,
    ready: Any,
    plan: Plan,
    spec: Specification,
    journal: SweepJournal | None,
) -> SweepResult:
    label = f"{protocol.name} {bench.model_name} {bench.data.name}"
    with progress(label, plan.work, plan.unit_name, show=spec.progress) as bar:
        ready = protocol.fit(engine, ready, spec, plan, bar.advance)
        trust = Trust(protocol, ready, spec, engine, plan.cost.pass_bytes)
        sweep = _Sweep(protocol, engine, ready, spec, plan, trust, bar, _beginning(bench))
        frames: list[pd.DataFrame] = []
        # Rows of the first batch, which is checked at once.
        first = 0
        for number in range(len(plan.shards)):
            kept = None if journal is None else journal.read(number)
            if kept is not None:
                sweep.skip(number, kept[1])
            else:
                kept = sweep.shard(number)
                if journal is not None:
                    kept = journal.write(number, *kept)
            frames.append(kept[0])
            first = kept[1]["first"] if number == 0 else first
        frames = [frame for frame in frames if len(frame)]
        if not frames:
            raise InputError(protocol.nothing(ready, spec))
        samples = pd.concat(frames, ignore_index=True)
        if len(samples) > first:
            bar.enter("checks")
            trust.rest(samples.iloc[first:].reset_index(drop=True))
            bar.enter("")
    how = {"plan": {**plan.cost.to_dict(), "split": plan.memory.splits}, **trust.record()}
    return _result(protocol, bench, ready, spec, samples, how)


def _beginning(bench: Bench) -> tuple[int, ...]:
    """Tokens that inputs begin with, as a few of them show: what stands before the question."""
    some = [bench.tokenizer.prompt_ids(example.question) for example in bench.examples[:_LOOKED_AT]]
    return some[0][: common_prefix(some, len(some[0]))] if len(some) > 1 else ()


@dataclass
class _Sweep:
    """What is needed to measure a shard."""

    protocol: SweepProtocol[Any, Any]
    engine: Engine
    ready: Any
    spec: Specification
    plan: Plan
    trust: Trust
    bar: Progress
    shared: tuple[int, ...]

    def shard(self, number: int) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Measure a shard: its rows, and notes for who will read it. The sweep's first batch is checked right after it.

        Nothing of earlier shards is used, so that it comes out the same wherever and whenever it is measured.

        Raises:
            CheckError: A cell of the first batch came out differently.
        """
        units, memory, trust = self.plan.shards[number], self.plan.memory, self.trust
        splits, frames = memory.splits, []
        notes: dict[str, Any] = {"first": 0, "gaps": [], "checked": 0}
        self.engine.begin(self.shared)
        for unit in units:
            frames.append(self._unit(unit))
            if number == 0 and len(frames) == 1 and not frames[0].empty:
                self.bar.enter("checks")
                trust.first(frames[0], alone=len(self.plan.units) == 1)
                self.bar.enter("")
                notes = {"first": len(frames[0]), "gaps": list(trust.gaps), "checked": trust.cells}
        frames = [frame for frame in frames if len(frame)]
        whole = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        return whole, notes | {"splits": memory.splits - splits, "work": sum(unit.work for unit in units)}

    def skip(self, number: int, notes: Mapping[str, Any]) -> None:
        """Count a shard that was measured before."""
        self.plan.memory.splits += notes["splits"]
        self.trust.known(notes["gaps"], notes["checked"])
        self.bar.skip(sum(unit.work for unit in self.plan.shards[number]))

    def _unit(self, unit: Any) -> pd.DataFrame:
        def measured(one: Any) -> pd.DataFrame:
            return self.protocol.measure(self.engine, self.ready, self.spec, one, self.bar.advance)

        parts = self.plan.memory.measured(measured, unit)
        return pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]


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
    examples = examples_frame(
        run_id, bench.data.name, prompt, dropped=ready.dropped, token_text=bench.tokenizer.token_text, **protocol.inputs(ready)
    )
    examples["pair_text"] = examples["example_id"].map(dict(protocol.text_scores(ready))).astype("float64")
    return protocol.result.make(protocol, whole, examples, record, run_id).with_probes(*protocol.probes(ready))


__all__ = ["run", "set_up"]
