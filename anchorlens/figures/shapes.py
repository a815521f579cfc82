"""What curves and contrasts are drawn from: lines with gaps, and closed outlines of their bands."""

import math

import numpy as np
import pandas as pd

from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.palette import translucent

POINTWISE, SIMULTANEOUS = "ci", "sim"
"""The two bands, by the first part of their columns: ``ci_low``, ``ci_high``, ``sim_low``, ``sim_high``."""

BANDS = {"both": (SIMULTANEOUS, POINTWISE), "pointwise": (POINTWISE,), "simultaneous": (SIMULTANEOUS,)}
"""The words that ``bands=`` takes, and what each draws, from back to front."""

_OPACITY = {POINTWISE: 0.15, SIMULTANEOUS: 0.07}
# Where more curves than these share a panel their bands are paler, or those around zero add up to a block.
CROWD = 4
# Of a curve, and of one that rests on few questions.
WIDTH, THIN_WIDTH = 2.2, 1.1
FEW = 20
"""Questions below which a curve is marked (METHOD 6)."""


def chosen_bands(bands: bool | str, *frames: pd.DataFrame) -> tuple[str, ...]:
    """The bands to draw, from back to front.

    Args:
        bands: What the user asked for.
        frames: The points that will be drawn.

    Raises:
        InputError: no such word, or simultaneous bands alone of results that have none.
    """
    if isinstance(bands, bool):
        return BANDS["both"] if bands else ()
    if bands not in BANDS:
        raise InputError(f"bands={bands!r} is neither True, False nor one of these words. {did_you_mean(str(bands), BANDS)}")
    if bands == "simultaneous" and not any(frame["sim_low"].notna().any() for frame in frames):
        raise InputError(
            "These results hold no simultaneous band: an older version wrote them. Make the run again, or give "
            "bands='pointwise'."
        )
    return BANDS[bands]


def has_band(rows: pd.DataFrame, kind: str) -> bool:
    """Whether any point has both ends of a band."""
    return bool((rows[f"{kind}_low"].notna() & rows[f"{kind}_high"].notna()).any())


def rests_on_few(rows: pd.DataFrame, value: str) -> bool:
    """Whether most points of a curve rest on fewer than 20 questions; where the split varies by layer, single ones may."""
    return float(rows.loc[rows[value].notna(), "n"].median()) < FEW


def runs_of(rows: pd.DataFrame, columns: list[str]) -> list[pd.DataFrame]:
    """``rows`` cut at every row that lacks a value."""
    whole = rows[columns].notna().to_numpy().all(axis=1)
    cuts = np.cumsum(~whole)
    return [rows[whole & (cuts == cut)] for cut in np.unique(cuts[whole])]


def outline(rows: pd.DataFrame, value: str, kind: str) -> tuple[list[int | None], list[float | None]]:
    """x and y of a band: one closed shape per run of neighbouring points that have an interval.

    Args:
        rows: Points of one curve, by layer.
        value: The column that is drawn.
        kind: Which band.
    """
    x: list[int | None] = []
    y: list[float | None] = []
    for part in runs_of(rows, [value, f"{kind}_low", f"{kind}_high"]):
        layers, low, high = part["layer"].tolist(), part[f"{kind}_low"].tolist(), part[f"{kind}_high"].tolist()
        if len(layers) > 1:
            x += [*layers, *reversed(layers), layers[0], None]
            y += [*high, *reversed(low), high[0], None]
    return x[:-1], y[:-1]


def fill_of(colour: str, kind: str, *, crowded: bool = False) -> str:
    """The colour of a band of a curve, paler among many."""
    return translucent(colour, round(_OPACITY[kind] * (0.42 if crowded else 1), 3))


def values_of(column: pd.Series) -> list[float | None]:
    """Numbers of a column, None where one is missing."""
    return [None if math.isnan(value) else value for value in column.tolist()]
