"""Curves frames with the schema of ``curves.parquet`` and invented numbers. Nothing in them was measured."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pandas as pd

TARGET_MODELS = {"Qwen/Qwen3-8B": 36, "Qwen/Qwen3-32B": 64}
DATASETS = ("popqa", "triviaqa", "hotpotqa", "nq")


def point(**changes: object) -> dict[str, object]:
    """One row of the schema; ``changes`` replace its values."""
    row: dict[str, object] = {
        "run_id": "synthetic",
        "model": "Qwen/Qwen3-8B",
        "dataset": "popqa",
        "protocol": "swap",
        "anchor": "question",
        "pathway": "",
        "layer": 0,
        "site": "resid_pre",
        "probe_site": "",
        "window": 1,
        "direction": "noising",
        "mode": "same_relation",
        "readout": "first_token",
        "delta_kind": "probability",
        "control": "none",
        "seed": 0,
        "quantity": "p",
        "trivial": False,
        "delta_p": -10.0,
        "ci_low": -12.0,
        "ci_high": -8.0,
        "p_before": 0.6,
        "n": 100,
    }
    return row | changes


def curve(
    layers: int, depth: float, where: float, rng: random.Random, half: float = 4.0, **fixed: object
) -> list[dict[str, object]]:
    """A smooth fall to ``depth`` around the share ``where`` of the layers, with noise and a band of ``2 * half`` points."""
    rows = []
    for layer in range(layers):
        fall = 1 / (1 + math.exp(-(layer / layers - where) * 14))
        value = depth * fall + rng.gauss(0, 0.6)
        wide = half * (0.5 + fall)
        rows.append(point(layer=layer, delta_p=value, ci_low=value - wide, ci_high=value + wide, **fixed))
    return rows


# Per control: where Q and A end.
_PLACEBOS = {
    "matched": (-40.0, -3.0),
    "random_tokens": (-12.0, 2.0),
    "shuffled_labels": (-9.0, 1.0),
    "cross_fold": (-15.0, 0.0),
}


def knockout_frame(
    models: dict[str, int] = TARGET_MODELS,
    datasets: Sequence[str] = DATASETS,
    unsplit: bool = True,
    placebos: Sequence[str] = tuple(_PLACEBOS),
    silent: float = 0.15,
) -> pd.DataFrame:
    """Knockout curves of both pathways (and unsplit) with their placebos; no signal in the first ``silent`` of the layers."""
    rng = random.Random(0)
    rows: list[dict[str, object]] = []
    fixed: dict[str, object] = {
        "protocol": "knockout",
        "mode": "mask",
        "readout": "probe",
        "delta_kind": "confidence",
        "site": "",
        "probe_site": "resid_post",
        "window": 0,
    }
    for m, (model, layers) in enumerate(models.items()):
        for d, dataset in enumerate(datasets):
            own: dict[str, Any] = {**fixed, "model": model, "dataset": dataset}
            for pathway, depth in (("Q-Anchored", -70.0 + 8 * d - 6 * m), ("A-Anchored", -5.0 - 2 * d), ("All", -28.0)):
                if pathway == "All" and not unsplit:
                    continue
                own |= {"pathway": pathway, "n": {"Q-Anchored": 312, "A-Anchored": 188, "All": 500}[pathway] - 10 * d}
                rows += with_probe(curve(layers, depth, 0.35 + 0.05 * d, rng, **own), layers, silent)
                for control in placebos:
                    question, answer = _PLACEBOS[control]
                    end = {"Q-Anchored": question, "A-Anchored": answer, "All": -4.0}[pathway]
                    rows += with_probe(curve(layers, end, 0.4, rng, control=control, **own), layers, silent)
    return pd.DataFrame(rows)


def with_probe(rows: list[dict[str, object]], layers: int, silent: float) -> list[dict[str, object]]:
    """``rows`` with a probe that finds nothing in the first ``silent`` of the layers."""
    for row in rows:
        heard = int(str(row["layer"])) >= silent * layers
        auc = 0.8 if heard else 0.52
        row.update(auc=auc, auc_low=auc - 0.06, auc_high=auc + 0.05, signal=heard)
    return rows


def swap_frame(
    models: dict[str, int] = TARGET_MODELS,
    datasets: Sequence[str] = DATASETS,
    anchors: Sequence[str] = ("question", "answer_site"),
    null: bool = True,
) -> pd.DataFrame:
    """Swap curves: the question's effect ends where that of the answer's site begins."""
    rng = random.Random(1)
    rows: list[dict[str, object]] = []
    for model, layers in models.items():
        for d, dataset in enumerate(datasets):
            for a, anchor in enumerate(anchors):
                own: dict[str, Any] = {"model": model, "dataset": dataset, "anchor": anchor}
                falling = curve(layers, -62.0 + 7 * d + 5 * a, 0.55 + 0.04 * d, rng, **own)
                if not anchor.startswith("answer"):
                    # Seen from the other end: large first, then nothing.
                    values = [(row["delta_p"], row["ci_low"], row["ci_high"]) for row in reversed(falling)]
                    for row, (delta, low, high) in zip(falling, values, strict=True):
                        row.update(delta_p=delta, ci_low=low, ci_high=high)
                if anchor == "answer_site_all":
                    falling[0]["trivial"] = True
                rows += falling
                if null:
                    rows += curve(layers, -1.0, 0.5, rng, half=0.5, control="null", **own)
    return pd.DataFrame(rows)
