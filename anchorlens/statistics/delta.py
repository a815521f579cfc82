"""ΔP: change of a probability, in percentage points (METHOD 3)."""

import numpy as np
import numpy.typing as npt

from anchorlens.constants import DELTA_KINDS
from anchorlens.errors import InputError, did_you_mean

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def support(p: Array, before: Array, event: Array, kind: str) -> Array:
    """Return π, the probability that ΔP of a truth readout compares before and after a change: P or
    1 - P.

    Args:
        p: P before or after the change, [... row].
        before: P before the change, same shape as ``p``.
        event: 1 where the event of P occurs (for a probe: the answer is false), [row].
        kind: ``confidence``: probability of the prediction before the change; ``signed``: P;
            ``true_label``: that of the true label.

    Raises:
        InputError: If ``kind`` is unknown.
    """
    if kind not in DELTA_KINDS:
        raise InputError(
            f"delta_kind={kind!r}: unknown. {did_you_mean(kind, DELTA_KINDS)}",
            argument="delta_kind",
        )
    if kind == "signed":
        return p
    positive = before >= 0.5 if kind == "confidence" else np.broadcast_to(event == 1, p.shape)
    return np.where(positive, p, 1 - p)


def delta_p(before: Array, after: Array, event: Array, kind: str) -> Array:
    """Compute ΔP = 100 * (π(after) - π(before)), in percentage points; arguments as in
    :func:`support`.

    With ``confidence``, ΔP is in [-100, 0) if the prediction flips, else in [-50, 50].
    """
    return 100 * (support(after, before, event, kind) - support(before, before, event, kind))


def is_flipped(before: Array, after: Array) -> Flags:
    """Return True where the prediction (P >= 0.5) changes."""
    return (before >= 0.5) != (after >= 0.5)
