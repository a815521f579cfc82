"""Named token positions of a row, as ``examples.parquet`` stores them."""

import json

from anchorlens.errors import RunError


def parse_positions(row_id: object, text: object, n_tokens: int) -> dict[str, list[int]]:
    """Return the named positions of a row.

    Args:
        row_id: Id of the row, for the message.
        text: Value of the column ``positions``.
        n_tokens: Number of tokens of the row. Positions of a donor that are stored with a row may
            lie behind its end.

    Raises:
        RunError: If the text is not a JSON object of names and lists of positions in the row.
    """
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _refusal(row_id, "no JSON object of names and lists")
    for name, where in found.items():
        if not isinstance(where, list):
            raise _refusal(row_id, f"{name!r} has no list")
        is_own = not name.startswith(DONOR_POSITIONS)
        for position in where:
            if type(position) is not int or position < 0 or (is_own and position >= n_tokens):
                raise _refusal(row_id, f"{name!r} has {position!r}, the row has {n_tokens} tokens")
    return found


DONOR_POSITIONS = "same_role_source:"
"""Start of the names of positions that lie in the donor row."""


def _refusal(row_id: object, problem: str) -> RunError:
    return RunError(
        f"examples.parquet is damaged: example_id={str(row_id)!r}: positions: {problem}. Make the"
        " run again."
    )
