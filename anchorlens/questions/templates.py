"""The 16 question templates of PopQA (Mallen et al. 2023): they give the subject, the property and the relation."""

import re
from dataclasses import dataclass

from anchorlens.questions.example import Span


@dataclass(frozen=True)
class Template:
    """One template.

    Attributes:
        relation: PopQA's name of the relation (its ``prop`` field).
        before: Characters before the subject; the property stands between asterisks, here or in ``after``.
        after: Characters after the subject.
    """

    relation: str
    before: str
    after: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """The template as a regular expression with the groups ``subject`` and ``property``."""
        parts = [re.sub(r"\\\*(.+?)\\\*", r"(?P<property>\1)", re.escape(part)) for part in (self.before, self.after)]
        return re.compile(f"{parts[0]}(?P<subject>.+){parts[1]}", re.DOTALL)


@dataclass(frozen=True)
class TemplateMatch:
    """What a template says of a question."""

    relation: str
    subject: Span
    property: Span


# "In what *city* was {} *born*?" marks two places; a segment is contiguous, so the head after the wh-word stands for the property.
TEMPLATES = (
    Template("occupation", "What is ", "'s *occupation*?"),
    Template("place of birth", "In what *city* was ", " born?"),
    Template("genre", "What *genre* is ", "?"),
    Template("father", "Who is the *father* of ", "?"),
    Template("country", "In what *country* is ", "?"),
    Template("producer", "Who was the *producer* of ", "?"),
    Template("director", "Who was the *director* of ", "?"),
    Template("capital of", "What is ", " the *capital* of?"),
    Template("screenwriter", "Who was the *screenwriter* for ", "?"),
    Template("composer", "Who was the *composer* of ", "?"),
    Template("color", "What *color* is ", "?"),
    Template("religion", "What is the *religion* of ", "?"),
    Template("sport", "What *sport* does ", " play?"),
    Template("author", "Who is the *author* of ", "?"),
    Template("mother", "Who is the *mother* of ", "?"),
    Template("capital", "What is the *capital* of ", "?"),
)


def match_template(question: str) -> TemplateMatch | None:
    """Relation, subject and property of a PopQA question, or None where no template fits.

    >>> q = "What is Karachi the capital of?"
    >>> m = match_template(q)
    >>> m.relation, m.subject.of(q), m.property.of(q)
    ('capital of', 'Karachi', 'capital')
    """
    for template in TEMPLATES:
        match = template.pattern.fullmatch(question)
        if match is not None and match["subject"].strip():
            left = len(match["subject"]) - len(match["subject"].lstrip())
            start = match.start("subject") + left
            subject = Span(start, start + len(match["subject"].strip()))
            return TemplateMatch(template.relation, subject, Span(*match.span("property")))
    return None
