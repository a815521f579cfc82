"""Screens: measure the items with the best scores and a random audit of the others, and limit what
was missed.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, hypergeom

# Items next to the candidates, as a multiple of their number: half of the audit is drawn from them.
_NEAR = 4


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


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Candidates of a screen, a random audit of the other items, and what was missed at most.

    Attributes:
        candidates: Items with the largest absolute scores.
        strata: Items next to the candidates, and all others; without empty ones.
        drawn: Audited items of each stratum.
        cut: Size of the value that must not be missed.
        audits: Counts of each stratum.
        missed_at_most: Upper confidence limit of the number of items other than the candidates
            whose absolute value is at least ``cut``.
    """

    candidates: tuple[str, ...]
    strata: tuple[tuple[str, ...], ...]
    drawn: tuple[tuple[str, ...], ...]
    cut: float
    audits: tuple[Audit, ...]
    missed_at_most: int


def audit_screen(
    scores: Mapping[str, float],
    measure: Callable[[Sequence[str]], Mapping[str, float]],
    *,
    top: int,
    audit: int,
    cut: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Screen:
    """Measure the items with the largest scores and a random audit of the others, and limit how
    many were missed.

    Half of the audit is drawn from the items with the next scores, four times as many as
    candidates, half from all others. Scores and candidates do not depend on the draw, nor does a
    cut that is derived from the candidates, so the limit holds whatever the scores are worth.

    Args:
        scores: Item -> score; the rank is that of its absolute value.
        measure: Function that returns the values of some items, called once.
        top: Number of candidates.
        audit: Number of other items that are drawn; all of them if there are fewer.
        cut: Size of a value that must not be missed. If None, the median of the candidates' sizes.
        confidence: Confidence of the limit.
        seed: Random seed of the draw.

    Examples:
        >>> values = {"a": 1.0, "b": -2.0, "c": 0.0, "d": 3.0}
        >>> scores = {"a": 0.9, "b": -1.9, "c": 0.0, "d": 0.1}
        >>> screen = audit_screen(scores, lambda names: values, top=2, audit=2)
        >>> screen.candidates, screen.cut, screen.missed_at_most
        (('b', 'a'), 1.5, 1)
    """
    ranked = sorted(scores, key=lambda item: -abs(scores[item]))
    candidates = tuple(ranked[:top])
    near, far = ranked[top : (1 + _NEAR) * top], ranked[(1 + _NEAR) * top :]
    strata = tuple(tuple(stratum) for stratum in (near, far) if stratum)
    drawn = _draw(strata, audit, seed)
    values = measure([*candidates, *(item for own in drawn for item in own)])
    limit = median(abs(values[item]) for item in candidates) if cut is None else cut
    audits: list[Audit] = []
    for stratum, own in zip(strata, drawn, strict=True):
        found = sum(abs(values[item]) >= limit for item in own)
        audits.append(Audit(len(stratum), len(own), found))
    return Screen(
        candidates=candidates,
        strata=strata,
        drawn=drawn,
        cut=limit,
        audits=tuple(audits),
        missed_at_most=most_with_property(audits, confidence),
    )


def _draw(strata: Sequence[Sequence[str]], n: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Draw items of each stratum, as many of each where they have enough."""
    rng = random.Random(f"{seed}:audit")
    counts = [0] * len(strata)
    left = n
    by_size = sorted(range(len(strata)), key=lambda i: len(strata[i]))
    for done, number in enumerate(by_size):
        counts[number] = min(len(strata[number]), left // (len(strata) - done))
        left -= counts[number]
    return tuple(
        tuple(rng.sample(list(own), count)) for own, count in zip(strata, counts, strict=True)
    )


def most_with_property(audits: Sequence[Audit], confidence: float = 0.95) -> int:
    """Return the upper confidence limit of the number of items with a property, in one or two
    strata.

    Of each stratum the tail probability of as few found items is hypergeometric. Two strata are
    combined by Fisher's product of tail probabilities; one that was audited as a whole, or not at
    all, has no probability. The limit holds with at least this confidence whatever the items are,
    because only the draw is random.

    Args:
        audits: Strata; at most two of them are audited in part.
        confidence: Confidence of the limit.

    Returns:
        Largest number that is not rejected, those that were found included.

    Examples:
        >>> most_with_property([Audit(size=1000, drawn=200, found=0)])
        13
        >>> most_with_property([Audit(50, 50, 2), Audit(10, 10, 0)])
        2
    """
    random_ones = [audit for audit in audits if 0 < audit.drawn < audit.size]
    known = sum(audit.found if audit.drawn else audit.size for audit in audits)
    known -= sum(audit.found for audit in random_ones)
    if not random_ones:
        return known
    # The product of S uniform numbers is below this with probability 1 - confidence.
    least = exp(-float(chi2.ppf(confidence, 2 * len(random_ones))) / 2)
    first, *others = map(_tails, random_ones)
    numbers = random_ones[0].found + np.flatnonzero(first >= least)
    if not others:
        return known + int(numbers.max())
    # Tails fall with the number of items: the largest one that is allowed beside each.
    allowed = least / first[numbers - random_ones[0].found]
    more = np.searchsorted(-others[0], -allowed, side="right") - 1 + random_ones[1].found
    return known + int((numbers + more).max())


def _tails(audit: Audit) -> npt.NDArray[np.float64]:
    """Return the probability to find at most as many, for each possible number of items with the
    property, from the number that was found on.
    """
    most = audit.size - (audit.drawn - audit.found)
    numbers = np.arange(audit.found, most + 1)
    return hypergeom.cdf(audit.found, audit.size, numbers, audit.drawn)
