"""Checks of a sweep: random cells measured again by the reference engine, cells whose value is known, and the noise floor.

Cells of the first batch are checked at once, so that a wrong engine stops the sweep early. Cells of other batches are checked at the
end. The noise floor is the largest difference of a ΔP.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from anchorlens.constants import METRIC_UNITS
from anchorlens.engine.cost import rows_bytes
from anchorlens.engine.engine import Engine
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import CheckError
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.base import KnownCells, Measurement, Recheckable, StepMetrics
from anchorlens.protocols.planning import CHECK_ROWS
from anchorlens.protocols.specification import Specification
from anchorlens.runs.schema import CELL, LOGITS, POINTS, format_cell, leading_metric
from anchorlens.warn import warn

# Cells drawn per row; they share the clean passes of the row.
_CELLS_PER_ROW = 4
# Allowed difference in percentage points by dtype. In float32 30,720 cells differed by at most 0.0004 (docs/engine.md); in bfloat16
# two correct engines differed by up to 4.9 points in one of 864 cells.
_ALLOWED = {torch.float64: 1e-2, torch.float32: 1e-2, torch.float16: 1.0, torch.bfloat16: 5.0}
# Allowed difference in other units: logits of size 32 have a resolution of 0.03 in float16 and 0.25 in bfloat16.
_ALLOWED_LOGITS = {torch.float16: 0.1, torch.bfloat16: 1.0}


@dataclass
class SpotChecker:
    """Checks random cells of one sweep against the reference engine.

    Attributes:
        budget: Memory limit of a pass, in bytes.
        n_checks: Number of cells to check.
        gaps: Absolute differences of ΔP of the checked cells, in their unit.
        cells: Number of drawn cells.
        known: Number of cells whose value follows by construction, which were compared with it.
        failed: Descriptions of differences larger than the tolerance.
    """

    protocol: Measurement[Any, Any, Any]
    ready: Any
    spec: Specification
    engine: Engine
    budget: int
    n_checks: int
    gaps: list[float] = field(default_factory=list)
    cells: int = 0
    known: int = 0
    failed: list[str] = field(default_factory=list)

    def check_first(self, samples: pd.DataFrame, *, alone: bool) -> None:
        """Check cells of the first batch; ``alone``: whether it is the only one. Raise CheckError at a difference."""
        k = self.n_checks
        self._check(samples, k if alone else (k + 1) // 2, "first")
        self._check_fixed_cells(samples)
        if self.failed:
            raise CheckError(
                f"engine='cone': differs from the reference engine by {self.failed[0]}. The sweep stopped after its first batch. "
                "Use engine='reference', and please report the model."
            )

    def check_rest(self, samples: pd.DataFrame) -> None:
        """Check cells of the other batches; at a difference, warn and mark the run."""
        self._check(samples, self.n_checks // 2, "rest")
        self._check_fixed_cells(samples)
        if self.failed:
            warn(
                f"engine='cone': {len(self.failed)} of {self.cells + self.known} checked cells differ from the reference engine, by "
                f"{self.failed[0]}. The run is kept and marked (checks.failed in run.json). Repeat it with engine='reference'."
            )

    def _check(self, samples: pd.DataFrame, k: int, part: str) -> None:
        cells = _draw_cells(samples[samples["metric"] == leading_metric(samples)], k, f"{self.spec.seed}:check:{part}")
        if cells.empty:
            return
        self.cells += len(cells)
        unit, scale, allowed = self._scale_of(samples)
        reference = ReferenceEngine(self.engine.adapter)
        both = add_reference_values(self.protocol, self.ready, self.spec, reference, samples, cells, self.budget)
        for cell in both.to_dict("records"):
            gap = abs(cell["effect"] - cell["effect_again"])
            self.gaps.append(gap)
            before = scale * abs(cell["value_before"] - cell["value_before_again"])
            self._compare(unit, cell, float(np.maximum(gap, before)), allowed)

    def _check_fixed_cells(self, samples: pd.DataFrame) -> None:
        """Compare all cells whose value follows by construction with that value."""
        if not self.n_checks or not isinstance(self.protocol, KnownCells):
            return
        unit, scale, allowed = self._scale_of(samples)
        known = self.protocol.values_beforehand(self.ready, self.spec, samples)
        is_known = ~np.isnan(known)
        self.known += int(is_known.sum())
        gaps = scale * np.abs(samples["value_after"].to_numpy(dtype=float) - known)
        for number in np.flatnonzero(is_known & ~(gaps <= allowed)):
            self._compare(unit, samples.iloc[number].to_dict(), float(gaps[number]), allowed)

    def _scale_of(self, samples: pd.DataFrame) -> tuple[str, float, float]:
        """Return the unit of effects, its factor for values, and the allowed difference."""
        unit = str(samples["unit"].iloc[0]) if "unit" in samples else POINTS
        return unit, 100.0 if unit == POINTS else 1.0, tolerance(self.engine.adapter, unit, samples)

    def _compare(self, unit: str, cell: Mapping[Any, Any], gap: float, allowed: float) -> None:
        """Note a cell whose value differs by more than is allowed, in the cone engine."""
        if self.engine.name == ReferenceEngine.name or gap <= allowed:
            return
        if not self._is_rounding(unit, cell, allowed):  # NaN too
            self.failed.append(f"{gap:.2g} {unit.removeprefix('percentage ')} (allowed: {allowed:.2g}) at {format_cell(cell)}")

    def _is_rounding(self, unit: str, cell: Mapping[Any, Any], allowed: float) -> bool:
        """Return whether a user's metric moved in a step, while the engines agree in the logits that it reads."""
        if unit != METRIC_UNITS or not isinstance(self.protocol, StepMetrics):
            return False
        return self.protocol.differs_by_rounding(self.engine.adapter, self.ready, self.spec, cell, allowed)

    def record(self) -> dict[str, dict[str, object]]:
        """Return ``checks`` and ``noise`` for ``run.json``; the floor is None if no cell was checked."""
        checked = self.engine.name != ReferenceEngine.name and self.cells > 0
        largest = max(self.gaps, default=None)
        return {
            "checks": {
                "cells": self.cells if checked else 0, "known": self.known if checked else 0,
                "largest_difference": largest if checked else None, "failed": self.failed,
            },
            "noise": {"floor": largest, "cells": len(self.gaps)},
        }  # fmt: skip


def tolerance(adapter: Adapter, unit: str, samples: pd.DataFrame) -> float:
    """Return the allowed difference of two measurements of a cell in a unit, by the dtype of the model.

    That of a user's metric is relative to the range of its values: its scale is unknown. Logits have a range of about 10.
    """
    allowed = _ALLOWED if unit == POINTS else _ALLOWED_LOGITS
    most = allowed.get(adapter.shape.dtype, _ALLOWED[torch.float32])
    if unit != METRIC_UNITS:
        return most
    values = samples[["value_before", "value_after"]].to_numpy(dtype=float)
    return most / 10 * float(np.ptp(values)) + 1e-5 * float(np.abs(values).max())


def add_reference_values(
    protocol: Measurement[Any, Any, Any], ready: Any, spec: Specification, reference: ReferenceEngine, samples: pd.DataFrame,
    cells: pd.DataFrame, budget: int,
) -> pd.DataFrame:  # fmt: skip
    """Add the columns ``value_before_again``, ``value_after_again``, ``effect_again`` and those of logits to ``cells``.

    A pass takes at most ``budget`` bytes, except a pass of one cell.
    """
    size, width = max(1, len(cells)), ready.max_tokens
    while size > 1 and rows_bytes(reference.adapter.shape, CHECK_ROWS * size, width) > budget:
        size //= 2
    assert isinstance(protocol, Recheckable)  # checked by the callers
    records: list[dict[Any, Any]] = cells.to_dict("records")
    frames: list[pd.DataFrame] = []
    for start in range(0, len(records), size):
        again = protocol.remeasure(reference, ready, spec, records[start : start + size])
        leading = again[again["metric"] == leading_metric(again)]
        measured = [name for name in ("value_before", "value_after", "effect", *LOGITS) if name in leading]
        values = leading.drop_duplicates(CELL)[[*CELL, *measured]]
        frames.append(samples.merge(values, on=CELL, suffixes=("", "_again")))
    return pd.concat(frames, ignore_index=True)


def _draw_cells(cells: pd.DataFrame, k: int, seed: str) -> pd.DataFrame:
    """Draw ``k`` random cells, up to four per row, because cells of a row share its clean passes."""
    rng = random.Random(seed)
    rows = [list(map(int, row)) for row in cells.groupby(["example_id", "donor_id"], sort=False).indices.values()]
    pool: list[int] = []
    for row in rng.sample(rows, len(rows)):
        if len(pool) >= k:
            break
        pool += rng.sample(row, min(_CELLS_PER_ROW, k - len(pool), len(row)))
    left = sorted(set(range(len(cells))) - set(pool)) if len(pool) < min(k, len(cells)) else []
    pool += rng.sample(left, min(k - len(pool), len(left)))
    return cells.iloc[sorted(pool)]
