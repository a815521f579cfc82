"""Pair the token positions of two prompts: by a list, position by position, by segments, or by
common beginning and end.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from anchorlens.prompts.dataset import RowDropped

Alignment: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of (clean position, corrupted position), in the order of the clean prompt."""
Spans: TypeAlias = Sequence[tuple[range, range]]
"""Positions of each segment in the clean and in the corrupted prompt."""


def align_positions(
    clean: Sequence[int],
    corrupted: Sequence[int],
    segments: Spans = (),
    explicit: Alignment | None = None,
) -> Alignment:
    """Pair the positions of two prompts.

    An explicit alignment is used as it is. Prompts of equal length pair position by position.
    Otherwise segments of equal length pair inside, and the text before, between and after the
    segments by its common beginning and end; without segments the whole prompts do. If the segments
    stand in another order, only the text before the first and after the last segment is paired so.

    Args:
        clean: Token ids of the clean prompt.
        corrupted: Token ids of the corrupted prompt.
        segments: Positions of each segment in both prompts; segments of one prompt do not overlap.
        explicit: Pairs given by the user.

    Returns:
        Pairs in the order of the clean prompt; each position occurs once at most.

    Raises:
        RowDropped: If an explicit pair is invalid, or no position has a partner.
    """
    if explicit is not None:
        return check_alignment(explicit, len(clean), len(corrupted))
    if len(clean) == len(corrupted):
        return tuple((p, p) for p in range(len(clean)))
    pairs: list[tuple[int, int]] = []
    for a, b in segments:
        if len(a) == len(b):
            pairs += zip(a, b, strict=True)
    for a, b in _gaps(segments, len(clean), len(corrupted)):
        pairs += _common_ends(clean, corrupted, a, b)
    if not pairs:
        raise RowDropped(
            "no_paired_position", "the prompts have neither a common beginning nor a common end"
        )
    return tuple(sorted(pairs))


def check_alignment(pairs: Alignment, n_clean: int, n_corrupted: int) -> Alignment:
    """Return an explicit alignment in order; raise RowDropped if a position is outside its prompt
    or occurs twice.
    """
    clean, corrupted = zip(*pairs, strict=True) if pairs else ((), ())
    for which, length, own in (("clean", n_clean, clean), ("corrupted", n_corrupted, corrupted)):
        for p in own:
            if not 0 <= p < length:
                raise RowDropped(
                    "bad_alignment", f"{which} position {p}, the prompt has {length} tokens"
                )
        if len(set(own)) < len(own):
            raise RowDropped(
                "bad_alignment", f"{which} position {max(own, key=own.count)} occurs twice"
            )
    return tuple(sorted(pairs))


def _gaps(segments: Spans, n_clean: int, n_corrupted: int) -> list[tuple[range, range]]:
    """Return the stretches of both prompts before, between and after the segments."""
    if not segments:
        return [(range(n_clean), range(n_corrupted))]
    ordered = sorted(segments, key=lambda spans: spans[0].start)
    corrupted = [b for _, b in ordered]
    between: list[tuple[range, range]] = []
    for (a, b), (next_a, next_b) in pairwise(ordered):
        between.append((range(a.stop, next_a.start), range(b.stop, next_b.start)))
    if corrupted != sorted(corrupted, key=lambda span: span.start):
        # In another order the text between two segments of one prompt has no counterpart.
        between = []
    first = min(span.start for span in corrupted)
    last = max(span.stop for span in corrupted)
    start = range(ordered[0][0].start), range(first)
    end = range(ordered[-1][0].stop, n_clean), range(last, n_corrupted)
    return [start, *between, end]


def _common_ends(
    clean: Sequence[int], corrupted: Sequence[int], a: range, b: range
) -> list[tuple[int, int]]:
    """Return the pairs of the common beginning and the common end of two stretches; no position is
    used twice.
    """
    longest = min(len(a), len(b))
    start = 0
    while start < longest and clean[a[start]] == corrupted[b[start]]:
        start += 1
    end = 0
    while end < longest - start and clean[a[-1 - end]] == corrupted[b[-1 - end]]:
        end += 1
    return [
        *zip(a[:start], b[:start], strict=True),
        *zip(a[len(a) - end :], b[len(b) - end :], strict=True),
    ]
