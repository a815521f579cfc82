"""Screens: measure the items with the best scores and a random audit of the others, and limit what
was missed.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

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
    values = measure([*candidates, *chain.from_iterable(drawn)])
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
    drawn: list[tuple[str, ...]] = []
    for own, count in zip(strata, counts, strict=True):
        sample = rng.sample(list(own), count)
        drawn.append(tuple(sample))
    return tuple(drawn)


def most_with_property(audits: Sequence[Audit], confidence: float = 0.95) -> int:
    """Return the upper confidence limit of the number of items with a property.

    Tested is the estimate of their number: the sum over strata of ``found * size / drawn``. The
    limit is the largest number for which an estimate this small has a probability of
    ``1 - confidence`` or more, in some division between the strata; probabilities are
    hypergeometric. It holds with at least this confidence whatever the items are, because only the
    draw is random. A stratum that was audited as a whole is known, and one that was not audited
    counts as a whole.

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
    partial = sorted((audit for audit in audits if 0 < audit.drawn < audit.size), reverse=True)
    known = sum(audit.found if audit.drawn else audit.size for audit in audits)
    known -= sum(audit.found for audit in partial)
    if not partial:
        return known
    # A stratum of one item without the property stands for a missing second one.
    large, small = partial if len(partial) > 1 else (*partial, Audit(1, 1, 0))
    # Rounding must not make a limit lower.
    least = (1 - confidence) * (1 - 1e-9)
    # Weights of a found item of each stratum in the estimate, in whole numbers.
    heavy = large.size * small.drawn
    light = small.size * large.drawn
    estimate = heavy * large.found + light * small.found
    # With k found in the large stratum, at most this many in the small one.
    found = np.arange(min(large.drawn, estimate // heavy) + 1)
    rest = np.minimum((estimate - heavy * found) // light, small.drawn)
    in_small = np.arange(small.found, small.size - (small.drawn - small.found) + 1)
    tails = _probabilities(small, in_small, np.arange(small.drawn + 1)).cumsum(axis=1)[:, rest]

    def probability(in_large: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return (_probabilities(large, in_large, found) * tails).sum(axis=1)

    # Bisection for all numbers of the small stratum at once: the probability falls with the number
    # of the large one.
    low = np.full(len(in_small), large.found)
    high = np.full(len(in_small), large.size - (large.drawn - large.found))
    is_possible = probability(low) >= least
    while (low < high).any():
        middle = (low + high + 1) // 2
        enough = probability(middle) >= least
        low = np.where(enough, middle, low)
        high = np.where(enough, high, middle - 1)
    return known + int((in_small + low)[is_possible].max())


def _probabilities(
    audit: Audit, numbers: npt.NDArray[np.int64], found: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the hypergeometric probability of each number of found items (columns) for each number
    of items with the property in the stratum (rows).
    """
    of = numbers[:, None]
    others = audit.size - of
    missing = audit.drawn - found[None]
    is_possible = (found[None] <= of) & (missing <= others)
    # Impossible counts are replaced before the logarithms.
    log = (
        _log_choose(of, np.where(is_possible, found[None], 0))
        + _log_choose(others, np.where(is_possible, missing, 0))
        - _log_choose(np.array([audit.size]), np.array([audit.drawn]))
    )
    return np.where(is_possible, np.exp(log), 0.0)


def _log_choose(n: npt.NDArray[np.int64], k: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
