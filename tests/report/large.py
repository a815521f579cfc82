"""A sweep of any size: the record of a small one, and as many rows as one likes.

Nothing in it was measured.
"""

import json
from typing import Any

import numpy as np
import pandas as pd

from anchorlens.results.sweep import SweepResult

WORDS = (
    "river",
    "runs",
    "through",
    "the",
    "old",
    "city",
    "where",
    "famous",
    "painter",
    "portraits",
    "born",
    "winter",
)


def enlarged(small: SweepResult, *, examples: int, layers: int) -> SweepResult:
    """``small``, a swap, with so many examples and layers, each anchor beside its null."""
    rng = np.random.default_rng(0)
    record: dict[str, Any] = json.loads(json.dumps(small.record))
    record["config"] |= {"layers": list(range(layers)), "n_resamples": 50, "n_donors": 1}
    ids = [f"row-{k}" for k in range(examples)]
    own = small.examples(all_columns=True).query("role == 'base'")
    base = own.iloc[np.arange(examples) % len(own)].reset_index(drop=True)
    base = base.assign(
        example_id=ids,
        question_id=ids,
        question=[f"{q} {_words(rng)}?" for q in base["question"].str.rstrip("?")],
    )
    keys = pd.MultiIndex.from_product(
        [["none", "null"], small.anchors, ids, range(layers)],
        names=["control", "anchor", "example_id", "layer"],
    ).to_frame(index=False)
    # Each row has a depth and a place of its own, so that no two curves are equal.
    depth, where = rng.uniform(5, 60, examples), rng.uniform(0.3, 0.7, examples)
    code = keys["example_id"].str.removeprefix("row-").astype(int).to_numpy()
    fall = 1 / (1 + np.exp(-14 * (keys["layer"].to_numpy() / layers - where[code])))
    question = keys["anchor"].to_numpy() == small.anchors[0]
    change = (
        -depth[code]
        * np.where(question, 1 - fall, fall)
        * np.where(keys["control"] == "none", 1.0, 0.15)
    )
    change += rng.normal(0, 0.8, len(keys))
    before = np.full(len(keys), 0.7)
    first = (
        small.samples(all_columns=True).iloc[0].drop(["control", "anchor", "example_id", "layer"])
    )
    constant = pd.DataFrame([first], index=[0]).loc[np.zeros(len(keys), int)].reset_index(drop=True)
    samples = pd.concat([keys, constant], axis=1).assign(
        question_id=keys["example_id"],
        donor_id="donor",
        value_before=before,
        value_after=before + change / 100,
        effect=change,
    )
    return SweepResult.make(small.protocol, samples, base, record, "large")


def _words(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, 6))
