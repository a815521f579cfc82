"""anchorlens on a job: the public sweep with its defaults, and an engine alone."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from protocol import Job, Sweep

import anchorlens as al
from anchorlens.engine.readouts import AnswerReader, ReadPlan, first_token
from anchorlens.engine.select import choose_engine
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.swap.batching import plan_swaps
from anchorlens.protocols.swap.pairing import Pair, Placement, build_batch
from anchorlens.questions.example import Example, Span
from anchorlens.questions.tokens import Answer, TokenRow

LIBRARIES = ("torch", "anchorlens", "transformer-lens", "transformers")


def load(directory: Path) -> Adapter:  # noqa: ARG001 - the packaged model knows where it lies
    """The packaged model."""
    return Adapter(al.load_model("smollm2-135m-instruct", device="cpu"))


def default_sweep(model: Any, job: Job) -> Sweep:
    """``anchorlens.swap_sweep`` as users call it: rows, donors, nulls, trial, checks and the frame of results."""
    asked = job["sweep"]
    questions = _questions(asked["dataset"], asked["seed"], tuple(asked["examples"]))
    found = al.swap_sweep(model, questions, layers=job["layers"], progress=False, **asked["arguments"])
    cells = found.samples()
    names = cells["anchor"].where(cells["control"] == "none", cells["anchor"] + ":" + cells["control"])
    keys = zip(cells["example_id"], cells["donor_id"], names, cells["layer"], strict=True)
    after = dict(zip(keys, cells["value_after"], strict=True))
    before = dict(zip(cells["example_id"], cells["value_before"], strict=True))
    rows = job["rows"]
    return Sweep(
        [before[row["example"]] for row in rows],
        {
            place: [
                [after[row["example"], row["donor"], place, k] for row in rows if place in row["target"]]
                for k in job["layers"]
            ]
            for place in job["places"]
        },
    )


@lru_cache
def _questions(dataset: str, seed: int, examples: tuple[str, ...]) -> al.QAData:
    """Read once: reading a file is no part of a sweep."""
    from dataclasses import replace

    data = al.load_qa(dataset, seed=seed)
    return replace(data, examples=tuple(example for example in data.examples if example.example_id in examples))


def engine_alone(adapter: Adapter, job: Job, name: str) -> Sweep:
    """All cells of a job in the batches that a sweep takes: no rows to make, no checks, no frame.

    Args:
        adapter: The model.
        job: See :mod:`protocol`.
        name: The engine, ``cone`` or ``reference``.
    """
    pairs = [_pair(row, job["places"], str(i)) for i, row in enumerate(job["rows"])]
    reads = {pair.base.row_id: row for pair, row in zip(pairs, job["rows"], strict=True)}
    engine = choose_engine(adapter, name, pairs[0].target.ids)
    layers = tuple(job["layers"])
    plan = plan_swaps(engine, pairs, _reader(pairs, reads), layers, window=1, batch_size=None, max_memory=None, checks=0)
    before = [0.0] * len(pairs)
    after: dict[tuple[int, str, int], float] = {}
    for batch in plan.batches:
        made = build_batch(
            adapter,
            batch.pairs,
            site="resid_pre",
            rule="",
            statistics=None,
            make_reader=lambda some: _reader(some, reads),
        )
        clean, changed = engine.run_swaps(made, site="resid_pre", layers=batch.layers, window=1)
        numbers = [int(pair.base.row_id) for pair in batch.pairs]
        for i, p in zip(numbers, clean.p.tolist(), strict=True):
            before[i] = p
        for place, metrics in zip(batch.pairs[0].placements, changed, strict=True):
            for layer, values in zip(batch.layers, metrics.p.tolist(), strict=True):
                after |= {(i, _name(place), layer): p for i, p in zip(numbers, values, strict=True)}
    rows = list(enumerate(job["rows"]))
    return Sweep(
        before,
        {
            place: [[after[i, place, layer] for i, row in rows if place in row["target"]] for layer in layers]
            for place in job["places"]
        },
    )


def _name(place: Placement) -> str:
    return place.anchor if place.control == "none" else f"{place.anchor}:{place.control}"


def _pair(row: dict[str, Any], places: Sequence[str], name: str) -> Pair:
    """A job's row as the pairs that a sweep makes of questions."""
    base, donor = (_token_row(name, ids) for ids in (row["ids"], row["donor_ids"]))
    has_null = any(":" in place for place in row["target"])
    made: list[Placement] = []
    for place in places:
        anchor, _, control = place.partition(":")
        if not control or has_null:  # all rows of a batch have the same placements, if need be without a position
            where = (tuple(row[side].get(place, ())) for side in ("target", "source"))
            made.append(Placement(anchor, control or "none", *where))
    return Pair(base, base, donor, donor, name, tuple(made))


def _token_row(name: str, ids: Sequence[int]) -> TokenRow:
    example = Example(name, name, "job", "", ("",), Span(0, 0), Span(0, 0))
    return TokenRow(name, example, "", "", Answer.gold(""), tuple(ids), len(ids), {})


def _reader(pairs: Sequence[Pair], reads: dict[str, dict[str, Any]]) -> AnswerReader:
    rows = [reads[pair.base.row_id] for pair in pairs]
    plan = ReadPlan(
        row=torch.arange(len(rows)),
        position=torch.tensor([row["read"] for row in rows]),
        token=torch.tensor([row["token"] for row in rows]),
        rival=torch.full((len(rows),), -1),
        slot=torch.zeros(len(rows), dtype=torch.long),
        n_examples=len(rows),
    )
    return AnswerReader(plan, first_token)


__all__ = ["LIBRARIES", "default_sweep", "engine_alone", "load"]
