"""Checks of a sweep: random cells measured again by the reference engine, cells whose value is
known, and the noise floor.

Cells of the first batch are checked at once, so that a wrong engine stops the sweep early. Cells of
other batches are checked at the end. The noise floor is the largest difference of a ΔP.

In half precision a cell may also differ by the noise of its own values, which is measured where it
is needed (:mod:`anchorlens.engine.rounding_noise`).
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from anchorlens.constants import METRIC_UNITS, POINTS
from anchorlens.display import join_words, warn
from anchorlens.engine.cost import rows_bytes
from anchorlens.engine.engine import Engine
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.engine.rounding_noise import N_DRAWS, TIMES_NOISE, round_anew
from anchorlens.errors import CheckError, InputError
from anchorlens.measure.budget import count_check_rows
from anchorlens.measure.checks import DIFFERS, ComparedCell
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.base import KnownCells, Measurement, Recheckable, StepMetrics
from anchorlens.protocols.specification import Specification
from anchorlens.runs.schema import CELL, LOGITS, format_cell, leading_metric

Array: TypeAlias = npt.NDArray[np.float64]

# Cells drawn per row; they share the clean passes of the row.
_CELLS_PER_ROW = 4
# Allowed difference in percentage points by dtype, of saved runs. In float32 30,720 cells differed
# by at most 0.0004 (docs/engine.md); in bfloat16 two correct engines differed by up to 4.9 points
# in one of 864 cells.
_ALLOWED = {torch.float64: 1e-2, torch.float32: 1e-2, torch.float16: 1.0, torch.bfloat16: 5.0}
# Allowed difference in other units: logits of size 32 have a resolution of 0.03 in float16 and 0.25
# in bfloat16.
_ALLOWED_LOGITS = {torch.float16: 0.1, torch.bfloat16: 1.0}
# Share of it that a sweep in half precision allows before the noise is measured.
_WITHOUT_NOISE = 0.1
# Share of the range of a user's metric up to which noise explains a difference: a metric that moves
# in steps may flip from one end to the other, so beyond it the logits decide.
_MOST_NOISE = 0.25
# Cells of known value whose noise is measured, those that differ most; the others have its mean.
_MOST_KNOWN = 16


@dataclass(kw_only=True)
class SpotChecker:
    """Checks random cells of one sweep against the reference engine.

    Attributes:
        budget: Memory limit of a pass, in bytes.
        n_checks: Number of cells to check.
        gaps: Absolute differences of ΔP of the checked cells, in their unit.
        cells: Number of drawn cells.
        known: Number of cells whose value follows by construction, which were compared with it.
        failed: Descriptions of differences larger than the tolerance.
        steps: Number of compared cells in which the metric moved by a step, while the engines agree
            in the logits.
    """

    protocol: Measurement[Any, Any, Any]
    inputs: Any
    spec: Specification
    engine: Engine
    budget: int
    n_checks: int
    gaps: list[float] = field(default_factory=list)
    cells: int = 0
    known: int = 0
    failed: list[str] = field(default_factory=list)
    steps: int = 0

    def check_first(self, samples: pd.DataFrame, *, alone: bool) -> None:
        """Check cells of the first batch.

        ``alone``: whether it is the only one.

        Raise CheckError at a difference.
        """
        k = self.n_checks
        self._check(samples, k if alone else (k + 1) // 2, "first")
        self._check_fixed_cells(samples)
        if self.failed:
            raise CheckError(
                f"engine='cone': differs from the reference engine by {self.failed[0]}. The sweep"
                " stopped after its first batch. Use engine='reference', and please report the"
                " model."
            )

    def check_rest(self, samples: pd.DataFrame) -> None:
        """Check cells of the other batches; at a difference, warn and mark the run."""
        self._check(samples, self.n_checks // 2, "rest")
        self._check_fixed_cells(samples)
        if self.failed:
            warn(
                f"engine='cone': {len(self.failed)} of {self.cells + self.known} checked cells"
                f" differ from the reference engine, by {self.failed[0]}. The run is kept and"
                " marked (checks.failed in run.json). Repeat it with engine='reference'."
            )

    def check_finite(self, samples: pd.DataFrame) -> None:
        """Raise CheckError if the cone engine has a value that is not finite where a full forward
        pass has one, and InputError if that has none either.
        """
        if samples.empty:
            return
        values = samples[["value_before", "value_after"]].to_numpy(dtype=np.float64)
        wrong = np.flatnonzero(~np.isfinite(values).all(1))
        if not len(wrong):
            return
        cell = samples.iloc[wrong[:1]]
        where = format_cell(cell.iloc[0].to_dict())
        metric = cell["metric"].iloc[0]
        if self.engine.name != ReferenceEngine.name and isinstance(self.protocol, Recheckable):
            reference = ReferenceEngine(self.engine.adapter)
            again = self.protocol.remeasure(
                reference, self.inputs, self.spec, cell.to_dict("records")
            )
            if np.isfinite(again[["value_before", "value_after"]].to_numpy(dtype=float)).all():
                raise CheckError(
                    f"engine='cone': {metric} is not finite at {where}, where the reference engine"
                    " has a number. Use engine='reference', and please report the model."
                )
        rows = list(dict.fromkeys(samples["example_id"].iloc[wrong]))
        raise InputError(
            f"{metric} is not finite in {len(wrong)} cells of {join_words(rows)}, first at {where}:"
            " the model's numbers overflow or are NaN there. In float16 numbers above 65,504 are"
            " infinite: use dtype='bfloat16' or 'float32'. Otherwise check the weights, or leave"
            " these rows out.",
            argument="model",
        )

    def _check(self, samples: pd.DataFrame, k: int, part: str) -> None:
        cells = _draw_cells(
            samples[samples["metric"] == leading_metric(samples)],
            k,
            f"{self.spec.seed}:check:{part}",
        )
        if cells.empty:
            return
        self.cells += len(cells)
        unit, scale, allowed = self._scale_of(samples)
        reference = ReferenceEngine(self.engine.adapter)
        both = add_reference_values(
            protocol=self.protocol,
            inputs=self.inputs,
            spec=self.spec,
            reference=reference,
            samples=samples,
            cells=cells,
            budget=self.budget,
        )
        records = both.to_dict("records")
        self.gaps += [abs(cell["effect"] - cell["effect_again"]) for cell in records]
        noise = self._noise(samples, both, scale)
        pair = partial(self._pair_values, unit=unit, allowed=allowed, noise=noise)

        def pairs() -> Iterator[ComparedCell[Mapping[Any, Any]]]:
            for number, cell in enumerate(records):
                found = [cell["effect"], scale * cell["value_before"]]
                exact = [cell["effect_again"], scale * cell["value_before_again"]]
                yield pair(number, cell, found=found, exact=exact)

        self._note_differences(pairs(), unit, allowed)

    def _check_fixed_cells(self, samples: pd.DataFrame) -> None:
        """Compare all cells whose value follows by construction with that value."""
        if not self.n_checks or not isinstance(self.protocol, KnownCells):
            return
        unit, scale, allowed = self._scale_of(samples)
        known = self.protocol.values_beforehand(self.inputs, self.spec, samples)
        numbers = np.flatnonzero(~np.isnan(known))
        self.known += len(numbers)
        found = scale * samples["value_after"].to_numpy(dtype=float)
        # Only cells that may differ become dictionaries: a sweep has many.
        gaps = np.abs(found - scale * known)
        numbers = [int(i) for i in numbers if not gaps[i] <= allowed]
        numbers.sort(key=lambda i: -np.nan_to_num(gaps[i], nan=np.inf))
        open_cells = samples.iloc[numbers]
        noise = self._noise(samples, open_cells.head(_MOST_KNOWN), scale)
        pair = partial(self._pair_values, unit=unit, allowed=allowed, noise=noise)
        cells = zip(numbers, open_cells.to_dict("records"), strict=True)

        def pairs() -> Iterator[ComparedCell[Mapping[Any, Any]]]:
            for number, (i, cell) in enumerate(cells):
                yield pair(number, cell, found=[found[i]], exact=[scale * known[i]])

        self._note_differences(pairs(), unit, allowed)

    def _noise(
        self, samples: pd.DataFrame, cells: pd.DataFrame, scale: float
    ) -> Callable[[int, int], float]:
        """Return the function from number of a cell and number of draws to its noise, which is
        measured when it is called first.
        """
        measured = cache(
            lambda n_draws: measure_noise(
                protocol=self.protocol,
                inputs=self.inputs,
                spec=self.spec,
                adapter=self.engine.adapter,
                samples=samples,
                cells=cells,
                budget=self.budget,
                scale=scale,
                n_draws=n_draws,
            )
        )

        def noise(number: int, n_draws: int) -> float:
            every = measured(n_draws)
            typical = float(np.sqrt(np.mean(np.square(every))))
            return max(typical, every[number]) if number < len(every) else typical

        return noise

    def _pair_values(
        self,
        number: int,
        cell: Mapping[Any, Any],
        *,
        found: Sequence[float],
        exact: Sequence[float],
        unit: str,
        allowed: float,
        noise: Callable[[int, int], float],
    ) -> ComparedCell[Mapping[Any, Any]]:
        """Return a cell with its values in units of the effect.

        ``noise``: number of the cell and number of draws -> its noise.
        """
        protocol = self.protocol
        gap = float(np.abs(np.subtract(found, exact)).max())

        def is_rounding() -> bool:
            most = float("inf")
            if unit == METRIC_UNITS:
                share = _ALLOWED_LOGITS.get(self.engine.adapter.shape.dtype, 1.0) / 10
                most = _MOST_NOISE * allowed / (_WITHOUT_NOISE * share)
            for n_draws in N_DRAWS if self.engine.adapter.shape.is_half else ():
                if gap <= allowed + min(TIMES_NOISE * noise(number, n_draws), most):
                    return True
            # Only a metric of the user moves in steps.
            if unit != METRIC_UNITS or not isinstance(protocol, StepMetrics):
                return False
            adapter = self.engine.adapter
            is_step = protocol.differs_by_rounding(adapter, self.inputs, self.spec, cell, allowed)
            self.steps += is_step
            return is_step

        return ComparedCell(
            cell=cell,
            found=torch.tensor(found, dtype=torch.float64),
            exact=torch.tensor(exact, dtype=torch.float64),
            is_rounding=is_rounding,
        )

    def _note_differences(
        self, cells: Iterable[ComparedCell[Mapping[Any, Any]]], unit: str, allowed: float
    ) -> None:
        """Note the cells of the cone engine that differ by more than is allowed; NaN differs."""
        if self.engine.name == ReferenceEngine.name:
            return

        def is_close(found: torch.Tensor, exact: torch.Tensor) -> bool:
            return bool(((found - exact).abs() <= allowed).all())

        for one in cells:
            if one.classify(is_close) != DIFFERS:
                continue
            gap = float((one.found - one.exact).abs().max())
            self.failed.append(
                f"{gap:.2g} {unit.removeprefix('percentage ')} (allowed: {allowed:.2g}) at"
                f" {format_cell(one.cell)}"
            )

    def _scale_of(self, samples: pd.DataFrame) -> tuple[str, float, float]:
        """Return the unit of effects, its factor for values, and the allowed difference."""
        unit = str(samples["unit"].iloc[0]) if "unit" in samples else POINTS
        allowed = tolerance(self.engine.adapter, unit, samples)
        if self.engine.adapter.shape.is_half:
            allowed *= _WITHOUT_NOISE
        return unit, 100.0 if unit == POINTS else 1.0, allowed

    def record(self) -> dict[str, dict[str, object]]:
        """Return ``checks`` and ``noise`` for ``run.json``; the floor is None if no cell was
        checked.
        """
        checked = self.engine.name != ReferenceEngine.name and self.cells > 0
        largest = max(self.gaps, default=None)
        steps = {"steps": self.steps} if self.steps else {}
        return {
            "checks": {
                "cells": self.cells if checked else 0,
                "known": self.known if checked else 0,
                "largest_difference": largest if checked else None,
                "failed": self.failed,
                **steps,
            },
            "noise": {"floor": largest, "cells": len(self.gaps)},
        }


def tolerance(adapter: Adapter, unit: str, samples: pd.DataFrame) -> float:
    """Return the allowed difference of two measurements of a cell in a unit, by the dtype of the
    model.

    That of a user's metric is relative to the range of its values: its scale is unknown. Logits
    have a range of about 10.
    """
    allowed = _ALLOWED if unit == POINTS else _ALLOWED_LOGITS
    most = allowed.get(adapter.shape.dtype, _ALLOWED[torch.float32])
    if unit != METRIC_UNITS:
        return most
    values = samples[["value_before", "value_after"]].to_numpy(dtype=float)
    return most / 10 * float(np.ptp(values)) + 1e-5 * float(np.abs(values).max())


def add_reference_values(
    *,
    protocol: Measurement[Any, Any, Any],
    inputs: Any,
    spec: Specification,
    reference: ReferenceEngine,
    samples: pd.DataFrame,
    cells: pd.DataFrame,
    budget: int,
) -> pd.DataFrame:
    """Add the columns ``value_before_again``, ``value_after_again``, ``effect_again`` and those of
    logits to ``cells``.

    A pass takes at most ``budget`` bytes, except a pass of one cell.
    """
    size = max(1, len(cells))
    width = inputs.max_tokens
    n_rows = len(cells[["example_id", "donor_id"]].drop_duplicates())
    shape = reference.adapter.shape
    while size > 1 and rows_bytes(shape, count_check_rows(size, n_rows), width) > budget:
        size //= 2
    assert isinstance(protocol, Recheckable)  # checked by the callers
    records: list[dict[Any, Any]] = cells.to_dict("records")
    columns = ("value_before", "value_after", "effect", *LOGITS)
    frames: list[pd.DataFrame] = []
    for start in range(0, len(records), size):
        again = protocol.remeasure(reference, inputs, spec, records[start : start + size])
        leading = again[again["metric"] == leading_metric(again)]
        measured = [name for name in columns if name in leading]
        values = leading.drop_duplicates(CELL)[[*CELL, *measured]]
        frames.append(samples.merge(values, on=CELL, suffixes=("", "_again")))
    return pd.concat(frames, ignore_index=True)


def measure_noise(
    *,
    protocol: Measurement[Any, Any, Any],
    inputs: Any,
    spec: Specification,
    adapter: Adapter,
    samples: pd.DataFrame,
    cells: pd.DataFrame,
    budget: int,
    scale: float,
    n_draws: int,
) -> Array:
    """Return the noise of cells in the unit of the effect: the root mean square of the largest
    change of their values and effect when the model rounds in another way.

    Args:
        protocol: Measurement of the cells.
        inputs: Inputs of the measurement.
        spec: Specification of the sweep.
        adapter: The model.
        samples: Samples of the whole sweep.
        cells: Rows of the samples.
        budget: Memory limit of a pass, in bytes.
        scale: Factor from values to the unit of the effect.
        n_draws: Number of times that the model rounds in another way.
    """

    def measure(model: Adapter) -> Array:
        both = add_reference_values(
            protocol=protocol,
            inputs=inputs,
            spec=spec,
            reference=ReferenceEngine(model),
            samples=samples,
            cells=cells[samples.columns],
            budget=budget,
        )
        values = both[["effect_again", "value_before_again", "value_after_again"]]
        return values.to_numpy(dtype=float) * [1.0, scale, scale]

    plain = measure(adapter)
    squares = np.zeros(len(plain))
    for seed in range(n_draws):
        changes = np.nan_to_num(measure(round_anew(adapter, seed)) - plain)
        squares += np.abs(changes).max(1) ** 2
    return np.sqrt(squares / n_draws)


def _draw_cells(cells: pd.DataFrame, k: int, seed: str) -> pd.DataFrame:
    """Draw ``k`` random cells, up to four per row, because cells of a row share its clean
    passes.
    """
    rng = random.Random(seed)
    groups = cells.groupby(["example_id", "donor_id"], sort=False).indices
    rows = [list(map(int, row)) for row in groups.values()]
    pool: list[int] = []
    for row in rng.sample(rows, len(rows)):
        if len(pool) >= k:
            break
        pool += rng.sample(row, min(_CELLS_PER_ROW, k - len(pool), len(row)))
    left = sorted(set(range(len(cells))) - set(pool)) if len(pool) < min(k, len(cells)) else []
    pool += rng.sample(left, min(k - len(pool), len(left)))
    return cells.iloc[sorted(pool)]
