"""What stands beside the pathway curves of a knockout: the unsplit curve, the placebo splits and their gap.

A split by the very quantity that is plotted draws Q below A whatever the tokens mean, so the figure shows what splits that mean
nothing draw (METHOD 5). Each kind is one entry of the legend, for all data sets and panels together.
"""

from dataclasses import dataclass

import pandas as pd

from anchorlens.vocabulary import SETTINGS

PLACEBOS = {
    "random_tokens": "other question tokens cut, and split by that",
    "shuffled_labels": "the probe learned labels flipped within the question",
    "cross_fold": "split by one probe fold, ΔP by another",
}
"""The controls of a knockout that are splits of their own, and what each does."""

CUTS = {
    "matched": "as many tokens of E_Q cut as other question tokens",
    "random_before": "other question tokens before E_Q cut",
    "random_after": "other question tokens after E_Q cut",
}
"""Controls of a knockout that are drawn only where they are asked for by name, and what each does."""


@dataclass(frozen=True)
class Extra:
    """One kind of thin curve with one legend entry of its own.

    Attributes:
        label: The entry's text.
        dash: A plotly dash name or list of lengths.
        width: Pixels.
        shown: Whether it is drawn from the start; if not, a click on its entry shows it.
        dark: Whether it is a darker shade of the question's colour, as it belongs to no one pathway.
    """

    label: str
    dash: str
    width: float
    shown: bool
    dark: bool


UNSPLIT = Extra("All (unsplit)", "dashdot", 1.2, shown=False, dark=True)
SPLIT = Extra("Placebo split", "dot", 1.2, shown=False, dark=False)
OTHERS = Extra("Other placebos", "2px,6px", 1.2, shown=False, dark=False)
GAP = Extra("Placebo gap", "dot", 1.6, shown=True, dark=True)
EXTRAS = {extra.label: extra for extra in (UNSPLIT, SPLIT, OTHERS, GAP)}
"""In the order of the legend."""

_SPLIT_KEYS = ["dataset", "protocol", "anchor", *SETTINGS]
_PAIR = ("Q-Anchored", "A-Anchored")


def with_extras(table: pd.DataFrame) -> pd.DataFrame:
    """The points to draw, each with its kind, and the placebo gap.

    Args:
        table: Points as ``gather`` gives them.

    Returns:
        ``table`` with a column ``extra``: a label of ``EXTRAS``, or ``""`` for curves and their own controls. Controls of an
        unsplit curve that stands beside its pathways are left out. Where ``random_tokens`` has both pathways, rows of the
        gap are added: ``delta_p`` = Q minus A at each layer, ``n`` = both groups, no interval.
    """
    paired = table["pathway"].isin(_PAIR)
    split = pd.MultiIndex.from_frame(table.loc[paired, _SPLIT_KEYS])
    # An unsplit curve that stands alone is a curve like any other.
    unsplit = (table["pathway"] == "All") & pd.MultiIndex.from_frame(table[_SPLIT_KEYS]).isin(split)
    placebo = paired & (table["protocol"] == "knockout") & table["control"].isin(list(PLACEBOS))
    kinds = pd.Series("", index=table.index)
    kinds[unsplit] = UNSPLIT.label
    kinds[placebo] = OTHERS.label
    kinds[placebo & (table["control"] == "random_tokens")] = SPLIT.label
    drawn = table.assign(extra=kinds)[~unsplit | (table["control"] == "none")]
    gaps = _gaps(drawn[drawn["extra"] == SPLIT.label])
    drawn = pd.concat([drawn, gaps], ignore_index=True) if len(gaps) else drawn
    # A kind without a value (a pathway with no question in it has no gap) needs no legend entry.
    valued = drawn.loc[drawn["delta_p"].notna(), "extra"].unique()
    return drawn[drawn["extra"].isin(["", *valued])].reset_index(drop=True)


def _gaps(placebo: pd.DataFrame) -> pd.DataFrame:
    question, answer = (placebo[placebo["pathway"] == pathway] for pathway in _PAIR)
    keys = ["model", *_SPLIT_KEYS, "layer"]
    both = question.merge(answer[[*keys, "delta_p", "n"]], on=keys, suffixes=("", "_answer"))
    both = both.assign(
        delta_p=both["delta_p"] - both["delta_p_answer"],
        n=both["n"] + both["n_answer"],
        **dict.fromkeys(["ci_low", "ci_high", "sim_low", "sim_high"], float("nan")),
        control=GAP.label,
        extra=GAP.label,
    )
    return both[placebo.columns]
