"""Find the two segments of exact question tokens of a row (METHOD: where spans come from, rules
1-4).

``spans=`` is ``auto`` (annotations, else PopQA's templates, else rules), ``rules``, ``annotation``,
``spacy:NAME`` or a callable.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from anchorlens.display import as_int, short_repr, shorten
from anchorlens.errors import InputError, SpanError, did_you_mean
from anchorlens.fingerprint import call_user_function, callable_name, takes
from anchorlens.questions.example import Span
from anchorlens.questions.schemas import Record
from anchorlens.questions.spans.languages import is_foreign
from anchorlens.questions.spans.lexicon import split_words
from anchorlens.questions.spans.parse import parse
from anchorlens.questions.spans.property_rules import property_of
from anchorlens.questions.spans.rules import rule_spans, subject_of
from anchorlens.questions.spans.templates import TemplateMatch, match_template

SPAN_MODES = ("auto", "rules", "annotation")
COMPLETED = "annotation+rules"
BAD_ANNOTATION = "bad_annotation"
_EXPECTED = (
    "Return (subject, property), each a Span, a pair (first character, one past the last) or a text"
    " that occurs once in the question; or None to drop the row."
)


Segment: TypeAlias = Span | tuple[int, int] | str
"""Segment that an extractor returns: characters of the question, or a text that occurs once
in it.
"""

SpansLike: TypeAlias = str | Callable[[str], tuple[Segment, Segment] | None]


@dataclass(frozen=True, kw_only=True)
class FoundSpans:
    """Segments of one question; if one is None, ``reason`` is the reason to drop the row."""

    subject: Span | None = None
    property: Span | None = None
    source: str
    reason: str = ""
    detail: str = ""


def _check_inside(question: str, name: str, span: Span, where: str) -> None:
    if not 0 <= span.start < span.end <= len(question) or not span.of(question).strip():
        raise SpanError(
            f"{where}: {name} span [{span.start}, {span.end}] lies outside its question of"
            f" {len(question)} characters, or covers no word."
            " Write [first character, one past the last], counted from 0."
        )


def check_spans(question: str, subject: Span, property_: Span, where: str) -> None:
    """Raise SpanError if a segment is empty or outside the question, or the two overlap."""
    for name, span in (("subject", subject), ("property", property_)):
        _check_inside(question, name, span, where)
    if subject.overlaps(property_):
        raise SpanError(
            f"{where}: subject {shorten(subject.of(question))} and property"
            f" {shorten(property_.of(question))} overlap. Pass two separate segments."
        )


def _locate(question: str, text: str, name: str, where: str, fix: str) -> Span:
    """Return the only occurrence of a text in the question; raise SpanError if it occurs 0 times or
    more than once.
    """
    n = sum(question.startswith(text, i) for i in range(len(question)))
    if n != 1:
        raise SpanError(
            f"{where}: {name} {shorten(text)} occurs {n} times in the question {shorten(question)},"
            f" must occur once. {fix} [first character, one past the last]."
        )
    start = question.index(text)
    return Span(start, start + len(text))


def _read_annotation(record: Record, where: str) -> tuple[Span | None, Span | None]:
    spans: list[Span | None] = []
    for name, span, text in (
        ("subject", record.subject_span, record.subject_text),
        ("property", record.property_span, record.property_text),
    ):
        if span is not None:
            spans.append(Span(*span))
            _check_inside(record.question, name, Span(*span), where)
        else:
            fix = f"Pass {name}_span ="
            spans.append(_locate(record.question, text, name, where, fix) if text else None)
    return spans[0], spans[1]


def place_subject(question: str, subject: str, match: TemplateMatch) -> Span:
    """Return the span of PopQA's ``subj``: in the template's slot, else the first outside the
    property, else the slot itself.
    """
    slot = match.subject
    inside = question.find(subject, slot.start, slot.end)
    if inside >= 0:
        return Span(inside, inside + len(subject))
    for start in range(len(question)):
        span = Span(start, start + len(subject))
        if question.startswith(subject, start) and not span.overlaps(match.property):
            return span
    return slot


def _match_popqa(record: Record, use_subj: bool) -> FoundSpans | None:
    """Return the segments of a question in PopQA's form, or None if no template fits.

    The property follows from the template; so does the subject, unless the row has ``subj``.
    """
    match = match_template(record.question) if record.templated else None
    if match is None:
        return None
    if use_subj and record.popqa_subject and record.popqa_subject in record.question:
        return FoundSpans(
            subject=place_subject(record.question, record.popqa_subject, match),
            property=match.property,
            source="annotation",
        )
    return FoundSpans(subject=match.subject, property=match.property, source="template")


def _by_rules(question: str) -> FoundSpans:
    subject, property_ = rule_spans(question)
    if subject is not None and property_ is not None:
        return FoundSpans(subject=subject, property=property_, source="rules")
    missing = "no_subject" if subject is None else "no_property"
    return FoundSpans(
        subject=subject,
        property=None,
        source="rules",
        reason="not_english" if is_foreign(split_words(question)) else missing,
    )


def _complete(question: str, subject: Span | None, property_: Span | None) -> FoundSpans:
    """Complete an annotation of one segment with a segment found by rules outside it."""
    view = parse(question)
    if is_foreign(view.words):
        return FoundSpans(
            subject=subject, property=property_, source=COMPLETED, reason="not_english"
        )
    if subject is not None:
        by_rules = property_of(view, subject)
        return FoundSpans(
            subject=subject,
            property=by_rules,
            source=COMPLETED,
            reason="" if by_rules else "no_property",
        )
    by_rules = subject_of(view)
    is_clear = by_rules is not None and property_ is not None and not by_rules.overlaps(property_)
    # A subject that overlaps the annotated property is as good as none.
    return FoundSpans(
        subject=by_rules if is_clear else None,
        property=property_,
        source=COMPLETED,
        reason="" if is_clear else "no_subject",
    )


def _read_segments(result: Any, question: str, source: str, where: str) -> tuple[Span, Span]:
    """Convert the result of an extractor into spans."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise SpanError(f"{where}: {source} returned {short_repr(result)}. {_EXPECTED}")
    spans: list[Span] = []
    for name, segment in zip(("subject", "property"), result, strict=True):
        if isinstance(segment, Span):
            spans.append(segment)
        elif isinstance(segment, str):
            spans.append(_locate(question, segment, name, where, f"Return from {source}"))
        else:
            ends = [as_int(end) for end in segment] if isinstance(segment, tuple | list) else []
            start, end = ends if len(ends) == 2 else (None, None)
            if start is None or end is None:
                raise SpanError(
                    f"{where}: {source} returned {short_repr(segment)} as {name}. {_EXPECTED}"
                )
            spans.append(Span(start, end))
    return spans[0], spans[1]


@dataclass(frozen=True)
class SpanFinder:
    """Finds the segments of a row by the method of ``spans=``."""

    mode: str
    source: str = ""
    extractor: Callable[[str], Any] | None = None

    def find(self, record: Record, where: str) -> FoundSpans:
        """Return the segments of one row; reason ``bad_annotation`` if its annotation does not fit
        its question.
        """
        if record.fault and self.extractor is None and self.mode != "rules":
            return FoundSpans(source="annotation", reason=BAD_ANNOTATION, detail=record.fault)
        try:
            found = self._find(record, where)
            if found.subject is not None and found.property is not None:
                check_spans(record.question, found.subject, found.property, where)
        except SpanError as error:
            if self.extractor is not None:
                raise
            return FoundSpans(source="annotation", reason=BAD_ANNOTATION, detail=str(error))
        return found

    def _find(self, record: Record, where: str) -> FoundSpans:
        if self.extractor is not None:
            result = call_user_function("spans", self.extractor, question=record.question)
            if result is None:
                return FoundSpans(source=self.source, reason="no_spans")
            subject, property_ = _read_segments(result, record.question, self.source, where)
            return FoundSpans(subject=subject, property=property_, source=self.source)
        if self.mode == "rules":
            return _match_popqa(record, use_subj=False) or _by_rules(record.question)
        subject, property_ = _read_annotation(record, where)
        if subject is not None and property_ is not None:
            return FoundSpans(subject=subject, property=property_, source="annotation")
        if self.mode == "annotation":
            found = _match_popqa(record, use_subj=True)
            if found is None or found.source != "annotation":
                return FoundSpans(source="annotation", reason="no_annotation")
            return found
        if subject is not None or property_ is not None:
            return _complete(record.question, subject, property_)
        return _match_popqa(record, use_subj=True) or _by_rules(record.question)


def span_finder(spans: SpansLike) -> SpanFinder:
    """Return the finder of a value of ``spans=``; raise InputError if it is invalid."""
    if not isinstance(spans, str):
        if not callable(spans) or isinstance(spans, type) or not takes(spans, 1):
            raise InputError(
                f"spans={short_repr(spans)}: must be 'auto', 'rules', 'annotation', 'spacy:NAME' or"
                " a function from a question to (subject, property) or None.",
                argument="spans",
            )
        return SpanFinder("custom", callable_name(spans), spans)
    if spans in SPAN_MODES:
        return SpanFinder(spans)
    if spans.startswith("spacy:") and len(spans) > len("spacy:"):
        from anchorlens.questions.spans.spacy_spans import SpacyExtractor

        return SpanFinder("custom", spans, SpacyExtractor(spans.removeprefix("spacy:")))
    raise InputError(
        f"spans={spans!r}: unknown. {did_you_mean(spans, (*SPAN_MODES, 'spacy:en_core_web_sm'))} "
        "Or pass a function from a question to (subject, property) or None.",
        argument="spans",
    )
