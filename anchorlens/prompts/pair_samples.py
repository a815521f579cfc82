"""Embedded samples of prompt pairs."""

from dataclasses import dataclass
from importlib import resources

from anchorlens.prompts.read_rows import Rows, parse_table


@dataclass(frozen=True)
class PairSample:
    """Sample that ``load_pairs`` loads by name.

    Attributes:
        name: Name to pass to ``load_pairs``.
        kind: ``sample``.
        note: Description in one line.
    """

    name: str
    kind: str
    note: str


PAIR_SAMPLES: dict[str, PairSample] = {}


def sample_rows(name: str) -> Rows:
    """Read an embedded sample."""
    file = resources.files("anchorlens.prompts") / "samples" / f"{name}.csv"
    return parse_table(file.read_text(encoding="utf8"), name, ",")
