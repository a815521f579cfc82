"""Read the numbers of a text file as a frame has them: 8.0 of a column with a gap is 8."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anchorlens.display import warn

# Whole numbers as pandas writes those of a column with empty cells. 007.0 is no number of pandas.
_WHOLE = re.compile(r"(\s*)(-?(?:0|[1-9]\d*))\.0(\s*)")


def drop_zero_decimals(
    rows: Sequence[Mapping[str, Any]], fields: Iterable[str], source: str
) -> list[dict[str, Any]]:
    """Return rows with whole numbers in place of texts such as ``8.0``, in those columns of which
    every cell is such a text.

    pandas writes a column of whole numbers with an empty cell so. A column with ``8.0`` and ``8.5``
    stays as it is. Warn once for each column.

    Args:
        rows: Rows of a csv or tsv file, without empty cells.
        fields: Columns of answers.
        source: Name of the file, for the warning.
    """
    changed = [dict(row) for row in rows]
    for name in fields:
        cells = [row[name] for row in rows if name in row and str(row[name]).strip()]
        found = [_WHOLE.fullmatch(cell) if isinstance(cell, str) else None for cell in cells]
        if not cells or None in found:
            continue
        for row in changed:
            match = _WHOLE.fullmatch(row.get(name, ""))
            if match is not None:
                row[name] = f"{match[1]}{int(match[2])}{match[3]}"
        first = cells[0].strip()
        warn(
            f"{source}: the numbers of column {name!r} are read without .0, such as {first}"
            f" as {int(first[:-2])}. Save the file as jsonl with these answers as text, if .0 is"
            " meant."
        )
    return changed
