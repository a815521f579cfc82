"""Pathways: which answers change the probe's mind when the question is cut off, and how much of that is selection (METHOD 5).

A row is *Q-Anchored* where the probe's prediction flips under the knockout, else *A-Anchored*. The split uses the quantity that is
plotted, so any probe, even one at chance, draws Q below A. Beside the measured curves therefore stand controls in which split and
curve are both taken from something that says nothing about the question's exact tokens:

- ``random_tokens``: other question tokens are cut, as many as E_Q has; where a question has fewer, that many random tokens of E_Q
  are the other side of the comparison (control ``matched``).
- ``shuffled_labels``: the probe was trained on labels shuffled among the training rows.
- ``cross_fold``: split by a probe of one half of the training questions, ΔP by a probe of the other half. Noise of a probe cannot
  select itself here: what is left of the gap is not that probe's selection.

*Gap* = mean ΔP of Q less that of A. *Effect* = the measured gap less the gap of a placebo.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.statistics.resamples import Resamples, interval

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

Q, A, ALL = "Q-Anchored", "A-Anchored", "All"
MATCHED = "matched"
PLACEBOS = ("random_tokens", "shuffled_labels", "cross_fold")
# The measured gap that a placebo's is compared with: after `matched`, as many tokens of E_Q were cut as other tokens.
COMPARED_WITH = {"random_tokens": MATCHED, "shuffled_labels": "none", "cross_fold": "none"}


@dataclass(frozen=True)
class Measured:
    """P before and after one knockout, read by one probe, and the split that goes with it.

    Attributes:
        control: ``none``, ``matched``, or a placebo's name.
        before: P of the clean run, [layer row].
        after: P with the edges cut, [layer row]; NaN where a row was not measured or a layer cannot be reached.
        q: True where the row is Q-Anchored, [layer row].
        donors: The donor of each row, where one row is measured with several; () where there are none.
    """

    control: str
    before: Array
    after: Array
    q: Flags
    donors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Mean ΔP over a group of rows, layer by layer.

    Attributes:
        mean: [layer]
        draws: The same of every bootstrap resample, [resample layer].
        n: Number of questions, [layer].
        before: Mean π before the change, [layer].
    """

    mean: Array
    draws: Array
    n: npt.NDArray[np.int64]
    before: Array


def group_curves(delta: Array, before: Array, q: Flags, draws: Resamples) -> dict[str, Group]:
    """The curves of Q-Anchored, A-Anchored and all rows.

    Args:
        delta: ΔP, [layer row]; NaN where there is none.
        before: π before the change, [layer row].
        q: True where a row is Q-Anchored, [layer row].
        draws: Resamples over the questions of the rows.
    """
    there = ~np.isnan(delta)
    out: dict[str, Group] = {}
    for name, members in ((Q, q & there), (A, ~q & there), (ALL, there)):
        mean, means, n = draws.means(delta.T, members.T)
        out[name] = Group(mean, means, n, draws.means(before.T, members.T)[0])
    return out


def effects_frame(curves: Mapping[str, Mapping[str, Group]], layers: Sequence[int]) -> pd.DataFrame:
    """Gaps, placebo gaps and effects at each layer, with intervals.

    Args:
        curves: Control -> pathway -> curve, all with the same bootstrap draws.
        layers: Layers of the curves.

    Returns:
        ``layer quantity control value ci_low ci_high n``: ``gap`` (control ``none`` and ``matched``), ``placebo_gap`` and ``effect``
        (control = the placebo). n is the smaller group's number of questions.
    """
    gaps = {
        control: (groups[Q].mean - groups[A].mean, groups[Q].draws - groups[A].draws, np.minimum(groups[Q].n, groups[A].n))
        for control, groups in curves.items()
    }
    frames = [
        quantity_frame(layers, "gap" if control in ("none", MATCHED) else "placebo_gap", control, *gap)
        for control, gap in gaps.items()
    ]
    for placebo in (name for name in PLACEBOS if name in gaps):
        real, other = gaps[COMPARED_WITH[placebo]], gaps[placebo]
        effect = (real[0] - other[0], real[1] - other[1], np.minimum(real[2], other[2]))
        frames.append(quantity_frame(layers, "effect", placebo, *effect))
    return pd.concat(frames, ignore_index=True)


def quantity_frame(
    layers: Sequence[int], quantity: str, control: str, value: Array, draws: Array, n: npt.NDArray[np.int64]
) -> pd.DataFrame:
    """One quantity at each layer, with the percentile interval of its draws [resample layer]."""
    low, high = interval(draws, n > 1)
    columns = {"layer": list(layers), "quantity": quantity, "control": control, "value": value}
    return pd.DataFrame({**columns, "ci_low": low, "ci_high": high, "n": n})


__all__ = ["ALL", "MATCHED", "PLACEBOS", "A", "Group", "Measured", "Q", "effects_frame", "group_curves", "quantity_frame"]
