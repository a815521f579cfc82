"""Pathways: which answers change the probe's mind when the question is cut off, and how much of that is selection (METHOD 5).

A row is *Q-Anchored* where the probe's prediction flips under the knockout, else *A-Anchored*. The split uses the quantity that is
plotted, so any probe, even one at chance, draws Q below A. Beside the measured curves therefore stand controls in which split and
curve are both taken from something that says nothing about the question's exact tokens:

- ``random_tokens``: other question tokens are cut, as many as E_Q has; where a question has fewer, that many random tokens of E_Q
  are the other side of the comparison (control ``size_matched``).
- ``shuffled_labels``: the probe was trained on labels flipped at random within the question.
- ``cross_fold``: split by a probe of one half of the training questions, ΔP by a probe of the other half. Noise of a probe cannot
  select itself here: what is left of the gap is not that probe's selection.

*Gap* = mean ΔP of Q less that of A. It describes the published picture. What can be claimed stands in
:mod:`anchorlens.statistics.contrasts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.statistics.bands import Band, auc_band, band
from anchorlens.statistics.contrasts import Estimate
from anchorlens.statistics.resamples import Resamples

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

Q, A, ALL = "Q-Anchored", "A-Anchored", "All"
SIZE_MATCHED = "size_matched"
RANDOM, SHUFFLED, CROSS_FOLD = "random_tokens", "shuffled_labels", "cross_fold"
PLACEBOS = (RANDOM, SHUFFLED, CROSS_FOLD)
# The measured gap that a placebo's is compared with: after `size_matched`, as many tokens of E_Q were cut as other tokens.
COMPARED_WITH = {RANDOM: SIZE_MATCHED, SHUFFLED: "none", CROSS_FOLD: "none"}


@dataclass(frozen=True)
class Measured:
    """P before and after one knockout, read by one probe, and the split that goes with it.

    Attributes:
        control: ``none``, ``size_matched``, or a placebo's name.
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
    """Mean ΔP over a group of rows [layer], its draws [resample layer], questions [layer] and mean π before the change [layer]."""

    mean: Array
    draws: Array
    n: npt.NDArray[np.int64]
    before: Array


def group_curves(delta: Array, before: Array, q: Flags, draws: Resamples) -> dict[str, Group]:
    """Return the curves of Q-Anchored, A-Anchored and all rows from ΔP, π before and the split, each [layer row]."""
    there = ~np.isnan(delta)
    out: dict[str, Group] = {}
    for name, members in ((Q, q & there), (A, ~q & there), (ALL, there)):
        mean, means, n = draws.means(delta.T, members.T)
        out[name] = Group(mean, means, n, draws.means(before.T, members.T)[0])
    return out


def gaps(curves: Mapping[str, Mapping[str, Group]]) -> list[tuple[str, str, Estimate]]:
    """Q less A under every control, and how it compares: a description of the published picture, never evidence.

    Args:
        curves: Control -> pathway -> curve, all with the same bootstrap draws.

    Returns:
        Quantity, control and estimate: ``gap`` (control ``none`` and ``size_matched``), ``placebo_gap`` and ``gap_difference`` (the
        measured gap less the placebo's), ``cross_fold_gap`` (free of the probe's own selection) and ``selection`` (the gap less
        that). n is the smaller group's number of questions.
    """
    found = {name: less(*(_of_group(groups[pathway]) for pathway in (Q, A))) for name, groups in curves.items()}
    out: list[tuple[str, str, Estimate]] = []
    for control, gap in found.items():
        kind = "gap" if control in ("none", SIZE_MATCHED) else "cross_fold_gap" if control == CROSS_FOLD else "placebo_gap"
        out.append((kind, control, gap))
    for placebo in (name for name in PLACEBOS if name in found):
        name = "selection" if placebo == CROSS_FOLD else "gap_difference"
        out.append((name, placebo, less(found[COMPARED_WITH[placebo]], found[placebo])))
    return out


def less(one: Estimate, other: Estimate) -> Estimate:
    """A difference, with the smaller number of questions."""
    return Estimate(one.value - other.value, one.draws - other.draws, np.minimum(one.n, other.n))


def _of_group(group: Group) -> Estimate:
    return Estimate(group.mean, group.draws, group.n)


def quantity_frame(
    layers: Sequence[int], quantity: str, control: str, estimate: Estimate, *, auc: bool = False, rate: bool = False
) -> pd.DataFrame:
    """One quantity at each layer with both bands; ``auc``: of an area under the ROC curve, ``rate``: of a share in points."""
    of = estimate.value, estimate.draws, estimate.n
    made = auc_band(*of) if auc else band(*of, rate=rate)
    return band_frame(layers, quantity, control, made)


def band_frame(layers: Sequence[int], quantity: str, control: str, made: Band) -> pd.DataFrame:
    """Return the table of a quantity whose bands are known."""
    return pd.DataFrame(
        {
            "layer": list(layers), "quantity": quantity, "control": control, "value": made.value, "ci_low": made.low,
            "ci_high": made.high, "sim_low": made.sim_low, "sim_high": made.sim_high, "n": made.n,
        }
    )  # fmt: skip
