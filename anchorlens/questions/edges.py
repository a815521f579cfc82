"""Attention edges as text: ``source -> target``."""

from anchorlens.constants import ANCHORS, LATER
from anchorlens.errors import InputError, did_you_mean


def parse_edges(edges: str) -> tuple[str, str]:
    """Parse ``"source -> target"`` into the names of source and target.

    >>> parse_edges("exact_question -> later")
    ('exact_question', 'later')
    """
    source, arrow, target = (part.strip() for part in edges.partition("->"))
    if not arrow or not source or not target:
        raise InputError(
            f"edges={edges!r}: must be 'source -> target', for example 'exact_question -> later'.",
            argument="edges",
        )
    if source not in ANCHORS:
        raise InputError(
            f"edges={edges!r}: unknown source {source!r}. {did_you_mean(source, ANCHORS)}",
            argument="edges",
        )
    if target not in (*ANCHORS, LATER):
        raise InputError(
            f"edges={edges!r}: unknown target {target!r}."
            f" {did_you_mean(target, (*ANCHORS, LATER))}",
            argument="edges",
        )
    return source, target
