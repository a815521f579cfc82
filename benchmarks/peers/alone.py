"""Run a job with the cone engine or the reference engine; the engine is the only difference."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ours
import torch
from protocol import Job, Sweep

from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.engine import Engine
from anchorlens.engine.readouts import AnswerReader, ReadPlan, first_token
from anchorlens.measure.patch_plan import SwapSweepPlan, plan_swaps
from anchorlens.measure.patched_pairs import Placement, build_batch
from anchorlens.models.adapter import Adapter
from anchorlens.models.load import adapt
from anchorlens.protocols.swap.pairing import QAPair
from anchorlens.questions.example import Example, Span
from anchorlens.questions.tokens import Answer, TokenRow


def load(directory: Path) -> Adapter:
    """Load the model of a Hugging Face directory."""
    return adapt(ours.load(directory))


def planned(adapter: Adapter, job: Job, name: str) -> tuple[Engine, SwapSweepPlan]:
    """Return the engine for a job, and the batches of a sweep."""
    pairs = make_pairs(job)
    engine, reader = choose_engine(adapter, name, pairs[0].target.ids), make_reader(pairs, job)
    layers = tuple(job["layers"])
    return engine, plan_swaps(
        engine,
        pairs,
        reader,
        layers,
        site="resid_pre",
        window=1,
        batch_size=None,
        max_memory=None,
        checks=0,
    )


def engine_alone(adapter: Adapter, job: Job, name: str) -> Sweep:
    """Measure all cells of a job in the batches of a sweep, without making rows, checks and frames.

    Args:
        adapter: The model.
        job: Job as in :mod:`protocol`.
        name: Engine, ``cone`` or ``reference``.
    """
    engine, plan = planned(adapter, job, name)
    before = [0.0] * len(job["rows"])
    after: dict[tuple[int, str, int], float] = {}
    for batch in plan.batches:
        made = build_batch(batch.pairs, make_reader(batch.pairs, job))
        clean, changed = engine.run_swaps(made, site="resid_pre", layers=batch.layers, window=1)
        numbers = [int(pair.base.id) for pair in batch.pairs]
        for i, p in zip(numbers, clean.p.tolist(), strict=True):
            before[i] = p
        for place, metrics in zip(batch.pairs[0].placements, changed, strict=True):
            for layer, values in zip(batch.layers, metrics.p.tolist(), strict=True):
                after |= {(i, _name(place), layer): p for i, p in zip(numbers, values, strict=True)}
    rows = list(enumerate(job["rows"]))
    return Sweep(
        before,
        {
            place: [
                [after[i, place, k] for i, row in rows if place in row["target"]]
                for k in job["layers"]
            ]
            for place in job["places"]
        },
    )


def make_pairs(job: Job) -> list[QAPair]:
    """Make the pairs of the rows of a job."""
    return [_pair(row, job["places"], str(i)) for i, row in enumerate(job["rows"])]


def _name(place: Placement) -> str:
    return place.anchor if place.control == "none" else f"{place.anchor}:{place.control}"


def _pair(row: dict[str, Any], places: Sequence[str], name: str) -> QAPair:
    """Make a pair, as a sweep makes of two questions, from a row of a job."""
    base, donor = (_token_row(name, ids) for ids in (row["ids"], row["donor_ids"]))
    has_null = any(":" in place for place in row["target"])
    made: list[Placement] = []
    for place in places:
        anchor, _, control = place.partition(":")
        if (
            not control or has_null
        ):  # all rows of a batch need the same placements; some have no positions
            where = (tuple(row[side].get(place, ())) for side in ("target", "source"))
            made.append(Placement(anchor, control or "none", *where))
    return QAPair(base, base, donor, donor, name, tuple(made))


def _token_row(name: str, ids: Sequence[int]) -> TokenRow:
    example = Example(
        example_id=name,
        question_id=name,
        dataset="job",
        question="",
        answers=("",),
        subject=Span(0, 0),
        property=Span(0, 0),
    )
    return TokenRow(
        id=name,
        group=name,
        ids=tuple(ids),
        positions={},
        example=example,
        text="",
        question="",
        answer=Answer.gold(""),
        prompt_length=len(ids),
    )


def make_reader(pairs: Sequence[QAPair], job: Job) -> AnswerReader:
    """Make the reader of P of the tokens of a job."""
    rows = [job["rows"][int(pair.base.id)] for pair in pairs]
    plan = ReadPlan(
        row=torch.arange(len(rows)),
        position=torch.tensor([row["read"] for row in rows]),
        token=torch.tensor([row["token"] for row in rows]),
        rival=torch.full((len(rows),), -1),
        slot=torch.zeros(len(rows), dtype=torch.long),
        n_examples=len(rows),
    )
    return AnswerReader(plan, first_token)


__all__ = ["engine_alone", "load", "make_pairs", "make_reader", "planned"]
