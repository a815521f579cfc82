"""The cells that are compared: those of a sweep with its defaults, from its own plan, as positions and token ids."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anchorlens as al
from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

ANCHOR_SETS = {"exact_question": ("exact_question",), "pre_answer": ("pre_answer",), "both": ("exact_question", "pre_answer")}
DATA = "popqa-sample"


@dataclass(frozen=True)
class Case:
    """One table of the benchmark.

    Attributes:
        prompt: As :func:`anchorlens.swap_sweep` takes it.
        anchors: A key of :data:`ANCHOR_SETS`.
        questions: How many are measured.
        donors: ``n_donors``; every other argument is left at its default.
        everyone: Whether the engines that are only there for completeness take part, too.
        rounds: How often it is measured at most; one that takes ten minutes a round is measured less.
    """

    prompt: str
    anchors: str
    questions: int
    donors: int = 1
    everyone: bool = False
    rounds: int = 3

    @property
    def name(self) -> str:
        """``qa/both/16/1``."""
        return f"{self.prompt}/{self.anchors}/{self.questions}/{self.donors}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Of :func:`anchorlens.swap_sweep`."""
        return {"prompt": self.prompt, "anchors": list(ANCHOR_SETS[self.anchors]), "n_donors": self.donors}


CASES = (
    Case("qa", "both", 1, everyone=True),
    Case("qa", "exact_question", 16),
    Case("qa", "pre_answer", 16),
    Case("qa", "both", 2, donors=4),
    Case("fewshot(5)", "both", 1),
    Case("fewshot(5)", "both", 16, rounds=2),
)
QUICK = (Case("qa", "exact_question", 4), Case("fewshot(2)", "pre_answer", 1))


class _PlanReached(Exception):  # noqa: N818 - no error
    """Ends a sweep where it has its plan."""


def plan_of(model: Any, data: al.QAData, **arguments: Any) -> Any:
    """The plan that a sweep follows; nothing is measured."""

    def stop(plan: Any) -> None:
        raise _PlanReached(plan)

    try:
        al.swap_sweep(model, data, on_plan=stop, progress=False, **arguments)
    except _PlanReached as planned:
        return planned.args[0]
    raise AssertionError("on_plan was not called")


def some_questions(model: Any, data: al.QAData, n: int, **arguments: Any) -> tuple[al.QAData, Any]:
    """So many questions that such a sweep can measure, from all over the file; the others stay as donors and shots.

    Returns:
        The questions, and the sweep's plan.

    Raises:
        SystemExit: There are not so many.
    """

    def only(ids: Sequence[str]) -> tuple[al.QAData, Any]:
        some = replace(data, examples=tuple(example for example in data.examples if example.example_id in ids))
        return some, plan_of(model, some, **arguments)

    ids = _able(data, plan_of(model, data, **arguments))
    # Neighbours in the file may be one kind of question; what is left out of the first choice comes after it.
    step = max(1, len(ids) // n)
    ids = [one for first in range(step) for one in ids[first::step]]
    # Other shots are drawn where other questions are measured, and a shot is nobody's donor: a question can drop out.
    for taken in range(n, len(ids) + 1):
        some, plan = only(ids[:taken])
        able = _able(some, plan)
        if n <= len(able) < taken:
            some, plan = only(able[:n])
            able = _able(some, plan)
        if len(able) == n == len(some.examples):
            return some, plan
    raise SystemExit(f"{data.name} has {len(ids)} questions that can be measured, {n} are needed.")


def _able(data: al.QAData, plan: Any) -> list[str]:
    """The questions that a plan measures."""
    found = {pair.base.example.example_id for pair in pairs_of(plan)}
    return [example.example_id for example in data.examples if example.example_id in found]


def pairs_of(plan: Any) -> list[Any]:
    """Every row and donor of a plan, in the order in which they are measured."""
    # One that is measured at a few layers at a time stands in several batches.
    return list({id(pair): pair for batch in plan.batches for pair in batch.pairs}.values())


def write_jobs(model: Any, cases: Sequence[Case], folder: Path, dataset: str = DATA, seed: int = 0) -> dict[str, Path]:
    """One job file (:mod:`protocol`) for each case.

    Args:
        model: What is measured.
        cases: What of it.
        folder: Where the files go.
        dataset: An embedded sample.
        seed: Of the sample.

    Returns:
        Case name -> file.
    """
    data = al.load_qa(dataset, seed=seed)
    files: dict[str, Path] = {}
    for case in cases:
        some, plan = some_questions(model, data, case.questions, **case.arguments)
        rows = [_row(pair) for pair in pairs_of(plan)]
        ids = [example.example_id for example in some.examples]
        job = {
            "layers": list(range(model.cfg.n_layers)),
            "places": list(dict.fromkeys(place for row in rows for place in row["target"])),
            "rows": rows,
            "sweep": {"dataset": dataset, "seed": seed, "examples": ids, "arguments": case.arguments},
        }
        files[case.name] = folder / f"{case.name.replace('/', '-')}.json"
        files[case.name].write_text(json.dumps(job))
    return files


def cells_of(job: dict[str, Any]) -> int:
    """How many P a job asks for, those before any change left out."""
    return len(job["layers"]) * sum(len(row["target"]) for row in job["rows"])


def model_directory() -> Path:
    """The packaged model as a Hugging Face directory."""
    return fetch_packaged_model(DEMO)


def _row(pair: Any) -> dict[str, Any]:
    """Both inputs end at the last position that matters: nobody has to compute tokens that no number depends on."""
    places = {
        place.anchor if place.control == "none" else f"{place.anchor}:{place.control}": place for place in pair.placements
    }
    places = {name: place for name, place in places.items() if place.target}  # a null that found no position changes nothing
    answer = pair.base.positions["answer"][0]
    return {
        "ids": list(pair.target.ids[:answer]),
        "donor_ids": list(pair.source.ids[: 1 + max(p for place in places.values() for p in place.source)]),
        "target": {name: list(place.target) for name, place in places.items()},
        "source": {name: list(place.source) for name, place in places.items()},
        "read": answer - 1,
        "token": pair.base.ids[answer],
        "example": pair.base.id,
        "donor": pair.donor_id,
    }


__all__ = [
    "ANCHOR_SETS", "CASES", "DATA", "QUICK", "Case", "cells_of", "model_directory", "pairs_of", "plan_of", "some_questions",
    "write_jobs",
]  # fmt: skip
