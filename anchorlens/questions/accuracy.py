"""Measured share of right segments for each form of question (docs/spans.md)."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Accuracy:
    """What was counted for questions of one form."""

    name: str
    source: str
    subjects: int
    properties: int
    read_subjects: int
    labelled: int = 50
    read: int = 60

    def __str__(self) -> str:
        return (
            f"spans by {self.source}: subject right in {self.subjects / self.labelled:.0%} of {self.labelled} labelled questions "
            f"in the form of {self.name}, in {self.read_subjects / self.read:.0%} of {self.read} real rows read by eye"
        )


ACCURACY = {
    "popqa": Accuracy("PopQA", "template", 50, 50, 60),
    "triviaqa": Accuracy("TriviaQA", "rules", 49, 49, 47),
    "hotpotqa": Accuracy("HotpotQA", "rules", 49, 49, 53),
    "nq": Accuracy("NQ", "rules", 49, 49, 52),
}


def find_form(schema: str, questions: Iterable[str]) -> str:
    """The measured form that questions have: their schema's, else that of NQ where most are in lower case, else that of TriviaQA."""
    if schema in ACCURACY:
        return schema
    small = [question == question.lower() for question in questions]
    return "nq" if 2 * sum(small) > len(small) else "triviaqa"


def describe_accuracy(form: str, sources: Iterable[str]) -> str:
    """What to expect of the spans of rows; empty where none come from templates or rules."""
    found = set(sources)
    if not found & {"template", "rules"}:
        return ""
    ruled = ACCURACY["nq" if form == "popqa" else form]
    return "; ".join(str(part) for part in (ACCURACY["popqa"], ruled) if part.source in found)
