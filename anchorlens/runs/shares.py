"""A share of a run: what one of several processes measures that keep their shards in one place."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anchorlens.errors import InputError
from anchorlens.kinds import as_whole, described


@dataclass(frozen=True)
class Share:
    """The i-th of n shares.

    Attributes:
        i: From 1 on.
        n: How many there are.
    """

    i: int
    n: int

    def holds(self, sweep: int, shard: int) -> bool:
        """Whether a shard is in it: every n-th, beginning one further in each sweep, so that sweeps of one shard are shared too."""
        return (sweep + shard) % self.n == self.i - 1

    @property
    def name(self) -> str:
        """In names of files."""
        return f"{self.i}-of-{self.n}"

    def __str__(self) -> str:
        return f"{self.i}/{self.n}"


def share_of(given: Any) -> Share | None:
    """``"2/8"`` or ``(2, 8)`` as a share; None where nothing is given.

    Raises:
        InputError: It is no share.

    >>> share_of("2/8")
    Share(i=2, n=8)
    """
    if given is None or isinstance(given, Share):
        return given
    pair: Sequence[Any] = given if isinstance(given, (tuple, list)) else ()
    if isinstance(given, str) and (found := re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", given)):
        pair = [int(number) for number in found.groups()]
    i, n = map(as_whole, pair if len(pair) == 2 else (None, None))
    if i is None or n is None or not 1 <= i <= n:
        raise InputError(f"shard takes i/n, the i-th of n jobs with i from 1 to n, such as '2/8'; got {described(given)}.")
    return Share(i, n)


__all__ = ["Share", "share_of"]
