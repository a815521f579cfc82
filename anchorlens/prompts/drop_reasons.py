"""Message of a sweep without rows: the reasons that dropped them, and a fix (docs/errors.md)."""

from collections import Counter
from collections.abc import Mapping, Sequence

from anchorlens.display import list_counts
from anchorlens.errors import EmptySweepError
from anchorlens.prompts.dataset import Dropped

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


def check_not_empty(
    kept: Sequence[object],
    dropped: Sequence[Dropped],
    what: str,
    fixes: Mapping[str, str] = PAIR_FIXES,
) -> None:
    """Raise EmptySweepError with the most frequent reason and its fix if no row is left.

    Args:
        kept: Rows that are left to measure.
        dropped: Rows that were dropped, with their reasons.
        what: Description of the rows, such as ``in ioi.csv``.
        fixes: Reason -> fix.
    """
    if kept:
        return
    counts = Counter(row.reason for row in dropped).most_common()
    if not counts:
        raise EmptySweepError(f"No row is left to measure {what}. Dropped: the data set is empty.")
    reasons = list_counts(dict(counts))
    most_frequent = counts[0][0]
    fix = fixes.get(most_frequent, _TOKEN_FIX if most_frequent.endswith("_token") else "")
    first = next(row for row in dropped if row.reason == most_frequent)
    example = f" The first: {first.detail.rstrip('.')}." if first.detail else ""
    raise EmptySweepError(
        f"No row is left to measure {what}. Dropped: {reasons}.{example} {fix}".rstrip()
    )
