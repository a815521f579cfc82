"""Runs of noun-like words in a question, and the subject rules based on them
(:mod:`~anchorlens.questions.spans.rules`).
"""

from collections.abc import Iterator

from anchorlens.questions.example import Span
from anchorlens.questions.spans.lexicon import DETERMINERS, TIME_WORDS, WEAK, word_set
from anchorlens.questions.spans.parse import Parsed, Run

# Small words within a noun-like run.
_NOUN_JOINERS = word_set("of vs")


def noun_runs(
    view: Parsed, spare: Span | None = None, joiners: frozenset[str] = _NOUN_JOINERS
) -> Iterator[Run]:
    """Yield runs of noun-like words outside ``spare`` and the queried phrase.

    ``joiners`` may stand between two words of a run, as "of" in "game of thrones".
    """
    words = view.words
    first, last = view.phrase or (0, 0)
    taken: list[bool] = []
    for k in range(len(words)):
        is_spare = spare is not None and spare.overlaps(view.span(k, k + 1))
        taken.append(is_spare or first <= k < last)
    i = 0
    while i < len(words):
        if not view.content[i] or taken[i]:
            i += 1
            continue
        end = j = i + 1
        while j < len(words) and not words[j].breaks and not taken[j]:
            if view.content[j]:
                end = j + 1
            elif not (words[j].low in joiners and j == end) and not (
                words[j].low in DETERMINERS and j == end + 1
            ):
                break
            j += 1
        yield i, end
        i = end


def _strong(view: Parsed, run: Run) -> int:
    """Count the noun-like words of a run that can be a subject alone."""
    return sum(view.content[i] and view.words[i].low not in WEAK | TIME_WORDS for i in range(*run))


def noun_rank(view: Parsed, run: Run) -> tuple[bool, int, int, int]:
    """Return a sort key that prefers words to numbers, then longer and earlier runs."""
    only_numbers = all(view.words[i].number for i in range(*run))
    return (not only_numbers, _strong(view, run), run[1] - run[0], -run[0])


def noun_run(view: Parsed) -> Span | None:
    """Return the longest noun-like run without stop-words: "who played the *middle sister* on full
    house".
    """
    best = max(
        (r for r in noun_runs(view) if _strong(view, r)),
        key=lambda r: noun_rank(view, r),
        default=None,
    )
    return None if best is None else view.span(*best)


def compound(view: Parsed) -> Span | None:
    """Return the queried phrase without its last word, if there is nothing else: "who is the
    *chicago bears* quarterback".
    """
    if view.phrase is None or view.phrase[1] - view.phrase[0] < 2:
        return None
    first, end = view.phrase
    if view.words[end - 2].low == "of":
        return view.span(end - 1, end)
    return view.span(first, end - 1) if _strong(view, (first, end - 1)) else None


def whole_phrase(view: Parsed) -> Span | None:
    """Return the queried phrase, if all else is a verb: "who is the *first president* to be
    impeached".
    """
    return None if view.phrase is None else view.span(*view.phrase)
