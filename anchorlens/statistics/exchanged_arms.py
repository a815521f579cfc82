"""Effects of a cut alone, and the values whose signs are flipped to exchange a cut with its placebo
(METHOD 5 and 6).

To exchange the arms of a cluster of rows is to flip the sign of its differences. This holds for the
difference of two areas under the curve too: it is a sum over rows (:func:`auc_differences`), and
exchanging the arms of a cluster flips the sign of that cluster's part. So one test serves all
contrasts: :func:`~anchorlens.statistics.sign_flips.sign_flip_p`.
"""

import numpy as np
import numpy.typing as npt

from anchorlens.statistics.contrasts import Arm, flips
from anchorlens.statistics.delta import delta_p

Array = npt.NDArray[np.float64]


def effects_of_cut(
    knockout: Arm, placebo: Arm, event: Array, kind: str, floor: float = 0.0
) -> dict[str, Array]:
    """Compute the effect of the cut alone, over the rows that a contrast with the placebo uses.

    A claim needs that the cut itself accounts for at least half of the contrast.

    Args:
        knockout: P before and after the cut.
        placebo: P before and after the placebo.
        event: 1 where the event of P occurs, [row].
        kind: Kind of ΔP.
        floor: Noise floor in points, within which a flip does not count.

    Returns:
        ``delta_p_vs_placebo``: mean ΔP; ``flip_rate``: share of flips in percent; ``auc_drop``: AUC
        after the cut minus the clean AUC. Each [layer]; NaN without a row.
    """
    both = ~np.isnan(knockout.after) & ~np.isnan(placebo.after)
    change = delta_p(knockout.before, knockout.after, event, kind)
    n = both.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_change = np.where(both, change, 0.0).sum(axis=1) / n
        share = np.where(both, flips(knockout, floor), 0.0).sum(axis=1) / n
    drop = np.full(len(both), np.nan)
    for layer, rows in enumerate(both):
        after = _auc(knockout.after[layer, rows], event[rows])
        drop[layer] = after - _auc(knockout.before[layer, rows], event[rows])
    return {"delta_p_vs_placebo": mean_change, "flip_rate": share, "auc_drop": drop}


def arm_differences(
    knockout: Arm, placebo: Arm, event: Array, kind: str, floor: float = 0.0
) -> dict[str, Array]:
    """Compute the differences of the two arms whose mean over rows is a contrast.

    Args:
        knockout: P before and after the cut.
        placebo: P before and after the placebo.
        event: 1 where the event of P occurs, [row].
        kind: Kind of ΔP.
        floor: Noise floor in points, within which a flip does not count.

    Returns:
        ``delta_p_vs_placebo``, ``flip_rate`` and ``auc_drop``, each [row layer]; NaN where a row
        lacks an arm.
    """
    own, other = (delta_p(arm.before, arm.after, event, kind) for arm in (knockout, placebo))
    flipped = flips(knockout, floor) - flips(placebo, floor)
    return {
        "delta_p_vs_placebo": (own - other).T,
        "flip_rate": flipped.T,
        "auc_drop": auc_differences(knockout.after, placebo.after, event),
    }


def auc_differences(first: Array, second: Array, labels: Array) -> Array:
    """Split the difference of two areas under the curve into parts of the rows.

    A pair of a row with label 1 and one with label 0 is in order under either arm, or mixed, with
    one row of each arm. Exchanging the arms of both rows flips the sign of (first - second);
    exchanging those of one row flips the sign of the difference of the mixed pairs. Half of the sum
    of both belongs to the row with label 1, half of their difference to the other.

    Args:
        first: Scores of the first arm, [layer row]; NaN without a score.
        second: Scores of the second arm, [layer row].
        labels: Labels, 0 or 1, [row].

    Returns:
        Parts times the number of rows, [row layer]: their mean is AUC(first) - AUC(second). With
        the signs of some clusters flipped it is that difference after an exchange of their arms.
        NaN where a row lacks an arm, or where a layer lacks a label.
    """
    parts = np.full((first.shape[1], len(first)), np.nan)
    for layer in range(len(first)):
        rows = ~(np.isnan(first[layer]) | np.isnan(second[layer]))
        one = np.flatnonzero(rows & (labels == 1))
        zero = np.flatnonzero(rows & (labels == 0))
        if not (len(one) and len(zero)):
            continue
        a, b = first[layer], second[layer]
        same = _in_order(a, a, one, zero) - _in_order(b, b, one, zero)
        mixed = _in_order(a, b, one, zero) - _in_order(b, a, one, zero)
        scale = (len(one) + len(zero)) / (2 * len(one) * len(zero))
        parts[one, layer] = scale * (same + mixed).sum(axis=1)
        parts[zero, layer] = scale * (same - mixed).sum(axis=0)
    return parts


def _in_order(
    of_one: Array, of_zero: Array, one: npt.NDArray[np.intp], zero: npt.NDArray[np.intp]
) -> Array:
    """Return 1 for pairs in order, 0.5 for ties, [label-1 label-0]."""
    return np.heaviside(of_one[one, None] - of_zero[zero], 0.5)


def _auc(scores: Array, labels: Array) -> float:
    """Return the area under the curve; NaN if a label is absent."""
    one = np.flatnonzero(labels == 1)
    zero = np.flatnonzero(labels == 0)
    if not (len(one) and len(zero)):
        return float("nan")
    return float(_in_order(scores, scores, one, zero).mean())
