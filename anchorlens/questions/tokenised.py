"""Questions become token rows; what cannot become one is dropped, with its reason."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorlens.errors import EmptySweepError
from anchorlens.questions.example import Dropped, Example
from anchorlens.questions.tokens import Answer, RowDropped, RowTokenizer, TokenRow


@dataclass(frozen=True)
class Rows:
    """Token rows, and the examples that did not become one.

    Attributes:
        rows: In the order of the examples.
        dropped: With reasons.
    """

    rows: tuple[TokenRow, ...]
    dropped: tuple[Dropped, ...]


def drop(example: Example, reason: str, detail: str = "") -> Dropped:
    """The record of an example that was left out."""
    return Dropped(example.example_id, example.dataset, example.question, example.answers[0], reason, detail)


def make_rows(examples: Iterable[Example], tokenizer: RowTokenizer, answers: dict[str, Answer] | None = None) -> Rows:
    """Tokenise examples with their first gold alias, or with the answers given by ``example_id``."""
    rows: list[TokenRow] = []
    dropped: list[Dropped] = []
    for example in examples:
        try:
            rows.append(tokenizer.row(example, answers[example.example_id] if answers is not None else None))
        except RowDropped as why:
            dropped.append(drop(example, why.reason, why.detail))
    return Rows(tuple(rows), tuple(dropped))


def check_not_empty(kept: Sequence[object], dropped: Sequence[Dropped], what: str) -> None:
    """Stop where no row is left.

    Raises:
        EmptySweepError: With the reasons and how often each occurred.
    """
    if not kept:
        counts = Counter(d.reason for d in dropped)
        reasons = ", ".join(f"{reason} {n}" for reason, n in counts.most_common()) or "the data set is empty"
        cure = {
            "not_known": "The model knows none of these questions: leave known_only off, or take an easier set or another prompt.",
            "too_long": "The model's context is shorter than these inputs: take shorter questions, or a prompt with fewer shots.",
            "no_donor": "Take more rows (donors come from the whole file), donors='random', or align='last'.",
        }.get(counts.most_common(1)[0][0] if counts else "", "")
        raise EmptySweepError(f"No row is left to measure {what}. Dropped: {reasons}. {cure}".rstrip())


__all__ = ["Rows", "check_not_empty", "drop", "make_rows"]
