"""Whose attention is cut in one row: the source's tokens, and as many others for the placebo."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from anchorlens.edges import parse_edges
from anchorlens.errors import CheckError
from anchorlens.questions.entities import named_spans
from anchorlens.questions.example import Span
from anchorlens.questions.prompts import rendered
from anchorlens.questions.tokens import RowTokenizer, TokenRow, overlapping
from anchorlens.statistics.pathways import MATCHED
from anchorlens.vocabulary import LATER

RANDOM = "random_tokens"
BEFORE, AFTER = "random_before", "random_after"
VARIANTS = ("none", RANDOM, MATCHED, BEFORE, AFTER)
# Where the first cuts what the second cuts, one pass serves both.
SAME_AS = {MATCHED: "none", BEFORE: RANDOM, AFTER: RANDOM}


@dataclass(frozen=True)
class RowCuts:
    """The positions of one row that are cut off, by variant.

    Attributes:
        sources: ``none`` -> the source's positions; ``random_tokens`` -> as many other question tokens; ``matched`` -> as many
            tokens of the source as ``random_tokens`` has; ``random_before`` and ``random_after`` -> those of ``random_tokens`` that
            stand before the source's first token, and the others, where they are asked for and there are any. All but the first
            are absent where the question has no other token, and all are where the edges cut nothing: the row is not measured.
        targets: Positions that no longer read them; None: every later position outside.

    Raises:
        CheckError: ``matched`` and ``random_tokens`` are not as many.
    """

    sources: Mapping[str, tuple[int, ...]]
    targets: tuple[int, ...] | None

    def __post_init__(self) -> None:
        other, matched = (set(self.sources.get(name, ())) for name in (RANDOM, MATCHED))
        if len(other) != len(matched):
            raise CheckError(
                f"The placebo cuts {len(other)} tokens and the source's other side {len(matched)}; please report this."
            )

    def only(self, variants: Iterable[str]) -> "RowCuts":
        """Without the variants that these do not need."""
        named = {"none", *variants}
        kept = named | {SAME_AS[v] for v in named if v in SAME_AS}
        kept |= {RANDOM, MATCHED} if kept & {RANDOM, MATCHED} else set()  # as many of the one as of the other
        return replace(self, sources={v: where for v, where in self.sources.items() if v in kept})

    def own_pass(self, variant: str) -> bool:
        """Whether a variant cuts something that no variant before it does."""
        there = self.sources.get(variant, ())
        return bool(there) and (variant not in SAME_AS or there != self.sources[SAME_AS[variant]])


def row_cuts(
    row: TokenRow, edges: str, seed: int, *, placebos: bool, sides: bool = False, named: Iterable[int] = ()
) -> RowCuts:
    """What is cut in one row.

    The placebo's tokens are drawn from the question tokens outside E_Q that are not of the target, never position 0, and
    never one that names something: were the subject missed when the spans were found, the placebo would cut it. Where there are
    fewer than the source has, ``matched`` holds that many random tokens of the source.

    Args:
        row: The input.
        edges: ``source -> target``.
        seed: Draws the tokens.
        placebos: Whether to draw any.
        sides: Whether those on either side of the source are cut apart, too.
        named: Positions that are not drawn, see :func:`named_positions`.
    """
    source, target = parse_edges(edges)
    own = row.positions[source]
    goal = None if target == LATER else row.positions[target]
    readers = set(range(len(row.ids))) - set(own) if goal is None else set(goal)
    if not own or max(readers, default=-1) <= min(own):
        return RowCuts({}, goal)
    sources = {"none": own}
    # Outside E_Q, also where only a part of it is cut: the rest of it is no placebo.
    taken = {0, *own, *row.positions["question"], *(goal or ()), *named}
    others = sorted(p for p in row.positions["question_rest"] if p not in taken)
    if goal is not None:  # what stands after the last target flows nowhere: cutting it would be no placebo
        others = [p for p in others if p < max(goal)]
        own = tuple(p for p in own if p < max(goal))
    if placebos and others:
        rng = random.Random(f"{seed}:placebo:{row.row_id}:{edges}")
        n = min(len(own), len(others))
        drawn = tuple(sorted(rng.sample(others, n)))
        sources[RANDOM] = drawn
        sources[MATCHED] = own if n == len(own) else tuple(sorted(rng.sample(sorted(own), n)))
        # What stands after the source has read it already.
        apart = {BEFORE: tuple(p for p in drawn if p < min(own)), AFTER: tuple(p for p in drawn if p > min(own))}
        sources |= {name: side for name, side in apart.items() if sides and side}
    return RowCuts(sources, goal)


def named_positions(row: TokenRow, tokenizer: RowTokenizer) -> tuple[int, ...]:
    """Positions of the question's names, numbers and quotations: no placebo may cut them.

    Args:
        row: An input.
        tokenizer: What made it.
    """
    start = rendered(tokenizer.prompt, row.question, tokenizer.tokenizer).question_start
    offsets = tokenizer.encode(row.text)[1]
    spans = (Span(span.start + start, span.end + start) for span in named_spans(row.question))
    return tuple(sorted({p for span in spans for p in overlapping(offsets, span)}))


__all__ = ["AFTER", "BEFORE", "RANDOM", "SAME_AS", "VARIANTS", "RowCuts", "named_positions", "row_cuts"]
