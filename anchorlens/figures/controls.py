"""Select the controls and other thin lines of the figure, and their entries in the second legend.

Splitting rows by the plotted quantity puts Q below A for any tokens, so the figure shows the splits of placebos too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from anchorlens.constants import SETTINGS

# Controls of a knockout with their own split into pathways.
PLACEBOS = {
    "random_tokens": "other question tokens cut, and split by that",
    "shuffled_labels": "the probe learned labels flipped within the question",
    "cross_fold": "split by one probe fold, ΔP by another",
}
# Controls of a knockout that are drawn only if named.
CUTS = {
    "size_matched": "as many exact question tokens cut as other question tokens",
    "random_before": "question tokens before subject and property cut",
    "random_after": "question tokens after subject and property cut",
}


@dataclass(frozen=True)
class Beside:
    """Entry of the second legend: a kind of thin line, or the area of the controls."""

    label: str
    dash: str  # a plotly dash name or list of lengths
    width: float  # pixels
    shown: bool = False  # visible without a click
    dark: bool = False  # darker shade of the question's colour


UNSPLIT = Beside("All (unsplit)", "dashdot", 1.2, dark=True)
SPLIT = Beside("Placebo split", "dot", 1.2)
OTHERS = Beside("Other placebos", "2px,6px", 1.2)
GAP = Beside("Placebo gap", "dot", 1.6, dark=True)
RANGE = Beside("Range of controls", "solid", 0.6, shown=True)
EXTRAS = {extra.label: extra for extra in (GAP, SPLIT, OTHERS, UNSPLIT)}
_DOTS = ("dot", "2px,6px", "1px,9px")  # dashes of the first, second and all further controls
_SPLIT_KEYS = ["dataset", "protocol", "anchor", *SETTINGS]
_PAIR = ("Q-Anchored", "A-Anchored")


def with_extras(table: pd.DataFrame) -> pd.DataFrame:
    """Add a column ``extra`` with the kind of each point, and the points of the placebo gap.

    ``extra`` is a label of ``EXTRAS``, or ``""`` for curves and their controls. Controls of an unsplit curve are dropped if its
    pathways are drawn too. If ``random_tokens`` has both pathways, rows of the gap are added: ``effect`` = Q minus A at each layer,
    ``n`` = questions of both groups, no interval.
    """
    paired = table["pathway"].isin(_PAIR)
    split = pd.MultiIndex.from_frame(table.loc[paired, _SPLIT_KEYS])
    # An unsplit curve without pathways is an ordinary curve.
    unsplit = (table["pathway"] == "All") & pd.MultiIndex.from_frame(table[_SPLIT_KEYS]).isin(split)
    placebo = paired & (table["protocol"] == "knockout") & table["control"].isin(list(PLACEBOS))
    kinds = pd.Series("", index=table.index, dtype=object)
    kinds[unsplit] = UNSPLIT.label
    kinds[placebo] = OTHERS.label
    kinds[placebo & (table["control"] == "random_tokens")] = SPLIT.label
    drawn = table.assign(extra=kinds)[~unsplit | (table["control"] == "none")]
    gaps = _gaps(drawn[drawn["extra"] == SPLIT.label])
    drawn = pd.concat([drawn, gaps], ignore_index=True) if len(gaps) else drawn
    # A kind without values (such as the gap to an empty pathway) has no legend entry.
    valued = drawn.loc[drawn["effect"].notna(), "extra"].unique()
    return drawn[drawn["extra"].isin(["", *valued])].reset_index(drop=True)


def _gaps(placebo: pd.DataFrame) -> pd.DataFrame:
    question, answer = (placebo[placebo["pathway"] == pathway] for pathway in _PAIR)
    keys = ["model", "part", *_SPLIT_KEYS, "layer"]
    both = question.merge(answer[[*keys, "effect", "n"]], on=keys, suffixes=("", "_answer"))
    both = both.assign(effect=both["effect"] - both["effect_answer"], n=both["n"] + both["n_answer"])
    both[["ci_low", "ci_high", "sim_low", "sim_high"]] = float("nan")
    return both.assign(control=GAP.label, extra=GAP.label)[placebo.columns]


def beside_curves(table: pd.DataFrame, controls: bool | Sequence[str]) -> dict[str, Beside]:
    """Return the entries of the second legend by label; named controls are visible and replace the range."""
    named = () if isinstance(controls, bool) else (controls,) if isinstance(controls, str) else tuple(controls)
    plain = table.loc[table["extra"] == "", "control"].unique()
    entries = {} if named or in_range(table).empty else {RANGE.label: RANGE}
    for rank, name in enumerate(sorted(set(plain) - {"none"}, key=lambda name: (name != "null", list(plain).index(name)))):
        entries[name] = Beside(name, _DOTS[min(rank, len(_DOTS) - 1)], 1, shown=name in named)
    for label, extra in EXTRAS.items():
        own = table.loc[table["extra"] == label, "control"]
        if len(own):
            entries[label] = replace(extra, shown=bool(own.isin(named).any()))
    return entries


def in_range(table: pd.DataFrame) -> pd.DataFrame:
    """Return the points of controls in the grey area: all except those split by the plotted quantity."""
    return table[(table["control"] != "none") & table["extra"].isin(["", SPLIT.label]) & table["effect"].notna()]
