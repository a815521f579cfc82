"""Data sets of prompts (questions, clean/corrupted pairs): their interface, the ones that are
loaded by name, their dropped rows, and the message of a sweep for which no row is left
(docs/errors.md).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from anchorlens.display import list_counts

if TYPE_CHECKING:
    import pandas


# Reason that dropped a pair of prompts -> fix, for the reason that dropped most of them.
PAIR_FIXES = {
    "empty_cell": "Fill in the prompts of these pairs.",
    "empty_answer": "Leave empty answers out, or give white space as token ids.",
    "bad_cell": "Write prompts and answers as text or as lists of token ids.",
    "bad_segments": "Write segments as {name: text}, or {name: [clean text, corrupted text]}.",
    "bad_alignment": (
        "Write the alignment as a list of [clean position, corrupted position], each position once."
    ),
    "same_prompts": "Change a token of the corrupted prompts.",
    "bos_twice": "Remove the BOS token from the texts; it is added.",
    "bos_differs": "Begin both prompts with BOS, or neither.",
    "answer_equals_wrong": "Give wrong answers that differ from the answers in a token.",
    "token_outside_vocabulary": "Give token ids of this model's tokenizer.",
    "segment_not_found": "Give segments that occur in both prompts.",
    "segment_not_unique": "Give longer segments, which occur once.",
    "segments_overlap": "Give segments that share no token.",
    "no_segment": "Name segments in the pairs, or use by='position'.",
    "no_wrong_answer": "Fill in the wrong answers, or use metric='logprob'.",
    "length_differs": "Use prompts of equal length, or another site than pattern.",
    "no_paired_position": "Add a column segments or alignment.",
    "no_answer": "Fill in the answers of these rows.",
    "lone_surrogate": "Save the file as UTF-8 again.",
    "control_character": "Remove the control characters from these rows.",
    "hidden_character": "Remove the invisible characters from these rows.",
    "direction_override": "Remove the marks of direction from these rows.",
    "too_long": (
        "The model's context is shorter than these inputs."
        " Use shorter questions, or a prompt with fewer shots."
    ),
}
# Fix for a segment without a token of its own, whatever the segment's name.
_TOKEN_FIX = "A segment has no token of its own. Pass longer segments."


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Row that was left out; rows are counted by ``reason``."""

    example_id: str
    dataset: str
    question: str
    answer: str
    reason: str
    detail: str = field(default="")


class RowDropped(Exception):  # noqa: N818 - caught and counted by its reason, never an error
    """Raised for a row that cannot be measured; rows are counted by ``reason``."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class CountsDropped:
    """Counts and lists the rows that a data set has left out."""

    dropped: tuple[Dropped, ...]

    @property
    def dropped_counts(self) -> dict[str, int]:
        """Reason -> number of rows in ``dropped``, sorted by reason."""
        return dict(sorted(Counter(row.reason for row in self.dropped).items()))

    def dropped_frame(self) -> "pandas.DataFrame":
        """Return one row per dropped row: ``example_id dataset question answer reason detail``."""
        import pandas

        return pandas.DataFrame(
            [vars(row) for row in self.dropped], columns=[one.name for one in fields(Dropped)]
        )


@dataclass(frozen=True, kw_only=True)
class KnownDataset:
    """Data set that is loaded by name.

    Attributes:
        name: Name to pass to ``load_qa`` or, for prompt pairs, to ``load_pairs``.
        hub_id: Repository on the Hugging Face hub; for a sample of questions, the repository with
            the same schema.
        config: Default configuration. If None, the repository has only one.
        split: Default split of the repository.
        kind: ``hub``, ``sample`` (embedded questions) or ``pairs`` (embedded prompt pairs).
        note: Description in one line.
    """

    name: str
    hub_id: str | None
    config: str | None
    split: str | None
    kind: str
    note: str


@runtime_checkable
class PromptDataset(Protocol):
    """Interface of a data set of prompts, as used by the runner, resuming and provenance."""

    @property
    def name(self) -> str:
        """Name of the data set in outputs."""
        ...

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Rows that were left out while loading."""
        ...

    def record(self) -> dict[str, Any]:
        """Return name, source, content hash and sizes for ``run.json``."""
        ...


def explain_drops(
    dropped: Sequence[Dropped], what: str, fixes: Mapping[str, str] = PAIR_FIXES
) -> str:
    """Return the message of an EmptySweepError: the reasons that dropped all rows, and the fix of
    the most frequent one.

    Args:
        dropped: Rows that were dropped, with their reasons.
        what: Description of the rows, such as ``in ioi.csv``.
        fixes: Reason -> fix.
    """
    counts = Counter(row.reason for row in dropped).most_common()
    if not counts:
        return f"No row is left to measure {what}. Dropped: the data set is empty."
    reasons = list_counts(dict(counts))
    most_frequent = counts[0][0]
    fix = fixes.get(most_frequent, _TOKEN_FIX if most_frequent.endswith("_token") else "")
    first = next(row for row in dropped if row.reason == most_frequent)
    example = f" The first: {first.detail.rstrip('.')}." if first.detail else ""
    return f"No row is left to measure {what}. Dropped: {reasons}.{example} {fix}".rstrip()
