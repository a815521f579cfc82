"""Attention edges as text: ``source -> target``."""

from anchorlens.constants import ANCHORS, LATER
from anchorlens.errors import InputError, did_you_mean


def parse_edges(edges: str) -> tuple[str, str]:
    """Source and target of ``"source -> target"``.

    >>> parse_edges("exact_question -> later")
    ('exact_question', 'later')
    """
    source, arrow, target = (part.strip() for part in edges.partition("->"))
    if not arrow or not source or not target:
        raise InputError(
            f"edges={edges!r} is not understood. Write 'source -> target', for example 'exact_question -> later'."
        )
    if source not in ANCHORS:
        raise InputError(f"Unknown source {source!r} in edges={edges!r}. {did_you_mean(source, ANCHORS)}")
    if target not in (*ANCHORS, LATER):
        raise InputError(f"Unknown target {target!r} in edges={edges!r}. {did_you_mean(target, (*ANCHORS, LATER))}")
    return source, target
