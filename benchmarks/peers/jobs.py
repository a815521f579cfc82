"""Jobs of the comparison: the cells of the plan of a default sweep, as positions and token ids."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anchorlens as al
from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

ANCHOR_SETS = {
    "exact_question": ("exact_question",),
    "pre_answer": ("pre_answer",),
    "both": ("exact_question", "pre_answer"),
}
DATA = "popqa-sample"


@dataclass(frozen=True)
class Case:
    """One table of the benchmark.

    Attributes:
        prompt: Prompt, as in :func:`anchorlens.swap_sweep`.
        anchors: A key of :data:`ANCHOR_SETS`.
        questions: Number of measured questions.
        donors: ``n_donors``; other arguments have their defaults.
        everyone: Whether all engines take part, or only the main ones.
        rounds: Maximum number of rounds; lower for a case that takes ten minutes per round.
    """

    prompt: str
    anchors: str
    questions: int
    donors: int = 1
    everyone: bool = False
    rounds: int = 3

    @property
    def name(self) -> str:
        """Name of the case, such as ``qa/both/16/1``."""
        return f"{self.prompt}/{self.anchors}/{self.questions}/{self.donors}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of :func:`anchorlens.swap_sweep`."""
        anchors = list(ANCHOR_SETS[self.anchors])
        # Other libraries can make the changes of this null.
        return {
            "prompt": self.prompt,
            "anchors": anchors,
            "n_donors": self.donors,
            "null": ["displaced"],
        }


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
    """Ends a sweep once it has its plan."""


def plan_of(model: Any, data: al.QAData, **arguments: Any) -> Any:
    """Return the plan of a sweep without measuring anything."""

    def stop(plan: Any) -> None:
        raise _PlanReached(plan)

    try:
        al.swap_sweep(model, data, on_plan=stop, progress=False, **arguments)
    except _PlanReached as planned:
        return planned.args[0]
    raise AssertionError("on_plan was not called")


def some_questions(model: Any, data: al.QAData, n: int, **arguments: Any) -> tuple[al.QAData, Any]:
    """Choose n questions that such a sweep can measure, from the whole file; the others stay as
    donors and shots.

    Returns:
        The questions, and the plan of the sweep.

    Raises:
        SystemExit: If there are too few.
    """

    def only(ids: Sequence[str]) -> tuple[al.QAData, Any]:
        some = replace(
            data, examples=tuple(example for example in data.examples if example.example_id in ids)
        )
        return some, plan_of(model, some, **arguments)

    ids = _able(data, plan_of(model, data, **arguments))
    # Neighbours in the file may be of one kind, so every step-th question is taken first, then the
    # rest.
    step = max(1, len(ids) // n)
    ids = [one for first in range(step) for one in ids[first::step]]
    # Shots depend on the measured questions, and a shot cannot be a donor, so a question may become
    # unmeasurable.
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
    """Return the ids of the questions that a plan measures."""
    found = {pair.base.example.example_id for pair in pairs_of(plan)}
    return [example.example_id for example in data.examples if example.example_id in found]


def pairs_of(plan: Any) -> list[Any]:
    """Return every pair of a plan in the order of measuring."""
    # A pair that is measured at a few layers at a time is in several batches.
    return list({id(pair): pair for batch in plan.batches for pair in batch.pairs}.values())


def write_jobs(
    model: Any, cases: Sequence[Case], folder: Path, dataset: str = DATA, seed: int = 0
) -> dict[str, Path]:
    """Write one job file (:mod:`protocol`) per case.

    Args:
        model: The model.
        cases: The cases.
        folder: Folder of the files.
        dataset: Name of an embedded sample.
        seed: Random seed of the sample.

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
            "sweep": {
                "dataset": dataset,
                "seed": seed,
                "examples": ids,
                "arguments": case.arguments,
            },
        }
        files[case.name] = folder / f"{case.name.replace('/', '-')}.json"
        files[case.name].write_text(json.dumps(job))
    return files


def cells_of(job: dict[str, Any]) -> int:
    """Return the number of cells of a job."""
    return len(job["layers"]) * sum(len(row["target"]) for row in job["rows"])


def model_directory() -> Path:
    """Return the Hugging Face directory of the packaged model."""
    return fetch_packaged_model(DEMO)


def _row(pair: Any) -> dict[str, Any]:
    """Return a row of a job; inputs end at the last position that a result depends on."""
    places = {
        place.anchor if place.control == "none" else f"{place.anchor}:{place.control}": place
        for place in pair.placements
    }
    places = {
        name: place for name, place in places.items() if place.target_positions
    }  # drop nulls without a position
    answer = pair.base.positions["answer"][0]
    return {
        "ids": list(pair.target.ids[:answer]),
        "donor_ids": list(
            pair.source.ids[
                : 1 + max(p for place in places.values() for p in place.source_positions)
            ]
        ),
        "target": {name: list(place.target_positions) for name, place in places.items()},
        "source": {name: list(place.source_positions) for name, place in places.items()},
        "read": answer - 1,
        "token": pair.base.ids[answer],
        "example": pair.base.id,
        "donor": pair.donor_id,
    }


__all__ = [
    "ANCHOR_SETS",
    "CASES",
    "DATA",
    "QUICK",
    "Case",
    "cells_of",
    "model_directory",
    "pairs_of",
    "plan_of",
    "some_questions",
    "write_jobs",
]
