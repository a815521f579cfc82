"""Curves frames with the schema of ``curves.parquet`` and invented numbers.

Nothing in them was measured.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from anchorlens.figures.curves import plot_curves
from anchorlens.results.findings import Finding, Findings
from anchorlens.results.sweep import SweepResult

NAN = float("nan")
TARGET_MODELS = {"Qwen/Qwen3-8B": 36, "Qwen/Qwen3-32B": 64}
DATASETS = ("popqa", "triviaqa", "hotpotqa", "nq")
OUTER = 1.6
"""How much wider the simultaneous band is than the pointwise one."""
NEW = [
    "prompt",
    "answers",
    "distractor",
    "split",
    "known_only",
    "sim_low",
    "sim_high",
    "frac_null_incomplete",
]
"""Columns that a frame may lack."""


def point(**changes: object) -> dict[str, object]:
    """One row of the schema; ``changes`` replace its values."""
    row: dict[str, object] = {
        "run_id": "synthetic",
        "model": "Qwen/Qwen3-8B",
        "dataset": "popqa",
        "protocol": "swap",
        "anchor": "exact_question",
        "pathway": "",
        "layer": 0,
        "site": "resid_pre",
        "probe_site": "",
        "window": 1,
        "direction": "noising",
        "donor_rule": "same_relation",
        "knockout_mode": "",
        "readout": "first_token",
        "delta_kind": "probability",
        "prompt": "qa",
        "answers": "",
        "distractor": "",
        "split": "",
        "known_only": "False",
        "control": "none",
        "seed": 0,
        "metric": "p",
        "by_construction": False,
        "effect": -10.0,
        "ci_low": -12.0,
        "ci_high": -8.0,
        "sim_low": NAN,
        "sim_high": NAN,
        "value_before": 0.6,
        "n": 100,
        "frac_null_incomplete": NAN,
    }
    return row | {"n_clusters": changes.get("n", 100)} | changes


def effect(**changes: object) -> dict[str, object]:
    """One row of ``contrasts.parquet``; ``changes`` replace its values."""
    row: dict[str, object] = {
        "run_id": "synthetic",
        "protocol": "knockout",
        "model": "Qwen/Qwen3-8B",
        "dataset": "popqa",
        "anchor": "exact_question",
        "layer": 0,
        "quantity": "delta_p_vs_placebo",
        "control": "random_tokens",
        "value": -5.0,
        "ci_low": -8.0,
        "ci_high": -2.0,
        "sim_low": -10.0,
        "sim_high": 0.5,
        "n": 200,
    }
    return row | changes


def _ends(value: float, half: float) -> dict[str, float]:
    """The ends of the band of each layer by itself, ``half`` to either side, and of that of all
    layers at once.
    """
    wide = OUTER * half
    return {
        "ci_low": value - half,
        "ci_high": value + half,
        "sim_low": value - wide,
        "sim_high": value + wide,
    }


def _fall(layer: int, layers: int, where: float) -> float:
    """A smooth rise from 0 to 1 around the share ``where`` of the layers."""
    return 1 / (1 + math.exp(-(layer / layers - where) * 14))


def curve(
    layers: int, depth: float, where: float, rng: random.Random, half: float = 4.0, **fixed: object
) -> list[dict[str, object]]:
    """A smooth fall to ``depth`` around the share ``where`` of the layers, with noise and a band of
    ``2 * half`` points.
    """
    rows = []
    for layer in range(layers):
        fall = _fall(layer, layers, where)
        value = depth * fall + rng.gauss(0, 0.6)
        rows.append(point(layer=layer, effect=value, **_ends(value, half * (0.5 + fall)), **fixed))
    return rows


# Per control: where Q and A end.
_PLACEBOS = {
    "size_matched": (-40.0, -3.0),
    "random_tokens": (-12.0, 2.0),
    "shuffled_labels": (-9.0, 1.0),
    "cross_fold": (-15.0, 0.0),
}
# Drawn only where they are named.
_SIDES = {"random_before": (-9.0, 2.0), "random_after": (-14.0, 1.0)}
TRUTH = {"answers": "gold", "distractor": "matched", "split": "fixed", "known_only": ""}


def knockout_frame(
    models: dict[str, int] = TARGET_MODELS,
    datasets: Sequence[str] = DATASETS,
    unsplit: bool = True,
    placebos: Sequence[str] = tuple(_PLACEBOS),
    silent: float = 0.15,
) -> pd.DataFrame:
    """Knockout curves of both pathways (and unsplit) with their placebos; no signal in the first
    ``silent`` of the layers.
    """
    rng = random.Random(0)
    rows: list[dict[str, object]] = []
    fixed: dict[str, object] = {
        "protocol": "knockout",
        "donor_rule": "",
        "knockout_mode": "mask",
        "readout": "probe",
        "delta_kind": "confidence",
        "site": "",
        "probe_site": "resid_post",
        "window": 0,
        **TRUTH,
    }
    for m, (model, layers) in enumerate(models.items()):
        for d, dataset in enumerate(datasets):
            own: dict[str, Any] = {**fixed, "model": model, "dataset": dataset}
            for pathway, depth in (
                ("Q-Anchored", -70.0 + 8 * d - 6 * m),
                ("A-Anchored", -5.0 - 2 * d),
                ("All", -28.0),
            ):
                if pathway == "All" and not unsplit:
                    continue
                own |= {
                    "pathway": pathway,
                    "n": {"Q-Anchored": 312, "A-Anchored": 188, "All": 500}[pathway] - 10 * d,
                }
                rows += with_probe(
                    curve(layers, depth, 0.35 + 0.05 * d, rng, **own), layers, silent
                )
                for control in placebos:
                    question, answer = (_PLACEBOS | _SIDES)[control]
                    end = {"Q-Anchored": question, "A-Anchored": answer, "All": -4.0}[pathway]
                    rows += with_probe(
                        curve(layers, end, 0.4, rng, control=control, **own), layers, silent
                    )
    return pd.DataFrame(rows)


def with_probe(
    rows: list[dict[str, object]], layers: int, silent: float
) -> list[dict[str, object]]:
    """``rows`` with a probe that finds nothing in the first ``silent`` of the layers."""
    for row in rows:
        heard = int(str(row["layer"])) >= silent * layers
        auc = 0.8 if heard else 0.52
        row.update(auc=auc, auc_low=auc - 0.06, auc_high=auc + 0.05, probe_above_chance=heard)
    return rows


def swap_frame(
    models: dict[str, int] = TARGET_MODELS,
    datasets: Sequence[str] = DATASETS,
    anchors: Sequence[str] = ("exact_question", "pre_answer"),
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
                if "answer" not in anchor:
                    # Seen from the other end: large first, then nothing.
                    drawn = ("effect", "ci_low", "ci_high", "sim_low", "sim_high")
                    values = [{name: row[name] for name in drawn} for row in reversed(falling)]
                    for row, own_values in zip(falling, values, strict=True):
                        row.update(own_values)
                if anchor == "pre_answer_all":
                    falling[0]["by_construction"] = True
                rows += falling
                if null:
                    rows += curve(layers, -1.0, 0.5, rng, half=0.5, control="null", **own)
    return pd.DataFrame(rows)


# Per contrast of a knockout: what it is read against, where it ends, half of its interval there.
_CONTRASTS = {
    "delta_p_vs_placebo": ("random_tokens", -18.0, 3.0),
    "flip_rate": ("random_tokens", 24.0, 5.0),
    "auc_drop": ("random_tokens", -0.2, 0.04),
    "row_specific_effect": ("size_matched", -8.0, 2.5),
}


def contrast(
    layers: int, depth: float, half: float, rng: random.Random, **fixed: object
) -> list[dict[str, object]]:
    """A contrast that leaves 0 around a third of the layers."""
    rows = []
    for layer in range(layers):
        fall = _fall(layer, layers, 0.4)
        value = depth * fall + rng.gauss(0, half / 6)
        rows.append(
            effect(layer=layer, value=value, **_ends(value, half * (0.5 + fall / 2)), **fixed)
        )
    return rows


def knockout_contrasts(
    models: dict[str, int] = TARGET_MODELS, datasets: Sequence[str] = DATASETS
) -> pd.DataFrame:
    """The contrasts of a knockout, and its gap, which the figure does not draw."""
    rng = random.Random(2)
    rows: list[dict[str, object]] = []
    for model, layers in models.items():
        for d, dataset in enumerate(datasets):
            own = {"model": model, "dataset": dataset}
            for quantity, (control, depth, half) in _CONTRASTS.items():
                # The further the data set, the smaller its effect.
                rows += contrast(
                    layers,
                    depth * (1 - 0.3 * d),
                    half,
                    rng,
                    quantity=quantity,
                    control=control,
                    **own,
                )
            rows += contrast(
                layers,
                -1.0,
                2.0,
                rng,
                quantity="row_specific_effect",
                control="random_tokens",
                **own,
            )
            rows += contrast(layers, -60.0, 6.0, rng, quantity="gap", control="none", **own)
    return pd.DataFrame(rows)


def swap_effects(
    models: dict[str, int] = TARGET_MODELS,
    datasets: Sequence[str] = DATASETS,
    anchors: Sequence[str] = ("exact_question", "pre_answer"),
    control: str = "null",
) -> pd.DataFrame:
    """Each anchor's curve less its null."""
    rng = random.Random(3)
    rows: list[dict[str, object]] = []
    for model, layers in models.items():
        for d, dataset in enumerate(datasets):
            for a, anchor in enumerate(anchors):
                own = {"model": model, "dataset": dataset, "anchor": anchor, "protocol": "swap"}
                depth = -50.0 + 7 * d + 15 * a
                rows += contrast(
                    layers, depth, 4.0, rng, quantity="delta_p_minus_null", control=control, **own
                )
    return pd.DataFrame(rows)


class Sweep(SweepResult):
    """A result with made-up curves, contrasts and findings."""

    def __init__(
        self,
        curves: pd.DataFrame,
        contrast_tables: pd.DataFrame | None = None,
        *statements: Finding,
    ) -> None:
        made = swap_effects({"none": 1}).iloc[:0] if contrast_tables is None else contrast_tables
        self.__dict__.update(
            record={"config": {}},
            _own=curves,
            _contrasts=made,
            _memo={"findings": Findings(statements)},
        )

    def curves(self, *, controls: bool = False, **_: object) -> pd.DataFrame:
        return self._own if controls else pick(self._own, control="none")

    def contrasts(self, **_: object) -> pd.DataFrame:
        return self._contrasts


def pick(frame: pd.DataFrame, **keys: object) -> pd.DataFrame:
    """The rows of a frame with these values."""
    return frame[(frame[list(keys)] == pd.Series(keys)).all(axis=1)]


def drawn(rows: pd.DataFrame | list[dict[str, object]], **options: Any) -> go.Figure:
    return plot_curves(pd.DataFrame(rows), **options)


def full_figure(results: Any, **options: Any) -> go.Figure:
    """The figure with all that is drawn on request."""
    return plot_curves(results, **{"controls": True, "contrasts": True} | options)
