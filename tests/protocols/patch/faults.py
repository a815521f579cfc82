"""Faults that are injected below a patch sweep, to see whether its checks find them.

``python -m tests.protocols.patch.faults 300`` injects 300 faults and prints how many were found, by
kind. A fault counts if it changes at least 2 % of the cells by more than rounding. It acts between
the sweep and the engine, on some patches of a batch.
"""

import random
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.patches import SwapBatch, pad_rows
from anchorlens.errors import CheckError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.running.sweeps import patch_sweep
from tests.patching.faults import (
    CHANGE,
    HALF,
    KINDS,
    SHARE,
    Job,
    command,
    count_outcomes,
    inject,
    loaded,
)

WAYS = [
    {"by": "position"},
    {"by": "position", "site": "attn_out"},
    {"by": "position", "site": "mlp_out", "controls": ("norm_matched",)},
    {"by": "segment", "site": "resid_mid"},
    {"by": "layer"},
    {"by": "head", "site": "z"},
    {"by": "head_position", "site": "v"},
    {"by": "head", "site": "q"},
]
METRICS: list[Any] = [
    "logit_diff",
    "logprob",
    "kl",
    lambda logits: logits.log_softmax(-1)[..., 7].mean(),
    lambda logits: (logits[:, -1] > logits[:, -1, 7, None]).sum().float(),
]


def pairs_of(rng: random.Random) -> list[dict[str, Any]]:
    """Return pairs of three lengths that differ in one word; no word is part of another."""
    out: list[dict[str, Any]] = []
    for number in range(rng.choice((1, 2, 4))):
        letters = rng.sample("bcdfgh", 6)
        clean, corrupted = "".join(letters[:2]), "".join(letters[2:4])
        start = rng.choice(("", "The bag of ", "of "))
        row = {
            "id": str(number),
            "answer": letters[4],
            "wrong": letters[5],
            "segments": {"thing": [clean, corrupted], "end": ["is", "is"]},
        }
        out.append({**row, "clean": f"{start}{clean} is", "corrupted": f"{start}{corrupted} is"})
    return out


def stale_donors(rng: random.Random, batch: SwapBatch) -> SwapBatch:
    """The activations of one row come from a source with another token."""
    assert batch.donors is not None  # those of a patch sweep
    rows = [
        ids[: int(n)].tolist()
        for ids, n in zip(batch.donors.ids, batch.donors.mask.sum(1), strict=True)
    ]
    row = rng.choice(rows)
    # The first token acts on all later ones.
    row[1] += 1 if row[1] < 20 else -1
    return replace(batch, donors=pad_rows(rows))


def break_sources(kind: str, rng: random.Random, share: float, job: Job) -> Job:
    """Break the sources of a batch, or the layers at which it is patched."""
    batch, layers = job
    if kind == "stale cache":
        batch = stale_donors(rng, batch)
    if kind == "layer off by one" and len(layers) > 1:
        layers = [layers[0], *layers[:-1]]
    return batch, layers


def try_fault(number: int, models: dict[str, Any]) -> tuple[str, str, float]:
    """Return kind and outcome of a fault: found, missed, or too small; and the share of cells that
    it changes.
    """
    rng = random.Random(number)
    kind, family = KINDS[number % len(KINDS)], rng.choice(sorted(models))
    way = rng.choice([one for one in WAYS if "head" in one["by"] or kind != "swapped head"])
    model, metric = models[family], rng.choice(METRICS)
    options = {"controls": "none", **way, "metric": metric, "progress": False}
    pairs = load_pairs(pairs_of(rng), dataset_name="faults")
    heads = (
        int(model.cfg.n_key_value_heads or model.cfg.n_heads)
        if way.get("site") == "v"
        else int(model.cfg.n_heads)
    )

    def values(**more: Any) -> np.ndarray:
        frame = patch_sweep(model, pairs, **options, **more).samples(all_columns=True)
        keys = ["example_id", "donor_id", "anchor", "control", "layer"]
        return frame.sort_values(keys)["value_after"].to_numpy(dtype=float)

    right = values(n_spot_checks=0)
    with mock.patch.object(
        ConeEngine, "run_swap_batches", inject(kind, random.Random(number), heads, break_sources)
    ):
        wrong = values(n_spot_checks=0)
    rounding = 0.0
    if model.cfg.dtype in HALF:
        plain = values(n_spot_checks=0, engine="reference")
        rounding = float(np.abs(right - plain).max())
    spread = float(np.ptp(right))
    least = max(CHANGE * spread, rounding)
    share = float((np.abs(wrong - right) > least).mean()) if spread else 0.0
    if share < SHARE:
        return kind, "too small", share
    with (
        mock.patch.object(
            ConeEngine,
            "run_swap_batches",
            inject(kind, random.Random(number), heads, break_sources),
        ),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        try:
            values()
        except CheckError:
            return kind, "found", share
    return (
        kind,
        "found" if any("checked cells differ" in str(one.message) for one in caught) else "missed",
        share,
    )


def run_faults(
    count: int,
    families: tuple[str, ...] = ("gpt2", "llama", "gemma2"),
    dtype: str = "float32",
) -> Counter[tuple[str, str]]:
    """Inject faults until ``count`` were large enough; return the outcomes by kind."""
    with loaded(families, dtype) as models:
        return count_outcomes(count, lambda number: try_fault(number, models))


if __name__ == "__main__":
    command(run_faults, __doc__)
