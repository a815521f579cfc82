"""Question templates of PopQA (Mallen et al.

2023), which determine subject, property and relation.
"""

import re
from dataclasses import dataclass

from anchorlens.questions.example import Span


@dataclass(frozen=True)
class TemplateMatch:
    """Relation and segments of a question that fits a template."""

    relation: str
    subject: Span
    property: Span


# Relation (PopQA's ``prop``) -> template with the property between asterisks. A segment is
# contiguous, so "In what *city* was {} born?" has the head after the wh-word as its property.
TEMPLATES = {
    "occupation": "What is {}'s *occupation*?",
    "place of birth": "In what *city* was {} born?",
    "genre": "What *genre* is {}?",
    "father": "Who is the *father* of {}?",
    "country": "In what *country* is {}?",
    "producer": "Who was the *producer* of {}?",
    "director": "Who was the *director* of {}?",
    "capital of": "What is {} the *capital* of?",
    "screenwriter": "Who was the *screenwriter* for {}?",
    "composer": "Who was the *composer* of {}?",
    "color": "What *color* is {}?",
    "religion": "What is the *religion* of {}?",
    "sport": "What *sport* does {} play?",
    "author": "Who is the *author* of {}?",
    "mother": "Who is the *mother* of {}?",
    "capital": "What is the *capital* of {}?",
}


def _pattern(template: str) -> re.Pattern[str]:
    marked = re.sub(r"\\\*(.+?)\\\*", r"(?P<property>\1)", re.escape(template))
    return re.compile(marked.replace(r"\{\}", "(?P<subject>.+)"), re.DOTALL)


_PATTERNS = {relation: _pattern(template) for relation, template in TEMPLATES.items()}


def match_template(question: str) -> TemplateMatch | None:
    """Return relation, subject and property of a PopQA question; None if no template fits.

    >>> q = "What is Karachi the capital of?"
    >>> m = match_template(q)
    >>> m.relation, m.subject.of(q), m.property.of(q)
    ('capital of', 'Karachi', 'capital')
    """
    for relation, pattern in _PATTERNS.items():
        match = pattern.fullmatch(question)
        if match is not None and match["subject"].strip():
            left = len(match["subject"]) - len(match["subject"].lstrip())
            start = match.start("subject") + left
            subject = Span(start, start + len(match["subject"].strip()))
            return TemplateMatch(relation, subject, Span(*match.span("property")))
    return None
