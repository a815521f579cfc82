"""Recompute curves, contrasts, findings and the figure of a run from its samples, and compare them
with the stored ones.

Derived data has no authority: all that a reader sees has to follow from the samples. The statistics
are deterministic by the seed of the run: numbers may differ by the rounding of another processor
only, texts and counts not at all.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anchorlens.display import short_repr
from anchorlens.errors import InputError
from anchorlens.figures.choose_figure import main_figure
from anchorlens.figures.export import save_html
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import parse_positions

# Largest difference of a number that is computed again, as a share of its size, or absolute below
# 1.
ROUNDING = 1e-9
_FIGURE = "figure.html"


def compare_results(
    sweep: Mapping[str, Any], stored: SweepResult, fresh: SweepResult, starts: Mapping[str, int]
) -> list[str]:
    """Return the differences between stored and recomputed curves, contrasts, findings and verdict,
    one line for each kind.

    Args:
        sweep: Entry of the sweep in run.json.
        stored: Result with the stored tables.
        fresh: The same result without them.
        starts: Number of the first row of the sweep in each table.

    Raises:
        RunError: If an input has wrong positions, or the samples lack what a finding needs.
    """
    examples = stored.examples(all_columns=True)
    for row in examples[examples["role"] != "dropped"].to_dict("records"):
        parse_positions(row["example_id"], row["positions"], len(row["token_ids"]))
    tables = {
        "curves": [one.curves(controls=True, all_columns=True) for one in (stored, fresh)],
        "contrasts": [one.contrasts(all_columns=True) for one in (stored, fresh)],
    }
    found: list[str] = []
    for name, both in tables.items():
        file = f"{name}.parquet"
        found.append(compare_frames(file, *both, start=starts[name]))
    found.append(
        compare_values(
            "findings", sweep["findings"], json.loads(json.dumps(fresh.findings.to_dict()))
        )
    )
    if sweep["verdict"] != fresh.verdict:
        found.append("verdict: another text than that of the findings")
    return [one for one in found if one]


def compare_frames(
    name: str,
    stored: pd.DataFrame,
    again: pd.DataFrame,
    *,
    start: int = 0,
    allowed: float = ROUNDING,
) -> str:
    """Return the first difference between two tables with the same columns; empty if there is none.

    Args:
        name: Name of the table, for the message.
        stored: The stored table.
        again: The table that is computed again.
        start: Number of the first row in the file.
        allowed: Allowed difference of numbers, as a share of their size, or absolute below 1.
    """
    if len(stored) != len(again):
        return f"{name}: {len(stored)} rows, {len(again)} follow from the samples"
    for column in again.columns:
        one = stored[column]
        two = again[column]
        if pd.api.types.is_numeric_dtype(two) and pd.api.types.is_numeric_dtype(one):
            a, b = (own.to_numpy(dtype=np.float64, na_value=np.nan) for own in (one, two))
            exact = pd.api.types.is_integer_dtype(two) or pd.api.types.is_bool_dtype(two)
            bound = 0.0 if exact else allowed
            same = (
                (a == b)
                | (np.isnan(a) & np.isnan(b))
                | (np.abs(a - b) <= bound * np.maximum(1, np.abs(b)))
            )
        else:
            same = np.array(
                [_is_same(x, y) for x, y in zip(one.tolist(), two.tolist(), strict=True)],
                dtype=bool,
            )
        if not same.all():
            row = int((~same).argmax())
            values = short_repr(one.tolist()[row]), short_repr(two.tolist()[row])
            return f"{name}: row {start + row}: {column}={values[0]}, but {values[1]} follows"
    return ""


def _is_same(one: Any, two: Any) -> bool:
    """Return whether two cells are equal: both missing, equal lists, or equal values."""
    lists = [value.tolist() if isinstance(value, np.ndarray) else value for value in (one, two)]
    if any(isinstance(value, list) for value in lists):
        return lists[0] == lists[1]
    missing = [bool(pd.isna(value)) for value in lists]
    return all(missing) if any(missing) else bool(lists[0] == lists[1])


def compare_values(
    name: str, stored: Any, again: Any, *, allowed: float = ROUNDING, subset: int = 0
) -> str:
    """Return the first difference between two JSON values; empty if there is none.

    Args:
        name: Path of the value, for the message.
        stored: The stored value.
        again: The value that is computed again.
        allowed: Allowed difference of decimal numbers, as a share of their size, or absolute below
            1.
        subset: Number of levels of objects at which ``stored`` may have further entries.
    """
    if isinstance(again, dict) and isinstance(stored, dict):
        if lacking := [key for key in again if key not in stored]:
            return f"{name} lacks {lacking[0]}"
        if more := [key for key in stored if key not in again and subset < 1]:
            return f"{name} has {more[0]}, which does not follow"
        pairs = ((f"{name}.{key}", stored[key], again[key]) for key in again)
        return next(
            filter(
                None, (compare_values(*pair, allowed=allowed, subset=subset - 1) for pair in pairs)
            ),
            "",
        )
    if isinstance(again, list) and isinstance(stored, list) and len(again) == len(stored):
        pairs = ((f"{name}[{i}]", *pair) for i, pair in enumerate(zip(stored, again, strict=True)))
        return next(
            filter(
                None, (compare_values(*pair, allowed=allowed, subset=subset - 1) for pair in pairs)
            ),
            "",
        )
    if (
        isinstance(again, float)
        and isinstance(stored, float | int)
        and not isinstance(stored, bool)
    ):
        close = stored == again or abs(stored - again) <= allowed * max(1.0, abs(again))
    else:
        close = type(stored) is type(again) and stored == again
    return "" if close else f"{name}={short_repr(stored)}, but {short_repr(again)} follows"


def compare_figure(folder: Path, results: Sequence[SweepResult]) -> str:
    """Return the difference between ``figure.html`` and the figure that is drawn again; empty if
    there is none.
    """
    file = folder / _FIGURE
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / _FIGURE
        try:
            save_html(main_figure(results), again)
        except InputError:  # the sweeps cannot share a figure
            return (
                f"{_FIGURE} is there, but the sweeps cannot share a figure"
                if file.is_file()
                else ""
            )
        if not file.is_file():
            return f"{_FIGURE} is missing"
        return (
            ""
            if file.read_bytes() == again.read_bytes()
            else f"{_FIGURE} is not the figure of the samples"
        )
