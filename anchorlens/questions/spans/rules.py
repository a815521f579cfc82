"""Find subject and property of a question by rules (docs/spans.md).

The first of ``SUBJECT_RULES`` that finds a segment determines the subject, and the first of
``PROPERTY_RULES`` (:mod:`~anchorlens.questions.spans.property_rules`) the property. If none does,
the caller drops the row.
"""

from collections.abc import Callable

from anchorlens.questions.example import Span
from anchorlens.questions.spans import name_runs, noun_runs, subject_rules
from anchorlens.questions.spans.languages import is_foreign
from anchorlens.questions.spans.lexicon import DETERMINERS, STOP
from anchorlens.questions.spans.parse import Parsed, parse
from anchorlens.questions.spans.property_rules import property_of

_LONGEST_TAIL = 14


def alternatives(view: Parsed) -> Span | None:
    """Return the options at the end after a comma or colon: "Which is larger, *Russia or
    Belgium*?"
    """
    if view.wh is None or not 0 <= view.wh < 3:
        return None
    words = view.words
    n = len(words)
    last = n - 2
    while last >= view.wh + 2 and words[last].low not in {"or", "and"}:
        last -= 1
    if last < view.wh + 2 or n - last > 8:
        return None
    first = view.find_break(view.wh + 2, n)
    between = view.gap(first) if first < n else ""
    if first >= last or n - first > _LONGEST_TAIL or not set(between) & set(",:;-"):
        return None
    pair = words[first].capital and words[last + 1].capital and not words[first - 1].capital
    if words[last].low == "and" and not pair:
        return None
    if words[first].low in STOP - DETERMINERS or any(view.verbs[first:]):
        return None
    first += words[first].low in DETERMINERS and not words[first].capital
    return view.span(first, n)


def options(view: Parsed) -> Span | None:
    """Return the options between commas: "Which director, *Ann Lee or Jo Ray*, is also a
    writer?"
    """
    if view.phrase is None or view.phrase_kind != "asked" or view.phrase[1] >= len(view.words):
        return None
    words = view.words
    first = view.phrase[1]
    if not (words[first].breaks and words[first].capital):
        return None
    end = view.find_break(first + 1, len(words))
    if end == len(words) or not view.has_any({"or"}, (first + 1, end - 1)):
        return None
    return view.span(first, end)


def first_quotation(view: Parsed) -> Span | None:
    """Return the first quotation: "Who wrote '*Emma*'?" """
    return view.quotes[0] if view.quotes else None


SUBJECT_RULES: tuple[Callable[[Parsed], Span | None], ...] = (
    options,
    alternatives,
    first_quotation,
    name_runs.opening_name,
    name_runs.longest_name,
    subject_rules.complement,
    name_runs.longest_name_inside,
    subject_rules.owner,
    subject_rules.subject_after_aux,
    subject_rules.work_of_role,
    subject_rules.title_after_cue,
    subject_rules.title_after_verb,
    subject_rules.sentence_title,
    subject_rules.name_after_verb,
    subject_rules.opening_subject,
    subject_rules.longest_topic,
    noun_runs.noun_run,
    name_runs.origin,
    noun_runs.compound,
    noun_runs.whole_phrase,
)


def subject_of(view: Parsed) -> Span | None:
    """Return the first subject of a rule that does not cover the wh-word; None if there is none."""
    for rule in SUBJECT_RULES:
        span = rule(view)
        if span is not None and span.start < span.end and not view.has_wh(span):
            return span
    return None


def rule_spans(question: str) -> tuple[Span | None, Span | None]:
    """Return subject and property of a question, each None if no rule finds it.

    >>> [span.of(q) for q in ("Which is larger, Russia or Belgium?",) for span in rule_spans(q)]
    ['Russia or Belgium', 'larger']
    """
    view = parse(question)
    subject = None if is_foreign(view.words) else subject_of(view)
    if subject is None:
        return None, None
    return subject, property_of(view, subject)
