"""Pathways: split of rows by whether the probe's prediction flips under a knockout, and its
selection bias (METHOD 5).

A row is *Q-Anchored* if the probe's prediction flips under the knockout, else *A-Anchored*. Rows
are split by the quantity that is plotted. A flip lowers the confidence, so Q lies below A for any
probe, even one at chance. Controls measure or remove this gap:

- ``random_tokens``: cut as many other question tokens as E_Q has. If a question has fewer, compare
  with a cut of that many random tokens of E_Q (control ``size_matched``).
- ``shuffled_labels``: train the probe on labels that are flipped in a random half of the questions.
- ``cross_fold``: split by a probe trained on one half of the questions, read ΔP by a probe trained
  on the other half. This removes the selection by the probe's own noise.

*Gap* = mean ΔP of Q minus that of A. It describes the published figure;
:mod:`anchorlens.statistics.contrasts` supports claims.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.statistics.bands import RATE, Band, auc_band, band, within_share
from anchorlens.statistics.resamples import Estimate, Resamples

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

Q = "Q-Anchored"
A = "A-Anchored"
ALL = "All"
SIZE_MATCHED = "size_matched"
RANDOM = "random_tokens"
SHUFFLED = "shuffled_labels"
CROSS_FOLD = "cross_fold"
PLACEBOS = (RANDOM, SHUFFLED, CROSS_FOLD)
# Control whose gap a placebo's gap is compared with: `size_matched` cuts as many tokens of E_Q as
# `random_tokens` cuts others.
COMPARED_WITH = {RANDOM: SIZE_MATCHED, SHUFFLED: "none", CROSS_FOLD: "none"}
# Ends of the scale of a quantity, if not 100 points: differences of AUCs, and of points that do not
# share one clean P.
_LIMITS = {"auc_drop": 1.0, "auc_beyond_text": 1.0} | dict.fromkeys(
    (
        "gap",
        "placebo_gap",
        "gap_difference",
        "cross_fold_gap",
        "selection",
        "row_specific_vs_placebo",
    ),
    np.inf,
)
# Shares of rows; flip_rate is a difference of two.
_SHARES = ("flip_rate_patched", "flip_rate_random")


@dataclass(frozen=True, kw_only=True)
class ProbeChange:
    """P of one probe before and after a change, and the split into pathways.

    Attributes:
        control: ``none``, ``size_matched``, or the name of a placebo.
        before: P of the clean pass, [layer row].
        after: P of the changed pass, [layer row]; NaN where a row was not measured or the change
            cannot reach a layer.
        q: True where the row is Q-Anchored, [layer row].
        donors: Donor of each row if rows are measured with several donors, else ().
    """

    control: str
    before: Array
    after: Array
    q: Flags
    donors: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupCurve(Estimate):
    """Mean ΔP of a group of rows at each layer, and its mean π before, [layer]."""

    before: Array


def group_curves(delta: Array, before: Array, q: Flags, draws: Resamples) -> dict[str, GroupCurve]:
    """Compute the curves of Q-Anchored, A-Anchored and all rows from ΔP, clean π and the split,
    each [layer row].
    """
    present = ~np.isnan(delta)
    out: dict[str, GroupCurve] = {}
    for name, members in ((Q, q & present), (A, ~q & present), (ALL, present)):
        mean, start = (draws.means(values.T, members.T) for values in (delta, before))
        out[name] = GroupCurve(**vars(mean), before=start.value)
    return out


def gaps(curves: Mapping[str, Mapping[str, GroupCurve]]) -> list[tuple[str, str, Estimate]]:
    """Compute the gap Q - A of every control, and the differences between gaps.

    They are descriptive, because rows are selected by the outcome.

    Args:
        curves: Control -> pathway -> curve, all with the same bootstrap draws.

    Returns:
        (quantity, control, estimate): ``gap`` (controls ``none``, ``size_matched``),
        ``placebo_gap``, ``gap_difference`` (gap minus placebo gap), ``cross_fold_gap`` and
        ``selection`` (gap minus cross-fold gap). n is that of the smaller group.
    """
    gap_of = {name: _subtract(groups[Q], groups[A]) for name, groups in curves.items()}
    out: list[tuple[str, str, Estimate]] = []
    for control, gap in gap_of.items():
        kind = "placebo_gap"
        if control in ("none", SIZE_MATCHED):
            kind = "gap"
        elif control == CROSS_FOLD:
            kind = "cross_fold_gap"
        out.append((kind, control, gap))
    for placebo in (name for name in PLACEBOS if name in gap_of):
        name = "selection" if placebo == CROSS_FOLD else "gap_difference"
        out.append((name, placebo, _subtract(gap_of[COMPARED_WITH[placebo]], gap_of[placebo])))
    return out


def _subtract(a: Estimate, b: Estimate) -> Estimate:
    """Return the difference of two estimates, with the smaller number of questions.

    Standard errors are those of independent estimates: the studentised band needs the same scale in
    sample and resamples, not the covariance.
    """
    errors = np.hypot(a.error, b.error), np.hypot(a.errors, b.errors)
    n = np.minimum(a.n, b.n)
    own, other = (n / np.fmax(one.n, 1) * one.far for one in (a, b))
    least = np.fmin(own[0], -other[1])
    most = np.fmax(own[1], -other[0])
    return Estimate(
        value=a.value - b.value,
        error=errors[0],
        draws=a.draws - b.draws,
        errors=errors[1],
        n=n,
        n_questions=np.minimum(a.n_questions, b.n_questions),
        far=np.stack([least, most]),
        effects=a.effects[:0],
    )


def quantity_frame(
    layers: Sequence[int],
    quantity: str,
    control: str,
    estimate: Estimate,
    *,
    auc: bool = False,
    rate: bool = False,
    level: float = 0.95,
    cross_fitted: bool = False,
) -> pd.DataFrame:
    """Return the table of a quantity with both bands.

    ``auc`` is True for an AUC, ``rate`` for a difference of two rates in percentage points.
    """
    is_share = quantity in _SHARES
    if auc:
        made = auc_band(estimate, level=level, cross_fitted=cross_fitted)
    else:
        made = band(
            estimate,
            level=level,
            span=RATE if rate or is_share else 0.0,
            limit=_LIMITS.get(quantity, 100.0),
        )
    if is_share:
        made = within_share(made)
    return band_frame(layers, quantity, control, made)


def band_frame(layers: Sequence[int], quantity: str, control: str, made: Band) -> pd.DataFrame:
    """Return the table of a quantity from its bands, one row per layer."""
    return pd.DataFrame(
        {
            "layer": list(layers),
            "quantity": quantity,
            "control": control,
            "value": made.value,
            "ci_low": made.low,
            "ci_high": made.high,
            "sim_low": made.sim_low,
            "sim_high": made.sim_high,
            "n": made.n,
            "n_clusters": made.n_clusters,
            "n_effective": made.n_effective,
        }
    )
