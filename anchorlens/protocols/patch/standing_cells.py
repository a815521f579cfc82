"""Cells of a patch sweep that stand against its controls.

A cell stands if the simultaneous band of its mean effect excludes 0, the bands of the effect minus each control exclude 0 on the
same side, and the effect itself accounts for at least half of each of these differences. All bands are simultaneous over the grid.
"""

from collections.abc import Mapping
from math import isnan
from typing import TypeAlias

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.protocols.patch.grid_statistics import EFFECT, LESS_CONTROL
from anchorlens.results.estimates import LayerEstimate
from anchorlens.results.findings import DESCRIPTION, NOT_DETECTED, NULL_MOVES, STANDS, TOO_FEW

Cell: TypeAlias = tuple[str, int]
"""Place and layer."""
Facts: TypeAlias = Mapping[Cell, LayerEstimate]

_LEAST_SHARE = 0.5
"""Smallest share of effect minus control that the effect itself accounts for where a cell stands."""


def status_of(effect: LayerEstimate, less: Mapping[str, LayerEstimate], floor: float) -> str:
    """Return the status of a cell; ``less``: effect minus each measured control, ``floor``: noise floor."""
    if effect.n < MIN_QUESTIONS_FOR_CLAIM:
        return TOO_FEW
    sign = 1 if effect.value > 0 else -1
    if isnan(effect.sim_low) or abs(effect.value) <= floor or not effect.beyond(sign, everywhere=True):
        return NOT_DETECTED
    if not less:
        return DESCRIPTION
    if any(isnan(one.sim_low) or not one.beyond(sign, everywhere=True) for one in less.values()):
        return NOT_DETECTED
    return STANDS if all(abs(effect.value) >= _LEAST_SHARE * abs(one.value) for one in less.values()) else NULL_MOVES


def facts_of(contrasts: pd.DataFrame, quantity: str, control: str) -> Facts:
    own = contrasts[(contrasts["quantity"] == quantity) & (contrasts["control"] == control)]
    names = ["anchor", "layer", "value", "ci_low", "ci_high", "sim_low", "sim_high", "n"]
    numbers = own[names].astype(dict.fromkeys(names[2:-1], "float64"))
    return {(str(a), int(k)): LayerEstimate(*rest) for a, k, *rest in numbers.itertuples(index=False, name=None)}


def statuses_of(contrasts: pd.DataFrame, floor: float) -> dict[Cell, str]:
    """Return the status of every cell; ``floor``: noise floor, NaN if unknown."""
    floor = 0.0 if isnan(floor) else floor
    controls = list(dict.fromkeys(contrasts.loc[contrasts["quantity"] == LESS_CONTROL, "control"]))
    less = {control: facts_of(contrasts, LESS_CONTROL, control) for control in controls}
    lacking = LayerEstimate(*[float("nan")] * 5, n=0)
    return {
        cell: status_of(effect, {control: facts.get(cell, lacking) for control, facts in less.items()}, floor)
        for cell, effect in facts_of(contrasts, EFFECT, "none").items()
    }


def find_standing_cells(contrasts: pd.DataFrame, floor: float) -> set[Cell]:
    """Return the cells that stand; ``floor``: noise floor, NaN if unknown."""
    return {cell for cell, status in statuses_of(contrasts, floor).items() if status == STANDS}
