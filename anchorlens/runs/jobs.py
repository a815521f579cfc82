"""Jobs of a run: each measures a part of the shards and stores them beside the run directory."""

import re
from dataclasses import dataclass
from typing import Any

from anchorlens.display import as_int, short_repr
from anchorlens.errors import InputError


@dataclass(frozen=True)
class Job:
    """The i-th of n jobs of a run, counted from 1."""

    i: int
    n: int

    def holds(self, sweep: int, shard: int) -> bool:
        """Return whether a shard belongs to this job; sweeps of one shard each are spread over the
        jobs too.
        """
        return (sweep + shard) % self.n == self.i - 1

    @property
    def name(self) -> str:
        return f"{self.i}-of-{self.n}"

    def __str__(self) -> str:
        return f"{self.i}/{self.n}"


def parse_job(given: Any) -> Job | None:
    """Parse a job from ``"2/8"`` or ``(2, 8)``; None gives None.

    >>> parse_job("2/8")
    Job(i=2, n=8)
    """
    if given is None or isinstance(given, Job):
        return given
    pair = given if isinstance(given, (tuple, list)) else ()
    if isinstance(given, str) and (
        match := re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", given)
    ):
        pair = [int(number) for number in match.groups()]
    i, n = map(as_int, pair if len(pair) == 2 else (None, None))
    if i is None or n is None or not 1 <= i <= n:
        raise InputError(
            f"job={short_repr(given)} is no job. Write i/n with 1 <= i <= n, such as '2/8'.",
            argument="job",
        )
    return Job(i, n)
