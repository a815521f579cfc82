"""Where the two exact-question-token segments of a row come from (METHOD: where spans come from, rules 1-4).

``spans=`` says how: ``auto`` (annotations of the file, else PopQA's templates, else the rule list), ``rules`` (templates and rules
only), ``annotation`` (annotations only), ``spacy:NAME`` (a spaCy pipeline) or the user's own callable. Spans are characters. A row
whose segments are not found, or whose annotation does not fit its question, is dropped by the caller under the reason given here;
nothing is guessed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from anchorlens.callables import callable_name, takes
from anchorlens.errors import InputError, SpanError, did_you_mean
from anchorlens.kinds import as_whole, described
from anchorlens.questions.example import Span
from anchorlens.questions.parse import parse
from anchorlens.questions.property_rules import property_of
from anchorlens.questions.rules import rule_spans, subject_of
from anchorlens.questions.schemas import Record
from anchorlens.questions.templates import TemplateMatch, match_template
from anchorlens.questions.words import is_foreign, split_words

SPAN_MODES = ("auto", "rules", "annotation")
COMPLETED = "annotation+rules"
BAD_ANNOTATION = "bad_annotation"
_EXPECTED = (
    "It must give (subject, property), each a Span, a pair (first character, one past the last) or a text that occurs once in the "
    "question; or None to drop the row."
)


@runtime_checkable
class SpanExtractor(Protocol):
    """A way of the user's own to find the two segments of a question."""

    def __call__(self, question: str) -> "tuple[Segment, Segment] | None":
        """Subject and property, disjoint and not empty: characters of ``question``, or texts that each occur once in it.

        None drops the row.
        """
        ...


Segment: TypeAlias = Span | tuple[int, int] | str
"""What an extractor may give for a segment: characters of the question, or a text that occurs once in it."""

SpansLike: TypeAlias = str | SpanExtractor | Callable[[str], tuple[Segment, Segment] | None]


@dataclass(frozen=True)
class Found:
    """The segments of one question.

    Attributes:
        subject: First segment, or None.
        property: Second segment, or None.
        source: As ``Example.span_source``.
        reason: Why the row has to be dropped, empty where both segments are there.
        detail: The same in a sentence, where there is more to say.
    """

    subject: Span | None
    property: Span | None
    source: str
    reason: str = ""
    detail: str = ""


def _check_inside(question: str, name: str, span: Span, where: str) -> None:
    """A segment inside its question, and not empty.

    Raises:
        SpanError: It is not; the message names the row and the segment.
    """
    if not 0 <= span.start < span.end <= len(question):
        raise SpanError(
            f"{where}: {name} span [{span.start}, {span.end}] does not lie in its question of {len(question)} characters; "
            "spans are [first character, one past the last], counted from 0."
        )
    if not span.of(question).strip():
        raise SpanError(f"{where}: {name} span [{span.start}, {span.end}] covers white space only; give it a word.")


def check_spans(question: str, subject: Span, property_: Span, where: str) -> None:
    """Both segments inside the question, not empty and disjoint.

    Raises:
        SpanError: They are not; the message names the row and the segment.
    """
    for name, span in (("subject", subject), ("property", property_)):
        _check_inside(question, name, span, where)
    if subject.overlaps(property_):
        raise SpanError(
            f"{where}: subject {subject.of(question)!r} and property {property_.of(question)!r} overlap; give two separate segments."
        )


def _located(question: str, text: str, name: str, where: str, cure: str) -> Span:
    """The one place of a text in the question.

    Raises:
        SpanError: It occurs nowhere, or more than once.
    """
    n = sum(question.startswith(text, i) for i in range(len(question)))
    if n != 1:
        raise SpanError(
            f"{where}: {name} {text!r} occurs {n} times in the question {question!r}, it must occur exactly once; {cure} "
            "[first character, one past the last]."
        )
    start = question.index(text)
    return Span(start, start + len(text))


def _annotated(record: Record, where: str) -> tuple[Span | None, Span | None]:
    """The segments that the row itself gives, offsets before text.

    Raises:
        SpanError: One does not lie in the question.
    """
    found: list[Span | None] = []
    for name, span, text in (
        ("subject", record.subject_span, record.subject_text),
        ("property", record.property_span, record.property_text),
    ):
        if span is not None:
            found.append(Span(*span))
            _check_inside(record.question, name, Span(*span), where)
        else:
            cure = f"give its place as {name}_span ="
            found.append(_located(record.question, text, name, where, cure) if text else None)
    return found[0], found[1]


def place_subject(question: str, subject: str, match: TemplateMatch) -> Span:
    """Where PopQA's ``subj`` stands: in the template's slot if it is there, else where it first occurs clear of the property.

    The slot itself is returned where ``subj`` does not occur (the question may word it otherwise).
    """
    slot = match.subject
    inside = question.find(subject, slot.start, slot.end)
    if inside >= 0:
        return Span(inside, inside + len(subject))
    start = question.find(subject)
    while start >= 0:
        span = Span(start, start + len(subject))
        if not span.overlaps(match.property):
            return span
        start = question.find(subject, start + 1)
    return slot


def _templated(record: Record, use_subj: bool) -> Found | None:
    """PopQA's segments: property by template, subject by ``subj`` or else by template."""
    match = match_template(record.question) if record.templated else None
    if match is None:
        return None
    if use_subj and record.popqa_subject and record.popqa_subject in record.question:
        return Found(place_subject(record.question, record.popqa_subject, match), match.property, "annotation")
    return Found(match.subject, match.property, "template")


def _by_rules(question: str) -> Found:
    """The rule list."""
    subject, property_ = rule_spans(question)
    if subject is not None and property_ is not None:
        return Found(subject, property_, "rules")
    missing = "no_subject" if subject is None else "no_property"
    return Found(subject, None, "rules", "not_english" if is_foreign(split_words(question)) else missing)


def _completed(question: str, subject: Span | None, property_: Span | None) -> Found:
    """An annotation of one segment, the other one found by the rules clear of it."""
    view = parse(question)
    if is_foreign(view.words):
        return Found(subject, property_, COMPLETED, "not_english")
    if subject is not None:
        found = property_of(view, subject)
        return Found(subject, found, COMPLETED, "" if found else "no_property")
    found = subject_of(view)
    clear = found is not None and property_ is not None and not found.overlaps(property_)
    return Found(found if clear else None, property_, COMPLETED, "" if clear else "no_subject")


def _extracted(given: Any, question: str, source: str, where: str) -> tuple[Span, Span]:
    """What the user's extractor gave, as spans.

    Raises:
        SpanError: It is not a pair of spans, of pairs of numbers or of texts, or a text does not occur exactly once.
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise SpanError(f"{where}: {source} gave {described(given)}. {_EXPECTED}")
    spans: list[Span] = []
    for name, segment in zip(("subject", "property"), given, strict=True):
        if isinstance(segment, Span):
            spans.append(segment)
        elif isinstance(segment, str):
            spans.append(_located(question, segment, name, where, f"let {source} give its place as"))
        else:
            ends = [as_whole(end) for end in segment] if isinstance(segment, tuple | list) else []
            start, end = ends if len(ends) == 2 else (None, None)
            if start is None or end is None:
                raise SpanError(f"{where}: {source} gave {described(segment)} as {name}. {_EXPECTED}")
            spans.append(Span(start, end))
    return spans[0], spans[1]


@dataclass(frozen=True)
class SpanFinder:
    """Finds the segments of a row, in one of the ways that ``spans=`` names.

    Attributes:
        mode: ``auto``, ``rules``, ``annotation`` or ``custom``.
        source: What rows of a custom extractor are marked with.
        extractor: The custom extractor.
    """

    mode: str
    source: str = ""
    extractor: Callable[[str], Any] | None = None

    def find(self, record: Record, where: str) -> Found:
        """The segments of one row; the reason ``bad_annotation`` where its annotation does not fit its question.

        Args:
            record: The row.
            where: How messages name it.

        Raises:
            SpanError: The user's extractor gives segments that are not in the question or overlap.
        """
        if record.fault and self.extractor is None and self.mode != "rules":
            return Found(None, None, "annotation", BAD_ANNOTATION, record.fault)
        try:
            found = self._find(record, where)
            if found.subject is not None and found.property is not None:
                check_spans(record.question, found.subject, found.property, where)
        except SpanError as error:
            if self.extractor is not None:
                raise
            return Found(None, None, "annotation", BAD_ANNOTATION, str(error))
        return found

    def _find(self, record: Record, where: str) -> Found:
        if self.extractor is not None:
            given = self.extractor(record.question)
            if given is None:
                return Found(None, None, self.source, "no_spans")
            return Found(*_extracted(given, record.question, self.source, where), self.source)
        if self.mode == "rules":
            return _templated(record, use_subj=False) or _by_rules(record.question)
        subject, property_ = _annotated(record, where)
        if subject is not None and property_ is not None:
            return Found(subject, property_, "annotation")
        if self.mode == "annotation":
            templated = _templated(record, use_subj=True)
            given = templated is not None and templated.source == "annotation"
            return templated if templated is not None and given else Found(None, None, "annotation", "no_annotation")
        if subject is not None or property_ is not None:
            return _completed(record.question, subject, property_)
        return _templated(record, use_subj=True) or _by_rules(record.question)


def span_finder(spans: SpansLike) -> SpanFinder:
    """What ``spans=`` stands for.

    Raises:
        InputError: No way goes by this name, it is neither a name nor a function of one question, or spaCy or its pipeline is not
            installed.
    """
    if not isinstance(spans, str):
        if not callable(spans) or isinstance(spans, type) or not takes(spans, 1):
            raise InputError(
                f"spans must be 'auto', 'rules', 'annotation', 'spacy:NAME' or a function from a question to (subject, property) or "
                f"None; got {described(spans)}."
            )
        return SpanFinder("custom", callable_name(spans), spans)
    if spans in SPAN_MODES:
        return SpanFinder(spans)
    if spans.startswith("spacy:") and len(spans) > len("spacy:"):
        from anchorlens.questions.spacy_spans import SpacyExtractor

        return SpanFinder("custom", spans, SpacyExtractor(spans.removeprefix("spacy:")))
    raise InputError(
        f"Unknown spans={spans!r}. {did_you_mean(spans, (*SPAN_MODES, 'spacy:en_core_web_sm'))} "
        "A function from a question to (subject, property) or None can stand there too."
    )
