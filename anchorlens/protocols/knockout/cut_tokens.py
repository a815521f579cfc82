"""Whose attention is cut in one row: the source's tokens, and as many others for the placebo."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from anchorlens.edges import parse_edges
from anchorlens.questions.tokens import TokenRow
from anchorlens.statistics.pathways import MATCHED
from anchorlens.vocabulary import LATER

RANDOM = "random_tokens"
VARIANTS = ("none", RANDOM, MATCHED)


@dataclass(frozen=True)
class RowCuts:
    """The positions of one row that are cut off, by variant.

    Attributes:
        sources: ``none`` -> the source's positions; ``random_tokens`` -> as many other question tokens; ``matched`` -> as many
            tokens of the source as ``random_tokens`` has. The last two are absent where the question has no other token, and all
            are where the edges cut nothing: the row is not measured.
        targets: Positions that no longer read them; None: every later position outside.
    """

    sources: Mapping[str, tuple[int, ...]]
    targets: tuple[int, ...] | None


def row_cuts(row: TokenRow, edges: str, seed: int, *, placebos: bool) -> RowCuts:
    """What is cut in one row.

    The placebo's tokens are drawn from the question tokens that are neither of the source nor of the target, never position 0. Where
    there are fewer than the source has, ``matched`` holds that many random tokens of the source.
    """
    source, target = parse_edges(edges)
    own = row.positions[source]
    goal = None if target == LATER else row.positions[target]
    readers = set(range(len(row.ids))) - set(own) if goal is None else set(goal)
    if not own or max(readers, default=-1) <= min(own):
        return RowCuts({}, goal)
    sources = {"none": own}
    taken = {0, *own, *(goal or ())}
    question = (*row.positions["question"], *row.positions["question_rest"])
    others = sorted(p for p in question if p not in taken)
    if goal is not None:  # what stands after the last target flows nowhere: cutting it would be no placebo
        others = [p for p in others if p < max(goal)]
        own = tuple(p for p in own if p < max(goal))
    if placebos and others:
        rng = random.Random(f"{seed}:placebo:{row.row_id}:{edges}")
        n = min(len(own), len(others))
        sources[RANDOM] = tuple(sorted(rng.sample(others, n)))
        sources[MATCHED] = own if n == len(own) else tuple(sorted(rng.sample(sorted(own), n)))
    return RowCuts(sources, goal)


__all__ = ["RANDOM", "VARIANTS", "RowCuts", "row_cuts"]
