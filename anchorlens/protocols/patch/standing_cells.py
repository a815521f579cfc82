"""Cells of a patch sweep that stand against its controls.

A cell stands if the simultaneous band of its mean effect excludes 0, the bands of the effect minus
each control exclude 0 on the same side, and the effect itself accounts for at least half of each of
these differences. All bands are simultaneous over the grid. Cells are named from twenty groups and
twenty clusters on.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import TypeAlias

import pandas as pd

from anchorlens.protocols.patch.grid_statistics import EFFECT, LESS_CONTROL
from anchorlens.results.estimates import LayerEstimate
from anchorlens.results.findings import (
    DESCRIPTION,
    NOT_DETECTED,
    NULL_MOVES,
    REVERSED,
    STANDS,
    TOO_FEW,
    claim_status,
)

Cell: TypeAlias = tuple[str, int]
"""Place and layer."""
Facts: TypeAlias = Mapping[Cell, LayerEstimate]


def cell_status(effect: LayerEstimate, less: Mapping[str, LayerEstimate], floor: float) -> str:
    """Return the status of a cell: the effect and its difference from each control have to stand.

    Args:
        effect: Mean effect of the cell.
        less: Control -> effect minus that control.
        floor: Noise floor of the effect.
    """
    own = claim_status(effect, floor=floor, joint=True)
    if own != STANDS:
        return own
    if not less:
        return DESCRIPTION
    side = effect.side(joint=True)
    against: set[str] = set()
    for one in less.values():
        against.add(claim_status(one, sign=side, joint=True, effect=effect.value))
    if against & {TOO_FEW, NOT_DETECTED, REVERSED}:
        return NOT_DETECTED
    return NULL_MOVES if NULL_MOVES in against else STANDS


def facts_of(contrasts: pd.DataFrame, quantity: str, control: str) -> Facts:
    """Return the estimates of a quantity by cell."""
    own = contrasts[(contrasts["quantity"] == quantity) & (contrasts["control"] == control)]
    names = ["anchor", "layer", "value", "ci_low", "ci_high", "sim_low", "sim_high"]
    counts = ["n", "n_clusters"]
    numbers = own[names + counts].astype(dict.fromkeys(names[2:], "float64"))
    facts: dict[Cell, LayerEstimate] = {}
    for anchor, layer, *rest in numbers.itertuples(index=False, name=None):
        facts[str(anchor), int(layer)] = LayerEstimate(*rest)
    return facts


def controls_without_pairs(contrasts: pd.DataFrame, controls: Sequence[str]) -> list[str]:
    """Return the controls that were asked for and that no pair has."""
    measured = set(contrasts.loc[contrasts["quantity"] == LESS_CONTROL, "control"])
    return [control for control in controls if control not in measured]


def p_values_of(contrasts: pd.DataFrame) -> dict[Cell, float]:
    """Return the p-value of every tested cell: the largest over controls, since a cell has to stand
    against each.
    """
    less = contrasts[(contrasts["quantity"] == LESS_CONTROL) & contrasts["p"].notna()]
    largest = less.groupby(["anchor", "layer"], sort=False)["p"].max()
    return {(str(anchor), int(layer)): float(p) for (anchor, layer), p in largest.items()}


def statuses_of(contrasts: pd.DataFrame, floor: float, controls: Sequence[str]) -> dict[Cell, str]:
    """Return the status of every cell.

    Args:
        contrasts: Contrasts of the sweep.
        floor: Noise floor, NaN if unknown.
        controls: Controls that were asked for. A cell does not stand against one that no pair has.
    """
    floor = 0.0 if isnan(floor) else floor
    by_control = {control: facts_of(contrasts, LESS_CONTROL, control) for control in controls}
    lacking = LayerEstimate(*[float("nan")] * 5, n=0, n_clusters=0)
    statuses: dict[Cell, str] = {}
    for cell, effect in facts_of(contrasts, EFFECT, "none").items():
        less = {control: facts.get(cell, lacking) for control, facts in by_control.items()}
        statuses[cell] = cell_status(effect, less, floor)
    return statuses


def find_standing_cells(
    contrasts: pd.DataFrame, floor: float, controls: Sequence[str]
) -> set[Cell]:
    """Return the cells that stand and are named; arguments as of :func:`statuses_of`."""
    effects = facts_of(contrasts, EFFECT, "none")
    named: set[Cell] = set()
    for cell, status in statuses_of(contrasts, floor, controls).items():
        if status == STANDS and effects[cell].names_layers:
            named.add(cell)
    return named
