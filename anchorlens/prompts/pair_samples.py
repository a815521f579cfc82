"""Embedded samples of prompt pairs."""

from importlib import resources

from anchorlens.prompts.dataset import KnownDataset
from anchorlens.prompts.delimited import parse_table
from anchorlens.prompts.read_rows import Rows

_NOTES = {
    "facts-pairs": (
        "100 pairs of facts, such as capitals, cities, chemical symbols and opposites, with"
        " exchanged subjects"
    ),
    "ioi-pairs": "100 pairs of sentences with two names, one repeated; the answer is the other one",
    "induction-pairs": (
        "100 pairs of repeated lists of words; the answer is the next word of the list"
    ),
}


def _sample(name: str, note: str) -> KnownDataset:
    return KnownDataset(
        name=name, hub_id=None, config=None, split=None, kind="pairs", note=f"embedded {note}"
    )


PAIR_SAMPLES = {name: _sample(name, note) for name, note in _NOTES.items()}
"""Name -> embedded sample."""


def sample_rows(name: str) -> Rows:
    """Read an embedded sample."""
    file = resources.files("anchorlens.prompts") / "samples" / f"{name}.csv"
    return parse_table(file.read_text(encoding="utf8"), name, ",").rows
