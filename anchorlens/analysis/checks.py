"""How far a sweep's numbers can be trusted: its noise floor, and single cells that the oracle measures again.

The noise floor is the largest difference of a cell's ΔP between two measurements of the same inputs in other batches: other sizes,
another order, so that sums are taken in another order. What the oracle measures again counts too. Nothing below it is an effect.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from anchorlens.engine.select import Engine
from anchorlens.errors import CheckError, InputError

if TYPE_CHECKING:
    from anchorlens.analysis.cuts import CutRun
    from anchorlens.analysis.pathways import Measured
    from anchorlens.models.adapter import Adapter

# The noise floor is measured on one row in so many, at most on _NOISE_ROWS; by the oracle, which is slow, on one.
_NOISE_SHARE, _NOISE_ROWS = 16, 8
# Two ways to the same float32 number may differ by this much, in points; where the noise floor is higher, by three times that,
# but never by more than the second number. Half types: three times the noise floor, at least so many points. Measured on SmolLM2
# (docs/engine.md): 80 cells differed by up to 2.1 points in bfloat16, whose mantissa is eight times as coarse as float16's.
_EXACT, _LARGEST_EXACT = 1e-3, 1e-2
_HALF = {torch.bfloat16: 5.0, torch.float16: 1.0}
Item = TypeVar("Item")


def check_count(check_cells: int) -> None:
    """Whether so many cells can be checked.

    Raises:
        InputError: The number is negative.
    """
    if check_cells < 0:
        raise InputError(f"check_cells must be at least 0, got {check_cells}.")


def noise_sample(items: Sequence[Item], engine: Engine, seed: int) -> list[Item]:
    """Rows that are measured once more for the noise floor, in an order of their own."""
    n = min(_NOISE_ROWS, max(1, len(items) // _NOISE_SHARE)) if engine.cone is not None else 1
    return random.Random(f"{seed}:noise").sample(list(items), min(n, len(items)))


def check_sample(items: Sequence[Item], k: int, seed: int) -> list[Item]:
    """Cells that the oracle measures again."""
    return random.Random(f"{seed}:check").sample(list(items), min(k, len(items)))


def oracle_of(engine: Engine) -> Engine:
    """The oracle on the same model."""
    return replace(engine, name="reference", blocks="", cone=None)


def check_gap(gap: float, adapter: "Adapter", floor: float, where: str) -> None:
    """Whether the cone engine's ΔP is the oracle's.

    Raises:
        CheckError: It is not.
    """
    half = _HALF.get(adapter.model.cfg.dtype)
    allowed = min(max(_EXACT, 3 * floor), _LARGEST_EXACT) if half is None else max(half, 3 * floor)
    if not gap <= allowed:  # NaN too
        raise CheckError(
            f"The cone engine and the oracle differ by {gap:.2g} points (allowed: {allowed:.2g}) at {where}. Nothing was saved: use "
            "engine='reference', and please report the model."
        )


def noise_record(noise: dict[str, object], checks: dict[str, object]) -> dict[str, object]:
    """The noise floor, not below what the oracle's cells were off by: it sums in another order as well.

    Args:
        noise: From other batches: ``floor``, ``rows``, ``cells``.
        checks: From the oracle: ``cells``, ``largest_difference``.
    """
    return {**noise, "floor": max(float(str(noise["floor"])), float(str(checks["largest_difference"] or 0.0)))}


def cut_noise(
    run: "CutRun", measured: "Sequence[Measured]", measure: "Callable[[CutRun], Sequence[Measured]]"
) -> dict[str, object]:
    """The noise floor of a knockout sweep: some test rows once more, each alone.

    Args:
        run: What measured the sweep.
        measured: What it measured.
        measure: Measures a run.
    """
    rows = noise_sample(_cut_rows(run), run.engine, run.config.seed)
    again = measure(run.only(rows, run.engine, run.config.layers))
    gaps = np.concatenate([_gaps(measured, again, j) for j in rows])
    return {"floor": float(gaps.max()) if len(gaps) else 0.0, "rows": len(rows), "cells": len(gaps)}


def cut_checks(
    run: "CutRun", measured: "Sequence[Measured]", measure: "Callable[[CutRun], Sequence[Measured]]", k: int, floor: float
) -> dict[str, object]:
    """Random rows of a knockout sweep at random layers, measured again by the oracle.

    Raises:
        CheckError: One came out differently.
    """
    if run.engine.cone is None or not k:
        return {"cells": 0, "largest_difference": None}
    there = [(j, i) for j in _cut_rows(run) for i in range(len(run.config.layers)) if not np.isnan(measured[0].after[i, j])]
    chosen = check_sample(there, k, run.config.seed)
    largest = 0.0
    for j, i in chosen:
        layer = run.config.layers[i]
        layers = tuple(sorted({layer, run.k_star if run.k_star is not None else layer}))
        again = measure(run.only([j], oracle_of(run.engine), layers))
        row = run.plan.rows.rows[run.plan.test[j]]
        gap = float(np.max(_gaps(measured, again, j, [i], [layers.index(layer)])))
        check_gap(gap, run.adapter, floor, f"row {row.row_id}, layer {layer}")
        largest = max(largest, gap)
    return {"cells": len(chosen), "largest_difference": largest}


def _cut_rows(run: "CutRun") -> list[int]:
    return [j for j, cut in enumerate(run.plan.cuts) if cut.sources]


def _gaps(
    measured: "Sequence[Measured]",
    again: "Sequence[Measured]",
    row: int,
    at: "Sequence[int] | slice" = slice(None),
    there: "Sequence[int] | slice" = slice(None),
) -> "npt.NDArray[np.float64]":
    """|Difference of ΔP| of a row's cells, in points, under every control, at some layers of both."""
    gaps: list[npt.NDArray[np.float64]] = []
    for one, two in zip(measured, again, strict=True):
        first, second = (one.after - one.before)[at, row], (two.after - two.before)[there, row]
        gaps.append(100.0 * np.abs(first - second)[~np.isnan(first)])
    return np.concatenate(gaps)


__all__ = ["check_count", "check_gap", "check_sample", "cut_checks", "cut_noise", "noise_record", "noise_sample", "oracle_of"]
