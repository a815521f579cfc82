"""Upper limits of what a random audit missed."""

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, hypergeom


class Audit(NamedTuple):
    """Random sample without replacement from one stratum.

    Attributes:
        size: Number of items of the stratum.
        drawn: Number of audited items.
        found: Number of audited items that have the property.
    """

    size: int
    drawn: int
    found: int


def most_with_property(audits: Sequence[Audit], confidence: float = 0.95) -> int:
    """Return the upper confidence limit of the number of items with a property, in one or two
    strata.

    Of each stratum the tail probability of as few found items is hypergeometric. Two strata are
    combined by Fisher's product of tail probabilities. The limit holds with at least this
    confidence whatever the items are, because only the draw is random.

    Args:
        audits: One or two strata.
        confidence: Confidence of the limit.

    Returns:
        Largest number that is not rejected, those that were found included.

    Examples:
        >>> most_with_property([Audit(size=1000, drawn=200, found=0)])
        13
        >>> most_with_property([Audit(50, 50, 2), Audit(10, 10, 0)])
        2
    """
    # The product of S uniform numbers is below this with probability 1 - confidence.
    least = exp(-float(chi2.ppf(confidence, 2 * len(audits))) / 2)
    first, *others = map(_tails, audits)
    numbers = audits[0].found + np.flatnonzero(first >= least)
    if not others:
        return int(numbers.max())
    # Tails fall with the number of items: the largest one that is allowed beside each.
    allowed = least / first[numbers - audits[0].found]
    more = np.searchsorted(-others[0], -allowed, side="right") - 1 + audits[1].found
    return int((numbers + more).max())


def _tails(audit: Audit) -> npt.NDArray[np.float64]:
    """Return the probability to find at most as many, for each possible number of items with the
    property, from the number that was found on.
    """
    most = audit.size - (audit.drawn - audit.found)
    numbers = np.arange(audit.found, most + 1)
    return hypergeom.cdf(audit.found, audit.size, numbers, audit.drawn)
