"""What stands beside the curves: the range of their controls, each control, and of a knockout its unsplit curve and placebo splits.

A split by the very quantity that is plotted draws Q below A whatever the tokens mean, so the figure shows what splits that mean
nothing draw (METHOD 5). One grey area a panel holds all controls; each kind of them is an entry of the second legend, for all data
sets and panels together, and is drawn after a click on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
class Beside:
    """One kind of thin curve, or the area that holds them, with one entry in the second legend.

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


UNSPLIT = Beside("All (unsplit)", "dashdot", 1.2, shown=False, dark=True)
SPLIT = Beside("Placebo split", "dot", 1.2, shown=False, dark=False)
OTHERS = Beside("Other placebos", "2px,6px", 1.2, shown=False, dark=False)
GAP = Beside("Placebo gap", "dot", 1.6, shown=False, dark=True)
RANGE = Beside("Range of controls", "solid", 0.6, shown=True, dark=False)
EXTRAS = {extra.label: extra for extra in (GAP, SPLIT, OTHERS, UNSPLIT)}
"""In the order of the legend."""

# Dots of a first, second, ... control; all further ones look like the last.
_DOTS = ("dot", "2px,6px", "1px,9px")

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
    keys = ["model", "part", *_SPLIT_KEYS, "layer"]
    both = question.merge(answer[[*keys, "delta_p", "n"]], on=keys, suffixes=("", "_answer"))
    both = both.assign(
        delta_p=both["delta_p"] - both["delta_p_answer"],
        n=both["n"] + both["n_answer"],
        **dict.fromkeys(["ci_low", "ci_high", "sim_low", "sim_high"], float("nan")),
        control=GAP.label,
        extra=GAP.label,
    )
    return both[placebo.columns]


def beside_curves(table: pd.DataFrame, controls: bool | Sequence[str]) -> dict[str, Beside]:
    """What the second legend lists, in its order.

    Args:
        table: Points as :func:`with_extras` gives them.
        controls: What the user asked for; a control that was named is drawn at once, and then there is no range.

    Returns:
        Label -> kind; the label of a control is its name.
    """
    named = () if isinstance(controls, bool) else (controls,) if isinstance(controls, str) else tuple(controls)
    plain = sorted(
        (str(name) for name in table.loc[table["extra"] == "", "control"].unique() if name != "none"),
        key=lambda name: name != "null",
    )
    found = {} if named or in_range(table).empty else {RANGE.label: RANGE}
    for rank, name in enumerate(plain):
        found[name] = Beside(name, _DOTS[min(rank, len(_DOTS) - 1)], 1, shown=name in named, dark=False)
    for label, extra in EXTRAS.items():
        own = table.loc[table["extra"] == label, "control"]
        if len(own):
            found[label] = replace(extra, shown=extra.shown or bool(own.isin(named).any()))
    return found


def in_range(table: pd.DataFrame) -> pd.DataFrame:
    """The points of controls that the grey area holds: all but those that split by the plotted quantity itself."""
    return table[(table["control"] != "none") & table["extra"].isin(["", SPLIT.label]) & table["delta_p"].notna()]
