"""Subject and property of a free question by rules (METHOD: where spans come from, rule 3).

Every rule is a small function; the lists ``SUBJECT_RULES``, here, and ``PROPERTY_RULES``, in
:mod:`~anchorlens.questions.property_rules`, say in which order they are asked, and the first that finds something decides. Readings
of the method that the rules settle:

* A comparison asks about one contiguous segment: in "Which is larger, Russia or Belgium?" the subject is "Russia or Belgium".
* A capitalised run that opens the sentence counts with two capitals or more ("Hermann Göring was ..."), with one where its verb
  follows ("Metz is ..."): the first capital of a sentence alone is no evidence. Small words that open it ("The", "In") are not part
  of the run.
* A list is one segment: "Gus Grissom, Ed White and Roger Chaffee".
* Names inside the phrase that is asked for ("which *Verdi* opera") are asked after names outside of it, and adjectives of origin
  ("which *British* composer") last of all: they qualify the property.
* The property is that phrase without the subject and without leading names: "early Bob Dylan *album*".
* Nothing is guessed: where no rule finds a segment, there is none, and the row is dropped under ``no_subject`` or ``no_property``, a
  question in another language under ``not_english``. A question of the form "What is a ganglion?" has a subject and no property.
"""

from collections.abc import Callable

from anchorlens.questions.example import Span
from anchorlens.questions.name_runs import capitalised_run, capitalised_run_inside, opening_name, origin
from anchorlens.questions.noun_runs import compound, noun_run, whole_phrase
from anchorlens.questions.parse import Parsed, parse
from anchorlens.questions.property_rules import property_of
from anchorlens.questions.topics import (
    announced_title,
    complement,
    inverted_subject,
    longest_topic,
    named_thing,
    opening_subject,
    owner,
    performed_work,
    sentence_title,
    sung_title,
)
from anchorlens.questions.words import DETERMINERS, STOP, is_foreign

_LONGEST_TAIL = 14


def alternatives(view: Parsed) -> Span | None:
    """The things to choose from, at the end after a comma or colon: "Which is larger, *Russia or Belgium*?" """
    if view.wh is None or not 0 <= view.wh < 3:
        return None
    words, n = view.words, len(view.words)
    last = max((i for i in range(view.wh + 2, n - 1) if words[i].low in {"or", "and"}), default=None)
    if last is None or n - last > 8:
        return None
    first = next((i for i in range(view.wh + 2, n) if words[i].breaks), n)
    between = view.text[words[first - 1].end : words[first].start] if first < n else ""
    if first >= last or n - first > _LONGEST_TAIL or not any(char in between for char in ",:;-"):
        return None
    pair = words[first].capital and words[last + 1].capital and not words[first - 1].capital
    if words[last].low == "and" and not pair:
        return None
    if words[first].low in STOP - DETERMINERS or any(view.verbs[i] for i in range(first, n)):
        return None
    first += words[first].low in DETERMINERS and not words[first].capital
    return view.span(first, n)


def options(view: Parsed) -> Span | None:
    """The things to choose from, between commas: "Which director, *Ann Lee or Jo Ray*, is also a writer?" """
    if view.phrase is None or view.phrase_kind != "asked" or view.phrase[1] >= len(view.words):
        return None
    words, first = view.words, view.phrase[1]
    if not (words[first].breaks and words[first].capital):
        return None
    end = next((i for i in range(first + 1, len(words)) if words[i].breaks), len(words))
    return view.span(first, end) if end < len(words) and any(words[i].low == "or" for i in range(first + 1, end - 1)) else None


def quoted_span(view: Parsed) -> Span | None:
    """The first quotation: "Who wrote '*Emma*'?" """
    return view.quotes[0] if view.quotes else None


SUBJECT_RULES: tuple[Callable[[Parsed], Span | None], ...] = (
    options,
    alternatives,
    quoted_span,
    opening_name,
    capitalised_run,
    complement,
    capitalised_run_inside,
    owner,
    inverted_subject,
    performed_work,
    announced_title,
    sung_title,
    sentence_title,
    named_thing,
    opening_subject,
    longest_topic,
    noun_run,
    origin,
    compound,
    whole_phrase,
)


def subject_of(view: Parsed) -> Span | None:
    """The first subject that a rule finds and that does not cover the wh-word."""
    for rule in SUBJECT_RULES:
        span = rule(view)
        if span is not None and span.start < span.end and not view.asks(span):
            return span
    return None


def rule_spans(question: str) -> tuple[Span | None, Span | None]:
    """Subject and property of a free question, each None where no rule finds it.

    >>> [span.of(q) for q in ("Which is larger, Russia or Belgium?",) for span in rule_spans(q)]
    ['Russia or Belgium', 'larger']
    """
    view = parse(question)
    subject = None if is_foreign(view.words) else subject_of(view)
    if subject is None:
        return None, None
    return subject, property_of(view, subject)
