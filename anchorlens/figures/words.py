"""How a figure speaks of what it draws: quantities of curves, and contrasts."""

from dataclasses import dataclass

import pandas as pd

from anchorlens.vocabulary import AUC, DIFFERENCE, FLIP, SIZE, P


@dataclass(frozen=True)
class Words:
    """How a figure speaks of the quantity that it draws.

    Attributes:
        name: In the title and in front of a value.
        axis: The y axis's title.
        said: The part of the title line that says what is drawn; empty where the name says it.
        unit: After a value, with a space before it.
        bound: No value lies further from 0.
    """

    name: str
    axis: str
    said: str
    unit: str
    bound: float = float("inf")


DELTA = Words("ΔP", "ΔP", "ΔP in percentage points", " points", 100)
FLIPS = Words(
    "flip rate", "flip rate (points)", "flip rate: share of predictions that changed, in percentage points", " points", 100
)
DIFFERENCES = Words("difference of ΔP", "ΔP less ΔP", "second run's ΔP less the first's, in percentage points", " points", 200)
AUCS = Words("AUC of the probe", "AUC", "line: 0.5, no better than chance", "", 1)
SIZES = Words("size of the pathways", "questions", "", " questions")


def words_of(table: pd.DataFrame) -> Words:
    """The words for the quantity of a table's points."""
    quantity = str(table["quantity"].iloc[0])
    known = {P: DELTA, FLIP: FLIPS, DIFFERENCE: DIFFERENCES, AUC: AUCS, SIZE: SIZES}
    return known[quantity] if quantity in known else Words(name := f"Δ {quantity}", name, "", "")


@dataclass(frozen=True)
class Contrast:
    """How a figure speaks of one contrast of ``effects()``.

    Attributes:
        axis: The y axis's title; ``less ...`` follows where it has a control.
        said: In the hover.
        unit: After a value, with a space before it.
        bound: No value lies further from 0.
        digits: After the point.
        controls: The control that is the leading one, by preference.
    """

    axis: str
    said: str
    unit: str = " points"
    bound: float = 200
    digits: int = 2
    controls: tuple[str, ...] = ("random_tokens", "other_question", "null", "none")


CONTRASTS = {
    "delta_all": Contrast("ΔP", "mean ΔP of all rows less that of the control"),
    "flip_rate": Contrast("flips", "share of rows that flip less that of the control", bound=100),
    "auc_drop": Contrast("AUC", "AUC of the probe less that of the control", "", 1, 3),
    "own_change": Contrast(
        "ΔP by own change", "ΔP by the row's own change less that by other rows' changes", controls=("matched", "none")
    ),
    "p_after": Contrast("P after", "mean P after the change less that of the control", bound=100),
    "less_null": Contrast("ΔP", "ΔP less that of the null"),
}
"""The quantities of ``effects()`` that the figure draws, in the order of its switch (METHOD 5)."""

_LESS = {"random_tokens": " less placebo's", "null": " less null's", "none": ""}


def contrast_axis(quantity: str, control: str) -> str:
    """The y axis's title: what is compared, with what."""
    contrast = CONTRASTS[quantity]
    # An own change is compared with those of other rows, whatever was cut.
    return contrast.axis if quantity == "own_change" else contrast.axis + _LESS.get(control, " less control's")
