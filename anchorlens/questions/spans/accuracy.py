"""Accuracy of the segments for each form of question, measured on labelled questions
(docs/spans.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Counts of correct segments in labelled questions and in rows that were read by eye."""

    name: str
    source: str
    subjects: int
    properties: int
    read_subjects: int
    labelled: int = 50
    read: int = 60

    def __str__(self) -> str:
        return (
            f"subject by {self.source} right in {self.read_subjects / self.read:.0%} of real"
            f" questions in the form of {self.name} (labelled ones:"
            f" {self.subjects / self.labelled:.0%})"
        )


ACCURACY = {
    "popqa": Accuracy(
        name="PopQA", source="template", subjects=50, properties=50, read_subjects=60
    ),
    "triviaqa": Accuracy(
        name="TriviaQA", source="rules", subjects=49, properties=49, read_subjects=47
    ),
    "hotpotqa": Accuracy(
        name="HotpotQA", source="rules", subjects=49, properties=49, read_subjects=53
    ),
    "nq": Accuracy(name="NQ", source="rules", subjects=49, properties=49, read_subjects=52),
}


def find_form(schema: str, questions: Iterable[str]) -> str:
    """Return the form of questions: their schema if measured, else ``nq`` if most are lower case,
    else ``triviaqa``.
    """
    if schema in ACCURACY:
        return schema
    is_lower = [question == question.lower() for question in questions]
    return "nq" if 2 * sum(is_lower) > len(is_lower) else "triviaqa"


def describe_accuracy(form: str, sources: Iterable[str]) -> str:
    """Return the expected accuracy of spans as text; empty if none come from templates or rules."""
    used = set(sources)
    if not used & {"template", "rules"}:
        return ""
    by_rules = ACCURACY["nq" if form == "popqa" else form]
    return "; ".join(str(part) for part in (ACCURACY["popqa"], by_rules) if part.source in used)
