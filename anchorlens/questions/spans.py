"""Find the two exact-question-token segments of a row (METHOD: where spans come from, rules 1-4).

``spans=`` is ``auto`` (annotations, else PopQA's templates, else rules), ``rules``, ``annotation``, ``spacy:NAME`` or a callable.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from anchorlens.display import as_whole, described
from anchorlens.errors import InputError, SpanError, did_you_mean
from anchorlens.fingerprint import call_user_function, callable_name, takes
from anchorlens.questions.example import Span
from anchorlens.questions.lexicon import is_foreign, split_words
from anchorlens.questions.parse import parse
from anchorlens.questions.property_rules import property_of
from anchorlens.questions.rules import rule_spans, subject_of
from anchorlens.questions.schemas import Record
from anchorlens.questions.templates import TemplateMatch, match_template

SPAN_MODES = ("auto", "rules", "annotation")
COMPLETED = "annotation+rules"
BAD_ANNOTATION = "bad_annotation"
_EXPECTED = (
    "It must give (subject, property), each a Span, a pair (first character, one past the last) or a text that occurs once in the "
    "question; or None to drop the row."
)


Segment: TypeAlias = Span | tuple[int, int] | str
"""What an extractor may give for a segment: characters of the question, or a text that occurs once in it."""

SpansLike: TypeAlias = str | Callable[[str], tuple[Segment, Segment] | None]


@dataclass(frozen=True)
class Found:
    """The segments of one question."""

    subject: Span | None
    property: Span | None
    source: str
    reason: str = ""
    detail: str = ""


def _check_inside(question: str, name: str, span: Span, where: str) -> None:
    if not 0 <= span.start < span.end <= len(question) or not span.of(question).strip():
        raise SpanError(
            f"{where}: {name} span [{span.start}, {span.end}] does not lie in its question of {len(question)} characters, or covers "
            "no word; spans are [first character, one past the last], counted from 0."
        )


def check_spans(question: str, subject: Span, property_: Span, where: str) -> None:
    """Raise if a segment is empty or outside the question, or the two overlap."""
    for name, span in (("subject", subject), ("property", property_)):
        _check_inside(question, name, span, where)
    if subject.overlaps(property_):
        raise SpanError(
            f"{where}: subject {subject.of(question)!r} and property {property_.of(question)!r} overlap; give two separate segments."
        )


def _located(question: str, text: str, name: str, where: str, cure: str) -> Span:
    """Find the one place of a text in the question; raise if it occurs nowhere or more than once."""
    n = sum(question.startswith(text, i) for i in range(len(question)))
    if n != 1:
        raise SpanError(
            f"{where}: {name} {text!r} occurs {n} times in the question {question!r}, it must occur exactly once; {cure} "
            "[first character, one past the last]."
        )
    start = question.index(text)
    return Span(start, start + len(text))


def _annotated(record: Record, where: str) -> tuple[Span | None, Span | None]:
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
    """Return the place of PopQA's ``subj``: in the template's slot, else first clear of the property, else the slot itself."""
    slot = match.subject
    inside = question.find(subject, slot.start, slot.end)
    if inside >= 0:
        return Span(inside, inside + len(subject))
    places = (Span(i, i + len(subject)) for i in range(len(question)) if question.startswith(subject, i))
    return next((span for span in places if not span.overlaps(match.property)), slot)


def _templated(record: Record, use_subj: bool) -> Found | None:
    """PopQA's segments: property by template, subject by ``subj`` or else by template."""
    match = match_template(record.question) if record.templated else None
    if match is None:
        return None
    if use_subj and record.popqa_subject and record.popqa_subject in record.question:
        return Found(place_subject(record.question, record.popqa_subject, match), match.property, "annotation")
    return Found(match.subject, match.property, "template")


def _by_rules(question: str) -> Found:
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
    """Finds the segments of a row, in one of the ways that ``spans=`` names."""

    mode: str
    source: str = ""
    extractor: Callable[[str], Any] | None = None

    def find(self, record: Record, where: str) -> Found:
        """The segments of one row; the reason ``bad_annotation`` where its annotation does not fit its question."""
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
            given = call_user_function("spans", self.extractor, question=record.question)
            if given is None:
                return Found(None, None, self.source, "no_spans")
            return Found(*_extracted(given, record.question, self.source, where), self.source)
        if self.mode == "rules":
            return _templated(record, use_subj=False) or _by_rules(record.question)
        subject, property_ = _annotated(record, where)
        if subject is not None and property_ is not None:
            return Found(subject, property_, "annotation")
        if self.mode == "annotation":
            found = _templated(record, use_subj=True)
            return found if found and found.source == "annotation" else Found(None, None, "annotation", "no_annotation")
        if subject is not None or property_ is not None:
            return _completed(record.question, subject, property_)
        return _templated(record, use_subj=True) or _by_rules(record.question)


def span_finder(spans: SpansLike) -> SpanFinder:
    """Make the finder that ``spans=`` names."""
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
