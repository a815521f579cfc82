"""Find the property of a question, given its subject (:mod:`~anchorlens.questions.spans.rules`)."""

from collections.abc import Callable

from anchorlens.questions.example import Span
from anchorlens.questions.spans.lexicon import AUX, BASE_VERBS, DETERMINERS, STOP, WH, is_year
from anchorlens.questions.spans.noun_runs import noun_rank, noun_runs
from anchorlens.questions.spans.parse import Parsed


def _free(view: Parsed, index: int, subject: Span) -> bool:
    """Return True if a word can be part of the property: outside the subject and not the
    wh-word.
    """
    return index != view.wh and not subject.overlaps(view.span(index, index + 1))


def phrase_head(view: Parsed, subject: Span) -> Span | None:
    """Return the head of the queried phrase: "which British *composer*", "how *old*", "what is the
    *main religion*".
    """
    if view.phrase is None:
        return None
    first, end = view.phrase
    while end > first and not _free(view, end - 1, subject):
        end -= 1
    start = end
    while start > first and _free(view, start - 1, subject):
        start -= 1
    # Leading names qualify the head; if all words are names they are the head.
    heads = [i for i in range(start, end) if view.cased and view.words[i].capital]
    if heads and heads[-1] + 1 < end:
        start = heads[-1] + 1
    while start < end and view.words[start].low in {"of", "and", "vs"} | DETERMINERS:
        start += 1
    # "which 1939 *film*"
    start += start + 1 < end and is_year(view.words[start])
    # "spacecraft first to return", "actress best known as"
    while end > start + 1 and view.words[end - 1].low in {"first", "best", "better"}:
        end -= 1
    return view.span(start, end) if start < end else None


def main_verb(view: Parsed, subject: Span) -> Span | None:
    """Return the first main verb after the wh-word, else the last before it: "who *wrote* Emma",
    "when did Emma *appear*".
    """
    begin = 0 if view.wh is None else view.wh + 1
    fallback = None
    for i in [*range(begin, len(view.words)), *reversed(range(begin))]:
        if not view.verbs[i] or view.words[i].low in AUX or not _free(view, i, subject):
            continue
        verb = view.span(i, i + 1)
        if not _relative(view, i):
            return verb
        # "When was the man who *painted* Guernica *born*?": a verb of a relative clause only if
        # there is no other.
        fallback = fallback or verb
    return fallback


def _relative(view: Parsed, index: int) -> bool:
    """Return True if a verb follows a relative pronoun with only small words between them."""
    before = index - 1
    while (
        before > max(0, index - 4)
        and not view.content[before]
        and view.words[before].low not in WH | {"that"}
    ):
        before -= 1
    return before > 0 and before != view.wh and view.words[before].low in WH | {"that"}


def object_of_have(view: Parsed, subject: Span) -> Span | None:
    """Return the object of "have": "where do the oslo vikings have *spring training*"."""
    words = view.words
    n = len(words)
    verb = 0
    while verb < n and not (
        words[verb].low == "have" and view.after_do[verb] and words[verb].start >= subject.end
    ):
        verb += 1
    first = verb + 1
    while first < n and not (view.content[first] and _free(view, first, subject)):
        first += 1
    if first >= n:
        return None
    end = first + 1
    while end < n and view.content[end] and not words[end].breaks:
        end += 1
    return view.span(first, end)


def after_do(view: Parsed, subject: Span) -> Span | None:
    """Return the first noun-like word after "do" or a modal and the subject: "What did Otis
    *patent*?"
    """
    if view.wh is None:
        return None
    for i in range(view.wh + 1, len(view.words)):
        word = view.words[i]
        if word.start >= subject.end and view.after_do[i] and word.low not in STOP - BASE_VERBS:
            return view.span(i, i + 1) if _free(view, i, subject) else None
    return None


def predicate(view: Parsed, subject: Span) -> Span | None:
    """Return the longest noun-like run after the subject of a yes/no question or statement: "Are Jo
    and Al *tennis players*?"
    """
    if view.wh is not None:
        return None
    runs = list(noun_runs(view, subject))
    behind = [r for r in runs if view.words[r[0]].start >= subject.end]
    best = max(behind or runs, key=lambda r: (r[1] - r[0], -r[0]), default=None)
    return None if best is None else view.span(*best)


def remaining_nouns(view: Parsed, subject: Span) -> Span | None:
    """Return the longest other noun-like run, for wh-questions without a main verb: "where is the
    *capital* of Peru".
    """
    best = max(noun_runs(view, subject), key=lambda r: noun_rank(view, r), default=None)
    return None if best is None else view.span(*best)


PROPERTY_RULES: tuple[Callable[[Parsed, Span], Span | None], ...] = (
    phrase_head,
    object_of_have,
    main_verb,
    after_do,
    predicate,
    remaining_nouns,
)


def property_of(view: Parsed, subject: Span) -> Span | None:
    """Return the first property of a rule outside the subject and the wh-word; None if there is
    none.
    """
    for rule in PROPERTY_RULES:
        span = rule(view, subject)
        if (
            span is not None
            and span.start < span.end
            and not span.overlaps(subject)
            and not view.has_wh(span)
        ):
            return span
    return None
