"""How far a sweep's numbers can be trusted: its noise floor, and single cells that the oracle measures again.

The noise floor is the largest difference of a cell's ΔP between two measurements of the same inputs in other batches: other sizes,
another order, so that sums are taken in another order. What the oracle measures again counts too. Nothing below it is an effect.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd
import torch

from anchorlens.engine.select import Engine
from anchorlens.errors import CheckError
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.plug import Plan, SweepProtocol
from anchorlens.runs.schema import CELL, P

# The noise floor is measured on one row in so many, at most on _NOISE_ROWS; by the oracle, which is slow, on one.
_NOISE_SHARE, _NOISE_ROWS = 16, 8
# Two ways to the same float32 number may differ by this much, in points; where the noise floor is higher, by three times that,
# but never by more than the second number. Half types: three times the noise floor, at least so many points. Measured on SmolLM2
# (docs/engine.md): 80 cells differed by up to 2.1 points in bfloat16, whose mantissa is eight times as coarse as float16's.
_EXACT, _LARGEST_EXACT = 1e-3, 1e-2
_HALF = {torch.bfloat16: 5.0, torch.float16: 1.0}
Item = TypeVar("Item")
Measure = Callable[[Engine, Any], pd.DataFrame]


def noise_floor(
    protocol: SweepProtocol[Any, Any],
    ready: Any,
    plan: Plan,
    samples: pd.DataFrame,
    engine: Engine,
    measure: Measure,
    seed: int,
) -> dict[str, object]:
    """How far ΔP of a cell moves when nothing changes but its company: some rows are measured once more, each alone.

    Returns:
        ``floor`` in points, and on how many ``rows`` and ``cells`` it was measured.
    """
    rows = noise_sample(protocol.rows(ready), engine, seed)
    again = [measure(engine, unit) for row in rows for unit in protocol.alone(ready, plan, row)]
    gaps = _gaps(samples, pd.concat(again, ignore_index=True)) if again else pd.Series(dtype="float64")
    return {"floor": float(gaps.max()) if len(gaps) else 0.0, "rows": len(rows), "cells": len(gaps)}


def oracle_cells(
    protocol: SweepProtocol[Any, Any], ready: Any, samples: pd.DataFrame, engine: Engine, measure: Measure, *, k: int, floor: float,
    seed: int,
) -> dict[str, object]:  # fmt: skip
    """``k`` random cells, measured again by the oracle.

    Raises:
        CheckError: One came out differently.
    """
    if engine.cone is None or not k:
        return {"cells": 0, "largest_difference": None}
    there = samples[samples["quantity"] == P]
    chosen = check_sample(range(len(there)), k, seed)
    oracle = replace(engine, name="reference", blocks="", cone=None)
    largest = 0.0
    for cell in there.iloc[sorted(chosen)].to_dict("records"):
        gaps = _gaps(samples, measure(oracle, protocol.cell(ready, cell)))
        gap = float(gaps.max()) if len(gaps) else float("nan")
        check_gap(gap, engine.adapter, floor, _place(cell))
        largest = max(largest, gap)
    return {"cells": len(chosen), "largest_difference": largest}


def _place(cell: Mapping[Any, Any]) -> str:
    said = {"example": cell["example_id"], "donor": cell["donor_id"], "anchor": cell["anchor"], "layer": cell["layer"]}
    return ", ".join(f"{name} {value}" for name, value in said.items() if value != "")


def _gaps(samples: pd.DataFrame, again: pd.DataFrame) -> pd.Series:
    """|Difference of ΔP| of the cells that are in both."""
    again = again[again["quantity"] == P].drop_duplicates(CELL)
    both = samples[samples["example_id"].isin(again["example_id"].unique())].merge(again, on=CELL, suffixes=("", "_again"))
    return (both["delta_p"] - both["delta_p_again"]).abs()


def noise_sample(items: Sequence[Item], engine: Engine, seed: int) -> list[Item]:
    """Rows that are measured once more for the noise floor, in an order of their own."""
    n = min(_NOISE_ROWS, max(1, len(items) // _NOISE_SHARE)) if engine.cone is not None else 1
    return random.Random(f"{seed}:noise").sample(list(items), min(n, len(items)))


def check_sample(items: Sequence[Item], k: int, seed: int) -> list[Item]:
    """Cells that the oracle measures again."""
    return random.Random(f"{seed}:check").sample(list(items), min(k, len(items)))


def check_gap(gap: float, adapter: Adapter, floor: float, where: str) -> None:
    """Whether the cone engine's ΔP is the oracle's.

    Raises:
        CheckError: It is not.
    """
    half = _HALF.get(adapter.model.cfg.dtype)
    allowed = min(max(_EXACT, 3 * floor), _LARGEST_EXACT) if half is None else max(half, 3 * floor)
    if not gap <= allowed:  # NaN too
        raise CheckError(
            f"The cone engine and the oracle differ by {gap:.2g} points (allowed: {allowed:.2g}) at {where}. This sweep was not "
            "saved: use engine='reference', and please report the model."
        )


def with_checks(noise: Mapping[str, object], checks: Mapping[str, object]) -> dict[str, object]:
    """The noise floor, not below what the oracle's cells were off by: it sums in another order as well.

    Args:
        noise: From other batches: ``floor``, ``rows``, ``cells``.
        checks: From the oracle: ``cells``, ``largest_difference``.
    """
    return {**noise, "floor": max(float(str(noise["floor"])), float(str(checks["largest_difference"] or 0.0)))}


__all__ = ["check_gap", "noise_floor", "oracle_cells", "with_checks"]
