"""Notice several answers in the text of one cell, such as "Paris; Lutetia"."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anchorlens.display import warn

# What may separate several answers of a text.
_SEPARATORS = ("|", ";", "\uff1b", "\n", "\t", " / ", "<br>")
# The same, if most answers have it: "Paris, France" is one answer. Commas in numbers and dates do
# not count.
_WEAK_SEPARATORS = {",": re.compile(r"(?<!\d),(?!\s*\d)"), " or ": re.compile(" or ")}
# A text in brackets with several parts that is neither JSON nor a list of Python.
_BARE_LIST = re.compile(r"\"?[\[{(].*[,\"'].*[\]})]\"?", re.DOTALL)
# A text without one of these characters or words needs no closer look.
_SUSPECT = re.compile(r"[^A-Za-z0-9 .'-]| or ")
_SPLIT = "is read as one alias. Pass answers_sep={!r} to split it."
_SPLIT_IF = "is read as one alias. Pass answers_sep={!r} if it lists several."
_WRITE_JSON = 'is read as one alias. Write several as JSON: ["Rome", "Roma"].'


@dataclass
class AliasCells:
    """Collects the answers of a data set that seem to list several in one text.

    Attributes:
        n_answers: Number of answers seen, which decides about commas.
    """

    n_answers: int = 0
    _found: dict[str, list[str]] = field(default_factory=dict)
    _weak: dict[str, list[str]] = field(
        default_factory=lambda: {separator: [] for separator in _WEAK_SEPARATORS}
    )

    def count(self, cell: str) -> None:
        """Count an answer that is not looked at; empty texts do not count."""
        self.n_answers += bool(cell)

    def add(self, cell: str, shown: str) -> None:
        """Look at an answer without blanks at its ends; ``shown`` names it in the warning."""
        self.count(cell)
        if not _SUSPECT.search(cell):
            return
        if doubt := _find_separator(cell):
            self._found.setdefault(doubt, []).append(shown)
            return
        for separator, pattern in _WEAK_SEPARATORS.items():
            if pattern.search(cell):
                self._weak[separator].append(shown)

    def doubts(self) -> dict[str, list[str]]:
        """Return for each doubt, with its cure, the answers that have it."""
        doubts = dict(self._found)
        for separator, cells in self._weak.items():
            if len(cells) > 1 and 2 * len(cells) > self.n_answers:
                doubts[_SPLIT_IF.format(separator)] = cells
        return doubts


def _find_separator(cell: str) -> str:
    """Return why a text seems to list several answers, and the cure; empty for a plain text."""
    if _BARE_LIST.fullmatch(cell):
        return _WRITE_JSON
    for separator in _SEPARATORS:
        if separator in cell:
            return _SPLIT.format(separator)
    return ""


def warn_of_doubts(found: Mapping[str, Sequence[str]]) -> None:
    """Warn once for each doubt, with the first of its cells and the number of the others."""
    for doubt, cells in found.items():
        first, _, rest = cells[0].partition(": the ")
        more = f" (and {len(cells) - 1} more)" if len(cells) > 1 else ""
        warn(f"{first}{more}: the {rest} {doubt}")
