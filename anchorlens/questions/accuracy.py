"""How often the rules find the right segments: what was counted, for each form of question (docs/spans.md).

``labelled`` is counted by ``benchmarks/spans.py`` on questions written and labelled by hand for this project; a test counts it
again.
``read`` was judged by eye on rows of the real files, which the rules were not written on.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Accuracy:
    """What was counted for questions of one form.

    Attributes:
        name: How people call the set that has this form.
        source: As ``Example.span_source`` says where such spans come from.
        subjects: Right subjects of ``labelled`` questions.
        properties: Right properties of them.
        read_subjects: Right subjects of ``read`` real rows.
        labelled: Questions that were labelled.
        read: Real rows that were read.
    """

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


def form_of(schema: str, questions: Iterable[str]) -> str:
    """The measured form that questions have: their schema's, else that of NQ where most are in lower case, else that of TriviaQA."""
    if schema in ACCURACY:
        return schema
    small = [question == question.lower() for question in questions]
    return "nq" if 2 * sum(small) > len(small) else "triviaqa"


def expected(form: str, sources: Iterable[str]) -> str:
    """What to expect of the spans of rows; empty where none come from templates or rules.

    Args:
        form: As :func:`form_of` gives it.
        sources: ``Example.span_source`` of each row.
    """
    found = set(sources)
    if not found & {"template", "rules"}:
        return ""
    ruled = ACCURACY["nq" if form == "popqa" else form]
    return "; ".join(str(part) for part in (ACCURACY["popqa"], ruled) if part.source in found)
